import type { DatabaseEntry, PoolMode } from '../config/config.ts';
import {
  type ConfigIndex,
  effectiveCheckQuery,
  effectiveIdleTransactionTimeout,
  effectiveMinPoolSize,
  effectivePoolMode,
  effectiveQueryTimeout,
  effectiveServerLifetime,
  effectiveTransactionTimeout,
} from '../config/effective.ts';
import { poolShares } from '../config/split.ts';

/**
 * What the configuration says about one pool, precedence (user over database over global) resolved
 * and sizes already this worker's share. Times are milliseconds; 0 turns a timeout off.
 */
export interface PoolPlan {
  readonly mode: PoolMode;
  /** Infinity: no limit. */
  readonly size: number;
  readonly reserveSize: number;
  readonly minSize: number;
  readonly serverLifetimeMs: number;
  readonly serverIdleMs: number;
  /** Milliseconds without clients and servers after which the pool is dropped; 0: never. */
  readonly poolIdleMs: number;
  /** A linked server that is to be closed is not kept until its client's session ends. */
  readonly closesFast: boolean;
  readonly checkDelayMs: number;
  readonly connectTimeoutMs: number;
  readonly loginRetryMs: number;
  readonly reserveTimeoutMs: number;
  readonly queryTimeoutMs: number;
  readonly idleTransactionMs: number;
  readonly transactionMs: number;
  /** 0: no notice. */
  readonly waitNotifyMs: number;
  /** Sent when a server is released; null: nothing. */
  readonly resetQuery: string | null;
  /** Checks a server that was idle for long; null: no check, '' an empty query. */
  readonly checkQuery: string | null;
  readonly isRoundRobin: boolean;
  /** 0: named statements are passed through. */
  readonly maxPreparedStatements: number;
  /** What becomes of statements that leave session state behind. */
  readonly sessionLeak: 'allow' | 'warn' | 'reject';
}

/** The plan of the pool of `entry` and `user` for worker `worker` of `size`. */
export function planPool(
  index: ConfigIndex,
  entry: DatabaseEntry,
  user: string,
  worker: number,
  size: number,
): PoolPlan {
  const { settings } = index;
  const share = poolShares(index, entry, user, size).perWorker[worker]!;
  const mode = effectivePoolMode(index, entry, user);
  const resets = mode === 'session' || settings.server_reset_query_always;
  return {
    mode,
    size: share.pool.kind === 'unlimited' ? Number.POSITIVE_INFINITY : share.pool.value,
    reserveSize: share.reserve,
    minSize: share.min,
    serverLifetimeMs: effectiveServerLifetime(index, entry) * 1000,
    serverIdleMs: settings.server_idle_timeout * 1000,
    poolIdleMs: isAlwaysWanted(index, entry, user) ? 0 : settings.pool_idle_timeout * 1000,
    closesFast: settings.server_fast_close,
    checkDelayMs: settings.server_check_delay * 1000,
    connectTimeoutMs: settings.server_connect_timeout * 1000,
    loginRetryMs: settings.server_login_retry * 1000,
    reserveTimeoutMs: settings.reserve_pool_timeout * 1000,
    queryTimeoutMs: effectiveQueryTimeout(index, user) * 1000,
    idleTransactionMs: effectiveIdleTransactionTimeout(index, user) * 1000,
    transactionMs: effectiveTransactionTimeout(index, user) * 1000,
    waitNotifyMs: settings.query_wait_notify * 1000,
    resetQuery: resets && settings.server_reset_query !== '' ? settings.server_reset_query : null,
    checkQuery: effectiveCheckQuery(settings),
    isRoundRobin: settings.server_round_robin,
    maxPreparedStatements: mode === 'session' ? 0 : settings.max_prepared_statements,
    // In session mode the session is the client's own.
    sessionLeak: mode === 'session' ? 'allow' : (entry.session_leak ?? 'allow'),
  };
}

/** `plan` with no more room than `other` gives. */
export function withSmallerSizes(plan: PoolPlan, other: PoolPlan): PoolPlan {
  return {
    ...plan,
    size: Math.min(plan.size, other.size),
    reserveSize: Math.min(plan.reserveSize, other.reserveSize),
    minSize: Math.min(plan.minSize, other.minSize),
  };
}

/** The pool of a forced user with a minimum is kept without clients. */
function isAlwaysWanted(index: ConfigIndex, entry: DatabaseEntry, user: string): boolean {
  return entry.user !== null && effectiveMinPoolSize(index, entry, user) > 0;
}
