import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import type { Config } from '../config/config.ts';

/** Workers are numbered by one byte of the cancel key. */
const MAX_WORKERS = 256;
/** Descriptors that PgBouncer counts for itself. */
const OWN_FDS = 10;

/** Number of workers: what is written, or as many as the machine runs at once. */
export function fleetSize(size: Config['fleet']['size']): number {
  return Math.min(size === 'auto' ? availableParallelism() : size, MAX_WORKERS);
}

/**
 * PgBouncer's estimate of descriptors that a full pooler uses: its clients, and for each database a
 * pool for every known user, or one where the user is forced.
 */
export function expectedFds(config: Config): number {
  const { settings, databases } = config;
  const users = new Set(config.users.map((user) => user.name));
  for (const { name } of config.authUsers ?? []) users.add(name);
  let fds = settings.max_client_conn + OWN_FDS;
  for (const database of databases) {
    const poolSize = database.pool_size ?? settings.default_pool_size;
    fds += poolSize * (database.user === null ? users.size : 1);
  }
  return fds;
}

/** Soft and hard limit of open descriptors, as the kernel words them; null where it does not tell. */
export function descriptorLimits(): { soft: string; hard: string } | null {
  try {
    const limits = readFileSync('/proc/self/limits', 'utf8');
    const found = /^Max open files\s+(\S+)\s+(\S+)/m.exec(limits);
    return found === null ? null : { soft: found[1]!, hard: found[2]! };
  } catch {
    return null;
  }
}
