/**
 * What `pgfleet top` knows of a fleet: one reading of the console, and the rates between two. Without
 * I/O. A PgBouncer's console gives the same, but for the processes.
 */

/** A row of the console, all values as text. */
export type ConsoleRow = Readonly<Record<string, string | null>>;

/** What is asked of the console in each reading, in this order. */
export const QUESTIONS = ['STATE', 'POOLS', 'STATS_TOTALS', 'FLEET'] as const;
export type Answers = Readonly<Record<(typeof QUESTIONS)[number], readonly ConsoleRow[]>>;

interface PoolReading {
  readonly database: string;
  readonly user: string;
  readonly mode: string;
  readonly clients: number;
  readonly waiting: number;
  /** How long the client has waited that has waited longest, in seconds. */
  readonly maxWait: number;
  readonly active: number;
  readonly idle: number;
  /** Connections in any other state: used, tested, in login, busy with a cancel request. */
  readonly other: number;
}

interface ProcessReading {
  readonly process: string;
  readonly pid: string;
  readonly state: string;
  readonly clients: number;
  readonly servers: number;
  /** User and system time since the process began, in microseconds. */
  readonly cpuUs: number;
  /** Resident memory, in bytes. */
  readonly memory: number;
  /** How late the event loop was at most of late, in microseconds. */
  readonly delayUs: number;
}

/** Sums of all databases since the start. */
interface Totals {
  readonly transactions: number;
  readonly queries: number;
  readonly received: number;
  readonly sent: number;
  readonly queryUs: number;
  readonly waitUs: number;
}

/** The state of the fleet at one moment. */
export interface Reading {
  /** Milliseconds of a clock that only goes forward. */
  readonly at: number;
  readonly state: string;
  readonly pools: readonly PoolReading[];
  /** Empty where the console does not tell of them. */
  readonly processes: readonly ProcessReading[];
  readonly totals: Totals;
  /** Transactions so far, by database. */
  readonly transactions: ReadonlyMap<string, number>;
}

/** The same between two readings, a second; times are means, in microseconds. */
export interface Rates extends Totals {
  /** Transactions a second, by database. */
  readonly byDatabase: ReadonlyMap<string, number>;
  /** CPU time of each process, in per cent of one core, by pid. */
  readonly cpu: ReadonlyMap<string, number>;
}

/** A reading out of the answers of the console. */
export function readingOf(answers: Answers, at: number): Reading {
  const stats = answers.STATS_TOTALS.filter(({ database }) => database !== 'pgbouncer');
  const sum = (column: string): number =>
    stats.reduce((total, row) => total + numberOf(row[column]), 0);
  return {
    at,
    state: stateOf(answers.STATE),
    pools: answers.POOLS.filter(({ database }) => database !== 'pgbouncer').map(poolOf),
    processes: answers.FLEET.map(processOf),
    totals: {
      transactions: sum('xact_count'),
      queries: sum('query_count'),
      received: sum('bytes_received'),
      sent: sum('bytes_sent'),
      queryUs: sum('query_time'),
      waitUs: sum('wait_time'),
    },
    transactions: new Map(
      stats.map((row) => [textOf(row['database']), numberOf(row['xact_count'])]),
    ),
  };
}

/** Null when they tell nothing: no time between them, or a restart. */
export function ratesBetween(before: Reading, now: Reading): Rates | null {
  const seconds = (now.at - before.at) / 1000;
  if (seconds <= 0) return null;
  const since = (key: keyof Totals): number => now.totals[key] - before.totals[key];
  if (since('transactions') < 0 || since('queries') < 0) return null;
  const mean = (key: 'queryUs' | 'waitUs', count: number): number =>
    count > 0 ? since(key) / count : 0;
  const cpuBefore = new Map(before.processes.map(({ pid, cpuUs }) => [pid, cpuUs]));
  return {
    transactions: since('transactions') / seconds,
    queries: since('queries') / seconds,
    received: since('received') / seconds,
    sent: since('sent') / seconds,
    queryUs: mean('queryUs', since('queries')),
    waitUs: mean('waitUs', since('transactions')),
    byDatabase: new Map(
      [...now.transactions].map(([name, count]) => [
        name,
        Math.max(count - (before.transactions.get(name) ?? 0), 0) / seconds,
      ]),
    ),
    cpu: new Map(
      now.processes.map(({ pid, cpuUs }) => [
        pid,
        Math.max(cpuUs - (cpuBefore.get(pid) ?? cpuUs), 0) / (seconds * 10_000),
      ]),
    ),
  };
}

/** `active`, or the names of what it is in. */
function stateOf(rows: readonly ConsoleRow[]): string {
  const on = rows.filter(({ value }) => value === 'yes').map(({ key }) => textOf(key));
  return on.length === 0 ? 'unknown' : on.join(', ');
}

function poolOf(row: ConsoleRow): PoolReading {
  const at = (column: string): number => numberOf(row[column]);
  return {
    database: textOf(row['database']),
    user: textOf(row['user']),
    mode: textOf(row['pool_mode']),
    clients: at('cl_active') + at('cl_waiting'),
    waiting: at('cl_waiting'),
    maxWait: at('maxwait') + at('maxwait_us') / 1_000_000,
    active: at('sv_active'),
    idle: at('sv_idle'),
    other:
      at('sv_used') +
      at('sv_tested') +
      at('sv_login') +
      at('sv_active_cancel') +
      at('sv_being_canceled'),
  };
}

function processOf(row: ConsoleRow): ProcessReading {
  return {
    process: textOf(row['process']),
    pid: textOf(row['pid']),
    state: textOf(row['state']),
    clients: numberOf(row['clients']),
    servers: numberOf(row['servers']),
    cpuUs: numberOf(row['cpu_user_us']) + numberOf(row['cpu_system_us']),
    memory: numberOf(row['memory']),
    delayUs: numberOf(row['event_loop_delay_us']),
  };
}

function textOf(value: string | null | undefined): string {
  return value ?? '';
}

function numberOf(value: string | null | undefined): number {
  const number = Number(value ?? 0);
  return Number.isFinite(number) ? number : 0;
}
