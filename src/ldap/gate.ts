/**
 * Lets a number of tasks run at a time; the others wait in the order in which they came.
 */
export class Gate {
  #free: number;
  /** Those who wait, the first come first. */
  readonly #waiting = new Set<() => void>();

  constructor(places: number) {
    this.#free = places;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /**
   * Waits for a place. Returns what gives it back, to be called once, or null when `signal` aborts
   * before there is one.
   */
  async enter(signal: AbortSignal): Promise<(() => void) | null> {
    if (signal.aborted) return null;
    if (this.#free > 0) {
      this.#free--;
      return () => this.#leave();
    }
    const isIn = await new Promise<boolean>((resolve) => {
      const giveUp = (): void => {
        this.#waiting.delete(goIn);
        resolve(false);
      };
      const goIn = (): void => {
        signal.removeEventListener('abort', giveUp);
        resolve(true);
      };
      this.#waiting.add(goIn);
      signal.addEventListener('abort', giveUp, { once: true });
    });
    return isIn ? () => this.#leave() : null;
  }

  /** The place goes to the first of the queue. */
  #leave(): void {
    const [next] = this.#waiting;
    if (next === undefined) {
      this.#free++;
      return;
    }
    this.#waiting.delete(next);
    next();
  }
}
