import { InvariantError } from '../errors.ts';
import { log } from '../log/logger.ts';
import type { TrackedValues } from '../server/parameters.ts';
import {
  type ServerConnection,
  type ServerOwner,
  ServerState,
} from '../server/server-connection.ts';
import type { Refusal } from '../server/server-login.ts';
import { clock } from '../util/clock.ts';
import { List } from '../util/list.ts';
import type { Pool } from './pool.ts';
import type { PoolClient, ServerSource } from './pool-client.ts';

/**
 * Server connections for replication (PostgreSQL documentation, "Streaming Replication Protocol").
 * A walsender is made by its startup packet and serves one client, so each replication client has a
 * connection of its own: opened when the client first asks, linked from the startup packet on, never
 * one that was there already, never given to anybody else, and closed when the client leaves. In all
 * else it counts as a connection of the pool: it has a slot, and stands in the pool's lists.
 *
 * In a full pool one idle connection is closed to make room, or the next one that comes free, if the
 * replication client has waited longer than everybody else.
 */

/** What a replication client asks of its server. */
export interface ReplicationRequest {
  readonly kind: 'logical' | 'physical';
  /** The startup parameter `options`, which the server gets as it is; null: not given. */
  readonly options: string | null;
  /** Tracked parameters that the client gave itself. */
  readonly given: Readonly<TrackedValues>;
}

/** Why a connection is closed whose client has left before it had logged in. */
const DISCONNECTED = 'replication client disconnected';

/** The replication clients of one pool that have no server yet, and what they get theirs from. */
export class ReplicationServers implements ServerSource {
  /** The longest waiting first; a client stays here until its connection has logged in. */
  readonly waiting = new List<PoolClient>();
  readonly #pool: Pool;
  readonly #links = new Set<ReplicationLink>();

  constructor(pool: Pool) {
    this.#pool = pool;
  }

  /** Queues the client, or refuses it; its server never comes at once, so this returns false. */
  acquire(client: PoolClient): boolean {
    const pool = this.#pool;
    if (pool.isRetired) return pool.moveOn(client).replication.acquire(client);
    if (!pool.refusesToQueue(client)) this.enqueue(client);
    return false;
  }

  enqueue(client: PoolClient, since = clock.now): void {
    this.#pool.startWait(client, this.waiting, since);
  }

  leave(client: PoolClient): void {
    const isLoggingIn = client.list === this.waiting;
    this.waiting.remove(client);
    const { server } = client;
    if (server !== null) {
      const reason = isLoggingIn ? DISCONNECTED : 'replication client was closed';
      client.server = null;
      server.client = null;
      server.link.resume();
      server.close(reason, undefined, client.isMidMessage);
      return;
    }
    // A connection for it may be on its way that has not got to the startup packet.
    this.#linkOf(client)?.server?.close(DISCONNECTED);
  }

  /** The pool serves nobody any more: clients for whom no connection is on its way go where it says. */
  moveOn(): void {
    for (const client of this.waiting) {
      if (this.#linkOf(client) === null) this.#pool.moveOn(client);
    }
  }

  #linkOf(client: PoolClient): ReplicationLink | null {
    for (const link of this.#links) if (link.client === client) return link;
    return null;
  }

  /** A client waits here, and has done so for longer than any of the pool's other clients. */
  get isFirst(): boolean {
    const client = this.waiting.first;
    if (client === null) return false;
    const other = this.#pool.waiting.first;
    return other === null || client.waitStart <= other.waitStart;
  }

  /** The slot of the next connection that comes free is for a client that waits here. */
  get claimsSlot(): boolean {
    const pool = this.#pool;
    return this.isFirst && this.#mayOpen && pool.fullLimit !== null && !pool.isSlotComing;
  }

  /**
   * One after the other: a connection that is logging in may be for the client that has waited
   * longest, which stays in the queue meanwhile.
   */
  get #mayOpen(): boolean {
    return this.#pool.canAttempt && this.#pool.opening.size === 0;
  }

  /** Opens a connection for the client that has waited longest, or sees to it that a slot comes. */
  serve(): void {
    const client = this.waiting.first;
    const pool = this.#pool;
    if (client === null || !this.#mayOpen) return;
    if (pool.hasSlotFor(client, false)) {
      const link = new ReplicationLink(pool, client, () => this.#links.delete(link));
      this.#links.add(link);
      link.server = pool.start(link);
    } else if (!pool.isSlotComing && !pool.evictIdle(pool.fullLimit!)) {
      pool.hasSlotFor(client, true);
    }
  }

  /** What is not to be used any longer is closed at once: such a session would never come free. */
  tick(): void {
    if (this.#pool.isRetired) this.moveOn();
    for (const { server } of this.#links) {
      if (server?.isCloseNeeded) server.close('database configuration changed');
    }
  }
}

/** One replication client and its server connection, from the attempt to open it to its end. */
class ReplicationLink implements ServerOwner {
  readonly client: PoolClient;
  readonly replicationKind: 'logical' | 'physical';
  readonly tracked: ServerOwner['tracked'];
  readonly registry: ServerOwner['registry'];
  readonly translator: ServerOwner['translator'];
  readonly traffic: ServerOwner['traffic'];
  readonly stalePlans: ServerOwner['stalePlans'];
  readonly maxPacketBytes: number;
  readonly forbidsTransactions = false;
  readonly logsConnections: boolean;
  readonly logsDisconnections: boolean;
  server: ServerConnection | null = null;
  readonly #pool: Pool;
  readonly #request: ReplicationRequest;
  readonly #onOver: () => void;

  constructor(pool: Pool, client: PoolClient, onOver: () => void) {
    this.#pool = pool;
    this.client = client;
    this.#request = client.replication!;
    this.#onOver = onOver;
    this.replicationKind = this.#request.kind;
    this.tracked = pool.tracked;
    this.registry = pool.registry;
    this.translator = pool.translator;
    this.traffic = pool.traffic;
    this.stalePlans = pool.stalePlans;
    this.maxPacketBytes = pool.maxPacketBytes;
    this.logsConnections = pool.logsConnections;
    this.logsDisconnections = pool.logsDisconnections;
  }

  onLoginBegin(server: ServerConnection): [string, string][] {
    const { client } = this;
    server.client = client;
    client.server = server;
    const { kind, options, given } = this.#request;
    // A parameter that is named wins over one in `options`. What the client has only been told in
    // its welcome, and not asked for, must not undo what it asks for there.
    const values = options === null ? client.tracked : given;
    const parameters: [string, string][] = [
      ['replication', kind === 'logical' ? 'database' : 'yes'],
    ];
    values.forEach((value, index) => {
      if (value !== null) parameters.push([this.tracked.names[index]!, value]);
    });
    if (options !== null) parameters.push(['options', options]);
    return parameters;
  }

  onLogin(server: ServerConnection): void {
    const { client } = this;
    const pool = this.#pool;
    pool.noteLogin(server);
    pool.endWait(client, pool.replication.waiting);
    pool.place(server, ServerState.active, pool.linked, false);
    client.onOwnServer(server);
    pool.serveQueue();
  }

  /**
   * That the server does not let this client replicate says nothing about others, so that the pool
   * goes on as if nothing had been tried; that it cannot be reached does.
   */
  onLoginFailed(server: ServerConnection, reason: string, refusal: Refusal | null): void {
    if (refusal === null) {
      this.#pool.noteLoginFailure(reason);
    } else if (refusal.severity !== null) {
      log.error(`S: login failed: ${refusal.severity}: ${refusal.message}`);
      server.close('login failed');
    }
  }

  /** The client waits on, for the next attempt. */
  onRetry(server: ServerConnection, why: string): void {
    this.client.server = null;
    server.client = null;
    this.#pool.onRetry(server, why);
  }

  onReady(server: ServerConnection): void {
    if (server.requests.size === 0) this.#pool.count(this.client, server);
  }

  onFree(): void {
    throw new InvariantError('a replication connection was given back');
  }

  onCancelsGone(): void {}

  onClosing(server: ServerConnection): void {
    this.#pool.onClosing(server);
  }

  onGone(server: ServerConnection): void {
    this.#onOver();
    this.#pool.onGone(server);
  }
}
