/**
 * `npm run bench:logins`: what new logins by TLS and SCRAM do to the clients that are there. pgbench
 * runs at a fixed rate through one fleet while nobody logs in, while logins go to a second fleet, and
 * while the same logins go to its own; in rounds, in turn. Prints pgbench's latency.
 *
 *   npm run bench:logins -- [--rounds 5] [--seconds 10] [--rate 1000] [--logins 200] [--clients 8]
 *                           [--size 2] [--json FILE]
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { cpus, release } from 'node:os';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { makeCerts } from '../../test/support/certs.ts';
import { startPgfleet, type TestPgfleet } from '../../test/support/pgfleet.ts';
import { startPostgres } from '../../test/support/postgres.ts';
import { tlsSettings } from '../../test/support/tls-client.ts';
import { count } from './flags.ts';
import type { StormResult } from './login-storm.ts';
import { initialize, type Latencies, pgbenchAtRate } from './pgbench.ts';
import { median, spread, table } from './report.ts';
import { cpuTicks, TICK_US } from './round.ts';
import { Running } from './running.ts';

/** pgbench's scale: 100,000 accounts, all of it in memory. */
const SCALE = 1;

/** Uncounted rounds before the others: compiled code, open servers. */
const WARM_UP_SECONDS = 3;

/** Logins go on for so long before pgbench begins and after it ends: their program starts cold. */
const MARGIN_SECONDS = 1;

/** Where the logins go. */
const KINDS = ['nowhere', 'to a second fleet', 'to the same fleet'] as const;
type Kind = (typeof KINDS)[number];

/** How many times what the logins do beside a second fleet they may do in the same one. */
const MOST_RATIO = 2;

const HEAD = [
  'logins',
  'p50 ms',
  'p99 ms',
  'p99.9 ms',
  'raise of p99',
  'logins/s',
  'failed',
  'login p50 ms',
  'login p99 ms',
  'CPU µs/login',
] as const;

interface Round extends Latencies {
  readonly storm: StormResult | null;
  /** CPU time of both fleets, in microseconds. */
  readonly cpuUs: number;
}

const { values: flags } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '10' },
    rate: { type: 'string', default: '1000' },
    logins: { type: 'string', default: '200' },
    clients: { type: 'string', default: '8' },
    size: { type: 'string', default: '2' },
    json: { type: 'string' },
  },
});
const [rounds, seconds, rate, logins, clients, size] = (
  ['rounds', 'seconds', 'rate', 'logins', 'clients', 'size'] as const
).map((name) => count(name, flags[name])) as [number, number, number, number, number, number];

const running = new Running();
await running.during(main);

async function main(): Promise<void> {
  const postgres = await startPostgres({ version: 18 });
  running.add(() => postgres.dispose());
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
    running.add(() => fleet.stop());
    return fleet;
  };
  const fleet = await start();
  const second = await start();
  const targets = { nowhere: null, 'to a second fleet': second, 'to the same fleet': fleet };

  const pids = [...fleet.processes(), ...second.processes()];
  const found = new Map<Kind, Round[]>(KINDS.map((kind) => [kind, []]));
  for (const kind of KINDS) await runRound(fleet, targets[kind], pids, WARM_UP_SECONDS);
  for (let round = 0; round < rounds; round++) {
    for (const kind of round % 2 === 0 ? KINDS : KINDS.toReversed()) {
      const result = await runRound(fleet, targets[kind], pids, seconds);
      found.get(kind)!.push(result);
      const { p50Ms, p99Ms, p999Ms, storm } = result;
      const times = [p50Ms, p99Ms, p999Ms].map((ms) => ms.toFixed(2)).join(' / ');
      const done = storm === null ? '' : `, ${storm.rate.toFixed(0)} logins/s`;
      const failure = storm?.failure ? `, ${storm.failed} failed: ${storm.failure}` : '';
      console.log(
        `round ${round + 1}, logins ${kind}: p50 / p99 / p99.9 ${times} ms${done}${failure}`,
      );
    }
  }
  report(found);
}

/** pgbench through `fleet` for `lasts` seconds, and logins at `target` from before until after it. */
async function runRound(
  fleet: TestPgfleet,
  target: TestPgfleet | null,
  pids: readonly number[],
  lasts: number,
): Promise<Round> {
  const { port } = fleet;
  const load = { port, protocol: 'simple', script: 'select', clients, isTls: true } as const;
  const before = cpuTicks(pids);
  const storming = target === null ? null : runStorm(target.port, lasts + 2 * MARGIN_SECONDS);
  if (storming !== null) await Promise.race([storming, sleep(MARGIN_SECONDS * 1000)]);
  const bench = pgbenchAtRate({ ...load, seconds: lasts }, rate);
  const [latencies, storm] = await Promise.all([bench, storming]);
  const after = cpuTicks(pids);
  const ticks = after.user + after.system - before.user - before.system;
  return { ...latencies, storm, cpuUs: ticks * TICK_US };
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
  const raise = (kind: Kind): number => p99(kind) / p99('nowhere');
  const idleUs = median(found.get('nowhere')!.map(({ cpuUs }) => cpuUs));
  const lines = [...found].map(([kind, all]) => {
    const latencies = (['p50Ms', 'p99Ms', 'p999Ms'] as const).map((name) =>
      spread(
        all.map((round) => round[name]),
        2,
      ),
    );
    const storms = all.flatMap(({ storm, cpuUs }) =>
      storm === null ? [] : { ...storm, cpuUs: (cpuUs - idleUs) / storm.logins },
    );
    return [kind, ...latencies, `${raise(kind).toFixed(2)}×`, ...loginColumns(storms)];
  });
  const about = {
    processors: `${cpus().length} × ${cpus()[0]?.model.trim() ?? 'unknown'}`,
    kernel: release(),
    node: process.version,
    rounds,
    seconds,
    rate,
    logins,
    clients,
    workers: size,
  };
  const facts = Object.entries(about).map(([name, value]) => `${name} ${value}`);
  const ratio = raise('to the same fleet') / raise('to a second fleet');
  console.log(`\n${facts.join(', ')}\n\n${table(HEAD, lines)}`);
  console.log(
    `\np99 with logins to the same fleet: ${ratio.toFixed(2)}× of that beside a second,` +
      ` ${ratio < MOST_RATIO ? 'below' : 'not below'} ${MOST_RATIO}×`,
  );
  if (flags.json !== undefined) {
    const cases = Object.fromEntries(found);
    writeFileSync(flags.json, `${JSON.stringify({ about, cases }, null, 2)}\n`);
  }
}

/** @param storms with the CPU time that both fleets spent beyond a round without logins, for one */
function loginColumns(storms: readonly (StormResult & { readonly cpuUs: number })[]): string[] {
  if (storms.length === 0) return ['–', '–', '–', '–', '–'];
  const column = (name: 'rate' | 'p50Ms' | 'p99Ms' | 'cpuUs', digits: number): string =>
    spread(
      storms.map((storm) => storm[name]),
      digits,
    );
  const failed = storms.reduce((sum, storm) => sum + storm.failed, 0);
  return [
    column('rate', 0),
    String(failed),
    column('p50Ms', 1),
    column('p99Ms', 1),
    column('cpuUs', 0),
  ];
}
