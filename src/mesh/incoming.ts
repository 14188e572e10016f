import type { Socket } from 'node:net';
import { log } from '../log/logger.ts';
import { cancelPacketBytes } from './cancel-packet.ts';
import { encodeFrames, FrameReader, MAGIC, MAX_ANSWER_BYTES, MAX_FRAME_BYTES } from './frame.ts';

/** What a whole request may take to arrive, and how long an answer may stay unread, in milliseconds. */
const QUIET_MS = 5000;

export interface IncomingHandlers {
  /**
   * A CancelRequest. `done` closes the connection, which tells the sender that it was dealt with, and
   * how: `reason` is for its log. What it returns is called when the sender leaves before that.
   */
  onCancel(packet: Buffer, done: (reason: string) => void): () => void;
  /** A question of a sibling; `gone` says that it waits for the answer no more. */
  onRequest(request: unknown, gone: AbortSignal): unknown | Promise<unknown>;
}

/**
 * One connection that came in on the mesh. Its first bytes tell what it is: a CancelRequest, or a
 * frame. Anything else, HTTP included, is closed.
 *
 *   telling apart --> cancel --(done)--> closed
 *        |      `---> frame --> answering --> closed
 *        `---> closed
 */
export class Incoming {
  readonly #socket: Socket;
  readonly #handlers: IncomingHandlers;
  /** First bytes, until it is known what they begin. */
  #first: Buffer = Buffer.alloc(0);
  #reader: FrameReader | null = null;
  #isTaken = false;

  constructor(socket: Socket, handlers: IncomingHandlers) {
    this.#socket = socket;
    this.#handlers = handlers;
    socket.setTimeout(QUIET_MS, () => socket.destroy());
    socket.on('error', () => socket.destroy());
    socket.on('data', (chunk: Buffer) => this.#onData(chunk));
  }

  #onData(chunk: Buffer): void {
    if (this.#isTaken) return;
    if (this.#reader !== null) {
      this.#onFrameBytes(this.#reader, chunk);
      return;
    }
    const bytes = Buffer.concat([this.#first, chunk]);
    if (bytes.length >= 4 && bytes.readUInt32BE(0) === MAGIC) {
      this.#reader = new FrameReader(MAX_FRAME_BYTES, 1);
      this.#onFrameBytes(this.#reader, bytes);
      return;
    }
    const length = cancelPacketBytes(bytes);
    if (length === -1) this.#socket.destroy();
    else if (length === 0 || bytes.length < length) this.#first = bytes;
    else this.#onCancel(bytes.subarray(0, length));
  }

  #onCancel(packet: Buffer): void {
    this.#isTaken = true;
    // From here on the sender's own time limit holds: it closes its end when it gives up.
    this.#socket.setTimeout(0);
    const giveUp = this.#handlers.onCancel(packet, (reason) => {
      this.#socket.setTimeout(QUIET_MS);
      this.#socket.end(reason);
    });
    this.#socket.on('close', giveUp);
  }

  #onFrameBytes(reader: FrameReader, chunk: Buffer): void {
    reader.push(chunk);
    if (!reader.isOver) return;
    this.#isTaken = true;
    this.#socket.setTimeout(0);
    const gone = new AbortController();
    this.#socket.on('close', () => gone.abort());
    this.#answer(reader, gone.signal).catch((error: unknown) => {
      log.error(`mesh: answer failed: ${messageOf(error)}`);
      this.#socket.destroy();
    });
  }

  async #answer(reader: FrameReader, gone: AbortSignal): Promise<void> {
    const text = await this.#answerText(reader, gone);
    if (this.#socket.destroyed) return;
    const frames =
      encodeFrames(text, MAX_ANSWER_BYTES) ??
      encodeFrames(
        JSON.stringify({ error: 'has more to say than fits an answer' }),
        MAX_FRAME_BYTES,
      );
    this.#socket.setTimeout(QUIET_MS);
    if (frames !== null) this.#socket.end(frames);
  }

  async #answerText(reader: FrameReader, gone: AbortSignal): Promise<string> {
    if (reader.text === null)
      return JSON.stringify({ error: `cannot read the request: it ${reader.problem}` });
    try {
      const value = await this.#handlers.onRequest(JSON.parse(reader.text), gone);
      return JSON.stringify({ value: value ?? null });
    } catch (error) {
      return JSON.stringify({ error: `failed: ${messageOf(error)}` });
    }
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
