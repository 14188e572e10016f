/** Cancel requests that come to another host than the client’s: `[peers]`, hops and loops. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { type FakeServer, startFakeServer } from '../support/fake-server.ts';
import {
  cancelRequest,
  PROTOCOL_3_0,
  PROTOCOL_3_2,
  query,
  reportFields,
  typesOf,
} from '../support/messages.ts';
import { hasPgbouncer, pgbouncerVersion, startPgbouncer } from '../support/pgbouncer.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import type { PoolerOptions, TestPooler } from '../support/pooler.ts';
import { freePort } from '../support/ports.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { line, reload } from '../support/reload.ts';
import { isAtLeast, type RuleOptions, rule } from '../support/rule.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { type Address, WireClient } from '../support/wire-client.ts';

/** The first version whose keys are laid out as they are now. */
const SINCE = '1.21';
/** Says that it runs by a notice, then sleeps. */
const SLEEP = "DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(60); END $$";
const OWN = 259;
const OTHER = 513;

let postgres: TestPostgres;
/** Plays a peer: it notes the keys that come. */
let peer: FakeServer;
before(async () => {
  postgres = await startPostgres();
  peer = await startFakeServer(async () => {
    throw new Error('a peer is sent nothing but cancel requests');
  });
});

/** A key of `id` with so many hops left. */
function keyOf(id: number, hops: number, worker = 0): Buffer {
  return Buffer.from([0x11, id & 0xff, id >> 8, worker, 0x22, 0x33, 0x44, 0xf0 | hops]);
}

const options = (place = '', settings: PoolerOptions['settings'] = {}): RuleOptions => ({
  postgres,
  databases: { app: '' },
  size: 2,
  peers: {
    [OTHER]: place || `host=127.0.0.1 port=${peer.port}`,
    // Its own entry does no harm, whatever it says.
    [OWN]: 'host=127.0.0.1 port=1',
  },
  settings: { peer_id: OWN, server_login_retry: 1, ...settings },
});

/** Nothing is ever said to who sends a request, and then it is closed. */
async function cancel(pooler: Address, key: Uint8Array): Promise<void> {
  const requester = await WireClient.connect(pooler);
  requester.send(cancelRequest(key));
  assert.deepEqual(await requester.untilClose(), []);
  requester.destroy();
}

/** Lets a client sleep at `owner`, cancels it at `other`. */
async function cancelsAcross(owner: Address, other: Address, version: number): Promise<void> {
  const client = await WireClient.login(owner, { version });
  client.send(query(SLEEP));
  await client.until('N');
  await cancel(other, client.key);
  const answer = await client.untilReady();
  assert.equal(typesOf(answer), 'E Z:I');
  assert.equal(reportFields(answer[0]!.body)['C'], '57014');
  await client.end();
}

rule(
  'the second and third byte of a key are the peer_id, and two bits of the last the hops left',
  () => options(),
  async (pooler) => {
    for (let i = 0; i < 8; i++) {
      const client = await WireClient.login(pooler);
      const { key } = client;
      assert.deepEqual([key.length, key[0]! & 0x80], [8, 0]);
      assert.deepEqual([key[1], key[2], key[7]! & 3], [OWN & 0xff, OWN >> 8, 3]);
      await client.end();
    }
  },
  { since: SINCE },
);

rule(
  'the own key cancels, whatever hops it has left',
  () => options(),
  async (pooler) => {
    for (const hops of [3, 2, 1, 0]) {
      const client = await WireClient.login(pooler);
      client.send(query(SLEEP));
      await client.until('N');
      const key = Buffer.from(client.key);
      key[7] = (key[7]! & 0xfc) | hops;
      await cancel(pooler, key);
      assert.equal(typesOf(await client.untilReady()), 'E Z:I');
      await client.end();
    }
  },
  { since: SINCE },
);

rule(
  'the key of a peer goes to it with one hop less, and with none left nowhere',
  () => options(),
  async (pooler) => {
    peer.cancels.length = 0;
    for (const hops of [3, 2, 1]) await cancel(pooler, keyOf(OTHER, hops));
    await cancel(pooler, keyOf(OTHER, 0));
    const text = 'failed to forward cancel request because its TTL was exhausted';
    await until('it is logged', () => pooler.log().includes(`closing because: ${text}`));
    assert.deepEqual(
      peer.cancels.map((key) => key.toString('hex')),
      [2, 1, 0].map((hops) => keyOf(OTHER, hops).toString('hex')),
    );
  },
  { since: SINCE },
);

rule(
  'the key of a peer that is not listed goes nowhere',
  () => options(),
  async (pooler) => {
    peer.cancels.length = 0;
    await cancel(pooler, keyOf(7, 3));
    const text = 'closing because: could not find peer to forward request to';
    await until('it is logged', () => pooler.log().includes(text));
    assert.deepEqual(peer.cancels, []);
  },
  { since: SINCE },
);

rule(
  'without a peer_id of its own the key of a peer is unknown',
  () => ({ ...options(), settings: { peer_id: 0 }, logs: [/has no effect/] }),
  async (pooler) => {
    peer.cancels.length = 0;
    await cancel(pooler, keyOf(OTHER, 3));
    assert.deepEqual(peer.cancels, []);
  },
  { since: SINCE },
);

rule(
  'the requester is closed when the peer has closed',
  () => options(),
  async (pooler, t) => {
    peer.cancels.length = 0;
    peer.holdsCancels = true;
    t.after(() => peer.releaseCancels());
    const requester = await WireClient.connect(pooler);
    t.after(() => requester.destroy());
    requester.send(cancelRequest(keyOf(OTHER, 3)));
    await until('the peer has it', () => peer.cancels.length === 1);
    assert.equal(requester.isClosed, false);
    peer.releaseCancels();
    assert.deepEqual(await requester.untilClose(), []);
  },
  { since: SINCE },
);

rule(
  'SHOW PEER_POOLS has a peer from its first request on, and counts those on their way',
  () => options(),
  async (pooler, t) => {
    const shown = async (): Promise<unknown[][]> =>
      (await pooler.console('SHOW PEER_POOLS')).map((row) => Object.values(row));
    assert.deepEqual(await shown(), []);
    peer.cancels.length = 0;
    peer.holdsCancels = true;
    t.after(() => peer.releaseCancels());
    const requester = await WireClient.connect(pooler);
    t.after(() => requester.destroy());
    requester.send(cancelRequest(keyOf(OTHER, 3)));
    await until('the peer has it', () => peer.cancels.length === 1);
    await until('it is counted', async () => (await shown()).join() === `${OTHER},1,0,1,0`);
    const clients = await pooler.console('SHOW CLIENTS');
    assert.deepEqual(
      clients.map(({ user, database, state }) => `${user} ${database} ${state}`),
      ['postgres pgbouncer idle', '(nouser) (nodb) active_cancel_req'],
    );
    const lists = await pooler.console('SHOW LISTS');
    assert.equal(lists.find(({ list }) => list === 'peer_pools')?.['items'], 1);
    peer.releaseCancels();
    assert.deepEqual(await requester.untilClose(), []);
    await until('it is over', async () => (await shown()).join() === `${OTHER},0,0,0,0`);
  },
  { since: '1.26.0' },
);

/** Sends six requests to a peer that keeps their connections, and takes two at one time. */
async function sixRequests(
  pooler: TestPooler,
  t: TestContext,
  least: number,
): Promise<WireClient[]> {
  peer.cancels.length = 0;
  peer.holdsCancels = true;
  t.after(() => peer.releaseCancels());
  const requesters = await Promise.all(Array.from({ length: 6 }, () => WireClient.connect(pooler)));
  t.after(() => {
    for (const requester of requesters) requester.destroy();
  });
  for (const requester of requesters) requester.send(cancelRequest(keyOf(OTHER, 3)));
  await until('the first are there', () => peer.cancels.length >= least);
  await pooler.console('SHOW PEERS');
  assert.ok(peer.cancels.length <= 2);
  return requesters;
}

/** Sends a request to a peer that is down at first. */
async function requestTooEarly(pooler: TestPooler): Promise<number> {
  peer.cancels.length = 0;
  let request: Promise<void> = Promise.resolve();
  await peer.takesNoMore(async () => {
    request = cancel(pooler, keyOf(OTHER, 3));
    // The attempt has failed when this is answered, or is about to.
    await pooler.console('SHOW PEERS');
  });
  await request;
  return peer.cancels.length;
}

/** PgBouncer looks at the requests that wait for a peer only when another one comes. */
const FORGETS =
  'PgBouncer lets what waits run into cancel_wait_timeout unless another request comes';

rule(
  'a peer has as many requests at one time as its pool_size says, and then the next',
  // One worker, which has all of the limit.
  () => ({ ...options(`host=127.0.0.1 port=${peer.port} pool_size=2`), size: 1 }),
  async (pooler, t) => {
    const requesters = await sixRequests(pooler, t, 2);
    peer.releaseCancels();
    for (const requester of requesters) assert.deepEqual(await requester.untilClose(), []);
    assert.equal(peer.cancels.length, 6);
  },
  {
    since: SINCE,
    differs: {
      because: FORGETS,
      check: async (pooler, t) => void (await sixRequests(pooler, t, 1)),
    },
  },
);

rule(
  'a peer has no more than that of all workers together',
  () => options(`host=127.0.0.1 port=${peer.port} pool_size=2`),
  async (pooler, t) => {
    // It may be that all of them come to one worker, whose share is 1.
    const requesters = await sixRequests(pooler, t, 1);
    peer.releaseCancels();
    for (const requester of requesters) assert.deepEqual(await requester.untilClose(), []);
    assert.equal(peer.cancels.length, 6);
  },
  { since: SINCE, differs: { because: 'it has no workers' } },
);

rule(
  'a peer that is down is tried again after server_login_retry, for cancel_wait_timeout',
  () => ({ ...options('', { cancel_wait_timeout: 5 }), logs: [/does not run/] }),
  async (pooler) => assert.equal(await requestTooEarly(pooler), 1),
  {
    since: SINCE,
    differs: {
      because: FORGETS,
      check: async (pooler) => assert.equal(await requestTooEarly(pooler), 0),
    },
  },
);

rule(
  'a request that no peer takes is closed after cancel_wait_timeout',
  () => options('host=127.0.0.1 port=1', { cancel_wait_timeout: 1 }),
  async (pooler) => {
    await cancel(pooler, keyOf(OTHER, 3));
    const text = 'closing because: cancel_wait_timeout';
    await until('it is logged', () => pooler.log().includes(text));
  },
  { since: SINCE },
);

rule(
  'a request for a peer that a reload takes out of the list is closed',
  () => options('host=127.0.0.1 port=1', { cancel_wait_timeout: 0 }),
  async (pooler) => {
    const requester = await WireClient.connect(pooler);
    requester.send(cancelRequest(keyOf(OTHER, 3)));
    // The attempt has failed when this is answered, or is about to.
    await pooler.console('SHOW PEERS');
    await reload(pooler, line('peers', String(OTHER), null));
    assert.deepEqual(await requester.untilClose(), []);
    const text = 'closing because: peer removed';
    await until('it is logged', () => pooler.log().includes(text));
    const ids = (await pooler.console('SHOW PEERS')).map((row) => row['peer_id']);
    assert.deepEqual(ids, [OWN]);
    // PgBouncer leaves the number out.
    const dropped = `dropping peer (?:${OTHER})? as it does not exist anymore\n`;
    assert.match(pooler.log(), new RegExp(` WARNING ${dropped}`));
  },
  { since: SINCE },
);

/** Two poolers that name each other; each makes its own kind. */
async function pair(
  t: TestContext,
  kinds: readonly ['fleet' | 'bouncer', 'fleet' | 'bouncer'],
): Promise<TestPooler[]> {
  const ports = [await freePort(), await freePort()];
  const poolers: TestPooler[] = [];
  for (const [index, kind] of kinds.entries()) {
    const common: PoolerOptions = {
      postgres,
      databases: { app: '' },
      // Whoever reads it knows both, and a third one that neither of them is.
      peers: {
        1: `host=127.0.0.1 port=${ports[0]}`,
        2: `host=127.0.0.1 port=${ports[1]}`,
        9: `host=127.0.0.1 port=${ports[1 - index]}`,
      },
      settings: { peer_id: index + 1, listen_port: ports[index]! },
    };
    const isFleet = kind === 'fleet';
    const pooler = isFleet
      ? await startPgfleet({ ...common, size: 3 })
      : await startPgbouncer(common);
    if (!isFleet) pooler.allowLog(/./);
    t.after(() => pooler.stop());
    poolers.push(pooler);
  }
  return poolers;
}

/** Whether the PgBouncer that is there, if any, lays out keys so. */
const canBePeer = !hasPgbouncer() || isAtLeast(pgbouncerVersion(), SINCE);

for (const kinds of [
  ['fleet', 'fleet'],
  ['fleet', 'bouncer'],
] as const) {
  if (kinds[1] === 'bouncer' && !canBePeer) continue;
  const title = kinds[1] === 'fleet' ? 'two fleets' : 'a fleet and a PgBouncer';
  test(`${title} cancel each other’s clients, and a request that finds nobody dies`, async (t) => {
    if (kinds[1] === 'bouncer' && !requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
    const [first, second] = (await pair(t, kinds)) as [TestPooler, TestPooler];
    for (const version of [PROTOCOL_3_0, PROTOCOL_3_2]) {
      for (let round = 0; round < 4; round++) {
        await cancelsAcross(first, second, version);
        await cancelsAcross(second, first, version);
        await cancelsAcross(first, first, version);
      }
    }
    // Each of them takes the other for number 9.
    await cancel(first, keyOf(9, 3));
    await until('its hops are used up', () => second.log().includes('its TTL was exhausted'));
    const count = (pooler: TestPooler): number =>
      pooler.log().split('successfully sent cancel request').length - 1;
    await until('the requesters are closed', () => count(first) > 12 && count(second) > 4);
  });
}

for (const kind of ['fleet', 'bouncer'] as const) {
  if (kind === 'bouncer' && !canBePeer) continue;
  test(`a ${kind === 'fleet' ? 'fleet' : 'PgBouncer'} is a peer by its Unix socket`, async (t) => {
    if (kind === 'bouncer' && !requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
    const common = { postgres, databases: { app: '' }, settings: { peer_id: 2 } };
    const owner = kind === 'fleet' ? await startPgfleet(common) : await startPgbouncer(common);
    if (kind === 'bouncer') owner.allowLog(/./);
    t.after(() => owner.stop());
    const fleet = await startPgfleet({
      ...common,
      settings: { peer_id: 1 },
      size: 2,
      peers: { 2: `host=${owner.unixDir} port=${owner.port}` },
    });
    t.after(() => fleet.stop());
    await cancelsAcross(owner, fleet, PROTOCOL_3_0);
  });
}

test('the peer that was played can be stopped', () => peer.stop());
// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
