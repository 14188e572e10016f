/** How many servers a pool, a database and a user have: sizes, the reserve, shared limits, eviction. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { watchBackends } from '../support/backend-watch.ts';
import { type Crowd, crowded, ending, fetchValue } from '../support/crowd.ts';
import { startup, typesOf } from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleNotes, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';

const RESERVE_USE = /taking connection from reserve_pool/;
/** A wait that is over once nobody could have been served any more. */
const IN_VAIN = { query_wait_timeout: 3 };

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

async function serversAre(crowd: Crowd, count: number, database?: string): Promise<void> {
  await until(
    `${count} servers are free`,
    async () => {
      const servers = await crowd.servers(database);
      return servers.length === count && servers.every(({ state }) => state === 'idle');
    },
    { deadlineMs: 5000 },
  );
}

describe('pool sizes', { concurrency: 4 }, () => {
  rule(
    'a pool has no more servers than its size, as PostgreSQL counts them',
    () => ({ postgres, settings: { default_pool_size: 3 } }),
    crowded(async (crowd) => {
      const watch = await watchBackends(postgres);
      const user = 'app_plain';
      const clients = [];
      for (let i = 0; i < 12; i++) clients.push(await crowd.login({ user }));
      const run = clients.map(async (client) => {
        for (let i = 0; i < 40; i++) {
          if (i % 8 === 7) await client.query('BEGIN');
          assert.equal(typesOf(await client.query('SELECT 1')).slice(0, 7), 'T D C Z');
          if (i % 8 === 7) await client.query('ROLLBACK');
        }
      });
      await Promise.all(run);
      const { byUser, looks } = await watch.stop();
      assert.equal(byUser.get(user), 3, `${looks} looks`);
    }),
  );

  rule(
    'each user of a database has a pool of its own, and a forced user is one for all',
    () => ({
      postgres,
      databases: { app: '', forced: 'dbname=app user=app_trust' },
      settings: { default_pool_size: 1, ...IN_VAIN },
    }),
    crowded(async (crowd) => {
      await crowd.holder();
      const other = await crowd.holder({ user: 'app_trust' });
      assert.equal(await fetchValue(other, 'SELECT session_user'), 'app_trust');
      const forced = await crowd.holder({ database: 'forced' });
      assert.equal(await fetchValue(forced, 'SELECT session_user'), 'app_trust');
      const queued = await crowd.queued({ database: 'forced', user: 'app_plain' });
      assert.equal(await ending(queued), 'FATAL 08P01: query_wait_timeout');
    }),
  );

  rule(
    'the pool size of a user wins over the database’s, and that over the global one; 0 is no limit',
    () => ({
      postgres,
      databases: { app: '', wide: 'dbname=app pool_size=2', open: 'dbname=app pool_size=0' },
      users: { app_trust: 'pool_size=3' },
      settings: { default_pool_size: 1, ...IN_VAIN },
    }),
    crowded(async (crowd) => {
      const places = [
        { database: 'app', user: 'app', size: 1 },
        { database: 'wide', user: 'app', size: 2 },
        { database: 'wide', user: 'app_trust', size: 3 },
        { database: 'app', user: 'app_trust', size: 3 },
      ];
      const ends = [];
      for (const { size, ...place } of places) {
        for (let i = 0; i < size; i++) await crowd.holder(place);
        ends.push(ending(await crowd.queued(place)));
      }
      for (let i = 0; i < 5; i++) await crowd.holder({ database: 'open' });
      for (const end of ends) assert.equal(await end, 'FATAL 08P01: query_wait_timeout');
    }),
    { since: '1.24' },
  );

  rule(
    'a pool with a client gets min_pool_size servers, one without gets none',
    () => ({
      postgres,
      databases: { app: '', none: 'dbname=app min_pool_size=0', few: 'dbname=app pool_size=1' },
      settings: { min_pool_size: 3, server_idle_timeout: 0.7 },
    }),
    crowded(async (crowd) => {
      await crowd.login({ database: 'none' });
      await crowd.login({ database: 'few' });
      await crowd.login();
      await serversAre(crowd, 3);
      await serversAre(crowd, 0, 'none');
      await serversAre(crowd, 1, 'few');
    }),
    { since: '1.24' },
  );

  rule(
    'a database with a forced user has min_pool_size servers before any client comes',
    () => ({
      postgres,
      databases: {
        app: 'min_pool_size=2',
        forced: 'dbname=app user=app password=app min_pool_size=2',
      },
    }),
    crowded(async (crowd) => {
      await serversAre(crowd, 2, 'forced');
      assert.deepEqual(await crowd.servers('app'), []);
    }),
    { since: '1.24' },
  );

  rule(
    'min_pool_size holds for a pool without a size too',
    () => ({ postgres, settings: { min_pool_size: 2, default_pool_size: 0 } }),
    crowded(async (crowd) => {
      await crowd.login();
      await serversAre(crowd, 2);
    }),
    { differs: { because: 'PgBouncer’s minimum is bounded by the size, which is 0' } },
  );

  rule(
    'server_idle_timeout leaves min_pool_size servers',
    () => ({ postgres, settings: { min_pool_size: 1, server_idle_timeout: 0.7 } }),
    crowded(async (crowd) => {
      const holders = [await crowd.holder(), await crowd.holder(), await crowd.holder()];
      for (const holder of holders) await holder.query('COMMIT');
      await serversAre(crowd, 1);
      const log = crowd.pooler.log();
      assert.equal(log.match(/closing because: server idle timeout/g)?.length, 2);
    }),
  );

  rule(
    'the reserve is opened for who has waited for reserve_pool_timeout, and no further',
    () => ({
      postgres,
      settings: {
        default_pool_size: 1,
        reserve_pool_size: 1,
        reserve_pool_timeout: 1,
        query_wait_timeout: 4,
      },
    }),
    crowded(async (crowd) => {
      await crowd.holder();
      const askedAt = performance.now();
      const helped = await crowd.queued({}, 'BEGIN');
      assert.doesNotMatch(crowd.pooler.log(), RESERVE_USE);
      assert.equal(typesOf(await helped.untilReady()), 'C Z:T');
      assert.ok(performance.now() - askedAt > 900, 'not at once');
      assert.match(crowd.pooler.log(), RESERVE_USE);
      assert.equal(await ending(await crowd.queued()), 'FATAL 08P01: query_wait_timeout');
      assert.equal((await crowd.servers()).length, 2);
    }),
  );

  for (const off of ['reserve_pool_timeout', 'reserve_pool_size']) {
    rule(
      `${off} = 0 keeps the reserve shut`,
      () => ({
        postgres,
        settings: {
          default_pool_size: 1,
          reserve_pool_size: 1,
          reserve_pool_timeout: 0.3,
          ...IN_VAIN,
          [off]: 0,
        },
      }),
      crowded(async (crowd) => {
        await crowd.holder();
        assert.equal(await ending(await crowd.queued()), 'FATAL 08P01: query_wait_timeout');
        assert.doesNotMatch(crowd.pooler.log(), RESERVE_USE);
      }),
    );
  }

  rule(
    'the reserve of a user wins over the database’s, and that over the global one',
    () => ({
      postgres,
      databases: {
        app: '',
        shut: 'dbname=app reserve_pool_size=0',
        old: 'dbname=app reserve_pool=2',
      },
      users: { app_trust: 'reserve_pool_size=1' },
      settings: {
        default_pool_size: 1,
        reserve_pool_size: 1,
        reserve_pool_timeout: 0.3,
        query_wait_timeout: 3,
      },
    }),
    crowded(async (crowd) => {
      const places = [
        { database: 'app', user: 'app', size: 2 },
        { database: 'shut', user: 'app', size: 1 },
        { database: 'old', user: 'app', size: 3 },
        { database: 'shut', user: 'app_trust', size: 2 },
      ];
      const ends = [];
      for (const { size, ...place } of places) {
        for (let i = 0; i < size; i++) await crowd.holder(place);
        ends.push(ending(await crowd.queued(place)));
      }
      for (const end of ends) assert.equal(await end, 'FATAL 08P01: query_wait_timeout');
    }),
    { since: '1.24' },
  );
});

describe('shared limits', { concurrency: 4 }, () => {
  const LIMITS = [
    {
      name: 'max_db_connections, over all users of a database',
      options: { settings: { max_db_connections: 2, query_wait_timeout: 3 } },
      places: [{ user: 'app' }, { user: 'app_trust' }, { user: 'app_plain' }],
      elsewhere: { database: 'other' },
    },
    {
      name: 'max_db_connections of the database',
      options: {
        databases: { app: 'max_db_connections=2', other: 'dbname=app' },
        settings: { max_db_connections: 1, query_wait_timeout: 3 },
      },
      places: [{ user: 'app' }, { user: 'app_trust' }, { user: 'app_plain' }],
      elsewhere: { database: 'other' },
    },
    {
      name: 'max_user_connections, over all databases of a user',
      options: { settings: { max_user_connections: 2, query_wait_timeout: 3 } },
      places: [{ database: 'app' }, { database: 'other' }, { database: 'third' }],
      elsewhere: { user: 'app_trust' },
    },
    {
      name: 'max_user_connections of the user',
      options: {
        users: { app: 'max_user_connections=2' },
        settings: { max_user_connections: 1, query_wait_timeout: 3 },
      },
      places: [{ database: 'app' }, { database: 'other' }, { database: 'third' }],
      elsewhere: { user: 'app_trust' },
    },
    {
      name: 'max_user_connections of the server-side user',
      options: {
        databases: {
          app: 'user=app_trust',
          other: 'dbname=app user=app_trust',
          third: 'dbname=app user=app_trust',
          fourth: 'dbname=app',
        },
        users: { app_trust: 'max_user_connections=2', app: 'max_user_connections=1' },
        settings: { query_wait_timeout: 3 },
      },
      places: [{ database: 'app' }, { database: 'other' }, { database: 'third' }],
      elsewhere: { database: 'fourth' },
      isMended: true,
    },
  ];

  /** PgBouncer keeps apart what forced users of one name have in several databases. */
  const MENDED: RuleNotes = {
    since: '1.24',
    differs: {
      because: 'PgBouncer evicts no server of a user who is forced on several databases',
      check: crowded(async (crowd) => {
        await (await crowd.login({ database: 'app' })).query('SELECT 1');
        await (await crowd.login({ database: 'other' })).query('SELECT 1');
        const third = await crowd.connect();
        third.send(startup({ user: 'app', database: 'third' }));
        assert.equal(await ending(third), 'FATAL 08P01: query_wait_timeout');
        assert.doesNotMatch(crowd.pooler.log(), /evicted/);
      }),
    },
  };

  for (const { name, options, places, elsewhere, isMended } of LIMITS) {
    const notes = isMended === true ? MENDED : {};
    const [first, second, third] = places as [object, object, object];
    const wholeOptions = () => ({
      postgres,
      databases: { app: '', other: 'dbname=app', third: 'dbname=app' },
      ...options,
    });

    rule(
      `a client waits at ${name}`,
      wholeOptions,
      crowded(async (crowd) => {
        const holder = await crowd.holder(first);
        await crowd.holder(second);
        const patient = await crowd.login(third).then(
          () => assert.fail('it needs a server for its welcome'),
          (error: Error) => error.message,
        );
        assert.equal(patient, 'FATAL 08P01: query_wait_timeout');
        assert.equal(await fetchValue(await crowd.login(elsewhere), 'SELECT 1'), '1');
        await holder.query('COMMIT');
        assert.equal(await fetchValue(await crowd.login(third), 'SELECT 1'), '1');
      }),
      notes,
    );

    rule(
      `the server that was used least recently makes room at ${name}`,
      wholeOptions,
      crowded(async (crowd) => {
        const one = await crowd.login(first);
        const two = await crowd.login(second);
        await two.query('SELECT 1');
        await one.query('SELECT 1');
        assert.equal(await fetchValue(await crowd.login(third), 'SELECT 1'), '1');
        assert.equal(crowd.pooler.log().match(/closing because: evicted/g)?.length, 1);
        // The others are still there, so nobody else has to go.
        await one.query('SELECT 1');
        assert.equal(crowd.pooler.log().match(/closing because: evicted/g)?.length, 1);
        await two.query('SELECT 1');
        assert.equal(crowd.pooler.log().match(/closing because: evicted/g)?.length, 2);
      }),
      notes,
    );
  }

  rule(
    'a server in use is never evicted, and becomes so once it is free',
    () => ({ postgres, settings: { max_db_connections: 1 } }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      const other = await crowd.connect();
      const login = other.login({ user: 'app_trust' });
      await until('it waits', async () => (await crowd.waiting()) === 1);
      assert.doesNotMatch(crowd.pooler.log(), /evicted/);
      await holder.query('COMMIT');
      await login;
      assert.match(crowd.pooler.log(), /S-\S+ app\/app@\S+ closing because: evicted/);
    }),
  );

  rule(
    'min_pool_size evicts nobody',
    () => ({
      postgres,
      databases: { app: 'min_pool_size=2', eager: 'dbname=app min_pool_size=2' },
      settings: { max_user_connections: 3, server_idle_timeout: 0 },
    }),
    crowded(async (crowd) => {
      await crowd.login();
      await serversAre(crowd, 2);
      await crowd.login({ database: 'eager' });
      await serversAre(crowd, 1, 'eager');
      // The next would come with the next maintenance, three times a second.
      const from = performance.now();
      await until('three maintenances are over', () => performance.now() - from > 1000);
      assert.doesNotMatch(crowd.pooler.log(), /evicted/);
      assert.equal((await crowd.servers()).length, 2);
      assert.equal((await crowd.servers('eager')).length, 1);
    }),
    { since: '1.24' },
  );
});

test('the server is ended', () => postgres.dispose());
