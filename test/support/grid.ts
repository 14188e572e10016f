import { type TestContext, test } from 'node:test';
import { startPgfleet, type TestPgfleet } from './pgfleet.ts';
import type { Section } from './pooler.ts';
import { startPostgres, type TestPostgres } from './postgres.ts';
import { hasPostgres15, type PostgresVersion } from './postgres-files.ts';
import { requirePackage } from './skip.ts';

/** A server and a fleet before it. */
export interface Place {
  readonly postgres: TestPostgres;
  readonly fleet: TestPgfleet;
  readonly mode: 'transaction' | 'session';
}

/** Rules by name, each checked by a function that throws. */
export type Rules = Readonly<Record<string, (place: Place, t: TestContext) => Promise<void>>>;

/** One fleet of a grid. */
interface Layout {
  readonly size: number;
  readonly mode: Place['mode'];
}

/** Fleets of every size in transaction mode, and one in session mode. */
const LAYOUTS: readonly Layout[] = [
  { size: 1, mode: 'transaction' },
  { size: 2, mode: 'transaction' },
  { size: 4, mode: 'transaction' },
  { size: 2, mode: 'session' },
];

/** Few enough in transaction mode that clients must share servers, one for each client otherwise. */
const POOL_SIZES: Readonly<Record<Place['mode'], number>> = { transaction: 4, session: 120 };

export interface GridOptions {
  readonly layouts?: readonly Layout[];
  /** Run once on each server, as the superuser, in the database `app`. */
  readonly prepare?: (postgres: TestPostgres) => Promise<void>;
  /** Added to the fleets' `[pgbouncer]`. */
  readonly settings?: Section;
  /** Debian packages, and whether they are there. */
  readonly needs?: Readonly<Record<string, () => boolean>>;
}

/** Declares one test for each PostgreSQL version, with subtests for every fleet and rule. */
export function onEveryFleet(title: string, rules: Rules, options: GridOptions = {}): void {
  onFleets(title, options, async (t, place) => {
    for (const [rule, check] of Object.entries(rules)) {
      await t.test(rule, (inner) => check(place, inner));
    }
  });
}

/** The same for tests that make their subtests themselves. */
export function onFleets(
  title: string,
  options: GridOptions,
  run: (t: TestContext, place: Place) => Promise<void>,
): void {
  for (const version of [15, 18] as const) {
    test(`${title}: PostgreSQL ${version}`, async (t) => {
      if (!hasAll(t, version, options)) return;
      const postgres = await startPostgres({ version, settings: { max_connections: 250 } });
      t.after(() => postgres.dispose());
      await options.prepare?.(postgres);
      for (const { size, mode } of options.layouts ?? LAYOUTS) {
        await t.test(`a fleet of ${size} in ${mode} mode`, async (inner) => {
          const fleet = await startPgfleet({
            postgres,
            size,
            settings: {
              pool_mode: mode,
              default_pool_size: POOL_SIZES[mode],
              ...options.settings,
            },
          });
          inner.after(() => fleet.stop());
          await run(inner, { postgres, fleet, mode });
        });
      }
    });
  }
}

function hasAll(t: TestContext, version: PostgresVersion, { needs = {} }: GridOptions): boolean {
  if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return false;
  return Object.entries(needs).every(([name, isThere]) => requirePackage(t, name, isThere()));
}
