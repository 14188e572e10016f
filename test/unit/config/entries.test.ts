import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseDatabase, parsePeer, parseUser } from '../../../src/config/entries.ts';

const EMPTY_DATABASE = {
  name: 'db',
  dbname: null,
  hosts: [],
  port: 5432,
  load_balance_hosts: 'round-robin',
  user: null,
  password: null,
  auth_user: null,
  auth_query: null,
  auth_dbname: null,
  pool_size: null,
  min_pool_size: null,
  reserve_pool_size: null,
  max_db_connections: null,
  max_db_client_connections: null,
  server_lifetime: null,
  query_wait_timeout: null,
  pool_mode: null,
  connect_query: null,
  client_encoding: null,
  datestyle: null,
  timezone: null,
  application_name: null,
  session_leak: null,
};

const EMPTY_USER = {
  name: 'u',
  pool_mode: null,
  pool_size: null,
  reserve_pool_size: null,
  max_user_connections: null,
  max_user_client_connections: null,
  query_timeout: null,
  query_wait_timeout: null,
  idle_transaction_timeout: null,
  transaction_timeout: null,
  client_idle_timeout: null,
};

test('an empty string is a database with all defaults', () => {
  assert.deepEqual(parseDatabase('db', ''), {
    entry: EMPTY_DATABASE,
    keys: [],
    errors: [],
    warnings: [],
  });
});

test('every key of a database has its place', () => {
  const line =
    "dbname=d host=h1,h2 port=1 load_balance_hosts=Disable user=u password=p auth_user=au auth_query='select 1' " +
    'auth_dbname=ad pool_size=2 min_pool_size=3 reserve_pool_size=4 max_db_connections=5 ' +
    "max_db_client_connections=6 server_lifetime=7 query_wait_timeout=8 pool_mode=STATEMENT connect_query='set x to 1; select 2' " +
    'client_encoding=UTF8 datestyle=ISO timezone=UTC application_name=app session_leak=Warn';
  const parsed = parseDatabase('db', line);
  assert.deepEqual(parsed.errors, []);
  assert.deepEqual(parsed.entry, {
    name: 'db',
    dbname: 'd',
    hosts: ['h1', 'h2'],
    port: 1,
    load_balance_hosts: 'disable',
    user: 'u',
    password: 'p',
    auth_user: 'au',
    auth_query: 'select 1',
    auth_dbname: 'ad',
    pool_size: 2,
    min_pool_size: 3,
    reserve_pool_size: 4,
    max_db_connections: 5,
    max_db_client_connections: 6,
    server_lifetime: 7,
    query_wait_timeout: 8,
    pool_mode: 'statement',
    connect_query: 'set x to 1; select 2',
    client_encoding: 'UTF8',
    datestyle: 'ISO',
    timezone: 'UTC',
    application_name: 'app',
    session_leak: 'warn',
  });
  assert.equal(parsed.keys.length, 23);
});

test('negative numbers mean not set, and so does 0 where it cannot mean unlimited', () => {
  const rows: [string, Partial<Record<keyof typeof EMPTY_DATABASE, unknown>>][] = [
    ['pool_size=-1 min_pool_size=-1 reserve_pool_size=-1', {}],
    [
      'pool_size=0 min_pool_size=0 reserve_pool_size=0',
      { pool_size: 0, min_pool_size: 0, reserve_pool_size: 0 },
    ],
    ['max_db_connections=0 max_db_client_connections=0 server_lifetime=0', {}],
    ['max_db_connections=-1 max_db_client_connections=-1 server_lifetime=-1', {}],
    ['query_wait_timeout=-1', {}],
    ['query_wait_timeout=0', { query_wait_timeout: 0 }],
    ['pool_size=010', { pool_size: 10 }],
    ['reserve_pool=3', { reserve_pool_size: 3 }],
    ['reserve_pool=3 reserve_pool_size=4', { reserve_pool_size: 4 }],
    ['reserve_pool_size=4 reserve_pool=3', { reserve_pool_size: 3 }],
    ['pool_size=1 pool_size=2', { pool_size: 2 }],
    ['host=/tmp', { hosts: ['/tmp'] }],
    ['host=::1,@abstract,1.2.3.4', { hosts: ['::1', '@abstract', '1.2.3.4'] }],
  ];
  for (const [line, changes] of rows) {
    const parsed = parseDatabase('db', line);
    assert.deepEqual(parsed.errors, [], line);
    assert.deepEqual(parsed.entry, { ...EMPTY_DATABASE, ...changes }, line);
  }
});

test('what is wrong with a database is said in the words of PgBouncer', () => {
  const rows: [string, string, string | RegExp][] = [
    ['pgbouncer', '', 'database name "pgbouncer" is reserved'],
    ['pgfleet', '', 'database name "pgfleet" is reserved'],
    ['x'.repeat(64), '', `too long db name: ${'x'.repeat(64)}`],
    ['é'.repeat(32), '', `too long db name: ${'é'.repeat(32)}`],
    ['db', "host='a", /^syntax error in connection string: /],
    ['db', 'sslmode=require', 'unrecognized connection parameter: sslmode'],
    ['db', '__proto__=1', 'unrecognized connection parameter: __proto__'],
    ['db', 'constructor=1', 'unrecognized connection parameter: constructor'],
    ['db', 'Host=a', 'unrecognized connection parameter: Host'],
    ['db', 'port=0', 'port: invalid port: 0'],
    ['db', 'port=abc', 'port: invalid port: abc'],
    ['db', 'port=70000', 'port: invalid port: 70000'],
    ['db', 'pool_mode=fast', 'pool_mode: invalid pool mode: fast'],
    ['db', 'load_balance_hosts=x', 'load_balance_hosts: invalid load_balance_hosts: x'],
    ['db', 'session_leak=x', 'session_leak: invalid session_leak: x'],
    ['db', 'pool_size=10x', 'pool_size: not a whole number: 10x'],
    ['db', 'pool_size=0x10', 'pool_size: not a whole number: 0x10'],
    ['db', 'server_lifetime=1.9', 'server_lifetime: not a whole number: 1.9'],
    ['db', 'host=a,,b', 'host: empty item in the list of hosts'],
    ['db', 'host=a,', 'host: empty item in the list of hosts'],
    ['db', 'host=,', 'host: empty item in the list of hosts'],
    ['db', `user=${'u'.repeat(128)}`, 'user: username too long'],
    [
      'db',
      'auth_dbname=pgbouncer',
      'auth_dbname: cannot use the reserved "pgbouncer" database as an auth_dbname',
    ],
  ];
  for (const [name, line, expected] of rows) {
    const parsed = parseDatabase(name, line);
    assert.equal(parsed.entry, null, line);
    assert.equal(parsed.errors.length, 1, line);
    if (typeof expected === 'string') assert.equal(parsed.errors[0], expected);
    else assert.match(parsed.errors[0]!, expected);
  }
});

test('names just below the limits are taken', () => {
  assert.equal(parseDatabase('x'.repeat(63), '').errors.length, 0);
  assert.equal(parseDatabase('db', `user=${'u'.repeat(127)}`).errors.length, 0);
  assert.equal(parseUser('u'.repeat(127), '').errors.length, 0);
});

test('all mistakes of one line are found', () => {
  const parsed = parseDatabase('pgbouncer', 'port=0 sslmode=x pool_mode=y');
  assert.deepEqual(parsed.errors, [
    'database name "pgbouncer" is reserved',
    'port: invalid port: 0',
    'unrecognized connection parameter: sslmode',
    'pool_mode: invalid pool mode: y',
  ]);
});

test('a database may be named __proto__', () => {
  assert.equal(parseDatabase('__proto__', 'host=a').entry?.name, '__proto__');
});

test('a warning of the string does not stop the entry', () => {
  const parsed = parseDatabase('db', 'user= port=3');
  assert.equal(parsed.entry?.user, 'port=3');
  assert.equal(parsed.warnings.length, 1);
});

test('every key of a user has its place, and 0 or less means not set', () => {
  const all =
    'pool_mode=Session pool_size=1 reserve_pool_size=2 max_user_connections=3 max_user_client_connections=4 ' +
    'query_timeout=5 query_wait_timeout=6 idle_transaction_timeout=7 transaction_timeout=8 client_idle_timeout=9';
  assert.deepEqual(parseUser('u', all).entry, {
    name: 'u',
    pool_mode: 'session',
    pool_size: 1,
    reserve_pool_size: 2,
    max_user_connections: 3,
    max_user_client_connections: 4,
    query_timeout: 5,
    query_wait_timeout: 6,
    idle_transaction_timeout: 7,
    transaction_timeout: 8,
    client_idle_timeout: 9,
  });
  const zeros =
    'pool_size=0 reserve_pool_size=0 max_user_connections=0 max_user_client_connections=0 ' +
    'query_timeout=0 query_wait_timeout=0 idle_transaction_timeout=0 transaction_timeout=0 client_idle_timeout=0';
  assert.deepEqual(parseUser('u', zeros).entry, {
    ...EMPTY_USER,
    pool_size: 0,
    reserve_pool_size: 0,
    query_wait_timeout: 0,
  });
  assert.deepEqual(parseUser('u', zeros.replaceAll('=0', '=-1')).entry, EMPTY_USER);
});

test('what is wrong with a user is said in the words of PgBouncer', () => {
  assert.match(parseUser('u', "pool_mode='x").errors[0]!, /^syntax error in user settings: /);
  assert.deepEqual(parseUser('u', 'host=x').errors, ['unrecognized user parameter: host']);
  assert.deepEqual(parseUser('u', 'pool_mode=x').errors, ['pool_mode: invalid pool mode: x']);
  assert.deepEqual(parseUser('u'.repeat(128), '').errors, ['username too long']);
});

test('a peer has a host, a port and a size', () => {
  assert.deepEqual(parsePeer('7', 'host=h').entry, {
    id: 7,
    host: 'h',
    port: 6432,
    pool_size: null,
  });
  assert.deepEqual(parsePeer('65535', 'host=h port=1 pool_size=0').entry, {
    id: 65535,
    host: 'h',
    port: 1,
    pool_size: 0,
  });
});

test('what is wrong with a peer is said in the words of PgBouncer', () => {
  const badId = 'ids of peers must be a number larger than 0 and at most 65536';
  for (const id of ['0', '65536', 'abc', '-1', '0x1', '1.5', '99999999999']) {
    assert.deepEqual(parsePeer(id, 'host=h').errors, [badId], id);
  }
  assert.deepEqual(parsePeer('1', '').errors, ['host was not provided for peer 1']);
  assert.deepEqual(parsePeer('1', 'host=h dbname=x').errors, [
    'unrecognized connection parameter: dbname',
  ]);
  assert.deepEqual(parsePeer('1', 'host').errors.length, 1);
});
