/**
 * Numbers of clients and servers: unique over all processes of a fleet and growing within each,
 * because the worker's number stands in the upper digits.
 */

/** Ids that one process may hand out before they would run into the next worker's. */
const SPAN = 2 ** 36;

let last = 0;

/** Sets the process's range; called once, before the first client or server. */
export function startIds(worker: number): void {
  last = worker * SPAN;
}

export function nextId(): number {
  return ++last;
}

/** The id as the log and SHOW write it (PgBouncer shows an address there). */
export function pointerOf(id: number): string {
  return `0x${(0x100000 + id).toString(16)}`;
}
