/** Unanswered pings after which a worker is spoken of. */
const SILENT_AFTER = 3;

/**
 * Whether a worker's event loop still turns, judged by the pings it answers, one sent each second.
 * Pings are counted and not timed, so that a launcher that was itself held up blames nobody.
 */
export class Pulse {
  readonly #stallTimeout: number;
  #seq = 0;
  /** Seconds that the oldest unanswered ping is late; -1 when there is none. */
  #lateSeconds = -1;

  /** `stallTimeout` is in seconds; 0 turns it off. */
  constructor(stallTimeout: number) {
    this.#stallTimeout = stallTimeout;
  }

  get isSilent(): boolean {
    return this.#lateSeconds >= SILENT_AFTER;
  }

  get lateSeconds(): number {
    return Math.max(this.#lateSeconds, 0);
  }

  /** Called each second. `silent` is told once, `stalled` from the time-out on. */
  check(): 'well' | 'silent' | 'stalled' {
    this.#lateSeconds++;
    if (this.#stallTimeout > 0 && this.#lateSeconds >= this.#stallTimeout) return 'stalled';
    return this.#lateSeconds === SILENT_AFTER ? 'silent' : 'well';
  }

  /** Number of the ping to send after `check`. */
  next(): number {
    return ++this.#seq;
  }

  /** An answer has come. Returns true when the worker had been called silent. */
  beat(): boolean {
    const wasSilent = this.isSilent;
    this.#lateSeconds = -1;
    return wasSilent;
  }
}
