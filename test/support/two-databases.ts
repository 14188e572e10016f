import type { TestContext } from 'node:test';
import { type PgfleetOptions, startPgfleet, type TestPgfleet } from './pgfleet.ts';
import { startPostgres, type TestPostgres } from './postgres.ts';

/** A server, and a fleet with the databases `app` and `other`, which are one there. */
export interface TwoDatabases {
  readonly postgres: TestPostgres;
  readonly fleet: TestPgfleet;
}

/** Starts both for a test, and ends them with it. */
export async function startTwoDatabases(
  t: TestContext,
  size: number,
  more: PgfleetOptions = {},
): Promise<TwoDatabases> {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({
    postgres,
    size,
    databases: { app: 'pool_size=8', other: 'dbname=app pool_size=4' },
    ...more,
  });
  t.after(() => fleet.stop());
  return { postgres, fleet };
}
