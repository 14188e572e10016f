import type { TestContext } from 'node:test';

/**
 * Skips the test when `isThere` is false, naming the Debian package that would make it run. Where
 * nothing may be skipped (`PGFLEET_NO_SKIP=1`, as in CI) it fails instead. Returns whether to go on:
 * `if (!requirePackage(t, 'postgresql-15', hasPostgres15())) return;`
 */
export function requirePackage(t: TestContext, name: string, isThere: boolean): boolean {
  return requireOf(t, `needs Debian's package ${name}`, isThere);
}

/** The same for anything else that a machine may lack; `text` says what it is. */
export function requireOf(t: TestContext, text: string, isThere: boolean): boolean {
  if (isThere) return true;
  if (process.env['PGFLEET_NO_SKIP'] === '1')
    throw new Error(`${text}, and no test may be skipped`);
  t.skip(text);
  return false;
}
