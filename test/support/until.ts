import { setTimeout as sleep } from 'node:timers/promises';

/** How `until` waits: `deadlineMs` in all (10 s), `everyMs` between two looks (20 ms). */
export interface UntilOptions {
  readonly deadlineMs?: number;
  readonly everyMs?: number;
}

/**
 * Waits until `condition` answers something other than false, null or undefined, and returns that.
 * Throws, naming `what` and the last error, when the deadline passes; an error of the condition
 * counts as "not yet".
 */
export async function until<T>(
  what: string,
  condition: () => T | false | null | undefined | Promise<T | false | null | undefined>,
  options: UntilOptions = {},
): Promise<T> {
  const deadline = performance.now() + (options.deadlineMs ?? 10_000);
  let cause: unknown;
  for (;;) {
    try {
      const answer = await condition();
      if (answer !== false && answer !== null && answer !== undefined) return answer;
      cause = undefined;
    } catch (error) {
      cause = error;
    }
    if (performance.now() >= deadline) {
      throw new Error(`waited in vain until ${what}`, { cause });
    }
    await sleep(options.everyMs ?? 20);
  }
}

/** The result of `promise`, or an error naming `what` after `deadlineMs`. */
export async function within<T>(
  what: string,
  promise: Promise<T>,
  deadlineMs = 10_000,
): Promise<T> {
  const abort = new AbortController();
  const late = sleep(deadlineMs, undefined, { signal: abort.signal }).then(
    () => {
      throw new Error(`no ${what} within ${deadlineMs} ms`);
    },
    () => undefined as never,
  );
  try {
    return await Promise.race([promise, late]);
  } finally {
    abort.abort();
  }
}
