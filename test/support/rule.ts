import { type TestContext, test } from 'node:test';
import { hasPgbouncer, pgbouncerVersion, startPgbouncer } from './pgbouncer.ts';
import { startPgfleet } from './pgfleet.ts';
import type { PoolerOptions, Section, TestPooler } from './pooler.ts';
import { requirePackage } from './skip.ts';

/** What a rule needs to hold. */
export interface RuleOptions extends PoolerOptions {
  /** Workers of the fleet; default 1. */
  readonly size?: number;
  /** `[fleet]` of the fleet. */
  readonly fleet?: Section;
  /** Log lines that the rule means to cause. */
  readonly logs?: readonly RegExp[];
}

/** Where PgBouncer cannot be asked the same, or answers otherwise. */
export interface RuleNotes {
  /** First version of PgBouncer that has this behaviour; an older one is not asked. */
  readonly since?: string;
  /** First version that has this behaviour no more; it and later ones are not asked. */
  readonly before?: string;
  /**
   * PgBouncer behaves otherwise and why ours is better: a listed improvement. Its own behaviour is
   * checked by `check`, if there is one, else it is not asked.
   */
  readonly differs?: { readonly because: string; readonly check?: RuleCheck };
}

export type RuleCheck = (pooler: TestPooler, t: TestContext) => Promise<void>;

/**
 * Registers a rule of the wire: a test of pgfleet, and one of the real PgBouncer beside it, which
 * shows that the rule is PgBouncer's. `options` is asked once when each test runs, so that it may name
 * a server started in `before`, or start one for that test.
 */
export function rule(
  name: string,
  options: (t: TestContext) => RuleOptions | Promise<RuleOptions>,
  check: RuleCheck,
  notes: RuleNotes = {},
): void {
  test(name, async (t) => check(await ourPooler(t, await options(t)), t));
  const one = { name, check, ...notes };
  const otherCheck = bouncerCheck(one);
  if (otherCheck === undefined) return;
  test(`PgBouncer: ${bouncerTitle(one)}`, async (t) => {
    if (!requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
    await otherCheck(await bouncerPooler(t, await options(t)), t);
  });
}

/** A rule as it is registered. */
export interface RuleCase extends RuleNotes {
  readonly name: string;
  readonly check: RuleCheck;
}

/** What PgBouncer is looked at with; undefined: the one that is there, if any, is not asked. */
export function bouncerCheck({ check, since, before, differs }: RuleCase): RuleCheck | undefined {
  if (hasPgbouncer()) {
    if (since !== undefined && !isAtLeast(pgbouncerVersion(), since)) return undefined;
    if (before !== undefined && isAtLeast(pgbouncerVersion(), before)) return undefined;
  }
  return differs === undefined ? check : differs.check;
}

export function bouncerTitle({ name, differs }: RuleCase): string {
  return differs === undefined ? name : `${name}, but ${differs.because}`;
}

/** A fleet that is stopped with the test. */
export async function ourPooler(t: TestContext, options: RuleOptions): Promise<TestPooler> {
  const fleet = await startPgfleet(options);
  fleet.allowLog(...(options.logs ?? []));
  t.after(() => fleet.stop());
  return fleet;
}

/** A real PgBouncer that is stopped with the test. */
export async function bouncerPooler(t: TestContext, options: RuleOptions): Promise<TestPooler> {
  const { size: _size, fleet: _fleet, logs: _logs, ...common } = options;
  const bouncer = await startPgbouncer(common);
  bouncer.allowLog(/./);
  t.after(() => bouncer.stop());
  return bouncer;
}

/** Whether a version such as `1.18.0` is `least` or later. */
export function isAtLeast(version: string, least: string): boolean {
  const have = version.split('.').map(Number);
  for (const [index, part] of least.split('.').map(Number).entries()) {
    const own = have[index] ?? 0;
    if (own !== part) return own > part;
  }
  return true;
}
