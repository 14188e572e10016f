/** Ticks that are looked back on. */
const WINDOW = 30;

/**
 * By how much the event loop is late, judged by a timer that the worker has anyway: what it comes
 * later than it should is what a client's bytes would have waited. Short stalls between two ticks
 * are not seen.
 */
export class LoopDelay {
  readonly #intervalMs: number;
  readonly #late = new Float64Array(WINDOW);
  #next = 0;
  #lastAt = Number.NaN;

  /** @param intervalMs what the timer is set to */
  constructor(intervalMs: number) {
    this.#intervalMs = intervalMs;
  }

  /** The timer has come. `now` is milliseconds. */
  onTick(now: number): void {
    const late = now - this.#lastAt - this.#intervalMs;
    this.#lastAt = now;
    if (Number.isNaN(late)) return;
    this.#late[this.#next] = Math.max(late, 0);
    this.#next = (this.#next + 1) % WINDOW;
  }

  /** The most of the last ticks, milliseconds. */
  get maxMs(): number {
    return Math.max(...this.#late);
  }
}
