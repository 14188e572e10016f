import type { Budget } from '../budget/budget.ts';
import { log } from '../log/logger.ts';
import type { StalePlans } from '../metrics/stale-plans.ts';
import type { Traffic } from '../metrics/traffic.ts';
import type { TrackedNames, TrackedValues } from '../server/parameters.ts';
import { onSettingsApplied, onUnreportedReset, settingStatements } from '../server/parameters.ts';
import {
  type ServerConnection,
  type ServerOwner,
  ServerState,
} from '../server/server-connection.ts';
import type { Refusal } from '../server/server-login.ts';
import type { Credentials, Opener } from '../server/server-opener.ts';
import { clock } from '../util/clock.ts';
import { cutText } from '../util/cut-text.ts';
import { List } from '../util/list.ts';
import type { Database } from './database.ts';
import type { PoolPlan } from './plan.ts';
import type { PoolClient, ServerSource } from './pool-client.ts';
import { ReplicationServers } from './replication.ts';
import { Upkeep } from './upkeep.ts';

/**
 * The connections of one database and one server-side user, and the clients that wait for them.
 * Clients come with `acquire`, are linked by `link`, and give their server back at a transaction's
 * end (`onReady`) or when they leave (`leave`). A freed server goes to the client that has waited
 * longest before anybody else sees it. Clients that replicate have servers of their own, which count
 * as the pool's: see `replication.ts`.
 *
 *   opening -> idle <-> linked -> (held by a cancel | reset | parked for a check) -> idle
 *
 * Each state of a server is a list here, and `place` is the only one that moves a server, so what
 * SHOW POOLS counts is what is there.
 */

/** Longest reason that is remembered for clients that come after a failed login. */
const MAX_CACHED_REASON_BYTES = 99;
/**
 * Logins of one pool that may be in progress at a time, where PgBouncer has one after the other: a
 * burst of clients need not wait for as many logins in a row, and PostgreSQL forks no crowd at once.
 */
const MAX_LOGINS_AT_A_TIME = 4;

/** What all pools of a worker share. */
export interface PoolOptions {
  readonly tracked: TrackedNames;
  readonly registry: ServerOwner['registry'];
  readonly translator: ServerOwner['translator'];
  readonly maxPacketBytes: number;
  readonly logsConnections: boolean;
  readonly logsDisconnections: boolean;
  /** A connection has logged in, or one that had is gone. */
  readonly onServerOpen: (server: ServerConnection) => void;
  readonly onServerEnd: (server: ServerConnection) => void;
}

export class Pool implements ServerOwner, ServerSource {
  readonly replicationKind = 'none';
  readonly database: Database;
  readonly user: string;
  readonly tracked: TrackedNames;
  readonly registry: ServerOwner['registry'];
  readonly translator: ServerOwner['translator'];
  readonly traffic: Traffic;
  readonly stalePlans: StalePlans;
  maxPacketBytes: number;
  logsConnections: boolean;
  logsDisconnections: boolean;
  #options: PoolOptions;
  plan: PoolPlan;
  readonly opening = new List<ServerConnection>();
  readonly idle = new List<ServerConnection>();
  readonly linked = new List<ServerConnection>();
  readonly tested = new List<ServerConnection>();
  readonly used = new List<ServerConnection>();
  readonly held = new List<ServerConnection>();
  readonly closing = new List<ServerConnection>();
  /** Clients that wait for a server, the longest first; those without their welcome among them. */
  readonly waiting = new List<PoolClient>();
  readonly replication: ReplicationServers = new ReplicationServers(this);
  readonly #upkeep: Upkeep = new Upkeep(this);
  /** Logged-in clients of this pool, waiting ones included. */
  clients = 0;
  isPaused = false;
  /** Servers are being let go for good: nobody may queue, and no connection is opened. */
  isShuttingDown = false;
  /** A retired pool of the same database and user, whose connections count against this size too. */
  predecessor: Pool | null = null;
  /** Last moment, in milliseconds of the coarse clock, at which it had a client or a connection. */
  lastUsed = clock.now;
  /** Parameters for the welcome, in order, once the first connection has logged in. */
  welcome: ReadonlyMap<string, string> | null = null;
  /** The server's original values of the tracked ones. */
  welcomeTracked: TrackedValues | null = null;
  readonly #userBudget: Budget;
  #opener: Opener;
  /** Where its clients belong since it has been retired. */
  #successor: ((client: PoolClient) => Pool) | null = null;
  readonly #credentials: () => Credentials;
  readonly #evictFor: (pool: Pool, budget: Budget) => void;
  readonly #onSlotFree: (pool: Pool) => void;
  #attemptAt = Number.NEGATIVE_INFINITY;
  #hasLoginFailed = false;
  #failure = '';
  #lifetimeCloseAt = Number.NEGATIVE_INFINITY;

  constructor(
    database: Database,
    user: string,
    plan: PoolPlan,
    options: PoolOptions,
    wiring: {
      userBudget: Budget;
      opener: Opener;
      credentials: () => Credentials;
      /** Sees to it that a slot of a full limit comes free, if another pool has an idle connection. */
      evictFor: (pool: Pool, budget: Budget) => void;
      /** A slot of this pool is free: serves the queues of all pools that may use it. */
      onSlotFree: (pool: Pool) => void;
    },
  ) {
    this.database = database;
    this.user = user;
    this.plan = plan;
    this.#options = options;
    this.tracked = options.tracked;
    this.registry = options.registry;
    this.translator = options.translator;
    this.traffic = database.traffic;
    this.stalePlans = database.stalePlans;
    this.maxPacketBytes = options.maxPacketBytes;
    this.logsConnections = options.logsConnections;
    this.logsDisconnections = options.logsDisconnections;
    this.#userBudget = wiring.userBudget;
    this.#opener = wiring.opener;
    this.#credentials = wiring.credentials;
    this.#evictFor = wiring.evictFor;
    this.#onSlotFree = wiring.onSlotFree;
  }

  get forbidsTransactions(): boolean {
    return this.plan.mode === 'statement';
  }

  get userBudget(): Budget {
    return this.#userBudget;
  }

  /** Connections that hold a slot, whatever their state. */
  get total(): number {
    return (
      this.opening.size +
      this.idle.size +
      this.linked.size +
      this.tested.size +
      this.used.size +
      this.held.size +
      this.closing.size
    );
  }

  /** Connections that have not been told to end, in no order; the one in hand may leave its list. */
  *current(): Generator<ServerConnection> {
    for (const list of [this.opening, this.idle, this.used, this.tested, this.held, this.linked]) {
      yield* list;
    }
  }

  /** Connections that have logged in and can still serve. */
  get connected(): number {
    return this.total - this.opening.size - this.closing.size;
  }

  get hasRoom(): boolean {
    return this.total + this.#totalBefore < this.plan.size;
  }

  /** Connections of pools that were in this one's place before. */
  get #totalBefore(): number {
    let total = 0;
    for (let pool = this.predecessor; pool !== null; pool = pool.predecessor) total += pool.total;
    return total;
  }

  /** `other` has been in this pool's place, and what it still holds takes room here. */
  isAfter(other: Pool): boolean {
    for (let pool = this.predecessor; pool !== null; pool = pool.predecessor) {
      if (pool === other) return true;
    }
    return false;
  }

  /** The setting whose limit another connection would exceed; null: none. */
  get fullLimit(): string | null {
    if (!this.hasRoom) return 'pool_size';
    const full = this.#fullBudget;
    if (full === null) return null;
    return full === this.#userBudget ? 'max_user_connections' : 'max_db_connections';
  }

  /** A limit that it shares with other pools and that is used up; null: none. */
  get #fullBudget(): Budget | null {
    const { budget } = this.database;
    if (!budget.hasRoom) return budget;
    return this.#userBudget.hasRoom ? null : this.#userBudget;
  }

  /** Clients that wait for a server. */
  get waitingClients(): number {
    return this.waiting.size + this.replication.waiting.size;
  }

  /** Since when the client has waited that has waited longest; Infinity: nobody waits. */
  get waitingSince(): number {
    const since = this.waiting.first?.waitStart ?? Number.POSITIVE_INFINITY;
    return Math.min(since, this.replication.waiting.first?.waitStart ?? since);
  }

  /** A client that came now would be given a server at once. */
  get hasFreeServer(): boolean {
    return this.idle.size > 0 && this.waiting.size === 0 && !this.isPaused;
  }

  /** One of the pool's servers has the statement. */
  hasStatement(statement: Parameters<ServerConnection['statements']['isConfirmed']>[0]): boolean {
    for (const list of [this.linked, this.idle, this.used, this.held]) {
      for (const server of list) if (server.statements.isConfirmed(statement)) return true;
    }
    return false;
  }

  // Clients

  /** What gives such a client its server. */
  sourceFor(client: PoolClient): ServerSource {
    return client.replication === null ? this : this.replication;
  }

  /** Gives the client a server now, and returns true; or queues it (or refuses it) and returns false. */
  acquire(client: PoolClient): boolean {
    if (this.#successor !== null) return this.moveOn(client).acquire(client);
    if (this.waiting.size === 0 && !this.isPaused && !this.isShuttingDown) {
      const server = this.#takeIdle();
      if (server !== null) return this.link(client, server);
    }
    if (this.refusesToQueue(client)) return false;
    this.enqueue(client);
    // A parked server that needs no check has come at once: nothing will call the client back.
    return client.server !== null && !client.server.isRunningOwn;
  }

  /** Refuses a client that would wait in vain, and returns true. */
  refusesToQueue(client: PoolClient): boolean {
    if (this.isShuttingDown) {
      client.refuse('08P01', 'server shutting down');
      return true;
    }
    if (!client.isWelcomed || !this.#failsFast()) return false;
    client.refuse(
      '08P01',
      `server login has been failing, cached error: ${this.#failure} (server_login_retry)`,
    );
    this.open();
    return true;
  }

  /** Puts the client at the end of the queue and sees to it that a server comes. */
  enqueue(client: PoolClient, since = clock.now): void {
    this.startWait(client, this.waiting, since);
  }

  /** The same for a queue of this pool. */
  startWait(client: PoolClient, queue: List<PoolClient>, since: number): void {
    client.waitStart = since;
    client.hasBeenNotified = false;
    queue.append(client);
    this.serveQueue();
  }

  /** The client in `queue` has got a server. */
  endWait(client: PoolClient, queue: List<PoolClient>): void {
    queue.remove(client);
    this.traffic.waitUs += (clock.now - client.waitStart) * 1000;
  }

  /**
   * Couples the two. Returns true when the client may go on at once; false when its parameters are
   * being applied first, after which `onServer` is called.
   */
  link(client: PoolClient, server: ServerConnection): boolean {
    if (client.list === this.waiting) this.endWait(client, this.waiting);
    this.place(server, ServerState.active, this.linked, false);
    server.client = client;
    client.server = server;
    this.traffic.serverAssignments++;
    const sql = settingStatements(this.tracked, client.tracked, server);
    if (sql === '') return true;
    server.debug(`varcache_apply: ${sql}`);
    server.runOwn(sql, (hasFailed) => {
      if (hasFailed) {
        server.close('invalid server parameter');
        return;
      }
      if (log.isDebug) this.#logSpellings(client, server);
      onSettingsApplied(client.tracked, server);
      client.onServer();
    });
    return false;
  }

  /** The server's spelling of what a client has set is the client's own from now on. */
  #logSpellings(client: PoolClient, server: ServerConnection): void {
    this.tracked.names.forEach((name, i) => {
      const [given, spelt] = [client.tracked[i]!, server.tracked[i]!];
      if (given === null || server.own[i] === null || given === spelt) return;
      const text = `setting ${name} to its canonical version ${given} -> ${spelt}`;
      log.debug(client.prefixed(`varcache_set_canonical: ${text}`));
    });
  }

  /** The client is going: takes it out of the queue or off its server. */
  leave(client: PoolClient): void {
    this.waiting.remove(client);
    const server = client.server;
    if (server === null) return;
    client.server = null;
    server.client = null;
    server.link.resume();
    const reason = reasonToClose(client, server);
    if (reason === null) this.#release(server);
    else server.close(reason, reason, client.isMidMessage);
  }

  /** Whether the client of this ready server keeps it. */
  #keepsServer(server: ServerConnection): boolean {
    return (
      this.plan.mode === 'session' ||
      server.requests.size > 0 ||
      server.isInTransaction ||
      (server.client as PoolClient).isMidRequest
    );
  }

  // ServerOwner

  onLoginBegin(): readonly [string, string][] {
    return [];
  }

  onReady(server: ServerConnection): void {
    const client = server.client as PoolClient | null;
    if (client === null) return;
    if (server.requests.size === 0) this.count(client, server);
    // The next query of a pipeline begins here, or `query_timeout` would add all of them up.
    else if (this.plan.queryTimeoutMs > 0) client.queryStart = clock.now;
    if (this.#keepsServer(server)) {
      if (server.isCloseNeeded) this.closeFast(server);
      return;
    }
    this.giveBack(client, server);
  }

  /** Ends the link of a client that stays; the server goes on to the next. */
  giveBack(client: PoolClient, server: ServerConnection): void {
    if (server.requests.mayOweMore) {
      // Answers that are still to come are this client's; it would wait for them in vain.
      server.sendBarrier();
      return;
    }
    client.server = null;
    server.client = null;
    // A slow client may have stopped it; what it had to say is in that client's hands now.
    server.link.resume();
    client.onServerFree();
    // What was read with its last ReadyForQuery is neither this client's nor the next one's.
    if (server.hasUnread) server.isReleaseDue = true;
    else this.#release(server);
  }

  onFree(server: ServerConnection): void {
    this.#release(server);
  }

  /** Counts what ended with this ReadyForQuery, the last that was outstanding. */
  count(client: PoolClient, server: ServerConnection): void {
    const { traffic } = this;
    if (client.queryStart > 0) {
      traffic.queries++;
      traffic.queryUs += (clock.now - client.queryStart) * 1000;
      client.queryStart = 0;
    }
    if (client.transactionStart > 0 && !server.isInTransaction) {
      traffic.transactions++;
      traffic.transactionUs += (clock.now - client.transactionStart) * 1000;
      client.transactionStart = 0;
    }
  }

  onLogin(server: ServerConnection): void {
    this.noteLogin(server);
    if (this.welcome === null) {
      this.welcome = new Map(server.loginParameters);
      this.welcomeTracked = [...server.tracked];
    }
    for (const client of this.waiting) {
      if (client.isWelcomed) continue;
      this.waiting.remove(client);
      client.onPoolReady();
    }
    if (server.state === ServerState.login) this.#makeUsable(server);
    // The next connection, for those who still wait.
    this.serveQueue();
  }

  onLoginFailed(_server: ServerConnection, reason: string, refusal: Refusal | null): void {
    this.noteLoginFailure(reason);
    if (refusal === null || refusal.sqlstate === '57P03') return;
    if (refusal.severity !== null) {
      log.warning(`server login failed: ${refusal.severity} ${refusal.message}`);
    }
    if (this.connected > 0 && this.welcome !== null) return;
    for (const client of this.waiting) client.refuse(refusal.sqlstate, refusal.message);
  }

  onRetry(server: ServerConnection, why: string): void {
    server.info(why);
    // It is no failed login: the next attempt need not wait, and comes when this one's slot is free.
    this.#attemptAt = Number.NEGATIVE_INFINITY;
  }

  /** A connection has logged in. */
  noteLogin(server: ServerConnection): void {
    this.#hasLoginFailed = false;
    this.#options.onServerOpen(server);
  }

  /** A connection could not be made: for a while no other is tried. */
  noteLoginFailure(reason: string): void {
    this.#hasLoginFailed = true;
    this.#failure = cutText(reason, MAX_CACHED_REASON_BYTES);
    this.#opener.onFailed();
  }

  onClosing(server: ServerConnection): void {
    this.closing.append(server);
  }

  onGone(server: ServerConnection): void {
    server.list?.remove(server);
    if (server.hasLoggedIn) this.#options.onServerEnd(server);
    this.database.budget.give();
    this.#userBudget.give();
    this.#onSlotFree(this);
  }

  // Servers

  /** A connection that nobody uses any more, and whose session is between transactions. */
  #release(server: ServerConnection): void {
    const { plan } = this;
    server.freeSince = clock.now;
    if (server.requests.isDoubtful) {
      server.close('unexpected answers');
    } else if (server.isMidReply) {
      // The rest would go to whoever is linked next.
      server.close('client disconnect before everything was sent to the server');
    } else if (!server.isReady) {
      server.close('idle server got dirty');
    } else if (this.isLifetimeOver(server)) {
      this.closeForLifetime(server);
    } else if (server.isCloseNeeded) {
      server.close('close_needed');
    } else if (server.cancelsInFlight > 0) {
      this.place(server, ServerState.held, this.held, false);
    } else if (plan.resetQuery !== null) {
      this.#runReset(server, plan.resetQuery);
    } else if (plan.checkDelayMs === 0 && plan.checkQuery !== null) {
      this.place(server, ServerState.used, this.used, true);
      this.serveQueue();
      if (server.state === ServerState.used) this.#offerSlot();
    } else {
      this.#makeUsable(server);
    }
  }

  /** All cancel requests for a held server have gone their way. */
  onCancelsGone(server: ServerConnection): void {
    if (server.state === ServerState.held && server.cancelsInFlight === 0) this.#release(server);
  }

  #runReset(server: ServerConnection, sql: string): void {
    this.place(server, ServerState.tested, this.tested, false);
    server.runOwn(sql, () => {
      onUnreportedReset(server);
      if (server.isInTransaction) server.close('reset query failed');
      else this.#makeUsable(server);
      this.serveQueue();
    });
  }

  /** Hands the server to the longest waiting client, or keeps it idle. */
  #makeUsable(server: ServerConnection): void {
    if (this.isPaused) {
      server.close('pause mode');
      return;
    }
    if (server.isCloseNeeded) {
      server.close('close_needed');
      return;
    }
    if (this.replication.claimsSlot) {
      server.close(`evicted for ${this.fullLimit}`);
      return;
    }
    const client = this.waiting.first;
    if (client !== null) {
      if (this.link(client, server)) client.onServer();
      return;
    }
    const atFront = !this.plan.isRoundRobin;
    this.place(server, ServerState.idle, this.idle, atFront);
    this.#offerSlot();
  }

  /** A connection has become free that nobody here waits for: one that needs its slot may evict it. */
  #offerSlot(): void {
    if (this.database.budget.isWanted || this.#userBudget.isWanted) this.#onSlotFree(this);
  }

  #takeIdle(): ServerConnection | null {
    for (let server = this.idle.first; server !== null; server = this.idle.first) {
      if (server.isCloseNeeded) server.close('obsolete connection');
      else if (!server.isReady) server.close('idle server got dirty');
      else return server;
    }
    return null;
  }

  /** Sees to it that the clients in the queue get servers: idle ones, checked ones, new ones. */
  serveQueue(): void {
    if (this.isPaused) return;
    if (this.replication.isFirst) this.replication.serve();
    while (this.waiting.first !== null) {
      const client = this.waiting.first;
      if (!client.isWelcomed && this.welcome === null) break;
      const server = this.#takeIdle();
      if (server === null) break;
      if (!client.isWelcomed) {
        this.waiting.remove(client);
        client.onPoolReady();
      } else if (this.link(client, server)) client.onServer();
    }
    // Each server that is being tested will be for one of those who wait.
    while (this.waiting.size > this.tested.size && this.used.first !== null) {
      this.#check(this.used.first);
    }
    // As is each that is logging in.
    while (this.waiting.size > this.tested.size + this.opening.size) if (!this.open()) break;
    this.replication.serve();
  }

  /** Runs the check query on a server that has been idle for long; it is usable after that. */
  #check(server: ServerConnection): void {
    const { checkQuery, checkDelayMs } = this.plan;
    if (!server.isReady) {
      server.close('idle server got dirty');
      return;
    }
    this.place(server, ServerState.tested, this.tested, false);
    if (
      checkQuery === null ||
      (checkDelayMs > 0 && clock.now - server.lastActivity < checkDelayMs)
    ) {
      this.#makeUsable(server);
      return;
    }
    server.runOwn(checkQuery, () => {
      if (server.isInTransaction) server.close('test query failed');
      else this.#makeUsable(server);
      this.serveQueue();
    });
  }

  /**
   * Starts a connection attempt if the rules and the limits allow one, and returns whether they do.
   * @param mayEvict an idle connection of another pool may be closed to make room below a limit
   */
  open(mayEvict = true): boolean {
    if (!this.canAttempt || !this.hasSlotFor(this.waiting.first, mayEvict)) return false;
    this.start(this);
    return true;
  }

  /** Nothing but a limit stands against another connection attempt. */
  get canAttempt(): boolean {
    if (this.opening.size >= this.#mostLogins || this.isPaused || this.isShuttingDown) return false;
    return !this.#hasLoginFailed || clock.now - this.#attemptAt >= this.plan.loginRetryMs;
  }

  /**
   * A first login shows that logins succeed before there are several, and as of a failure they are
   * tried one by one again. So are those of the reserve, each of which is for a client that has
   * waited for long.
   */
  get #mostLogins(): number {
    const isTried = this.welcome !== null && !this.#hasLoginFailed;
    return isTried && this.hasRoom ? MAX_LOGINS_AT_A_TIME : 1;
  }

  /** Whether the limits allow one more connection, for the client that has waited longest or none. */
  hasSlotFor(first: PoolClient | null, mayEvict: boolean): boolean {
    if (!this.hasRoom && !this.#mayUseReserve(first)) return false;
    const full = this.#fullBudget;
    if (full === null) return true;
    // An evicted connection holds its slot until its end of file; `onGone` comes back here.
    if (mayEvict) {
      full.isWanted = true;
      this.#evictFor(this, full);
    }
    return false;
  }

  /** Takes a slot and starts a connection attempt of `owner`, this pool or one of its clients. */
  start(owner: ServerOwner): ServerConnection {
    if (!this.hasRoom) {
      const text = 'taking connection from reserve_pool';
      log.warning(this.waiting.first?.prefixed(text) ?? text);
    }
    this.database.budget.take();
    this.#userBudget.take();
    this.#attemptAt = clock.now;
    const server = this.#opener.open(owner, this.#credentials());
    this.opening.append(server);
    return server;
  }

  #mayUseReserve(first: PoolClient | null): boolean {
    const { reserveSize, reserveTimeoutMs, size } = this.plan;
    if (reserveSize === 0 || reserveTimeoutMs === 0 || first === null) return false;
    if (clock.now - first.waitStart < reserveTimeoutMs) return false;
    return this.total + this.#totalBefore < size + reserveSize;
  }

  /** Clients that come while every login fails, and no server is left, are not kept waiting. */
  #failsFast(): boolean {
    return this.#hasLoginFailed && this.connected === 0;
  }

  /**
   * It has served for `server_lifetime` (0: once), and it is long enough since another was closed for
   * that, so that a pool does not lose all of its connections at one time.
   */
  isLifetimeOver(server: ServerConnection): boolean {
    const { serverLifetimeMs, size } = this.plan;
    if (serverLifetimeMs === 0) return true;
    if (clock.now - server.connectedAt < serverLifetimeMs) return false;
    const spacing = Number.isFinite(size) && size > 0 ? serverLifetimeMs / size : 0;
    return clock.now - this.#lifetimeCloseAt >= spacing;
  }

  closeForLifetime(server: ServerConnection): void {
    this.#lifetimeCloseAt = clock.now;
    server.close('server lifetime over');
  }

  /** Closes the least recently used idle connection for a full limit; false when there is none. */
  evictIdle(limit: string): boolean {
    const server = this.#oldestFree();
    server?.close(`evicted for ${limit}`);
    return server !== null;
  }

  /** A connection that was free has been told to end, so that its slot is about to come free. */
  get isSlotComing(): boolean {
    for (const server of this.closing) if (server.isReady) return true;
    return false;
  }

  /** When the connection that eviction would close became free; Infinity: none can be closed. */
  get oldestFreeSince(): number {
    return this.#oldestFree()?.freeSince ?? Number.POSITIVE_INFINITY;
  }

  #oldestFree(): ServerConnection | null {
    let oldest: ServerConnection | null = null;
    for (const server of this.idle) {
      if (oldest === null || server.freeSince < oldest.freeSince) oldest = server;
    }
    if (this.waiting.size > 0) return oldest;
    for (const server of this.used) {
      if (oldest === null || server.freeSince < oldest.freeSince) oldest = server;
    }
    return oldest;
  }

  /** Closes what is free; servers in use are closed when they are released. */
  pause(): void {
    this.isPaused = true;
    for (const list of [this.idle, this.used, this.opening]) {
      for (const server of list) server.close('pause mode');
    }
  }

  /** Servers that somebody still uses, or that the pooler itself does. */
  get isDrained(): boolean {
    return this.linked.size === 0 && this.tested.size === 0 && this.held.size === 0;
  }

  /** A server is still to be replaced after `reconnect`. */
  get hasCloseNeeded(): boolean {
    for (const server of this.current()) if (server.isCloseNeeded) return true;
    return false;
  }

  /** Lets the servers go as they become free and refuses everybody who waits for one. */
  shutDown(): void {
    this.isShuttingDown = true;
    this.pause();
    for (const client of this.queued()) client.refuse('08P01', 'server shutting down');
  }

  /** All clients that wait, whatever for; the one in hand may leave. */
  *queued(): Generator<PoolClient> {
    yield* this.waiting;
    yield* this.replication.waiting;
  }

  resume(): void {
    this.isPaused = false;
    this.serveQueue();
  }

  /**
   * Every server is to be replaced as it becomes free, and the parameters for the welcome are learnt
   * anew (PgBouncer's RECONNECT, and a change of where or how the pool connects).
   */
  reconnect(): void {
    this.welcome = null;
    this.welcomeTracked = null;
    for (const list of [this.linked, this.tested, this.held]) {
      for (const server of list) server.isCloseNeeded = true;
    }
    for (const server of this.opening) server.close('connect string changed');
    for (const list of [this.idle, this.used]) {
      for (const server of list) server.close('database configuration changed');
    }
    this.serveQueue();
  }

  // Reload

  /** Another configuration is in force. `opener` is null when connections are made as before. */
  reconfigure(options: PoolOptions, plan: PoolPlan, opener: Opener | null): void {
    this.#options = options;
    this.maxPacketBytes = options.maxPacketBytes;
    this.logsConnections = options.logsConnections;
    this.logsDisconnections = options.logsDisconnections;
    if (opener !== null) this.#opener = opener;
    if (this.plan.mode === 'session' && plan.mode !== 'session') {
      // What a session has left behind is cleared away in session mode only.
      for (const server of this.linked) {
        if (server.owner === this) server.isCloseNeeded = true;
      }
    }
    this.plan = plan;
  }

  /**
   * Serves nobody any more: what waits goes to `successor`, as do clients when they next need a
   * server. Null: its clients are about to be closed.
   */
  retire(successor: ((client: PoolClient) => Pool) | null): void {
    this.isShuttingDown = true;
    this.#successor = successor;
    this.plan = { ...this.plan, minSize: 0 };
    if (successor === null) {
      // Nobody but the pool knows of those, and their clients are no clients of this database.
      for (const client of this.waiting) {
        if (client.serverUser !== null) client.refuse('08P01', 'database removed');
      }
      return;
    }
    for (const client of this.waiting) this.moveOn(client);
    this.replication.moveOn();
  }

  get isRetired(): boolean {
    return this.#successor !== null;
  }

  /** Gives a client without a server to the pool where it belongs now, and returns that. */
  moveOn(client: PoolClient): Pool {
    const next = this.#successor!(client);
    const isWaiting = client.list !== null;
    client.list?.remove(client);
    this.clients--;
    next.clients++;
    client.pool = next;
    if (!isWaiting) return next;
    if (!client.isWelcomed && next.welcome !== null) client.onPoolReady();
    else next.sourceFor(client).enqueue(client, client.waitStart);
    return next;
  }

  /** Closes every connection, linked ones too, and forgets the parameters for the welcome. */
  closeAll(reason: string): void {
    this.welcome = null;
    this.welcomeTracked = null;
    for (const server of this.current()) server.close(reason);
  }

  /**
   * The limits leave this worker no connection of the pool, so nobody who waits here would ever be
   * served: they are told to come back, and are then passed to a worker that has one.
   */
  turnAwaySlotless(): void {
    if (this.isPaused || this.isShuttingDown) return;
    const { size, reserveSize } = this.plan;
    const slots = Math.min(size + reserveSize, this.database.budget.max, this.#userBudget.max);
    if (slots > 0 || this.connected + this.opening.size > 0) return;
    for (const client of this.queued()) client.refuse('57P01', 'database configuration changed');
  }

  /** `server_fast_close`: a session's server that is to be replaced goes between two transactions. */
  closeFast(server: ServerConnection): void {
    const { mode, closesFast } = this.plan;
    const client = server.client as PoolClient | null;
    if (!closesFast || mode !== 'session' || client === null || client.isMidRequest) return;
    if (!server.isAtRest || server.isInTransaction || server.isRunningOwn) return;
    server.close('database configuration changed');
  }

  /** Everything that time alone brings about. `now` is the coarse clock's. */
  tick(now: number): void {
    this.#upkeep.tick(now);
  }

  /** The only one that moves a server from list to list. */
  place(
    server: ServerConnection,
    state: ServerState,
    list: List<ServerConnection>,
    atFront: boolean,
  ): void {
    server.changeState(state);
    if (atFront) list.prepend(server);
    else list.append(server);
  }
}

/** Why the server of a client that leaves cannot be used by another (PgBouncer's words); null: it can. */
function reasonToClose(client: PoolClient, server: ServerConnection): string | null {
  if (server.isRunningOwn || !server.isReady || client.isMidRequest || server.isInTransaction) {
    return 'client disconnect while server was not ready';
  }
  return server.requests.size > 0 ? 'client disconnected with query in progress' : null;
}
