import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import type pg from 'pg';
import { pgbench } from '../../bench/load/pgbench.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { clientProgram, hasPostgres15 } from '../support/postgres-files.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

const run = promisify(execFile);

const SIZE = 4;
const SERVERS = 8;
const TOPICS = [
  'VERSION',
  'POOLS',
  'CLIENTS',
  'SERVERS',
  'STATS',
  'DATABASES',
  'LISTS',
  'CONFIG',
] as const;

type Row = Readonly<Record<string, unknown>>;

interface Place {
  readonly postgres: TestPostgres;
  readonly fleet: TestPgfleet;
  /** A session of the console that stays. */
  readonly console: pg.Client;
}

for (const version of [15, 18] as const) {
  test(`the console tells of a fleet of ${SIZE} before PostgreSQL ${version} as of one pooler`, async (t) => {
    if (!requirePackage(t, 'postgresql-15', hasPostgres15() && clientProgram('pgbench') !== null)) {
      return;
    }
    const postgres = await startPostgres({ version });
    t.after(() => postgres.dispose());
    const fleet = await startPgfleet({
      postgres,
      size: SIZE,
      databases: { app: '', other: 'dbname=app pool_size=2 max_db_connections=3' },
      settings: { default_pool_size: SERVERS, max_client_conn: 301, stats_users: 'app_plain' },
    });
    let session: pg.Client | null = null;
    t.after(async () => {
      await session?.end();
      await fleet.stop();
    });
    const login = { user: 'postgres', password: 'postgres', database: 'pgbouncer' };
    session = await fleet.client(login);
    const place = { postgres, fleet, console: session };

    await t.test('psql and pg are shown the same of what stands still', () => agrees(place));
    await t.test('what is shown is what was written, not shares', () => showsWritten(place));
    await t.test('the counters after a run are those of pgbench', () => countsRuns(place));
    await t.test('clients and servers are those of all workers', () => listsAll(place));
    await t.test('sums under load are those of the fleet, and no answer fails', () =>
      holdsUp(place),
    );
    await t.test('a stats user is shown everything too', () => letsStatsUsers(place));
  });
}

async function agrees({ fleet, console }: Place): Promise<void> {
  for (const topic of TOPICS) {
    const { columns, rows } = await psql(fleet, `SHOW ${topic}`);
    const answer = await console.query(`SHOW ${topic}`);
    const names = answer.fields.map(({ name }) => name);
    assert.deepEqual(columns, names, topic);
    if (topic !== 'VERSION' && topic !== 'DATABASES' && topic !== 'CONFIG') continue;
    const values = answer.rows.map((row: Row) => names.map((name) => String(row[name] ?? '')));
    const changing = names.indexOf('current_client_connections');
    const still = (row: readonly string[]) => row.filter((_, i) => i !== changing);
    assert.deepEqual(rows.map(still), values.map(still), topic);
  }
  const { rows } = await console.query('SHOW VERSION');
  assert.match(rows[0].version, /^PgBouncer 1\.25\.2\b/);
}

async function showsWritten({ console }: Place): Promise<void> {
  const config = byKey((await console.query('SHOW CONFIG')).rows, 'key');
  assert.equal(config.get('max_client_conn')?.['value'], '301');
  assert.equal(config.get('default_pool_size')?.['value'], String(SERVERS));
  const databases = byKey((await console.query('SHOW DATABASES')).rows, 'name');
  assert.equal(databases.get('app')?.['pool_size'], SERVERS);
  const other = databases.get('other');
  assert.deepEqual([other?.['pool_size'], other?.['max_connections']], [2, 3]);
}

async function countsRuns({ fleet, console }: Place): Promise<void> {
  const script = join(fleet.folder, 'script.sql');
  await writeFile(script, 'SELECT 1;\nBEGIN;\nSELECT 2;\nEND;\n');
  const program = clientProgram('pgbench')!;
  for (const protocol of ['simple', 'extended']) {
    const before = await statsOf(console);
    const args = ['-n', '-M', protocol, '-c', '16', '-j', '2', '-t', '50', '-f', script];
    const target = ['-h', fleet.host, '-p', String(fleet.port), '-U', 'app', 'app'];
    const { stdout } = await run(program, [...args, ...target]);
    assert.match(stdout, /number of transactions actually processed: 800\/800/);
    const after = await statsOf(console);
    const grown = (name: string): number => (after.get(name) ?? 0) - (before.get(name) ?? 0);
    // Each run of the script is two transactions: a statement of its own, and a block of three.
    assert.deepEqual(
      ['total_xact_count', 'total_query_count', 'total_server_assignment_count'].map(grown),
      [1600, 3200, 1600],
      protocol,
    );
    // pgbench has one more connection, to look around.
    assert.equal(grown('total_client_login_count'), 17);
    assert.ok(grown('total_received') > 0 && grown('total_sent') > 0);
    assert.ok(grown('total_xact_time') >= grown('total_query_time'));
    assert.ok(grown('total_query_time') > 0);
  }
  const whole = await statsOf(console);
  const parts = (await console.query('SHOW STATS BY PROCESS')).rows.filter(isOf('app'));
  assert.ok(new Set(parts.map((row) => row.process)).size > 1, 'more than one worker has worked');
  for (const [name, value] of whole) {
    if (name.startsWith('total_')) assert.equal(sumOf(parts, name), value, name);
  }
}

/** Some clients in transactions, some waiting, some idle: nothing moves, so every sum is exact. */
async function listsAll({ postgres, fleet, console }: Place): Promise<void> {
  const clients = await Promise.all(Array.from({ length: 40 }, () => WireClient.login(fleet)));
  const idle = clients.slice(0, 10);
  const answers = clients.slice(10).map((client) => client.query('BEGIN', 20_000));
  const pool = async (): Promise<Row | undefined> =>
    (await console.query('SHOW POOLS')).rows.find(isOf('app'));
  await until('eight transactions are open and the others wait', async () => {
    const row = await pool();
    return row?.['sv_active'] === SERVERS && row['cl_waiting'] === 30 - SERVERS;
  });
  assert.equal((await pool())?.['cl_active'], idle.length + SERVERS);

  const shown = async (topic: string): Promise<{ whole: Row[]; parts: Row[] }> => ({
    whole: (await console.query(`SHOW ${topic}`)).rows.filter(isOf('app')),
    parts: (await console.query(`SHOW ${topic} BY PROCESS`)).rows.filter(isOf('app')),
  });
  const pools = await shown('POOLS');
  assert.equal(pools.whole.length, 1);
  for (const [name, value] of Object.entries(pools.whole[0]!)) {
    if (/^(cl|sv)_/.test(name)) assert.equal(sumOf(pools.parts, name), value, name);
  }

  const ports = clients.map(({ socket }) => socket.localPort).sort();
  const shownClients = await shown('CLIENTS');
  for (const rows of [shownClients.whole, shownClients.parts]) {
    assert.deepEqual(rows.map((row) => row['port']).sort(), ports);
  }
  const linked = shownClients.whole.filter((row) => row['link'] !== '');
  const servers = await shown('SERVERS');
  assert.deepEqual(
    linked.map((row) => `${row['ptr']} ${row['link']}`).sort(),
    servers.whole.map((row) => `${row['link']} ${row['ptr']}`).sort(),
    'every linked client names its server, which names its client',
  );
  assert.deepEqual(countBy(shownClients.whole, 'state'), { active: 8, idle: 10, waiting: 22 });

  const backends = (await postgres.backends({ user: 'app' })).map(({ pid }) => pid);
  for (const rows of [servers.whole, servers.parts]) {
    assert.deepEqual(rows.map((row) => Number(row['remote_pid'])).sort(), backends.sort());
  }

  const databases = byKey((await console.query('SHOW DATABASES')).rows, 'name');
  assert.equal(databases.get('app')?.['current_connections'], SERVERS);
  assert.equal(databases.get('app')?.['current_client_connections'], clients.length);
  const lists = byKey((await console.query('SHOW LISTS')).rows, 'list');
  assert.equal(lists.get('used_clients')?.['items'], clients.length + 1);
  assert.equal(lists.get('used_servers')?.['items'], SERVERS);
  const listParts = (await console.query('SHOW LISTS BY PROCESS')).rows;
  for (const name of ['used_clients', 'used_servers', 'login_clients']) {
    const ofList = listParts.filter((row) => row.list === name);
    assert.equal(ofList.length, SIZE);
    assert.equal(sumOf(ofList, 'items'), lists.get(name)?.['items'], name);
  }

  // Every COMMIT lets the next one in.
  await Promise.all(
    clients.slice(10).map(async (client, i) => {
      await answers[i];
      await client.query('COMMIT');
    }),
  );
  await Promise.all(clients.map((client) => client.end()));
}

async function holdsUp({ fleet, console }: Place): Promise<void> {
  const load = { port: fleet.port, script: 'select', protocol: 'simple' } as const;
  await run(clientProgram('pgbench')!, [
    '-i',
    '-q',
    '-h',
    fleet.host,
    '-p',
    String(fleet.port),
    '-U',
    'app',
    'app',
  ]);
  await until('those who made the tables have left', async () => (await clientsOf(console)) === 0);
  let isOver = false;
  const running = pgbench({ ...load, clients: 32, seconds: 4 }).finally(() => {
    isOver = true;
  });
  running.catch(() => undefined);
  // pgbench lets its clients begin when all of them are in.
  const before = (await statsOf(console)).get('total_xact_count') ?? 0;
  let transactions = before;
  await until('all clients are in', async () => {
    transactions = (await statsOf(console)).get('total_xact_count') ?? 0;
    return transactions > before + 100;
  });
  let looks = 0;
  const end = performance.now() + 2_000;
  while (performance.now() < end && !isOver) {
    const [pool] = (await console.query('SHOW POOLS')).rows.filter(isOf('app'));
    assert.equal(pool.cl_active + pool.cl_waiting, 32);
    const inUse = ['sv_active', 'sv_idle', 'sv_used', 'sv_tested', 'sv_login'];
    assert.ok(inUse.reduce((sum, name) => sum + pool[name], 0) <= SERVERS);
    const parts = (await console.query('SHOW POOLS BY PROCESS')).rows.filter(isOf('app'));
    assert.equal(sumOf(parts, 'cl_active') + sumOf(parts, 'cl_waiting'), 32);
    assert.equal((await console.query('SHOW CLIENTS')).rows.filter(isOf('app')).length, 32);
    assert.ok((await console.query('SHOW SERVERS')).rows.filter(isOf('app')).length <= SERVERS);
    for (const topic of TOPICS) await console.query(`SHOW ${topic}`);
    const count = (await statsOf(console)).get('total_xact_count') ?? 0;
    assert.ok(count > transactions, 'counters grow');
    transactions = count;
    looks++;
  }
  assert.ok(looks >= 3, `${looks} looks`);
  assert.equal((await running).failed, 0);
}

async function letsStatsUsers({ fleet }: Place): Promise<void> {
  const client = await fleet.client({ user: 'app_plain', database: 'pgbouncer' });
  for (const topic of TOPICS) {
    const { rows } = await client.query(`SHOW ${topic}`);
    assert.ok(rows.length > 0 || topic === 'SERVERS', topic);
  }
  await client.end();
  await assert.rejects(fleet.client({ user: 'app', database: 'pgbouncer' }), /not allowed/);
}

/** Columns and rows of a console command by Debian's psql. */
async function psql(
  fleet: TestPgfleet,
  command: string,
): Promise<{ columns: string[]; rows: string[][] }> {
  const target = ['-h', fleet.host, '-p', String(fleet.port), '-U', 'postgres', 'pgbouncer'];
  const args = ['-XAq', '-F', '\t', '-P', 'footer=off', '-c', command, ...target];
  const { stdout } = await run(clientProgram('psql')!, args);
  const [columns, ...rows] = stdout
    .split('\n')
    .slice(0, -1)
    .map((line) => line.split('\t'));
  return { columns: columns ?? [], rows };
}

/** Numbers of the database `app` in SHOW STATS, by column. */
async function statsOf(console: pg.Client): Promise<Map<string, number>> {
  const [row] = (await console.query('SHOW STATS')).rows.filter(isOf('app'));
  const numbers = Object.entries(row ?? {}).filter(([name]) => name !== 'database');
  return new Map(numbers.map(([name, value]) => [name, Number(value)]));
}

async function clientsOf(console: pg.Client): Promise<number> {
  return (await console.query('SHOW CLIENTS')).rows.filter(isOf('app')).length;
}

function isOf(database: string): (row: Row) => boolean {
  return (row) => row['database'] === database;
}

function sumOf(rows: readonly Row[], name: string): number {
  return rows.reduce((sum, row) => sum + Number(row[name]), 0);
}

function byKey(rows: readonly Row[], key: string): Map<unknown, Row> {
  return new Map(rows.map((row) => [row[key], row]));
}

function countBy(rows: readonly Row[], name: string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const row of rows) counts[String(row[name])] = (counts[String(row[name])] ?? 0) + 1;
  return counts;
}
