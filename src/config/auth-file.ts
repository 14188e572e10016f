/** Bytes, before unescaping, that a name or a secret must stay below, as in PgBouncer. */
const NAME_LIMIT_BYTES = 128;
const SECRET_LIMIT_BYTES = 65_531;

/** One line of `auth_file`. */
export interface AuthUser {
  readonly name: string;
  /** The stored text: a password, or an MD5 or SCRAM secret. Never to be shown. */
  readonly secret: string;
}

export interface AuthFile {
  /** One for each name, in the order of their first lines. */
  readonly users: readonly AuthUser[];
  /** Why reading stopped early: the line, from 1, and PgBouncer's text. */
  readonly problem: { readonly line: number; readonly text: string } | null;
}

/**
 * Reads the content of `auth_file`: lines of `"name" "secret"` whose rest is ignored, blank lines
 * and `;` comments; `""` inside quotes is one `"`. Of a name given twice the last line counts.
 * At the first broken line reading stops, and the users before it stay.
 *
 * PgBouncer takes the secret of a name without one from a later line. Here such a line is broken:
 * it would give a user someone else's name as password.
 */
export function parseAuthFile(text: string): AuthFile {
  const secrets = new Map<string, string>();
  let at = 0;
  const end = (problem: AuthFile['problem']): AuthFile => {
    return { users: Array.from(secrets, ([name, secret]) => ({ name, secret })), problem };
  };
  const stopAt = (place: number, problem: string): AuthFile => {
    return end({ line: text.slice(0, place).split('\n').length, text: problem });
  };

  for (;;) {
    at = skipBlank(text, at);
    if (at === text.length) return end(null);
    if (text[at] === ';') {
      at = endOfLine(text, at);
      continue;
    }
    const lineStart = at;
    if (text[at] !== '"') return stopAt(lineStart, 'broken auth file');
    const nameEnd = closingQuote(text, at + 1);
    if (nameEnd === -1) return stopAt(lineStart, 'broken auth file');
    const name = text.slice(at + 1, nameEnd);
    if (Buffer.byteLength(name) >= NAME_LIMIT_BYTES) {
      return stopAt(lineStart, 'username too long in auth file');
    }

    const secretStart = text.indexOf('"', nameEnd + 1);
    if (secretStart === -1 || secretStart > endOfLine(text, nameEnd)) {
      return stopAt(lineStart, 'broken auth file');
    }
    const secretEnd = closingQuote(text, secretStart + 1);
    if (secretEnd === -1) return stopAt(lineStart, 'broken auth file');
    const secret = text.slice(secretStart + 1, secretEnd);
    if (Buffer.byteLength(secret) >= SECRET_LIMIT_BYTES) {
      return stopAt(lineStart, 'password too long in auth file');
    }
    // A C string ends at NUL, so PgBouncer finds no closing quote here.
    if (name.includes('\0') || secret.includes('\0')) return stopAt(lineStart, 'broken auth file');
    secrets.set(unescapeQuotes(name), unescapeQuotes(secret));
    at = endOfLine(text, secretEnd);
  }
}

/** Place of the first character that C's isspace() does not count, or the end. */
function skipBlank(text: string, start: number): number {
  let at = start;
  while (at < text.length && ' \t\n\v\f\r'.includes(text[at]!)) at++;
  return at;
}

/** Place of the quote that ends the string beginning at `start`, or -1; `""` does not end it. */
function closingQuote(text: string, start: number): number {
  let at = text.indexOf('"', start);
  while (at !== -1 && text[at + 1] === '"') at = text.indexOf('"', at + 2);
  return at;
}

function endOfLine(text: string, start: number): number {
  const at = text.indexOf('\n', start);
  return at === -1 ? text.length : at;
}

function unescapeQuotes(quoted: string): string {
  return quoted.replaceAll('""', '"');
}
