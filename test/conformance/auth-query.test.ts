/** `auth_query`, `auth_user` and `auth_dbname`: names that `auth_file` lacks. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { bind, query, SYNC, startup, textRows } from '../support/messages.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleNotes, type RuleOptions, rule } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient, WireError } from '../support/wire-client.ts';
import { lines, login, poolIs } from './support.ts';

const CONFIG_ERROR = 'FATAL 08P01: bouncer config error';
const NO_SUCH_USER = 'FATAL 08P01: no such user';
/** Names that the query does not find. */
const TELLS = {
  differs: {
    because: 'PgBouncer says aloud that there is no such name, which helps to guess names',
  },
  bouncer: NO_SUCH_USER,
};
const SASL = 'FATAL 08P01: SASL authentication failed';
const PASSWORD = 'FATAL 08P01: password authentication failed';
const ASK = 'SELECT name, secret FROM people WHERE name = $1';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
  for (const statement of [
    "CREATE ROLE asker LOGIN PASSWORD 'asker'",
    'CREATE TABLE people (name text, secret text)',
    'GRANT SELECT ON people TO asker, app_trust',
    `CREATE FUNCTION find_person(asked text, OUT name text, OUT secret text) LANGUAGE sql AS
       'SELECT name, secret FROM people WHERE name = asked'`,
    'CREATE SCHEMA evil',
    'CREATE TABLE evil.people AS SELECT * FROM people',
    "INSERT INTO evil.people VALUES ('app', 'evil')",
    'GRANT USAGE ON SCHEMA evil TO asker',
    'GRANT SELECT ON evil.people TO asker',
    "CREATE ROLE expired LOGIN PASSWORD 'expired' VALID UNTIL '2001-01-01'",
    "CREATE ROLE valid LOGIN PASSWORD 'valid' VALID UNTIL '2999-01-01'",
    'CREATE ROLE secretless LOGIN',
    "CREATE ROLE loginless PASSWORD 'loginless'",
  ]) {
    await postgres.query(statement);
  }
  await postgres.query(
    `INSERT INTO people SELECT rolname, rolpassword FROM pg_authid WHERE rolname IN ('app_md5', 'valid')`,
  );
  await postgres.query(
    "INSERT INTO people VALUES ('app', 'app'), ('app_plain', 'app_plain'), ('app_trust', 'app_trust'), ('nopw', NULL)",
  );
});

const options = (
  settings: Section = {},
  databases: Readonly<Record<string, string>> = {},
  users: Readonly<Record<string, string>> = {},
): RuleOptions => ({
  postgres,
  databases: { lookup: 'dbname=postgres', app: '', ...databases },
  users,
  authFile: { postgres: 'postgres', asker: 'asker' },
  settings: {
    auth_type: 'scram-sha-256',
    auth_user: 'asker',
    auth_dbname: 'lookup',
    auth_query: ASK,
    ...settings,
  },
  logs: [/ERROR/, /FATAL/],
});

/** What a login comes to: who one is, or the error. */
async function outcome(pooler: TestPooler, options: LoginOptions = {}): Promise<string> {
  const client = await WireClient.connect(pooler);
  try {
    await client.login(options);
    const row = (await client.query('SELECT current_user')).find(({ type }) => type === 'D');
    await client.end();
    return `in as ${row!.body.toString('utf8', 6)}`;
  } catch (error) {
    client.destroy();
    if (!(error instanceof WireError)) throw error;
    return error.message;
  }
}

/** One rule: this login comes to that. */
function comesTo(
  name: string,
  login: LoginOptions,
  expected: string | RegExp,
  notes: RuleNotes & { readonly bouncer?: string } = {},
) {
  const check = (end: string | RegExp) => async (pooler: TestPooler) => {
    const said = await outcome(pooler, login);
    if (typeof end === 'string') assert.equal(said, end);
    else assert.match(said, end);
  };
  // Older ones know no auth_dbname.
  const { bouncer, ...rest } = { since: '1.19', ...notes };
  if (bouncer !== undefined && rest.differs !== undefined) {
    return {
      name,
      check: check(expected),
      ...rest,
      differs: { ...rest.differs, check: check(bouncer) },
    };
  }
  return { name, check: check(expected), ...rest };
}

/** Runs statements as the superuser, and undoes them with the test. */
async function given(t: TestContext, does: string, undoes: string): Promise<void> {
  await postgres.query(does);
  t.after(() => postgres.query(undoes));
}

rules(
  'the default query',
  () => ({
    ...options({ auth_query: null, auth_user: 'postgres' }),
    databases: { lookup: 'dbname=postgres', app: '' },
  }),
  [
    comesTo('a role with a SCRAM secret logs in', { user: 'app' }, 'in as app'),
    comesTo('not with a wrong password', { user: 'app', password: 'wrong' }, SASL),
    comesTo('a name that no role has fails like a wrong password', { user: 'nobody' }, SASL, TELLS),
    comesTo('so does a role that may not log in', { user: 'loginless' }, SASL, {
      since: '1.24.1',
      ...TELLS,
    }),
    comesTo('no password fits a role that has none', { user: 'secretless', password: '' }, SASL),
    comesTo('a role whose password is still valid logs in', { user: 'valid' }, 'in as valid'),
    // CVE-2025-2291
    comesTo('an expired password does not let in', { user: 'expired' }, SASL, { since: '1.24.1' }),
    comesTo('the name of an unknown database is not asked for', { database: 'nowhere' }, SASL),
  ],
);

rules(
  'what the query answers',
  () =>
    options(
      {},
      {
        one: "dbname=app auth_query='SELECT name FROM people WHERE name = $1'",
        three: "dbname=app auth_query='SELECT name, secret, 1 FROM people WHERE name = $1'",
        error: "dbname=app auth_query='SELECT name, secret FROM nothing WHERE name = $1'",
        rowless: "dbname=app auth_query='DELETE FROM people WHERE false AND name = $1'",
        broken: "dbname=app auth_query='SELEKT $1'",
        nullname: "dbname=app auth_query='SELECT NULL, secret FROM people WHERE name = $1'",
        last: "dbname=app auth_query='SELECT $1::text, s FROM (VALUES (1,''x''), (2,''app''), (3,''y''), (4,''app'')) v(n, s) ORDER BY n'",
        notlast:
          "dbname=app auth_query='SELECT $1::text, s FROM (VALUES (1,''app''), (2,''x'')) v(n, s) ORDER BY n'",
        another: "dbname=app auth_query='SELECT ''app_trust'', secret FROM people WHERE name = $1'",
        function: "dbname=app auth_query='SELECT * FROM find_person($1)'",
        command: "dbname=app auth_query='SET work_mem = 64'",
        copy: "dbname=app auth_query='COPY people TO STDOUT'",
        empty: "dbname=app auth_query=' '",
      },
      { listed: 'pool_mode=session' },
    ),
  [
    comesTo('a plain secret', {}, 'in as app'),
    comesTo('an MD5 secret serves no SCRAM', { user: 'app_md5' }, SASL),
    comesTo('a secret that is NULL fits no password', { user: 'nopw', password: '' }, SASL),
    comesTo('no row', { user: 'nobody' }, SASL, TELLS),
    comesTo('no row for a name of [users] is like a wrong password', { user: 'listed' }, SASL),
    comesTo('one column', { database: 'one' }, CONFIG_ERROR),
    comesTo('three columns', { database: 'three' }, CONFIG_ERROR),
    comesTo('an error', { database: 'error' }, CONFIG_ERROR),
    comesTo('a syntax error', { database: 'broken' }, CONFIG_ERROR),
    comesTo('a name that is NULL is no row', { user: 'app_plain', database: 'nullname' }, SASL, {
      since: '1.26',
      ...TELLS,
    }),
    comesTo(
      'so a function of one row may find nothing',
      { user: 'nobody', database: 'function' },
      SASL,
      { since: '1.26', ...TELLS },
    ),
    comesTo('and something', { database: 'function' }, 'in as app'),
    comesTo('of several rows the last counts', { database: 'last' }, 'in as app'),
    comesTo('and the others do not', { database: 'notlast' }, SASL),
    comesTo('another name than the one asked for', { database: 'another' }, CONFIG_ERROR, {
      differs: { because: 'PgBouncer makes the client whoever the answer names' },
      bouncer: 'in as app_trust',
    }),
    comesTo('a command', { database: 'command' }, CONFIG_ERROR),
    comesTo('COPY', { database: 'copy' }, CONFIG_ERROR),
    comesTo('an empty query', { database: 'empty' }, CONFIG_ERROR),
    {
      since: '1.19',
      name: 'after all that the pool of the auth database is as good as new',
      check: async (pooler) => {
        assert.equal(await outcome(pooler), 'in as app');
        await until('its server is idle', () =>
          poolIs(pooler, { sv_idle: 1, sv_active: 0 }, 'lookup'),
        );
      },
    },
  ],
);

rules(
  'where and as whom',
  () =>
    options(
      { auth_dbname: null, admin_users: 'postgres, valid' },
      {
        '*': '',
        own: 'dbname=postgres auth_user=asker',
        other: 'dbname=app auth_dbname=lookup',
        automatic:
          "dbname=app auth_dbname=postgres auth_query='SELECT name, secret FROM people WHERE name=$1'",
        forced: 'dbname=app auth_dbname=lookup user=app_trust',
        filed: 'dbname=app auth_dbname=lookup auth_user=ghost',
        trusted: 'dbname=app auth_dbname=lookup auth_user=app_trust',
      },
    ),
  [
    comesTo('the database that the client asks for', { database: 'own' }, 'in as app'),
    comesTo('or another', { database: 'other' }, 'in as app'),
    comesTo('which may be an automatic one', { database: 'automatic' }, 'in as app'),
    comesTo('a client of a database with a forced user', { database: 'forced' }, 'in as app_trust'),
    comesTo('a wrong password for that', { database: 'forced', password: 'wrong' }, SASL),
    comesTo(
      'an auth_user that the server does not let in',
      { database: 'filed' },
      /^FATAL (28P01: password authentication failed for user "ghost"|08P01: .*)$/,
    ),
    comesTo('an auth_user without a password', { database: 'trusted' }, 'in as app'),
    comesTo(
      'a name that stands in auth_file',
      { user: 'asker', database: 'postgres' },
      'in as asker',
    ),
    comesTo(
      'the auth_user itself is asked for like any other name',
      { user: 'app_trust', database: 'trusted' },
      'in as app_trust',
    ),
    comesTo(
      'the console without an auth_dbname',
      { user: 'valid', database: 'pgbouncer' },
      CONFIG_ERROR,
    ),
  ],
);

rule(
  'the console asks the auth_dbname',
  () => options({ admin_users: 'postgres, valid' }),
  async (pooler) => {
    const login = { database: 'pgbouncer' };
    const client = await WireClient.login(pooler, { ...login, user: 'valid' });
    assert.equal(lines(await client.query('SHOW VERSION')), 'T D C Z:I');
    await client.end();
    assert.match(
      await outcome(pooler, { ...login, user: 'nobody' }),
      /SASL authentication failed|no such user/,
    );
    assert.equal(await outcome(pooler, { ...login, user: 'valid', password: 'no' }), SASL);
    assert.equal(await outcome(pooler, login), 'FATAL 08P01: not allowed');
  },
  { since: '1.19' },
);

rule(
  'an auth_dbname that is not there is an error of the configuration',
  () => options({ auth_dbname: 'nowhere' }),
  async (pooler) => {
    assert.equal(await outcome(pooler), CONFIG_ERROR);
    assert.equal(await outcome(pooler, { user: 'nobody' }), CONFIG_ERROR);
    assert.match(pooler.log(), /authentication database "nowhere" is not configured\./);
  },
  { since: '1.19' },
);

rule(
  'nobody is looked up in a disabled database',
  () => options(),
  async (pooler) => {
    await pooler.console('DISABLE lookup');
    assert.equal(
      await outcome(pooler),
      'FATAL 08P01: authentication database "lookup" is disabled',
    );
    await pooler.console('ENABLE lookup');
    assert.equal(await outcome(pooler), 'in as app');
  },
  { since: '1.19' },
);

for (const [auth_type, wrong, unknown] of [
  ['trust', 'in as app', 'FATAL 08P01: "trust" authentication failed'],
  ['plain', PASSWORD, PASSWORD],
  ['md5', PASSWORD, PASSWORD],
] as const) {
  rules(`auth_type = ${auth_type} asks too`, () => options({ auth_type }), [
    comesTo('with another password', { password: 'wrong' }, wrong),
    comesTo('with the right one', {}, 'in as app'),
    comesTo('a name that is not found', { user: 'nobody' }, unknown, TELLS),
  ]);
}

rule(
  'what the query says serves the logins to servers',
  () => options({ auth_type: 'md5' }),
  async (pooler) => {
    assert.equal(await outcome(pooler, { user: 'app_plain' }), 'in as app_plain');
    assert.equal(await outcome(pooler, { user: 'app_md5' }), 'in as app_md5');
    assert.equal(await outcome(pooler, { user: 'valid' }), 'in as valid');
  },
  { since: '1.19' },
);

rule(
  'the secret is asked for anew at every login',
  () => options(),
  async (pooler, t) => {
    assert.equal(await outcome(pooler), 'in as app');
    await given(
      t,
      "UPDATE people SET secret = 'new' WHERE name = 'app'",
      "UPDATE people SET secret = 'app' WHERE name = 'app'",
    );
    assert.equal(await outcome(pooler), SASL);
    assert.equal(await outcome(pooler, { password: 'new' }), 'in as app');
  },
  { since: '1.19' },
);

rule(
  'a name that the query has known before fails like a wrong password',
  () => options(),
  async (pooler, t) => {
    await given(
      t,
      "INSERT INTO people VALUES ('brief', 'brief')",
      "DELETE FROM people WHERE name = 'brief'",
    );
    assert.equal(await outcome(pooler, { user: 'brief', password: 'wrong' }), SASL);
    await postgres.query("DELETE FROM people WHERE name = 'brief'");
    assert.equal(await outcome(pooler, { user: 'brief' }), SASL);
  },
  { since: '1.19' },
);

rule(
  'why a server of the auth pool is closed stands in the log',
  () =>
    options(
      {},
      {
        one: "dbname=app auth_query='SELECT name FROM people WHERE name = $1'",
        error: "dbname=app auth_query='SELECT name, secret FROM nothing WHERE name = $1'",
        rowless: "dbname=app auth_query='DELETE FROM people WHERE false AND name = $1'",
      },
    ),
  async (pooler) => {
    for (const [database, line] of [
      [
        'one',
        /S-\S+ lookup\/asker@\S+ closing because: expected 2 columns from auth_query, not 1 /,
      ],
      ['error', / S: error in auth_query: ERROR: relation "nothing" does not exist\n/],
      ['error', /S-\S+ lookup\/asker@\S+ closing because: error response from auth_query /],
      ['rowless', /S-\S+ lookup\/asker@\S+ closing because: unexpected response from auth_query /],
    ] as const) {
      const from = pooler.log().length;
      assert.equal(await outcome(pooler, { database }), CONFIG_ERROR);
      await until(`${line} is logged`, () => line.test(pooler.log().slice(from)));
    }
  },
  { since: '1.19' },
);

// CVE-2025-12819
rule(
  'a search_path in the startup packet has no influence on the query',
  () => options({ track_extra_parameters: 'IntervalStyle, search_path', default_pool_size: 1 }),
  async (pooler) => {
    const parameters = { search_path: 'evil' };
    for (let i = 0; i < 2; i++) {
      assert.equal(await outcome(pooler, { password: 'evil', parameters }), SASL);
      assert.equal(await outcome(pooler, { parameters }), 'in as app');
    }
  },
  { since: '1.25.1' },
);

rule(
  'neither has one that a client of the same pool has left behind',
  () => options({ track_extra_parameters: 'IntervalStyle, search_path', default_pool_size: 1 }),
  async (pooler, t) => {
    const parameters = { search_path: 'evil', application_name: 'evil' };
    const client = await login(t, pooler, { user: 'asker', database: 'lookup', parameters });
    await client.query('SELECT 1');
    assert.equal(await outcome(pooler, { password: 'evil' }), SASL);
    assert.equal(await outcome(pooler), 'in as app');
    const rows = lines(await client.query('SELECT secret FROM people'));
    assert.match(rows, /T D C Z:I/);
  },
  {
    since: '1.25.1',
    differs: { because: 'PgBouncer asks with whatever the last client of the pool has set' },
  },
);

rule(
  'the server goes back without a prepared statement',
  () => options({ default_pool_size: 1, max_prepared_statements: 0 }),
  async (pooler, t) => {
    assert.equal(await outcome(pooler), 'in as app');
    const client = await login(t, pooler, { user: 'asker', database: 'lookup' });
    client.send(bind(), SYNC);
    assert.match(lines(await client.untilReady()), /^ERROR 26000 .* Z:I$/);
    client.send(query('SELECT count(*) FROM pg_prepared_statements'));
    assert.deepEqual(textRows(await client.untilReady()), [['0']]);
  },
  {
    since: '1.19',
    differs: { because: 'PgBouncer leaves the unnamed statement and its portal behind' },
  },
);

/** Holds the only server of the pool of the auth database. */
async function occupied(t: TestContext, pooler: TestPooler): Promise<WireClient> {
  const client = await login(t, pooler, { user: 'asker', database: 'lookup' });
  await client.query('BEGIN');
  return client;
}

/** A client that has said who it is, and no more. */
async function begun(
  t: TestContext,
  pooler: TestPooler,
  who: Readonly<Record<string, string>> = { user: 'app', database: 'app' },
): Promise<WireClient> {
  const client = await WireClient.connect(pooler);
  t.after(() => client.destroy());
  client.send(startup(who));
  return client;
}

rule(
  'a client that waits for the query stands in SHOW POOLS, first come first served',
  () => options({ default_pool_size: 1 }),
  async (pooler, t) => {
    const holder = await occupied(t, pooler);
    const first = await begun(t, pooler);
    await until('it waits', () => poolIs(pooler, { cl_waiting: 1, sv_active: 1 }, 'lookup'));
    const second = await begun(t, pooler, { user: 'nobody', database: 'app' });
    await until('both wait', () => poolIs(pooler, { cl_waiting: 2 }, 'lookup'));
    await holder.query('COMMIT');
    assert.equal((await first.next()).type, 'R');
    // An unknown name is asked for its password like any other; PgBouncer closes.
    assert.match((await second.next()).type, /^[RE]$/);
    second.destroy();
    await until('nobody waits', () => poolIs(pooler, { cl_waiting: 0, sv_active: 0 }, 'lookup'));
  },
  { since: '1.19' },
);

rule(
  'a client that leaves while it waits for the query gives its place up',
  () => options({ default_pool_size: 1 }),
  async (pooler, t) => {
    const holder = await occupied(t, pooler);
    const first = await begun(t, pooler);
    await until('it waits', () => poolIs(pooler, { cl_waiting: 1 }, 'lookup'));
    first.destroy();
    await until('it waits no more', () => poolIs(pooler, { cl_waiting: 0 }, 'lookup'));
    await holder.query('COMMIT');
    assert.equal(await outcome(pooler), 'in as app');
  },
  {
    since: '1.19',
    differs: { because: 'PgBouncer does not read, and so does not notice, until it has a server' },
  },
);

rule(
  'whoever queues for the query waits query_wait_timeout, not client_login_timeout',
  () => options({ default_pool_size: 1, query_wait_timeout: 2, client_login_timeout: 1 }),
  async (pooler, t) => {
    const holder = await occupied(t, pooler);
    const client = await begun(t, pooler);
    const came = Date.now();
    const told = lines(await client.untilClose());
    assert.equal(told, 'FATAL 08P01 query_wait_timeout');
    assert.ok(Date.now() - came > 1500);
    await holder.query('COMMIT');
  },
  { since: '1.19' },
);

rule(
  'while the query runs client_login_timeout holds, and the server is closed',
  () =>
    options(
      { client_login_timeout: 1, default_pool_size: 1 },
      { slow: "dbname=app auth_query='SELECT $1::text, pg_sleep(30)::text'" },
    ),
  async (pooler, t) => {
    const client = await begun(t, pooler, { user: 'app', database: 'slow' });
    assert.equal(lines(await client.untilClose()), 'FATAL 08P01 client_login_timeout');
    await until('the server is gone', () => poolIs(pooler, { sv_active: 0, sv_idle: 0 }, 'lookup'));
  },
  { since: '1.19' },
);

rule(
  'transaction_timeout does not end the query',
  () =>
    options(
      { transaction_timeout: 1, query_timeout: 1 },
      { slow: "dbname=app auth_query='SELECT $1::text, ''app'' || left(pg_sleep(3)::text, 0)'" },
    ),
  async (pooler) => {
    assert.equal(await outcome(pooler, { database: 'slow' }), 'in as app');
  },
  {
    since: '1.25',
    differs: { because: 'PgBouncer takes the query for an infinitely old transaction' },
  },
);

rule(
  'a server that is lost while the query runs is an error of the configuration',
  () => options({}, { slow: "dbname=app auth_query='SELECT $1::text, pg_sleep(31)::text'" }),
  async (pooler, t) => {
    const client = await begun(t, pooler, { user: 'app', database: 'slow' });
    await until('the query runs', async () => {
      const busy = await postgres.query(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE usename = 'asker' AND query LIKE '%pg_sleep(31)%' AND state = 'active'`,
      );
      return busy.length > 0;
    });
    assert.equal(lines(await client.untilClose()), 'FATAL 08P01 bouncer config error');
  },
  { since: '1.19' },
);

rule(
  'while logins of the auth_user fail, clients are told so at once',
  () => ({
    ...options({ server_login_retry: 30 }),
    authFile: { postgres: 'postgres', asker: 'no' },
  }),
  async (pooler) => {
    const words = 'password authentication failed for user "asker"';
    assert.equal(await outcome(pooler), `FATAL 28P01: ${words}`);
    assert.equal(
      await outcome(pooler),
      `FATAL 08P01: server login has been failing, cached error: ${words} (server_login_retry)`,
    );
  },
  { since: '1.19' },
);

rule(
  'a lookup waits while the auth database is paused',
  () => options(),
  async (pooler, t) => {
    await pooler.console('PAUSE lookup');
    const client = await begun(t, pooler);
    await until('it waits', () => poolIs(pooler, { cl_waiting: 1 }, 'lookup'));
    await pooler.console('RESUME lookup');
    assert.equal((await client.next()).type, 'R');
  },
  { since: '1.19' },
);

rule(
  'KILL of the auth database ends the logins that wait for it',
  () => options({ default_pool_size: 1 }),
  async (pooler, t) => {
    await occupied(t, pooler);
    const client = await begun(t, pooler);
    await until('it waits', () => poolIs(pooler, { cl_waiting: 1 }, 'lookup'));
    await pooler.console('KILL lookup');
    assert.equal(lines(await client.untilClose()), 'FATAL 08P01 database removed');
  },
  { since: '1.19' },
);

test('the server is ended', () => postgres.dispose());
