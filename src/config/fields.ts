/** zod schemas for the texts of single values, shared by settings and connection strings. */

import { z } from 'zod';
import { parseInt32, parseOnOff, parseSeconds, parseWord } from './values.ts';

export function text() {
  return z.string();
}

/** What `parse` makes of the text; where that is null, the message that `complain` gives. */
export function value<T>(parse: (text: string) => T | null, complain: (text: string) => string) {
  return text().transform((given, context) => {
    const parsed = parse(given);
    if (parsed !== null) return parsed;
    context.addIssue({ code: 'custom', message: complain(given) });
    return z.NEVER;
  });
}

/** The complaint that a setting is not what it should be. */
export function mustBe(expected: string): () => string {
  return () => `must be ${expected}`;
}

export function intIn(least: number, most: number) {
  return value(parseInt32, mustBe('a whole number')).refine(
    (number) => number >= least && number <= most,
    `must be ${least} to ${most}`,
  );
}

export function wordIn<const W extends string>(words: readonly W[]) {
  return value((given) => parseWord(words, given), mustBe(`one of ${words.join(', ')}`));
}

export function seconds() {
  return value(parseSeconds, mustBe('a number of seconds without a unit'));
}

export function onOff(fallback: boolean) {
  return value(parseOnOff, mustBe('on or off')).default(fallback);
}

/** All complaints of a failed check, as one text. */
export function whyInvalid(error: z.ZodError): string {
  return error.issues.map((issue) => issue.message).join(', ');
}
