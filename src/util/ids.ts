/**
 * Numbers of clients and servers: unique over all processes of a fleet and growing within each,
 * because every process counts in steps of the fleet's size from its own number on. They fit the
 * int4 column of SHOW CLIENTS and start anew when that is used up.
 */

const MAX = 2 ** 31 - 1;

let first = 1;
let step = 1;
let next = 1;

/** Sets the process's numbers; called once, before the first client or server. */
export function startIds(worker: number, size: number): void {
  first = worker + 1;
  step = size;
  next = first;
}

export function nextId(): number {
  const id = next;
  next = id > MAX - step ? first : id + step;
  return id;
}

/** The id as the log and SHOW write it (PgBouncer shows an address there). */
export function pointerOf(id: number): string {
  return `0x${(0x100000 + id).toString(16)}`;
}
