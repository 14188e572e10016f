/**
 * The configuration as the program uses it: one immutable snapshot that the launcher reads, checks
 * and hands to every worker. All of it survives JSON, since it travels over the worker's channel.
 *
 * Settings keep their ini spelling. Times are seconds, fractions allowed; sizes are bytes unless the
 * PgBouncer manual says otherwise; an unset string is '' where PgBouncer's default is the empty
 * string and null where it has none.
 */

import type { FleetSettings, Settings } from './schema.ts';

export type PoolMode = 'session' | 'transaction' | 'statement';
type LoadBalance = 'disable' | 'round-robin';

/** One line of `[databases]`. A null means "not set here": the global setting applies. */
export interface DatabaseEntry {
  readonly name: string;
  /** Database asked for on the server; null: the name the client asked for. */
  readonly dbname: string | null;
  /** Hosts in the order written; empty: the Unix socket in `unix_socket_dir`. */
  readonly hosts: readonly string[];
  readonly port: number;
  readonly load_balance_hosts: LoadBalance;
  /** Forced user of all server connections. */
  readonly user: string | null;
  readonly password: string | null;
  readonly auth_user: string | null;
  readonly auth_query: string | null;
  readonly auth_dbname: string | null;
  readonly pool_size: number | null;
  readonly min_pool_size: number | null;
  readonly reserve_pool_size: number | null;
  readonly max_db_connections: number | null;
  readonly max_db_client_connections: number | null;
  readonly server_lifetime: number | null;
  readonly query_wait_timeout: number | null;
  readonly pool_mode: PoolMode | null;
  readonly connect_query: string | null;
  readonly client_encoding: string | null;
  readonly datestyle: string | null;
  readonly timezone: string | null;
  readonly application_name: string | null;
  /**
   * What becomes of statements that leave state in a session which other clients share (PREPARE, SET,
   * LISTEN and the like, in transaction and statement mode): let through without a look, counted and
   * logged, or refused with SQLSTATE 0A000. null: `allow`. SHOW SESSION_LEAKS has the counters. It is
   * the first 256 KB of a message that are looked at, and what a function does is not seen.
   */
  readonly session_leak: 'allow' | 'warn' | 'reject' | null;
}

/** One line of `[users]`. */
export interface UserEntry {
  readonly name: string;
  readonly pool_mode: PoolMode | null;
  readonly pool_size: number | null;
  readonly reserve_pool_size: number | null;
  readonly max_user_connections: number | null;
  readonly max_user_client_connections: number | null;
  readonly query_timeout: number | null;
  readonly query_wait_timeout: number | null;
  readonly idle_transaction_timeout: number | null;
  readonly transaction_timeout: number | null;
  readonly client_idle_timeout: number | null;
}

/** One line of `[peers]`. */
export interface PeerEntry {
  readonly id: number;
  readonly host: string;
  readonly port: number;
  readonly pool_size: number | null;
}

export interface Config {
  /** Grows with every reload; no two that were sent to workers have the same. */
  readonly version: number;
  /** Absolute path of the main file. */
  readonly file: string;
  readonly settings: Settings;
  readonly fleet: FleetSettings;
  readonly databases: readonly DatabaseEntry[];
  /** The `*` entry: databases without a line of their own. */
  readonly autoDatabase: DatabaseEntry | null;
  readonly users: readonly UserEntry[];
  readonly peers: readonly PeerEntry[];
  /** Content of `auth_file` as the launcher read it; null when none is set or it could not be read. */
  readonly authFileText: string | null;
  /** Keys of `[pgbouncer]` and `[fleet]` that the file itself sets. */
  readonly given: readonly string[];
}
