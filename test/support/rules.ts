import { type TestContext, test } from 'node:test';
import { hasPgbouncer, pgbouncerVersion, startPgbouncer } from './pgbouncer.ts';
import { startPgfleet } from './pgfleet.ts';
import type { TestPooler } from './pooler.ts';
import { isAtLeast, type RuleCheck, type RuleNotes, type RuleOptions } from './rule.ts';
import { requirePackage } from './skip.ts';

/** One of several rules that are looked at on one pooler, one after the other. */
export interface RuleCase extends RuleNotes {
  readonly name: string;
  readonly check: RuleCheck;
}

/**
 * Registers rules that share a pooler, since a start for each would be slow: a test of pgfleet and
 * one of PgBouncer, with a test for each rule inside. `rule` is for one that needs its own.
 */
export function rules(title: string, options: () => RuleOptions, cases: readonly RuleCase[]): void {
  test(title, async (t) => {
    const fleet = await startPgfleet(options());
    fleet.allowLog(...(options().logs ?? []));
    t.after(() => fleet.stop());
    for (const { name, check } of cases) await t.test(name, (t) => check(fleet, t));
  });
  // None of them may hold for the version that is there; its settings may be unknown to it then.
  if (hasPgbouncer() && !cases.some((one) => bouncerCheck(one) !== undefined)) return;
  test(`PgBouncer: ${title}`, async (t) => {
    if (!requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
    const { size: _size, fleet: _fleet, logs: _logs, ...common } = options();
    const bouncer = await startPgbouncer(common);
    bouncer.allowLog(/./);
    t.after(() => bouncer.stop());
    for (const one of cases) await checkOther(t, bouncer, one);
  });
}

/** What PgBouncer is looked at with; undefined: it is not asked. */
function bouncerCheck({ check, since, differs }: RuleCase): RuleCheck | undefined {
  if (since !== undefined && !isAtLeast(pgbouncerVersion(), since)) return undefined;
  return differs === undefined ? check : differs.check;
}

async function checkOther(t: TestContext, bouncer: TestPooler, one: RuleCase): Promise<void> {
  const { name, differs } = one;
  const otherCheck = bouncerCheck(one);
  if (otherCheck === undefined) return;
  const title = differs === undefined ? name : `${name}, but ${differs.because}`;
  await t.test(title, (t) => otherCheck(bouncer, t));
}
