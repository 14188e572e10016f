/**
 * Tracked parameters: what a client set in its startup packet or by SET is there on whichever server
 * it gets next, and on nobody else's. One server a pool, so that the clients must share it.
 */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { query, startup, textRows, typesOf } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;
let older: TestPostgres | null = null;
before(async () => {
  postgres = await startPostgres({ settings: { log_statement: 'all' } });
  if (hasPostgres15()) older = await startPostgres({ version: 15 });
});

const shared = (
  settings: RuleOptions['settings'] = {},
  more: Partial<RuleOptions> = {},
): RuleOptions => ({ postgres, settings: { default_pool_size: 1, ...settings }, ...more });

/** PostgreSQL 15 reports no search_path. */
const onOlder = (settings: RuleOptions['settings'] = {}): RuleOptions => ({
  ...shared(settings),
  postgres: older ?? postgres,
});

const REPORTED = { since: '1.26.0' };
/** PgBouncer 1.18 takes an empty value for one that it does not know. */
const EMPTY_KNOWN = { since: '1.26.0' };
const BAD_VALUE = /invalid server parameter|error in a query of the pooler/;

/** The one value that a query answers. */
async function value(client: WireClient, sql: string): Promise<string | null> {
  const rows = textRows(await client.query(sql));
  assert.equal(rows.length, 1, sql);
  return rows[0]![0]!;
}

/** Values of several parameters in the client's session, by one query. */
async function settings(
  client: WireClient,
  ...names: readonly string[]
): Promise<(string | null)[]> {
  const columns = names.map((name) => `current_setting('${name}')`).join(', ');
  return textRows(await client.query(`SELECT ${columns}`))[0]!;
}

const login = (pooler: TestPooler, parameters: Record<string, string> = {}, user = 'app') =>
  WireClient.login(pooler, { user, parameters });

/** What a first client's SET leaves to a second one, and what the first one has afterwards. */
async function afterSet(
  pooler: TestPooler,
  name: string,
  sql: string,
  user = 'app',
): Promise<{ before: string | null; second: string | null; first: string | null }> {
  const first = await login(pooler, {}, user);
  const start = await value(first, `SHOW ${name}`);
  await first.query(sql);
  const second = await login(pooler, {}, user);
  const seen = await value(second, `SHOW ${name}`);
  const own = await value(first, `SHOW ${name}`);
  await first.end();
  await second.end();
  return { before: start, second: seen, first: own };
}

rule(
  'a tracked value of the startup packet, its name in any case, is set before the first query and its replies are swallowed',
  () => shared(),
  async (pooler) => {
    const client = await login(pooler, {
      TIMEZONE: 'Europe/Paris',
      datestyle: 'German',
      application_name: 'first',
    });
    const messages = await client.query(
      "SELECT current_setting('TimeZone'), current_setting('DateStyle'), current_setting('application_name')",
    );
    assert.equal(typesOf(messages), 'T D C Z:I');
    assert.deepEqual(textRows(messages), [['Europe/Paris', 'German, DMY', 'first']]);
    await client.end();
  },
);

type Change = readonly [name: string, sql: string, expected: string, user?: string];

async function checkChanges(pooler: TestPooler, changes: readonly Change[]): Promise<void> {
  for (const [name, sql, expected, user] of changes) {
    const found = await afterSet(pooler, name, sql, user);
    assert.equal(found.first, expected, sql);
    assert.equal(found.second, found.before, sql);
    assert.notEqual(found.before, expected, sql);
  }
}

rule(
  'a SET of a tracked parameter sticks to the client and does not reach the next one',
  () => shared(),
  (pooler) =>
    checkChanges(pooler, [
      ['DateStyle', "SET DateStyle = 'SQL, DMY'", 'SQL, DMY'],
      ['client_encoding', "SET client_encoding = 'LATIN1'", 'LATIN1'],
      ['TimeZone', "SET TimeZone = 'Asia/Tokyo'", 'Asia/Tokyo'],
      ['standard_conforming_strings', 'SET standard_conforming_strings = off', 'off'],
      ['application_name', "SET application_name = 'its own'", 'its own'],
      ['IntervalStyle', 'SET IntervalStyle = iso_8601', 'iso_8601'],
    ]),
  EMPTY_KNOWN,
);

rule(
  'whatever else the server reports and lets change is tracked too',
  () => shared(),
  (pooler) =>
    checkChanges(pooler, [
      ['default_transaction_read_only', 'SET default_transaction_read_only = on', 'on'],
      ['search_path', 'SET search_path = "My Schema", other', '"My Schema", other'],
      ['search_path', "SET search_path = ''", '""'],
      ['scram_iterations', 'SET scram_iterations = 5000', '5000'],
      ['session_authorization', "SET SESSION AUTHORIZATION 'app'", 'app', 'postgres'],
    ]),
  REPORTED,
);

rule(
  'RESET and DISCARD ALL give the client the values of the login again',
  () => shared(),
  async (pooler) => {
    for (const sql of ['RESET ALL', 'DISCARD ALL']) {
      const client = await login(pooler);
      await client.query('SET search_path = a');
      await client.query('SET default_transaction_read_only = on');
      await client.query(sql);
      const other = await login(pooler);
      await other.query("SET search_path = 'b'");
      assert.deepEqual(await settings(client, 'search_path', 'default_transaction_read_only'), [
        '"$user", public',
        'off',
      ]);
      await client.end();
      await other.end();
    }
  },
  REPORTED,
);

rule(
  'a value changed in a transaction that is rolled back is not kept',
  () => shared(),
  async (pooler) => {
    const client = await login(pooler);
    await client.query('BEGIN');
    await client.query("SET TimeZone = 'Asia/Tokyo'");
    assert.equal(client.parameters.get('TimeZone'), 'Asia/Tokyo');
    await client.query('ROLLBACK');
    assert.equal(client.parameters.get('TimeZone'), 'UTC');
    const other = await login(pooler);
    await other.query('SELECT 1');
    assert.equal(await value(client, 'SHOW TimeZone'), 'UTC');
    await client.end();
    await other.end();
  },
);

rule(
  'a difference in case alone is none',
  () => shared(),
  async (pooler) => {
    const first = await login(pooler, { application_name: 'Program' });
    assert.equal(await value(first, 'SHOW application_name'), 'Program');
    const second = await login(pooler, { application_name: 'program' });
    assert.equal(await value(second, 'SHOW application_name'), 'Program');
    await first.end();
    await second.end();
  },
);

rule(
  'names of schemas that differ in case alone are different names',
  () => shared(),
  async (pooler) => {
    const first = await login(pooler, { search_path: '"Tenant"' });
    assert.equal(await value(first, 'SHOW search_path'), '"Tenant"');
    const second = await login(pooler, { search_path: '"tenant"' });
    assert.equal(await value(second, 'SHOW search_path'), 'tenant');
    await first.end();
    await second.end();
  },
  {
    since: '1.26.0',
    differs: {
      because: 'a client gets the schema of another whose name differs in case alone',
      check: async (pooler) => {
        const first = await login(pooler, { search_path: '"Tenant"' });
        await first.query('SELECT 1');
        const second = await login(pooler, { search_path: '"TENANT"' });
        assert.equal(await value(second, 'SHOW search_path'), '"Tenant"');
        await first.end();
        await second.end();
      },
    },
  },
);

rule(
  'quotes and backslashes in a value do no harm',
  () => shared(),
  async (pooler) => {
    const client = await login(pooler);
    for (const name of ["it's", "'; SELECT 1; --", 'back\\slash', "\\'", 'two  blanks ', '"']) {
      const other = await login(pooler, { application_name: name });
      assert.equal(await value(other, 'SHOW application_name'), name);
      await other.end();
      assert.equal(await value(client, 'SHOW application_name'), '');
    }
    await client.end();
  },
  EMPTY_KNOWN,
);

const longName = 'n'.repeat(2000);
rule(
  'a value longer than 127 bytes is set like any other',
  () => shared(),
  async (pooler) => {
    const client = await login(pooler, { application_name: longName });
    // PostgreSQL cuts names to 63 bytes itself.
    assert.equal(await value(client, 'SHOW application_name'), longName.slice(0, 63));
    await client.end();
  },
  {
    differs: {
      because: 'the value is left out without a word',
      check: async (pooler) => {
        const client = await login(pooler, { application_name: longName });
        assert.equal(await value(client, 'SHOW application_name'), '');
        await client.end();
      },
    },
  },
);

const longPath = Array.from({ length: 200 }, (_, i) => `schema_${i}`).join(', ');
rule(
  'a search_path of the startup packet is read as PostgreSQL reads it there',
  () => shared(),
  async (pooler) => {
    for (const [given, path] of [
      ['$user,public', '"$user", public'],
      ['select', '"select"'],
      ['Foo', 'foo'],
      ['"Foo", "a ""b""" ,c', '"Foo", "a ""b""", c'],
      ['a;b', '"a;b"'],
      ['', '""'],
      ['""', '""'],
      [longPath, longPath],
      ['schöne', '"schöne"'],
    ] as const) {
      const client = await login(pooler, { search_path: given });
      assert.equal(client.parameters.get('search_path'), given);
      assert.equal(await value(client, 'SHOW search_path'), path);
      await client.end();
    }
  },
  {
    since: '1.26.0',
    differs: {
      because: 'the text becomes part of the statement as it is',
      check: async (pooler) => {
        const client = await login(pooler, { search_path: '$user,public' });
        client.send(query('SELECT 1'));
        const messages = await client.untilClose();
        assert.match(messages.at(-1)!.body.toString(), /invalid server parameter/);
        client.destroy();
      },
    },
  },
);

rule(
  'a tracked parameter may stand in the options of the startup packet',
  () => shared(),
  async (pooler) => {
    const client = await login(pooler, { options: '-c search_path=x,y --TimeZone=CET' });
    assert.equal(client.parameters.get('TimeZone'), 'CET');
    assert.deepEqual(await settings(client, 'search_path', 'TimeZone'), ['x, y', 'CET']);
    await client.end();
  },
  REPORTED,
);

rule(
  'parameters that only the server sets are refused in the startup packet',
  () => shared(),
  async (pooler) => {
    for (const name of [
      'server_version',
      'server_encoding',
      'integer_datetimes',
      'is_superuser',
      'in_hot_standby',
    ]) {
      await assert.rejects(login(pooler, { [name]: 'on' }), {
        text: `unsupported startup parameter: ${name}`,
      });
    }
  },
);

rule(
  'ignore_startup_parameters wins over tracking, in its exact spelling',
  () => shared({ ignore_startup_parameters: 'search_path,TimeZone' }),
  async (pooler) => {
    const client = await login(pooler, {
      search_path: 'x',
      TimeZone: 'CET',
      options: '-csearch_path=y',
    });
    assert.deepEqual(await settings(client, 'search_path', 'TimeZone'), ['"$user", public', 'UTC']);
    await client.end();
    const other = await login(pooler, { timezone: 'CET' });
    assert.equal(await value(other, 'SHOW TimeZone'), 'CET');
    await other.end();
  },
  { since: '1.26.1' },
);

rule(
  'a value that the server refuses ends server and client with invalid server parameter, after a welcome that echoes it',
  () => ({ ...shared(), logs: [BAD_VALUE] }),
  async (pooler) => {
    const client = await login(pooler, { TimeZone: 'No/Where' });
    assert.equal(client.parameters.get('TimeZone'), 'No/Where');
    const former = await login(pooler);
    const pid = await value(former, 'SELECT pg_backend_pid()');
    await former.end();
    client.send(query('SELECT 1'));
    const messages = await client.untilClose();
    assert.equal(typesOf(messages), 'E');
    assert.match(messages[0]!.body.toString(), /FATAL.*08P01.*invalid server parameter/s);
    const next = await login(pooler);
    assert.notEqual(await value(next, 'SELECT pg_backend_pid()'), pid);
    await next.end();
  },
);

/** Statements that the server was sent since `from`, the tests' own aside. */
const statements = (from: number): string[] =>
  [
    ...postgres
      .log()
      .slice(from)
      .matchAll(/ app@app LOG: {2}statement: (.*)/g),
  ].map((found) => found[1]!);

rule(
  'the server’s own spelling is kept, so that what means the same is set once',
  () => shared(),
  async (pooler) => {
    const from = postgres.log().length;
    const client = await login(pooler, { DateStyle: 'iso', TimeZone: 'utc' });
    const other = await login(pooler, { TimeZone: 'CET' });
    for (let i = 0; i < 2; i++) {
      await client.query('SELECT 11');
      await other.query('SELECT 22');
    }
    await client.end();
    await other.end();
    const sent = await until('all is logged', () => {
      const found = statements(from).filter((sql) => !sql.startsWith('DISCARD'));
      return found.filter((sql) => sql === 'SELECT 22').length === 2 && found;
    });
    assert.deepEqual(sent, [
      "SET DateStyle='iso';",
      'SELECT 11',
      "SET TimeZone='CET';",
      'SELECT 22',
      "SET TimeZone='UTC';",
      'SELECT 11',
      "SET TimeZone='CET';",
      'SELECT 22',
    ]);
  },
  // Until 1.21 the difference between iso and ISO, MDY was set again and again.
  { since: '1.22.0' },
);

rule(
  'a parameter of track_extra_parameters that is not reported is set for who names it and reset for the next',
  () => shared({ track_extra_parameters: 'work_mem , geqo' }),
  async (pooler) => {
    const first = await login(pooler, { work_mem: '1MB', geqo: 'off' });
    assert.equal(first.parameters.get('work_mem'), '1MB');
    assert.deepEqual(await settings(first, 'work_mem', 'geqo'), ['1MB', 'off']);
    const second = await login(pooler, { geqo: 'off' });
    assert.equal(second.parameters.has('work_mem'), false);
    assert.deepEqual(await settings(second, 'work_mem', 'geqo'), ['4MB', 'off']);
    assert.deepEqual(await settings(first, 'work_mem', 'geqo'), ['1MB', 'off']);
    await first.end();
    await second.end();
  },
  REPORTED,
);

test('what follows asks a PostgreSQL that does not report search_path', (t) => {
  if (older === null) t.skip("needs Debian's package postgresql-15");
});

rule(
  'a search_path that the server does not report is set for who names it and reset for the next',
  () => onOlder(),
  async (pooler) => {
    if (older === null) return;
    const first = await login(pooler, { search_path: 'x' });
    assert.equal(await value(first, 'SHOW search_path'), 'x');
    const second = await login(pooler);
    assert.equal(await value(second, 'SHOW search_path'), '"$user", public');
    assert.equal(await value(first, 'SHOW search_path'), 'x');
    await first.end();
    await second.end();
  },
  REPORTED,
);

const twoWithOnePath = async (pooler: TestPooler): Promise<string | null> => {
  const first = await login(pooler, { search_path: 'x' });
  await first.query('SELECT 1');
  await first.end();
  const second = await login(pooler, { search_path: 'x' });
  const path = await value(second, 'SHOW search_path');
  await second.end();
  return path;
};

rule(
  'a parameter that is not reported is set anew after a reset query',
  () => onOlder({ pool_mode: 'session' }),
  async (pooler) => {
    if (older !== null) assert.equal(await twoWithOnePath(pooler), 'x');
  },
  {
    since: '1.26.0',
    differs: {
      because: 'the value is thought to be there still after DISCARD ALL',
      check: async (pooler) => {
        if (older !== null) assert.equal(await twoWithOnePath(pooler), '"$user", public');
      },
    },
  },
);

/** A client that stays and one that comes, once new servers begin with other values. */
async function afterAlterDatabase(pooler: TestPooler): Promise<(string | null)[][]> {
  const client = await login(pooler);
  await client.query('SELECT 1');
  const changed = await login(pooler);
  await changed.query('SET search_path = mine');
  await postgres.query("ALTER DATABASE app SET default_transaction_read_only = 'on'");
  await postgres.query('ALTER DATABASE app SET search_path = theirs');
  try {
    await postgres.query(
      "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = 'app'",
    );
    const fresh = await login(pooler);
    const names = ['default_transaction_read_only', 'search_path'];
    const found = [];
    for (const one of [client, changed, fresh]) found.push(await settings(one, ...names));
    for (const one of [client, changed, fresh]) await one.end();
    return found;
  } finally {
    await postgres.query('ALTER DATABASE app RESET ALL');
  }
}

rule(
  'a client has what its server began with, unless it asked for something else',
  () => ({ ...shared(), logs: [/server conn crashed|terminating connection/] }),
  async (pooler) => {
    assert.deepEqual(await afterAlterDatabase(pooler), [
      ['on', 'theirs'],
      ['on', 'mine'],
      ['on', 'theirs'],
    ]);
  },
  {
    since: '1.26.0',
    differs: {
      because: 'what the first server of the pool had is set on all others until RECONNECT',
      check: async (pooler) => {
        assert.deepEqual(await afterAlterDatabase(pooler), [
          ['off', '"$user", public'],
          ['off', 'mine'],
          ['off', '"$user", public'],
        ]);
      },
    },
  },
);

rule(
  'what connect_query set is what a server begins with',
  () => shared({}, { databases: { app: "connect_query='SET search_path = begun'" } }),
  async (pooler) => {
    const first = await login(pooler);
    assert.equal(first.parameters.get('search_path'), 'begun');
    await first.query('SET search_path = mine');
    const second = await login(pooler);
    assert.equal(await value(second, 'SHOW search_path'), 'begun');
    assert.equal(await value(first, 'SHOW search_path'), 'mine');
    await first.end();
    await second.end();
  },
  REPORTED,
);

rule(
  'names beyond ASCII are the same for a client of another encoding',
  () => shared(),
  async (pooler) => {
    const first = await login(pooler, { client_encoding: 'LATIN1' });
    await first.query('SELECT 1');
    const second = await login(pooler, { client_encoding: 'LATIN1', search_path: 'schön' });
    assert.equal(
      await value(second, "SELECT current_setting('search_path') = U&'\"sch\\00F6n\"'"),
      't',
    );
    await first.end();
    await second.end();
  },
  {
    since: '1.26.0',
    differs: { because: 'the bytes are taken for letters of the encoding that the server has' },
  },
);

rule(
  'what a server reports while it is linked is passed on',
  () => shared(),
  async (pooler) => {
    const client = await login(pooler);
    const messages = await client.query("SELECT 1; SET TimeZone = 'CET'; SELECT 2");
    assert.equal(typesOf(messages).replace(/ S(?= Z)/, ''), 'T D C C T D C Z:I');
    assert.equal(client.parameters.get('TimeZone'), 'CET');
    await client.end();
  },
);

rule(
  'the console takes tracked parameters and echoes them',
  () => shared(),
  async (pooler) => {
    const client = await WireClient.connect(pooler);
    client.send(startup({ user: 'postgres', database: 'pgbouncer', application_name: 'me' }));
    await client.untilReady();
    assert.equal(client.parameters.get('application_name'), 'me');
    await client.end();
  },
);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', async () => {
  await postgres.dispose();
  await older?.dispose();
});
