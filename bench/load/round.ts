import { readStat } from '../../test/support/processes.ts';
import { type Load, type LoadResult, pgbench } from './pgbench.ts';

/** Linux counts CPU time in ticks of 10 ms (USER_HZ, proc(5)). */
export const TICK_US = 10_000;

/** A pooler that takes its turn. */
export interface Contender {
  readonly name: string;
  readonly port: number;
  /** Pids of all its processes. */
  processes(): number[];
}

/** One round of one pooler. */
export interface Round extends LoadResult {
  /** User and system time of all its processes for one transaction, in microseconds. */
  readonly cpuUs: number;
  readonly userUs: number;
  readonly systemUs: number;
}

/** Drives `contender` with `load` once, and measures the CPU time that it took. */
export async function runRound(contender: Contender, load: Omit<Load, 'port'>): Promise<Round> {
  const pids = contender.processes();
  const before = cpuTicks(pids);
  const result = await pgbench({ ...load, port: contender.port });
  const after = cpuTicks(pids);
  if (result.failed > 0) throw new Error(`${contender.name}: ${result.failed} failed transactions`);
  const userUs = ((after.user - before.user) * TICK_US) / result.transactions;
  const systemUs = ((after.system - before.system) * TICK_US) / result.transactions;
  return { ...result, userUs, systemUs, cpuUs: userUs + systemUs };
}

/** CPU time of processes so far, in ticks. */
export function cpuTicks(pids: readonly number[]): { user: number; system: number } {
  let user = 0;
  let system = 0;
  for (const pid of pids) {
    const stat = readStat(pid);
    if (stat === null) throw new Error(`process ${pid} of the pooler has ended`);
    user += stat.userTicks;
    system += stat.systemTicks;
  }
  return { user, system };
}
