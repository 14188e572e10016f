import { inspect } from 'node:util';

const SHOWN = '[redacted]';

/**
 * A value that must never reach a log, a SHOW or an error text: passwords, proofs, cancel keys.
 * Printing it in any way gives `[redacted]`; only `reveal()` gives the value.
 */
export class Secret<T = string> {
  readonly #value: T;

  constructor(value: T) {
    this.#value = value;
  }

  /** The value itself, for the one place that needs it. */
  reveal(): T {
    return this.#value;
  }

  toString(): string {
    return SHOWN;
  }

  toJSON(): string {
    return SHOWN;
  }

  [inspect.custom](): string {
    return SHOWN;
  }
}
