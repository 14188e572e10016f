import { LEAK_KINDS, type LeakKind } from '../metrics/session-leaks.ts';
import { SqlTokens, Token } from './sql-tokens.ts';

/**
 * Finds the statements of a query text that leave something behind in the session. It looks at words,
 * not at meaning: what a function or a DO block does is not seen, text behind BEGIN ATOMIC, a function
 * body without quotes, is not looked at, and of a long text only what its caller hands over. What takes
 * state away (RESET, SET … TO DEFAULT, UNLISTEN, DEALLOCATE, CLOSE, DISCARD) is no leak.
 */

/** The bit of each kind in what `leaksIn` returns. */
export const LEAK_BIT = Object.fromEntries(
  LEAK_KINDS.map((kind, index) => [kind, 1 << index]),
) as Readonly<Record<LeakKind, number>>;

const ADVISORY_LOCKS: ReadonlySet<string> = new Set([
  'pg_advisory_lock',
  'pg_advisory_lock_shared',
  'pg_try_advisory_lock',
  'pg_try_advisory_lock_shared',
]);

/**
 * Parentheses inside of a call of set_config that are followed, since each call in the arguments of
 * another is looked through once more: hostile text would take quadratic time.
 */
const MAX_DEPTH = 32;

/** Words that may follow a table called `temp`, but cannot be the name of a temporary one. */
const NOT_A_NAME: readonly string[] = [
  'from',
  'where',
  'group',
  'having',
  'window',
  'order',
  'limit',
  'offset',
  'fetch',
  'for',
  'union',
  'intersect',
  'except',
];

/**
 * The kinds of leaks in the query text `bytes[start..end)`, each as bit `1 << place in LEAK_KINDS`;
 * 0: none was found.
 * @param isTracked whether the pooler itself carries a parameter (lower case) from server to server
 */
export function leaksIn(
  bytes: Buffer,
  start: number,
  end: number,
  hasBackslashes: boolean,
  isTracked: (parameter: string) => boolean,
): number {
  const tokens = new SqlTokens(bytes, start, end, hasBackslashes);
  let leaks = 0;
  tokens.next();
  while (!tokens.isEnd()) {
    leaks |= leaksOfStatement(tokens, isTracked);
    while (!tokens.isStatementEnd()) tokens.next();
    tokens.next();
  }
  return leaks;
}

/** One statement, whose first token is at hand; stops somewhere in it or at its end. */
function leaksOfStatement(tokens: SqlTokens, isTracked: (parameter: string) => boolean): number {
  if (tokens.is('listen')) return LEAK_BIT.listen;
  if (tokens.is('load')) return LEAK_BIT.load;
  if (tokens.is('set')) return leakOfSet(tokens, isTracked);
  if (tokens.is('create')) return leaksOfCreate(tokens, isTracked);
  if (tokens.is('explain')) return leaksOfExplain(tokens, isTracked);
  if (tokens.is('alter')) return leaksOfAlter(tokens, isTracked);
  // What it names is not run.
  if (tokens.is('comment')) return 0;
  if (tokens.is('prepare')) {
    tokens.next();
    if (!tokens.is('transaction')) return LEAK_BIT.prepare;
    // With a string it is the first half of a two-phase commit, else a statement of that name.
    return tokens.next() === Token.literal ? 0 : LEAK_BIT.prepare;
  }
  const leak = tokens.is('declare') ? leakOfDeclare(tokens) : 0;
  return leak | leaksOfRest(tokens, isTracked);
}

/** EXPLAIN; with ANALYZE it makes what a CREATE TABLE AS behind it says. */
function leaksOfExplain(tokens: SqlTokens, isTracked: (parameter: string) => boolean): number {
  let isRun = false;
  let isOption = false;
  for (;;) {
    tokens.next();
    if (tokens.is('analyze') || tokens.is('analyse')) isRun = true;
    else if (tokens.isChar('(')) isOption = true;
    else if (tokens.isChar(')')) isOption = false;
    else if (tokens.isStatementEnd() || (!isOption && !tokens.is('verbose'))) break;
    // A query in parentheses, which are none of options.
    else if (tokens.is('select') || tokens.is('with') || tokens.is('values')) break;
  }
  if (tokens.is('create')) return isRun ? leaksOfCreate(tokens, isTracked) : 0;
  return leaksOfRest(tokens, isTracked);
}

function leakOfSet(tokens: SqlTokens, isTracked: (parameter: string) => boolean): number {
  tokens.next();
  if (tokens.is('local') || tokens.is('transaction') || tokens.is('constraints')) return 0;
  if (tokens.is('session')) {
    tokens.next();
    if (tokens.is('authorization')) {
      return isTracked('session_authorization') ? 0 : leakOfRole(tokens);
    }
    if (tokens.is('characteristics')) return LEAK_BIT.set;
  }
  if (tokens.is('role')) return leakOfRole(tokens);
  let parameter = tokens.name;
  tokens.next();
  if (parameter === 'time' && tokens.is('zone')) parameter = 'timezone';
  else if (parameter === 'names') parameter = 'client_encoding';
  else if (parameter === 'schema' && tokens.kind === Token.literal) parameter = 'search_path';
  else {
    while (tokens.isChar('.')) {
      tokens.next();
      parameter += `.${tokens.name}`;
      tokens.next();
    }
  }
  if (tokens.isChar('=') || tokens.is('to')) tokens.next();
  if (tokens.is('default')) return 0;
  // Names of parameters are compared without case, quoted or not.
  return isTracked(parameter.toLowerCase()) ? 0 : LEAK_BIT.set;
}

/** Behind SET ROLE or SET SESSION AUTHORIZATION, whose last word is at hand. */
function leakOfRole(tokens: SqlTokens): number {
  tokens.next();
  return tokens.is('none') || tokens.is('default') ? 0 : LEAK_BIT.role;
}

/**
 * CREATE TEMPORARY TABLE, VIEW or SEQUENCE, and anything that is made as pg_temp.…; and what the query
 * calls that fills a table or materialized view.
 */
function leaksOfCreate(tokens: SqlTokens, isTracked: (parameter: string) => boolean): number {
  tokens.next();
  for (const word of ['or', 'replace', 'global', 'local']) if (tokens.is(word)) tokens.next();
  let isTemporary = tokens.is('temp') || tokens.is('temporary');
  if (isTemporary || tokens.is('unlogged')) tokens.next();
  const isTable = tokens.is('table');
  const isFilled = isTable || tokens.is('materialized');
  // The name is one of the first words: behind these the rest may name a temporary object and make none.
  while (!tokens.isStatementEnd() && !tokens.isChar('(') && !tokens.is('as') && !tokens.is('on')) {
    const isTempSchema = tokens.name === 'pg_temp';
    tokens.next();
    if (isTempSchema && tokens.isChar('.')) isTemporary = true;
  }
  const isDropped = skipDefinition(tokens, isFilled);
  const leak = isTemporary && !(isTable && isDropped) ? LEAK_BIT.temp_table : 0;
  return leak | leaksOfRest(tokens, isTracked);
}

/**
 * Goes to the end of a CREATE, or to the query that `isFilled` says there may be, and returns whether
 * it says ON COMMIT DROP.
 */
function skipDefinition(tokens: SqlTokens, isFilled: boolean): boolean {
  let isDropped = false;
  let depth = 0;
  while (!tokens.isStatementEnd()) {
    if (tokens.is('on')) {
      tokens.next();
      if (!tokens.is('commit')) continue;
      tokens.next();
      isDropped = tokens.is('drop');
    } else if (tokens.is('begin')) {
      tokens.next();
      // The body of a function, with semicolons of its own.
      if (tokens.is('atomic')) while (!tokens.isEnd()) tokens.next();
      continue;
    } else if (tokens.isChar('(')) depth++;
    else if (tokens.isChar(')')) depth--;
    else if (isFilled && depth === 0 && tokens.is('as')) return isDropped;
    tokens.next();
  }
  return isDropped;
}

/**
 * ALTER TABLE and ALTER DOMAIN, which run expressions over the rows there are (USING, CHECK, the
 * DEFAULT of a new column), but not the DEFAULT that they SET. Nothing else that is altered is run.
 */
function leaksOfAlter(tokens: SqlTokens, isTracked: (parameter: string) => boolean): number {
  tokens.next();
  if (!tokens.is('table') && !tokens.is('domain')) return 0;
  let leaks = 0;
  while (!tokens.isStatementEnd()) {
    if (tokens.is('using') || tokens.is('check') || tokens.is('default')) {
      leaks |= leaksOfRest(tokens, isTracked);
    } else if (tokens.is('set')) {
      tokens.next();
      if (tokens.is('default')) tokens.next();
    } else {
      tokens.next();
    }
  }
  return leaks;
}

function leakOfDeclare(tokens: SqlTokens): number {
  while (!tokens.isStatementEnd() && !tokens.is('for')) {
    if (tokens.is('with')) {
      tokens.next();
      if (tokens.is('hold')) return LEAK_BIT.hold_cursor;
    } else {
      tokens.next();
    }
  }
  return 0;
}

/** What any part of a statement may hold: calls of some functions, and SELECT … INTO TEMPORARY. */
function leaksOfRest(tokens: SqlTokens, isTracked: (parameter: string) => boolean): number {
  let leaks = 0;
  let isInsert = false;
  while (!tokens.isStatementEnd()) {
    if (tokens.hasPrefix('pg_') && ADVISORY_LOCKS.has(tokens.name)) {
      tokens.next();
      if (tokens.isChar('(')) leaks |= LEAK_BIT.advisory_lock;
      isInsert = false;
    } else if (tokens.hasPrefix('set_') && tokens.name === 'set_config') {
      tokens.next();
      if (tokens.isChar('(')) leaks |= leakOfSetConfig(tokens, isTracked);
    } else if (tokens.is('into') && !isInsert) {
      tokens.next();
      if (tokens.is('local') || tokens.is('global')) tokens.next();
      if (tokens.hasPrefix('pg_') && tokens.name === 'pg_temp') {
        tokens.next();
        if (tokens.isChar('.')) leaks |= LEAK_BIT.temp_table;
        continue;
      }
      if (!tokens.is('temp') && !tokens.is('temporary')) continue;
      tokens.next();
      const isName = tokens.kind === Token.word || tokens.kind === Token.quoted;
      if (isName && !NOT_A_NAME.some((word) => tokens.is(word))) leaks |= LEAK_BIT.temp_table;
    } else {
      isInsert = tokens.is('insert') || tokens.is('merge');
      tokens.next();
    }
  }
  return leaks;
}

/**
 * set_config(parameter, value, is_local) for the session, when that can be seen: the last argument
 * begins with a word for false or is NULL. The opening parenthesis is at hand, and still is afterwards, since the
 * arguments may hold a leak of their own.
 */
function leakOfSetConfig(tokens: SqlTokens, isTracked: (parameter: string) => boolean): number {
  const inside = tokens.ahead();
  inside.next();
  const parameter = inside.text;
  let depth = 1;
  let isFirst = true;
  let isFalse = false;
  while (!inside.isStatementEnd()) {
    if (inside.isChar('(')) {
      if (++depth > MAX_DEPTH) return 0;
    } else if (inside.isChar(')')) {
      if (--depth === 0) break;
    } else if (inside.isChar(',') && depth === 1) {
      isFirst = true;
      isFalse = false;
    } else if (isFirst && !inside.is('cast')) {
      isFirst = false;
      isFalse =
        inside.is('false') ||
        inside.is('null') ||
        /^(?:f(?:a(?:l(?:se?)?)?)?|no?|off?|0)$/i.test(inside.text);
    }
    inside.next();
  }
  return isFalse && !isTracked(parameter.toLowerCase()) ? LEAK_BIT.set : 0;
}
