import type { DatabaseEntry } from '../config/config.ts';
import {
  type ConfigIndex,
  effectiveMaxClientConn,
  effectiveMaxDbClientConnections,
  effectiveMaxUserClientConnections,
  type Limit,
  lowerLimit,
} from '../config/effective.ts';
import { splitLimit, splitOffset } from '../config/split.ts';

/**
 * Counts clients against this worker's shares of `max_client_conn`, `max_db_client_connections` and
 * `max_user_client_connections`. A client counts once for each, and exactly that is undone when it
 * leaves.
 */
export class Admission {
  #index: ConfigIndex;
  /** Its limits hold as well, while other workers may not have switched yet. */
  #previous: ConfigIndex | null;
  readonly #worker: number;
  readonly #size: number;
  readonly #byDatabase = new Map<string, number>();
  readonly #byUser = new Map<string, number>();
  /** Every client connection, in whatever phase. */
  total = 0;

  constructor(
    index: ConfigIndex,
    worker: number,
    size: number,
    previous: ConfigIndex | null = null,
  ) {
    this.#index = index;
    this.#previous = previous;
    this.#worker = worker;
    this.#size = size;
  }

  /** The worker's share of `max_client_conn` is used up by more than this client. */
  get isOverTotal(): boolean {
    const share = this.#lowest((index) =>
      splitLimit(effectiveMaxClientConn(index), this.#size, this.#worker),
    );
    return isAbove(this.total, share);
  }

  /** Puts another configuration in force; see `release`. */
  reconfigure(index: ConfigIndex): void {
    this.#previous = this.#index;
    this.#index = index;
  }

  /** From now on the limits of the configuration in force are the only ones. */
  release(): void {
    this.#previous = null;
  }

  /** Name of the limit that one more client of this database and user would exceed, or null. */
  exceeded(entry: DatabaseEntry | null, database: string, user: string): string | null {
    if (entry !== null) {
      const share = this.#lowest((index) =>
        this.#share(
          effectiveMaxDbClientConnections(index, index.database(entry.name) ?? entry),
          database,
        ),
      );
      if (isAbove(this.ofDatabase(database) + 1, share)) return 'max_db_client_connections';
    }
    const share = this.#lowest((index) =>
      this.#share(effectiveMaxUserClientConnections(index, user), user),
    );
    return isAbove(this.ofUser(user) + 1, share) ? 'max_user_client_connections' : null;
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

  #lowest(shareIn: (index: ConfigIndex) => Limit): Limit {
    const share = shareIn(this.#index);
    return this.#previous === null ? share : lowerLimit(share, shareIn(this.#previous));
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
