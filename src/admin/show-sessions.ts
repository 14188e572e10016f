import type { Config } from '../config/config.ts';
import { LEAK_KINDS } from '../metrics/session-leaks.ts';
import type { Column } from '../wire/encode.ts';
import { numeric, type Row, text } from './result.ts';
import type { SessionRow, WorkerSnapshot } from './snapshot.ts';
import { compareNames, mergeBy, type Topic } from './topic.ts';

/**
 * Topics that PgBouncer has not, whose counters therefore stay out of SHOW STATS, all counted since
 * the pooler started and a database a row.
 */

/**
 * SHOW SESSION_LEAKS: the database's `session_leak`, and how many statements left, or with `reject`
 * would have left, something of each kind in the session of a server. `allow` does not look for any.
 */
export const showSessionLeaks = byDatabase(
  [text('session_leak'), ...LEAK_KINDS.map(numeric)],
  ({ database, leaks }, config) => [settingOf(database, config), ...leaks],
);

/**
 * SHOW STALE_PLANS: how often a server refused a prepared statement because its result had changed,
 * and how often the client heard nothing of that, because it was prepared anew and run again.
 */
export const showStalePlans = byDatabase(
  [numeric('refused'), numeric('hidden')],
  ({ stalePlans, stalePlansHidden }) => [stalePlans, stalePlansHidden],
);

function byDatabase(
  columns: readonly Column[],
  toValues: (row: SessionRow, config: Config) => Row,
): Topic {
  return {
    columns: [text('database'), ...columns],
    parts: ['sessions'],
    isSameEverywhere: false,
    hasProcesses: true,
    rows: ({ snapshots, config }) =>
      merged(snapshots).map((row) => [row.database, ...toValues(row, config)]),
  };
}

function merged(snapshots: readonly WorkerSnapshot[]): SessionRow[] {
  const rows = snapshots.flatMap(({ sessions }) => sessions);
  return mergeBy(rows, ({ database }) => database, add).sort((a, b) =>
    compareNames(a.database, b.database),
  );
}

function add(a: SessionRow, b: SessionRow): SessionRow {
  return {
    database: a.database,
    leaks: a.leaks.map((count, kind) => count + (b.leaks[kind] ?? 0)),
    stalePlans: a.stalePlans + b.stalePlans,
    stalePlansHidden: a.stalePlansHidden + b.stalePlansHidden,
  };
}

function settingOf(database: string, config: Config): string {
  const entry = config.databases.find(({ name }) => name === database) ?? config.autoDatabase;
  return entry?.session_leak ?? 'allow';
}
