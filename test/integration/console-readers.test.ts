import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import { ConsoleClient } from '../support/console.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { cancelRequest, query, textRows } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { clientProgram } from '../support/postgres-files.ts';
import { reportRules, runProgram } from '../support/programs.ts';
import { REPOSITORY } from '../support/repository.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

/** What reads the console of a fleet under load: monitors, psql and drivers. */

const SIZE = 4;
const CLIENTS = 24;
const SERVERS = 8;
/** Takes cancel requests and never closes, so that they stay under way. */
const PEER = 2;
const TOPICS = [
  ...['ACTIVE_SOCKETS', 'CLIENTS', 'CONFIG', 'DATABASES', 'DNS_HOSTS', 'DNS_ZONES', 'FDS', 'LISTS'],
  ...['MEM', 'PEERS', 'PEER_POOLS', 'POOLS', 'SERVERS', 'SOCKETS', 'STATE', 'STATS'],
  ...['STATS_AVERAGES', 'STATS_TOTALS', 'TOTALS', 'USERS', 'VERSION'],
  ...['SESSION_LEAKS', 'STALE_PLANS', 'FLEET'],
];
/** Those that have no part of a process. */
const WHOLE = ['PEERS', 'FLEET'];
const ALL = [
  ...TOPICS,
  ...TOPICS.filter((topic) => !WHOLE.includes(topic)).map((topic) => `${topic} BY PROCESS`),
];
const DRIVER = '/usr/share/java/postgresql.jar';

type Row = Record<string, string | null>;

let postgres: TestPostgres;
let fleet: TestPgfleet;
let load: Load;
let peer: Server;
before(async () => {
  postgres = await startPostgres();
  // It has no TLS, and says so once.
  peer = createServer((socket) => socket.once('data', () => socket.write('N')));
  peer.listen(0, '127.0.0.1');
  await once(peer, 'listening');
  const { port } = peer.address() as AddressInfo;
  fleet = await startPgfleet({
    postgres,
    size: SIZE,
    databases: { app: `pool_size=${SERVERS}`, other: 'dbname=app' },
    peers: { [PEER]: `host=127.0.0.1 port=${port}` },
    settings: { stats_users: 'app_plain', peer_id: 1 },
  });
  load = await Load.begin();
});

/** Clients that run one short transaction after the other until told to rest. */
class Load {
  readonly clients: readonly WireClient[];
  #isOver = false;
  #running: Promise<unknown> = Promise.resolve();

  private constructor(clients: readonly WireClient[]) {
    this.clients = clients;
  }

  static async begin(): Promise<Load> {
    const load = new Load(
      await Promise.all(Array.from({ length: CLIENTS }, () => WireClient.login(fleet))),
    );
    load.run();
    return load;
  }

  run(): void {
    this.#isOver = false;
    this.#running = Promise.all(this.clients.map((client) => this.#work(client)));
  }

  /** Resolves when nothing moves any more. */
  async rest(): Promise<void> {
    this.#isOver = true;
    await this.#running;
  }

  async end(): Promise<void> {
    await this.rest();
    await Promise.all(this.clients.map((client) => client.end()));
  }

  async #work(client: WireClient): Promise<void> {
    while (!this.#isOver) {
      await client.query('BEGIN', 30_000);
      await client.query('SELECT 1', 30_000);
      await client.query('COMMIT', 30_000);
    }
  }
}

const sum = (rows: readonly Row[], column: string): number =>
  rows.reduce((total, row) => total + Number(row[column]), 0);

/** Columns of a SHOW that are numbers to add up, and the one that tells its rows apart. */
const SUMS: readonly (readonly [string, readonly string[], RegExp])[] = [
  ['POOLS', ['database', 'user'], /^(?:cl|sv)_/],
  ['DATABASES', ['name'], /^current_/],
  ['USERS', ['name'], /^current_/],
  ['STATS', ['database'], /^total_/],
  ['STATS_TOTALS', ['database'], /^(?!database)/],
  ['SESSION_LEAKS', ['database'], /^(?!database|session_leak)/],
  ['STALE_PLANS', ['database'], /^(?!database)/],
  ['PEER_POOLS', ['peer_id'], /^(?:cl|sv)_/],
];

/** Every sum of a SHOW with the sum of its parts. */
function compare(
  whole: readonly Row[],
  parts: readonly Row[],
  keys: readonly string[],
  isSum: RegExp,
  check: (name: string, total: number, ofParts: number) => void,
): void {
  const keyOf = (row: Row): string => keys.map((key) => row[key]).join('/');
  assert.deepEqual(new Set(parts.map(keyOf)), new Set(whole.map(keyOf)));
  for (const row of whole) {
    const own = parts.filter((part) => keyOf(part) === keyOf(row));
    for (const column of Object.keys(row).filter((name) => isSum.test(name))) {
      check(`${keyOf(row)} ${column}`, Number(row[column]), sum(own, column));
    }
  }
}

test('counters under load: what BY PROCESS adds up to lies between two looks at the whole', async (t) => {
  const console = await ConsoleClient.open(t, fleet);
  const before = await console.rows('SHOW STATS_TOTALS');
  await until('the load has run on', async () => {
    const rows = await console.rows('SHOW STATS_TOTALS');
    return sum(rows, 'xact_count') > sum(before, 'xact_count') + CLIENTS;
  });
  for (let look = 0; look < 5; look++) {
    const first = await console.rows('SHOW STATS_TOTALS');
    const parts = await console.rows('SHOW STATS_TOTALS BY PROCESS');
    const last = await console.rows('SHOW STATS_TOTALS');
    assert.equal(new Set(parts.map((row) => row['process'])).size, SIZE);
    compare(first, parts, ['database'], /^(?!database)/, (name, total, ofParts) => {
      assert.ok(total <= ofParts, `${name}: ${total}, then ${ofParts}`);
    });
    compare(last, parts, ['database'], /^(?!database)/, (name, total, ofParts) => {
      assert.ok(ofParts <= total, `${name}: ${ofParts}, then ${total}`);
    });
  }
});

test('the queries of pgbouncer_exporter are answered the way Go’s lib/pq asks them', async (t) => {
  const monitor = await WireClient.login(fleet, {
    user: 'app_plain',
    database: 'pgbouncer',
    parameters: { client_encoding: 'UTF8', datestyle: 'ISO, MDY', extra_float_digits: '2' },
  });
  t.after(() => monitor.destroy());
  // Its numbers of the server's version are read off this.
  assert.match(monitor.parameters.get('server_version') ?? '', /^1\.25\.\d+/);
  assert.equal((await monitor.query(';')).map(({ type }) => type).join(''), 'IZ', 'its ping');
  const stats = new ConsoleClient(monitor);
  const rows = new Map<string, Row[]>();
  for (const sql of [
    ...['SHOW VERSION;', 'SHOW LISTS;', 'SHOW CONFIG;', 'SHOW CLIENTS;', 'SHOW databases;'],
    ...['SHOW STATS', 'SHOW stats_totals;', 'SHOW pools;'],
  ]) {
    rows.set(sql, await stats.rows(sql));
  }
  assert.match(rows.get('SHOW VERSION;')![0]!['version']!, /^PgBouncer 1\.25\.\d+ /);
  const lists = new Map(rows.get('SHOW LISTS;')!.map(({ list, items }) => [list, Number(items)]));
  assert.ok(Number(lists.get('used_clients')) > CLIENTS);
  const config = new Map(rows.get('SHOW CONFIG;')!.map(({ key, value }) => [key, value]));
  assert.equal(Number(config.get('max_client_conn')), 100);
  assert.equal(Number(config.get('max_user_connections')), 0);
  const clients = rows.get('SHOW CLIENTS;')!;
  assert.equal(clients.filter(({ database }) => database === 'app').length, CLIENTS);
  for (const [sql, labels, gauges] of [
    ['SHOW databases;', 'name host port database', 'pool_size max_connections current_connections'],
    [
      'SHOW stats_totals;',
      'database',
      'query_count query_time bytes_received xact_count wait_time',
    ],
    ['SHOW pools;', 'database user', 'cl_active cl_waiting sv_active sv_idle sv_login maxwait'],
  ] as const) {
    const app = rows.get(sql)!.find((row) => (row['name'] ?? row['database']) === 'app');
    for (const label of labels.split(' ')) assert.notEqual(app?.[label] ?? '', '', label);
    for (const gauge of gauges.split(' ')) assert.match(app?.[gauge] ?? '', /^\d+$/, gauge);
  }
});

test('psql shows every SHOW', async (t) => {
  if (!requirePackage(t, 'postgresql-client-15', clientProgram('psql') !== null)) return;
  const target = ['-h', fleet.host, '-p', String(fleet.port), '-U', 'postgres', 'pgbouncer'];
  const commands = ALL.flatMap((topic) => ['-c', `SHOW ${topic};`]);
  const args = ['-XA', '-v', 'ON_ERROR_STOP=1', ...commands, ...target];
  const { status, stdout, stderr } = await runProgram(clientProgram('psql')!, args, {
    env: { PGPASSWORD: 'postgres' },
  });
  assert.deepEqual([status, stderr], [0, '']);
  assert.equal(stdout.match(/^\(\d+ rows?\)$/gm)?.length, ALL.length);
  const one = ['-XAtc', 'SHOW VERSION; SHOW STATE', ...target];
  const both = await runProgram(clientProgram('psql')!, one, { env: { PGPASSWORD: 'postgres' } });
  assert.match(both.stdout, /^PgBouncer 1\.25\.\d+ .*\nactive\|yes\npaused\|no\nsuspended\|no\n$/);
});

test('JDBC reads every SHOW', async (t) => {
  if (!requirePackage(t, 'libpostgresql-jdbc-java', existsSync(DRIVER))) return;
  const hasJavac = spawnSync('javac', ['-version'], { stdio: 'ignore' }).status === 0;
  if (!requirePackage(t, 'default-jdk-headless', hasJavac)) return;
  const classes = await makeFolder('jdbc-console');
  t.after(() => removeFolder(classes));
  const source = join(REPOSITORY, 'test/support/drivers/JdbcConsole.java');
  const compiled = await runProgram('javac', ['-encoding', 'UTF-8', '-d', classes, source]);
  assert.equal(compiled.status, 0, compiled.stderr);
  const url = `jdbc:postgresql://${fleet.host}:${fleet.port}/pgbouncer`;
  const options = ['-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-Xmx128m'];
  const program = ['-cp', `${DRIVER}:${classes}`, 'JdbcConsole', url, 'postgres', 'postgres'];
  await reportRules(t, 'java', [...options, ...program, ...ALL]);
});

test('psycopg 3 reads every SHOW', async (t) => {
  const python = '/usr/bin/python3';
  const hasPsycopg = spawnSync(python, ['-c', 'import psycopg'], { stdio: 'ignore' }).status === 0;
  if (!requirePackage(t, 'python3-psycopg', hasPsycopg)) return;
  const script = join(REPOSITORY, 'test/support/drivers/psycopg_console.py');
  const url = fleet.url('pgbouncer', 'postgres');
  await reportRules(t, python, ['-B', script, url, ...ALL]);
});

test('SHOW FLEET is about the processes that there are', async (t) => {
  const console = await ConsoleClient.open(t, fleet);
  const rows = await until('the other consoles have gone', async () => {
    const found = await console.rows('SHOW FLEET');
    return sum(found, 'clients') === CLIENTS + 1 && found;
  });
  assert.deepEqual(
    rows.map(({ process, state, generation }) => [process, state, generation]),
    ['0', '1', '2', '3'].map((id) => [id, 'active', '1']),
  );
  const pids = rows.map(({ pid }) => Number(pid));
  assert.deepEqual(pids.toSorted(), fleet.workers().toSorted());
  assert.ok(sum(rows, 'slots_held') <= SERVERS);
  for (const row of rows) {
    assert.ok(Number(row['memory']) > 10_000_000, 'a process of Node needs more than that');
    assert.ok(Number(row['cpu_user_us']) > 1000);
    assert.ok(Number(row['event_loop_delay_us']) >= 0);
    assert.ok(Number(row['servers']) <= Number(row['slots_held']));
  }
});

test('at rest every sum is that of BY PROCESS, and lists are as long as what they count', async (t) => {
  await load.rest();
  const console = await ConsoleClient.open(t, fleet);
  await until(
    'all servers are free',
    async () => (await console.poolSum('app', 'sv_active')) === 0,
  );
  // Some clients hold a server, some wait for one, the others are idle.
  const holders = load.clients.slice(4);
  const answers = holders.map((client) => client.query('BEGIN', 30_000));
  // A worker with fewer clients than slots leaves some free.
  const taken = Array.from({ length: SIZE }, (_, id) =>
    Math.min(holders.filter(({ key }) => key[3] === id).length, SERVERS / SIZE),
  ).reduce((total, count) => total + count);
  await until('servers are taken and the other clients wait', async () => {
    const waiting = await console.poolSum('app', 'cl_waiting');
    return (
      waiting === holders.length - taken && (await console.poolSum('app', 'sv_active')) === taken
    );
  });
  const requests = await askPeer(t);
  await until('all requests are on their way', async () => {
    return sum(await console.rows('SHOW PEER_POOLS'), 'cl_active_cancel_req') === requests;
  });
  for (const [topic, keys, isSum] of SUMS) {
    const whole = await console.rows(`SHOW ${topic}`);
    const parts = await console.rows(`SHOW ${topic} BY PROCESS`);
    assert.ok(whole.length > 0 && new Set(parts.map((row) => row['process'])).size > 1, topic);
    compare(whole, parts, keys, isSum, (name, total, ofParts) => {
      assert.equal(ofParts, total, `${topic} ${name}`);
    });
  }
  const lists = await console.rows('SHOW LISTS BY PROCESS');
  for (const { list, items } of await console.rows('SHOW LISTS')) {
    // The others are of what the workers share: each has its own view of it.
    if (!/^(?:free|used|login)_|^dns_queries$/.test(list!)) continue;
    assert.equal(
      sum(
        lists.filter((row) => row['list'] === list),
        'items',
      ),
      Number(items),
      list!,
    );
  }
  const processes = await console.rows('SHOW FLEET');
  assert.equal(processes.length, SIZE);
  for (const [column, list] of [
    ['clients', 'used_clients'],
    ['servers', 'used_servers'],
  ] as const) {
    const own = lists.filter((row) => row['list'] === list);
    assert.deepEqual(
      processes.map((row) => [row['process'], row[column]]),
      own.map(({ process, items }) => [process, items]),
      column,
    );
  }
  const totals = await console.rows('SHOW TOTALS');
  compare(
    totals.filter(({ name }) => name!.startsWith('total_')),
    (await console.rows('SHOW TOTALS BY PROCESS')).filter(({ name }) => name!.startsWith('total_')),
    ['name'],
    /^value$/,
    (name, total, ofParts) => assert.equal(ofParts, total, name),
  );
  const counts = new Map(
    (await console.rows('SHOW LISTS')).map(({ list, items }) => [list, Number(items)]),
  );
  for (const [topic, count] of [
    ['CLIENTS', counts.get('used_clients')],
    ['SERVERS', counts.get('used_servers')],
    // As in PgBouncer those of cancel requests are not among them.
    ['SOCKETS', Number(counts.get('used_clients')) + Number(counts.get('used_servers')) - requests],
    ['POOLS', counts.get('pools')],
    ['DATABASES', counts.get('databases')],
    ['USERS', counts.get('users')],
  ] as const) {
    assert.equal((await console.rows(`SHOW ${topic}`)).length, count, topic);
  }
  for (const topic of ['CLIENTS', 'SERVERS', 'SOCKETS', 'FDS']) {
    const key = topic === 'FDS' ? 'port' : 'ptr';
    const whole = (await console.rows(`SHOW ${topic}`)).map((row) => row[key]);
    const parts = (await console.rows(`SHOW ${topic} BY PROCESS`)).map((row) => row[key]);
    assert.deepEqual(parts.toSorted(), whole.toSorted(), topic);
  }
  await Promise.all(
    holders.map(async (client, at) => {
      await answers[at];
      await client.query('COMMIT', 30_000);
    }),
  );
});

/** Requests of a peer's clients that have come to the wrong pooler. Returns how many. */
async function askPeer(t: TestContext): Promise<number> {
  const requests = 8;
  for (let n = 0; n < requests; n++) {
    const requester = await WireClient.connect(fleet);
    t.after(() => requester.destroy());
    requester.send(cancelRequest(Buffer.from([1, PEER, 0, 0, 2, 3, n, 0xf3])));
  }
  return requests;
}

test('descriptors are those of the sockets, and the linked ones name each other', async (t) => {
  const console = await ConsoleClient.open(t, fleet);
  const [client] = load.clients;
  await client!.query('BEGIN');
  const rows = await console.rows('SHOW FDS BY PROCESS');
  const port = String(client!.socket.localPort);
  const own = rows.find((row) => row['task'] === 'client' && row['port'] === port);
  const server = rows.find(
    (row) =>
      row['task'] === 'server' &&
      row['process'] === own?.['process'] &&
      row['fd'] === own?.['link'],
  );
  assert.equal(server?.['link'], own?.['fd']);
  assert.equal(own?.['client_encoding'], 'UTF8');
  assert.equal(own?.['cancel'], client!.key.readBigUInt64BE(0).toString());
  assert.equal(
    rows.filter((row) => row['task'] === 'pooler' && row['addr'] !== 'unix').length,
    SIZE,
  );
  await client!.query('COMMIT');
});

test('what was set holds in every worker, in one that is killed and replaced too', async (t) => {
  const console = await ConsoleClient.open(t, fleet);
  assert.equal(await console.run('SET max_client_conn = 77'), 'SET max_client_conn=77');
  const values = async (): Promise<(string | null | undefined)[]> =>
    (await console.rows('SHOW CONFIG BY PROCESS'))
      .filter(({ key }) => key === 'max_client_conn')
      .map(({ value }) => value);
  assert.deepEqual(await values(), ['77', '77', '77', '77']);
  const processes = await console.rows('SHOW FLEET');
  const own = console.wire.key[3];
  const victim = processes.find((row) => Number(row['process']) !== own)!;
  fleet.allowLog(/worker \d died: signal SIGKILL/);
  process.kill(Number(victim['pid']), 'SIGKILL');
  await until('the worker is back', async () => {
    const rows = await console.rows('SHOW FLEET');
    const other = rows.find((row) => row['process'] === victim['process']);
    return other!['pid'] !== victim['pid'] && other!['state'] === 'active';
  });
  assert.deepEqual(await values(), ['77', '77', '77', '77']);
  assert.equal(await console.run('RELOAD'), 'RELOAD');
  assert.deepEqual(await values(), ['100', '100', '100', '100']);
});

test('a server that is told to end in the middle of a statement is listed until it has', async (t) => {
  const client = await WireClient.login(fleet);
  const busy = textRows(await client.query('SELECT pg_backend_pid()'))[0]![0]!;
  client.send(query('SELECT pg_sleep(600)'));
  const console = await ConsoleClient.open(t, fleet);
  const stateOf = async (): Promise<string | null | undefined> =>
    (await console.rows('SHOW SERVERS')).find((row) => row['remote_pid'] === busy)?.['state'];
  await until('the statement runs', async () => (await stateOf()) === 'active');
  client.destroy();
  await until('its server is closing', async () => (await stateOf()) === 'closing');
  const lists = await console.rows('SHOW LISTS');
  const used = lists.find(({ list }) => list === 'used_servers')!['items'];
  assert.equal((await console.rows('SHOW SERVERS')).length, Number(used));
  await postgres.query('SELECT pg_terminate_backend($1::int)', [busy]);
  await until('it is gone', async () => (await stateOf()) === undefined);
});

test('stop', async () => {
  await load.end();
  await fleet.stop();
  peer.close();
  await postgres.dispose();
});
