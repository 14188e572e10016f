/**
 * Which of several places decides: `[users]` before `[databases]` before `[pgbouncer]`, as PgBouncer
 * has it. The pool's user is the database's forced user, or else the client's login name; some keys
 * of `[users]` are looked up by one and some by the other, as each function's parameter says.
 */

import type { Config, DatabaseEntry, PeerEntry, PoolMode, UserEntry } from './config.ts';
import type { Settings } from './schema.ts';

/** A limit of connections. A maximum of 0 means none at all, never "unlimited". */
export type Limit =
  | { readonly kind: 'unlimited' }
  | { readonly kind: 'max'; readonly value: number };

const UNLIMITED: Limit = { kind: 'unlimited' };

/** The stricter of two limits. */
export function lowerLimit(a: Limit, b: Limit): Limit {
  if (a.kind === 'unlimited') return b;
  return b.kind === 'unlimited' || a.value <= b.value ? a : b;
}

/** A configuration whose entries are found by name in constant time. */
export class ConfigIndex {
  readonly config: Config;
  readonly settings: Settings;
  readonly #databases: ReadonlyMap<string, DatabaseEntry>;
  readonly #users: ReadonlyMap<string, UserEntry>;
  readonly #peers: ReadonlyMap<number, PeerEntry>;

  constructor(config: Config) {
    this.config = config;
    this.settings = config.settings;
    this.#databases = new Map(config.databases.map((entry) => [entry.name, entry]));
    this.#users = new Map(config.users.map((entry) => [entry.name, entry]));
    this.#peers = new Map(config.peers.map((entry) => [entry.id, entry]));
  }

  /** The entry that a client asking for `name` gets: its own line, else one made from `*`. */
  database(name: string): DatabaseEntry | null {
    const own = this.#databases.get(name);
    if (own !== undefined) return own;
    const auto = this.config.autoDatabase;
    return auto === null ? null : { ...auto, name };
  }

  /** Whether `name` has a line of its own in `[databases]`. */
  hasDatabase(name: string): boolean {
    return this.#databases.has(name);
  }

  user(name: string): UserEntry | null {
    return this.#users.get(name) ?? null;
  }

  peer(id: number): PeerEntry | null {
    return this.#peers.get(id) ?? null;
  }

  /** Whether cancel requests may have to come from, or go to, another host of `[peers]`. */
  get hasOtherPeers(): boolean {
    const { peer_id } = this.settings;
    return peer_id > 0 && this.config.peers.some(({ id }) => id !== peer_id);
  }
}

/** The user that the pool's server connections log in as. */
export function poolUserOf(db: DatabaseEntry, loginName: string): string {
  return db.user ?? loginName;
}

export function effectivePoolMode(
  index: ConfigIndex,
  db: DatabaseEntry,
  poolUser: string,
): PoolMode {
  return index.user(poolUser)?.pool_mode ?? db.pool_mode ?? index.settings.pool_mode;
}

/** Server connections of one pool; 0 and less are unlimited. */
export function effectivePoolSize(index: ConfigIndex, db: DatabaseEntry, poolUser: string): Limit {
  const own = index.user(poolUser)?.pool_size ?? db.pool_size;
  return zeroIsUnlimited(own ?? index.settings.default_pool_size);
}

/** Connections to keep open; never above the pool size. There is no per-user setting. */
export function effectiveMinPoolSize(
  index: ConfigIndex,
  db: DatabaseEntry,
  poolUser: string,
): number {
  const wanted = Math.max(0, db.min_pool_size ?? index.settings.min_pool_size);
  const size = effectivePoolSize(index, db, poolUser);
  return size.kind === 'unlimited' ? wanted : Math.min(wanted, size.value);
}

/** Connections above the pool size for clients that waited `reserve_pool_timeout`; 0 of either: none. */
export function effectiveReservePoolSize(
  index: ConfigIndex,
  db: DatabaseEntry,
  poolUser: string,
): number {
  if (index.settings.reserve_pool_timeout === 0) return 0;
  const own = index.user(poolUser)?.reserve_pool_size ?? db.reserve_pool_size;
  return Math.max(0, own ?? index.settings.reserve_pool_size);
}

/** Seconds after which an unused server connection is closed; 0: it serves once. */
export function effectiveServerLifetime(index: ConfigIndex, db: DatabaseEntry): number {
  return db.server_lifetime ?? index.settings.server_lifetime;
}

/** Server connections of one database over all its users. */
export function effectiveMaxDbConnections(index: ConfigIndex, db: DatabaseEntry): Limit {
  return zeroIsUnlimited(db.max_db_connections ?? index.settings.max_db_connections);
}

/** Client connections of one database. */
export function effectiveMaxDbClientConnections(index: ConfigIndex, db: DatabaseEntry): Limit {
  return zeroIsUnlimited(db.max_db_client_connections ?? index.settings.max_db_client_connections);
}

/** Server connections of one user over all databases. */
export function effectiveMaxUserConnections(index: ConfigIndex, poolUser: string): Limit {
  const own = index.user(poolUser)?.max_user_connections;
  return zeroIsUnlimited(own ?? index.settings.max_user_connections);
}

/** Client connections of one login name over all databases. */
export function effectiveMaxUserClientConnections(index: ConfigIndex, loginName: string): Limit {
  const own = index.user(loginName)?.max_user_client_connections;
  return zeroIsUnlimited(own ?? index.settings.max_user_client_connections);
}

/** All client connections; 0 means that none is let in. */
export function effectiveMaxClientConn(index: ConfigIndex): Limit {
  return { kind: 'max', value: Math.max(0, index.settings.max_client_conn) };
}

/** Cancel requests on their way to one peer; 0 means that none can be sent. */
export function effectivePeerPoolSize(index: ConfigIndex, peer: PeerEntry): number {
  return Math.max(0, peer.pool_size ?? index.settings.default_pool_size);
}

/** Who asks for the secrets of names that `auth_file` lacks; null: nobody. `db` null: the console. */
export function effectiveAuthUser(index: ConfigIndex, db: DatabaseEntry | null): string | null {
  const user = db?.auth_user ?? index.settings.auth_user;
  return user === '' ? null : user;
}

/** The query that is asked with, whose `$1` is the name. */
export function effectiveAuthQuery(index: ConfigIndex, db: DatabaseEntry | null): string {
  return db?.auth_query ?? index.settings.auth_query;
}

/** The database that is asked; null: the one that the client wants. */
export function effectiveAuthDbname(index: ConfigIndex, db: DatabaseEntry | null): string | null {
  const name = db?.auth_dbname ?? index.settings.auth_dbname;
  return name === '' ? null : name;
}

/** Seconds that a client may queue for a server; 0: for ever. */
export function effectiveQueryWaitTimeout(
  index: ConfigIndex,
  db: DatabaseEntry,
  loginName: string,
): number {
  const own = index.user(loginName)?.query_wait_timeout ?? db.query_wait_timeout;
  return own ?? index.settings.query_wait_timeout;
}

/** Seconds that one query may run; 0: no limit. */
export function effectiveQueryTimeout(index: ConfigIndex, poolUser: string): number {
  return index.user(poolUser)?.query_timeout ?? index.settings.query_timeout;
}

/** Seconds that a transaction may sit idle; 0: no limit. */
export function effectiveIdleTransactionTimeout(index: ConfigIndex, poolUser: string): number {
  return index.user(poolUser)?.idle_transaction_timeout ?? index.settings.idle_transaction_timeout;
}

/** Seconds that a transaction may last, busy or idle; 0: no limit. */
export function effectiveTransactionTimeout(index: ConfigIndex, poolUser: string): number {
  return index.user(poolUser)?.transaction_timeout ?? index.settings.transaction_timeout;
}

/** Seconds that a client without a server may be silent; 0: no limit. */
export function effectiveClientIdleTimeout(index: ConfigIndex, loginName: string): number {
  return index.user(loginName)?.client_idle_timeout ?? index.settings.client_idle_timeout;
}

/** The query that checks an idle server: `<empty>` is the empty query, an empty setting no check. */
export function effectiveCheckQuery(settings: Settings): string | null {
  if (settings.server_check_query === '<empty>') return '';
  return settings.server_check_query === '' ? null : settings.server_check_query;
}

function zeroIsUnlimited(value: number): Limit {
  return value > 0 ? { kind: 'max', value } : UNLIMITED;
}
