import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { DnsCache, DnsError } from '../../../src/net/dns-cache.ts';
import { clock } from '../../../src/util/clock.ts';

/** A cache whose answers the test gives, with a clock that the test moves. */
function caching(t: TestContext, first = 0) {
  const asked: { name: string; answer: (addresses: string[] | Error) => void }[] = [];
  const serials: { zone: string; answer: (serial: number | Error) => void }[] = [];
  const moved: string[] = [];
  const times = { maxTtlMs: 1000, nxdomainTtlMs: 100, zoneCheckMs: 0 };
  let now = 5000;
  t.mock.method(clock, 'tick', () => {
    clock.now = now;
    return now;
  });
  const pass = (ms: number): number => {
    now += ms;
    return clock.tick();
  };
  pass(0);
  const settled =
    <T>(resolve: (value: T) => void, reject: (error: Error) => void) =>
    (answer: T | Error): void =>
      answer instanceof Error ? reject(answer) : resolve(answer);
  const cache = new DnsCache({
    names: {
      addresses: (name) =>
        new Promise<string[]>((resolve, reject) => {
          asked.push({ name, answer: settled(resolve, reject) });
        }),
      serial: (zone) =>
        new Promise<number>((resolve, reject) => {
          serials.push({ zone, answer: settled(resolve, reject) });
        }),
    },
    times: () => times,
    first,
    onMoved: (host, addresses) => moved.push(`${host}: ${addresses.join(' ')}`),
  });
  /** One connection's question; the answer is an address and its family, or an error. */
  const lookup = (name: string): Promise<string> =>
    new Promise((resolve) => {
      cache.lookup(name, {}, (error, address, family) => {
        resolve(error instanceof DnsError ? error.message : `${String(address)}/${family}`);
      });
    });
  /** A question whose answer is not known yet. */
  const ask = async (name: string, answer: string[] | Error): Promise<string> => {
    const found = lookup(name);
    asked.at(-1)!.answer(answer);
    return found;
  };
  return { cache, asked, serials, moved, times, pass, lookup, ask };
}

test('connections take the addresses in turn, beginning at the place of the worker', async (t) => {
  const { ask, lookup } = caching(t, 1);
  assert.equal(await ask('db', ['10.0.0.1', 'fd00::1', '10.0.0.3']), 'fd00::1/6');
  assert.equal(await lookup('db'), '10.0.0.3/4');
  assert.equal(await lookup('db'), '10.0.0.1/4');
  assert.equal(await lookup('db'), 'fd00::1/6');
});

test('an answer and a failure are kept for their own times', async (t) => {
  const { ask, lookup, asked, pass } = caching(t);
  await ask('db', ['10.0.0.1']);
  pass(999);
  await lookup('db');
  assert.equal(asked.length, 1);
  pass(1);
  assert.equal(await ask('db', new Error('no such name')), 'server DNS lookup failed');
  assert.equal(asked.length, 2);
  pass(99);
  assert.equal(await lookup('db'), 'server DNS lookup failed');
  pass(1);
  assert.equal(await ask('db', ['10.0.0.1']), '10.0.0.1/4');
  assert.equal(asked.length, 3);
});

test('who asks while a question is under way waits for its answer', async (t) => {
  const { cache, lookup, asked } = caching(t);
  const both = Promise.all([lookup('db'), lookup('db')]);
  assert.equal(asked.length, 1);
  assert.equal(cache.questions, 1);
  asked[0]!.answer(['10.0.0.1', '10.0.0.2']);
  assert.deepEqual(await both, ['10.0.0.1/4', '10.0.0.2/4']);
  assert.equal(cache.questions, 0);
});

test('an answer never comes before the caller has what it made', async (t) => {
  const { ask, cache } = caching(t);
  await ask('db', ['10.0.0.1']);
  let isReturned = false;
  await new Promise<void>((resolve) => {
    cache.lookup('db', {}, () => {
      assert.equal(isReturned, true);
      resolve();
    });
    isReturned = true;
  });
});

test('a name has moved when it lacks an address that it had, whatever failed in between', async (t) => {
  const { ask, pass, moved } = caching(t);
  await ask('db', ['10.0.0.1']);
  pass(1000);
  await ask('db', ['10.0.0.2', '10.0.0.1']);
  pass(1000);
  await ask('db', new Error('no answer'));
  assert.deepEqual(moved, []);
  pass(1000);
  await ask('db', ['10.0.0.2', '10.0.0.3']);
  assert.deepEqual(moved, ['db: 10.0.0.2 10.0.0.3']);
});

test('what another worker has learnt is as good as an answer, for names that are known', async (t) => {
  const { cache, ask, lookup, asked, moved } = caching(t);
  await ask('db', ['10.0.0.1']);
  cache.learn('db', ['10.0.0.2']);
  cache.learn('other', ['10.0.0.3']);
  assert.equal(await lookup('db'), '10.0.0.2/4');
  assert.equal(asked.length, 1);
  assert.deepEqual(moved, []);
  assert.deepEqual(
    cache.hosts.map(({ hostname }) => hostname),
    ['db'],
  );
});

test('names of a zone are looked up again when its serial number has grown, round the end too', async (t) => {
  const { cache, ask, asked, serials, times, pass } = caching(t);
  await ask('a.test', ['10.0.0.1']);
  await ask('b.test', ['10.0.0.2']);
  await ask('single', ['10.0.0.3']);
  cache.tick(pass(10_000));
  assert.equal(serials.length, 0, 'zones are not watched by default');
  times.zoneCheckMs = 500;
  const names: string[][] = [];
  for (const serial of [7, 7, 6, 8, 0x8000_0000, 0xffff_ffff, 3, new Error('no zone'), 3]) {
    const from = asked.length;
    cache.tick(pass(500));
    serials.at(-1)!.answer(serial);
    await new Promise(setImmediate);
    names.push(asked.slice(from).map(({ name }) => name));
    for (const { answer } of asked.slice(from)) answer(['10.0.0.1']);
    await new Promise(setImmediate);
  }
  const all = ['a.test', 'b.test'];
  // From 8 to 0x80000000 is just below half of the round, and so forward.
  assert.deepEqual(names, [all, [], [], all, all, all, all, [], []]);
  assert.deepEqual(cache.zones, [{ zonename: 'test', serial: 3 }]);
  assert.equal(serials.length, 9);
  cache.tick(pass(499));
  assert.equal(serials.length, 9);
});

test('an address that refuses is passed over until the next answer, or until all of them refuse', async (t) => {
  const { cache, ask, lookup, pass } = caching(t);
  const [one, two] = ['10.0.0.1', '10.0.0.2'];
  assert.equal(await ask('db', [one, two]), `${one}/4`);
  assert.equal(cache.refused('db', one), true, 'there is another one');
  assert.equal(await lookup('db'), `${two}/4`);
  assert.equal(await lookup('db'), `${two}/4`);
  assert.equal(cache.refused('db', two), false, 'that was the last');
  assert.equal(await lookup('db'), `${one}/4`);
  assert.equal(await lookup('db'), `${two}/4`);
  assert.equal(cache.refused('db', one), true);
  pass(1000);
  assert.deepEqual([await ask('db', [one, two]), await lookup('db')].sort(), [
    `${one}/4`,
    `${two}/4`,
  ]);
  assert.equal(cache.refused('db', '10.0.0.9'), false, 'it is no longer one of the name');
  assert.equal(cache.refused('other', one), false);
});
