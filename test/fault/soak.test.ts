/**
 * Random traffic of drivers and of clients that vanish, on a fleet whose servers are terminated and
 * whose configuration is reloaded meanwhile: everybody is answered or told of the outage, every row is
 * kept or undone as its client was told, and afterwards the fleet is as it was before. A few seconds
 * of it; ten minutes in the long run, or as many seconds as PGFLEET_SOAK_S says.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import pg from 'pg';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { Random } from '../support/random.ts';
import { causeOutages } from '../support/soak/outages.ts';
import { PG_STEPS, pgVisit } from '../support/soak/pg-visit.ts';
import {
  isLateWrite,
  POSTGRESJS_STEPS,
  postgresjsVisit,
} from '../support/soak/postgresjs-visit.ts';
import { SoakReport } from '../support/soak/report.ts';
import type { Visit } from '../support/soak/visit.ts';
import { WIRE_STEPS, wireVisit } from '../support/soak/wire-visit.ts';
import { until } from '../support/until.ts';
import { descriptorsOf, isLong, isServed, memoryOf } from './support.ts';

const SECONDS = Number(process.env['PGFLEET_SOAK_S'] ?? (isLong ? 600 : 8));
const GRACE_MS = 60_000;
const STEPS = [...PG_STEPS, ...POSTGRESJS_STEPS, ...WIRE_STEPS];
const ACTORS = 24;
const SIZE = 2;
const MB = 1 << 20;
const MIX = [pgVisit, pgVisit, postgresjsVisit, wireVisit, wireVisit];
/** One visit in four goes to the session pool. */
const DATABASES = ['app', 'app', 'app', 'app_session'];

test('random traffic, outages and reloads leave nothing behind', async (t) => {
  const seed = Number(process.env['PGFLEET_SEED'] ?? Date.now() % 1_000_000);
  t.diagnostic(`seed ${seed}, ${SECONDS} s`);
  const postgres = await startPostgres({ settings: { max_connections: 100 } });
  t.after(() => postgres.dispose());
  await inApp(postgres, 'CREATE TABLE ledger (id bigint PRIMARY KEY)');
  const fleet = await startPgfleet({
    postgres,
    size: SIZE,
    databases: { app: '', app_session: 'dbname=app pool_mode=session' },
    settings: { query_wait_timeout: 20, server_login_retry: 1, default_pool_size: 6 },
  });
  fleet.allowLog(/server|login|terminat|pooler error|invalid|nonsense|closing because|config/i);
  t.after(() => fleet.stop());
  const workers = fleet.workers();
  const atRest = await leftovers(fleet, postgres);

  const report = new SoakReport();
  process.setUncaughtExceptionCaptureCallback((error) => {
    if (!isLateWrite(error)) throw error;
    report.count('postgres.js writes too late');
  });
  t.after(() => process.setUncaughtExceptionCaptureCallback(null));
  const memory: number[][] = [];
  let end = performance.now() + SECONDS * 1000;
  // On a machine that is busy with other things it takes longer to have done everything once.
  const isStopped = (): boolean =>
    performance.now() >= end && (report.hasAll(STEPS) || performance.now() >= end + GRACE_MS);
  const sampler = setInterval(() => memory.push(workers.map(memoryOf)), (SECONDS * 1000) / 100);
  const outages = causeOutages(postgres, fleet, new Random(seed), isStopped).finally(() => {
    end = Number.NEGATIVE_INFINITY;
  });
  const actors = Array.from({ length: ACTORS }, (_, n) => actor(n, seed, fleet, report, isStopped));
  const visits = await Promise.all(actors).finally(() => clearInterval(sampler));
  const { terminated, reloads, refusedReloads } = await outages;
  const total = visits.reduce((sum, count) => sum + count, 0);
  t.diagnostic(`${total} visits, ${terminated} servers terminated, ${reloads} reloads`);
  t.diagnostic(`steps: ${sorted(report.done)}`);
  t.diagnostic(`outages seen: ${sorted(report.outages)}`);

  report.check(STEPS);
  assert.ok(terminated > 0 && reloads > 0 && refusedReloads > 0, 'the outages have happened');
  await checkLedger(postgres, report);
  assert.deepEqual(fleet.workers(), workers, 'no worker has ended');
  await until('nothing is left', async () => {
    assert.deepEqual(await leftovers(fleet, postgres), atRest);
    return true;
  });
  await isServed(fleet);
  const growth = workers.map((_, n) => grown(memory.map((sample) => sample[n]!)));
  t.diagnostic(`memory of the workers: ${growth.map(({ text }) => text).join(', ')}`);
  if (SECONDS >= 300) {
    for (const { text, isFlat } of growth) assert.ok(isFlat, `memory has grown: ${text}`);
  }
});

/** One visit after another until the end; returns how many. */
async function actor(
  number: number,
  seed: number,
  fleet: TestPgfleet,
  report: SoakReport,
  isStopped: () => boolean,
): Promise<number> {
  const random = new Random(seed * 1000 + number);
  let visits = 0;
  let rows = 0;
  while (!isStopped()) {
    const stay = random.pick(MIX);
    const visit: Visit = {
      host: fleet.host,
      port: fleet.port,
      database: random.pick(DATABASES),
      token: `${stay.name}_${number}_${visits++}`,
      random,
      report,
      newRow: () => ++rows * 1000 + number,
    };
    await stay(visit);
  }
  return visits;
}

/** Every row whose commit was confirmed is there, and none that was undone or cut off. */
async function checkLedger(postgres: TestPostgres, report: SoakReport): Promise<void> {
  const rows = await inApp<{ id: string }>(postgres, 'SELECT id FROM ledger');
  const found = new Set(rows.map(({ id }) => Number(id)));
  const missing = [...report.kept].filter((id) => !found.has(id));
  const unwanted = [0, ...report.undone].filter((id) => found.has(id));
  assert.deepEqual({ missing, unwanted }, { missing: [], unwanted: [] });
  assert.ok(report.kept.size > 0 && report.undone.size > 0);
}

/** Rows of `sql`, asked of the server itself. */
async function inApp<Row extends pg.QueryResultRow>(
  postgres: TestPostgres,
  sql: string,
): Promise<Row[]> {
  const client = new pg.Client({ connectionString: postgres.url('app', 'app') });
  await client.connect();
  const { rows } = await client.query<Row>(sql).finally(() => client.end());
  return rows;
}

/**
 * What no client holds should be: nobody connected or waiting, all servers idle both here and as
 * PostgreSQL sees them, and no descriptor of a worker's beyond those of its servers.
 */
async function leftovers(fleet: TestPgfleet, postgres: TestPostgres): Promise<object> {
  const clients = await fleet.console('SHOW CLIENTS');
  const servers = await fleet.console('SHOW SERVERS');
  const pools = await fleet.console('SHOW POOLS');
  const backends = await postgres.query<{ state: string }>(
    "SELECT state FROM pg_stat_activity WHERE usename = 'app'",
  );
  const descriptors = fleet.workers().reduce((sum, pid) => sum + descriptorsOf(pid), 0);
  return {
    clients: clients
      .filter(({ database }) => database !== 'pgbouncer')
      .map(({ application_name, state }) => `${application_name} ${state}`),
    waiting: pools.reduce((sum, pool) => sum + Number(pool['cl_waiting']), 0),
    busyServers: servers.filter(({ state }) => state !== 'idle' && state !== 'used').length,
    busyBackends: backends.filter(({ state }) => state !== 'idle').length,
    unknownBackends: backends.length - servers.length,
    descriptors: descriptors - servers.length,
  };
}

/** Medians of an early and of the last fifth: growth in megabytes, and whether that is noise. */
function grown(samples: readonly number[]): { text: string; isFlat: boolean } {
  const fifth = Math.floor(samples.length / 5);
  const median = (part: readonly number[]): number =>
    [...part].sort((left, right) => left - right)[Math.floor(part.length / 2)]! / MB;
  const early = median(samples.slice(fifth, 2 * fifth));
  const late = median(samples.slice(-fifth));
  const text = `${early.toFixed(0)} MB, then ${late.toFixed(0)} MB`;
  return { text, isFlat: late <= early * 1.15 + 8 };
}

function sorted(counts: ReadonlyMap<string, number>): string {
  const byCount = [...counts].sort((left, right) => right[1] - left[1]);
  return byCount.map(([name, count]) => `${count} ${name}`).join('; ');
}
