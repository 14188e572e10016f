import { int4, type Row, text } from './result.ts';
import { mergeDatabases } from './show-databases.ts';
import { mergeHosts, mergeZones } from './show-dns.ts';
import { mergePools } from './show-pools.ts';
import { mergeUsers } from './show-users.ts';
import type { ListCounts } from './snapshot.ts';
import type { Topic } from './topic.ts';

/** What each worker has of its own is added up; what they share is counted once. */
export const showLists: Topic = {
  columns: [text('list'), int4('items')],
  parts: ['lists', 'databases', 'users', 'pools', 'dns'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots, config }) => {
    const lists = snapshots.map((snapshot) => snapshot.lists);
    const sum = (name: Exclude<keyof ListCounts, 'peerPoolIds'>): Row => [
      name,
      lists.reduce((total, list) => total + list[name], 0),
    ];
    return [
      ['databases', mergeDatabases(snapshots, config).length],
      ['users', mergeUsers(snapshots, config).length],
      ['peers', config.peers.length],
      ['pools', mergePools(snapshots).length],
      ['peer_pools', new Set(lists.flatMap((list) => list.peerPoolIds)).size],
      sum('free_clients'),
      sum('used_clients'),
      sum('login_clients'),
      sum('free_servers'),
      sum('used_servers'),
      ['dns_names', mergeHosts(snapshots).length],
      ['dns_zones', mergeZones(snapshots).length],
      sum('dns_queries'),
      ['dns_pending', 0],
    ];
  },
};
