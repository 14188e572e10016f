import { lstat, unlink } from 'node:fs/promises';
import { createServer, type NetConnectOpts, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { z } from 'zod';
import { log } from '../log/logger.ts';
import { encodeFrames, FrameReader, MAX_ANSWER_BYTES, MAX_FRAME_BYTES } from './frame.ts';
import { Incoming, type IncomingHandlers } from './incoming.ts';
import { MeshError } from './mesh-error.ts';
import { Outgoing, type OutgoingHandlers, type Patience } from './outgoing.ts';

/** Longest path of a Unix socket on Linux (`sun_path` without its NUL). */
const MAX_PATH_BYTES = 107;
/** Connections that may wait for accept: a burst of cancels from all siblings at once. */
const BACKLOG = 4096;
const MAX_INCOMING = 4096;
/**
 * How long a cancel may be with a sibling, in milliseconds. It knows itself when to give up,
 * so this is only for one that hangs.
 */
const CANCEL_ANSWER_MS = 90_000;
/** Longest text in which a sibling says what became of a cancel. */
const MAX_REASON_BYTES = 200;
const REQUEST_TIMEOUT_MS = 1000;

export interface MeshOptions extends IncomingHandlers {
  /** Directory of the fleet's sockets, private to its user. */
  readonly runtimeDir: string;
  /** This worker's number. */
  readonly workerId: number;
  /** Number of workers; their numbers are 0 to size - 1. */
  readonly size: number;
}

const answerSchema = z.union([
  z.strictObject({ error: z.string() }),
  z.strictObject({ value: z.unknown() }),
]);

/**
 * The links between the workers of a fleet, off the data path: worker k listens on
 * `worker-<k>.sock` and every errand has a connection of its own. What arrives is a CancelRequest in
 * the very bytes that PgBouncer peers exchange, or a question in frames (see `frame.ts`).
 */
export class Mesh {
  readonly #options: MeshOptions;
  readonly #incoming = new Set<Socket>();
  readonly #outgoing = new Set<Outgoing>();
  #server: Server | null = null;
  #isClosed = false;

  constructor(options: MeshOptions) {
    this.#options = options;
  }

  /**
   * Starts to listen, in the place of a socket that a dead worker of the same number left behind.
   *
   * @throws Error when the path is too long, taken by something else than a socket, or not writable
   */
  async listen(): Promise<void> {
    const path = this.#pathOf(this.#options.workerId);
    if (Buffer.byteLength(path) > MAX_PATH_BYTES) {
      throw new Error(`runtime_dir is too long for a Unix socket: ${path}`);
    }
    await removeStale(path);
    const server = createServer((socket) => this.#onConnection(socket));
    server.maxConnections = MAX_INCOMING;
    this.#server = server;
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      // The socket is bound within the call, so that the narrow mask is in force only for it.
      const mask = process.umask(0o077);
      try {
        server.listen({ path, backlog: BACKLOG }, () => {
          server.off('error', reject);
          server.on('error', (error) => log.error(`mesh: ${error.message}`));
          resolve();
        });
      } finally {
        process.umask(mask);
      }
    });
  }

  /** Ends every errand and connection, and takes the socket away. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const outgoing of [...this.#outgoing])
      outgoing.end('was not waited for: this worker ends');
    const server = this.#server;
    this.#server = null;
    if (server?.listening !== true) return;
    await new Promise<void>((resolve) => {
      server.close(() => resolve());
      for (const socket of this.#incoming) socket.destroy();
    });
  }

  /**
   * Hands a CancelRequest to a sibling. `done` is called once: when the sibling has closed its end,
   * that is when the signal was delivered or dropped, or when the attempt has failed. Its text says
   * which, for the log.
   * @param waitMs how long the sibling may take to accept it, milliseconds; 0: for ever
   * @returns ends the attempt, which then has failed
   */
  forwardCancel(
    workerId: number,
    packet: Buffer,
    waitMs: number,
    done: (reason: string) => void,
  ): () => void {
    const patience = { timeoutMs: waitMs, answerMs: CANCEL_ANSWER_MS };
    let reason = '';
    // The packet may lie in the read buffer that all connections share.
    const bytes = Buffer.from(packet);
    const outgoing = this.#start({ path: this.#pathOf(workerId) }, bytes, patience, {
      onBytes: (chunk) => {
        if (reason.length < MAX_REASON_BYTES) reason += chunk.toString('latin1');
      },
      onEnd: (problem) => done(problem === null ? reason : 'failed to send cancel request'),
    });
    return () => outgoing.end(null);
  }

  /**
   * Asks one sibling.
   *
   * @param timeoutMs how long it may take, milliseconds; 0: for ever
   * @param givenUp ends the question, which then fails; the sibling is told by the end of its connection
   * @throws MeshError naming the worker when it is gone, refuses, or is silent for `timeoutMs`
   */
  request(
    workerId: number,
    payload: unknown,
    timeoutMs = REQUEST_TIMEOUT_MS,
    givenUp?: AbortSignal,
  ): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const fail = (what: string): void => reject(new MeshError(workerId, what));
      const frames = encodeFrames(JSON.stringify(payload ?? null), MAX_FRAME_BYTES);
      if (frames === null) return fail('cannot be asked: the request is too long');
      const reader = new FrameReader(MAX_ANSWER_BYTES);
      const outgoing = this.#start(
        { path: this.#pathOf(workerId) },
        frames,
        { timeoutMs },
        {
          onBytes: (chunk) => {
            reader.push(chunk);
            if (reader.isOver) outgoing.end(reader.problem);
          },
          onEnd: (problem) => {
            givenUp?.removeEventListener('abort', giveUp);
            if (reader.text === null) return fail(problem ?? 'ended before it had answered');
            const answer = readAnswer(reader.text);
            if (answer === null) return fail('sent an answer that cannot be read');
            if ('error' in answer) return fail(answer.error);
            resolve(answer.value);
          },
        },
      );
      const giveUp = (): void => outgoing.end('was not waited for');
      givenUp?.addEventListener('abort', giveUp);
    });
  }

  /** Asks all other workers at once; one entry a worker. */
  async requestAll(
    payload: unknown,
    timeoutMs = REQUEST_TIMEOUT_MS,
  ): Promise<Map<number, { value: unknown } | { error: string }>> {
    const others = Array.from({ length: this.#options.size }, (_, id) => id).filter(
      (id) => id !== this.#options.workerId,
    );
    const results = await Promise.allSettled(
      others.map((id) => this.request(id, payload, timeoutMs)),
    );
    return new Map(
      results.map((result, i) => [
        others[i]!,
        result.status === 'fulfilled'
          ? { value: result.value }
          : { error: (result.reason as Error).message },
      ]),
    );
  }

  #start(
    where: NetConnectOpts,
    bytes: Buffer,
    patience: Patience,
    handlers: OutgoingHandlers,
  ): Outgoing {
    const outgoing: Outgoing = new Outgoing(where, bytes, patience, {
      ...handlers,
      onEnd: (problem) => {
        this.#outgoing.delete(outgoing);
        handlers.onEnd(problem);
      },
    });
    this.#outgoing.add(outgoing);
    if (this.#isClosed) process.nextTick(() => outgoing.end('was not asked: this worker ends'));
    return outgoing;
  }

  #onConnection(socket: Socket): void {
    this.#incoming.add(socket);
    socket.on('close', () => this.#incoming.delete(socket));
    new Incoming(socket, this.#options);
  }

  #pathOf(workerId: number): string {
    return join(this.#options.runtimeDir, `worker-${workerId}.sock`);
  }
}

async function removeStale(path: string): Promise<void> {
  try {
    if (!(await lstat(path)).isSocket()) throw new Error(`${path} exists and is not a socket`);
    await unlink(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
}

function readAnswer(text: string): z.infer<typeof answerSchema> | null {
  try {
    const answer = answerSchema.safeParse(JSON.parse(text));
    return answer.success ? answer.data : null;
  } catch {
    return null;
  }
}
