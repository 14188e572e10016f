import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { type FakeServer, startFakeServer } from '../support/fake-server.ts';
import { int32, message, query, typesOf } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import type { TestPostgres } from '../support/postgres.ts';
import { line, reload } from '../support/reload.ts';
import {
  beginStream,
  errors,
  ordinary,
  replica,
  shown,
  startSource,
  terminateWalSenders,
  value,
  walSenders,
} from '../support/replication.ts';
import { type RuleCheck, type RuleNotes, type RuleOptions, rule } from '../support/rule.ts';
import { authenticationOk, textRow } from '../support/server-messages.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

/** Replication connections: limits, timeouts, and how they end. */

let postgres: TestPostgres;
/** Reads what is said to it and never answers. */
let silent: FakeServer;
/** Fails in its logins, each database in another way. */
let failing: FakeServer;
before(async () => {
  postgres = await startSource();
  silent = await startFakeServer(async (connection) => {
    await connection.expectStartup();
    await connection.ended();
  });
  failing = await startFakeServer(async (connection) => {
    await connection.expectStartup();
    connection.send(FAILURES[connection.parameters['database']!]!.said);
    await connection.ended();
  });
});

/** What a server says to a login, by its database, and what a replication client is told then. */
const FAILURES: Readonly<Record<string, { said: Buffer; told: string }>> = {
  kerberos: { said: message('R', [int32(2)]), told: 'failed to answer authreq' },
  row: { said: textRow('a'), told: 'unknown pkt from server' },
  key: {
    said: Buffer.concat([authenticationOk(), message('K', [int32(1)])]),
    told: 'bad cancel key',
  },
};

/** PgBouncer has replication connections since 1.23. */
function replicationRule(
  name: string,
  options: Omit<RuleOptions, 'postgres'>,
  check: RuleCheck,
  notes: RuleNotes = {},
): void {
  rule(name, () => ({ postgres, ...options }), check, { since: '1.23', ...notes });
}

/** Waits until a client of the database has that state in SHOW CLIENTS. */
async function untilOneIs(pooler: TestPooler, state: string): Promise<void> {
  await until(`a client is ${state}`, async () =>
    (await shown(pooler, 'SHOW CLIENTS', 'state')).includes(state),
  );
}

async function untilNoneIsLeft(): Promise<void> {
  await until('all WAL senders have ended', async () => (await walSenders(postgres)) === 0, {
    deadlineMs: 30_000,
  });
}

// Limits

replicationRule(
  'a full pool closes one idle connection for it',
  { settings: { default_pool_size: 2 } },
  async (pooler) => {
    const clients = [await ordinary(pooler), await ordinary(pooler)];
    for (const client of clients) await client.query('BEGIN');
    for (const client of clients) await client.query('COMMIT');
    const client = await replica(pooler);
    await client.query('SELECT 1');
    assert.match(pooler.log(), /closing because: evicted for pool_size/);
    assert.deepEqual(await shown(pooler, 'SHOW SERVERS', 'state'), ['active', 'idle']);
    for (const one of [client, ...clients]) await one.end();
  },
  // Older ones closed every idle connection of the pool.
  { since: '1.26.1' },
);

replicationRule(
  'below max_db_connections an idle connection of another pool makes room for it',
  { settings: { max_db_connections: 1 }, databases: { postgres: '' } },
  async (pooler) => {
    const other = await WireClient.login(pooler, { database: 'postgres' });
    await other.query('SELECT 1');
    const client = await replica(pooler);
    assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
    assert.match(pooler.log(), /postgres\/app@\S+ closing because: evicted for max_db_connections/);
    for (const one of [client, other]) await one.end();
  },
  { since: '1.26.1' },
);

replicationRule(
  'it counts for the pool: others wait until it leaves',
  { settings: { default_pool_size: 1 } },
  async (pooler) => {
    const other = await ordinary(pooler);
    await other.query('SELECT 1');
    const client = await replica(pooler);
    await client.query('SELECT 1');
    other.send(query('SELECT 2'));
    await untilOneIs(pooler, 'waiting');
    await client.end();
    assert.equal(typesOf(await other.untilReady()), 'T D C Z:I');
    await other.end();
  },
);

replicationRule(
  'in a pool whose connections are all in use it waits, for query_wait_timeout at most',
  { settings: { default_pool_size: 1, query_wait_timeout: 1 } },
  async (pooler) => {
    const other = await ordinary(pooler);
    await other.query('BEGIN');
    const client = await replica(pooler);
    client.send(query('SELECT 1'));
    assert.deepEqual(errors(await client.untilClose()), ['FATAL 08P01 query_wait_timeout']);
    await other.query('COMMIT');
    await other.end();
  },
);

replicationRule(
  'in a pool whose connections are all in use it gets the place of the next one that is free',
  { settings: { default_pool_size: 1 } },
  async (pooler) => {
    const other = await ordinary(pooler);
    await other.query('BEGIN');
    const client = await replica(pooler);
    client.send(query('SELECT 1'));
    await untilOneIs(pooler, 'waiting');
    await other.query('COMMIT');
    assert.equal(typesOf(await client.untilReady()), 'T D C Z:I');
    await client.end();
    await other.end();
  },
);

// Timeouts

replicationRule(
  'what closes free servers and idle clients does not close it',
  { settings: { server_idle_timeout: 1, server_lifetime: 1, client_idle_timeout: 1 } },
  async (pooler) => {
    const client = await replica(pooler);
    const pid = await value(client, 'SELECT pg_backend_pid()');
    const other = await ordinary(pooler);
    await other.query('SELECT 1');
    assert.deepEqual(errors(await other.untilClose()), ['FATAL 08P01 client_idle_timeout']);
    await until('the other server is gone', async () => {
      const states = await shown(pooler, 'SHOW SERVERS', 'replication');
      return states.length === 1;
    });
    assert.match(pooler.log(), /closing because: server (idle timeout|lifetime over)/);
    assert.equal(await value(client, 'SELECT pg_backend_pid()'), pid);
    await client.end();
  },
);

for (const [setting, text, act] of [
  ['query_timeout', 'query timeout', 'START_REPLICATION SLOT timed LOGICAL 0/0'],
  ['transaction_timeout', 'transaction timeout', 'BEGIN'],
  ['idle_transaction_timeout', 'idle transaction timeout', 'BEGIN'],
] as const) {
  replicationRule(
    `${setting} ends it as it ends others`,
    { settings: { [setting]: 1 } },
    async (pooler) => {
      const client = await replica(pooler);
      await client.query('CREATE_REPLICATION_SLOT timed TEMPORARY LOGICAL test_decoding');
      client.send(query(act));
      assert.deepEqual(errors(await client.untilClose()), [`FATAL 08P01 ${text}`]);
      await untilNoneIsLeft();
    },
    // PgBouncer has transaction_timeout since 1.25.
    { since: setting === 'transaction_timeout' ? '1.25' : '1.23' },
  );
}

rule(
  'a server that does not answer its login in time is lost to it like one that has logged in',
  () => ({
    databases: { postgres: `host=${silent.host} port=${silent.port}` },
    settings: { server_connect_timeout: 1 },
  }),
  async (pooler) => {
    await assert.rejects(replica(pooler), /^WireError: FATAL 08P01: connect timeout$/);
    assert.equal(silent.connections.at(-1)?.parameters['replication'], 'database');
    assert.match(pooler.log(), /S-\S+: .* closing because: connect timeout/);
  },
  { since: '1.23' },
);

rule(
  'a server that fails in its login is lost to it with the reason',
  () => ({
    databases: Object.fromEntries(
      Object.keys(FAILURES).map((name) => [name, `host=${failing.host} port=${failing.port}`]),
    ),
    logs: [/./],
  }),
  async (pooler) => {
    for (const [database, { told }] of Object.entries(FAILURES)) {
      const login = { user: 'postgres', database, parameters: { replication: 'database' } };
      await assert.rejects(WireClient.login(pooler, login), { text: told }, database);
      assert.match(pooler.log(), new RegExp(`S-\\S+: .* closing because: ${told}`));
    }
  },
  { since: '1.23' },
);

rule(
  'a RECONNECT ends its login',
  () => ({ databases: { postgres: `host=${silent.host} port=${silent.port}` } }),
  async (pooler) => {
    const { length } = silent.connections;
    const refused = assert.rejects(replica(pooler), { text: 'connect string changed' });
    await until('its server has the startup packet', () => {
      const last = silent.connections[length];
      return last !== undefined && last.version > 0;
    });
    await pooler.console('RECONNECT');
    await refused;
  },
  { since: '1.23' },
);

rule(
  'a connection on its way to a server is closed when its client is',
  () => ({
    databases: { postgres: `host=${silent.host} port=${silent.port}` },
    settings: { client_login_timeout: 1 },
  }),
  async (pooler) => {
    await assert.rejects(replica(pooler), { text: /^client_login_timeout/ });
    await until('it is logged', () =>
      /S-\S+: .* closing because: replication client disconnected/.test(pooler.log()),
    );
  },
  { since: '1.23' },
);

// Ends

replicationRule(
  'its server is closed when it leaves, in a transaction or a stream',
  {},
  async (pooler) => {
    const inTransaction = await replica(pooler);
    await inTransaction.query('BEGIN');
    const inStream = await beginStream(await replica(pooler), 'leaving');
    const resting = await replica(pooler);
    await resting.query('SELECT 1');
    assert.equal(await walSenders(postgres), 3);
    await resting.end();
    inStream.destroy();
    inTransaction.destroy();
    await untilNoneIsLeft();
    assert.match(pooler.log(), /S-\S+: .* closing because: replication client was closed/);
    assert.deepEqual(await shown(pooler, 'SHOW SERVERS', 'state'), []);
  },
);

replicationRule('a base backup ends soon after its client has left', {}, async (pooler) => {
  const client = await replica(pooler, 'true');
  // At this rate, in kB/s, all of it takes minutes.
  client.send(query("BASE_BACKUP (CHECKPOINT 'fast', MAX_RATE 128, WAL false)"));
  await until('it has begun', () => client.receivedBytes > 300_000);
  client.destroy();
  await untilNoneIsLeft();
});

replicationRule(
  'no reset query runs on its server, and nobody else gets it',
  {
    settings: {
      pool_mode: 'session',
      server_reset_query: 'SELECT pg_logical_emit_message(false, $$reset$$, $$$$)',
      server_reset_query_always: 1,
    },
  },
  async (pooler) => {
    const client = await replica(pooler);
    const pid = await value(client, 'SELECT pg_backend_pid()');
    await client.query('CREATE_REPLICATION_SLOT resets LOGICAL test_decoding');
    await client.end();
    await untilNoneIsLeft();
    const changes = () =>
      postgres.query("SELECT data FROM pg_logical_slot_peek_changes('resets', NULL, NULL)");
    assert.deepEqual(await changes(), []);
    const other = await ordinary(pooler);
    assert.notEqual(await value(other, 'SELECT pg_backend_pid()'), pid);
    await other.end();
    await until(
      'the reset query of an ordinary session shows',
      async () => (await changes()).length > 0,
    );
    await postgres.query("SELECT pg_drop_replication_slot('resets')");
  },
);

replicationRule('the server’s own end of the connection reaches it', {}, async (pooler) => {
  const resting = await replica(pooler);
  await resting.query('SELECT 1');
  const inStream = await beginStream(await replica(pooler), 'ended');
  await terminateWalSenders(postgres);
  for (const client of [resting, inStream]) {
    assert.deepEqual(errors(await client.untilClose()), [
      'FATAL 57P01 terminating connection due to administrator command',
      'FATAL 08P01 server conn crashed?',
    ]);
    client.destroy();
  }
});

replicationRule(
  'a reload that changes where its database is ends it, in a stream too',
  { databases: { postgres: '', other: 'dbname=postgres' } },
  async (pooler) => {
    const resting = await replica(pooler);
    await resting.query('SELECT 1');
    const inStream = await beginStream(await replica(pooler), 'reloaded');
    const target = `host=${postgres.host} port=${postgres.port} dbname=app`;
    await reload(pooler, line('databases', 'postgres', target));
    for (const client of [resting, inStream]) {
      const seen = errors(await client.untilClose());
      assert.deepEqual(seen, ['FATAL 08P01 database configuration changed']);
      client.destroy();
    }
    await untilNoneIsLeft();
  },
);

test('the server of this file ends', async () => {
  await silent.stop();
  await failing.stop();
  await postgres.dispose();
});
