import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DatabaseEntry } from '../../../src/config/config.ts';
import {
  ConfigIndex,
  effectiveCheckQuery,
  effectiveClientIdleTimeout,
  effectiveIdleTransactionTimeout,
  effectiveMaxClientConn,
  effectiveMaxDbClientConnections,
  effectiveMaxDbConnections,
  effectiveMaxUserClientConnections,
  effectiveMaxUserConnections,
  effectiveMinPoolSize,
  effectivePeerPoolSize,
  effectivePoolMode,
  effectivePoolSize,
  effectiveQueryTimeout,
  effectiveQueryWaitTimeout,
  effectiveReservePoolSize,
  effectiveServerLifetime,
  effectiveTransactionTimeout,
  lowerLimit,
  poolUserOf,
} from '../../../src/config/effective.ts';
import { loadConfig } from '../../../src/config/load.ts';

/** A configuration with database `d` and user `u`. */
function given(settings: string, database = '', user = '') {
  const text = `[pgbouncer]\n${settings}\n[databases]\nd = ${database}\n[users]\nu = ${user}\n`;
  const { config, problems } = loadConfig('f', { readFile: () => text });
  assert.deepEqual(problems, []);
  const index = new ConfigIndex(config!);
  return { index, db: index.database('d')! };
}

const max = (value: number) => ({ kind: 'max', value });
const UNLIMITED = { kind: 'unlimited' };

test('pool mode is the user’s, else the database’s, else the global one', () => {
  const rows: [string, string, string, string][] = [
    ['', '', '', 'session'],
    ['pool_mode = statement', '', '', 'statement'],
    ['pool_mode = statement', 'pool_mode=transaction', '', 'transaction'],
    ['pool_mode = statement', 'pool_mode=transaction', 'pool_mode=session', 'session'],
  ];
  for (const [settings, database, user, expected] of rows) {
    const { index, db } = given(settings, database, user);
    assert.equal(effectivePoolMode(index, db, 'u'), expected);
  }
});

test('pool size is the user’s, else the database’s, else the default; 0 is unlimited', () => {
  const rows: [string, string, string, unknown][] = [
    ['', '', '', max(20)],
    ['default_pool_size = 5', '', '', max(5)],
    ['default_pool_size = 0', '', '', UNLIMITED],
    ['default_pool_size = -3', '', '', UNLIMITED],
    ['default_pool_size = 5', 'pool_size=0', '', UNLIMITED],
    ['default_pool_size = 5', 'pool_size=-1', '', max(5)],
    ['default_pool_size = 5', 'pool_size=3', 'pool_size=-1', max(3)],
    ['default_pool_size = 5', 'pool_size=3', 'pool_size=0', UNLIMITED],
    ['default_pool_size = 5', 'pool_size=0', 'pool_size=2', max(2)],
  ];
  for (const [settings, database, user, expected] of rows) {
    const { index, db } = given(settings, database, user);
    assert.deepEqual(
      effectivePoolSize(index, db, 'u'),
      expected,
      `${settings} ${database} ${user}`,
    );
  }
});

test('another user’s line changes nothing', () => {
  const { index, db } = given('', '', 'pool_size=1 pool_mode=statement query_wait_timeout=1');
  assert.deepEqual(effectivePoolSize(index, db, 'other'), max(20));
  assert.equal(effectivePoolMode(index, db, 'other'), 'session');
  assert.equal(effectiveQueryWaitTimeout(index, db, 'other'), 120);
});

test('min pool size has no user level and stays within the pool size, also an unlimited one', () => {
  const rows: [string, string, string, number][] = [
    ['', '', '', 0],
    ['min_pool_size = 4', '', '', 4],
    ['min_pool_size = 4', 'min_pool_size=0', '', 0],
    ['min_pool_size = 4', 'min_pool_size=6', '', 6],
    ['min_pool_size = 30', '', '', 20],
    ['min_pool_size = 4', '', 'pool_size=2', 2],
    ['min_pool_size = 4\ndefault_pool_size = 0', '', '', 4],
    ['min_pool_size = -1', '', '', 0],
  ];
  for (const [settings, database, user, expected] of rows) {
    const { index, db } = given(settings, database, user);
    assert.equal(effectiveMinPoolSize(index, db, 'u'), expected, `${settings} ${database} ${user}`);
  }
});

test('reserve is the user’s, else the database’s, else the global one; no timeout, no reserve', () => {
  const rows: [string, string, string, number][] = [
    ['', '', '', 0],
    ['reserve_pool_size = 3', '', '', 3],
    ['reserve_pool_size = 3', 'reserve_pool_size=0', '', 0],
    ['reserve_pool_size = 3', 'reserve_pool=2', '', 2],
    ['reserve_pool_size = 3', 'reserve_pool=2', 'reserve_pool_size=1', 1],
    ['reserve_pool_size = 3\nreserve_pool_timeout = 0', '', '', 0],
    ['reserve_pool_size = -3', '', '', 0],
  ];
  for (const [settings, database, user, expected] of rows) {
    const { index, db } = given(settings, database, user);
    assert.equal(effectiveReservePoolSize(index, db, 'u'), expected, `${settings} ${database}`);
  }
});

test('limits of a database fall back to the global one when 0 or absent', () => {
  const unset = given('');
  assert.deepEqual(effectiveMaxDbConnections(unset.index, unset.db), UNLIMITED);
  assert.deepEqual(effectiveMaxDbClientConnections(unset.index, unset.db), UNLIMITED);
  const settings = 'max_db_connections = 7\nmax_db_client_connections = 8\nserver_lifetime = 0.5';
  const zero = given(
    settings,
    'max_db_connections=0 max_db_client_connections=0 server_lifetime=0',
  );
  assert.deepEqual(effectiveMaxDbConnections(zero.index, zero.db), max(7));
  assert.deepEqual(effectiveMaxDbClientConnections(zero.index, zero.db), max(8));
  assert.equal(effectiveServerLifetime(zero.index, zero.db), 0.5);
  const own = given(settings, 'max_db_connections=1 max_db_client_connections=2 server_lifetime=3');
  assert.deepEqual(effectiveMaxDbConnections(own.index, own.db), max(1));
  assert.deepEqual(effectiveMaxDbClientConnections(own.index, own.db), max(2));
  assert.equal(effectiveServerLifetime(own.index, own.db), 3);
});

test('limits of a user fall back to the global one when 0 or absent', () => {
  const unset = given('').index;
  assert.deepEqual(effectiveMaxUserConnections(unset, 'u'), UNLIMITED);
  assert.deepEqual(effectiveMaxUserClientConnections(unset, 'u'), UNLIMITED);
  const settings = 'max_user_connections = 7\nmax_user_client_connections = 8';
  const zero = given(settings, '', 'max_user_connections=0 max_user_client_connections=0').index;
  assert.deepEqual(effectiveMaxUserConnections(zero, 'u'), max(7));
  assert.deepEqual(effectiveMaxUserClientConnections(zero, 'u'), max(8));
  const own = given(settings, '', 'max_user_connections=1 max_user_client_connections=2').index;
  assert.deepEqual(effectiveMaxUserConnections(own, 'u'), max(1));
  assert.deepEqual(effectiveMaxUserClientConnections(own, 'u'), max(2));
});

test('max_client_conn 0 lets nobody in', () => {
  assert.deepEqual(effectiveMaxClientConn(given('').index), max(100));
  assert.deepEqual(effectiveMaxClientConn(given('max_client_conn = 0').index), max(0));
  assert.deepEqual(effectiveMaxClientConn(given('max_client_conn = -1').index), max(0));
});

test('query wait is the user’s, else the database’s, else the global one, and an explicit 0 counts', () => {
  const rows: [string, string, string, number][] = [
    ['', '', '', 120],
    ['query_wait_timeout = 0.5', '', '', 0.5],
    ['', 'query_wait_timeout=0', '', 0],
    ['', 'query_wait_timeout=-1', '', 120],
    ['', 'query_wait_timeout=5', 'query_wait_timeout=0', 0],
    ['', 'query_wait_timeout=5', 'query_wait_timeout=-1', 5],
    ['query_wait_timeout = 0', '', 'query_wait_timeout=3', 3],
  ];
  for (const [settings, database, user, expected] of rows) {
    const { index, db } = given(settings, database, user);
    assert.equal(effectiveQueryWaitTimeout(index, db, 'u'), expected, `${settings} ${database}`);
  }
});

test('timeouts of a user override the global ones only above 0', () => {
  const functions = {
    query_timeout: effectiveQueryTimeout,
    idle_transaction_timeout: effectiveIdleTransactionTimeout,
    transaction_timeout: effectiveTransactionTimeout,
    client_idle_timeout: effectiveClientIdleTimeout,
  };
  for (const [key, effective] of Object.entries(functions)) {
    assert.equal(effective(given('').index, 'u'), 0, key);
    assert.equal(effective(given(`${key} = 1.5`).index, 'u'), 1.5, key);
    assert.equal(effective(given(`${key} = 1.5`, '', `${key}=0`).index, 'u'), 1.5, key);
    assert.equal(effective(given(`${key} = 1.5`, '', `${key}=9`).index, 'u'), 9, key);
    assert.equal(effective(given('', '', `${key}=9`).index, 'someone'), 0, key);
  }
});

test('a pool’s user is the forced one, else the login name', () => {
  assert.equal(poolUserOf(given('', 'user=boss').db, 'me'), 'boss');
  assert.equal(poolUserOf(given('').db, 'me'), 'me');
});

test('a name without a line gets the automatic database under its own name', () => {
  const text = '[pgbouncer]\n[databases]\na = host=x\n* = host=y pool_size=3\n';
  const { config } = loadConfig('f', { readFile: () => text });
  const index = new ConfigIndex(config!);
  assert.equal(index.database('a')?.hosts[0], 'x');
  const auto: DatabaseEntry | null = index.database('__proto__');
  assert.equal(auto?.name, '__proto__');
  assert.equal(auto?.hosts[0], 'y');
  assert.equal(auto?.pool_size, 3);
  assert.equal(index.hasDatabase('a'), true);
  assert.equal(index.hasDatabase('b'), false);
  assert.equal(given('').index.database('other'), null);
  assert.equal(given('').index.user('__proto__'), null);
});

test('a peer’s size falls back to the default pool size, and 0 means none', () => {
  const text = '[pgbouncer]\npeer_id = 1\n[peers]\n2 = host=a\n3 = host=b pool_size=0\n';
  const { config } = loadConfig('f', { readFile: () => text });
  const index = new ConfigIndex(config!);
  assert.equal(effectivePeerPoolSize(index, index.peer(2)!), 20);
  assert.equal(effectivePeerPoolSize(index, index.peer(3)!), 0);
  assert.equal(index.peer(4), null);
});

test('the check query <empty> is an empty query and an empty setting is none', () => {
  assert.equal(effectiveCheckQuery(given('').index.settings), '');
  assert.equal(effectiveCheckQuery(given('server_check_query =').index.settings), null);
  assert.equal(
    effectiveCheckQuery(given('server_check_query = select 1').index.settings),
    'select 1',
  );
});

test('of two limits the stricter one is lower, and no limit is the highest', () => {
  const none = { kind: 'unlimited' } as const;
  const [zero, two, three] = [0, 2, 3].map((value) => ({ kind: 'max', value }) as const);
  assert.equal(lowerLimit(two!, three!), two);
  assert.equal(lowerLimit(three!, two!), two);
  assert.equal(lowerLimit(none, three!), three);
  assert.equal(lowerLimit(zero!, none), zero);
  assert.equal(lowerLimit(none, none).kind, 'unlimited');
});
