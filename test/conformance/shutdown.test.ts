/** The console's SHUTDOWN in its three forms, and the signals that mean the same. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { ConsoleClient, fatalOf, loginUntilEnd, resultOf } from '../support/console.ts';
import { query } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import { type Address, WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

const options =
  (settings: RuleOptions['settings'] = {}) =>
  (): RuleOptions => ({ postgres, databases: { app: '', other: 'dbname=app' }, settings });

/** The forms that wait. */
const SINCE = { since: '1.24.0' };

/** Waits until nobody can connect over TCP any more. */
async function refusesTcp(pooler: TestPooler): Promise<void> {
  await until('nobody can connect', async () => {
    const client = await WireClient.connect(pooler).catch(() => null);
    client?.destroy();
    return client === null;
  });
}

const unixOf = (pooler: TestPooler): Address => ({ path: pooler.unixPath });

async function unixConsole(t: TestContext, pooler: TestPooler): Promise<WireClient> {
  const who = { user: 'postgres', database: 'pgbouncer' };
  const client = await WireClient.login(unixOf(pooler), who);
  t.after(() => client.destroy());
  return client;
}

rule(
  'SHUTDOWN ends everything at once, without a word to anybody',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const idle = await loginUntilEnd(t, pooler);
    const busy = await loginUntilEnd(t, pooler);
    await busy.query('BEGIN');
    console.begin('SHUTDOWN');
    for (const client of [console.wire, idle, busy]) {
      assert.deepEqual(await client.untilClose(), []);
    }
    assert.equal(await pooler.ended(), 0);
    assert.match(pooler.log(), /LOG SHUTDOWN command issued\n/);
  },
);

rule(
  'SHUTDOWN WAIT_FOR_SERVERS lets what runs come to its end, refuses who needs a server, and ends',
  options({ default_pool_size: 1 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const idle = await loginUntilEnd(t, pooler);
    const asks = await loginUntilEnd(t, pooler);
    const busy = await loginUntilEnd(t, pooler);
    await busy.query('BEGIN');
    const waits = await loginUntilEnd(t, pooler);
    waits.send(query('SELECT 1'));
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.run('SHUTDOWN WAIT_FOR_SERVERS'), 'SHUTDOWN');
    assert.equal(await fatalOf(waits), '08P01 server shutting down');
    asks.send(query('SELECT 1'));
    assert.equal(await fatalOf(asks), '08P01 server shutting down');
    await refusesTcp(pooler);
    for (const sql of ['PAUSE', 'PAUSE app', 'KILL']) {
      assert.equal(await console.run(sql), 'ERROR 08P01 already suspended/paused', sql);
    }
    assert.equal(await console.run('RESUME'), 'ERROR 08P01 pooler is shutting down');
    assert.equal(await console.run('SHUTDOWN WAIT_FOR_SERVERS'), 'SHUTDOWN');
    assert.equal(await resultOf(busy, 'SELECT 2'), '2');
    await busy.query('COMMIT');
    assert.equal(await pooler.ended(), 0);
    assert.deepEqual(await idle.untilClose(), []);
    assert.deepEqual(await console.wire.untilClose(), []);
    assert.match(pooler.log(), /LOG SHUTDOWN WAIT_FOR_SERVERS command issued\n/);
  },
  SINCE,
);

rule(
  'SHUTDOWN WAIT_FOR_SERVERS of a pooler without servers is answered, then everything ends',
  () => ({ ...options()(), size: 2 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('SHUTDOWN WAIT_FOR_SERVERS'), 'SHUTDOWN');
    assert.deepEqual(await console.wire.untilClose(), []);
    assert.equal(await pooler.ended(), 0);
  },
  SINCE,
);

rule(
  'SHUTDOWN WAIT_FOR_CLIENTS serves everybody until the last has left, the console too',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const first = await loginUntilEnd(t, pooler);
    const second = await loginUntilEnd(t, pooler);
    assert.equal(await console.run('SHUTDOWN WAIT_FOR_CLIENTS'), 'SHUTDOWN');
    await refusesTcp(pooler);
    assert.equal(await resultOf(first, 'SELECT 1'), '1');
    await first.end();
    assert.equal(await resultOf(second, 'SELECT 2'), '2');
    await second.end();
    assert.equal(await console.run('SHOW VERSION'), 'SHOW');
    assert.equal(pooler.hasEnded, false);
    await console.wire.end();
    assert.equal(await pooler.ended(), 0);
  },
  SINCE,
);

rule(
  'during SHUTDOWN WAIT_FOR_CLIENTS the Unix socket admits the console and nobody else',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('SHUTDOWN WAIT_FOR_CLIENTS'), 'SHUTDOWN');
    await assert.rejects(WireClient.login(unixOf(pooler)), { text: 'pooler is shutting down' });
    const second = await unixConsole(t, pooler);
    await second.query('SHOW VERSION');
    await second.end();
    await console.wire.end();
    assert.equal(await pooler.ended(), 0);
  },
  SINCE,
);

rule(
  'SHUTDOWN WAIT_FOR_CLIENTS can be followed by PAUSE, and by the faster forms, but not by RESUME',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const busy = await loginUntilEnd(t, pooler);
    await busy.query('BEGIN');
    assert.equal(await console.run('SHUTDOWN WAIT_FOR_CLIENTS'), 'SHUTDOWN');
    assert.equal(await console.run('RESUME'), 'ERROR 08P01 pooler is shutting down');
    assert.equal(await console.run('PAUSE other'), 'PAUSE');
    assert.equal(await console.run('RESUME other'), 'RESUME');
    assert.equal(await console.run('DISABLE app'), 'DISABLE');
    assert.equal(await console.run('KILL other'), 'KILL');
    assert.equal(await console.run('SHUTDOWN WAIT_FOR_SERVERS'), 'SHUTDOWN');
    assert.equal(await resultOf(busy, 'SELECT 1'), '1');
    console.begin('SHUTDOWN');
    assert.deepEqual(await busy.untilClose(), []);
    assert.equal(await pooler.ended(), 0);
  },
  SINCE,
);

for (const [signal, form] of [
  ['SIGTERM', 'WAIT_FOR_CLIENTS'],
  ['SIGINT', 'WAIT_FOR_SERVERS'],
] as const) {
  rule(
    `${signal} is SHUTDOWN ${form}, and a second one ends at once`,
    options(),
    async (pooler, t) => {
      const client = await loginUntilEnd(t, pooler);
      await client.query('BEGIN');
      pooler.signal(signal);
      await refusesTcp(pooler);
      assert.equal(await resultOf(client, 'SELECT 1'), '1');
      pooler.signal(signal);
      assert.deepEqual(await client.untilClose(), []);
      assert.equal(await pooler.ended(), 0);
    },
    SINCE,
  );
}

rule(
  'SIGQUIT is SHUTDOWN',
  options(),
  async (pooler, t) => {
    const client = await loginUntilEnd(t, pooler);
    await client.query('BEGIN');
    pooler.signal('SIGQUIT');
    assert.deepEqual(await client.untilClose(), []);
    assert.equal(await pooler.ended(), 0);
  },
  SINCE,
);

test('the server before which all this ran ends', () => postgres.dispose());
