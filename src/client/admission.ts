import type { DatabaseEntry } from '../config/config.ts';
import {
  type ConfigIndex,
  effectiveMaxClientConn,
  effectiveMaxDbClientConnections,
  effectiveMaxUserClientConnections,
  type Limit,
} from '../config/effective.ts';
import { splitLimit, splitOffset } from '../config/split.ts';

/**
 * Counts clients against this worker's shares of `max_client_conn`, `max_db_client_connections` and
 * `max_user_client_connections`. A client counts once for each, and exactly that is undone when it
 * leaves.
 */
export class Admission {
  readonly #index: ConfigIndex;
  readonly #worker: number;
  readonly #size: number;
  readonly #byDatabase = new Map<string, number>();
  readonly #byUser = new Map<string, number>();
  /** Every client connection, in whatever phase. */
  total = 0;

  constructor(index: ConfigIndex, worker: number, size: number) {
    this.#index = index;
    this.#worker = worker;
    this.#size = size;
  }

  /** The worker's share of `max_client_conn` is used up by more than this client. */
  get isOverTotal(): boolean {
    return isAbove(
      this.total,
      splitLimit(effectiveMaxClientConn(this.#index), this.#size, this.#worker),
    );
  }

  /** Name of the limit that one more client of this database and user would exceed, or null. */
  exceeded(entry: DatabaseEntry | null, database: string, user: string): string | null {
    if (entry !== null) {
      const limit = effectiveMaxDbClientConnections(this.#index, entry);
      if (isAbove(this.ofDatabase(database) + 1, this.#share(limit, database))) {
        return 'max_db_client_connections';
      }
    }
    const limit = effectiveMaxUserClientConnections(this.#index, user);
    return isAbove(this.ofUser(user) + 1, this.#share(limit, user))
      ? 'max_user_client_connections'
      : null;
  }

  /** Counts a client for its database and user. */
  enter(database: string, user: string): void {
    this.#byDatabase.set(database, this.ofDatabase(database) + 1);
    this.#byUser.set(user, this.ofUser(user) + 1);
  }

  /** Undoes one `enter`. */
  leave(database: string, user: string): void {
    decrease(this.#byDatabase, database);
    decrease(this.#byUser, user);
  }

  ofDatabase(database: string): number {
    return this.#byDatabase.get(database) ?? 0;
  }

  ofUser(user: string): number {
    return this.#byUser.get(user) ?? 0;
  }

  #share(limit: Limit, key: string): Limit {
    return splitLimit(limit, this.#size, this.#worker, splitOffset(key, this.#size));
  }
}

function isAbove(count: number, limit: Limit): boolean {
  return limit.kind === 'max' && count > limit.value;
}

function decrease(counts: Map<string, number>, key: string): void {
  const count = (counts.get(key) ?? 0) - 1;
  if (count > 0) counts.set(key, count);
  else counts.delete(key);
}
