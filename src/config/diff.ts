import type { Config, DatabaseEntry } from './config.ts';
import type { ConfigIndex } from './effective.ts';
import type { Settings } from './schema.ts';

/**
 * What a reload means for a database that is in use:
 *
 *   kept       nothing about its line has changed
 *   replanned  limits, modes or what new connections are told: they act at once or on new connections
 *   recycled   where or how it connects: every connection is replaced as it becomes free
 *   removed    it exists no more
 */
export type Fate = 'kept' | 'replanned' | 'recycled' | 'removed';

/** A change of one of these makes PgBouncer replace connections; `dbname` is compared apart. */
const CONNECTION_KEYS = [
  'hosts',
  'port',
  'user',
  'connect_query',
  'auth_dbname',
  'auth_query',
  'load_balance_hosts',
] as const;

const SERVER_TLS_KEYS = [
  'server_tls_sslmode',
  'server_tls_ca_file',
  'server_tls_key_file',
  'server_tls_cert_file',
  'server_tls_protocols',
  'server_tls_ciphers',
  'server_tls13_ciphers',
] as const;

/**
 * The fate of the database `name`, which `old` knows by a line of its own or by `*`. As in PgBouncer
 * a database whose own line is gone is removed even when `*` would make it anew, and one that gets a
 * line of its own goes on as that. Where PgBouncer keeps a deleted `*` until it is restarted, what
 * was made from it is removed here.
 */
export function databaseFate(old: ConfigIndex, next: ConfigIndex, name: string): Fate {
  const before = old.database(name);
  const after = next.database(name);
  const hasLostLine = old.hasDatabase(name) && !next.hasDatabase(name);
  if (before === null || after === null || hasLostLine) return 'removed';
  if (hasServerTlsChanged(old.settings, next.settings)) return 'recycled';
  return entryFate(before, after);
}

/** The fate of one line that both configurations have. */
function entryFate(before: DatabaseEntry, after: DatabaseEntry): Fate {
  if ((before.dbname ?? before.name) !== (after.dbname ?? after.name)) return 'recycled';
  if (CONNECTION_KEYS.some((key) => !isSame(before[key], after[key]))) return 'recycled';
  const keys = Object.keys(after) as (keyof DatabaseEntry)[];
  return keys.some((key) => !isSame(before[key], after[key])) ? 'replanned' : 'kept';
}

/** Names and values count, as in PgBouncer; what the files hold does not. */
function hasServerTlsChanged(old: Settings, next: Settings): boolean {
  return SERVER_TLS_KEYS.some((key) => old[key] !== next[key]);
}

/** Lines of `[databases]` and `[peers]` that `next` lacks. */
export function droppedLines(old: Config, next: Config): { databases: string[]; peers: number[] } {
  const databases = new Set(next.databases.map(({ name }) => name));
  const peers = new Set(next.peers.map(({ id }) => id));
  return {
    databases: old.databases.map(({ name }) => name).filter((name) => !databases.has(name)),
    peers: old.peers.map(({ id }) => id).filter((id) => !peers.has(id)),
  };
}

/** Values of entries are plain, or lists of strings. */
function isSame(a: unknown, b: unknown): boolean {
  if (!Array.isArray(a) || !Array.isArray(b)) return a === b;
  return a.length === b.length && a.every((item, at) => item === b[at]);
}
