import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { clientProgram } from '../../test/support/postgres-files.ts';
import { percentile } from './report.ts';

const run = promisify(execFile);

export const PROTOCOLS = ['simple', 'extended', 'prepared'] as const;
export type Protocol = (typeof PROTOCOLS)[number];

/** One pgbench run: what it does and where. */
export interface Load {
  readonly port: number;
  readonly protocol: Protocol;
  /** `select` is pgbench's -S, `tpcb` its default script. */
  readonly script: 'select' | 'tpcb';
  readonly clients: number;
  readonly seconds: number;
  /** Clear text is not enough; default: whatever is offered. */
  readonly isTls?: boolean;
}

/** What pgbench reports of a run. */
export interface LoadResult {
  readonly transactions: number;
  readonly failed: number;
  /** Transactions a second, the time to connect left out. */
  readonly tps: number;
  readonly latencyMs: number;
}

/** Threads of pgbench itself. */
const THREADS = 2;

/** Time over the run's own that pgbench is given to connect and end. */
const GRACE_MS = 30_000;

/** Fills the database `app` of the server on `port` with pgbench's tables. */
export async function initialize(port: number, scale: number): Promise<void> {
  await run(program(), ['-i', '-q', '-s', String(scale), ...target(port)], { env: environment() });
}

/**
 * Runs pgbench once; throws when it fails or does not end in time.
 * @param more options of pgbench's own
 */
export async function pgbench(load: Load, more: readonly string[] = []): Promise<LoadResult> {
  const { stdout } = await run(
    program(),
    [
      '-n',
      ...(load.script === 'select' ? ['-S'] : []),
      `--protocol=${load.protocol}`,
      `--client=${load.clients}`,
      `--jobs=${THREADS}`,
      `--time=${load.seconds}`,
      ...more,
      ...target(load.port),
    ],
    {
      env: environment(load.isTls),
      timeout: load.seconds * 1000 + GRACE_MS,
      killSignal: 'SIGKILL',
    },
  );
  return parseReport(stdout);
}

/** What transactions took, from when they were due, in milliseconds. */
export interface Latencies {
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly p999Ms: number;
}

/** Runs pgbench once with so many transactions a second, whatever they take; see `pgbench`. */
export async function pgbenchAtRate(load: Load, rate: number): Promise<Latencies> {
  const folder = await mkdtemp(join(tmpdir(), 'pgfleet-bench-'));
  try {
    const prefix = join(folder, 'log');
    await pgbench(load, [`--rate=${rate}`, '--log', `--log-prefix=${prefix}`]);
    const files = await readdir(folder);
    const texts = await Promise.all(files.map((file) => readFile(join(folder, file), 'utf8')));
    const lines = texts.flatMap((text) => text.trimEnd().split('\n'));
    // Client, transaction, microseconds, script, end in two parts, lag (pgbench, "Per-Transaction Logging").
    const times = lines.map((line) => Number(line.split(' ')[2]) / 1000);
    return {
      p50Ms: percentile(times, 50),
      p99Ms: percentile(times, 99),
      p999Ms: percentile(times, 99.9),
    };
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Reads pgbench's closing report. */
export function parseReport(text: string): LoadResult {
  const number = (pattern: RegExp): number => {
    const found = pattern.exec(text)?.[1];
    if (found === undefined) throw new Error(`no ${pattern} in pgbench's report:\n${text}`);
    return Number(found);
  };
  return {
    transactions: number(/^number of transactions actually processed: (\d+)/m),
    failed: number(/^number of failed transactions: (\d+)/m),
    tps: number(/^tps = ([\d.]+) \(without initial connection time\)/m),
    latencyMs: number(/^latency average = ([\d.]+) ms/m),
  };
}

function target(port: number): string[] {
  return ['-h', '127.0.0.1', '-p', String(port), '-U', 'app', 'app'];
}

function environment(isTls = false): NodeJS.ProcessEnv {
  return { ...process.env, PGPASSWORD: 'app', ...(isTls ? { PGSSLMODE: 'require' } : {}) };
}

function program(): string {
  const path = clientProgram('pgbench');
  if (path === null) throw new Error("the load needs pgbench of Debian's package postgresql-15");
  return path;
}
