import type { Socket } from 'node:net';
import { ConsoleFactory } from '../admin/console.ts';
import { PassThroughKeys } from '../auth/pass-through.ts';
import { classifySecret, type StoredSecret } from '../auth/secret.ts';
import { parseUserlist } from '../auth/userlist.ts';
import { CancelKeys } from '../cancel/cancel-keys.ts';
import {
  Canceller,
  type CancelPeer,
  type CancelTarget,
  type CancelTimeouts,
} from '../cancel/canceller.ts';
import { Admission } from '../client/admission.ts';
import { ClientSession, ClientState } from '../client/client-session.ts';
import type { ClientContext } from '../client/context.ts';
import type { DatabaseEntry } from '../config/config.ts';
import { ConfigIndex, effectivePeerPoolSize, poolUserOf } from '../config/effective.ts';
import type { Settings } from '../config/schema.ts';
import { poolShares, share } from '../config/split.ts';
import { splitCommas, splitNames } from '../config/values.ts';
import type { FromWorker, Handoff, StartMessage, StopMode } from '../ipc/messages.ts';
import { log } from '../log/logger.ts';
import { Mesh } from '../mesh/mesh.ts';
import type { Link } from '../net/link.ts';
import {
  acceptLink,
  connectLink,
  handleOf,
  type SocketOptions,
  wrapHandle,
} from '../net/sockets.ts';
import { inTurn } from '../net/turn.ts';
import { PoolSet } from '../pool/pool-set.ts';
import { StatementRegistry } from '../prepared/registry.ts';
import { StatementTranslator } from '../prepared/translator.ts';
import { TrackedNames } from '../server/parameters.ts';
import { type Credentials, type OpenerOptions, ServerOpener } from '../server/server-opener.ts';
import { ServerTls } from '../tls/server-tls.ts';
import { clock } from '../util/clock.ts';
import { startIds } from '../util/ids.ts';
import { Listeners } from './listeners.ts';
import { LiveSnapshots } from './snapshot.ts';

/**
 * A pooler process: builds the rooms out of one configuration, accepts clients, and three times a
 * second does what time alone brings about.
 */

const TICK_MS = 333;

/** How a worker reaches its launcher; sends are lost without harm when there is none. */
export interface LauncherChannel {
  send(message: FromWorker): void;
  /** Hands a client over; `onFailed` is called when it could not be sent. */
  sendHandoff(message: Handoff, handle: object, onFailed: () => void): boolean;
}

export class Worker {
  readonly sessions = new Set<ClientSession>();
  readonly #start: StartMessage;
  readonly #channel: LauncherChannel;
  readonly #index: ConfigIndex;
  readonly #context: ClientContext;
  readonly #pools: PoolSet;
  readonly #canceller: Canceller;
  readonly #mesh: Mesh;
  readonly #listeners: Listeners;
  readonly #snapshots: LiveSnapshots;
  readonly #sockets: SocketOptions;
  readonly #secrets: ReadonlyMap<string, StoredSecret>;
  readonly #passThrough = new PassThroughKeys();
  #nextPlace = 0;
  #timer: NodeJS.Timeout | null = null;
  #stopMode: StopMode | null = null;
  #onStopped: (() => void) | null = null;

  /** @throws Error when a file of the configuration cannot be used (TLS) */
  constructor(start: StartMessage, channel: LauncherChannel) {
    this.#start = start;
    this.#channel = channel;
    this.#index = new ConfigIndex(start.config);
    const { settings } = this.#index;
    const { workerId: worker, size } = start;
    startIds(worker, size);
    this.#sockets = { keepAlive: settings.tcp_keepalive, keepAliveIdle: settings.tcp_keepidle };
    this.#secrets = this.#readUsers();
    const tracked = new TrackedNames(splitCommas(settings.track_extra_parameters));
    const registry = new StatementRegistry();
    const translator = new StatementTranslator(registry, settings.max_prepared_statements);
    const openerOptions: OpenerOptions = {
      unixSocketDir: settings.unix_socket_dir,
      sockets: this.#sockets,
      tls: new ServerTls(settings),
    };
    this.#pools = new PoolSet(
      this.#index,
      { worker, size },
      {
        tracked,
        registry,
        translator,
        maxPacketBytes: settings.max_packet_size,
        logsConnections: settings.log_connections,
        logsDisconnections: settings.log_disconnections,
        onServerOpen: ({ id, place, cancelKey }) => {
          const key = cancelKey.toString('base64');
          channel.send({ kind: 'server_open', id, place, key });
        },
        onServerEnd: ({ id }) => channel.send({ kind: 'server_end', id }),
      },
      (entry) => new ServerOpener(openerOptions, entry, entry.name, worker),
      (entry, user) => this.#credentials(entry, user),
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
      onRequest: (request) => console.answer(request),
    });
    this.#canceller = new Canceller({
      keys,
      mesh: this.#mesh,
      worker,
      size,
      peerId: settings.peer_id,
      peer: (id) => this.#cancelPeer(id),
      connect: (place, handler, onConnect) => connectLink(place, handler, this.#sockets, onConnect),
      timeouts: () => cancelTimeouts(this.#index.settings),
    });
    this.#snapshots = new LiveSnapshots({
      worker,
      sessions: this.sessions,
      pools: this.#pools,
      canceller: this.#canceller,
      users: () => this.#secrets.keys(),
      admission: () => this.#context.admission,
      index: this.#index,
    });
    const console = new ConsoleFactory({
      source: this.#snapshots,
      config: () => this.#start.config,
      mesh: this.#mesh,
    });
    this.#context = {
      index: this.#index,
      tracked,
      registry,
      translator,
      ignoredParameters: new Set(splitNames(settings.ignore_startup_parameters)),
      adminUsers: new Set(splitNames(settings.admin_users)),
      statsUsers: new Set(splitNames(settings.stats_users)),
      pools: this.#pools,
      admission: new Admission(this.#index, worker, size),
      cancelKeys: keys,
      passThrough: this.#passThrough,
      console,
      fleetSecret: Buffer.from(start.fleetSecret, 'hex'),
      secretOf: (user) => this.#secrets.get(user) ?? null,
      isShuttingDown: false,
      onCancelRequest: (packet, done) => this.#canceller.handle(packet, done),
      worker,
      placesFor: (database, user) => this.#placesFor(database, user),
      handOff: (session, target, received) => this.#handOff(session, target, received),
      onSessionEnd: (session) => this.#onSessionEnd(session),
    };
    this.#listeners = new Listeners(start.listeners, settings.listen_backlog, (socket, label) =>
      this.#onConnection(socket, label),
    );
  }

  get clients(): number {
    return this.sessions.size;
  }

  /** Joins the mesh and accepts clients. @throws Error when a socket cannot be used */
  async run(): Promise<void> {
    await this.#mesh.listen();
    if (this.#start.state.isPaused) this.#pools.pause();
    this.#pools.prepare();
    this.#timer = setInterval(() => inTurn(() => this.#tick()), TICK_MS);
    await this.#listeners.listen();
  }

  pause(): void {
    inTurn(() => this.#pools.pause());
  }

  resume(): void {
    inTurn(() => this.#pools.resume());
  }

  /** A client that another worker passes on. */
  takeHandoff(message: Handoff, handle: object): void {
    inTurn(() => {
      const session = this.#open((client) => wrapHandle(handle, client, this.#sockets));
      session.visited = message.visited;
      const received = Buffer.from(message.received, 'base64');
      session.link.read(received.length, received);
    });
  }

  /** Stops in the way asked; `onStopped` is called when what it waits for has happened. */
  stop(mode: StopMode, onStopped: () => void): void {
    this.#stopMode = mode;
    this.#onStopped = onStopped;
    inTurn(() => {
      this.#context.isShuttingDown = true;
      this.#listeners.closeTcp();
      if (mode === 'wait_for_servers') this.#pools.shutDown();
    });
    this.#checkStopped();
  }

  #checkStopped(): void {
    const { clients } = this;
    const isOver =
      this.#stopMode === 'now' ||
      (this.#stopMode === 'wait_for_clients' && clients === 0) ||
      (this.#stopMode === 'wait_for_servers' && this.#pools.connections === 0);
    if (!isOver || this.#onStopped === null) return;
    const onStopped = this.#onStopped;
    this.#onStopped = null;
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#listeners.close();
    void this.#mesh.close().finally(onStopped);
  }

  #onConnection(socket: Socket, _label: string): void {
    inTurn(() => {
      this.#open((client) => acceptLink(socket, client, this.#sockets));
    });
  }

  #open(makeLink: (session: ClientSession) => Link): ClientSession {
    const session = new ClientSession(this.#context);
    this.sessions.add(session);
    this.#context.admission.total++;
    session.attach(makeLink(session), this.#index.settings.listen_port);
    return session;
  }

  #onSessionEnd(session: ClientSession): void {
    if (this.sessions.delete(session)) this.#context.admission.total--;
    if (this.#stopMode === 'wait_for_clients') this.#checkStopped();
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
    const handle = handleOf(session.link.socket);
    if (handle === null) return false;
    const message: Handoff = {
      kind: 'handoff',
      target,
      visited: [...session.visited],
      received: received.toString('base64'),
      socketKind: session.isUnix ? 'unix' : 'tcp',
    };
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

  #readUsers(): ReadonlyMap<string, StoredSecret> {
    const text = this.#start.config.authFileText;
    if (text === null) return new Map();
    const { users, problems } = parseUserlist(text);
    for (const { line, text: what } of problems) {
      log.error(`${what} (${this.#index.settings.auth_file}:${line})`);
    }
    return users;
  }

  /** How the pool of `entry` and `user` logs in to its server. */
  #credentials(entry: DatabaseEntry, user: string): Credentials {
    const secret =
      entry.user !== null && entry.password !== null
        ? this.#passwordOf(entry)
        : (this.#secrets.get(user) ?? null);
    const clientKeys = secret === null ? null : this.#passThrough.find(user, secret);
    return { user, secret, clientKeys };
  }

  #cancelPeer(id: number): CancelPeer | null {
    const peer = this.#index.peer(id);
    if (peer === null) return null;
    const { workerId, size } = this.#start;
    const holder = id % size;
    const limit = share(effectivePeerPoolSize(this.#index, peer), size, workerId, holder);
    return { host: peer.host, port: peer.port, limit, holder };
  }

  readonly #entrySecrets = new Map<string, StoredSecret>();

  /** One object per password, because what is derived from it is cached with it. */
  #passwordOf(entry: DatabaseEntry): StoredSecret {
    const password = entry.password!;
    let secret = this.#entrySecrets.get(password);
    if (secret === undefined) {
      secret = classifySecret(password);
      this.#entrySecrets.set(password, secret);
    }
    return secret;
  }

  #tick(): void {
    const { now } = clock;
    this.#pools.tick(now);
    this.#canceller.tick(now);
    this.#snapshots.tick(now);
    const loginMs = this.#index.settings.client_login_timeout * 1000;
    for (const session of this.sessions) {
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
    if (this.#stopMode !== null) this.#checkStopped();
  }
}

function cancelTimeouts(settings: Settings): CancelTimeouts {
  return {
    waitMs: settings.cancel_wait_timeout * 1000,
    peerConnectMs: settings.server_connect_timeout * 1000,
    peerRetryMs: settings.server_login_retry * 1000,
  };
}
