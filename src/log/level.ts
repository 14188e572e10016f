/** PgBouncer's levels; `verbose` 0 shows up to LOG, 1 adds DEBUG, 2 adds NOISE. */
export const Level = { FATAL: 0, ERROR: 1, WARNING: 2, LOG: 3, DEBUG: 4, NOISE: 5 } as const;
export type Level = (typeof Level)[keyof typeof Level];

/** Names of the levels as lines show them, by their numbers. */
export const LEVEL_NAMES = ['FATAL', 'ERROR', 'WARNING', 'LOG', 'DEBUG', 'NOISE'] as const;

/** What syslog and the journal call them (RFC 5424, 6.2.1), by their numbers, as PgBouncer has it. */
export const SEVERITIES = [2, 3, 4, 6, 7, 7] as const;

/** The most detailed level that a value of `verbose` (0 to 3) shows. */
export function levelOf(verbose: number): Level {
  if (verbose <= 0) return Level.LOG;
  return verbose === 1 ? Level.DEBUG : Level.NOISE;
}
