/** Every error that pgfleet itself raises; texts that clients see are PgBouncer's where it has one. */

/** A bug of ours: loud in tests, ends one session in production. */
export class InvariantError extends Error {
  override readonly name = 'InvariantError';
}

/** A start-up or reload problem that the operator mends in a file. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** SQLSTATE of nearly everything the pooler says, as in PgBouncer (protocol_violation). */
export const PROTOCOL_VIOLATION = '08P01';
