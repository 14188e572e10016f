import { int4, text } from './result.ts';
import type { PoolRow, WorkerSnapshot } from './snapshot.ts';
import { compareNames, mergeBy, type Topic } from './topic.ts';

/** The gauges of a pool in the order of SHOW POOLS. */
const GAUGES = [
  'cl_active',
  'cl_waiting',
  'cl_active_cancel_req',
  'cl_waiting_cancel_req',
  'sv_active',
  'sv_active_cancel',
  'sv_being_canceled',
  'sv_idle',
  'sv_used',
  'sv_tested',
  'sv_login',
] as const satisfies readonly (keyof PoolRow)[];

export const showPools: Topic = {
  columns: [
    text('database'),
    text('user'),
    ...GAUGES.map(int4),
    int4('maxwait'),
    int4('maxwait_us'),
    text('pool_mode'),
    text('load_balance_hosts'),
  ],
  parts: ['pools'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) =>
    mergePools(snapshots).map((pool) => [
      pool.database,
      pool.user,
      ...GAUGES.map((gauge) => pool[gauge]),
      Math.floor(pool.maxWaitUs / 1_000_000),
      pool.maxWaitUs % 1_000_000,
      pool.pool_mode,
      pool.load_balance_hosts,
    ]),
};

/** One row a pool: gauges added up, the longest wait of all. */
export function mergePools(snapshots: readonly WorkerSnapshot[]): PoolRow[] {
  return mergeBy(
    snapshots.flatMap((snapshot) => snapshot.pools),
    (pool) => JSON.stringify([pool.database, pool.user]),
    addPools,
  ).sort((a, b) => compareNames(a.database, b.database) || compareNames(a.user, b.user));
}

function addPools(a: PoolRow, b: PoolRow): PoolRow {
  const sum = { ...a, maxWaitUs: Math.max(a.maxWaitUs, b.maxWaitUs) };
  for (const gauge of GAUGES) sum[gauge] += b[gauge];
  return sum;
}
