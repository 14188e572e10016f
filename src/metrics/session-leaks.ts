/**
 * Statements that leave something behind in the server's session, which in transaction and statement
 * mode is the next client's session too. The order is that of the counters and never changes.
 */
export const LEAK_KINDS = [
  'prepare',
  'listen',
  'advisory_lock',
  'temp_table',
  'set',
  'role',
  'hold_cursor',
  'load',
] as const;
export type LeakKind = (typeof LEAK_KINDS)[number];

/** How many of each kind the clients of one database have sent since the process started. */
export class SessionLeaks {
  /** By place in `LEAK_KINDS`. Statements that were refused count too. */
  readonly counts: number[] = LEAK_KINDS.map(() => 0);
}
