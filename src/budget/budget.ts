import type { Limit } from '../config/effective.ts';

/**
 * This process's share of one fleet-wide limit on server connections: how many it may hold and how
 * many it holds. A connection is held from before the connect until the server's own end of file,
 * because PostgreSQL counts a backend until then.
 */
export class Budget {
  /** Infinity when the limit is off. 0 means no slot at all, never "unlimited". */
  max: number;
  held = 0;
  /** A pool with clients in its queue has found no slot here, and no free connection to evict. */
  isWanted = false;

  constructor(limit: Limit) {
    this.max = maxOf(limit);
  }

  /** Sets another limit; more may be held than it allows until connections end. */
  resize(limit: Limit): void {
    this.max = maxOf(limit);
  }

  get hasRoom(): boolean {
    return this.held < this.max;
  }

  take(): void {
    this.held++;
  }

  give(): void {
    this.held--;
  }
}

function maxOf(limit: Limit): number {
  return limit.kind === 'unlimited' ? Number.POSITIVE_INFINITY : limit.value;
}
