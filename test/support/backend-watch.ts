import pg from 'pg';
import type { TestPostgres } from './postgres.ts';

/** How many connections PostgreSQL has seen at most at one time. */
export interface Peaks {
  readonly byUser: ReadonlyMap<string, number>;
  /** Sums over the users of each group that was asked for. */
  readonly byGroup: ReadonlyMap<string, number>;
  /** Of all users, those that are still logging in included. */
  readonly all: number;
  /** How often PostgreSQL was asked. */
  readonly looks: number;
}

/** Asks PostgreSQL again and again how many connections it sees. */
export interface BackendWatch {
  /** Connections of a user or a group at the last look. */
  now(name: string): number;
  /** How often PostgreSQL has been asked so far. */
  looks(): number;
  /** Ends the watch and says what it has seen; throws when PostgreSQL stopped answering. */
  stop(): Promise<Peaks>;
}

/** Everybody but the superuser, whom only tests use. A backend in its login has no user yet. */
const LOOK = `SELECT coalesce(usename, '') AS "user", count(*)::int AS count
  FROM pg_stat_activity
  WHERE backend_type = 'client backend' AND usename IS DISTINCT FROM 'postgres'
  GROUP BY 1`;

/** Milliseconds between two looks: about what a look takes, which leaves room for the load. */
const PAUSE_MS = 2;

/** Starts to watch; call `stop` before PostgreSQL ends. `groups` are lists of users by name. */
export async function watchBackends(
  postgres: TestPostgres,
  groups: Readonly<Record<string, readonly string[]>> = {},
): Promise<BackendWatch> {
  const client = new pg.Client({ connectionString: postgres.url() });
  await client.connect();
  const byUser = new Map<string, number>();
  const byGroup = new Map<string, number>();
  let last = new Map<string, number>();
  let all = 0;
  let looks = 0;
  let isStopped = false;
  const look = async (): Promise<void> => {
    const { rows } = await client.query<{ user: string; count: number }>(LOOK);
    looks++;
    last = new Map(rows.map(({ user, count }) => [user, count]));
    for (const [user, count] of last) raise(byUser, user, count);
    for (const [group, users] of Object.entries(groups)) raise(byGroup, group, sum(last, users));
    all = Math.max(all, sum(last, last.keys()));
  };
  const watching = (async () => {
    while (!isStopped) {
      await look();
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  })();
  // Whoever stops the watch hears of it.
  watching.catch(() => undefined);
  return {
    now: (name) => sum(last, groups[name] ?? [name]),
    looks: () => looks,
    stop: async () => {
      isStopped = true;
      await watching.finally(() => client.end());
      return { byUser, byGroup, all, looks };
    },
  };
}

function sum(counts: ReadonlyMap<string, number>, names: Iterable<string>): number {
  let total = 0;
  for (const name of names) total += counts.get(name) ?? 0;
  return total;
}

function raise(peaks: Map<string, number>, key: string, count: number): void {
  peaks.set(key, Math.max(peaks.get(key) ?? 0, count));
}
