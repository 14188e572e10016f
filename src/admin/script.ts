/**
 * Cuts the text of a simple Query into its statements, as PostgreSQL does: at semicolons outside of
 * quotes and comments. PgBouncer understands one statement without comments only.
 */

/** So many statements one Query may have: each may be answered with a long listing. */
export const MAX_STATEMENTS = 64;

/** What a comment says to the server is nothing, so it stands for a blank. */
const BLANK = ' ';

/**
 * The statements that are not empty, without comments and the semicolons behind them. A quote or
 * comment that never ends goes on to the end of the text.
 */
export function statementsIn(text: string): string[] {
  const statements: string[] = [];
  let statement = '';
  let at = 0;
  const end = (): void => {
    if (statement.trim() !== '') statements.push(statement);
    statement = '';
  };
  while (at < text.length) {
    const next = nextPart(text, at);
    if (next.kind === 'end') end();
    else statement += next.kind === 'comment' ? BLANK : text.slice(at, next.end);
    at = next.end;
  }
  end();
  return statements;
}

interface Part {
  readonly kind: 'text' | 'comment' | 'end';
  readonly end: number;
}

/** Plain text runs to the next character that may begin something else. */
const PLAIN = /[^;'"/-]+/y;

function nextPart(text: string, at: number): Part {
  PLAIN.lastIndex = at;
  const plain = PLAIN.exec(text);
  if (plain !== null) return { kind: 'text', end: PLAIN.lastIndex };
  const char = text[at]!;
  if (char === ';') return { kind: 'end', end: at + 1 };
  if (char === "'" || char === '"') return { kind: 'text', end: endOf(text, char, at + 1) };
  if (text.startsWith('--', at)) return { kind: 'comment', end: endOf(text, '\n', at) };
  if (text.startsWith('/*', at)) return { kind: 'comment', end: endOfComment(text, at) };
  return { kind: 'text', end: at + 1 };
}

/** Behind the next `mark`; a doubled quote is two strings side by side, which comes to the same. */
function endOf(text: string, mark: string, from: number): number {
  const found = text.indexOf(mark, from);
  return found === -1 ? text.length : found + 1;
}

/** Comments nest (PostgreSQL documentation, "Comments"). */
function endOfComment(text: string, start: number): number {
  const marks = /\/\*|\*\//g;
  marks.lastIndex = start;
  let depth = 0;
  for (let mark = marks.exec(text); mark !== null; mark = marks.exec(text)) {
    depth += mark[0] === '/*' ? 1 : -1;
    if (depth === 0) return marks.lastIndex;
  }
  return text.length;
}
