import { int4, text } from './result.ts';
import type { Topic } from './topic.ts';

/** SHOW PEERS: the `[peers]` section. */
export const showPeers: Topic = {
  columns: [int4('peer_id'), text('host'), int4('port'), int4('pool_size')],
  parts: [],
  isSameEverywhere: true,
  hasProcesses: false,
  rows: ({ config }) =>
    [...config.peers]
      .sort((a, b) => a.id - b.id)
      .map((peer) => [
        peer.id,
        peer.host,
        peer.port,
        peer.pool_size ?? config.settings.default_pool_size,
      ]),
};
