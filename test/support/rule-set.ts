import { type TestContext, test } from 'node:test';
import { hasPgbouncer, pgbouncerVersion, startPgbouncer } from './pgbouncer.ts';
import { startPgfleet } from './pgfleet.ts';
import type { TestPooler } from './pooler.ts';
import { isAtLeast, type RuleOptions } from './rule.ts';
import { requirePackage } from './skip.ts';

/** One pooler, and a database of it that no other rule of the set uses. */
export interface RulePlace {
  readonly pooler: TestPooler;
  /** Pool of one connection. */
  readonly database: string;
}

type PlaceCheck = (place: RulePlace, t: TestContext) => Promise<void>;

/** One of the rules that share a pooler. */
export interface PlacedRule {
  readonly name: string;
  readonly check: PlaceCheck;
  /** As in `RuleNotes`: PgBouncer behaves otherwise, and why ours is better. */
  readonly differs?: { readonly because: string; readonly check?: PlaceCheck };
}

/**
 * Registers rules of the wire that need nothing but a pool of their own, so that one start of a fleet,
 * and one of the real PgBouncer, does for all of them.
 * @param since the first version of PgBouncer that is asked
 */
export function ruleSet(
  title: string,
  options: () => RuleOptions,
  since: string,
  rules: readonly PlacedRule[],
): void {
  const names = rules.map((_, index) => `pool_${index}`);
  const withPools = (): RuleOptions => ({
    ...options(),
    databases: {
      ...Object.fromEntries(names.map((name) => [name, 'dbname=app pool_size=1'])),
      ...options().databases,
    },
  });
  test(title, async (t) => {
    const fleet = await startPgfleet(withPools());
    fleet.allowLog(...(options().logs ?? []));
    t.after(() => fleet.stop());
    for (const [index, { name, check }] of rules.entries()) {
      await t.test(name, (step) => check({ pooler: fleet, database: names[index]! }, step));
    }
  });
  if (hasPgbouncer() && !isAtLeast(pgbouncerVersion(), since)) return;
  test(`PgBouncer: ${title}`, async (t) => {
    if (!requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
    const { size: _size, fleet: _fleet, logs: _logs, ...common } = withPools();
    const bouncer = await startPgbouncer(common);
    bouncer.allowLog(/./);
    t.after(() => bouncer.stop());
    for (const [index, { name, check, differs }] of rules.entries()) {
      const own = differs === undefined ? check : differs.check;
      if (own === undefined) continue;
      const label = differs === undefined ? name : `${name}, but ${differs.because}`;
      await t.test(label, (step) => own({ pooler: bouncer, database: names[index]! }, step));
    }
  });
}
