import { randomBytes, timingSafeEqual } from 'node:crypto';

/**
 * Cancel keys as clients are given them. The layout is PgBouncer's, so that its peers can forward
 * requests to a fleet as if it were one process:
 *
 *   byte 0     random, top bit clear (the "process id" stays positive)
 *   bytes 1-2  the fleet's `peer_id`, low byte first; random when there is none
 *   byte 3     number of the worker that owns the client (random for PgBouncer)
 *   bytes 4-6  random
 *   byte 7     random; with a `peer_id` its two lowest bits are the hops left, 3 at first
 *   bytes 8-   random; only in the longer keys that protocol 3.2 allows
 *
 * The first 8 bytes say where a request goes, so no two clients of a worker share them; the worker
 * that owns the client compares all of a key.
 */

export const KEY_BYTES = 8;
/** Key of a client that speaks protocol 3.2: process id and a secret of 32 bytes, as PostgreSQL 18's. */
export const LONG_KEY_BYTES = 36;
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

interface Holder<T> {
  readonly client: T;
  /** The bytes behind the first 8. */
  readonly rest: Buffer;
}

/** The keys of this worker's clients. */
export class CancelKeys<T extends Cancellable = Cancellable> {
  readonly #worker: number;
  /** The fleet's number in keys that are made from now on; 0: none. */
  peerId: number;
  readonly #random: (bytes: number) => Buffer;
  readonly #byHead = new Map<string, Holder<T>>();

  constructor(worker: number, peerId: number, random: (bytes: number) => Buffer = randomBytes) {
    this.#worker = worker;
    this.peerId = peerId;
    this.#random = random;
  }

  /**
   * Makes a key for a client.
   * @param bytes length of the key: `KEY_BYTES`, or `LONG_KEY_BYTES` for a client of protocol 3.2
   */
  add(client: T, bytes: number = KEY_BYTES): Buffer {
    for (;;) {
      const key = this.#random(bytes);
      key[0] = key[0]! & 0x7f;
      key[WORKER_BYTE] = this.#worker;
      if (this.peerId > 0) {
        key[1] = this.peerId & 0xff;
        key[2] = this.peerId >> 8;
        key[HOPS_BYTE] = key[HOPS_BYTE]! | HOPS_MASK;
      }
      const head = headOf(key);
      if (this.#byHead.has(head)) continue;
      this.#byHead.set(head, { client, rest: key.subarray(KEY_BYTES) });
      return key;
    }
  }

  /** Forgets a key; one that was never made does no harm. */
  remove(key: Buffer): void {
    if (key.length > 0) this.#byHead.delete(headOf(key));
  }

  /** The client of a key, whatever hops it has left. */
  find(key: Buffer): T | undefined {
    const holder = this.#byHead.get(headOf(key)) ?? this.#withAllHops(key);
    if (holder === undefined) return undefined;
    const rest = key.subarray(KEY_BYTES);
    // In constant time, so that how much of a guess is right cannot be measured.
    const isRight = rest.length === holder.rest.length && timingSafeEqual(rest, holder.rest);
    return isRight ? holder.client : undefined;
  }

  #withAllHops(key: Buffer): Holder<T> | undefined {
    if (this.peerId === 0 || key.length < KEY_BYTES) return undefined;
    const whole = Buffer.from(key.subarray(0, KEY_BYTES));
    whole[HOPS_BYTE] = whole[HOPS_BYTE]! | HOPS_MASK;
    return this.#byHead.get(headOf(whole));
  }
}

function headOf(key: Buffer): string {
  return key.toString('latin1', 0, KEY_BYTES);
}
