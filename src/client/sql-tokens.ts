import { constantValue, unicodeUnescaped } from './sql-escapes.ts';

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
  /** A name in double quotes, with U& in front or not; `start` and `stop` are inside them. */
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
const AMPERSAND = 0x26;
const QUOTE = 0x27;
const STAR = 0x2a;
const MINUS = 0x2d;
const SLASH = 0x2f;
const BACKSLASH = 0x5c;
const UNDERSCORE = 0x5f;
const LOWER_B = 0x62;
const LOWER_E = 0x65;
const LOWER_U = 0x75;
const LOWER_X = 0x78;
const LOWER = 0x20;

/** No name or word that is looked for is longer; the values of longer constants are not told. */
const MAX_TEXT_BYTES = 256;

export class SqlTokens {
  readonly #bytes: Buffer;
  readonly #end: number;
  readonly #hasBackslashes: boolean;
  #at: number;
  kind: Token = Token.end;
  char = 0;
  #start = 0;
  #stop = 0;
  /** The name, or what the string says, where escapes stand in it; else null. */
  #meaning: string | null = null;

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
    this.#meaning = null;
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
    if (this.#meaning !== null) return this.#meaning;
    const text = this.#bytes.toString('latin1', this.#start, this.#stop);
    return this.kind === Token.word ? text.toLowerCase() : text;
  }

  /** What a short string constant says, latin1; '' when it is none, or one of bits. */
  get text(): string {
    if (this.kind !== Token.literal) return '';
    if (this.#meaning !== null) return this.#meaning;
    if (this.#at - this.#start > MAX_TEXT_BYTES) return '';
    const constant = this.#bytes.toString('latin1', this.#start, this.#at);
    const first = lower(this.#bytes[this.#start]!);
    if (first === DOLLAR) {
      const tagSize = constant.indexOf('$', 1) + 1;
      return constant.slice(tagSize, -tagSize);
    }
    if (isDigit(first) || isBits(first)) return '';
    return constantValue(constant, first === LOWER_E || this.#hasBackslashes);
  }

  /** The token is a word or name that begins with `prefix` (lower case), a cheap test before `name`. */
  hasPrefix(prefix: string): boolean {
    if (this.kind !== Token.word && this.kind !== Token.quoted) return false;
    if (this.#meaning !== null) return this.#meaning.startsWith(prefix);
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

  /** A word, or what stands in front of a string (E'', B'', X'', N'', U&'') or name (U&"") with it. */
  #takeWord(): void {
    const bytes = this.#bytes;
    this.#at = this.#endOfWord(this.#at);
    this.#stop = this.#at;
    this.kind = Token.word;
    if (this.#stop - this.#start !== 1) return;
    const letter = lower(bytes[this.#start]!);
    if (bytes[this.#at] === QUOTE) {
      this.#takeString(letter === LOWER_E || (this.#hasBackslashes && !isBits(letter)));
    } else if (letter === LOWER_U && bytes[this.#at] === AMPERSAND) {
      const quote = bytes[this.#at + 1];
      if (quote === QUOTE || quote === DOUBLE_QUOTE) this.#takeUnicode(quote === DOUBLE_QUOTE);
    }
  }

  /** U&"" or U&'', whose & is next, with the UESCAPE behind it. */
  #takeUnicode(isName: boolean): void {
    let start = ++this.#at;
    let stop: number;
    if (isName) {
      this.#start = start;
      this.#takeQuoted();
      start = this.#start;
      stop = this.#stop;
    } else {
      this.#takeString(false);
      stop = this.#at;
    }
    const raw = stop - start > MAX_TEXT_BYTES ? '' : this.#bytes.toString('latin1', start, stop);
    const mark = this.#takeUescape();
    this.#meaning = unicodeUnescaped(isName ? raw : constantValue(raw, false), mark);
  }

  /** The character that UESCAPE says, which is skipped, else the backslash. */
  #takeUescape(): string {
    const back = this.#at;
    this.#skipBlanks();
    const word = this.#bytes.toString('latin1', this.#at, Math.min(this.#end, this.#at + 7));
    if (word.toLowerCase() === 'uescape') {
      this.#at += 7;
      this.#skipBlanks();
      const bytes = this.#bytes;
      if (this.#at + 2 < this.#end && bytes[this.#at] === QUOTE && bytes[this.#at + 2] === QUOTE) {
        this.#at += 3;
        return String.fromCharCode(bytes[this.#at - 2]!);
      }
    }
    this.#at = back;
    return '\\';
  }

  #endOfWord(from: number): number {
    let at = from;
    while (at < this.#end && isWordPart(this.#bytes[at]!)) at++;
    return at;
  }

  /** A string whose quote is next, with what continues it on the lines below. */
  #takeString(hasBackslashes: boolean): void {
    this.kind = Token.literal;
    do this.#skipString(hasBackslashes);
    while (this.#skipToContinuation());
  }

  #skipString(hasBackslashes: boolean): void {
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

  /**
   * Goes to the quote that continues the string, if one does: blanks and comments to the end of the
   * line may stand between, but there must be an end of line, and no block comment.
   */
  #skipToContinuation(): boolean {
    const bytes = this.#bytes;
    let isNewLine = false;
    for (let at = this.#at; at < this.#end; at++) {
      const char = bytes[at]!;
      if (char === LF || char === CR) isNewLine = true;
      else if (char === MINUS && bytes[at + 1] === MINUS) {
        while (at + 1 < this.#end && bytes[at + 1] !== LF && bytes[at + 1] !== CR) at++;
      } else if (char !== SPACE && (char < TAB || char > CR)) {
        if (char !== QUOTE || !isNewLine) return false;
        this.#at = at;
        return true;
      }
    }
    return false;
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

/** The letter of B'' or X'', in lower case. */
function isBits(letter: number): boolean {
  return letter === LOWER_B || letter === LOWER_X;
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
