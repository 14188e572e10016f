import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { log } from '../log/logger.ts';
import { beginTurn, endTurn, flushLater } from './turn.ts';

/**
 * One socket of the data path, to a client or to a server, whatever its kind.
 *
 * Reading: every plain socket of the process reads into ONE shared buffer. Bytes given to a handler
 * are its own until it returns; what it does not use (part of a header, a message that must be seen
 * whole, all that follows while a client waits for a server) the link keeps in a stash of its own
 * and puts in front of what comes next.
 *
 * Writing: bytes are copied into the link's out-run, never sliced from the read buffer, because a
 * socket that could not send everything at once keeps the memory until it can. A run leaves at the
 * end of the turn, one write a socket; a run that the kernel took whole is used again.
 *
 * Back-pressure: a link whose socket still holds bytes after its write tells its handler (`onFull`),
 * which stops the sources; `onDrain` lets them go on. So a slow reader costs the bytes of one read.
 */

/** Size of the shared read buffer, and so the most that one read brings. */
export const READ_BYTES = 65_536;

/** Size of an out-run. */
const RUN_BYTES = 65_536;

/**
 * A TLS socket says of no write at once that it has been taken. It counts as full only above this
 * much, or each answer would stop its source for a moment.
 */
const TLS_FULL_BYTES = 65_536;

/** Up to this much is copied out of a run that goes to a TLS socket; more takes the run along. */
const TLS_COPY_BYTES = 16_384;

/** Out-runs kept for later; more are left to the garbage collector. */
const MAX_SPARE_RUNS = 16;

/** While held, a link goes on reading (to notice a peer that leaves) until this much is stashed. */
const HELD_BYTES = 16_384;

/** Time for a peer to take what was written before a close. */
const LINGER_MS = 5000;

/** What the owner of a link is told. Every call is one turn or part of one. */
export interface LinkHandler {
  /** Uses bytes[start..end) and returns the offset of the first byte that it did not use. */
  onBytes(bytes: Buffer, start: number, end: number): number;
  /** The socket holds bytes that the peer has not taken: stop feeding this link. */
  onFull(): void;
  /** Everything has been taken. */
  onDrain(): void;
  /** The peer will send no more. */
  onPeerEnd(): void;
  /** The socket is gone; called once, also after the owner's own close. */
  onClose(error: Error | null): void;
}

/** Reading through the one shared buffer; asserted, since nested reads would mix connections. */
export const readBuffer = Buffer.allocUnsafeSlow(READ_BYTES);
let isReading = false;

const spareRuns: Buffer[] = [];
const NOTHING = Buffer.alloc(0);

export class Link {
  handler: LinkHandler;
  /** Bytes of the stash below which the handler need not be asked again. */
  needBytes = 0;
  /** Bytes read from and written to the peer. */
  bytesIn = 0;
  bytesOut = 0;
  #socket: Socket;
  #run: Buffer | null = null;
  #runBytes = 0;
  #isDirty = false;
  #isFull = false;
  #isTls: boolean;
  #stash: Buffer = NOTHING;
  #stashBytes = 0;
  #isHeld = false;
  #isPaused = false;
  /** Nothing is read before `unsuspend`, whatever else is said meanwhile. */
  #isSuspended = false;
  /** Nothing may be written any more: the socket has been told to end. */
  #isEnded = false;
  #isClosing = false;
  #isClosed = false;
  #error: Error | null = null;

  /** @param socket connected or connecting; its `onread` must call `read` of this link */
  constructor(socket: Socket, handler: LinkHandler) {
    this.#socket = socket;
    this.#isTls = isTls(socket);
    this.handler = handler;
    this.#listen(socket);
  }

  get socket(): Socket {
    return this.#socket;
  }

  get isClosed(): boolean {
    return this.#isClosed || this.#isClosing;
  }

  /** True while the socket holds bytes that the peer has not taken. */
  get isFull(): boolean {
    return this.#isFull;
  }

  get stashBytes(): number {
    return this.#stashBytes;
  }

  /** Puts the link on another socket (TLS over the same connection). */
  replaceSocket(socket: Socket): void {
    this.#socket = socket;
    this.#isTls = isTls(socket);
    this.#listen(socket);
  }

  /** Takes the socket out of the link's hands without touching the connection. */
  detach(): void {
    this.#isClosed = true;
    this.#socket.removeAllListeners();
    this.#stash = NOTHING;
  }

  /** Copies bytes[start..end) behind what is already waiting to leave. */
  write(bytes: Uint8Array, start = 0, end = bytes.length): void {
    if (this.#isClosed || this.#isEnded) return;
    if (!this.#isDirty) {
      this.#isDirty = true;
      flushLater(this);
    }
    let at = start;
    while (at < end) {
      if (this.#run === null) this.#run = spareRuns.pop() ?? Buffer.allocUnsafeSlow(RUN_BYTES);
      const size = Math.min(RUN_BYTES - this.#runBytes, end - at);
      (bytes as Buffer).copy(this.#run, this.#runBytes, at, at + size);
      this.#runBytes += size;
      at += size;
      if (this.#runBytes === RUN_BYTES) this.#send();
    }
  }

  /** Hands the run to the socket; called at the end of the turn. */
  flush(): void {
    this.#isDirty = false;
    if (this.isClosed || this.#isEnded) return;
    this.#send();
    if (this.#socket.writableLength <= (this.#isTls ? TLS_FULL_BYTES : 0)) return;
    if (!this.#isFull) {
      this.#isFull = true;
      // A write of nothing queues behind the rest: its callback tells when all of it has been taken.
      this.#socket.write(NOTHING, this.#onTaken);
    }
    // Told each time, for there may be a source that was not there when the link became full.
    try {
      this.handler.onFull();
    } catch (error) {
      this.#fail(error);
    }
  }

  /**
   * Keeps what arrives in the stash until `replay`: for a client that waits for a server. Reading
   * goes on for a little, so that a peer that leaves is noticed.
   */
  hold(): void {
    this.#isHeld = true;
  }

  get isHeld(): boolean {
    return this.#isHeld;
  }

  /** Ends `hold` and gives the stash to the handler. */
  replay(): void {
    if (!this.#isHeld) return;
    this.#isHeld = false;
    beginTurn();
    try {
      this.#giveStash();
    } catch (error) {
      this.#fail(error);
    } finally {
      endTurn();
    }
    if (!this.#isHeld && !this.#isFull) this.resume();
  }

  /** Stops reading from the peer. */
  pause(): void {
    if (this.#isPaused || this.#isClosed) return;
    this.#isPaused = true;
    this.#socket.pause();
  }

  /** Reads again; the link must not be held. */
  resume(): void {
    if (!this.#isPaused || this.#isClosed) return;
    this.#isPaused = false;
    if (!this.#isSuspended) this.#socket.resume();
  }

  /** Stops reading from the peer, beside and above `pause`, until `unsuspend` (PgBouncer's SUSPEND). */
  suspend(): void {
    if (this.#isClosed || this.#isEnded) return;
    this.#isSuspended = true;
    this.#socket.pause();
  }

  unsuspend(): void {
    if (!this.#isSuspended) return;
    this.#isSuspended = false;
    if (!this.#isPaused && !this.#isClosed) this.#socket.resume();
  }

  get isSuspended(): boolean {
    return this.#isSuspended;
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  /** Sends what waits, for as long as `LINGER_MS`, then closes; nothing is read any more. */
  close(): void {
    if (this.#isClosed || this.#isClosing) return;
    this.#send();
    this.#isEnded = true;
    this.#isClosing = true;
    const socket = this.#socket;
    socket.destroySoon();
    if (socket.writableLength === 0) return;
    const timer = setTimeout(() => this.destroy(), LINGER_MS);
    socket.once('close', () => clearTimeout(timer));
  }

  /** Sends what waits and says that no more will come; goes on reading until the peer closes. */
  finish(): void {
    if (this.#isClosed || this.#isEnded) return;
    this.#send();
    this.#isEnded = true;
    this.#socket.end();
    this.unsuspend();
    this.resume();
  }

  /** Closes at once; what waits is lost. */
  destroy(): void {
    if (this.#isClosed) return;
    this.#isEnded = true;
    this.#isClosing = true;
    this.#socket.destroy();
  }

  /**
   * The socket has read `size` bytes into `bytes`. Returns whether to go on reading. A plain
   * socket's `onread` calls this with the shared buffer, a TLS socket's `data` with its own.
   */
  read(size: number, bytes: Buffer): boolean {
    if (isReading) throw new Error('a read began inside another read of the shared buffer');
    if (this.#isClosed || this.#isClosing) return true;
    isReading = true;
    beginTurn();
    try {
      this.bytesIn += size;
      this.#take(bytes, size);
    } catch (error) {
      this.#fail(error);
    } finally {
      isReading = false;
      endTurn();
    }
    return !this.#isPaused && !this.#isSuspended;
  }

  #take(bytes: Buffer, size: number): void {
    if (this.#isHeld) {
      this.#keep(bytes, 0, size);
      if (this.#stashBytes >= HELD_BYTES) this.pause();
      return;
    }
    if (this.#stashBytes > 0) {
      this.#keep(bytes, 0, size);
      if (this.#stashBytes >= this.needBytes) this.#giveStash();
      return;
    }
    const used = this.handler.onBytes(bytes, 0, size);
    if (used < size && !this.isClosed) this.#keep(bytes, used, size);
  }

  /** Offers the whole stash; keeps what is not used. */
  #giveStash(): void {
    if (this.#stashBytes === 0) return;
    const bytes = this.#stash;
    const size = this.#stashBytes;
    this.#stash = NOTHING;
    this.#stashBytes = 0;
    const used = this.handler.onBytes(bytes, 0, size);
    if (used === size || this.isClosed) return;
    if (used === 0) {
      this.#stash = bytes;
      this.#stashBytes = size;
    } else {
      this.#keep(bytes, used, size);
    }
  }

  #keep(bytes: Buffer, start: number, end: number): void {
    const total = this.#stashBytes + end - start;
    if (this.#stash.length < total) {
      const wanted = Math.max(total, this.#stash.length * 2, Math.min(this.needBytes, 1 << 20));
      const bigger = Buffer.allocUnsafeSlow(wanted);
      this.#stash.copy(bigger, 0, 0, this.#stashBytes);
      this.#stash = bigger;
    }
    bytes.copy(this.#stash, this.#stashBytes, start, end);
    this.#stashBytes = total;
  }

  #send(): void {
    const run = this.#run;
    if (run === null) return;
    const size = this.#runBytes;
    this.#run = null;
    this.#runBytes = 0;
    this.bytesOut += size;
    const socket = this.#socket;
    if (this.#isTls && size <= TLS_COPY_BYTES) {
      // A small buffer is cheaper than a new run, which the socket would keep the old one for.
      socket.write(Buffer.from(run.subarray(0, size)));
      if (spareRuns.length < MAX_SPARE_RUNS) spareRuns.push(run);
      return;
    }
    socket.write(size === RUN_BYTES ? run : run.subarray(0, size));
    // Taken whole by the kernel: the memory is ours again. Otherwise it is the socket's for good.
    if (socket.writableLength === 0 && spareRuns.length < MAX_SPARE_RUNS) spareRuns.push(run);
  }

  #onTaken = (): void => {
    if (this.#isClosed || this.#isEnded) return;
    if (this.#socket.writableLength > 0) {
      this.#socket.write(NOTHING, this.#onTaken);
      return;
    }
    this.#isFull = false;
    beginTurn();
    try {
      this.handler.onDrain();
    } catch (error) {
      this.#fail(error);
    } finally {
      endTurn();
    }
  };

  #listen(socket: Socket): void {
    socket.on('end', () => {
      if (socket !== this.#socket || this.#isClosed || this.#isClosing) return;
      // A TLS socket that has broken ends before it closes: `onClose` will say what it broke of.
      if (this.#error !== null) return;
      beginTurn();
      try {
        this.handler.onPeerEnd();
      } catch (error) {
        this.#fail(error);
      } finally {
        endTurn();
      }
    });
    socket.on('error', (error) => {
      // The first one is what has happened; what breaks of it comes after.
      this.#error ??= error;
    });
    socket.on('close', () => {
      if (socket !== this.#socket || this.#isClosed) return;
      this.#isClosed = true;
      this.#stash = NOTHING;
      this.#stashBytes = 0;
      this.#run = null;
      beginTurn();
      try {
        this.handler.onClose(this.#error);
      } catch (error) {
        log.error(`InvariantError: ${String((error as Error).stack ?? error)}`);
      } finally {
        endTurn();
      }
    });
  }

  /** A bug in a handler costs this connection, never the process. */
  #fail(error: unknown): void {
    log.error(`InvariantError: ${String((error as Error).stack ?? error)}`);
    this.destroy();
  }
}

function isTls(socket: Socket): boolean {
  return (socket as Partial<TLSSocket>).encrypted === true;
}

/** Whether a socket broke at a write, as opposed to a read. */
export function isWriteError(error: Error | null): boolean {
  return error !== null && 'syscall' in error && error.syscall === 'write';
}
