import { endOfString } from '../wire/decode.ts';

/** Reads the fields of a message body; past its end everything is 0 or empty and `isBroken`. */
export class BodyReader {
  isBroken = false;
  readonly #body: Buffer;
  #at = 0;

  constructor(body: Buffer) {
    this.#body = body;
  }

  /** Whether every byte was used and none was missing. */
  get isDone(): boolean {
    return !this.isBroken && this.#at === this.#body.length;
  }

  byte(): number {
    return this.#take(1)?.[0] ?? 0;
  }

  int16(): number {
    return this.#take(2)?.readInt16BE() ?? 0;
  }

  int32(): number {
    return this.#take(4)?.readInt32BE() ?? 0;
  }

  /** Bytes up to the next NUL. */
  cstring(): Buffer {
    const end = endOfString(this.#body, this.#at, this.#body.length);
    const bytes = this.#take(end === -1 ? -1 : end - this.#at) ?? Buffer.alloc(0);
    if (end !== -1) this.#at++;
    return bytes;
  }

  skip(bytes: number): void {
    this.#take(bytes);
  }

  #take(bytes: number): Buffer | null {
    if (this.isBroken || bytes < 0 || this.#at + bytes > this.#body.length) {
      this.isBroken = true;
      return null;
    }
    this.#at += bytes;
    return this.#body.subarray(this.#at - bytes, this.#at);
  }
}
