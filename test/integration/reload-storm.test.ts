/** A thousand reloads of a fleet that is at work, every other one of a file that cannot be used. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { rename, writeFile } from 'node:fs/promises';
import { type TestContext, test } from 'node:test';
import { ConsoleClient } from '../support/console.ts';
import { Load } from '../support/load.ts';
import { reportFields } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';

const SIZE = 4;
const RELOADS = 1000;
const CLIENTS = 12;
/** In the second half, by which a leak of 64 kB a reload is seen. */
const MOST_GROWTH_MB = 32;

/** Adds a line behind the header of a section. */
const adding =
  (section: string, added: string) =>
  (text: string): string =>
    text.replace(`[${section}]\n`, `[${section}]\n${added}\n`);

/** Changes of the first file that are no reason to touch a connection. */
const VALID = [
  adding('pgbouncer', 'query_wait_timeout = 77'),
  adding('databases', 'new = dbname=app'),
  adding('users', 'app = pool_mode=transaction'),
  adding('peers', '7 = host=127.0.0.1'),
  adding('pgbouncer', 'max_client_conn = 150'),
  adding('pgbouncer', ';; a comment'),
];

/** Changes that make it unusable, and what is said of the line that was added. */
const INVALID: readonly (readonly [section: string, added: string, says: RegExp])[] = [
  ['pgbouncer', 'no_such_setting = 1', /no_such_setting: unknown parameter: pgbouncer\/no_such_/],
  ['pgbouncer', 'query_wait_timeout = soon', /query_wait_timeout: invalid value "soon"/],
  ['pgbouncer', 'pool_mode = fast', /pool_mode: invalid value "fast"/],
  ['databases', 'broken = host=x port=0', /invalid port: 0/],
  ['databases', 'broken = hots=x', /unrecognized connection parameter: hots/],
  ['users', 'app = pool_mode', /syntax error in user settings/],
  ['peers', '0 = host=x', /ids of peers must be a number/],
  ['peers', '[no_such_section]', /invalid section "no_such_section"/],
  ['fleet', 'no_such_setting = 1', /no_such_setting: unknown parameter: fleet\/no_such_/],
  ['pgbouncer', 'client_tls_sslmode = require', /client_tls_/],
  ['pgbouncer', 'nonsense', /syntax error/],
  ['pgbouncer', '%include /no/such/file', /no such file or directory|could not load/i],
];

interface Place {
  readonly fleet: TestPgfleet;
  readonly console: ConsoleClient;
  /** The file as it was at the start. */
  readonly original: string;
}

async function put({ fleet }: Place, text: string): Promise<void> {
  await writeFile(`${fleet.configFile}.new`, text);
  await rename(`${fleet.configFile}.new`, fleet.configFile);
}

async function reloadValid(place: Place, change: (text: string) => string): Promise<void> {
  await put(place, change(place.original));
  assert.equal(await place.console.run('RELOAD'), 'RELOAD');
}

/** The answer must name the file and the line that was added. */
async function reloadInvalid(place: Place, at: number): Promise<void> {
  const [section, added, says] = INVALID[at % INVALID.length]!;
  const text = adding(section, added)(place.original);
  await put(place, text);
  const answer = await place.console.wire.query('RELOAD', 30_000);
  const { S, C, M, D } = reportFields(answer.find(({ type }) => type === 'E')!.body);
  assert.equal(`${S} ${C} ${M}`, 'ERROR F0000 RELOAD failed, see logs for additional details');
  const line = text.split('\n').indexOf(added) + 1;
  assert.ok(D?.startsWith(`${place.fleet.configFile}:${line}: `), `${added}: ${D}`);
  assert.match(String(D), says);
}

/** Everything that a reload of an unusable file must not touch, as every worker has it. */
async function inForce({ console }: Place): Promise<unknown> {
  return {
    settings: await console.rows('SHOW CONFIG BY PROCESS'),
    databases: (await console.rows('SHOW DATABASES BY PROCESS')).map((row) => row['name']),
    peers: await console.rows('SHOW PEERS'),
    users: (await console.rows('SHOW USERS')).map((row) => [row['name'], row['pool_mode']]),
  };
}

/** The servers that have logged in: their backends and when they were opened. */
async function servers({ console }: Place): Promise<string[]> {
  const rows = (await console.rows('SHOW SERVERS')).filter(({ state }) => state !== 'new');
  return rows.map((row) => `${row['remote_pid']} ${row['connect_time']} ${row['close_needed']}`);
}

const processes = ({ fleet }: Place): number[] => [fleet.pid, ...fleet.workers()];

const descriptors = (place: Place): number[] =>
  processes(place).map((pid) => readdirSync(`/proc/${pid}/fd`).length);

/** Memory in use, MB a process. */
const memory = (place: Place): number[] =>
  processes(place).map((pid) => {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024;
  });

async function start(t: TestContext) {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({
    postgres,
    size: SIZE,
    databases: { app: 'pool_size=40', other: 'dbname=app' },
    users: { app_plain: 'pool_size=3' },
    peers: { 3: 'host=127.0.0.1' },
    settings: { query_wait_timeout: 66 },
  });
  t.after(() => fleet.stop());
  const console = await ConsoleClient.open(t, fleet);
  const original = readFileSync(fleet.configFile, 'utf8');
  const load = await Load.begin(
    fleet,
    postgres,
    Array.from({ length: CLIENTS }, () => ({})),
  );
  await load.goesOn();
  return { place: { fleet, console, original }, load };
}

test('a thousand reloads under load change what their files say and nothing else', async (t) => {
  const { place, load } = await start(t);
  place.fleet.allowLog(
    / ERROR .*(?:pgbouncer\.ini:\d+: |RELOAD failed)/,
    /pooler error: RELOAD failed/,
  );
  const workers = place.fleet.workers();
  const atFirst = await inForce(place);
  const serversAtFirst = await servers(place);
  let warm: { readonly memory: number[]; readonly descriptors: number[] } | null = null;
  for (let n = 0; n < RELOADS; n += 2) {
    await reloadValid(place, VALID[(n / 2) % VALID.length]!);
    const isLook = n % 100 === 0;
    const before = isLook ? await inForce(place) : null;
    await reloadInvalid(place, n / 2);
    if (isLook) assert.deepEqual(await inForce(place), before, `reload ${n}`);
    if (n === RELOADS / 2) warm = { memory: memory(place), descriptors: descriptors(place) };
  }
  await reloadValid(place, (text) => text);
  assert.deepEqual(await inForce(place), atFirst);
  const now = new Set(await servers(place));
  assert.deepEqual(
    serversAtFirst.filter((server) => !now.has(server)),
    [],
    'no server was closed',
  );
  assert.deepEqual(place.fleet.workers(), workers, 'no worker was replaced');
  assert.deepEqual(descriptors(place), warm!.descriptors);
  for (const [i, now] of memory(place).entries()) {
    const text = `process ${i} has grown from ${warm!.memory[i]} MB to ${now} MB`;
    assert.ok(now - warm!.memory[i]! < MOST_GROWTH_MB, text);
  }
  const log = place.fleet.log();
  assert.equal(log.match(/ LOG RELOAD command issued\n/g)?.length, RELOADS + 1);
  assert.equal(log.match(/ WARNING config file loading failed\n/g)?.length, RELOADS / 2);
  assert.doesNotMatch(log, /closing because: (?!client close request)/);
  await load.goesOn();
  await load.stop();
});
