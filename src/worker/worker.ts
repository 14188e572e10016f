import type { Socket } from 'node:net';
import { join } from 'node:path';
import { ConsoleFactory } from '../admin/console.ts';
import { LearnedSecrets } from '../auth/learned-secrets.ts';
import { PassThroughKeys } from '../auth/pass-through.ts';
import { ProvedPasswords } from '../auth/proved-passwords.ts';
import { areKeysOf } from '../auth/scram.ts';
import type { StoredSecret } from '../auth/secret.ts';
import { CancelKeys } from '../cancel/cancel-keys.ts';
import {
  Canceller,
  type CancelPeer,
  type CancelTarget,
  type CancelTimeouts,
} from '../cancel/canceller.ts';
import { cancelOrphans } from '../cancel/orphans.ts';
import { Admission } from '../client/admission.ts';
import { AuthQueries, authUserOf } from '../client/auth-queries.ts';
import type { ClientOrigin } from '../client/client-origin.ts';
import { ClientSession, ClientState, type SocketKind } from '../client/client-session.ts';
import { type ClientContext, clientConfig } from '../client/context.ts';
import { UnixOwner } from '../client/unix-owner.ts';
import type { DatabaseEntry } from '../config/config.ts';
import {
  ConfigIndex,
  effectiveClientIdleTimeout,
  effectivePeerPoolSize,
  effectiveQueryWaitTimeout,
  poolUserOf,
} from '../config/effective.ts';
import type { Settings } from '../config/schema.ts';
import { poolShares, share } from '../config/split.ts';
import { splitCommas } from '../config/values.ts';
import type { ControlAction, StopMode } from '../ipc/control.ts';
import type { FromWorker, Handoff, ListenerGrant, StartMessage } from '../ipc/messages.ts';
import { LdapLogin } from '../ldap/ldap-login.ts';
import { log } from '../log/logger.ts';
import { Mesh } from '../mesh/mesh.ts';
import { sumTraffic } from '../metrics/sum-traffic.ts';
import type { Traffic } from '../metrics/traffic.ts';
import type { Link } from '../net/link.ts';
import { findServices } from '../net/services.ts';
import { acceptLink, handleOf, type SocketOptions, wrapHandle } from '../net/sockets.ts';
import { inTurn } from '../net/turn.ts';
import type { PoolOptions } from '../pool/pool.ts';
import { PoolSet } from '../pool/pool-set.ts';
import { StatementRegistry } from '../prepared/registry.ts';
import { StatementTranslator } from '../prepared/translator.ts';
import { connectLike, connectPeer, placeOf } from '../server/cancel-link.ts';
import { ExposedPasswords } from '../server/exposed-passwords.ts';
import { TrackedNames } from '../server/parameters.ts';
import { type Credentials, type OpenerOptions, ServerOpener } from '../server/server-opener.ts';
import { clock } from '../util/clock.ts';
import { startIds } from '../util/ids.ts';
import { WorkerControl } from './control.ts';
import { HostNames } from './host-names.ts';
import { LauncherPort } from './launcher-port.ts';
import { Listeners } from './listeners.ts';
import { LoginSharing } from './login-sharing.ts';
import { type BuiltConfig, buildConfig, EntrySecrets } from './reload.ts';
import { LiveSnapshots } from './snapshot.ts';
import { SocketPairs } from './socket-pair.ts';
import { handOffTls, originMessage, originOf, readOrigin } from './tls-handoff.ts';

/**
 * A pooler process: builds the rooms out of one configuration, accepts clients, and three times a
 * second does what time alone brings about.
 */

const TICK_MS = 333;
/** Values of `auth_type` with which clients may log in by LDAP. */
const LDAP_TYPES: ReadonlySet<string> = new Set(['ldap', 'hba']);

/** How a worker reaches its launcher; sends are lost without harm when there is none. */
export interface LauncherChannel {
  /** Returns false when there is none. */
  send(message: FromWorker): boolean;
  /** Hands a client over; `onFailed` is called when it could not be sent. */
  sendHandoff(message: Handoff, handle: object, onFailed: () => void): boolean;
}

export class Worker {
  readonly sessions = new Set<ClientSession>();
  /** How the launcher is asked for control of the fleet. */
  readonly port: LauncherPort;
  readonly #control: WorkerControl;
  readonly #start: StartMessage;
  readonly #channel: LauncherChannel;
  #built: BuiltConfig;
  readonly #context: ClientContext;
  readonly #pools: PoolSet;
  readonly #canceller: Canceller;
  readonly #mesh: Mesh;
  readonly #listeners: Listeners;
  readonly #snapshots: LiveSnapshots;
  readonly #hostNames: HostNames;
  readonly #socketPairs: SocketPairs;
  /** For sockets opened from now on. */
  #sockets: SocketOptions;
  /** For server connections opened from now on; openers keep this object. */
  readonly #openerOptions: { -readonly [K in keyof OpenerOptions]: OpenerOptions[K] };
  #poolOptions: PoolOptions;
  readonly #passThrough = new PassThroughKeys((proved) => void this.#sharing.tell(proved));
  readonly #learned = new LearnedSecrets();
  readonly #queries: AuthQueries;
  readonly #sharing: LoginSharing;
  readonly #provedPasswords = new ProvedPasswords();
  readonly #ldap: LdapLogin;
  readonly #entrySecrets = new EntrySecrets();
  #nextPlace = 0;
  #timer: NodeJS.Timeout | null = null;
  #stopMode: StopMode | null = null;
  /** What the launcher was told of it last; null: nothing yet. */
  #isStopDue: boolean | null = null;
  #onStopped: (() => void) | null = null;

  /** @throws Error when a file of the configuration cannot be used (TLS) */
  constructor(start: StartMessage, channel: LauncherChannel) {
    this.#start = start;
    this.#channel = channel;
    this.port = new LauncherPort((message) => channel.send(message));
    this.#built = buildConfig(start.config, null);
    const { settings } = this.#index;
    const previous = start.previous === null ? null : new ConfigIndex(start.previous);
    const { workerId: worker, size } = start;
    startIds(worker, size);
    this.#socketPairs = new SocketPairs(join(start.runtimeDir, `pair-${worker}.sock`));
    this.#sockets = socketOptions(settings);
    const tracked = new TrackedNames(splitCommas(settings.track_extra_parameters));
    const registry = new StatementRegistry();
    const translator = new StatementTranslator(registry, settings.max_prepared_statements);
    this.#hostNames = new HostNames({
      settings: () => this.#index.settings,
      worker,
      pools: () => this.#pools.all,
      tell: (news) => this.#mesh.requestAll(news),
    });
    const hosts = this.#hostNames.cache;
    this.#ldap = new LdapLogin({
      hosts,
      services: (name, ms) => findServices(name, this.#index.settings.resolv_conf, ms),
      env: process.env,
    });
    this.#openerOptions = {
      unixSocketDir: settings.unix_socket_dir,
      sockets: this.#sockets,
      tls: this.#built.tls,
      exposed: new ExposedPasswords(),
      hosts,
    };
    this.#poolOptions = {
      tracked,
      registry,
      translator,
      ...poolSettings(settings),
      onServerOpen: (server) => {
        const key = server.cancelKey.toString('base64');
        channel.send({ kind: 'server_open', id: server.id, ...placeOf(server), key });
      },
      onServerEnd: ({ id }) => channel.send({ kind: 'server_end', id }),
    };
    this.#pools = new PoolSet(
      this.#index,
      { worker, size },
      this.#poolOptions,
      (entry) => new ServerOpener(this.#openerOptions, entry, entry.name, worker),
      (entry, user) => this.#credentials(entry, user),
      previous,
    );
    const keys = new CancelKeys<CancelTarget>(worker, settings.peer_id);
    this.#mesh = new Mesh({
      runtimeDir: start.runtimeDir,
      workerId: worker,
      size,
      onCancel: (packet, done) => {
        let giveUp = (): void => {};
        inTurn(() => {
          giveUp = this.#canceller.handle(packet, done);
        });
        return () => inTurn(giveUp);
      },
      onRequest: (request, gone) =>
        this.#hostNames.takeNews(request) ||
        (this.#sharing.answer(request, gone) ?? console.answer(request)),
    });
    this.#sharing = new LoginSharing({
      mesh: () => this.#mesh,
      keys: () => this.#passThrough,
      queries: () => this.#queries,
    });
    this.#queries = new AuthQueries({
      worker,
      index: () => this.#index,
      pools: () => this.#pools,
      secretOf: (user) => this.#built.secrets.get(user),
      learned: this.#learned,
      holders: (entry, user) => poolShares(this.#index, entry, user, size).holders,
      askWorker: (id, question, gone) => this.#sharing.askWorker(id, question, gone),
    });
    const indexNow = (): ConfigIndex => this.#index;
    this.#canceller = new Canceller({
      keys,
      mesh: this.#mesh,
      worker,
      size,
      get peerId() {
        return indexNow().settings.peer_id;
      },
      peer: (id) => this.#cancelPeer(id),
      connect: (server, handler, onSafe) =>
        connectLike(placeOf(server), this.#openerOptions, handler, onSafe),
      connectPeer: (peer, handler, onSafe) =>
        connectPeer(peer, this.#openerOptions, handler, onSafe),
      timeouts: () => cancelTimeouts(this.#index.settings),
      onConsoleCancel: () => this.#resumeForConsole(),
    });
    this.#snapshots = new LiveSnapshots({
      worker,
      sessions: this.sessions,
      pools: this.#pools,
      canceller: this.#canceller,
      dns: this.#hostNames.cache,
      users: () => this.#built.secrets.keys(),
      admission: () => this.#context.admission,
      get index() {
        return indexNow();
      },
      isSuspended: () => this.#control.suspension.isOn,
      isStopping: () => this.#stopMode !== null,
      generation: start.generation,
      tracked,
      listeners: () => this.#listeners.descriptors,
      tickMs: TICK_MS,
    });
    const console = new ConsoleFactory({
      source: this.#snapshots,
      config: () => this.#index.config,
      mesh: this.#mesh,
      control: this.port,
    });
    this.#control = new WorkerControl({
      worker,
      index: () => this.#index,
      pools: this.#pools,
      sessions: this.sessions,
    });
    this.#context = {
      ...clientConfig(this.#index),
      clientTls: this.#built.clientTls,
      tracked,
      registry,
      translator,
      pools: this.#pools,
      admission: new Admission(this.#index, worker, size, previous),
      cancelKeys: keys,
      passThrough: this.#passThrough,
      provedPasswords: this.#provedPasswords,
      checkLdap: (options, claim, signal) => this.#ldap.check(options, claim, signal),
      console,
      unixOwner: new UnixOwner(pathOf(start.listeners), settings.unix_socket_mode),
      fleetSecret: Buffer.from(start.fleetSecret, 'hex'),
      secretProfile: () => this.#built.profile,
      findUser: (user, entry, session) => this.#queries.find(user, entry, session),
      isShuttingDown: false,
      onCancelRequest: (packet, done) => this.#canceller.handle(packet, done),
      worker,
      placesFor: (database, user) => this.#placesFor(database, user),
      handOff: (session, target, received) => this.#handOff(session, target, received),
      onSessionEnd: (session) => this.#onSessionEnd(session),
    };
    this.#listeners = new Listeners(start.listeners, settings.listen_backlog, (socket, kind) =>
      this.#onConnection(socket, kind),
    );
  }

  get #index(): ConfigIndex {
    return this.#built.index;
  }

  /** The configuration in force. */
  get built(): BuiltConfig {
    return this.#built;
  }

  get clients(): number {
    return this.sessions.size;
  }

  /** Counters of all databases together. */
  get counters(): Traffic {
    return sumTraffic(this.#pools.databases);
  }

  /** Joins the mesh and accepts clients. @throws Error when a socket cannot be used */
  async run(): Promise<void> {
    // Before anything is waited for: commands that come meanwhile are about a later state.
    this.#control.restore(this.#start.state);
    const orphans = this.#start.orphans.map((orphan) => ({
      ...orphan,
      key: Buffer.from(orphan.key, 'base64'),
    }));
    await cancelOrphans(orphans, this.#openerOptions);
    await this.#mesh.listen();
    await this.#sharing.catchUp();
    this.#pools.prepare();
    this.#timer = setInterval(() => inTurn(() => this.#tick()), TICK_MS);
    await this.#listeners.listen();
  }

  /** Does what the launcher has all workers do, and tells how far it has come. */
  control(seq: number, action: ControlAction): void {
    const { incarnation } = this.#start;
    this.#control.run(seq, action, (stage, isFound) => {
      this.#channel.send({ kind: 'control_done', incarnation, seq, stage, isFound });
    });
  }

  /** Nobody waits for that command any more. */
  forgetControl(seq: number): void {
    this.#control.forget(seq);
  }

  /**
   * Puts another configuration in force, apart from what it raises: each limit is the smaller of the
   * old and the new one until `release`.
   */
  reconfigure(built: BuiltConfig): void {
    this.#built = built;
    const { index, tls, secrets } = built;
    const { settings } = index;
    inTurn(() => {
      const { clientTls } = built;
      const context = Object.assign(this.#context, { ...clientConfig(index), clientTls });
      context.translator.limit = settings.max_prepared_statements;
      context.cancelKeys.peerId = settings.peer_id;
      context.admission.reconfigure(index);
      this.#learned.retain((name, user) => !secrets.has(user) && this.#isAsked(name));
      this.#passThrough.retain(({ user, keys }) => {
        const secret = secrets.get(user);
        if (secret === undefined) return this.#asksAtAll;
        return secret.kind === 'scram' && areKeysOf(keys, secret.verifier);
      });
      this.#entrySecrets.retain(index.config);
      this.#ldap.forgetTrust();
      if (!LDAP_TYPES.has(settings.auth_type)) this.#provedPasswords.clear();
      this.#sockets = socketOptions(settings);
      this.#openerOptions.sockets = this.#sockets;
      this.#openerOptions.tls = tls;
      this.#poolOptions = { ...this.#poolOptions, ...poolSettings(settings) };
      this.#pools.reconfigure(index, this.#poolOptions);
      for (const session of [...this.sessions]) this.#reconfigureSession(session);
      this.#pools.closeGone();
    });
  }

  #reconfigureSession(session: ClientSession): void {
    const { pool } = session;
    if (pool === null) return;
    if (pool.database.isGone) {
      session.fatal('database removed');
      return;
    }
    if (pool.isRetired && session.isIdle) pool.moveOn(session);
    const { entry } = pool.database;
    session.queryWaitTimeout = effectiveQueryWaitTimeout(this.#index, entry, session.userName);
    session.idleTimeoutMs = effectiveClientIdleTimeout(this.#index, session.userName) * 1000;
  }

  /** Every worker has the configuration of `reconfigure`: what it raises may be used. */
  release(): void {
    inTurn(() => {
      this.#context.admission.release();
      this.#pools.release();
    });
  }

  /** A client that another worker passes on. */
  takeHandoff(message: Handoff, handle: object): void {
    inTurn(() => {
      const { socketKind } = message;
      const origin = readOrigin(message.client);
      const makeLink = (client: ClientSession) => wrapHandle(handle, client, this.#sockets);
      const session = this.#open(socketKind, makeLink, origin);
      session.visited = message.visited;
      const received = Buffer.from(message.received, 'base64');
      session.link.read(received.length, received);
    });
  }

  /** Stops in the way asked; `onStopped` is called when what it waits for has happened. */
  stop(mode: StopMode, onStopped: () => void): void {
    this.#stopMode = mode;
    this.#onStopped = onStopped;
    this.#isStopDue = null;
    inTurn(() => {
      this.#context.isShuttingDown = true;
      this.#listeners.closeTcp();
      if (mode === 'wait_for_servers') {
        this.#control.suspension.end();
        this.#pools.shutDown();
      }
    });
    this.#checkStopped();
  }

  /** Nobody leads the fleet any more. */
  onLauncherGone(): void {
    this.port.onLauncherGone();
    this.#isStopDue = null;
    this.#checkStopped();
  }

  /** Tells the launcher whether the stop may come, or ends at once when there is none. */
  #checkStopped(): void {
    const { clients } = this;
    const mode = this.#stopMode;
    if (mode === null || this.#onStopped === null) return;
    if (mode !== 'now') {
      const isDue = mode === 'wait_for_clients' ? clients === 0 : this.#pools.connections === 0;
      if (isDue === this.#isStopDue) return;
      this.#isStopDue = isDue;
      const { incarnation } = this.#start;
      const isHeard = this.#channel.send({ kind: 'stop_due', incarnation, mode, isDue });
      if (isHeard || !isDue) return;
    }
    const onStopped = this.#onStopped;
    this.#onStopped = null;
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#control.close();
    this.#listeners.close();
    void this.#mesh.close().finally(onStopped);
  }

  #onConnection(socket: Socket, kind: SocketKind): void {
    inTurn(() => {
      this.#open(kind, (client) => acceptLink(socket, client, this.#sockets));
    });
  }

  #open(
    kind: SocketKind,
    makeLink: (session: ClientSession) => Link,
    origin: ClientOrigin | null = null,
  ): ClientSession {
    const session = new ClientSession(this.#context);
    this.sessions.add(session);
    this.#context.admission.total++;
    session.attach(makeLink(session), this.#index.settings.listen_port, kind, origin);
    this.#control.suspension.admit(session);
    return session;
  }

  #onSessionEnd(session: ClientSession): void {
    if (this.sessions.delete(session)) this.#context.admission.total--;
    if (this.#stopMode === 'wait_for_clients') this.#checkStopped();
  }

  /** A console's cancel key ends a pause or suspension of everything, and is never refused aloud. */
  #resumeForConsole(): void {
    const resume = { name: 'resume', database: null, isInUse: false } as const;
    this.port.ask(resume, new AbortController().signal).catch((error: Error) => {
      log.debug(`cancel request for console client: ${error.message}`);
    });
  }

  #placesFor(database: string, user: string): readonly number[] {
    const { workerId, size } = this.#start;
    const entry = this.#index.database(database);
    // Its own number first, then each of the others in turn, or the next one would get the clients
    // of all workers before it that may not keep them.
    const start = this.#nextPlace++ % size;
    const ring = Array.from({ length: size }, (_, i) => (start + i) % size);
    const all = [workerId, ...ring.filter((id) => id !== workerId)];
    if (entry === null) return all;
    const { holders } = poolShares(this.#index, entry, poolUserOf(entry, user), size);
    const isHolder = new Set(holders);
    return all.filter((id) => isHolder.has(id));
  }

  #handOff(session: ClientSession, target: number, received: Buffer): boolean {
    const message: Handoff = {
      kind: 'handoff',
      target,
      visited: [...session.visited],
      received: received.toString('base64'),
      socketKind: session.isUnix ? 'unix' : 'tcp',
      client: originMessage(originOf(session)),
    };
    if (session.tls !== null && session.origin === null) {
      handOffTls(session, message, this.#socketPairs, this.#sockets, this.#channel.sendHandoff);
      return true;
    }
    const handle = handleOf(session.link.socket);
    if (handle === null) return false;
    session.link.pause();
    const { link } = session;
    const isSent = this.#channel.sendHandoff(message, handle, () => link.destroy());
    if (!isSent) {
      link.resume();
      return false;
    }
    link.detach();
    session.release();
    return true;
  }

  /** Whether the secrets of names are asked for in a database, `pgbouncer` being the console. */
  #isAsked(name: string): boolean {
    const entry = name === 'pgbouncer' ? null : this.#index.database(name);
    return (name === 'pgbouncer' || entry !== null) && authUserOf(this.#index, entry) !== null;
  }

  get #asksAtAll(): boolean {
    const { databases, autoDatabase } = this.#index.config;
    const entries = [null, autoDatabase, ...databases];
    return entries.some((entry) => authUserOf(this.#index, entry) !== null);
  }

  /** How the pool of `entry` and `user` logs in to its server. */
  #credentials(entry: DatabaseEntry, user: string): Credentials {
    // The password of the line is that of its user; the pool of `auth_user` may be another's.
    const secret =
      entry.user === user && entry.password !== null
        ? this.#entrySecrets.of(entry.password)
        : this.#userSecret(entry, user);
    const clientKeys = secret === null ? null : this.#passThrough.find(user, secret);
    return { user, secret, clientKeys };
  }

  #userSecret({ name, user: forced }: DatabaseEntry, user: string): StoredSecret | null {
    const stored = this.#built.secrets.get(user) ?? null;
    if (forced !== null) return stored;
    // The name has just proved it, which says more than what stands in a file.
    return this.#provedPasswords.find(name, user) ?? stored ?? this.#learned.find(name, user);
  }

  #cancelPeer(id: number): CancelPeer | null {
    const peer = this.#index.peer(id);
    if (peer === null) return null;
    const { workerId, size } = this.#start;
    const holder = id % size;
    const limit = share(effectivePeerPoolSize(this.#index, peer), size, workerId, holder);
    return { host: peer.host, port: peer.port, limit, holder };
  }

  #tick(): void {
    const { now } = clock;
    this.#canceller.tick(now);
    this.#snapshots.tick(now);
    this.#hostNames.cache.tick(now);
    // Nobody is to be blamed for a silence that the pooler has imposed.
    if (this.#control.suspension.isOn) this.#control.suspension.advance();
    else this.#tickPools(now);
    if (this.#stopMode !== null) this.#checkStopped();
  }

  #tickPools(now: number): void {
    this.#pools.tick(now);
    this.#queries.tick(now);
    const loginMs = this.#index.settings.client_login_timeout * 1000;
    for (const session of this.sessions) {
      if (session.giveUpLookup !== null) continue;
      if (session.state < ClientState.ready) {
        if (loginMs > 0 && now - session.connectedAt > loginMs) {
          session.fatal(
            session.state === ClientState.newcomer
              ? 'client_login_timeout (server down)'
              : 'client_login_timeout',
          );
        }
      } else if (session.idleTimeoutMs > 0 && session.isIdle) {
        if (now - session.lastActivity > session.idleTimeoutMs) {
          session.fatal('client_idle_timeout');
        }
      }
    }
  }
}

function cancelTimeouts(settings: Settings): CancelTimeouts {
  return {
    waitMs: settings.cancel_wait_timeout * 1000,
    peerConnectMs: settings.server_connect_timeout * 1000,
    peerRetryMs: settings.server_login_retry * 1000,
  };
}

/** The Unix socket's file; null: there is no socket, or it is an abstract one. */
function pathOf(listeners: readonly ListenerGrant[]): string | null {
  const path = listeners.find(({ kind }) => kind === 'unix')?.host ?? null;
  return path === null || path.startsWith('\0') ? null : path;
}

function socketOptions(settings: Settings): SocketOptions {
  return { keepAlive: settings.tcp_keepalive, keepAliveIdle: settings.tcp_keepidle };
}

/** The settings that pools copy. */
function poolSettings(
  settings: Settings,
): Pick<PoolOptions, 'maxPacketBytes' | 'logsConnections' | 'logsDisconnections'> {
  return {
    maxPacketBytes: settings.max_packet_size,
    logsConnections: settings.log_connections,
    logsDisconnections: settings.log_disconnections,
  };
}
