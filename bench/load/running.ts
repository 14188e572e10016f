/** What a bench has started, and ends with it: also after Ctrl-C, and when it fails. */
export class Running {
  readonly #ends: (() => Promise<void>)[] = [];

  /** Ends `end` before everything that was added earlier. */
  add(end: () => Promise<void>): void {
    this.#ends.unshift(end);
  }

  /** Runs `work`, then ends all. */
  async during(work: () => Promise<void>): Promise<void> {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) {
      process.once(signal, () => void this.#end().finally(() => process.exit(130)));
    }
    try {
      await work();
    } finally {
      await this.#end();
    }
  }

  /** Each once. */
  async #end(): Promise<void> {
    for (let next = this.#ends.shift(); next !== undefined; next = this.#ends.shift()) await next();
  }
}
