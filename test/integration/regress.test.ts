/**
 * PostgreSQL's own regression suite, run twice: on the server itself and through a session pool in
 * front of a copy of that server. Every test must end the same, with the same output. The suite is
 * fetched by a script and belongs to the long run only.
 */
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { cp, mkdir, readdir, readFile, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import { asServer } from '../support/account.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { REPOSITORY } from '../support/repository.ts';
import { requirePackage } from '../support/skip.ts';

const run = promisify(execFile);

const BIN = '/usr/lib/postgresql/15/bin';
const PG_REGRESS = '/usr/lib/postgresql/15/lib/pgxs/src/test/regress/pg_regress';
const LIBRARIES = '/usr/lib/postgresql/15/lib';
/** Modules of contrib that the suite loads from its own folder. */
const CONTRIBUTED = ['autoinc.so', 'refint.so'];
const MINUTES = 60_000;
/** What pg_regress sets when it makes the database itself. */
const DATABASE_SETTINGS = ['messages', 'monetary', 'numeric', 'time'].map(
  (category) => `ALTER DATABASE regression SET lc_${category} TO 'C'`,
);

const RESET_GOES_TO_SERVER =
  "RESET goes back to what the server connection began with, which a pooler shares between clients: a client's startup values are applied by SET";
const BACKEND_IS_NOT_NEW = 'a new client gets a backend that has served another one';

/** Tests that print something else through a pool, and why. Every pooler that reuses servers has these. */
const DIFFERENT: Readonly<Record<string, string>> = {
  date: RESET_GOES_TO_SERVER,
  timestamp: RESET_GOES_TO_SERVER,
  timestamptz: RESET_GOES_TO_SERVER,
  horology: RESET_GOES_TO_SERVER,
  guc: `${RESET_GOES_TO_SERVER}; ${BACKEND_IS_NOT_NEW}: plpgsql has reserved its prefix already`,
  temp: `${BACKEND_IS_NOT_NEW}: its temporary schema exists already, so PREPARE TRANSACTION does not meet its creation`,
  stats: `${BACKEND_IS_NOT_NEW}: reconnecting adds nothing to pg_stat_database.sessions`,
};

interface Outcome {
  /** `ok` or `FAILED` by the name of the test. */
  readonly results: Readonly<Record<string, string>>;
  /** What each test has printed. */
  readonly output: ReadonlyMap<string, string>;
}

if (process.env['PGFLEET_LONG'] === '1') {
  test("PostgreSQL's regression suite ends the same through a session pool", async (t) => {
    if (!requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const suite = await fetchSuite(t);
    const direct = await runSuite(t, suite, false);
    const pooled = await runSuite(t, suite, true);
    assert.ok(Object.keys(direct.results).length > 180, 'the suite has run');
    const failed = Object.keys(direct.results).filter((name) => direct.results[name] !== 'ok');
    const differing = [...direct.output.keys()].filter(
      (name) => direct.output.get(name) !== pooled.output.get(name),
    );
    t.diagnostic(`${Object.keys(direct.results).length} tests`);
    t.diagnostic(`not as expected on the server itself: ${failed.join(', ')}`);
    for (const name of differing) t.diagnostic(`${name} differs: ${DIFFERENT[name]}`);
    assert.deepEqual(Object.keys(pooled.results), Object.keys(direct.results));
    assert.deepEqual(
      differing.filter((name) => !(name in DIFFERENT)),
      [],
    );
  });
}

/** The suite in a folder of this test. */
async function fetchSuite(t: TestContext): Promise<string> {
  const folder = await makeFolder('suite');
  t.after(() => removeFolder(folder));
  await run(join(REPOSITORY, 'test/support/regress/prepare.sh'), [folder], {
    timeout: 10 * MINUTES,
  });
  return folder;
}

async function runSuite(t: TestContext, suite: string, isPooled: boolean): Promise<Outcome> {
  const folder = await makeFolder('regress');
  await cp(suite, folder, { recursive: true });
  await mkdir(join(folder, 'testtablespace'));
  for (const library of CONTRIBUTED) await symlink(join(LIBRARIES, library), join(folder, library));
  await run('chown', ['-R', '--reference', folder, folder]);
  const postgres = await startPostgres({
    version: 15,
    settings: { max_prepared_transactions: 2, max_connections: 100, lc_messages: 'C' },
  });
  t.after(async () => {
    await postgres.dispose();
    await removeFolder(folder);
  });
  await postgres.query('CREATE DATABASE regression TEMPLATE template0');
  for (const sql of DATABASE_SETTINGS) await postgres.query(sql);
  let port = postgres.port;
  if (isPooled) {
    const fleet = await startPgfleet({
      postgres,
      size: 1,
      settings: { pool_mode: 'session', default_pool_size: 60, max_client_conn: 100 },
    });
    fleet.allowLog(/./);
    t.after(() => fleet.stop());
    port = fleet.port;
  }
  const lines = await pgRegress(folder, port);
  const results: Record<string, string> = {};
  for (const line of lines.split('\n')) {
    const found = /^(?:test\s+|\s+)(\S+)\s+\.\.\.\s+(ok|FAILED)/.exec(line);
    if (found !== null) results[found[1]!] = found[2]!;
  }
  const output = new Map<string, string>();
  for (const file of await readdir(join(folder, 'results'))) {
    if (file.endsWith('.out')) {
      const text = await readFile(join(folder, 'results', file), 'utf8');
      output.set(file.slice(0, -4), text.replaceAll(folder, '<folder>'));
    }
  }
  return { results, output };
}

/** Runs the whole schedule and returns what pg_regress prints. */
async function pgRegress(folder: string, port: number): Promise<string> {
  const args = [
    '--use-existing',
    `--inputdir=${folder}`,
    `--outputdir=${folder}`,
    `--bindir=${BIN}`,
    `--dlpath=${folder}`,
    '--host=127.0.0.1',
    `--port=${port}`,
    '--user=postgres',
    '--dbname=regression',
    '--max-concurrent-tests=20',
    `--schedule=${join(folder, 'parallel_schedule')}`,
  ];
  const child = spawn(PG_REGRESS, args, {
    ...asServer,
    cwd: folder,
    env: { ...process.env, PGPASSWORD: 'postgres', LC_ALL: 'C' },
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: 15 * MINUTES,
  });
  let text = '';
  child.stdout.on('data', (chunk: Buffer) => {
    text += chunk.toString();
  });
  await new Promise((resolve) => child.once('close', resolve));
  return text;
}
