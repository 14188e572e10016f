import { connect, type NetConnectOpts, type Socket } from 'node:net';

/** Pause before the next try when the listener's queue is full, in milliseconds. */
const RETRY_MS = 10;

export interface OutgoingHandlers {
  onBytes(chunk: Buffer): void;
  /** Called once, never before the constructor has returned. `problem` is null after a plain close. */
  onEnd(problem: string | null): void;
}

/** How long it may take, in milliseconds; 0: for ever. */
export interface Patience {
  /** Until it is connected, or, without `answerMs`, until it is over. */
  readonly timeoutMs: number;
  /** From then on until it is over. */
  readonly answerMs?: number;
}

/** One connection to a sibling: says `bytes`, hears the answer, and ends before its deadline. */
export class Outgoing {
  readonly #where: NetConnectOpts;
  readonly #bytes: Buffer;
  readonly #handlers: OutgoingHandlers;
  readonly #answerMs: number | null;
  #deadline: NodeJS.Timeout | null = null;
  #retry: NodeJS.Timeout | null = null;
  #socket: Socket | null = null;
  #isOver = false;

  constructor(
    where: NetConnectOpts,
    bytes: Buffer,
    patience: Patience,
    handlers: OutgoingHandlers,
  ) {
    this.#where = where;
    this.#bytes = bytes;
    this.#handlers = handlers;
    this.#answerMs = patience.answerMs ?? null;
    this.#endAfter(patience.timeoutMs);
    this.#retry = setTimeout(() => this.#connect(), 0);
  }

  /** Ends it now; does nothing when it is over. */
  end(problem: string | null): void {
    if (this.#isOver) return;
    this.#isOver = true;
    if (this.#deadline !== null) clearTimeout(this.#deadline);
    if (this.#retry !== null) clearTimeout(this.#retry);
    this.#socket?.destroy();
    this.#handlers.onEnd(problem);
  }

  #endAfter(ms: number): void {
    if (this.#deadline !== null) clearTimeout(this.#deadline);
    this.#deadline = ms === 0 ? null : setTimeout(() => this.end(`did not answer in ${ms} ms`), ms);
  }

  #connect(): void {
    this.#retry = null;
    let socket: Socket;
    try {
      socket = connect(this.#where);
    } catch (error) {
      // A port or path that the runtime refuses at once.
      this.end(reasonOf(error));
      return;
    }
    this.#socket = socket;
    socket.on('connect', () => this.#onConnect(socket));
    socket.on('data', (chunk: Buffer) => {
      if (!this.#isOver) this.#handlers.onBytes(chunk);
    });
    socket.on('error', (error: NodeJS.ErrnoException) => this.#onError(error));
    socket.on('close', () => {
      if (this.#retry === null) this.end(null);
    });
  }

  #onConnect(socket: Socket): void {
    if (this.#isOver) return;
    socket.write(this.#bytes);
    if (this.#answerMs !== null) this.#endAfter(this.#answerMs);
  }

  /** A Unix socket whose accept queue is full refuses with EAGAIN instead of letting us wait. */
  #onError(error: NodeJS.ErrnoException): void {
    if (this.#isOver) return;
    if (error.code === 'EAGAIN' && error.syscall === 'connect') {
      this.#retry = setTimeout(() => this.#connect(), RETRY_MS);
    } else {
      this.end(reasonOf(error));
    }
  }
}

function reasonOf(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === 'ENOENT' || code === 'ECONNREFUSED') return 'does not run';
  return `cannot be reached: ${error instanceof Error ? error.message : String(error)}`;
}
