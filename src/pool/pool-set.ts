import { Budget } from '../budget/budget.ts';
import type { DatabaseEntry } from '../config/config.ts';
import { type ConfigIndex, effectiveMaxUserConnections } from '../config/effective.ts';
import { poolShares } from '../config/split.ts';
import type { Credentials, Opener } from '../server/server-opener.ts';
import { Database } from './database.ts';
import { planPool } from './plan.ts';
import { Pool, type PoolOptions } from './pool.ts';

/** A worker's place in the fleet. */
export interface WorkerPlace {
  readonly worker: number;
  readonly size: number;
}

/** All pools of a worker, made when a client first needs them, and the limits that they share. */
export class PoolSet {
  readonly #index: ConfigIndex;
  readonly #place: WorkerPlace;
  readonly #options: PoolOptions;
  readonly #openerOf: (entry: DatabaseEntry) => Opener;
  readonly #credentialsOf: (entry: DatabaseEntry, user: string) => Credentials;
  readonly #databases = new Map<string, Database>();
  readonly #pools = new Map<string, Pool>();
  readonly #userBudgets = new Map<string, Budget>();
  #isPaused = false;
  #isShuttingDown = false;

  constructor(
    index: ConfigIndex,
    place: WorkerPlace,
    options: PoolOptions,
    openerOf: (entry: DatabaseEntry) => Opener,
    credentialsOf: (entry: DatabaseEntry, user: string) => Credentials,
  ) {
    this.#index = index;
    this.#place = place;
    this.#options = options;
    this.#openerOf = openerOf;
    this.#credentialsOf = credentialsOf;
  }

  get all(): Iterable<Pool> {
    return this.#pools.values();
  }

  get databases(): Iterable<Database> {
    return this.#databases.values();
  }

  get size(): number {
    return this.#pools.size;
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  userBudget(user: string): Budget | undefined {
    return this.#userBudgets.get(user);
  }

  /** Connections of all pools of a database. */
  connectionsOf(database: string): number {
    return this.#databases.get(database)?.budget.held ?? 0;
  }

  /** Whether a database has had a client or a connection here. */
  hasDatabase(name: string): boolean {
    return this.#databases.has(name);
  }

  /** The running side of a database entry. */
  database(entry: DatabaseEntry): Database {
    let database = this.#databases.get(entry.name);
    if (database === undefined) {
      const { db } = this.#sharesOf(entry, entry.user ?? '');
      database = new Database(entry.name, entry, db);
      this.#databases.set(entry.name, database);
    }
    return database;
  }

  /** The pool of a database and the user that its connections log in as. */
  get(database: Database, user: string): Pool {
    const key = `${database.name}\0${user}`;
    let pool = this.#pools.get(key);
    if (pool === undefined) {
      const { entry } = database;
      const { worker, size } = this.#place;
      const plan = planPool(this.#index, entry, user, worker, size);
      pool = new Pool(database, user, plan, this.#options, {
        userBudget: this.#budgetOf(user, entry),
        opener: this.#openerOf(entry),
        credentials: () => this.#credentialsOf(entry, user),
        evictFor: (asking, budget) => this.#evict(asking, budget),
        onSlotFree: (gone) => this.#onSlotFree(gone),
      });
      if (this.#isPaused || database.isPaused) pool.isPaused = true;
      pool.isShuttingDown = this.#isShuttingDown;
      this.#pools.set(key, pool);
    }
    return pool;
  }

  /** Makes the pools that need connections before any client comes (forced user, `min_pool_size`). */
  prepare(): void {
    for (const entry of this.#index.config.databases) {
      if (entry.user === null) continue;
      if (this.#sharesOf(entry, entry.user).min === 0) continue;
      this.get(this.database(entry), entry.user);
    }
  }

  /** Three times a second. */
  tick(now: number): void {
    for (const pool of this.#pools.values()) pool.tick(now);
  }

  /** PAUSE of everything: free servers close, the others when they are released. */
  pause(): void {
    this.#isPaused = true;
    for (const pool of this.#pools.values()) pool.pause();
  }

  resume(): void {
    this.#isPaused = false;
    for (const pool of this.#pools.values()) pool.resume();
  }

  /** Server connections that hold a slot, in all pools. */
  get connections(): number {
    let count = 0;
    for (const pool of this.#pools.values()) count += pool.total;
    return count;
  }

  /** SHUTDOWN WAIT_FOR_SERVERS. */
  shutDown(): void {
    this.#isPaused = true;
    this.#isShuttingDown = true;
    for (const pool of this.#pools.values()) pool.shutDown();
  }

  #budgetOf(user: string, entry: DatabaseEntry): Budget {
    let budget = this.#userBudgets.get(user);
    if (budget === undefined) {
      budget = new Budget(
        effectiveMaxUserConnections(this.#index, user).kind === 'unlimited'
          ? { kind: 'unlimited' }
          : this.#sharesOf(entry, user).user,
      );
      this.#userBudgets.set(user, budget);
    }
    return budget;
  }

  #sharesOf(entry: DatabaseEntry, user: string) {
    return poolShares(this.#index, entry, user, this.#place.size).perWorker[this.#place.worker]!;
  }

  /**
   * Closes the least recently used idle connection that counts against `budget`, of any pool but the
   * asking one (PgBouncer's eviction). One at a time: a slot that is about to come free is enough,
   * or a queue of clients would close every idle connection for one slot.
   */
  #evict(asking: Pool, budget: Budget): void {
    let victim: Pool | null = null;
    for (const pool of this.#pools.values()) {
      if (pool.database.budget !== budget && pool.userBudget !== budget) continue;
      if (pool.isSlotComing) return;
      if (pool === asking || pool.oldestFreeSince === Number.POSITIVE_INFINITY) continue;
      if (victim === null || pool.oldestFreeSince < victim.oldestFreeSince) victim = pool;
    }
    victim?.evictIdle();
  }

  /**
   * A slot of `gone` is free, or held by a connection that may be evicted: serves the queues of the
   * pools that share a limit with it, the longest waiting client first.
   */
  #onSlotFree(gone: Pool): void {
    const isShared =
      Number.isFinite(gone.database.budget.max) || Number.isFinite(gone.userBudget.max);
    if (!isShared) {
      gone.serveQueue();
      return;
    }
    const asking: Pool[] = [];
    for (const pool of this.#pools.values()) {
      const shares =
        pool.database.budget === gone.database.budget || pool.userBudget === gone.userBudget;
      if (shares && pool.waiting.size > 0) asking.push(pool);
    }
    if (asking.length === 0) {
      gone.database.budget.isWanted = false;
      gone.userBudget.isWanted = false;
    }
    asking.sort((a, b) => (a.waiting.first?.waitStart ?? 0) - (b.waiting.first?.waitStart ?? 0));
    for (const pool of asking) pool.serveQueue();
  }
}
