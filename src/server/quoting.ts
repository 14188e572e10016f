/** Values as SQL (PostgreSQL documentation, "Lexical Structure"). */

/** Encodings in which the bytes of UTF-8 arrive at the server as they are. */
const TAKES_UTF8: ReadonlySet<string> = new Set(['UTF8', 'SQL_ASCII']);

/**
 * A string constant that nothing in `value` can end. Where the session's encoding is not UTF-8,
 * letters beyond ASCII are written as escapes, which mean the same in every encoding.
 *
 * @param encoding the session's `client_encoding` as the server reported it; null: not known
 */
export function literal(value: string, encoding: string | null): string {
  const doubled = value.replaceAll("'", "''");
  const isEscaped = encoding !== null && !TAKES_UTF8.has(encoding) && !isAscii(value);
  if (!isEscaped && !value.includes('\\')) return `'${doubled}'`;
  const text = doubled.replaceAll('\\', '\\\\');
  return `E'${isEscaped ? text.replace(/\P{ASCII}/gu, escapeOf) : text}'`;
}

/**
 * The names in a list such as the value of `search_path`, read as PostgreSQL reads it in a startup
 * packet (`SplitIdentifierString`): names in double quotes as they are, others in lower case, commas
 * between them. An empty list is the one empty name, as it is reported. Null: it is no such list.
 */
export function nameList(text: string): string[] | null {
  const names: string[] = [];
  const item =
    /[ \t\n\v\f\r]*(?:"((?:[^"]|"")*)"|([^ \t\n\v\f\r,"][^ \t\n\v\f\r,]*))[ \t\n\v\f\r]*(,|$)/y;
  if (/^[ \t\n\v\f\r]*$/.test(text)) return [''];
  for (;;) {
    const found = item.exec(text);
    if (found === null) return null;
    const [, quoted, plain, separator] = found;
    names.push(quoted?.replaceAll('""', '"') ?? lowerCase(plain!));
    if (separator === '') return names;
  }
}

/** PostgreSQL folds names by ASCII alone in databases of multi-byte encodings. */
function lowerCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}

function isAscii(text: string): boolean {
  return /^\p{ASCII}*$/u.test(text);
}

function escapeOf(letter: string): string {
  return `\\U${letter.codePointAt(0)!.toString(16).padStart(8, '0')}`;
}
