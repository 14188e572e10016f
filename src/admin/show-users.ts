import type { Config } from '../config/config.ts';
import { int4, text } from './result.ts';
import type { UserRow, WorkerSnapshot } from './snapshot.ts';
import { compareNames, mergeBy, type Topic } from './topic.ts';

export const showUsers: Topic = {
  columns: [
    text('name'),
    text('pool_size'),
    text('reserve_pool_size'),
    text('pool_mode'),
    int4('max_user_connections'),
    int4('current_connections'),
    int4('max_user_client_connections'),
    int4('current_client_connections'),
  ],
  parts: ['users'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots, config }) => {
    const entries = new Map(config.users.map((entry) => [entry.name, entry]));
    return mergeUsers(snapshots, config).map((user) => {
      const entry = entries.get(user.name);
      return [
        user.name,
        padded(entry?.pool_size ?? null),
        padded(entry?.reserve_pool_size ?? null),
        entry?.pool_mode ?? null,
        ownLimit(entry?.max_user_connections, config.settings.max_user_connections),
        user.current_connections,
        ownLimit(entry?.max_user_client_connections, config.settings.max_user_client_connections),
        user.current_client_connections,
      ];
    });
  },
};

/** Every user that a worker knows or the configuration names, once, sorted by name. */
export function mergeUsers(snapshots: readonly WorkerSnapshot[], config: Config): UserRow[] {
  const forced = config.databases.flatMap(({ user }) => (user === null ? [] : [user]));
  const configured = [...config.users.map(({ name }) => name), ...forced].map((name) => ({
    name,
    current_connections: 0,
    current_client_connections: 0,
  }));
  return mergeBy(
    [...configured, ...snapshots.flatMap((snapshot) => snapshot.users)],
    (user) => user.name,
    (a, b) => ({
      name: a.name,
      current_connections: a.current_connections + b.current_connections,
      current_client_connections: a.current_client_connections + b.current_client_connections,
    }),
  ).sort((a, b) => compareNames(a.name, b.name));
}

/** PgBouncer sends a size as text of at least nine characters, and nothing when it is not set. */
function padded(size: number | null): string {
  return size === null ? '' : String(size).padStart(9);
}

function ownLimit(own: number | null | undefined, general: number): number {
  return own !== null && own !== undefined && own > 0 ? own : general;
}
