import type { Column } from '../wire/encode.ts';
import { numeric, type Row, text } from './result.ts';
import { type CounterName, counterNames, type WorkerSnapshot } from './snapshot.ts';
import { type Stats, statsByDatabase, statsOfAll } from './stats.ts';
import { compareNames, type Topic } from './topic.ts';

/** SHOW STATS, STATS_TOTALS, STATS_AVERAGES and TOTALS, with PgBouncer's uneven names. */

/** In SHOW STATS the bytes have names of their own. */
const SHORT_NAMES: Partial<Record<CounterName, string>> = {
  bytes_received: 'received',
  bytes_sent: 'sent',
};
const SHORT_AVERAGE_NAMES: Partial<Record<CounterName, string>> = {
  bytes_received: 'recv',
  bytes_sent: 'sent',
};
/** SHOW TOTALS names things as the pooler does inside. */
const INNER_NAMES: Partial<Record<CounterName, string>> = {
  bytes_received: 'client_bytes',
  bytes_sent: 'server_bytes',
  client_parse_count: 'ps_client_parse_count',
  server_parse_count: 'ps_server_parse_count',
  bind_count: 'ps_bind_count',
};
/** Counters whose column in SHOW STATS_AVERAGES has the prefix that the others lack. */
const PREFIXED: readonly CounterName[] = [
  'client_parse_count',
  'server_parse_count',
  'bind_count',
  'client_login_count',
];

const totals = ({ totals }: Stats): Row => counterNames.map((name) => totals[name]);
const averages = ({ averages }: Stats): Row => counterNames.map((name) => averages[name]);

export const showStats = byDatabase(
  [
    ...counterNames.map((name) => `total_${SHORT_NAMES[name] ?? name}`),
    ...counterNames.map((name) => `avg_${SHORT_AVERAGE_NAMES[name] ?? name}`),
  ],
  (stats) => [...totals(stats), ...averages(stats)],
);

export const showStatsTotals = byDatabase(counterNames, totals);

export const showStatsAverages = byDatabase(
  counterNames.map((name) => (PREFIXED.includes(name) ? `avg_${name}` : name)),
  averages,
);

export const showTotals: Topic = {
  columns: [text('name'), numeric('value')],
  parts: ['stats'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) => {
    const stats = statsOfAll(snapshots);
    return [
      ...counterNames.map((name) => [`total_${INNER_NAMES[name] ?? name}`, stats.totals[name]]),
      ...counterNames.map((name) => [`avg_${INNER_NAMES[name] ?? name}`, stats.averages[name]]),
    ];
  },
};

function byDatabase(names: readonly string[], toValues: (stats: Stats) => Row): Topic {
  const columns: readonly Column[] = [text('database'), ...names.map(numeric)];
  const rows = (snapshots: readonly WorkerSnapshot[]): Row[] =>
    [...statsByDatabase(snapshots)]
      .sort(([a], [b]) => compareNames(a, b))
      .map(([database, stats]) => [database, ...toValues(stats)]);
  return {
    columns,
    parts: ['stats'],
    isSameEverywhere: false,
    hasProcesses: true,
    rows: ({ snapshots }) => rows(snapshots),
  };
}
