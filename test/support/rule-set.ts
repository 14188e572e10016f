import type { TestContext } from 'node:test';
import type { TestPooler } from './pooler.ts';
import type { RuleCase, RuleCheck, RuleOptions } from './rule.ts';
import { rules } from './rules.ts';

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
  placed: readonly PlacedRule[],
): void {
  const names = placed.map((_, index) => `pool_${index}`);
  const withPools = (): RuleOptions => ({
    ...options(),
    databases: {
      ...Object.fromEntries(names.map((name) => [name, 'dbname=app pool_size=1'])),
      ...options().databases,
    },
  });
  const cases = placed.map(({ name, check, differs }, index): RuleCase => {
    const inPlace =
      (checkIt: PlaceCheck): RuleCheck =>
      (pooler, t) =>
        checkIt({ pooler, database: names[index]! }, t);
    const own = { name, since, check: inPlace(check) };
    if (differs === undefined) return own;
    const { because, check: other } = differs;
    return {
      ...own,
      differs: other === undefined ? { because } : { because, check: inPlace(other) },
    };
  });
  rules(title, withPools, cases);
}
