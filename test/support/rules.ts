import { test } from 'node:test';
import { hasPgbouncer } from './pgbouncer.ts';
import {
  bouncerCheck,
  bouncerPooler,
  bouncerTitle,
  ourPooler,
  type RuleCase,
  type RuleOptions,
} from './rule.ts';
import { requirePackage } from './skip.ts';

/**
 * Registers rules that share a pooler, one looked at after the other, since a start for each would be
 * slow: a test of pgfleet and one of PgBouncer, with a test for each rule inside. `rule` is for one
 * that needs its own.
 */
export function rules(title: string, options: () => RuleOptions, cases: readonly RuleCase[]): void {
  test(title, async (t) => {
    const fleet = await ourPooler(t, options());
    for (const { name, check } of cases) await t.test(name, (t) => check(fleet, t));
  });
  // None of them may hold for the version that is there; its settings may be unknown to it then.
  if (cases.every((one) => bouncerCheck(one) === undefined)) return;
  test(`PgBouncer: ${title}`, async (t) => {
    if (!requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
    const bouncer = await bouncerPooler(t, options());
    for (const one of cases) {
      const otherCheck = bouncerCheck(one);
      if (otherCheck !== undefined) await t.test(bouncerTitle(one), (t) => otherCheck(bouncer, t));
    }
  });
}
