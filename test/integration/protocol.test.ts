/** Versions of the protocol, towards clients and towards what plays the server. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type FakeServer, type Script, startFakeServer } from '../support/fake-server.ts';
import {
  message,
  PROTOCOL_3_0,
  PROTOCOL_3_2,
  query,
  reportFields,
  textRows,
  typesOf,
} from '../support/messages.ts';
import { hasPgbouncer, startPgbouncer } from '../support/pgbouncer.ts';
import { type PgfleetOptions, startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import * as says from '../support/server-messages.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient } from '../support/wire-client.ts';

/** Says that it runs by a notice, then sleeps. */
const SLEEP = "DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(60); END $$";
const VERSIONS = [
  [PROTOCOL_3_0, 8],
  [PROTOCOL_3_2, 36],
] as const;

async function startedFleet(t: TestContext, options: PgfleetOptions): Promise<TestPgfleet> {
  const fleet = await startPgfleet(options);
  t.after(() => fleet.stop());
  return fleet;
}

async function startedFake(t: TestContext, script: Script): Promise<FakeServer> {
  const server = await startFakeServer(script);
  t.after(() => server.stop());
  return server;
}

async function loggedIn(t: TestContext, fleet: TestPgfleet, version: number): Promise<WireClient> {
  const client = await WireClient.login(fleet, { version });
  t.after(() => client.destroy());
  return client;
}

/** Runs SLEEP and cancels it. */
async function cancelsSleep(fleet: TestPgfleet, client: WireClient): Promise<void> {
  client.send(query(SLEEP));
  await client.until('N');
  await sendCancel(fleet, client.key);
  const answer = await client.untilReady();
  assert.equal(typesOf(answer), 'E Z:I');
  assert.equal(reportFields(answer[0]!.body)['C'], '57014');
  assert.deepEqual(textRows(await client.query("SELECT 'usable'")), [['usable']]);
}

for (const version of [15, 18] as const) {
  test(`PostgreSQL ${version}: clients of 3.0 and 3.2 cancel with their keys, from any worker`, async (t) => {
    if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const postgres = await startPostgres({ version });
    t.after(() => postgres.dispose());
    const fleet = await startedFleet(t, {
      postgres,
      size: 3,
      settings: { default_pool_size: 6, server_login_retry: 60 },
    });
    for (const [asked, keyBytes] of VERSIONS) {
      const client = await loggedIn(t, fleet, asked);
      assert.equal(client.key.length, keyBytes);
      for (let round = 0; round < 6; round++) await cancelsSleep(fleet, client);
      await client.end();
    }
    assert.equal(postgres.log().includes('in cancel request'), false, 'no key was wrong');
    assert.equal(postgres.log().includes('unsupported frontend protocol'), false);
  });
}

test('a long key that is cut, too long or wrong in any byte cancels nothing', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startedFleet(t, { postgres, size: 2 });
  const client = await loggedIn(t, fleet, PROTOCOL_3_2);
  const { key } = client;
  client.send(query(SLEEP));
  await client.until('N');
  const wrong = [...key.keys()].map((at) => {
    const other = Buffer.from(key);
    other[at] = other[at]! ^ 0x10;
    return other;
  });
  const lengths = [8, 12, 35].map((bytes) => key.subarray(0, bytes));
  for (const other of [...wrong, ...lengths, Buffer.concat([key, key])]) {
    await sendCancel(fleet, other);
  }
  assert.equal(postgres.log().includes('canceling statement'), false);
  await sendCancel(fleet, key);
  assert.equal(typesOf(await client.untilReady()), 'E Z:I');
  await client.end();
});

test('a server’s key of any length is sent back whole', async (t) => {
  for (const bytes of [8, 36, 260]) {
    const key = Buffer.alloc(bytes, bytes & 0xff);
    const server = await startedFake(t, async (connection) => {
      await connection.welcome(key);
      await connection.answerQueries(async () => {
        await until('a cancel came', () => server.cancels.length > 0, { everyMs: 2 });
        return Buffer.concat([says.errorResponse('57014', 'cancelled'), says.ready()]);
      });
    });
    const fleet = await startedFleet(t, { postgres: server });
    const client = await loggedIn(t, fleet, PROTOCOL_3_0);
    client.send(query('slow'));
    await until('the query runs', async () => {
      const [pool] = await fleet.console('SHOW POOLS');
      return Number(pool?.['sv_active']) === 1;
    });
    await sendCancel(fleet, client.key);
    assert.equal(typesOf(await client.untilReady()), 'E Z:I');
    assert.deepEqual(server.cancels, [key]);
    assert.equal(server.connections[0]!.version, PROTOCOL_3_2);
    await client.end();
  }
});

test('a server that negotiates 3.0 is no worse than one that speaks 3.2', async (t) => {
  const server = await startedFake(t, async (connection) => {
    connection.send(message('v', [Buffer.from('0003000000000000', 'hex')]));
    await connection.welcome();
    await connection.answerQueries((sql) => says.textAnswer(sql));
  });
  const fleet = await startedFleet(t, { postgres: server });
  const client = await loggedIn(t, fleet, PROTOCOL_3_2);
  assert.deepEqual(textRows(await client.query('works')), [['works']]);
  assert.equal(client.key.length, 36, 'what the server speaks is no matter of the client’s');
  await client.end();
  assert.equal(server.connections.length, 1);
});

for (const [how, refuse] of [
  ['in PostgreSQL’s words', says.errorResponse('0A000', 'unsupported frontend protocol', 'FATAL')],
  ['in PgBouncer’s words', says.errorResponse('08P01', "bad packet header: '00'", 'FATAL')],
  ['by closing', Buffer.alloc(0)],
] as const) {
  test(`a server that refuses 3.2 ${how} is asked for 3.0 at once, and that is no failed login`, async (t) => {
    const server = await startedFake(t, async (connection) => {
      if (connection.index === 0) {
        await connection.expectStartup();
        connection.send(refuse);
        connection.close();
        return;
      }
      await connection.welcome();
      await connection.answerQueries((sql) => says.textAnswer(sql));
    });
    // With one connection at most, the second attempt has to wait for the slot of the first.
    const fleet = await startedFleet(t, {
      postgres: server,
      settings: { default_pool_size: 1, max_db_connections: 1, server_login_retry: 60 },
    });
    const client = await loggedIn(t, fleet, PROTOCOL_3_0);
    assert.deepEqual(textRows(await client.query('works')), [['works']]);
    assert.equal(fleet.log().includes('login failed'), false);
    await fleet.console('RECONNECT').catch(() => undefined);
    await client.end();
    const versions = server.connections.map(({ version }) => version);
    assert.deepEqual(versions.slice(0, 2), [PROTOCOL_3_2, PROTOCOL_3_0]);
    assert.ok(versions.slice(2).every((version) => version === PROTOCOL_3_0));
  });
}

test('a PgBouncer of any version can be the server, and cancels go through it', async (t) => {
  if (!requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const bouncer = await startPgbouncer({ postgres, authFile: { app: 'app' } });
  bouncer.allowLog(/./);
  t.after(() => bouncer.stop());
  const fleet = await startedFleet(t, {
    postgres: bouncer,
    settings: { server_login_retry: 60, server_reset_query: '' },
  });
  const client = await loggedIn(t, fleet, PROTOCOL_3_2);
  await cancelsSleep(fleet, client);
  await client.end();
  assert.equal(fleet.log().includes('login failed'), false);
});
