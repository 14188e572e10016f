/** TLS clients that break off, stall, or send what no TLS client would: nothing is left of them. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { before, beforeEach, type TestContext, test } from 'node:test';
import { connect } from 'node:tls';
import { type Certs, makeCerts } from '../support/certs.ts';
import { query, sslRequest, startup } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { Random } from '../support/random.ts';
import { ask, connectRaw, connectTls, loginTls, tlsSettings } from '../support/tls-client.ts';
import { until } from '../support/until.ts';
import { descriptorsOf, isServed, memoryOf } from './support.ts';

const MEGABYTE = 1 << 20;

let postgres: TestPostgres;
let certs: Certs;
let fleet: TestPgfleet;
let worker: number;
let calm: number;
/** All that a client of this TLS library sends first. */
let hello: Buffer;

before(async () => {
  [postgres, certs] = await Promise.all([startPostgres(), makeCerts()]);
  fleet = await startPgfleet({
    postgres,
    settings: { ...tlsSettings(certs, 'allow'), client_login_timeout: 2 },
  });
  fleet.allowLog(/TLS handshake error: /, /tls_sbufio_recv: /, /pooler error: /);
  worker = fleet.workers()[0]!;
  hello = await clientHello();
});
beforeEach(async () => {
  await isServed(fleet);
  await until('the last clients are gone', async () => (await clients()) <= 1);
  calm = descriptorsOf(worker);
});

async function clients(): Promise<number> {
  const rows = await fleet.console('SHOW LISTS');
  return Number(rows.find(({ list }) => list === 'used_clients')?.['items']);
}

/** The pooler is what it was before: same worker, no descriptor more, and clients are served. */
async function isAsBefore(deadlineMs = 10_000): Promise<void> {
  await until('no descriptor is left', () => descriptorsOf(worker) <= calm, { deadlineMs });
  await until('no client is left', async () => (await clients()) <= 1);
  await isServed(fleet);
  const { client } = await loginTls(fleet);
  await client.query('SELECT 1');
  await client.end();
  assert.deepEqual(fleet.workers(), [worker]);
}

/** What Node's TLS says first to whoever is there. */
async function clientHello(): Promise<Buffer> {
  const said: Buffer[] = [];
  const nobody = new Duplex({
    read: () => undefined,
    write: (chunk: Buffer, _encoding, done) => {
      said.push(chunk);
      done();
    },
  });
  const secure = connect({ socket: nobody, rejectUnauthorized: false });
  secure.on('error', () => undefined);
  await until('the handshake has begun', () => said.length > 0);
  secure.destroy();
  return Buffer.concat(said);
}

/** A connection that has been told to begin its handshake, or begins it by itself. */
async function begun(t: TestContext, isDirect: boolean): Promise<Socket> {
  const raw = await connectRaw(fleet);
  t.after(() => raw.destroy());
  if (!isDirect) assert.equal(await ask(raw, sslRequest()), 'S');
  return raw;
}

for (const isDirect of [true, false]) {
  const how = isDirect ? 'direct TLS' : 'TLS after an SSLRequest';

  test(`${how}: a client may leave at any byte of its handshake`, async (t) => {
    const step = Math.ceil(hello.length / 40);
    for (let size = 0; size < hello.length; size += step) {
      const [left, reset] = [await begun(t, isDirect), await begun(t, isDirect)];
      for (const raw of [left, reset]) raw.write(hello.subarray(0, size));
      left.end();
      reset.resetAndDestroy();
    }
    await isAsBefore();
  });

  test(`${how}: a handshake that comes byte by byte is taken`, async (t) => {
    const raw = await begun(t, isDirect);
    for (const byte of hello) {
      raw.write(Buffer.of(byte));
      await new Promise((resolve) => setImmediate(resolve));
    }
    // A ServerHello, which the client's keys would be needed for to go on from.
    const [first] = (await once(raw, 'data')) as [Buffer];
    assert.equal(first.toString('hex', 0, 2), '1603');
    raw.destroy();
    await isAsBefore();
  });

  test(`${how}: a handshake that is bent ends by itself`, async (t) => {
    const seed = Date.now() % 1_000_000;
    t.diagnostic(`seed ${seed}`);
    const random = new Random(seed);
    for (let round = 0; round < 150; round++) {
      const raw = await begun(t, isDirect);
      const bytes = Buffer.from(hello);
      for (let bent = random.below(4); bent >= 0; bent--) {
        bytes[1 + random.below(bytes.length - 1)] = random.below(256);
      }
      raw.write(bytes);
      if (random.below(2) === 0) raw.write(Buffer.alloc(1 + random.below(300), random.below(256)));
      if (random.below(3) === 0) raw.end();
    }
    await isAsBefore(15_000);
  });
}

test('a handshake that stalls is ended by client_login_timeout, with many at once', async (t) => {
  const stalled = await Promise.all(
    Array.from({ length: 100 }, async (_, at) => {
      const raw = await begun(t, at % 2 === 0);
      raw.write(hello.subarray(0, 1 + (at % (hello.length - 1))));
      raw.resume();
      return raw;
    }),
  );
  await until('all are ended', () => stalled.every((raw) => raw.closed || raw.destroyed), {
    deadlineMs: 15_000,
  });
  await isAsBefore();
});

test('a StartupMessage in clear text behind the S, or behind a handshake, is not listened to', async (t) => {
  const plain = startup({ user: 'app', database: 'app' });
  const one = await begun(t, false);
  assert.equal(await ask(one, plain), 'closed');
  const two = await begun(t, true);
  two.write(Buffer.concat([hello, plain]));
  const got: Buffer[] = [];
  two.on('data', (chunk) => got.push(chunk));
  await until('it is closed', () => two.closed);
  assert.ok(!Buffer.concat(got).includes('application_name'));
  await isAsBefore();
});

test('a record that is none ends a client that is logged in, and says so in the log', async () => {
  const { client, raw } = await loginTls(fleet);
  raw.write('this is no record of TLS, however long');
  await client.untilClose();
  await until('the log says so', () =>
    /tls_sbufio_recv: error:0A0001BB:SSL routines::bad record type/.test(fleet.log()),
  );
  client.destroy();
  await isAsBefore();
});

test('a record that was changed on its way ends the client', async () => {
  const { client, raw } = await loginTls(fleet);
  raw.write(Buffer.from(`1703030020${'ab'.repeat(32)}`, 'hex'));
  await client.untilClose();
  client.destroy();
  await isAsBefore();
});

test('a client that wants to negotiate anew gets nowhere', async () => {
  const { client, socket } = await loginTls(fleet, { maxVersion: 'TLSv1.2' });
  let isDone = false;
  socket.renegotiate({}, (error) => {
    isDone = error === null;
  });
  await client.query('SELECT 1').catch(() => undefined);
  assert.equal(isDone, false);
  client.destroy();
  await isAsBefore();
});

test('a client that leaves without a word in the middle of a result leaves nothing behind', async () => {
  for (const leave of [
    (raw: Socket) => raw.resetAndDestroy(),
    (raw: Socket) => raw.destroy(),
    (raw: Socket) => raw.end(),
  ]) {
    const { client, socket, raw } = await loginTls(fleet);
    socket.pause();
    client.send(query(`SELECT repeat('r', ${MEGABYTE}) FROM generate_series(1, 50)`));
    await until('some of it is there', () => socket.readableLength > 0);
    leave(raw);
    client.destroy();
  }
  await until('the servers are free', () => descriptorsOf(worker) <= calm, { deadlineMs: 15_000 });
  await isAsBefore();
});

test('thousands of handshakes leave no memory behind', async () => {
  const rounds = async (count: number): Promise<void> => {
    for (let round = 0; round < count; round += 20) {
      await Promise.all(
        Array.from({ length: 20 }, async (_, at) => {
          const { client } = await connectTls(fleet, { direct: at % 2 === 0 });
          client.destroy();
        }),
      );
    }
  };
  await rounds(600);
  const before = memoryOf(worker);
  await rounds(1200);
  const grown = memoryOf(worker) - before;
  assert.ok(grown < 40 * MEGABYTE, `the worker grew by ${Math.round(grown / MEGABYTE)} MB`);
  await isAsBefore();
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('fleet and server can be stopped when all has been asked', async () => {
  await fleet.stop();
  await postgres.dispose();
});
