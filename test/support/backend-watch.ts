import pg from 'pg';
import type { TestPostgres } from './postgres.ts';

/** How many connections there were at most, by `database/user`, and of all pools together. */
export interface Peaks {
  readonly byPool: ReadonlyMap<string, number>;
  readonly byDatabase: ReadonlyMap<string, number>;
  readonly byUser: ReadonlyMap<string, number>;
  readonly all: number;
  /** How often PostgreSQL was asked. */
  readonly looks: number;
}

/** Asks PostgreSQL, as fast as it answers, how many connections it sees, until it is stopped. */
export interface BackendWatch {
  /** Ends the watch and says what it has seen; throws when PostgreSQL stopped answering. */
  stop(): Promise<Peaks>;
}

/**
 * Counts the backends of everybody but the superuser, whom only tests use. Those that are still in
 * their login have no database and user in pg_stat_activity yet and count in `all` alone.
 */
const LOOK = `SELECT coalesce(datname, '') AS database, coalesce(usename, '') AS "user",
    count(*)::int AS count
  FROM pg_stat_activity
  WHERE backend_type = 'client backend' AND usename IS DISTINCT FROM 'postgres'
  GROUP BY 1, 2`;

/** Starts to watch; call `stop` before PostgreSQL ends. */
export async function watchBackends(postgres: TestPostgres): Promise<BackendWatch> {
  const client = new pg.Client({ connectionString: postgres.url() });
  await client.connect();
  const byPool = new Map<string, number>();
  const byDatabase = new Map<string, number>();
  const byUser = new Map<string, number>();
  let all = 0;
  let looks = 0;
  let isStopped = false;
  const look = async (): Promise<void> => {
    const { rows } = await client.query<{ database: string; user: string; count: number }>(LOOK);
    looks++;
    const databases = new Map<string, number>();
    const users = new Map<string, number>();
    let sum = 0;
    for (const { database, user, count } of rows) {
      sum += count;
      raise(byPool, `${database}/${user}`, count);
      databases.set(database, (databases.get(database) ?? 0) + count);
      users.set(user, (users.get(user) ?? 0) + count);
    }
    for (const [database, count] of databases) raise(byDatabase, database, count);
    for (const [user, count] of users) raise(byUser, user, count);
    all = Math.max(all, sum);
  };
  const watching = (async () => {
    while (!isStopped) {
      await look();
      // Room for the load itself; a look takes about as long as this pause.
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  })();
  // Whoever stops the watch hears of it.
  watching.catch(() => undefined);
  return {
    stop: async () => {
      isStopped = true;
      try {
        await watching;
      } finally {
        await client.end();
      }
      return { byPool, byDatabase, byUser, all, looks };
    },
  };
}

function raise(peaks: Map<string, number>, key: string, count: number): void {
  if (count > (peaks.get(key) ?? 0)) peaks.set(key, count);
}
