/** What clients see when the configuration is read anew. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { query, reportFields, textRows } from '../support/messages.ts';
import { type TestPooler, userlist } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { failedReload, line, reload } from '../support/reload.ts';
import {
  type RuleCheck,
  type RuleNotes,
  type RuleOptions,
  rule as wireRule,
} from '../support/rule.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient, WireError } from '../support/wire-client.ts';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
  await postgres.query('CREATE DATABASE other OWNER app');
  await postgres.query('ALTER DATABASE other SET default_transaction_read_only = on');
});

const APP = { app: '' };
const options =
  (changes: RuleOptions = {}) =>
  (): RuleOptions => ({
    postgres,
    databases: APP,
    ...changes,
  });
const place = (): string => `host=${postgres.host} port=${postgres.port}`;
const database = (name: string, text: string) =>
  line('databases', name, `${place()} ${text}`.trim());

const opened: WireClient[] = [];

/** A client that is closed when its rule has been checked. */
async function login(pooler: TestPooler, who: LoginOptions = {}): Promise<WireClient> {
  const client = await WireClient.login(pooler, who);
  opened.push(client);
  return client;
}

/** Old versions of PgBouncer wait for clients that hold a server, however often they are told to end. */
function closing(check: RuleCheck): RuleCheck {
  return async (pooler, t) => {
    try {
      await check(pooler, t);
    } finally {
      for (const client of opened.splice(0)) client.destroy();
    }
  };
}

function rule(
  name: string,
  given: () => RuleOptions,
  check: RuleCheck,
  notes: RuleNotes = {},
): void {
  const { differs } = notes;
  if (differs?.check === undefined) return wireRule(name, given, closing(check), notes);
  const other = { ...differs, check: closing(differs.check) };
  wireRule(name, given, closing(check), { ...notes, differs: other });
}

/** The one value that a query returns. */
async function ask(client: WireClient, sql: string): Promise<string> {
  const [row] = textRows(await client.query(sql));
  return String(row?.[0]);
}

/** SQLSTATE and text of the FATAL that a client is closed with. */
async function fatalOf(client: WireClient): Promise<string> {
  const error = (await client.untilClose()).find(({ type }) => type === 'E');
  assert.ok(error, 'the client was closed without an error');
  const { C, M } = reportFields(error.body);
  return `${C} ${M}`;
}

async function refusalOf(pooler: TestPooler, who: LoginOptions): Promise<string> {
  const client = await WireClient.login(pooler, who).catch((error: unknown) => error);
  if (client instanceof WireError) return client.text;
  if (client instanceof WireClient) client.destroy();
  throw new Error('it was not refused', { cause: client });
}

const PID = 'SELECT pg_backend_pid()';
const USER = 'SELECT current_user';

rule(
  'clients of a database whose line is gone are closed, whatever they do, and nobody else is',
  options({ databases: { app: '', gone: 'dbname=app' } }),
  async (pooler) => {
    const stays = await login(pooler);
    const idle = await login(pooler, { database: 'gone' });
    const busy = await login(pooler, { database: 'gone' });
    const pid = await ask(stays, PID);
    await busy.query('BEGIN');
    await reload(pooler, line('databases', 'gone', null));
    assert.equal(await fatalOf(idle), '08P01 database removed');
    assert.equal(await fatalOf(busy), '08P01 database removed');
    assert.equal(await ask(stays, PID), pid);
    assert.equal(await refusalOf(pooler, { database: 'gone' }), 'no such database: gone');
    assert.match(
      pooler.log(),
      / WARNING dropping database 'gone' as it does not exist anymore or inactive auto-database\n/,
    );
  },
);

rule(
  'a database whose line is gone is removed even when * would serve it',
  options({ databases: { app: '', '*': '' } }),
  async (pooler) => {
    const client = await login(pooler);
    await reload(pooler, line('databases', 'app', null));
    assert.equal(await fatalOf(client), '08P01 database removed');
    assert.equal(await ask(await login(pooler), 'SELECT 1'), '1');
  },
);

for (const [what, text, since] of [
  ['dbname', 'dbname=other'],
  ['connect_query', `connect_query='SET work_mem = 77777'`],
  ['auth_dbname', 'auth_dbname=other', '1.19.0'],
  ['load_balance_hosts', 'load_balance_hosts=disable', '1.24.0'],
] as const) {
  rule(
    `a changed ${what} replaces servers, each at the end of its transaction`,
    options(),
    async (pooler) => {
      const client = await login(pooler);
      const pid = await ask(client, PID);
      await client.query('BEGIN');
      await reload(pooler, database('app', text));
      assert.equal(await ask(client, PID), pid);
      await client.query('COMMIT');
      assert.notEqual(await ask(client, PID), pid);
    },
    since === undefined ? {} : { since },
  );
}

for (const [text, since] of [
  ['pool_size=3'],
  ['application_name=other'],
  ['server_lifetime=1000', '1.24.0'],
] as const) {
  rule(
    `servers stay when only ${text} is added`,
    options(),
    async (pooler) => {
      const client = await login(pooler);
      const pid = await ask(client, PID);
      await reload(pooler, database('app', text));
      assert.equal(await ask(client, PID), pid);
    },
    since === undefined ? {} : { since },
  );
}

rule(
  'servers are replaced when server TLS settings change',
  options({ settings: { server_tls_sslmode: 'disable' } }),
  async (pooler) => {
    const client = await login(pooler);
    const pid = await ask(client, PID);
    await reload(pooler, line('pgbouncer', 'server_tls_sslmode', 'prefer'));
    assert.notEqual(await ask(client, PID), pid);
  },
);

rule('parameters for the welcome are learnt anew', options(), async (pooler) => {
  const old = await login(pooler);
  assert.equal(old.parameters.get('default_transaction_read_only'), 'off');
  await reload(pooler, database('app', 'dbname=other'));
  const young = await login(pooler);
  assert.equal(young.parameters.get('default_transaction_read_only'), 'on');
});

rule(
  'another forced user is who the next transaction of a client runs as',
  options({ databases: { app: 'user=app password=app' } }),
  async (pooler) => {
    const idle = await login(pooler);
    const busy = await login(pooler);
    assert.equal(await ask(idle, USER), 'app');
    await busy.query('BEGIN');
    assert.equal(await ask(busy, USER), 'app');
    await reload(pooler, database('app', 'user=app_plain password=app_plain'));
    assert.equal(await ask(busy, USER), 'app');
    await busy.query('COMMIT');
    for (const client of [idle, busy, await login(pooler)]) {
      assert.equal(await ask(client, USER), 'app_plain');
    }
  },
  {
    since: '1.26.0',
    differs: {
      because: 'it asks the new user’s server to be the old one, so only new clients are served',
      check: async (pooler) => {
        const old = await login(pooler);
        await reload(pooler, database('app', 'user=app_plain password=app_plain'));
        assert.equal(await ask(await login(pooler), USER), 'app_plain');
        await assert.rejects(ask(old, USER), /the connection was closed/);
        assert.match(pooler.log(), /permission denied to set session authorization "app"/);
      },
    },
  },
);

rule(
  'a forced user that is added is who new clients’ transactions run as',
  options(),
  async (pooler) => {
    assert.equal(await ask(await login(pooler), USER), 'app');
    await reload(pooler, database('app', 'user=app_plain password=app_plain'));
    assert.equal(await ask(await login(pooler), USER), 'app_plain');
  },
);

rule(
  'a forced user that is taken away is nobody’s any more',
  options({ databases: { app: 'user=app_plain password=app_plain' } }),
  async (pooler) => {
    const old = await login(pooler);
    assert.equal(await ask(old, USER), 'app_plain');
    await reload(pooler, database('app', ''));
    assert.equal(await ask(old, USER), 'app');
    assert.equal(await ask(await login(pooler), USER), 'app');
  },
  {
    differs: {
      because: 'it keeps the forced user until it is restarted',
      check: async (pooler) => {
        await reload(pooler, database('app', ''));
        assert.equal(await ask(await login(pooler), USER), 'app_plain');
      },
    },
  },
);

rule(
  'a session keeps the server that is to be replaced until it ends',
  options({ settings: { pool_mode: 'session' } }),
  async (pooler) => {
    const client = await login(pooler);
    const pid = await ask(client, PID);
    await reload(pooler, database('app', 'dbname=other'));
    assert.equal(await ask(client, PID), pid);
    assert.equal(await ask(await login(pooler), 'SELECT current_database()'), 'other');
  },
);

rule(
  'with server_fast_close it is closed between two transactions, and its client with it',
  options({ settings: { pool_mode: 'session', server_fast_close: 1 } }),
  async (pooler) => {
    const idle = await login(pooler);
    const busy = await login(pooler);
    await idle.query('SELECT 1');
    await busy.query('BEGIN');
    await reload(pooler, database('app', 'dbname=other'));
    assert.equal(await fatalOf(idle), '08P01 database configuration changed');
    assert.equal(await ask(busy, 'SELECT 1'), '1');
    busy.send(query('COMMIT'));
    assert.equal(await fatalOf(busy), '08P01 database configuration changed');
  },
);

const DROPPED = / WARNING dropping database 'app' as it does not exist anymore or inactive/;

rule(
  'a database made from * is dropped when nobody has used it for autodb_idle_timeout',
  options({
    databases: { '*': '', kept: 'dbname=app' },
    settings: { autodb_idle_timeout: 1, server_idle_timeout: 1 },
  }),
  async (pooler) => {
    const other = await login(pooler, { database: 'kept' });
    const client = await login(pooler);
    await client.query('SELECT 1');
    await other.end();
    await client.end();
    await until('it is dropped', () => DROPPED.test(pooler.log()));
    const names = (await pooler.console('SHOW STATS')).map((row) => row['database']);
    assert.deepEqual(names.sort(), ['kept', 'pgbouncer']);
    assert.equal(await ask(await login(pooler), 'SELECT 1'), '1');
  },
);

rule(
  'a database made from * stays while it has a client',
  options({
    databases: { '*': '' },
    settings: { autodb_idle_timeout: 0.3, server_idle_timeout: 0.3 },
  }),
  async (pooler) => {
    const client = await login(pooler);
    const passing = await login(pooler, { database: 'other' });
    await passing.end();
    await until('the other is dropped', () => /dropping database 'other'/.test(pooler.log()));
    assert.doesNotMatch(pooler.log(), DROPPED);
    assert.equal(await ask(client, 'SELECT 1'), '1');
  },
);

rule(
  'a pool is dropped when it has been empty for pool_idle_timeout, one of a forced user with a minimum is not',
  options({
    databases: { app: '', forced: 'dbname=app user=app password=app min_pool_size=1' },
    settings: { pool_idle_timeout: 1, server_idle_timeout: 1 },
  }),
  async (pooler) => {
    const client = await login(pooler);
    const forced = await login(pooler, { database: 'forced' });
    await client.end();
    await forced.end();
    await until('it is dropped', () =>
      /LOG cleaning up idle pool for user app on db app because: pool idle timeout \(age= \d+s\)\n/.test(
        pooler.log(),
      ),
    );
    const pools = (await pooler.console('SHOW POOLS')).map((row) => row['database']);
    assert.deepEqual(pools, ['forced', 'pgbouncer']);
    assert.equal(await ask(await login(pooler), 'SELECT 1'), '1');
  },
  { since: '1.26.0' },
);

rule(
  'a deleted * takes what was made from it with it',
  options({ databases: { kept: 'dbname=app', '*': '' } }),
  async (pooler) => {
    const client = await login(pooler);
    await reload(pooler, line('databases', '*', null));
    assert.equal(await fatalOf(client), '08P01 database removed');
    assert.equal(await refusalOf(pooler, { database: 'app' }), 'no such database: app');
    assert.match(pooler.log(), DROPPED);
  },
  {
    differs: {
      because: 'it goes on making databases from it until it is restarted',
      check: async (pooler) => {
        const client = await login(pooler);
        await reload(pooler, line('databases', '*', null));
        assert.equal(await ask(client, 'SELECT 1'), '1');
        assert.equal(await ask(await login(pooler, { database: 'other' }), 'SELECT 1'), '1');
      },
    },
  },
);

rule(
  'a changed * replaces the servers of what was made from it',
  options({ databases: { '*': 'dbname=app' } }),
  async (pooler) => {
    const client = await login(pooler, { database: 'any' });
    assert.equal(await ask(client, 'SELECT current_database()'), 'app');
    await reload(pooler, database('*', 'dbname=other'));
    assert.equal(await ask(client, 'SELECT current_database()'), 'other');
  },
);

rule(
  'a deleted line of [users] gives the user back what everybody has',
  options({ users: { app: 'pool_mode=session' }, settings: { server_reset_query: '' } }),
  async (pooler) => {
    await reload(pooler, line('users', 'app', null));
    const [first, second] = [await login(pooler), await login(pooler)];
    assert.equal(await ask(first, PID), await ask(second, PID));
  },
  {
    differs: {
      because: 'it keeps the line until it is restarted',
      check: async (pooler) => {
        await reload(pooler, line('users', 'app', null));
        const [first, second] = [await login(pooler), await login(pooler)];
        assert.notEqual(await ask(first, PID), await ask(second, PID));
      },
    },
  },
);

rule(
  'a setting whose line is deleted has its default again',
  options({ settings: { query_wait_timeout: 50, stats_users: 'app_md5', max_client_conn: 1 } }),
  async (pooler) => {
    const client = await login(pooler);
    assert.equal(await refusalOf(pooler, {}), 'no more connections allowed (max_client_conn)');
    await reload(
      pooler,
      line('pgbouncer', 'query_wait_timeout', null),
      line('pgbouncer', 'stats_users', null),
      line('pgbouncer', 'max_client_conn', null),
    );
    const rows = await pooler.console('SHOW CONFIG');
    for (const key of ['query_wait_timeout', 'stats_users', 'max_client_conn']) {
      const row = rows.find((one) => one['key'] === key);
      assert.equal(row?.['value'], row?.['default'], key);
    }
    await login(pooler);
    assert.equal(
      await refusalOf(pooler, { user: 'app_md5', database: 'pgbouncer' }),
      'not allowed',
    );
    assert.equal(await ask(client, 'SELECT 1'), '1');
  },
);

rule(
  'a deleted verbose makes the log silent again',
  options({ settings: { verbose: 1 } }),
  async (pooler) => {
    await login(pooler);
    assert.match(pooler.log(), /\] DEBUG /);
    await reload(pooler, line('pgbouncer', 'verbose', null));
    const from = pooler.log().length;
    assert.equal(await ask(await login(pooler), 'SELECT 1'), '1');
    assert.doesNotMatch(pooler.log().slice(from), /\] DEBUG /);
  },
  {
    differs: {
      because: 'it stays as talkative as it was until it is restarted',
      check: async (pooler) => {
        await reload(pooler, line('pgbouncer', 'verbose', null));
        const from = pooler.log().length;
        await login(pooler);
        assert.match(pooler.log().slice(from), /\] DEBUG /);
      },
    },
  },
);

async function writeUsers(
  pooler: TestPooler,
  passwords: Readonly<Record<string, string>>,
): Promise<void> {
  await writeFile(join(pooler.folder, 'userlist.txt'), userlist(passwords));
}

rule(
  'a changed auth_file changes who may log in, and nothing for who has',
  options({
    settings: { auth_type: 'plain' },
    authFile: { app: 'app', app_plain: 'app_plain', postgres: 'postgres' },
    databases: { app: 'user=app_plain password=app_plain' },
  }),
  async (pooler) => {
    const client = await login(pooler);
    await writeUsers(pooler, { app: 'another one', postgres: 'postgres', added: 'x' });
    await reload(pooler);
    assert.equal(await ask(client, 'SELECT 1'), '1');
    for (const user of ['app', 'app_plain']) {
      assert.equal(
        await refusalOf(pooler, { user, database: 'app' }),
        'password authentication failed',
      );
    }
    await login(pooler, { password: 'another one' });
    await login(pooler, { user: 'added', password: 'x' });
  },
);

rule(
  'a user who is deleted from auth_file is forgotten',
  options({ authFile: { app: 'app', app_trust: '', postgres: 'postgres' } }),
  async (pooler) => {
    await login(pooler, { user: 'app_trust' });
    await writeUsers(pooler, { app: 'app', postgres: 'postgres' });
    await reload(pooler);
    assert.equal(
      await refusalOf(pooler, { user: 'app_trust', database: 'app' }),
      '"trust" authentication failed',
    );
  },
  {
    differs: {
      because: 'trust still lets in who was deleted',
      check: async (pooler) => {
        await writeUsers(pooler, { app: 'app', postgres: 'postgres' });
        await reload(pooler);
        await login(pooler, { user: 'app_trust' });
      },
    },
  },
);

rule(
  'a file with an error in it changes nothing at all',
  options({ settings: { max_client_conn: 50 }, logs: [/unknown parameter/] }),
  async (pooler) => {
    const client = await login(pooler);
    const pid = await ask(client, PID);
    const before = await pooler.console('SHOW CONFIG');
    await failedReload(
      pooler,
      database('app', 'dbname=other'),
      line('pgbouncer', 'max_client_conn', 60),
      line('pgbouncer', 'no_such_setting', 1),
      line('pgbouncer', 'query_wait_timeout', 7),
    );
    assert.equal(await ask(client, PID), pid);
    assert.deepEqual(await pooler.console('SHOW CONFIG'), before);
    assert.match(pooler.log(), / WARNING config file loading failed\n/);
  },
  {
    differs: {
      because:
        'what stands before the error is in force, and what stands behind it is at its default',
      check: async (pooler) => {
        await failedReload(
          pooler,
          line('pgbouncer', 'max_client_conn', 60),
          line('pgbouncer', 'no_such_setting', 1),
          line('pgbouncer', 'query_wait_timeout', 7),
        );
        const rows = await pooler.console('SHOW CONFIG');
        const valueNow = (name: string) => rows.find(({ key }) => key === name)?.['value'];
        assert.equal(valueNow('max_client_conn'), '60');
        assert.equal(valueNow('query_wait_timeout'), '120');
      },
    },
  },
);

rule(
  'surplus servers close when a pool becomes smaller, busy ones after their transactions',
  options({ databases: { app: 'pool_size=4' } }),
  async (pooler) => {
    const clients = await Promise.all([0, 1, 2, 3].map(() => login(pooler)));
    for (const client of clients) await client.query('BEGIN');
    await clients[0]!.query('COMMIT');
    await clients[1]!.query('COMMIT');
    await reload(pooler, database('app', 'pool_size=1'));
    await clients[2]!.query('COMMIT');
    await until('one server is left', async () => {
      const rows = await pooler.console('SHOW SERVERS');
      return rows.length <= 1;
    });
    assert.equal(await ask(clients[3]!, 'SELECT 1'), '1');
    assert.match(pooler.log(), /closing because: too many servers in the pool/);
  },
);

rule(
  'lower limits of clients refuse new ones and leave the others alone',
  options(),
  async (pooler) => {
    const client = await login(pooler);
    await login(pooler);
    await reload(pooler, database('app', ''), line('pgbouncer', 'max_client_conn', 1));
    assert.equal(await refusalOf(pooler, {}), 'no more connections allowed (max_client_conn)');
    assert.equal(await ask(client, 'SELECT 1'), '1');
    await reload(pooler, line('pgbouncer', 'max_client_conn', 3));
    await login(pooler);
  },
);

rule('other settings act at once, on connected clients too', options(), async (pooler) => {
  const client = await login(pooler);
  const parameters = { some_parameter: '1' };
  assert.equal(
    await refusalOf(pooler, { parameters }),
    'unsupported startup parameter: some_parameter',
  );
  const notAllowed = await refusalOf(pooler, { user: 'app_md5', database: 'pgbouncer' });
  assert.equal(notAllowed, 'not allowed');
  await reload(
    pooler,
    line('pgbouncer', 'ignore_startup_parameters', 'some_parameter'),
    line('pgbouncer', 'stats_users', 'app_md5'),
    line('pgbouncer', 'log_disconnections', 0),
    line('pgbouncer', 'query_timeout', 1),
  );
  await login(pooler, { parameters });
  await login(pooler, { user: 'app_md5', database: 'pgbouncer' });
  client.send(query('SELECT pg_sleep(3)'));
  assert.equal(await fatalOf(client), '08P01 query timeout');
  await until('PostgreSQL has let it go', async () => {
    const rows = await postgres.query("SELECT 1 FROM pg_stat_activity WHERE query ~ 'pg_sleep.3'");
    return rows.length <= 1;
  });
  assert.doesNotMatch(pooler.log(), /C-.* closing because: query timeout/);
});

test('stops the server', () => postgres.dispose());
