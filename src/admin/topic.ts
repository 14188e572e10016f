import type { Config } from '../config/config.ts';
import type { Column } from '../wire/encode.ts';
import type { Row } from './result.ts';
import type { SnapshotPart, WorkerSnapshot } from './snapshot.ts';

/** What a SHOW looks at. */
interface View {
  /** Snapshots in the order of the workers' numbers; at least one. */
  readonly snapshots: readonly WorkerSnapshot[];
  readonly config: Config;
  /** Workers without an answer, and why. */
  readonly missing: ReadonlyMap<number, string>;
}

/** One SHOW: a table over any number of workers, which one worker alone is a case of. */
export interface Topic {
  readonly columns: readonly Column[];
  /** Parts of the snapshots that the rows are made of. */
  readonly parts: readonly SnapshotPart[];
  /** Says the same in every worker, so that the one that is asked need not ask the others. */
  readonly isSameEverywhere: boolean;
  /** Has a form BY PROCESS. */
  readonly hasProcesses: boolean;
  /** `stats_users` may not see it. */
  readonly isForAdmins?: true;
  rows(view: View): Row[];
}

/** Order of names. */
export function compareNames(a: string, b: string): number {
  if (a === b) return 0;
  return a < b ? -1 : 1;
}

/** Rows of all workers by their key; those with the same key are folded into one by `fold`. */
export function mergeBy<T>(
  rows: Iterable<T>,
  keyOf: (row: T) => string,
  fold: (a: T, b: T) => T,
): T[] {
  const merged = new Map<string, T>();
  for (const row of rows) {
    const key = keyOf(row);
    const before = merged.get(key);
    merged.set(key, before === undefined ? row : fold(before, row));
  }
  return [...merged.values()];
}
