/**
 * PgBouncer's console grammar. The whole text is one of
 *
 *   WORD [ WORD ] [ ; ]
 *   set WORD ( = | to ) STRING [ ; ]
 *   set WORD ( = | to ) WORD [ ; ]
 *
 * tried in that order, and as ours: `show WORD by process [ ; ]`. Blanks are space, tab, LF and CR; a
 * WORD is letters, digits and underscores or stands in double quotes, a STRING in single quotes. The
 * text is scanned by hand, since a pattern with two open ends takes quadratic time on hostile input.
 */

export type Statement =
  | {
      readonly kind: 'command';
      /** First word in upper case. */
      readonly word: string;
      readonly argument: string | null;
      readonly isByProcess: boolean;
    }
  | { readonly kind: 'set'; readonly key: string; readonly value: string }
  | { readonly kind: 'tooLong' }
  | { readonly kind: 'invalid' };

/** Longest token in bytes, quotes counted, by place. */
const MAX_WORD_BYTES = 15;
const MAX_ARGUMENT_BYTES = 63;
const MAX_KEY_BYTES = 63;
const MAX_VALUE_BYTES = 255;

interface Token {
  /** Without quotes; one character a byte. */
  readonly value: string;
  readonly bytes: number;
  readonly isQuoted: boolean;
}

/** @param text the query, one character (U+0000 to U+00FF) a byte */
export function parseStatement(text: string): Statement {
  return parseCommand(text) ?? parseSet(text) ?? parseByProcess(text) ?? { kind: 'invalid' };
}

function parseCommand(text: string): Statement | null {
  const scan = new Scanner(text);
  scan.skipBlanks();
  const word = scan.word();
  if (word === null) return null;
  const argument = scan.skipBlanks() > 0 ? scan.word() : null;
  return scan.isAtEnd() ? command(word, argument, false) : null;
}

function parseByProcess(text: string): Statement | null {
  const scan = new Scanner(text);
  scan.skipBlanks();
  const word = scan.word();
  if (word === null || scan.skipBlanks() === 0) return null;
  const argument = scan.word();
  for (const keyword of ['by', 'process']) {
    if (scan.skipBlanks() === 0 || scan.word()?.value.toLowerCase() !== keyword) return null;
  }
  return scan.isAtEnd() ? command(word, argument, true) : null;
}

function command(word: Token, argument: Token | null, isByProcess: boolean): Statement {
  if (word.bytes > MAX_WORD_BYTES || (argument?.bytes ?? 0) > MAX_ARGUMENT_BYTES) {
    return { kind: 'tooLong' };
  }
  return {
    kind: 'command',
    word: word.value.toUpperCase(),
    argument: argument === null ? null : toText(argument.value),
    isByProcess,
  };
}

function parseSet(text: string): Statement | null {
  const scan = new Scanner(text);
  scan.skipBlanks();
  const first = scan.word();
  if (first === null || first.isQuoted || first.value.toLowerCase() !== 'set') return null;
  if (scan.skipBlanks() === 0) return null;
  const start = scan.at;
  const key = scan.word();
  if (key === null) return null;
  scan.skipBlanks();
  const value = scan.operator() ? lastValue(scan) : null;
  if (value !== null) return assignment(key, value);

  // No blank is needed before `to`, so `set keyto 1` means the setting `key`.
  if (key.isQuoted || key.bytes < 3 || !key.value.toLowerCase().endsWith('to')) return null;
  const shorter = { value: key.value.slice(0, -2), bytes: key.bytes - 2, isQuoted: false };
  scan.at = start + key.bytes;
  const rest = lastValue(scan);
  return rest === null ? null : assignment(shorter, rest);
}

/** The value of a `set`, when nothing follows it. */
function lastValue(scan: Scanner): Token | null {
  scan.skipBlanks();
  const value = scan.string() ?? scan.word();
  return scan.isAtEnd() ? value : null;
}

function assignment(key: Token, value: Token): Statement {
  if (key.bytes > MAX_KEY_BYTES || value.bytes > MAX_VALUE_BYTES) return { kind: 'tooLong' };
  return { kind: 'set', key: toText(key.value), value: toText(value.value) };
}

/** The UTF-8 text that the bytes say. */
function toText(bytes: string): string {
  return Buffer.from(bytes, 'latin1').toString('utf8');
}

/** Reads tokens off a text; what does not match leaves the place where it was. */
class Scanner {
  readonly #text: string;
  /** Where it stands; may be set back. */
  at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  /** Returns how many there were. */
  skipBlanks(): number {
    const size = this.#match(/[ \t\n\r]*/y)!.length;
    this.at += size;
    return size;
  }

  word(): Token | null {
    if (this.#text[this.at] === '"') return this.#quoted('"');
    const value = this.#match(/[0-9A-Za-z_]+/y);
    if (value === null) return null;
    this.at += value.length;
    return { value, bytes: value.length, isQuoted: false };
  }

  string(): Token | null {
    return this.#text[this.at] === "'" ? this.#quoted("'") : null;
  }

  operator(): boolean {
    const found = this.#match(/=|to/iy);
    this.at += found?.length ?? 0;
    return found !== null;
  }

  /** Whether nothing follows but blanks and one semicolon. */
  isAtEnd(): boolean {
    this.skipBlanks();
    if (this.#text[this.at] === ';') this.at++;
    this.skipBlanks();
    return this.at === this.#text.length;
  }

  /** A doubled quote stands for one inside. */
  #quoted(quote: string): Token | null {
    let end = this.#text.indexOf(quote, this.at + 1);
    while (end !== -1 && this.#text[end + 1] === quote) end = this.#text.indexOf(quote, end + 2);
    if (end === -1) return null;
    const value = this.#text.slice(this.at + 1, end).replaceAll(quote + quote, quote);
    const bytes = end + 1 - this.at;
    this.at = end + 1;
    return { value, bytes, isQuoted: true };
  }

  #match(pattern: RegExp): string | null {
    pattern.lastIndex = this.at;
    return pattern.exec(this.#text)?.[0] ?? null;
  }
}
