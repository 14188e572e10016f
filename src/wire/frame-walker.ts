import { InvariantError } from '../errors.ts';
import { HEADER_BYTES } from './codes.ts';

/**
 * Cuts the byte stream of one direction into runs, so that a hundred rows leave as one slice and
 * one write. It owns how far the message in hand has come; what to do with a message is the sink's
 * word, given at its header, and a long body streams through without being collected.
 *
 *   walk: [rest of a message] header -> onHeader -> forward | skip | take | ... -> next header
 *
 * The walker keeps no bytes. `walk` says how many it used, and the caller brings the unused ones
 * again in front of what it reads next.
 */

/** What to do with the message whose header is at hand. */
export const Action = {
  /** It joins the current run, in as many pieces as it arrives in. */
  forward: 0,
  /** It is swallowed, in as many pieces as it arrives in. */
  skip: 1,
  /** It goes to `onTake` as a whole, once all of it is there. */
  take: 2,
  /** Ask again when all of it is there (or what `waitFor` said). */
  wait: 3,
  /** Stop in front of it. */
  stop: 4,
  /** Like `forward`; `onEnd` follows its last byte. */
  forwardEnd: 5,
  /** `onHead` replaces its first bytes, what remains of it is forwarded as a run of its own. */
  rewrite: 6,
} as const;
export type Action = (typeof Action)[keyof typeof Action];
const { forward, skip, take, wait, stop, forwardEnd, rewrite } = Action;

/** Receives what a `FrameWalker` finds. Bytes are only valid until the call returns. */
export interface FrameSink {
  /**
   * Called at each header: `bytes[at]` is the type byte, `total` the size of the whole message
   * (1 + length word), `end` the end of the valid bytes. Messages before this one may still be in
   * the undelivered run. It must change nothing before it returns `wait` or `take`, for it is asked
   * again when the message was not all there.
   */
  onHeader(type: number, bytes: Buffer, at: number, total: number, end: number): Action;
  /** A run of whole or partial messages with action `forward` or `forwardEnd`. */
  onRun(bytes: Buffer, start: number, end: number): void;
  /** The whole message of `take`, in no run; the run before it was delivered. */
  onTake(type: number, bytes: Buffer, start: number, end: number): void;
  /**
   * After the last byte of a `forwardEnd` message was delivered by `onRun`. False stops the walk
   * right behind that message.
   */
  onEnd(type: number): boolean;
  /**
   * The length word at `at` is impossible: less than 4 or more than the limit. The run before it was
   * delivered; the stream cannot be followed any further.
   */
  onBadHeader(bytes: Buffer, at: number, end: number): void;
  /**
   * Only for sinks that answer `rewrite`: the run before the message was delivered, and this sends
   * what stands for its first bytes. Returns how many bytes from `at` on were so replaced, at least
   * 0 and at most what is there (`end - at`) and what belongs to the message.
   */
  onHead?(type: number, bytes: Buffer, at: number, end: number): number;
}

export class FrameWalker {
  readonly #sink: FrameSink;
  readonly #maxTotal: number;
  /** Of the message in hand, while `#messageLeft` is above 0. */
  #action: Action = forward;
  #type = 0;
  #messageLeft = 0;
  /** Moves on `abort` and `reset`, which a callback may call: the walk around it then ends. */
  #epoch = 0;
  /**
   * Above 0 after a walk: so many bytes of the message at the returned offset must be there before
   * walking again makes sense.
   */
  needBytes = 0;
  /** After an impossible length word or `abort`: walks do nothing until `reset`. */
  isBroken = false;

  /** @param maxTotal greatest size allowed of a whole message, type byte and length word included */
  constructor(sink: FrameSink, maxTotal: number) {
    this.#sink = sink;
    this.#maxTotal = maxTotal;
  }

  /** Bytes still owed of a message that is being forwarded or skipped. */
  get messageLeft(): number {
    return this.#messageLeft;
  }

  get isMidMessage(): boolean {
    return this.#messageLeft > 0;
  }

  /** The first bytes of a message have gone on, and its last ones have not come yet. */
  get isForwarding(): boolean {
    return this.#messageLeft > 0 && this.#action !== skip;
  }

  /**
   * Called by `onHeader` before it answers `wait`, for a message of which `bytes` from its type byte
   * on are enough to decide: `return walker.waitFor(n)`. More than are there now, or it is a bug.
   */
  waitFor(bytes: number): Action {
    this.needBytes = bytes;
    return wait;
  }

  /** Makes the walk in progress return at once, its pending run undelivered; later ones do nothing. */
  abort(): void {
    this.reset();
    this.isBroken = true;
  }

  /** Back to a message boundary. Inside a callback it also ends the walk in progress. */
  reset(): void {
    this.#epoch++;
    this.#messageLeft = 0;
    this.needBytes = 0;
    this.isBroken = false;
  }

  /**
   * Walks over `bytes[start..end)` and returns the offset of the first byte not used. The caller
   * keeps the rest: a partial header, a message to wait for, or what follows a stop.
   */
  walk(bytes: Buffer, start: number, end: number): number {
    if (this.isBroken) return start;
    this.needBytes = 0;
    const sink = this.#sink;
    const epoch = this.#epoch;
    let at = start;
    let runStart = start;
    for (;;) {
      if (this.#messageLeft > 0) {
        const step = Math.min(this.#messageLeft, end - at);
        at += step;
        this.#messageLeft -= step;
        if (this.#action === skip) runStart = at;
        if (this.#messageLeft > 0) break;
        if (this.#action === forwardEnd) {
          if (at > runStart) sink.onRun(bytes, runStart, at);
          runStart = at;
          if (this.#epoch !== epoch || !sink.onEnd(this.#type) || this.#epoch !== epoch) return at;
        }
      }
      if (end - at < HEADER_BYTES) {
        if (at < end) this.needBytes = HEADER_BYTES;
        break;
      }
      const total = 1 + int32At(bytes, at + 1);
      if (total < HEADER_BYTES || total > this.#maxTotal) {
        if (at > runStart) sink.onRun(bytes, runStart, at);
        if (this.#epoch !== epoch) return at;
        this.isBroken = true;
        sink.onBadHeader(bytes, at, end);
        return at;
      }

      const type = bytes[at]!;
      const action = sink.onHeader(type, bytes, at, total, end);
      if (this.#epoch !== epoch) return runStart;
      if (action === forward || action === forwardEnd) {
        this.#action = action;
        this.#type = type;
        this.#messageLeft = total;
        continue;
      }

      if (action === wait || (action === take && end - at < total)) {
        if (this.needBytes === 0) this.needBytes = total;
        if (this.needBytes <= end - at)
          throw new InvariantError('waiting for bytes that are there');
        break;
      }
      if (action === stop) break;
      if (at > runStart) sink.onRun(bytes, runStart, at);
      if (this.#epoch !== epoch) return at;
      runStart = at;
      if (action === take) {
        at += total;
        runStart = at;
        sink.onTake(type, bytes, at - total, at);
        if (this.#epoch !== epoch) return at;
      } else if (action === rewrite) {
        const replaced = sink.onHead!(type, bytes, at, end);
        if (this.#epoch !== epoch) return at;
        at += replaced;
        runStart = at;
        this.#action = forward;
        this.#messageLeft = total - replaced;
      } else {
        this.#action = action;
        this.#messageLeft = total;
      }
    }
    if (at > runStart) sink.onRun(bytes, runStart, at);
    return at;
  }
}

/** A signed Int32 in network order, without the checks of `readInt32BE`: the bound was looked at. */
function int32At(bytes: Buffer, at: number): number {
  return (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
}
