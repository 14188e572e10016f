import type { Config, DatabaseEntry } from '../config/config.ts';
import { CONSOLE_DATABASE } from './console-rows.ts';
import { int4, type Row, text } from './result.ts';
import type { DatabaseRow, WorkerSnapshot } from './snapshot.ts';
import { compareNames, mergeBy, type Topic } from './topic.ts';

export const showDatabases: Topic = {
  columns: [
    text('name'),
    text('host'),
    int4('port'),
    text('database'),
    text('force_user'),
    int4('pool_size'),
    int4('min_pool_size'),
    int4('reserve_pool_size'),
    int4('server_lifetime'),
    text('pool_mode'),
    text('load_balance_hosts'),
    int4('max_connections'),
    int4('current_connections'),
    int4('max_client_connections'),
    int4('current_client_connections'),
    int4('paused'),
    int4('disabled'),
  ],
  parts: ['databases'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots, config }) => {
    const entries = entriesOf(config);
    return mergeDatabases(snapshots, config).map((live) =>
      toRow(live, entries.get(live.name) ?? config.autoDatabase, config),
    );
  },
};

/** Every database that is configured or in use, once, sorted by name. */
export function mergeDatabases(
  snapshots: readonly WorkerSnapshot[],
  config: Config,
): DatabaseRow[] {
  const configured = config.databases.map(({ name }) => ({
    name,
    current_connections: 0,
    current_client_connections: 0,
    paused: false,
    disabled: false,
  }));
  // Without a `*` entry, what has no entry is a database that a reload has removed while it was in use.
  const known = new Set([CONSOLE_DATABASE, ...config.databases.map(({ name }) => name)]);
  return mergeBy(
    [...configured, ...snapshots.flatMap((snapshot) => snapshot.databases)],
    (database) => database.name,
    addDatabases,
  )
    .filter(({ name }) => known.has(name) || config.autoDatabase !== null)
    .sort((a, b) => compareNames(a.name, b.name));
}

function addDatabases(a: DatabaseRow, b: DatabaseRow): DatabaseRow {
  return {
    name: a.name,
    current_connections: a.current_connections + b.current_connections,
    current_client_connections: a.current_client_connections + b.current_client_connections,
    paused: a.paused || b.paused,
    disabled: a.disabled || b.disabled,
  };
}

function entriesOf(config: Config): Map<string, DatabaseEntry> {
  return new Map(config.databases.map((entry) => [entry.name, entry]));
}

function toRow(live: DatabaseRow, own: DatabaseEntry | null, config: Config): Row {
  const { settings } = config;
  const entry = live.name === CONSOLE_DATABASE ? null : own;
  const head =
    entry === null
      ? [live.name, null, settings.listen_port, CONSOLE_DATABASE, CONSOLE_DATABASE, 2]
      : [
          live.name,
          entry.hosts.length === 0 ? null : entry.hosts.join(','),
          entry.port,
          entry.dbname ?? live.name,
          entry.user,
          entry.pool_size ?? settings.default_pool_size,
        ];
  const lifetime = entry?.server_lifetime ?? 0;
  return [
    ...head,
    entry?.min_pool_size ?? settings.min_pool_size,
    entry?.reserve_pool_size ?? settings.reserve_pool_size,
    lifetime > 0 ? lifetime : settings.server_lifetime,
    entry === null ? 'statement' : entry.pool_mode,
    entry !== null && entry.hosts.length > 1 ? entry.load_balance_hosts : null,
    entry?.max_db_connections ?? settings.max_db_connections,
    live.current_connections,
    entry?.max_db_client_connections ?? settings.max_db_client_connections,
    live.current_client_connections,
    live.paused,
    live.disabled,
  ];
}
