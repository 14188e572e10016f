import type { Mesh } from '../mesh/mesh.ts';
import type { ServerConnection } from '../server/server-connection.ts';
import { cancelRequest } from '../wire/encode.ts';
import { CancelErrand, type Connect, ServerErrand } from './cancel-errand.ts';
import {
  type CancelKeys,
  hopsOf,
  KEY_BYTES,
  peerOf,
  withHopLess,
  workerOf,
} from './cancel-keys.ts';
import { type CancelJob, CancelQueue, Outcome } from './cancel-queue.ts';

/**
 * Cancel requests: to the client's own worker over the mesh, to another host by `[peers]`, or, when
 * the client is here, to the server that runs its query.
 *
 * A cancel never hits a later query: it is sent only while the client's query still runs on that
 * server, and the server is lent to nobody until the connection that carried it has closed, which is
 * when PostgreSQL has delivered the signal.
 */

/** Connections that carry cancel requests to the servers of one pool at one time. */
const MAX_OPEN = 16;
/** Offset of the key in a CancelRequest packet. */
const KEY_AT = 8;

/** A client whose query can be cancelled. */
export interface CancelTarget {
  readonly id: number;
  readonly server: ServerConnection | null;
  readonly isConsole: boolean;
  /** When its query in hand began, milliseconds of the coarse clock; 0: none. */
  readonly queryStart: number;
  /** It is queued for a server. */
  readonly isWaiting: boolean;
  /** Its parameters are being set on its server, and then its request will be sent. */
  readonly isBeingPrepared: boolean;
  /** Takes a waiting client out of the queue and answers its query with SQLSTATE 57014. */
  cancelWaiting(): void;
  /** A cancel request for its server has gone its way. */
  onCancelGone(server: ServerConnection): void;
}

/** A host of `[peers]`. */
export interface CancelPeer {
  readonly host: string;
  readonly port: number;
  /** How many requests this worker may have on their way to it; the fleet's limit is shared out. */
  readonly limit: number;
  /** The worker that may have most of them. */
  readonly holder: number;
}

export interface CancellerOptions {
  readonly keys: CancelKeys<CancelTarget>;
  readonly mesh: Pick<Mesh, 'forwardCancel'>;
  readonly worker: number;
  readonly size: number;
  readonly peerId: number;
  readonly peer: (id: number) => CancelPeer | null;
  /** Makes a link to where a server connection leads, as safe as that. */
  readonly connect: (server: ServerConnection, ...rest: Parameters<Connect>) => ReturnType<Connect>;
  readonly connectPeer: (peer: CancelPeer, ...rest: Parameters<Connect>) => ReturnType<Connect>;
  /** A request came with the key of a console session. */
  readonly onConsoleCancel: () => void;
  readonly timeouts: () => CancelTimeouts;
}

/** In milliseconds. */
export interface CancelTimeouts {
  /** How long a request may stay unsent; 0: for ever. */
  readonly waitMs: number;
  /** How long a connection to a peer may take; 0: for ever. */
  readonly peerConnectMs: number;
  /** After a failed connection to a peer, before the next. */
  readonly peerRetryMs: number;
}

/** Told once how a request ended, for the log. */
type Done = (reason: string) => void;
/** The requester has left. */
export type GiveUp = () => void;

/** How far a request has come. */
export interface CancelProgress {
  readonly isSent: boolean;
  /** The pool of the server that it is for; null: it goes elsewhere. */
  readonly owner: ServerConnection['owner'] | null;
}

/** Requests for one host of `[peers]`. */
export interface PeerRequests {
  readonly id: number;
  readonly waiting: number;
  readonly connecting: number;
  readonly sent: number;
}

export class Canceller {
  readonly #options: CancellerOptions;
  /** By the pool whose servers they are for. */
  readonly #pools = new Map<ServerConnection['owner'], CancelQueue>();
  readonly #peers = new Map<number, CancelQueue>();
  /** Of requests that a queue has; the others have been passed on at once. */
  readonly #progress = new WeakMap<GiveUp, () => CancelProgress>();

  constructor(options: CancellerOptions) {
    this.#options = options;
  }

  /** Requests that are on their way to a server. */
  get active(): number {
    let count = 0;
    for (const queue of this.#pools.values()) count += queue.active;
    return count;
  }

  /** Requests for servers that wait for their turn. */
  get waiting(): number {
    let count = 0;
    for (const queue of this.#pools.values()) count += queue.waiting;
    return count;
  }

  /** Requests for the servers of one pool. */
  countsOf(pool: ServerConnection['owner']): { readonly active: number; readonly waiting: number } {
    const queue = this.#pools.get(pool);
    return { active: queue?.active ?? 0, waiting: queue?.waiting ?? 0 };
  }

  /** Connections that carry requests to the servers of one pool. */
  errandsOf(pool: ServerConnection['owner']): ServerErrand[] {
    const carriers = this.#pools.get(pool)?.carriers ?? [];
    return carriers.filter((carrier) => carrier instanceof ServerErrand);
  }

  /** The requests for each host that one has been forwarded to. */
  get peerRequests(): PeerRequests[] {
    return [...this.#peers]
      .filter(([id]) => this.#options.peer(id) !== null)
      .map(([id, queue]) => {
        const { sent, active, waiting } = queue;
        return { id, waiting, connecting: active - sent, sent };
      });
  }

  /** How far the request has come that `handle` returned this for. */
  progressOf(giveUp: GiveUp): CancelProgress {
    return this.#progress.get(giveUp)?.() ?? { isSent: true, owner: null };
  }

  /**
   * A CancelRequest packet from a client or from the mesh.
   * @param done called once: the request has been delivered, or came to nothing
   * @returns to be called when the requester leaves before that
   */
  handle(packet: Buffer, done: Done): GiveUp {
    const { keys, mesh, worker, size, peerId } = this.#options;
    const key = packet.subarray(KEY_AT);
    if (key.length < KEY_BYTES) return refused(done, 'failed cancel request');
    if (peerId > 0 && peerOf(key) !== peerId) return this.#toPeer(packet, key, done);
    const owner = workerOf(key);
    if (owner !== worker) {
      if (owner >= size) return refused(done, 'failed cancel request');
      return mesh.forwardCancel(owner, packet, this.#options.timeouts().waitMs, done);
    }
    const target = keys.find(key);
    if (target === undefined) return refused(done, 'failed cancel request');
    return this.#cancel(target, done);
  }

  /** Gives up requests that have waited for too long; called by the worker's timer. */
  tick(now: number): void {
    const { waitMs } = this.#options.timeouts();
    for (const [pool, queue] of this.#pools) {
      queue.tick(now, waitMs);
      if (queue.active + queue.waiting === 0) this.#pools.delete(pool);
    }
    for (const [id, queue] of this.#peers) {
      if (this.#options.peer(id) === null) queue.clear('peer removed');
      queue.tick(now, waitMs);
    }
  }

  #cancel(target: CancelTarget, done: Done): GiveUp {
    if (target.isConsole) {
      this.#options.onConsoleCancel();
      return refused(done, 'cancel request for console client');
    }
    if (target.isWaiting) {
      target.cancelWaiting();
      return refused(done, 'canceled while it waited for a server');
    }
    const { server, queryStart } = target;
    if (server === null || server.isAtRest || (server.isRunningOwn && !target.isBeingPrepared)) {
      return refused(done, 'cancel request for idle client');
    }
    const { connect } = this.#options;
    server.cancelsInFlight++;
    const job: CancelJob = {
      // PgBouncer drops a request that comes while it sets parameters. Here it waits until the query
      // that it is meant for has been sent.
      isDue: () => !server.isRunningOwn,
      isWanted: () =>
        target.server === server && !server.isAtRest && target.queryStart === queryStart,
      carry: (events) =>
        new ServerErrand(server, (handler, onSafe) => connect(server, handler, onSafe), events),
      settle: (outcome, reason) => {
        server.cancelsInFlight--;
        // Its signal may still come, and would hit whoever has the server then.
        if (outcome === Outcome.unsure) server.isCloseNeeded = true;
        target.onCancelGone(server);
        done(reason);
      },
    };
    return this.#push(this.#queueOf(server.owner), job, server.owner);
  }

  #queueOf(pool: ServerConnection['owner']): CancelQueue {
    let queue = this.#pools.get(pool);
    if (queue === undefined) {
      queue = new CancelQueue({ maxOpen: () => MAX_OPEN, retryMs: () => null });
      this.#pools.set(pool, queue);
    }
    return queue;
  }

  #toPeer(packet: Buffer, key: Buffer, done: Done): GiveUp {
    const { mesh, worker, timeouts, connectPeer } = this.#options;
    const id = peerOf(key);
    const peer = this.#options.peer(id);
    if (peer === null) return refused(done, 'could not find peer to forward request to');
    if (hopsOf(key) === 0) {
      return refused(done, 'failed to forward cancel request because its TTL was exhausted');
    }
    if (peer.limit === 0 && peer.holder !== worker) {
      return mesh.forwardCancel(peer.holder, packet, timeouts().waitMs, done);
    }
    let queue = this.#peers.get(id);
    if (queue === undefined) {
      queue = new CancelQueue({
        maxOpen: () => this.#options.peer(id)?.limit ?? 0,
        retryMs: () => timeouts().peerRetryMs,
      });
      this.#peers.set(id, queue);
    }
    const bytes = cancelRequest(withHopLess(key));
    const job: CancelJob = {
      isDue: () => true,
      isWanted: () => true,
      carry: (events) =>
        new CancelErrand(
          (handler, onSafe) => connectPeer(peer, handler, onSafe),
          bytes,
          timeouts().peerConnectMs,
          events,
        ),
      settle: (_outcome, reason) => done(reason),
    };
    return this.#push(queue, job, null);
  }

  #push(queue: CancelQueue, job: CancelJob, owner: CancelProgress['owner']): GiveUp {
    queue.push(job);
    const giveUp = (): void => queue.giveUp(job);
    this.#progress.set(giveUp, () => ({ isSent: queue.isSent(job), owner }));
    return giveUp;
  }
}

function refused(done: Done, reason: string): GiveUp {
  done(reason);
  return nothing;
}

function nothing(): void {}
