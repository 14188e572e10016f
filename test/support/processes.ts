import type { ChildProcess } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { until } from './until.ts';

/** State letter, parent, and CPU ticks of one process as `/proc/<pid>/stat` tells (proc(5)). */
export interface ProcessStat {
  readonly pid: number;
  readonly command: string;
  readonly state: string;
  readonly parent: number;
  /** User and system time of all its threads, in clock ticks of 10 ms. */
  readonly userTicks: number;
  readonly systemTicks: number;
}

/** What `/proc` says of `pid`; null when there is no such process. */
export function readStat(pid: number): ProcessStat | null {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch {
    return null;
  }
  // The command stands in parentheses and may itself hold blanks and parentheses.
  const end = text.lastIndexOf(')');
  const fields = text.slice(end + 2).split(' ');
  return {
    pid,
    command: text.slice(text.indexOf('(') + 1, end),
    state: fields[0]!,
    parent: Number(fields[1]),
    userTicks: Number(fields[11]),
    systemTicks: Number(fields[12]),
  };
}

/** True while `pid` runs; a process that has ended and waits for its parent does not. */
export function isRunning(pid: number): boolean {
  const stat = readStat(pid);
  return stat !== null && stat.state !== 'Z' && stat.state !== 'X';
}

/** Running children of `parent`, in the order of their pids. */
export function childrenOf(parent: number): number[] {
  return allPids().filter((pid) => {
    const stat = readStat(pid);
    return stat !== null && stat.parent === parent && stat.state !== 'Z';
  });
}

/** `parent` and all that descends from it. */
export function familyOf(parent: number): number[] {
  return [parent, ...childrenOf(parent).flatMap(familyOf)];
}

/** Running processes in whose starting environment `name` is `value`. */
export function processesWith(name: string, value: string): ProcessStat[] {
  const wanted = `${name}=${value}`;
  return allPids().flatMap((pid) => {
    try {
      if (!readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes(wanted)) return [];
    } catch {
      return []; // It ended, or belongs to another account.
    }
    const stat = readStat(pid);
    return stat === null || stat.state === 'Z' ? [] : [stat];
  });
}

/** Sends `signal` to a process that may have ended already. */
export function signalIfRunning(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/** True when `child` has ended, by exit or by signal. */
export function hasEnded(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null;
}

/** Waits until `child` has ended; after the deadline it is killed and an error names it. */
export async function waitForEnd(
  what: string,
  child: ChildProcess,
  deadlineMs: number,
): Promise<void> {
  try {
    await until(`${what} ended`, () => hasEnded(child), { deadlineMs });
  } catch (error) {
    child.kill('SIGKILL');
    throw error;
  }
}

function allPids(): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .sort((left, right) => left - right);
}
