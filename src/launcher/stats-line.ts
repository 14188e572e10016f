import type { ToWorker } from '../ipc/messages.ts';
import type { FleetCounters, StatsAnswer } from '../ipc/stats.ts';
import { log } from '../log/logger.ts';

/** How long an answer is waited for; a worker that is silent is left out of the line. */
const ANSWER_LIMIT_MS = 1000;
/** How often it is looked whether the period is over, which a reload may have changed. */
const LOOK_MS = 100;

export interface StatsTarget {
  /** `stats_period` in seconds; 0 and less: never. */
  readonly period: () => number;
  /** `log_stats`. */
  readonly isLogged: () => boolean;
  /** Sends to every worker that has been told its start, and returns their numbers. */
  broadcast(message: ToWorker): number[];
  /** Gets every period's averages, logged or not: systemd shows them. */
  onAverages(text: string): void;
}

/** A worker's counters when it was last asked, and the process that they were of. */
interface Known {
  readonly incarnation: number;
  readonly counters: FleetCounters;
}

/**
 * PgBouncer's line of averages, `stats: 12 xacts/s, …`, every `stats_period`: one for the fleet, the
 * growth of all workers' counters over the period.
 */
export class StatsLine {
  readonly #target: StatsTarget;
  readonly #now: () => number;
  #known = new Map<number, Known>();
  #answers = new Map<number, Known>();
  #awaited = new Set<number>();
  #seq = 0;
  /** When the period that runs now began, and the one that is being added up. */
  #since: number;
  #before: number;
  #timer: NodeJS.Timeout | undefined;
  #limit: NodeJS.Timeout | undefined;

  constructor(target: StatsTarget, now: () => number = () => performance.now()) {
    this.#target = target;
    this.#now = now;
    this.#since = now();
    this.#before = this.#since;
  }

  start(): void {
    this.#since = this.#now();
    this.#timer = setInterval(() => this.look(), LOOK_MS);
  }

  stop(): void {
    clearInterval(this.#timer);
    clearTimeout(this.#limit);
  }

  /** Asks the workers when the period is over. */
  look(): void {
    const periodMs = this.#target.period() * 1000;
    const now = this.#now();
    if (periodMs <= 0 || now - this.#since < periodMs || this.#awaited.size > 0) return;
    this.#before = this.#since;
    this.#since = now;
    this.#answers = new Map();
    this.#awaited = new Set(this.#target.broadcast({ kind: 'stats_ask', seq: ++this.#seq }));
    this.#limit = setTimeout(() => this.#finish(), ANSWER_LIMIT_MS);
    if (this.#awaited.size === 0) this.#finish();
  }

  onAnswer(worker: number, { seq, incarnation, counters }: StatsAnswer): void {
    if (seq !== this.#seq || !this.#awaited.delete(worker)) return;
    this.#answers.set(worker, { incarnation, counters });
    if (this.#awaited.size === 0) this.#finish();
  }

  #finish(): void {
    clearTimeout(this.#limit);
    this.#awaited.clear();
    const grown = growthOf(this.#known, this.#answers);
    this.#known = this.#answers;
    const text = averages(grown, (this.#since - this.#before) / 1000);
    if (this.#target.isLogged()) log.info(text);
    this.#target.onAverages(text);
  }
}

/** What all workers have counted since they were last asked; a new process began with nothing. */
function growthOf(
  known: ReadonlyMap<number, Known>,
  answers: ReadonlyMap<number, Known>,
): FleetCounters {
  const sum: FleetCounters = { ...ZERO };
  for (const [worker, { incarnation, counters }] of answers) {
    const last = known.get(worker);
    const before = last?.incarnation === incarnation ? last.counters : ZERO;
    for (const name of NAMES) {
      // A database that is gone has taken what it counted with it.
      sum[name] += Math.max(0, counters[name] - before[name]);
    }
  }
  return sum;
}

function averages(sum: FleetCounters, seconds: number): string {
  const rate = (name: keyof FleetCounters): number => Math.floor(sum[name] / seconds);
  const each = (us: keyof FleetCounters, count: keyof FleetCounters): number =>
    sum[count] === 0 ? 0 : Math.floor(sum[us] / sum[count]);
  return (
    `stats: ${rate('transactions')} xacts/s, ${rate('queries')} queries/s, ` +
    `${rate('clientParses')} client parses/s, ${rate('serverParses')} server parses/s, ` +
    `${rate('binds')} binds/s, ${rate('clientLogins')} client logins/s, ` +
    `in ${rate('bytesReceived')} B/s, out ${rate('bytesSent')} B/s, ` +
    `xact ${each('transactionUs', 'transactions')} us, query ${each('queryUs', 'queries')} us, ` +
    `wait ${each('waitUs', 'serverAssignments')} us`
  );
}

const ZERO: FleetCounters = {
  transactions: 0,
  queries: 0,
  clientParses: 0,
  serverParses: 0,
  binds: 0,
  clientLogins: 0,
  bytesReceived: 0,
  bytesSent: 0,
  transactionUs: 0,
  queryUs: 0,
  waitUs: 0,
  serverAssignments: 0,
};
const NAMES = Object.keys(ZERO) as (keyof FleetCounters)[];
