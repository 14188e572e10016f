import type { Pool } from './pool.ts';

/**
 * A host's name leads elsewhere now: connections to where it leads no more are closed as soon as they
 * are free. Unlike PgBouncer this also minds hosts that stand in a list.
 *
 * @param addresses all that the name has now
 */
export function leaveOldAddresses(
  pools: Iterable<Pool>,
  host: string,
  addresses: readonly string[],
): void {
  for (const pool of pools) {
    for (const server of pool.current()) {
      // One whose address is still sought has the name in its place, and will get a new one.
      const isElsewhere = server.host === host && server.address !== host;
      if (isElsewhere && !addresses.includes(server.address)) server.isCloseNeeded = true;
    }
  }
}
