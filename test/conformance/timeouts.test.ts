/** Timeouts of clients, queries and transactions: their clocks, their scope and their texts. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { crowded, ending, fetchValue } from '../support/crowd.ts';
import { COPY_DONE, copyData, query, startup, typesOf } from '../support/messages.ts';
import { freePort } from '../support/ports.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { rule } from '../support/rule.ts';
import { until } from '../support/until.ts';

const LONG = 'SELECT pg_sleep(60)';

let postgres: TestPostgres;
let closedPort = 0;

before(async () => {
  postgres = await startPostgres();
  closedPort = await freePort();
});

// A client that is spared is always older than one that is not, so that the maintenance that ends
// the second has looked at the first.

// Most of the time is spent waiting, so a few rules wait at once.
describe('timeouts', { concurrency: 4 }, () => {
  rule(
    'a client that has not finished its login after client_login_timeout is told so',
    () => ({ postgres, settings: { client_login_timeout: 0.7, auth_type: 'md5' } }),
    crowded(async (crowd) => {
      const welcome = await crowd.login();
      const silent = await crowd.connect();
      const asked = await crowd.connect();
      asked.send(startup({ user: 'app', database: 'app' }));
      await asked.until('R');
      assert.equal(await ending(asked), 'FATAL 08P01: client_login_timeout');
      assert.equal(await ending(silent), 'FATAL 08P01: client_login_timeout');
      assert.equal(await fetchValue(welcome, 'SELECT 1'), '1');
    }),
  );

  rule(
    'a client that waits for its welcome is told client_login_timeout (server down)',
    () => ({
      databases: { app: `host=127.0.0.1 port=${closedPort}` },
      settings: { client_login_timeout: 0.7, server_login_retry: 0.2 },
    }),
    crowded(async (crowd) => {
      const client = await crowd.connect();
      client.send(startup({ user: 'app', database: 'app' }));
      assert.equal(await ending(client), 'FATAL 08P01: client_login_timeout (server down)');
    }),
  );

  rule(
    'query_wait_timeout also ends the wait for a welcome',
    () => ({
      databases: { app: `host=127.0.0.1 port=${closedPort}` },
      settings: { client_login_timeout: 0, query_wait_timeout: 0.7, server_login_retry: 0.2 },
    }),
    crowded(async (crowd) => {
      const client = await crowd.connect();
      client.send(startup({ user: 'app', database: 'app' }));
      assert.equal(await ending(client), 'FATAL 08P01: query_wait_timeout');
    }),
  );

  rule(
    'client_idle_timeout ends clients without a server that say nothing, and no others',
    () => ({
      postgres,
      databases: {
        app: '',
        session: 'dbname=app pool_mode=session',
        narrow: 'dbname=app pool_size=1',
      },
      settings: { client_idle_timeout: 0.7 },
    }),
    crowded(async (crowd) => {
      const linked = await crowd.holder();
      const session = await crowd.login({ database: 'session' });
      await session.query('SELECT 1');
      const holder = await crowd.holder({ database: 'narrow' });
      const queued = await crowd.queued({ database: 'narrow' });
      const idle = await crowd.login();
      const idleSession = await crowd.login({ database: 'session' });
      assert.equal(await ending(idle), 'FATAL 08P01: client_idle_timeout');
      assert.equal(await ending(idleSession), 'FATAL 08P01: client_idle_timeout');
      await holder.query('COMMIT');
      assert.equal(typesOf(await queued.untilReady()), 'T D C Z:I');
      assert.equal(await fetchValue(linked, 'SELECT 1'), '1');
      assert.equal(await fetchValue(session, 'SELECT 1'), '1');
    }),
  );

  rule(
    'client_idle_timeout counts from what the client said last',
    () => ({ postgres, settings: { client_idle_timeout: 1 } }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      const silent = await crowd.login();
      const end = ending(silent);
      while (!silent.isClosed) assert.equal(await fetchValue(client, 'SELECT 1'), '1');
      assert.equal(await end, 'FATAL 08P01: client_idle_timeout');
      assert.equal(await fetchValue(client, 'SELECT 1'), '1');
      assert.equal(await ending(client), 'FATAL 08P01: client_idle_timeout');
    }),
  );

  rule(
    'client_idle_timeout of a user replaces the global one, for the login name',
    () => ({
      postgres,
      databases: { app: '', forced: 'dbname=app user=app_trust' },
      users: { app_trust: 'client_idle_timeout=60' },
      settings: { client_idle_timeout: 0.7 },
    }),
    crowded(async (crowd) => {
      const spared = await crowd.login({ user: 'app_trust' });
      const clients = [await crowd.login(), await crowd.login({ database: 'forced' })];
      for (const client of clients) {
        assert.equal(await ending(client), 'FATAL 08P01: client_idle_timeout');
      }
      assert.equal(await fetchValue(spared, 'SELECT 1'), '1');
    }),
    { since: '1.24' },
  );

  rule(
    'client_idle_timeout of one user touches no other when there is no global one',
    () => ({ postgres, users: { app_trust: 'client_idle_timeout=1' } }),
    crowded(async (crowd) => {
      const other = await crowd.login();
      const client = await crowd.login({ user: 'app_trust' });
      assert.equal(await ending(client), 'FATAL 08P01: client_idle_timeout');
      assert.equal(await fetchValue(other, 'SELECT 1'), '1');
    }),
    {
      since: '1.24',
      differs: {
        because: 'PgBouncer closes the idle clients of everybody else at once',
        check: crowded(async (crowd) => {
          const other = await crowd.login();
          assert.equal(await ending(other), 'FATAL 08P01: client_idle_timeout');
        }),
      },
    },
  );

  const WAIT_PLACES = {
    databases: { plain: 'dbname=app', patient: 'dbname=app query_wait_timeout=0' },
    users: { app_plain: 'query_wait_timeout=1', app_trust: 'query_wait_timeout=0' },
  };

  rule(
    'query_wait_timeout of a user wins over the database’s, and that over the global one; 0 is for ever',
    () => ({
      postgres,
      ...WAIT_PLACES,
      settings: { query_wait_timeout: 0.7, default_pool_size: 1 },
    }),
    crowded(async (crowd) => {
      const places = {
        byDatabase: { database: 'patient' },
        byUser: { database: 'plain', user: 'app_trust' },
        global: { database: 'plain' },
        impatient: { database: 'patient', user: 'app_plain' },
      };
      const holders = [];
      for (const place of Object.values(places)) holders.push(await crowd.holder(place));
      const patient = [await crowd.queued(places.byDatabase), await crowd.queued(places.byUser)];
      const global = await crowd.queued(places.global);
      const impatient = await crowd.queued(places.impatient);
      assert.equal(await ending(global), 'FATAL 08P01: query_wait_timeout');
      assert.equal(await ending(impatient), 'FATAL 08P01: query_wait_timeout');
      for (const holder of holders) await holder.query('COMMIT');
      for (const client of patient) assert.equal(typesOf(await client.untilReady()), 'T D C Z:I');
    }),
    { since: '1.26' },
  );

  rule(
    'query_wait_timeout of a user or a database holds without a global one',
    () => ({
      postgres,
      databases: { app: '', hasty: 'dbname=app query_wait_timeout=1' },
      users: { app_plain: 'query_wait_timeout=1' },
      settings: { query_wait_timeout: 0, default_pool_size: 1 },
    }),
    crowded(async (crowd) => {
      for (const place of [{ user: 'app_plain' }, { database: 'hasty' }]) {
        await crowd.holder(place);
        assert.equal(await ending(await crowd.queued(place)), 'FATAL 08P01: query_wait_timeout');
      }
    }),
    { since: '1.26' },
  );

  rule(
    'query_wait_timeout = -1 of a database is no value',
    () => ({
      postgres,
      databases: { app: '', unset: 'dbname=app query_wait_timeout=-1' },
      settings: { query_wait_timeout: 0.7, default_pool_size: 1 },
    }),
    crowded(async (crowd) => {
      await crowd.holder({ database: 'unset' });
      const client = await crowd.queued({ database: 'unset' });
      assert.equal(await ending(client), 'FATAL 08P01: query_wait_timeout');
    }),
    {
      since: '1.26',
      differs: {
        because: 'PgBouncer makes it a very long time',
        check: crowded(async (crowd) => {
          const holder = await crowd.holder({ database: 'unset' });
          const patient = await crowd.queued({ database: 'unset' });
          await crowd.holder();
          assert.equal(await ending(await crowd.queued()), 'FATAL 08P01: query_wait_timeout');
          await holder.query('COMMIT');
          assert.equal(typesOf(await patient.untilReady()), 'T D C Z:I');
        }),
      },
    },
  );

  rule(
    'a query that runs longer than query_timeout ends with its server, where it runs on',
    () => ({ postgres, settings: { query_timeout: 0.7 } }),
    crowded(async (crowd) => {
      const application_name = `timeout ${crowd.pooler.port}`;
      const client = await crowd.login({ parameters: { application_name } });
      client.send(query(LONG));
      assert.equal(await ending(client), 'FATAL 08P01: query timeout');
      assert.match(crowd.pooler.log(), /S-\S+ app\/app@\S+ closing because: query timeout/);
      assert.deepEqual(await crowd.servers(), []);
      const all = await postgres.backends({ user: 'app' });
      const left = all.filter((backend) => backend.application_name === application_name);
      assert.deepEqual(
        left.map(({ state }) => state),
        ['active'],
      );
      await postgres.query('SELECT pg_terminate_backend($1)', [left[0]!.pid]);
    }),
  );

  rule(
    'a client in the queue is told query_timeout, with an underscore',
    () => ({ postgres, settings: { query_timeout: 0.7, default_pool_size: 1 } }),
    crowded(async (crowd) => {
      await crowd.holder();
      assert.equal(await ending(await crowd.queued()), 'FATAL 08P01: query_timeout');
    }),
    // An older one's query_timeout ends the holder's transaction too, whichever is first.
    { since: '1.25' },
  );

  rule(
    'query_timeout does not count between the queries of a transaction or a session',
    () => ({
      postgres,
      databases: { app: '', session: 'dbname=app pool_mode=session' },
      settings: { query_timeout: 0.7 },
    }),
    crowded(async (crowd) => {
      const idle = await crowd.holder();
      const session = await crowd.login({ database: 'session' });
      await session.query('SELECT 1');
      const client = await crowd.login();
      client.send(query(LONG));
      assert.equal(await ending(client), 'FATAL 08P01: query timeout');
      assert.equal(await fetchValue(idle, 'SELECT 1'), '1');
      assert.equal(await fetchValue(session, 'SELECT 1'), '1');
    }),
    { since: '1.25' },
  );

  rule(
    'each query of a pipeline has query_timeout to itself',
    () => ({ postgres, settings: { query_timeout: 1.2 } }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      const queries = Array.from({ length: 4 }, () => query('SELECT pg_sleep(0.5)'));
      client.send(...queries);
      for (const _ of queries) assert.equal(typesOf(await client.untilReady()), 'T D C Z:I');
    }),
  );

  rule(
    'query_timeout counts from the start of a COPY, whatever the client sends',
    () => ({ postgres, settings: { query_timeout: 0.7 } }),
    crowded(async (crowd) => {
      const client = await crowd.holder();
      await client.query('CREATE TEMP TABLE t (a text) ON COMMIT DROP');
      client.send(query('COPY t FROM STDIN'));
      await client.until('G');
      const end = ending(client);
      await until('the COPY is ended', () => {
        client.send(copyData(Buffer.from('a\n')));
        return client.isClosed;
      });
      client.send(COPY_DONE);
      assert.equal(await end, 'FATAL 08P01: query timeout');
    }),
    { since: '1.25' },
  );

  rule(
    'query_timeout of a user is the server-side user’s',
    () => ({
      postgres,
      databases: { app: '', forced: 'dbname=app user=app_trust' },
      users: { app: 'query_timeout=60', app_trust: 'query_timeout=1' },
      settings: { query_timeout: 30 },
    }),
    crowded(async (crowd) => {
      const spared = await crowd.login();
      spared.send(query('SELECT pg_sleep(2)'));
      const client = await crowd.login({ database: 'forced' });
      client.send(query(LONG));
      assert.equal(await ending(client), 'FATAL 08P01: query timeout');
      assert.equal(typesOf(await spared.untilReady()), 'T D C Z:I');
    }),
    { since: '1.24' },
  );

  rule(
    'query_timeout of a user holds in the queue too',
    () => ({
      postgres,
      users: { app: 'query_timeout=60', app_trust: 'query_timeout=1' },
      settings: { query_timeout: 0.7, default_pool_size: 1 },
    }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      await crowd.holder({ user: 'app_trust' });
      const spared = await crowd.queued();
      assert.equal(
        await ending(await crowd.queued({ user: 'app_trust' })),
        'FATAL 08P01: query_timeout',
      );
      await holder.query('COMMIT');
      assert.equal(typesOf(await spared.untilReady()), 'T D C Z:I');
    }),
    {
      since: '1.24',
      differs: {
        because: 'PgBouncer looks at the global value alone while a client is queued',
        check: crowded(async (crowd) => {
          await crowd.holder();
          assert.equal(await ending(await crowd.queued()), 'FATAL 08P01: query_timeout');
        }),
      },
    },
  );

  rule(
    'a transaction in which nothing has run for idle_transaction_timeout ends, failed or not',
    () => ({ postgres, settings: { idle_transaction_timeout: 0.7 } }),
    crowded(async (crowd) => {
      const busy = await crowd.holder();
      busy.send(query('SELECT pg_sleep(1.5)'));
      const idle = await crowd.holder();
      const failed = await crowd.holder();
      await failed.query('SELECT 1/0');
      assert.equal(await ending(idle), 'FATAL 08P01: idle transaction timeout');
      assert.equal(await ending(failed), 'FATAL 08P01: idle transaction timeout');
      assert.equal(typesOf(await busy.untilReady()), 'T D C Z:T');
      await busy.query('COMMIT');
      assert.deepEqual(
        (await crowd.servers()).map(({ state }) => state),
        ['idle'],
      );
      assert.match(
        crowd.pooler.log(),
        /S-\S+ app\/app@\S+ closing because: idle transaction timeout/,
      );
    }),
  );

  rule(
    'each statement begins the idle_transaction_timeout anew',
    () => ({ postgres, settings: { idle_transaction_timeout: 1 } }),
    crowded(async (crowd) => {
      const lively = await crowd.holder();
      const idle = await crowd.holder();
      const end = ending(idle);
      while (!idle.isClosed) assert.equal(await fetchValue(lively, 'SELECT 1'), '1');
      assert.equal(await end, 'FATAL 08P01: idle transaction timeout');
      assert.equal(await ending(lively), 'FATAL 08P01: idle transaction timeout');
    }),
  );

  rule(
    'a transaction that is older than transaction_timeout ends, busy or idle',
    () => ({
      postgres,
      databases: { app: '', session: 'dbname=app pool_mode=session' },
      settings: { transaction_timeout: 0.7 },
    }),
    crowded(async (crowd) => {
      const session = await crowd.login({ database: 'session' });
      await session.query('SELECT 1');
      const busy = await crowd.holder();
      busy.send(query('SELECT pg_sleep(3)'));
      const idle = await crowd.holder();
      const lively = await crowd.holder();
      const end = ending(lively);
      await until('the transaction is ended', () => {
        if (!lively.isClosed) lively.send(query('SELECT 1'));
        return lively.isClosed;
      });
      assert.equal(await end, 'FATAL 08P01: transaction timeout');
      assert.equal(await ending(busy), 'FATAL 08P01: transaction timeout');
      assert.equal(await ending(idle), 'FATAL 08P01: transaction timeout');
      assert.equal(await fetchValue(session, 'SELECT 1'), '1');
      assert.match(crowd.pooler.log(), /S-\S+ app\/app@\S+ closing because: transaction timeout/);
    }),
    { since: '1.25' },
  );

  rule(
    'idle_transaction_timeout and transaction_timeout of a user are the server-side user’s',
    () => ({
      postgres,
      databases: {
        app: '',
        forced: 'dbname=app user=app_trust',
        other: 'dbname=app user=app_plain password=app_plain',
      },
      users: {
        app: 'idle_transaction_timeout=60 transaction_timeout=60',
        app_trust: 'idle_transaction_timeout=1',
        app_plain: 'transaction_timeout=1',
      },
      settings: { idle_transaction_timeout: 30, transaction_timeout: 30 },
    }),
    crowded(async (crowd) => {
      const spared = await crowd.holder();
      const idle = await crowd.holder({ database: 'forced' });
      const long = await crowd.holder({ database: 'other' });
      assert.equal(await ending(idle), 'FATAL 08P01: idle transaction timeout');
      assert.equal(await ending(long), 'FATAL 08P01: transaction timeout');
      assert.equal(await fetchValue(spared, 'SELECT 1'), '1');
    }),
    { since: '1.25' },
  );
});

test('the server is ended', () => postgres.dispose());
