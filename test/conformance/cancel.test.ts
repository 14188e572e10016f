/** Cancel requests: keys, what becomes of a request, and what happens to the server meanwhile. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { before, type TestContext, test } from 'node:test';
import { type FakeServer, startFakeServer } from '../support/fake-server.ts';
import { cancelRequest, query, reportFields, textRows, typesOf } from '../support/messages.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import * as says from '../support/server-messages.ts';
import { until } from '../support/until.ts';
import { type Address, type LoginOptions, WireClient } from '../support/wire-client.ts';

/** Says that it runs by a notice, then sleeps. */
const SLEEP = "DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(60); END $$";
const CANCELED = '57014';

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
});

const options = (): RuleOptions => ({ postgres, databases: { app: '' }, size: 2 });

async function loggedIn(
  t: TestContext,
  pooler: Address,
  login: LoginOptions = {},
): Promise<WireClient> {
  const client = await WireClient.login(pooler, login);
  t.after(() => client.destroy());
  return client;
}

/** Sends a CancelRequest; nothing is ever said to who sends one, and then it is closed. */
async function cancel(pooler: Address, key: Uint8Array): Promise<void> {
  const requester = await WireClient.connect(pooler);
  requester.send(cancelRequest(key));
  assert.deepEqual(await requester.untilClose(), []);
  requester.destroy();
}

async function sleeps(client: WireClient): Promise<void> {
  client.send(query(SLEEP));
  await client.until('N');
}

async function isCancelled(client: WireClient): Promise<void> {
  const answer = await client.untilReady();
  assert.equal(typesOf(answer), 'E Z:I');
  assert.equal(reportFields(answer[0]!.body)['C'], CANCELED);
}

/** What SHOW POOLS says of the pool of database `app`. */
async function shown(pooler: TestPooler, column: string): Promise<number> {
  const rows = await pooler.console('SHOW POOLS');
  return Number(rows.find(({ database }) => database === 'app')?.[column] ?? 0);
}

async function logs(pooler: TestPooler, text: string): Promise<void> {
  await until(`it logs: ${text}`, () => pooler.log().includes(text));
}

rules('what becomes of a cancel request', options, [
  {
    name: 'keys are 8 bytes that begin with a 0 bit, each another',
    since: '1.19',
    check: async (pooler, t) => {
      const clients = await Promise.all(Array.from({ length: 20 }, () => loggedIn(t, pooler)));
      for (const { key } of clients) {
        assert.equal(key.length, 8);
        assert.equal(key[0]! & 0x80, 0);
      }
      assert.equal(new Set(clients.map(({ key }) => key.toString('hex'))).size, clients.length);
      for (const client of clients) await client.end();
    },
  },
  {
    name: 'a query that runs is cancelled, and the requester closed without a word',
    check: async (pooler, t) => {
      const client = await loggedIn(t, pooler);
      for (let round = 0; round < 3; round++) {
        await sleeps(client);
        await cancel(pooler, client.key);
        await isCancelled(client);
        assert.deepEqual(textRows(await client.query("SELECT 'usable'")), [['usable']]);
      }
      await logs(pooler, 'closing because: successfully sent cancel request');
      await client.end();
    },
  },
  {
    name: 'a query in a transaction is cancelled',
    check: async (pooler, t) => {
      const client = await loggedIn(t, pooler);
      await client.query('BEGIN');
      await sleeps(client);
      await cancel(pooler, client.key);
      assert.equal(typesOf(await client.untilReady()), 'E Z:E');
      await client.query('ROLLBACK');
      await client.end();
    },
  },
  {
    name: 'a cancel request over the Unix socket is one like any other',
    check: async (pooler, t) => {
      const client = await loggedIn(t, pooler);
      await sleeps(client);
      await cancel({ path: pooler.unixPath }, client.key);
      await isCancelled(client);
      await client.end();
    },
  },
  {
    name: 'an unknown key cancels nothing',
    check: async (pooler, t) => {
      const client = await loggedIn(t, pooler);
      await sleeps(client);
      for (let i = 0; i < 10; i++) await cancel(pooler, randomBytes(8));
      for (const at of client.key.keys()) {
        const other = Buffer.from(client.key);
        other[at] = other[at]! ^ 0x10;
        await cancel(pooler, other);
      }
      await logs(pooler, 'closing because: failed cancel request');
      await cancel(pooler, client.key);
      await isCancelled(client);
      await client.end();
    },
  },
  ...[0, 4, 7, 9, 36, 300].map((bytes) => ({
    name: `a cancel request with a key of ${bytes} bytes cancels nothing`,
    check: async (pooler: TestPooler, t: TestContext): Promise<void> => {
      const client = await loggedIn(t, pooler);
      await sleeps(client);
      await cancel(pooler, Buffer.concat([client.key, Buffer.alloc(300)]).subarray(0, bytes));
      await cancel(pooler, client.key);
      await isCancelled(client);
      await client.end();
    },
  })),
  {
    name: 'the key of a client that has left cancels nothing',
    check: async (pooler, t) => {
      const client = await loggedIn(t, pooler);
      await client.query('SELECT 1');
      await client.end();
      await cancel(pooler, client.key);
    },
  },
  {
    name: 'a client without a query is not cancelled, now or at its next query',
    check: async (pooler, t) => {
      const client = await loggedIn(t, pooler);
      await cancel(pooler, client.key);
      await client.query('SELECT 1');
      await cancel(pooler, client.key);
      await logs(pooler, 'closing because: cancel request for idle client');
      assert.deepEqual(textRows(await client.query("SELECT pg_sleep(0.1), 'slept'")), [
        ['', 'slept'],
      ]);
      await client.end();
    },
  },
  {
    name: 'a transaction that waits for its client is not cancelled',
    check: async (pooler, t) => {
      const client = await loggedIn(t, pooler);
      await client.query('BEGIN');
      await cancel(pooler, client.key);
      const answer = await client.query("SELECT pg_sleep(0.1), 'slept'");
      assert.equal(typesOf(answer), 'T D C Z:T');
      await client.query('COMMIT');
      await client.end();
    },
  },
  {
    name: 'a console session that waits for nothing has nothing to cancel',
    check: async (pooler, t) => {
      const login = { user: 'postgres', database: 'pgbouncer' };
      const client = await loggedIn(t, pooler, login);
      await cancel(pooler, client.key);
      await logs(pooler, 'closing because: cancel request for console client');
      assert.equal(typesOf(await client.query('SHOW VERSION')), 'T D C Z:I');
      await client.end();
    },
  },
  {
    name: 'requests for several clients at one time all arrive',
    check: async (pooler, t) => {
      const clients = await Promise.all(Array.from({ length: 8 }, () => loggedIn(t, pooler)));
      await Promise.all(clients.map(sleeps));
      await Promise.all(clients.map(({ key }) => cancel(pooler, key)));
      await Promise.all(clients.map(isCancelled));
      for (const client of clients) await client.end();
    },
  },
  {
    name: 'the second of two requests for one query does no harm',
    check: async (pooler, t) => {
      const client = await loggedIn(t, pooler);
      await sleeps(client);
      await Promise.all([cancel(pooler, client.key), cancel(pooler, client.key)]);
      await isCancelled(client);
      for (let i = 0; i < 5; i++)
        assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
      await client.end();
    },
  },
]);

rule(
  'a request needs no place in a full pool, nor below max_db_connections and max_user_connections',
  () => ({
    ...options(),
    size: 1,
    settings: { default_pool_size: 1, max_db_connections: 1, max_user_connections: 1 },
  }),
  async (pooler, t) => {
    const client = await loggedIn(t, pooler);
    await sleeps(client);
    await cancel(pooler, client.key);
    await isCancelled(client);
  },
);

rule(
  'a client that waits for a server is answered at once',
  () => ({ ...options(), size: 1, settings: { default_pool_size: 1 } }),
  async (pooler, t) => {
    const [busy, waiting] = [await loggedIn(t, pooler), await loggedIn(t, pooler)];
    await busy.query('BEGIN');
    waiting.send(query('SELECT 1'));
    await until('it waits', async () => (await shown(pooler, 'cl_waiting')) === 1);
    await cancel(pooler, waiting.key);
    await isCancelled(waiting);
    assert.equal(await shown(pooler, 'cl_waiting'), 0);
    await busy.query('COMMIT');
    assert.equal(typesOf(await waiting.query('SELECT 1')), 'T D C Z:I');
  },
  {
    differs: {
      because: 'PgBouncer drops the request, and the query is run when its turn comes',
      check: async (pooler, t) => {
        const [busy, waiting] = [await loggedIn(t, pooler), await loggedIn(t, pooler)];
        await busy.query('BEGIN');
        waiting.send(query('SELECT 1'));
        await until('it waits', async () => (await shown(pooler, 'cl_waiting')) === 1);
        await cancel(pooler, waiting.key);
        assert.equal(await shown(pooler, 'cl_waiting'), 1);
        await busy.query('COMMIT');
        assert.equal(typesOf(await waiting.untilReady()), 'T D C Z:I');
      },
    },
  },
);

// What follows asks a server that the test plays, which keeps connections of cancel requests open.

/** Answers `slow` with an error once a cancel request has come, everything else at once. */
let server: FakeServer;
const queries: string[] = [];
/** A SET of a parameter to `held` is not answered. */
let holdsSet = false;
before(async () => {
  server = await startFakeServer(async (connection) => {
    await connection.welcome();
    await connection.answerQueries(async (sql) => {
      queries.push(sql);
      if (sql.includes("'held'")) {
        await until('it may go on', () => !holdsSet, { everyMs: 2 });
        return Buffer.concat([says.commandComplete('SET'), says.ready()]);
      }
      if (sql !== 'slow') return says.textAnswer(sql);
      await until('a cancel came', () => server.cancels.length > 0, { everyMs: 2 });
      return Buffer.concat([says.errorResponse(CANCELED, 'cancelled'), says.ready()]);
    });
  });
});

const ofFake = (settings: Section = {}): (() => RuleOptions) => {
  return () => ({ postgres: server, databases: { app: '' }, settings });
};

/** A client whose query `slow` runs. */
async function slowOne(t: TestContext, pooler: TestPooler): Promise<WireClient> {
  server.cancels.length = 0;
  queries.length = 0;
  const client = await loggedIn(t, pooler);
  client.send(query('slow'));
  await until('it runs', () => queries.includes('slow'));
  return client;
}

/** Somebody who has sent a cancel request that the server got. */
async function requested(t: TestContext, pooler: TestPooler, key: Buffer): Promise<WireClient> {
  const count = server.cancels.length;
  const requester = await WireClient.connect(pooler);
  t.after(() => requester.destroy());
  requester.send(cancelRequest(key));
  await until('the server has it', () => server.cancels.length > count);
  return requester;
}

rule(
  'the request carries the server’s key, on a connection of its own, before any encryption',
  ofFake({ server_tls_sslmode: 'prefer' }),
  async (pooler, t) => {
    const client = await slowOne(t, pooler);
    const { encryptionRequests, connections } = server;
    const { length } = connections;
    await cancel(pooler, client.key);
    await isCancelled(client);
    assert.deepEqual(server.cancels, [connections.at(-1)!.key]);
    assert.notDeepEqual(server.cancels[0], client.key);
    assert.equal(server.encryptionRequests, encryptionRequests);
    assert.equal(connections.length, length);
  },
);

rule(
  'the requester is closed when the server has closed, and the server lent to nobody until then',
  ofFake({ default_pool_size: 1 }),
  async (pooler, t) => {
    server.holdsCancels = true;
    t.after(() => server.releaseCancels());
    const client = await slowOne(t, pooler);
    const requester = await requested(t, pooler, client.key);
    await isCancelled(client);
    await until('it is held', async () => (await shown(pooler, 'sv_being_canceled')) === 1);
    const other = await loggedIn(t, pooler);
    other.send(query('other'));
    await until('it waits', async () => (await shown(pooler, 'cl_waiting')) === 1);
    assert.equal(requester.isClosed, false);
    assert.deepEqual(queries, ['slow']);
    server.releaseCancels();
    assert.deepEqual(await requester.untilClose(), []);
    assert.deepEqual(textRows(await other.untilReady()), [['other']]);
  },
  { since: '1.19' },
);

rule(
  'a request on its way is listed among the clients, and what carries it among the servers',
  ofFake({ default_pool_size: 1 }),
  async (pooler, t) => {
    server.holdsCancels = true;
    t.after(() => server.releaseCancels());
    const client = await slowOne(t, pooler);
    const requester = await requested(t, pooler, client.key);
    await isCancelled(client);
    await until('it is held', async () => (await shown(pooler, 'sv_being_canceled')) === 1);
    const told = async (topic: string) =>
      (await pooler.console(`SHOW ${topic}`))
        .filter((row) => row['database'] === 'app')
        .map((row) => ['user', 'state', 'replication', 'tls'].map((name) => row[name]).join(' '));
    assert.deepEqual(await told('CLIENTS'), ['app idle none ', '(nouser) active_cancel_req none ']);
    assert.deepEqual(await told('SERVERS'), [
      'app active_cancel none ',
      'app being_canceled none ',
    ]);
    const lists = await pooler.console('SHOW LISTS');
    const count = (name: string) => lists.find(({ list }) => list === name)?.['items'];
    assert.deepEqual(
      ['used_clients', 'login_clients', 'used_servers'].map(count),
      [3, 0, 2],
      'a client, a request and the console',
    );
    assert.deepEqual(
      [await shown(pooler, 'cl_active_cancel_req'), await shown(pooler, 'sv_active_cancel')],
      [1, 1],
    );
    server.releaseCancels();
    assert.deepEqual(await requester.untilClose(), []);
    await until(
      'nothing is on its way',
      async () => (await told('SERVERS')).join() === 'app idle none ',
    );
  },
  { since: '1.26.0' },
);

rule(
  'a server is lent to nobody while a request for it may still take effect, though who sent it has left',
  ofFake({ default_pool_size: 1 }),
  async (pooler, t) => {
    server.holdsCancels = true;
    t.after(() => server.releaseCancels());
    const client = await slowOne(t, pooler);
    const requester = await requested(t, pooler, client.key);
    await isCancelled(client);
    requester.destroy();
    client.send(query('next'));
    await until('it waits', async () => (await shown(pooler, 'cl_waiting')) === 1);
    assert.deepEqual(queries, ['slow']);
    server.releaseCancels();
    assert.deepEqual(textRows(await client.untilReady()), [['next']]);
  },
  { since: '1.19' },
);

/** A client whose parameters are being set, and who has been cancelled. */
async function beingPrepared(
  t: TestContext,
  pooler: TestPooler,
): Promise<{ client: WireClient; request: Promise<void> }> {
  server.cancels.length = 0;
  queries.length = 0;
  holdsSet = true;
  t.after(() => {
    holdsSet = false;
  });
  const client = await loggedIn(t, pooler, { parameters: { TimeZone: 'held' } });
  client.send(query('slow'));
  await until('it is being prepared', () => queries.some((sql) => sql.includes('held')));
  return { client, request: cancel(pooler, client.key) };
}

rule(
  'a request that comes while parameters are set is sent behind the query that it means',
  ofFake(),
  async (pooler, t) => {
    const { client, request } = await beingPrepared(t, pooler);
    await pooler.console('SHOW POOLS');
    assert.deepEqual(server.cancels, []);
    holdsSet = false;
    await isCancelled(client);
    await request;
  },
  {
    since: '1.20',
    differs: {
      because: 'PgBouncer drops it, and the query runs',
      check: async (pooler, t) => {
        const { client, request } = await beingPrepared(t, pooler);
        await request;
        await logs(pooler, 'ignoring cancel request for server that is setting vars');
        holdsSet = false;
        await until('the query runs', () => queries.includes('slow'));
        assert.deepEqual(server.cancels, []);
        await cancel(pooler, client.key);
        await isCancelled(client);
      },
    },
  },
);

rule(
  'a request that waits for parameters to be set ends with its client',
  ofFake(),
  async (pooler, t) => {
    const { client, request } = await beingPrepared(t, pooler);
    await pooler.console('SHOW POOLS');
    client.destroy();
    await request;
    await logs(pooler, 'closing because: not sending cancel request for client that is now idle');
    assert.deepEqual(server.cancels, []);
  },
  {
    since: '1.20',
    differs: {
      because: 'PgBouncer drops it before',
      check: async (pooler, t) => {
        const { request } = await beingPrepared(t, pooler);
        await request;
        await logs(pooler, 'ignoring cancel request for server that is setting vars');
      },
    },
  },
);

/** A request that comes to nothing because the server takes no connection, and then one that does not. */
async function comesToNothing(pooler: TestPooler, t: TestContext, reason: string): Promise<void> {
  const client = await slowOne(t, pooler);
  await server.takesNoMore(async () => {
    await cancel(pooler, client.key);
    assert.deepEqual(server.cancels, []);
  });
  await logs(pooler, `closing because: ${reason}`);
  await until('the next one is', async () => {
    await cancel(pooler, client.key);
    return server.cancels.length > 0;
  });
  await isCancelled(client);
}

rule(
  'a request that cannot be delivered comes to nothing after cancel_wait_timeout at the latest',
  () => ({
    ...ofFake({ cancel_wait_timeout: 1, server_login_retry: 1 })(),
    logs: [/could not be sent/],
  }),
  (pooler, t) => comesToNothing(pooler, t, 'failed to send cancel request'),
  {
    since: '1.20',
    differs: {
      because: 'PgBouncer tries again until then',
      check: (pooler, t) => comesToNothing(pooler, t, 'cancel_wait_timeout'),
    },
  },
);

test('the server that was played can be stopped', () => server.stop());
// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
