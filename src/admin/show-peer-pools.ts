import { int4 } from './result.ts';
import type { PeerPoolRow } from './snapshot.ts';
import { mergeBy, type Topic } from './topic.ts';

const GAUGES = [
  'cl_active_cancel_req',
  'cl_waiting_cancel_req',
  'sv_active_cancel',
  'sv_login',
] as const satisfies readonly (keyof PeerPoolRow)[];

/** SHOW PEER_POOLS: cancel requests for hosts of `[peers]` that have been sent any. */
export const showPeerPools: Topic = {
  columns: [int4('peer_id'), ...GAUGES.map(int4)],
  parts: ['peerPools'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) =>
    mergeBy(
      snapshots.flatMap(({ peerPools }) => peerPools),
      (pool) => String(pool.peer_id),
      add,
    )
      .sort((a, b) => a.peer_id - b.peer_id)
      .map((pool) => [pool.peer_id, ...GAUGES.map((gauge) => pool[gauge])]),
};

function add(a: PeerPoolRow, b: PeerPoolRow): PeerPoolRow {
  const sum = { ...a };
  for (const gauge of GAUGES) sum[gauge] += b[gauge];
  return sum;
}
