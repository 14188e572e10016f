/**
 * The welcome: what a client is told when its login is over, and where the pooler has that from, as
 * no server is linked to the client yet.
 */
import assert from 'node:assert/strict';
import { symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { query, reportFields, textRows, type WireMessage } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { line, reload } from '../support/reload.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { type Address, WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;
let older: TestPostgres | null = null;
/** Where the older server's Unix socket has the port of the newer one. */
let olderFolder = '';
before(async () => {
  postgres = await startPostgres();
  olderFolder = await makeFolder('older');
  if (!hasPostgres15()) return;
  older = await startPostgres({ version: 15 });
  await symlink(
    join(older.folder, `.s.PGSQL.${older.port}`),
    join(olderFolder, `.s.PGSQL.${postgres.port}`),
  );
});

const onPostgres = (
  settings: RuleOptions['settings'] = {},
  databases: RuleOptions['databases'] = { app: '' },
): RuleOptions => ({ postgres, settings, databases });

/** All that a login brings. */
async function welcome(
  pooler: Address,
  parameters: Readonly<Record<string, string>> = {},
): Promise<{ client: WireClient; messages: WireMessage[]; names: string[] }> {
  const client = await WireClient.connect(pooler);
  const messages = await client.login({ parameters });
  const names = messages
    .filter(({ type }) => type === 'S')
    .map(({ body }) => body.toString('utf8', 0, body.indexOf(0)));
  return { client, messages, names };
}

async function value(client: WireClient, sql: string): Promise<string | null> {
  return textRows(await client.query(sql))[0]![0]!;
}

for (const mode of ['session', 'transaction', 'statement'] as const) {
  rule(
    `pool_mode ${mode}: a client is welcomed without being given a server`,
    () => onPostgres({ pool_mode: mode }),
    async (pooler) => {
      const { client, messages } = await welcome(pooler);
      const kinds = messages.map(({ type }) => type).join('');
      assert.match(kinds, /^RS+KZ$/);
      assert.equal(messages.at(-1)!.body.toString(), 'I');
      const states = (await pooler.console('SHOW SERVERS')).map((row) => row['state']);
      assert.deepEqual(states, ['idle']);
      await client.end();
    },
  );
}

rule(
  'what no session may change comes as the server reported it, then the pooler’s own values, then the tracked ones in a fixed order',
  () => onPostgres({ track_extra_parameters: 'geqo, IntervalStyle, work_mem' }),
  async (pooler) => {
    const server = await WireClient.connect(postgres);
    const reports = await server.login();
    await server.end();
    const { client, names } = await welcome(pooler, { geqo: 'on', datestyle: 'German' });
    const unchangeable = new Set([
      'in_hot_standby',
      'integer_datetimes',
      'is_superuser',
      'server_encoding',
      'server_version',
    ]);
    const reported = reports.flatMap(({ type, body }) =>
      type === 'S' ? [body.toString('utf8', 0, body.indexOf(0))] : [],
    );
    assert.deepEqual(names, [
      'pgbouncer.version',
      ...reported.filter((name) => unchangeable.has(name)),
      'pgbouncer.max_prepared_statements',
      'pgbouncer.pool_mode',
      'DateStyle',
      'client_encoding',
      'TimeZone',
      'standard_conforming_strings',
      'application_name',
      'default_transaction_read_only',
      'IntervalStyle',
      'search_path',
      'scram_iterations',
      'session_authorization',
      // Known of a client only, since the server does not report it.
      'geqo',
    ]);
    assert.equal(client.parameters.get('DateStyle'), 'German');
    assert.equal(client.parameters.get('pgbouncer.pool_mode'), 'transaction');
    assert.equal(client.parameters.get('pgbouncer.max_prepared_statements'), '200');
    await client.end();
  },
  { since: '1.26.0' },
);

rule(
  'login_notify_message comes between the cancel key and ReadyForQuery',
  () => onPostgres({ login_notify_message: 'maintenance at noon' }),
  async (pooler) => {
    const { client, messages } = await welcome(pooler);
    assert.deepEqual(
      messages.slice(-3).map(({ type }) => type),
      ['K', 'N', 'Z'],
    );
    const { S: severity, C: sqlstate, M: text } = reportFields(messages.at(-2)!.body);
    assert.deepEqual([severity, sqlstate, text], ['NOTICE', '00000', 'maintenance at noon']);
    await client.end();
  },
  { since: '1.25.0' },
);

rule(
  'what servers begin with later is not told: the parameters are those of the first server of the pool',
  () => ({ ...onPostgres({ default_pool_size: 1, server_lifetime: 0 }) }),
  async (pooler) => {
    await postgres.query("ALTER DATABASE app SET TimeZone = 'Asia/Tokyo'");
    try {
      const first = await welcome(pooler);
      assert.equal(first.client.parameters.get('TimeZone'), 'Asia/Tokyo');
      await postgres.query("ALTER DATABASE app SET TimeZone = 'CET'");
      const pid = await value(first.client, 'SELECT pg_backend_pid()');
      const second = await welcome(pooler);
      assert.notEqual(await value(second.client, 'SELECT pg_backend_pid()'), pid);
      assert.equal(second.client.parameters.get('TimeZone'), 'Asia/Tokyo');
      assert.equal(await value(second.client, 'SHOW TimeZone'), 'Asia/Tokyo');
      await first.client.end();
      await second.client.end();
    } finally {
      await postgres.query('ALTER DATABASE app RESET ALL');
    }
  },
);

rule(
  'a reload that changes where or how a pool connects has the parameters learnt anew',
  () => onPostgres({ default_pool_size: 1 }),
  async (pooler) => {
    const first = await welcome(pooler);
    assert.equal(first.client.parameters.get('TimeZone'), 'UTC');
    const { host, port } = postgres;
    const other = `host=${host} port=${port} connect_query='SET TimeZone=$$CET$$'`;
    await reload(pooler, line('databases', 'app', other));
    const second = await welcome(pooler);
    assert.equal(second.client.parameters.get('TimeZone'), 'CET');
    // Who was told otherwise keeps what it was told.
    assert.equal(await value(first.client, 'SHOW TimeZone'), 'UTC');
    assert.equal(await value(second.client, 'SHOW TimeZone'), 'CET');
    await first.client.end();
    await second.client.end();
  },
);

rule(
  'a reload that changes other things of a database leaves the parameters as they are',
  () => onPostgres({}, { app: 'pool_size=1' }),
  async (pooler) => {
    const first = await welcome(pooler);
    await first.client.query('SELECT 1');
    await postgres.query("ALTER DATABASE app SET TimeZone = 'CET'");
    try {
      const { host, port } = postgres;
      await reload(pooler, line('databases', 'app', `host=${host} port=${port} pool_size=2`));
      const second = await welcome(pooler);
      assert.equal(second.client.parameters.get('TimeZone'), 'UTC');
      await first.client.end();
      await second.client.end();
    } finally {
      await postgres.query('ALTER DATABASE app RESET ALL');
    }
  },
);

rule(
  'connections that min_pool_size opened tell the parameters to the first client',
  () =>
    onPostgres(
      {},
      { app: `user=app password=app min_pool_size=1 connect_query='SET TimeZone=$$CET$$'` },
    ),
  async (pooler) => {
    const pid = await until('a server is there', async () => {
      const [server] = await pooler.console('SHOW SERVERS');
      return server?.['state'] === 'idle' && server['remote_pid'];
    });
    const { client } = await welcome(pooler);
    assert.equal(client.parameters.get('TimeZone'), 'CET');
    assert.equal(await value(client, 'SELECT pg_backend_pid()'), String(pid));
    await client.end();
  },
  // 1.18 opens none before the first client.
  { since: '1.26.0' },
);

test('what follows needs servers of two versions', (t) => {
  requirePackage(t, 'postgresql-15', older !== null);
});

/** Two clients at once on a pool of two servers, one of each version; the newer one is asked first. */
async function twoVersions(pooler: TestPooler): Promise<{ told: string[]; real: string[] }> {
  const told: string[] = [];
  const real: string[] = [];
  const clients: WireClient[] = [];
  for (let i = 0; i < 2; i++) {
    const { client } = await welcome(pooler, { search_path: 'mine', TimeZone: 'CET' });
    clients.push(client);
    await client.query('BEGIN');
    told.push(client.parameters.get('server_version')!);
    real.push((await value(client, 'SHOW server_version'))!);
    assert.equal(await value(client, 'SHOW search_path'), 'mine');
    assert.equal(await value(client, 'SHOW TimeZone'), 'CET');
  }
  for (const client of clients) await client.query('COMMIT');
  // Others have the servers' own values, whichever they get.
  for (let i = 0; i < 2; i++) {
    const { client } = await welcome(pooler);
    clients.push(client);
    await client.query('BEGIN');
    assert.equal(await value(client, 'SHOW search_path'), '"$user", public');
  }
  for (const client of clients) await client.end();
  return { told, real };
}

rule(
  'of servers of different versions behind one list the first tells the parameters, and each applies those of the client',
  () =>
    onPostgres(
      { default_pool_size: 2 },
      { app: `host=${postgres.host},${olderFolder} port=${postgres.port}` },
    ),
  async (pooler) => {
    if (older === null) return;
    const { told, real } = await twoVersions(pooler);
    const major = (version: string): string => version.split('.')[0]!;
    assert.equal(told[0], told[1]);
    assert.equal(told[0], real[0]);
    assert.deepEqual(real.map(major).sort(), ['15', '18']);
  },
  {
    since: '1.26.0',
    differs: {
      because: 'what only one of them knows is set on the other, whose refusal ends the client',
      check: async (pooler) => {
        if (older === null) return;
        const first = await welcome(pooler);
        await first.client.query('BEGIN');
        const second = await welcome(pooler);
        second.client.send(query('BEGIN'));
        const messages = await second.client.untilClose();
        assert.match(messages.at(-1)!.body.toString(), /invalid server parameter/);
        await first.client.end();
        second.client.destroy();
      },
    },
  },
);

// application_name_add_host

rule(
  'with application_name_add_host a client’s name has its address behind it, and a later SET is left alone',
  () => onPostgres({ application_name_add_host: 1 }),
  async (pooler) => {
    for (const name of ['mine', '']) {
      const { client } = await welcome(pooler, name === '' ? {} : { application_name: name });
      const shown = `${name || 'app'} - 127.0.0.1:${client.socket.localPort}`;
      assert.equal(client.parameters.get('application_name'), shown);
      assert.equal(await value(client, 'SHOW application_name'), shown);
      const [row] = await pooler.console('SHOW CLIENTS');
      assert.equal(row!['application_name'], shown);
      await client.query("SET application_name = 'later'");
      assert.equal(await value(client, 'SHOW application_name'), 'later');
      await client.end();
    }
  },
  { since: '1.26.0' },
);

const named = async (pooler: TestPooler): Promise<string> => {
  const { client } = await welcome(pooler, { options: '-c application_name=mine' });
  const name = await value(client, 'SHOW application_name');
  await client.end();
  return name!.replace(/ - .*/, '');
};

rule(
  'that name may stand in the options of the startup packet',
  () => onPostgres({ application_name_add_host: 1 }),
  async (pooler) => assert.equal(await named(pooler), 'mine'),
  {
    since: '1.26.0',
    differs: {
      because: 'it is lost there',
      check: async (pooler) => assert.equal(await named(pooler), 'app'),
    },
  },
);

const overUnix = async (pooler: TestPooler): Promise<string> => {
  const { client } = await welcome({ path: pooler.unixPath }, { application_name: 'mine' });
  const name = client.parameters.get('application_name')!;
  await client.end();
  return name.replace(/(?<=@)[^@)]+(?=\))/, 'host').replace(String(pooler.port), 'port');
};

rule(
  'over a Unix socket it is the host and the port of the pooler',
  () => onPostgres({ application_name_add_host: 1 }),
  async (pooler) => assert.equal(await overUnix(pooler), 'mine - unix(@host):port'),
  {
    since: '1.22.0',
    differs: {
      because: 'the process on the other side is named too',
      check: async (pooler) =>
        assert.equal(await overUnix(pooler), `mine - unix(${process.pid}@host):port`),
    },
  },
);

rule(
  'a client of a pool that has had a server is welcomed though none can be had now',
  () => ({ ...onPostgres({ server_login_retry: 1 }), logs: [/server conn crashed|terminating/] }),
  async (pooler) => {
    const { client } = await welcome(pooler);
    await client.query('SELECT 1');
    await client.end();
    await postgres.query('ALTER DATABASE app ALLOW_CONNECTIONS false');
    try {
      await postgres.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = 'app'",
      );
      const { client: next } = await welcome(pooler);
      next.send(query('SELECT 1'));
      const messages = await next.untilClose();
      assert.match(messages.at(-1)!.body.toString(), /not currently accepting connections/);
      next.destroy();
    } finally {
      await postgres.query('ALTER DATABASE app ALLOW_CONNECTIONS true');
    }
  },
  { since: '1.26.0' },
);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('the servers can be stopped when everything has been asked', async () => {
  await postgres.dispose();
  await older?.dispose();
  await removeFolder(olderFolder);
});
