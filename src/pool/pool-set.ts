import { Budget } from '../budget/budget.ts';
import type { DatabaseEntry } from '../config/config.ts';
import { databaseFate, type Fate } from '../config/diff.ts';
import {
  type ConfigIndex,
  effectiveMaxUserConnections,
  type Limit,
  lowerLimit,
  poolUserOf,
} from '../config/effective.ts';
import { poolShares } from '../config/split.ts';
import { log } from '../log/logger.ts';
import { Traffic } from '../metrics/traffic.ts';
import type { Credentials, Opener } from '../server/server-opener.ts';
import { Database } from './database.ts';
import { type PoolPlan, planPool, withSmallerSizes } from './plan.ts';
import { Pool, type PoolOptions } from './pool.ts';
import { shedServers, shedShared, stayingIn } from './shed.ts';

/** A worker's place in the fleet. */
export interface WorkerPlace {
  readonly worker: number;
  readonly size: number;
}

/** All pools of a worker, made when a client first needs them, and the limits that they share. */
export class PoolSet {
  #index: ConfigIndex;
  /** While other workers may not have switched to `#index` yet: its limits hold as well. */
  #previous: ConfigIndex | null;
  readonly #place: WorkerPlace;
  #options: PoolOptions;
  readonly #openerOf: (entry: DatabaseEntry) => Opener;
  readonly #credentialsOf: (entry: DatabaseEntry, user: string) => Credentials;
  readonly #databases = new Map<string, Database>();
  readonly #pools = new Map<string, Pool>();
  /** Pools that serve nobody any more, until their last connection and client are gone. */
  readonly #retired = new Set<Pool>();
  readonly #userBudgets = new Map<string, Budget>();
  #isPaused = false;
  #isShuttingDown = false;

  constructor(
    index: ConfigIndex,
    place: WorkerPlace,
    options: PoolOptions,
    openerOf: (entry: DatabaseEntry) => Opener,
    credentialsOf: (entry: DatabaseEntry, user: string) => Credentials,
    previous: ConfigIndex | null = null,
  ) {
    this.#index = index;
    this.#previous = previous;
    this.#place = place;
    this.#options = options;
    this.#openerOf = openerOf;
    this.#credentialsOf = credentialsOf;
  }

  get all(): readonly Pool[] {
    return [...this.#pools.values(), ...this.#retired];
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
      const left = this.#leftOf(entry.name)?.database.budget;
      const limit = this.#limitOf(entry);
      left?.resize(limit);
      database = new Database(entry.name, entry, left ?? limit);
      this.#databases.set(entry.name, database);
    }
    return database;
  }

  /** The pool of a database and the user that its connections log in as. */
  get(database: Database, user: string): Pool {
    const key = keyOf(database.name, user);
    let pool = this.#pools.get(key);
    if (pool === undefined) {
      const { entry } = database;
      pool = new Pool(database, user, this.#plan(entry, user), this.#options, {
        userBudget: this.#budgetOf(user, entry),
        opener: this.#openerOf(entry),
        credentials: () => this.#credentialsOf(database.entry, user),
        evictFor: (asking, budget) => this.#evict(asking, budget),
        onSlotFree: (gone) => this.#onSlotFree(gone),
      });
      if (this.#isPaused || database.isPaused) pool.isPaused = true;
      pool.isShuttingDown = this.#isShuttingDown;
      pool.predecessor = this.#leftOf(database.name, user) ?? null;
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
    for (const pool of this.all) {
      pool.tick(now);
      if (this.#previous === null) pool.turnAwaySlotless();
    }
    this.#sweep(now);
  }

  /** PAUSE of everything: free servers close, the others when they are released. */
  pause(): void {
    this.#isPaused = true;
    for (const pool of this.all) pool.pause();
  }

  /** Ends the pause of everything; databases with a pause of their own stay paused. */
  resume(): void {
    this.#isPaused = false;
    for (const pool of this.all) if (!pool.database.isPaused) pool.resume();
  }

  pauseDatabase(database: Database): void {
    database.isPaused = true;
    for (const pool of this.poolsOf(database)) pool.pause();
  }

  resumeDatabase(database: Database): void {
    database.isPaused = false;
    if (this.#isPaused) return;
    for (const pool of this.poolsOf(database)) pool.resume();
  }

  /** Pools of a database, those too that serve nobody any more. */
  poolsOf(database: Database): Pool[] {
    return this.all.filter((pool) => pool.database === database);
  }

  /**
   * Closes every connection of a database, linked ones with their clients, and forgets its pools with
   * what was counted and learnt. Clients without a server are the caller's to close.
   */
  end(database: Database, reason: string): void {
    for (const pool of this.poolsOf(database)) {
      if (!this.#retired.has(pool)) this.#retire(pool, null);
      pool.closeAll(reason);
    }
    database.traffic = new Traffic();
  }

  /** Server connections that hold a slot, in all pools. */
  get connections(): number {
    let count = 0;
    for (const pool of this.all) count += pool.total;
    return count;
  }

  /** SHUTDOWN WAIT_FOR_SERVERS. */
  shutDown(): void {
    this.#isPaused = true;
    this.#isShuttingDown = true;
    for (const pool of this.all) pool.shutDown();
  }

  /**
   * Puts another configuration in force. Each limit is the smaller of the old and the new one until
   * `release`. The clients of databases that are gone are the caller's to close, then `closeGone`.
   */
  reconfigure(index: ConfigIndex, options: PoolOptions): void {
    const old = this.#index;
    this.#index = index;
    this.#previous = old;
    this.#options = options;
    for (const database of [...this.#databases.values()]) {
      const fate = databaseFate(old, index, database.name);
      if (fate === 'removed') {
        if (!old.hasDatabase(database.name)) logDropped(database.name);
        this.#drop(database);
      } else if (fate !== 'kept') {
        this.#change(database, index.database(database.name)!, fate);
      }
    }
    this.#fitLimits();
    this.prepare();
  }

  /** Every worker keeps to the new limits: what they give more than the old ones may be used. */
  release(): void {
    this.#previous = null;
    this.#fitLimits();
    this.prepare();
  }

  /** Closes the connections of databases that are gone. */
  closeGone(): void {
    for (const pool of this.#retired) {
      if (pool.database.isGone) pool.closeAll('database removed');
    }
  }

  #change(database: Database, entry: DatabaseEntry, fate: Fate): void {
    const isOtherUser = database.entry.user !== entry.user;
    database.entry = entry;
    for (const pool of this.#livePoolsOf(database)) {
      if (isOtherUser) {
        // Its clients may belong to different pools now, or all to one.
        this.#retire(pool, (client) =>
          this.get(database, client.serverUser ?? poolUserOf(entry, client.userName)),
        );
      }
      const plan = isOtherUser ? pool.plan : this.#plan(entry, pool.user);
      pool.reconfigure(this.#options, plan, this.#openerOf(entry));
      if (fate === 'recycled') pool.reconnect();
    }
  }

  /** Forgets a database with all of its pools. */
  #drop(database: Database): void {
    database.isGone = true;
    for (const pool of this.#livePoolsOf(database)) this.#retire(pool, null);
    this.#databases.delete(database.name);
  }

  #retire(pool: Pool, successor: Parameters<Pool['retire']>[0]): void {
    this.#pools.delete(keyOf(pool.database.name, pool.user));
    this.#retired.add(pool);
    pool.retire(successor);
  }

  #livePoolsOf(database: Database): Pool[] {
    return [...this.#pools.values()].filter((pool) => pool.database === database);
  }

  /** The last retired pool of that name that still holds connections. */
  #leftOf(database: string, user?: string): Pool | undefined {
    let last: Pool | undefined;
    for (const pool of this.#retired) {
      if (pool.database.name !== database || (user !== undefined && pool.user !== user)) continue;
      if (pool.total > 0) last = pool;
    }
    return last;
  }

  /** Recomputes plans and limits, lets go of what is above them and uses what they give. */
  #fitLimits(): void {
    const pools = [...this.#pools.values()];
    for (const database of this.#databases.values()) {
      database.budget.resize(this.#limitOf(database.entry));
    }
    for (const pool of pools) {
      const { entry } = pool.database;
      pool.reconfigure(this.#options, this.#plan(entry, pool.user), null);
      this.#budgetOf(pool.user, entry);
    }
    for (const pool of pools) {
      const { size, reserveSize } = pool.plan;
      shedServers(pool, stayingIn(pool) - size - reserveSize, 'too many servers in the pool');
    }
    const shared = new Set<Budget>(
      pools.flatMap((pool) => [pool.database.budget, pool.userBudget]),
    );
    for (const budget of shared) {
      const sharing = pools.filter(
        (pool) => pool.database.budget === budget || pool.userBudget === budget,
      );
      shedShared(sharing, budget.max, 'too many servers in the pool');
    }
    for (const pool of pools) pool.serveQueue();
  }

  /** Forgets retired pools that are empty, and pools and automatic databases that are long unused. */
  #sweep(now: number): void {
    for (const pool of this.#retired) {
      if (pool.total > 0 || pool.clients > 0) continue;
      this.#retired.delete(pool);
      for (const other of this.all) {
        if (other.predecessor === pool) other.predecessor = pool.predecessor;
      }
    }
    for (const pool of this.#pools.values()) {
      if (pool.clients > 0 || pool.total > 0) {
        pool.database.lastUsed = now;
        continue;
      }
      const { poolIdleMs } = pool.plan;
      if (poolIdleMs === 0 || now - pool.lastUsed <= poolIdleMs) continue;
      const seconds = Math.floor((now - pool.lastUsed) / 1000);
      log.info(
        `cleaning up idle pool for user ${pool.user} on db ${pool.database.name} ` +
          `because: pool idle timeout (age= ${seconds}s)`,
      );
      this.#pools.delete(keyOf(pool.database.name, pool.user));
    }
    const autoIdleMs = this.#index.settings.autodb_idle_timeout * 1000;
    if (autoIdleMs === 0) return;
    for (const database of this.#databases.values()) {
      if (this.#index.hasDatabase(database.name) || database.isPaused) continue;
      if (database.isDisabled || now - database.lastUsed <= autoIdleMs) continue;
      logDropped(database.name);
      this.#drop(database);
    }
  }

  #plan(entry: DatabaseEntry, user: string): PoolPlan {
    const { worker, size } = this.#place;
    const plan = planPool(this.#index, entry, user, worker, size);
    const before = this.#previous?.database(entry.name) ?? null;
    if (this.#previous === null || before === null) return plan;
    return withSmallerSizes(plan, planPool(this.#previous, before, user, worker, size));
  }

  #limitOf(entry: DatabaseEntry): Limit {
    return this.#lowest(entry, (index, line) => this.#sharesIn(index, line, '').db);
  }

  /** The smaller of what both configurations give, where both know the database. */
  #lowest(
    entry: DatabaseEntry,
    shareIn: (index: ConfigIndex, entry: DatabaseEntry) => Limit,
  ): Limit {
    const share = shareIn(this.#index, entry);
    const before = this.#previous?.database(entry.name) ?? null;
    if (this.#previous === null || before === null) return share;
    return lowerLimit(share, shareIn(this.#previous, before));
  }

  #budgetOf(user: string, entry: DatabaseEntry): Budget {
    const limit = this.#userLimitOf(user, entry);
    let budget = this.#userBudgets.get(user);
    if (budget === undefined) {
      budget = new Budget(limit);
      this.#userBudgets.set(user, budget);
    } else {
      budget.resize(limit);
    }
    return budget;
  }

  /** Any entry does: the share of a user does not depend on it. */
  #userLimitOf(user: string, entry: DatabaseEntry): Limit {
    const limit = this.#userLimitIn(this.#index, user, entry);
    if (this.#previous === null) return limit;
    return lowerLimit(limit, this.#userLimitIn(this.#previous, user, entry));
  }

  #userLimitIn(index: ConfigIndex, user: string, entry: DatabaseEntry): Limit {
    const limit = effectiveMaxUserConnections(index, user);
    return limit.kind === 'unlimited' ? limit : this.#sharesIn(index, entry, user).user;
  }

  #sharesOf(entry: DatabaseEntry, user: string) {
    return this.#sharesIn(this.#index, entry, user);
  }

  #sharesIn(index: ConfigIndex, entry: DatabaseEntry, user: string) {
    return poolShares(index, entry, user, this.#place.size).perWorker[this.#place.worker]!;
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
    const isDatabases = asking.database.budget === budget;
    victim?.evictIdle(isDatabases ? 'max_db_connections' : 'max_user_connections');
  }

  /**
   * A slot of `gone` is free, or held by a connection that may be evicted: serves the queues of the
   * pools that share a limit with it, the longest waiting client first.
   */
  #onSlotFree(gone: Pool): void {
    const isShared =
      Number.isFinite(gone.database.budget.max) || Number.isFinite(gone.userBudget.max);
    if (this.#retired.has(gone)) {
      for (const pool of this.#pools.values()) if (pool.isAfter(gone)) pool.serveQueue();
    }
    if (!isShared) {
      gone.serveQueue();
      return;
    }
    const asking: Pool[] = [];
    for (const pool of this.#pools.values()) {
      const shares =
        pool.database.budget === gone.database.budget || pool.userBudget === gone.userBudget;
      if (shares && pool.waitingClients > 0) asking.push(pool);
    }
    if (asking.length === 0) {
      gone.database.budget.isWanted = false;
      gone.userBudget.isWanted = false;
    }
    asking.sort((a, b) => a.waitingSince - b.waitingSince);
    for (const pool of asking) pool.serveQueue();
  }
}

function keyOf(database: string, user: string): string {
  return `${database}\0${user}`;
}

function logDropped(name: string): void {
  log.warning(`dropping database '${name}' as it does not exist anymore or inactive auto-database`);
}
