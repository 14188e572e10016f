/**
 * How a limit of the whole fleet becomes one part a worker. The parts of a limit add up to exactly
 * the limit, so a fleet in which every worker obeys its own part obeys the limit.
 *
 * A worker obeys all limits of a pool at once. If the few slots of a small pool size, a small
 * database limit and a small user limit fell to different workers, no worker could open anything, so
 * small limits that meet in a pool start at the same worker.
 */

import type { DatabaseEntry } from './config.ts';
import {
  type ConfigIndex,
  effectiveMaxDbConnections,
  effectiveMaxUserConnections,
  effectiveMinPoolSize,
  effectivePoolSize,
  effectiveReservePoolSize,
  type Limit,
} from './effective.ts';

/** One worker's part of each limit of a pool. */
interface WorkerShare {
  readonly pool: Limit;
  readonly db: Limit;
  readonly user: Limit;
  /** Part of `min_pool_size`; never above what the worker may open. */
  readonly min: number;
  /** Part of `reserve_pool_size`. */
  readonly reserve: number;
}

export interface PoolShares {
  /** By worker. */
  readonly perWorker: readonly WorkerShare[];
  /** Workers that may open a connection for the pool, those with most slots first; never empty. */
  readonly holders: readonly number[];
}

/** Part of `total` for worker `index` of `n`, larger parts from worker `offset` on; all add up. */
export function share(total: number, n: number, index: number, offset = 0): number {
  const rest = total % n;
  const place = (((index - offset) % n) + n) % n;
  return Math.floor(total / n) + (place < rest ? 1 : 0);
}

/** The worker's part of a limit; a part of 0 stays "none" and never becomes "unlimited". */
export function splitLimit(limit: Limit, n: number, index: number, offset = 0): Limit {
  if (limit.kind === 'unlimited') return limit;
  return { kind: 'max', value: share(limit.value, n, index, offset) };
}

/** 32-bit FNV-1a of the key's UTF-8: the same in every worker and every run. */
export function stableHash(key: string): number {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(key)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** The worker that gets the first of a limit's larger parts. */
export function splitOffset(key: string, n: number): number {
  return stableHash(key) % n;
}

/** Splits all limits of the pool of `db` and `poolUser` over `n` workers. */
export function poolShares(
  index: ConfigIndex,
  db: DatabaseEntry,
  poolUser: string,
  n: number,
): PoolShares {
  const pool = effectivePoolSize(index, db, poolUser);
  const forDb = effectiveMaxDbConnections(index, db);
  const forUser = effectiveMaxUserConnections(index, poolUser);
  // A limit shared by several pools needs one offset in all of them, or its parts would not add up;
  // so it depends on that limit alone. Only the pool's own size may follow the other two.
  const dbOffset = isBelow(forDb, n) ? 0 : splitOffset(db.name, n);
  const userOffset = isBelow(forUser, n) ? 0 : splitOffset(poolUser, n);
  const followsOthers = isBelow(pool, n) && (isBelow(forDb, n) || isBelow(forUser, n));
  const poolOffset = followsOthers ? 0 : splitOffset(`${db.name}\0${poolUser}`, n);

  const workers = Array.from({ length: n }, (_, worker) => worker);
  const limits = workers.map((worker) => ({
    pool: splitLimit(pool, n, worker, poolOffset),
    db: splitLimit(forDb, n, worker, dbOffset),
    user: splitLimit(forUser, n, worker, userOffset),
  }));
  const slots = limits.map((part) => Math.min(...Object.values(part).map(slotsOf)));
  const place = (worker: number) => (worker - poolOffset + n) % n;
  const holders = workers
    .filter((worker) => slots[worker]! > 0)
    .sort((a, b) => compare(slots[b]!, slots[a]!) || place(a) - place(b));

  const min = fill(effectiveMinPoolSize(index, db, poolUser), holders, slots);
  const reserve = reserveShares(effectiveReservePoolSize(index, db, poolUser), holders, slots);
  const perWorker = workers.map((worker) => ({
    ...limits[worker]!,
    min: min.get(worker) ?? 0,
    reserve: reserve.get(worker) ?? 0,
  }));
  return { perWorker, holders };
}

/** Evenly over the holders, each at most its room; what finds no room anywhere is left out. */
function fill(
  total: number,
  holders: readonly number[],
  room: readonly number[],
): Map<number, number> {
  const parts = new Map<number, number>();
  let left = total;
  // Those with least room first: what one cannot take is spread over those still to come.
  const order = [...holders].reverse();
  order.forEach((worker, done) => {
    const part = Math.min(room[worker]!, Math.floor(left / (order.length - done)));
    parts.set(worker, part);
    left -= part;
  });
  return parts;
}

/**
 * Only holders get a part, since a worker without a slot has no clients of the pool that could use
 * it. Larger parts go to the workers with fewest slots.
 */
function reserveShares(
  total: number,
  holders: readonly number[],
  slots: readonly number[],
): Map<number, number> {
  const order = [...holders].sort((a, b) => compare(slots[a]!, slots[b]!));
  return new Map(order.map((worker, place) => [worker, share(total, order.length, place)]));
}

function isBelow(limit: Limit, n: number): boolean {
  return limit.kind === 'max' && limit.value < n;
}

function slotsOf(limit: Limit): number {
  return limit.kind === 'unlimited' ? Number.POSITIVE_INFINITY : limit.value;
}

/** Subtraction would make NaN of two infinite rooms. */
function compare(a: number, b: number): number {
  return a === b ? 0 : a < b ? -1 : 1;
}
