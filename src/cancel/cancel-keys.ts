import { randomBytes } from 'node:crypto';

/**
 * Cancel keys as clients are given them. The layout is PgBouncer's, so that its peers can forward
 * requests to a fleet as if it were one process:
 *
 *   byte 0     random, top bit clear (the "process id" stays positive)
 *   bytes 1-2  the fleet's `peer_id`, low byte first; random when there is none
 *   byte 3     number of the worker that owns the client (random for PgBouncer)
 *   bytes 4-6  random
 *   byte 7     random; with a `peer_id` its two lowest bits are the hops left, 3 at first
 */

export const KEY_BYTES = 8;
const WORKER_BYTE = 3;
const HOPS_BYTE = 7;
const HOPS_MASK = 0x03;

/** A client that can be cancelled. */
export interface Cancellable {
  readonly id: number;
}

/** The fleet's number among `[peers]` in a key. */
export function peerOf(key: Buffer): number {
  return key[1]! | (key[2]! << 8);
}

/** The worker that a key of this fleet belongs to. */
export function workerOf(key: Buffer): number {
  return key[WORKER_BYTE]!;
}

/** Hops that a key may still be forwarded to other hosts. */
export function hopsOf(key: Buffer): number {
  return key[HOPS_BYTE]! & HOPS_MASK;
}

/** The key with one hop less, for the next host. */
export function withHopLess(key: Buffer): Buffer {
  const next = Buffer.from(key);
  next[HOPS_BYTE] = next[HOPS_BYTE]! - 1;
  return next;
}

/** The keys of this worker's clients. */
export class CancelKeys<T extends Cancellable = Cancellable> {
  readonly #worker: number;
  /** The fleet's number in keys that are made from now on; 0: none. */
  peerId: number;
  readonly #random: (bytes: number) => Buffer;
  readonly #byKey = new Map<string, T>();

  constructor(worker: number, peerId: number, random: (bytes: number) => Buffer = randomBytes) {
    this.#worker = worker;
    this.peerId = peerId;
    this.#random = random;
  }

  /** Makes a key for a client. */
  add(client: T): Buffer {
    for (;;) {
      const key = this.#random(KEY_BYTES);
      key[0] = key[0]! & 0x7f;
      key[WORKER_BYTE] = this.#worker;
      if (this.peerId > 0) {
        key[1] = this.peerId & 0xff;
        key[2] = this.peerId >> 8;
        key[HOPS_BYTE] = key[HOPS_BYTE]! | HOPS_MASK;
      }
      const name = key.toString('latin1');
      if (this.#byKey.has(name)) continue;
      this.#byKey.set(name, client);
      return key;
    }
  }

  /** Forgets a key; one that was never made does no harm. */
  remove(key: Buffer): void {
    if (key.length > 0) this.#byKey.delete(key.toString('latin1'));
  }

  /** The client of a key, whatever hops it has left. */
  find(key: Buffer): T | undefined {
    const found = this.#byKey.get(key.toString('latin1'));
    if (found !== undefined || this.peerId === 0) return found;
    const whole = Buffer.from(key);
    whole[HOPS_BYTE] = whole[HOPS_BYTE]! | HOPS_MASK;
    return this.#byKey.get(whole.toString('latin1'));
  }
}
