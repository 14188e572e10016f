/**
 * PgBouncer's connection strings, the values of `[databases]`, `[users]` and `[peers]`. They look
 * like libpq's but are not: only the space separates, there is no backslash, and a quote means
 * something at the start of a value only.
 */

export interface Pair {
  readonly key: string;
  readonly value: string;
}

/** `warnings` name keys but never print values, which may be passwords. */
export type ConnectionString =
  | { readonly ok: true; readonly pairs: readonly Pair[]; readonly warnings: readonly string[] }
  | { readonly ok: false; readonly why: string };

/**
 * Cuts a string into its pairs, in order, repeated keys included. Stricter than PgBouncer in one
 * place: it swallows one character after a closing quote, whatever that is; here it must be a space.
 */
export function parseConnectionString(text: string): ConnectionString {
  const pairs: Pair[] = [];
  const warnings: string[] = [];
  let at = skipSpaces(text, 0);
  while (at < text.length) {
    const keyStart = at;
    while (at < text.length && text[at] !== '=' && text[at] !== ' ') at++;
    const key = text.slice(keyStart, at);
    if (key === '') return { ok: false, why: 'no key before "="' };
    at = skipSpaces(text, at);
    if (text[at] !== '=') return { ok: false, why: whyNoEquals(pairs.at(-1)?.key) };
    const afterEquals = at + 1;
    at = skipSpaces(text, afterEquals);

    let value: string;
    if (text[at] === "'") {
      const end = quoteEnd(text, at);
      if (end === -1) return { ok: false, why: `no closing quote in the value of ${key}` };
      value = text.slice(at + 1, end).replaceAll("''", "'");
      at = end + 1;
      if (at < text.length && text[at] !== ' ') {
        return { ok: false, why: `no space after the closing quote of ${key}` };
      }
    } else {
      const valueStart = at;
      while (at < text.length && text[at] !== ' ') at++;
      value = text.slice(valueStart, at);
      if (valueStart > afterEquals && value.includes('=')) {
        warnings.push(
          `${key} has spaces after its "=" and takes the next word, which holds a "=", as its value`,
        );
      }
    }
    if (value === '') return { ok: false, why: `no value for ${key}` };
    pairs.push({ key, value });
    at = skipSpaces(text, at);
  }
  return { ok: true, pairs, warnings };
}

/** Place of the quote that ends the value starting at `start`; -1: none does. */
function quoteEnd(text: string, start: number): number {
  let at = start + 1;
  while (true) {
    at = text.indexOf("'", at);
    if (at === -1 || text[at + 1] !== "'") return at;
    at += 2;
  }
}

function skipSpaces(text: string, from: number): number {
  let at = from;
  while (text[at] === ' ') at++;
  return at;
}

/** Does not show the word: it may be the second half of a password with a blank in it. */
function whyNoEquals(before: string | undefined): string {
  if (before === undefined) return 'the first word has no "=" after it';
  return `a word without "=" follows the value of ${before}; quote a value that holds spaces`;
}
