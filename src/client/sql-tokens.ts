/**
 * Cuts SQL text into just what is needed to tell one statement from another: words, quoted names and
 * single characters. Comments are left out and literals are one token, so that nothing in them is
 * taken for a statement. It follows PostgreSQL's lexical rules (documentation, "Lexical Structure") as
 * far as they say where comments, literals and names end; nothing is checked.
 */

export const Token = {
  end: 0,
  /** A keyword or a name without quotes. */
  word: 1,
  /** A name in double quotes; `start` and `stop` are inside them. */
  quoted: 2,
  /** A string, or a number. */
  literal: 3,
  /** Any other character; it is `char`. */
  char: 4,
} as const;
export type Token = (typeof Token)[keyof typeof Token];

const TAB = 0x09;
const CR = 0x0d;
const LF = 0x0a;
const SPACE = 0x20;
const DOUBLE_QUOTE = 0x22;
const DOLLAR = 0x24;
const QUOTE = 0x27;
const STAR = 0x2a;
const MINUS = 0x2d;
const SLASH = 0x2f;
const BACKSLASH = 0x5c;
const UNDERSCORE = 0x5f;
const LOWER_E = 0x65;
const LOWER = 0x20;

export class SqlTokens {
  readonly #bytes: Buffer;
  readonly #end: number;
  readonly #hasBackslashes: boolean;
  #at: number;
  kind: Token = Token.end;
  char = 0;
  #start = 0;
  #stop = 0;

  /**
   * @param hasBackslashes a backslash in any string escapes what follows, not only in E'' ones
   *   (`standard_conforming_strings = off`)
   */
  constructor(bytes: Buffer, start: number, end: number, hasBackslashes: boolean) {
    this.#bytes = bytes;
    this.#at = start;
    this.#end = end;
    this.#hasBackslashes = hasBackslashes;
  }

  /** A scanner of its own for what stands behind this token. */
  ahead(): SqlTokens {
    return new SqlTokens(this.#bytes, this.#at, this.#end, this.#hasBackslashes);
  }

  /** Goes on to the next token and returns what it is. */
  next(): Token {
    this.#skipBlanks();
    this.#start = this.#at;
    if (this.#at >= this.#end) {
      this.kind = Token.end;
      return this.kind;
    }
    const first = this.#bytes[this.#at]!;
    if (isWordStart(first)) this.#takeWord();
    else if (isDigit(first)) {
      this.#at = this.#endOfWord(this.#at);
      this.kind = Token.literal;
    } else if (first === QUOTE) this.#takeString(this.#hasBackslashes);
    else if (first === DOUBLE_QUOTE) this.#takeQuoted();
    else if (first === DOLLAR && this.#takeDollarQuoted()) this.kind = Token.literal;
    else {
      this.char = first;
      this.#at++;
      this.kind = Token.char;
    }
    return this.kind;
  }

  /** The token is the keyword `word`, which is given in lower case. */
  is(word: string): boolean {
    if (this.kind !== Token.word || this.#stop - this.#start !== word.length) return false;
    for (let i = 0; i < word.length; i++) {
      if (lower(this.#bytes[this.#start + i]!) !== word.charCodeAt(i)) return false;
    }
    return true;
  }

  isEnd(): boolean {
    return this.kind === Token.end;
  }

  /** At a semicolon, or behind the last token. */
  isStatementEnd(): boolean {
    return this.kind === Token.end || this.isChar(';');
  }

  isChar(char: string): boolean {
    return this.kind === Token.char && this.char === char.charCodeAt(0);
  }

  /** The token's name as the server knows it, latin1; '' when it is none. */
  get name(): string {
    if (this.kind !== Token.word && this.kind !== Token.quoted) return '';
    const text = this.#bytes.toString('latin1', this.#start, this.#stop);
    return this.kind === Token.word ? text.toLowerCase() : text;
  }

  /** What stands between the quotes of a string without a letter or a tag in front, latin1; else ''. */
  get text(): string {
    if (this.kind !== Token.literal || this.#bytes[this.#start] !== QUOTE) return '';
    return this.#bytes.toString('latin1', this.#start + 1, this.#at - 1);
  }

  /** The token is a word or name that begins with `prefix` (lower case), a cheap test before `name`. */
  hasPrefix(prefix: string): boolean {
    if (this.kind !== Token.word && this.kind !== Token.quoted) return false;
    if (this.#stop - this.#start < prefix.length) return false;
    for (let i = 0; i < prefix.length; i++) {
      if (lower(this.#bytes[this.#start + i]!) !== prefix.charCodeAt(i)) return false;
    }
    return true;
  }

  #skipBlanks(): void {
    const bytes = this.#bytes;
    while (this.#at < this.#end) {
      const char = bytes[this.#at]!;
      if (char === SPACE || (char >= TAB && char <= CR)) {
        this.#at++;
      } else if (char === MINUS && bytes[this.#at + 1] === MINUS) {
        while (this.#at < this.#end && bytes[this.#at] !== LF && bytes[this.#at] !== CR) this.#at++;
      } else if (char === SLASH && bytes[this.#at + 1] === STAR) {
        this.#skipComment();
      } else {
        return;
      }
    }
  }

  /** Block comments nest. */
  #skipComment(): void {
    const bytes = this.#bytes;
    let depth = 0;
    while (this.#at < this.#end) {
      const char = bytes[this.#at]!;
      const next = bytes[this.#at + 1]!;
      if (char === SLASH && next === STAR) {
        depth++;
        this.#at += 2;
      } else if (char === STAR && next === SLASH) {
        depth--;
        this.#at += 2;
        if (depth === 0) return;
      } else {
        this.#at++;
      }
    }
  }

  /** A word, or the letter in front of a string (E'', B'', X'', N'') and that string. */
  #takeWord(): void {
    this.#at = this.#endOfWord(this.#at);
    this.#stop = this.#at;
    this.kind = Token.word;
    if (this.#stop - this.#start !== 1 || this.#bytes[this.#at] !== QUOTE) return;
    const isEscape = lower(this.#bytes[this.#start]!) === LOWER_E;
    this.#takeString(isEscape || this.#hasBackslashes);
  }

  #endOfWord(from: number): number {
    let at = from;
    while (at < this.#end && isWordPart(this.#bytes[at]!)) at++;
    return at;
  }

  #takeString(hasBackslashes: boolean): void {
    this.kind = Token.literal;
    const bytes = this.#bytes;
    for (let at = this.#at + 1; at < this.#end; at++) {
      if (bytes[at] === BACKSLASH && hasBackslashes) at++;
      else if (bytes[at] === QUOTE) {
        if (bytes[at + 1] !== QUOTE) {
          this.#at = at + 1;
          return;
        }
        at++;
      }
    }
    this.#at = this.#end;
  }

  /** Doubled quotes inside are left doubled: no name that is looked for has any. */
  #takeQuoted(): void {
    this.kind = Token.quoted;
    const bytes = this.#bytes;
    this.#start++;
    for (let at = this.#start; at < this.#end; at++) {
      if (bytes[at] !== DOUBLE_QUOTE) continue;
      if (bytes[at + 1] !== DOUBLE_QUOTE) {
        this.#stop = at;
        this.#at = at + 1;
        return;
      }
      at++;
    }
    this.#stop = this.#end;
    this.#at = this.#end;
  }

  /** $$…$$ or $tag$…$tag$; false for a parameter such as $1, which is left where it is. */
  #takeDollarQuoted(): boolean {
    const bytes = this.#bytes;
    let at = this.#at + 1;
    if (isDigit(bytes[at]!)) return false;
    while (at < this.#end && bytes[at] !== DOLLAR && isWordPart(bytes[at]!)) at++;
    if (bytes[at] !== DOLLAR || at >= this.#end) return false;
    const tag = bytes.subarray(this.#at, at + 1);
    const close = bytes.indexOf(tag, at + 1);
    this.#at = close === -1 ? this.#end : Math.min(this.#end, close + tag.length);
    return true;
  }
}

function lower(char: number): number {
  return char >= 0x41 && char <= 0x5a ? char | LOWER : char;
}

function isDigit(char: number): boolean {
  return char >= 0x30 && char <= 0x39;
}

/** Letters, the underscore and every byte of a character outside ASCII. */
function isWordStart(char: number): boolean {
  const letter = char | LOWER;
  return (letter >= 0x61 && letter <= 0x7a) || char === UNDERSCORE || char >= 0x80;
}

function isWordPart(char: number): boolean {
  return isWordStart(char) || isDigit(char) || char === DOLLAR;
}
