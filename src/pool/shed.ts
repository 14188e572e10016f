import type { ServerConnection } from '../server/server-connection.ts';
import type { Pool } from './pool.ts';

/** Connections that would stay: those on their way out already are left out. */
export function stayingIn(pool: Pool): number {
  let leaving = pool.closing.size;
  for (const list of [pool.linked, pool.tested, pool.held]) {
    for (const server of list) if (server.isCloseNeeded) leaving++;
  }
  return pool.total - leaving;
}

/**
 * Sees to it that `count` connections of a pool go, because a limit has been lowered: those in login
 * and free ones at once, the longest free first, others as soon as they become free.
 */
export function shedServers(pool: Pool, count: number, reason: string): void {
  let left = count;
  const free = [...pool.used, ...pool.idle].sort((a, b) => a.freeSince - b.freeSince);
  for (const server of [...pool.opening, ...free]) {
    if (left-- <= 0) return;
    server.close(reason);
  }
  const busy: ServerConnection[] = [...pool.held, ...pool.tested, ...pool.linked];
  for (const server of busy) {
    // One that is for replication ends with its client, and is not cut off for a limit's sake.
    if (server.isCloseNeeded || server.owner !== pool) continue;
    if (left-- <= 0) return;
    server.isCloseNeeded = true;
  }
}

/** The same for a limit that several pools share; the pool with most connections gives first. */
export function shedShared(pools: readonly Pool[], max: number, reason: string): void {
  const staying = new Map(pools.map((pool) => [pool, stayingIn(pool)]));
  let over = [...staying.values()].reduce((sum, count) => sum + count, 0) - max;
  for (; over > 0; over--) {
    const [pool, count] = [...staying].reduce((a, b) => (b[1] > a[1] ? b : a));
    shedServers(pool, 1, reason);
    staying.set(pool, count - 1);
  }
}
