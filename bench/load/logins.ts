/**
 * `npm run bench:logins`: what new logins by TLS and SCRAM do to the clients that are there. pgbench
 * runs at a fixed rate through one fleet while nobody logs in, while logins go to a second fleet, and
 * while the same logins go to its own; in rounds, in turn. Prints pgbench's latency.
 *
 *   npm run bench:logins -- [--rounds 5] [--seconds 10] [--rate 500] [--logins 200] [--clients 8]
 *                           [--size 2] [--json FILE]
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { makeCerts } from '../../test/support/certs.ts';
import { startPgfleet, type TestPgfleet } from '../../test/support/pgfleet.ts';
import { startPostgres } from '../../test/support/postgres.ts';
import { tlsSettings } from '../../test/support/tls-client.ts';
import type { StormResult } from './login-storm.ts';
import { initialize, type Latencies, pgbenchAtRate } from './pgbench.ts';
import { median, spread, table } from './report.ts';
import { cpuTicks, TICK_US } from './round.ts';

/** pgbench's scale: 100,000 accounts, all of it in memory. */
const SCALE = 1;

/** Where the logins go. */
const KINDS = ['nowhere', 'to a second fleet', 'to the same fleet'] as const;
type Kind = (typeof KINDS)[number];

interface Round extends Latencies {
  readonly storm: StormResult | null;
  /** CPU time of the fleet that the logins go to, for one login, in microseconds. */
  readonly loginCpuUs: number | null;
}

const { values: flags } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '10' },
    rate: { type: 'string', default: '500' },
    logins: { type: 'string', default: '200' },
    clients: { type: 'string', default: '8' },
    size: { type: 'string', default: '2' },
    json: { type: 'string' },
  },
});
const rounds = Number(flags.rounds);
const seconds = Number(flags.seconds);
const rate = Number(flags.rate);
const logins = Number(flags.logins);
const clients = Number(flags.clients);
const size = Number(flags.size);

const cleanUps: (() => Promise<void>)[] = [];
try {
  await main();
} finally {
  for (const cleanUp of cleanUps) await cleanUp();
}

async function main(): Promise<void> {
  const postgres = await startPostgres({ version: 18 });
  cleanUps.unshift(() => postgres.dispose());
  await initialize(postgres.port, SCALE);
  // As an operator would: the secret of pg_authid, so that nothing is derived at a login.
  const [row] = await postgres.query("SELECT rolpassword FROM pg_authid WHERE rolname = 'app'");
  const certs = await makeCerts();
  const start = async (): Promise<TestPgfleet> => {
    const fleet = await startPgfleet({
      postgres,
      size,
      authFile: { app: String(row!['rolpassword']) },
      settings: {
        ...tlsSettings(certs, 'allow'),
        auth_type: 'scram-sha-256',
        log_connections: 0,
        log_disconnections: 0,
        max_client_conn: 2000,
      },
    });
    cleanUps.unshift(() => fleet.stop());
    return fleet;
  };
  const fleet = await start();
  const second = await start();
  const targets = { nowhere: null, 'to a second fleet': second, 'to the same fleet': fleet };

  const found = new Map<Kind, Round[]>(KINDS.map((kind) => [kind, []]));
  for (const kind of KINDS) await runRound(fleet, targets[kind], 2);
  for (let round = 0; round < rounds; round++) {
    for (const kind of round % 2 === 0 ? KINDS : KINDS.toReversed()) {
      const result = await runRound(fleet, targets[kind], seconds);
      found.get(kind)!.push(result);
      const { storm } = result;
      const done = storm === null ? '' : `, ${storm.rate.toFixed(0)} logins/s`;
      console.log(`round ${round + 1}, logins ${kind}: p99 ${result.p99Ms.toFixed(2)} ms${done}`);
    }
  }
  report(found);
}

/** pgbench through `fleet`, logins at `target`, both for `lasts` seconds. */
async function runRound(
  fleet: TestPgfleet,
  target: TestPgfleet | null,
  lasts: number,
): Promise<Round> {
  const load = { port: fleet.port, protocol: 'simple', script: 'select', clients } as const;
  const bench = pgbenchAtRate({ ...load, seconds: lasts }, rate);
  if (target === null) return { ...(await bench), storm: null, loginCpuUs: null };
  const pids = target.processes();
  const before = cpuTicks(pids);
  const [latencies, storm] = await Promise.all([bench, runStorm(target.port, lasts)]);
  const after = cpuTicks(pids);
  if (storm.failed > 0) throw new Error(`${storm.failed} logins failed`);
  const ticks = after.user + after.system - before.user - before.system;
  // The same fleet serves pgbench as well, whose part is not told apart.
  const loginCpuUs = target === fleet ? null : (ticks * TICK_US) / (storm.rate * lasts);
  return { ...latencies, storm, loginCpuUs };
}

async function runStorm(port: number, lasts: number): Promise<StormResult> {
  const program = fileURLToPath(new URL('login-storm.ts', import.meta.url));
  const args = [program, ...[port, logins, lasts].map(String)];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const [printed, [status]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
  if (status !== 0) throw new Error(`the logins ended with status ${status}`);
  return JSON.parse(printed) as StormResult;
}

function report(found: ReadonlyMap<Kind, readonly Round[]>): void {
  const p99 = (kind: Kind): number => median(found.get(kind)!.map(({ p99Ms }) => p99Ms));
  const lines = [...found].map(([kind, all]) => [
    kind,
    spread(
      all.map(({ p50Ms }) => p50Ms),
      2,
    ),
    spread(
      all.map(({ p99Ms }) => p99Ms),
      2,
    ),
    `${(p99(kind) / p99('nowhere')).toFixed(2)}×`,
    spreadOf(
      all.map(({ storm }) => storm?.rate ?? null),
      0,
    ),
    spreadOf(
      all.map(({ storm }) => storm?.p99Ms ?? null),
      1,
    ),
    spreadOf(
      all.map(({ loginCpuUs }) => loginCpuUs),
      0,
    ),
  ]);
  const head = ['logins', 'p50 ms', 'p99 ms', 'raise', 'logins/s', 'login p99 ms', 'CPU µs/login'];
  const about = { node: process.version, rounds, seconds, rate, logins, clients, workers: size };
  const facts = Object.entries(about).map(([name, value]) => `${name} ${value}`);
  const ratio = p99('to the same fleet') / p99('to a second fleet');
  console.log(`\n${facts.join(', ')}\n\n${table(head, lines)}`);
  console.log(`\np99 with logins to the same fleet: ${ratio.toFixed(2)}× of that beside a second`);
  if (flags.json !== undefined) {
    const cases = Object.fromEntries(found);
    writeFileSync(flags.json, `${JSON.stringify({ about, cases }, null, 2)}\n`);
  }
}

function spreadOf(values: readonly (number | null)[], digits: number): string {
  const there = values.filter((value) => value !== null);
  return there.length === 0 ? '–' : spread(there, digits);
}
