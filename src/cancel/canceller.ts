import { log } from '../log/logger.ts';
import type { Mesh } from '../mesh/mesh.ts';
import type { Link, LinkHandler } from '../net/link.ts';
import type { ServerConnection } from '../server/server-connection.ts';
import { clock } from '../util/clock.ts';
import { Ring } from '../util/ring.ts';
import { cancelRequest } from '../wire/encode.ts';
import {
  type CancelKeys,
  hopsOf,
  KEY_BYTES,
  peerOf,
  withHopLess,
  workerOf,
} from './cancel-keys.ts';

/**
 * Cancel requests: to the client's own worker over the mesh, to another host by `[peers]`, or, when
 * the client is here, to the server that runs its query.
 *
 * A cancel never hits a later query: it is sent only while the client's query still runs on that
 * server, and the server is lent to nobody until the connection that carried it has closed, which is
 * when PostgreSQL has delivered the signal.
 */

/** Connections that carry cancel requests at one time. */
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
  /** Takes a waiting client out of the queue and answers its query with SQLSTATE 57014. */
  cancelWaiting(): void;
  /** A cancel request for its server has gone its way. */
  onCancelGone(server: ServerConnection): void;
}

/** Makes a link to where a server listens; `onConnect` is called when it is connected. */
type Connect = (
  place: ServerConnection['place'],
  handler: LinkHandler,
  onConnect: () => void,
) => Pick<Link, 'write' | 'destroy'>;

interface Pending {
  readonly target: CancelTarget;
  readonly server: ServerConnection;
  /** Tells the query that was to be cancelled from the client's next one on the same server. */
  readonly queryStart: number;
  readonly done: () => void;
  readonly since: number;
}

export interface CancellerOptions {
  readonly keys: CancelKeys<CancelTarget>;
  readonly mesh: Pick<Mesh, 'forwardCancel' | 'forwardCancelToPeer'>;
  readonly worker: number;
  readonly size: number;
  readonly peerId: number;
  readonly peer: (id: number) => Parameters<Mesh['forwardCancelToPeer']>[0] | null;
  readonly connect: Connect;
  /** Milliseconds; 0: for ever. */
  readonly waitTimeoutMs: number;
  /** A request came with the key of a console session. */
  readonly onConsoleCancel: () => void;
}

export class Canceller {
  readonly #options: CancellerOptions;
  readonly #queue = new Ring<Pending>();
  readonly #open = new Set<CancelErrand>();

  constructor(options: CancellerOptions) {
    this.#options = options;
  }

  /** Requests that are on their way to a server. */
  get active(): number {
    return this.#open.size;
  }

  get waiting(): number {
    return this.#queue.size;
  }

  /**
   * A CancelRequest packet from a client or from the mesh.
   * @param done called once: the request has been delivered, or came to nothing
   */
  handle(packet: Buffer, done: () => void): void {
    const { keys, mesh, worker, size, peerId, peer, waitTimeoutMs } = this.#options;
    const key = packet.subarray(KEY_AT);
    if (key.length !== KEY_BYTES) return done();
    if (peerId > 0 && peerOf(key) !== peerId) {
      const other = hopsOf(key) === 0 ? null : peer(peerOf(key));
      if (other === null) return done();
      return mesh.forwardCancelToPeer(other, cancelRequest(withHopLess(key)), waitTimeoutMs, done);
    }
    const owner = workerOf(key);
    if (owner !== worker) {
      if (owner < size) mesh.forwardCancel(owner, packet, done);
      else done();
      return;
    }
    const target = keys.find(key);
    if (target?.isConsole) this.#options.onConsoleCancel();
    if (target === undefined || target.isConsole) return done();
    if (target.isWaiting) {
      target.cancelWaiting();
      return done();
    }
    const { server } = target;
    if (server === null || server.isAtRest || server.isRunningOwn) return done();
    server.cancelsInFlight++;
    const { queryStart } = target;
    this.#queue.push({ target, server, queryStart, done, since: clock.now });
    this.#next();
  }

  /** Gives up requests that have waited or run for too long; called by the worker's timer. */
  tick(now: number): void {
    const { waitTimeoutMs } = this.#options;
    if (waitTimeoutMs === 0) return;
    for (let first = this.#queue.peek(); first !== undefined; first = this.#queue.peek()) {
      if (now - first.since <= waitTimeoutMs) break;
      this.#queue.shift();
      this.#settle(first);
    }
    for (const errand of this.#open) {
      if (now - errand.since > waitTimeoutMs) errand.giveUp();
    }
  }

  #next(): void {
    while (this.#open.size < MAX_OPEN) {
      const pending = this.#queue.shift();
      if (pending === undefined) return;
      if (!isStillRunning(pending)) {
        this.#settle(pending);
        continue;
      }
      const errand: CancelErrand = new CancelErrand(
        pending.server,
        this.#options.connect,
        () => isStillRunning(pending),
        () => {
          this.#open.delete(errand);
          this.#settle(pending);
          this.#next();
        },
      );
      this.#open.add(errand);
    }
  }

  #settle(pending: Pending): void {
    pending.server.cancelsInFlight--;
    pending.target.onCancelGone(pending.server);
    pending.done();
  }
}

/** The query that was to be cancelled has not ended. */
function isStillRunning({ target, server, queryStart }: Pending): boolean {
  return target.server === server && !server.isAtRest && target.queryStart === queryStart;
}

/** One connection that carries one CancelRequest and ends when the server closes it. */
class CancelErrand implements LinkHandler {
  readonly since = clock.now;
  readonly #link;
  #onDone: (() => void) | null;

  constructor(
    server: ServerConnection,
    connect: Connect,
    isWanted: () => boolean,
    onDone: () => void,
  ) {
    this.#onDone = onDone;
    this.#link = connect(server.place, this, () => {
      if (isWanted()) this.#link.write(cancelRequest(server.cancelKey));
      else this.giveUp();
    });
  }

  giveUp(): void {
    this.#link.destroy();
    this.#end();
  }

  onBytes(_bytes: Buffer, _start: number, end: number): number {
    return end;
  }

  onFull(): void {}
  onDrain(): void {}

  onPeerEnd(): void {
    this.#link.destroy();
    this.#end();
  }

  onClose(error: Error | null): void {
    if (error !== null) log.warning(`cancel request could not be sent: ${error.message}`);
    this.#end();
  }

  #end(): void {
    const done = this.#onDone;
    this.#onDone = null;
    done?.();
  }
}
