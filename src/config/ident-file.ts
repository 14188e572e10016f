import type { Problem } from './problem.ts';
import type { Place, RuleFiles, RuleLine } from './rule-lines.ts';
import { RuleReader } from './rule-lines.ts';

/** One line of an ident map: a system's name that may log in as a database user. */
interface IdentLine {
  readonly systemName: string;
  /** null: every name (`all`). */
  readonly databaseUser: string | null;
}

/** All lines of one map. */
export interface IdentMap {
  readonly name: string;
  readonly pairs: readonly IdentLine[];
}

/**
 * Reads `auth_ident_file`: lines of `MAP SYSTEM-NAME DATABASE-USER`, which is one name or `all`. As in
 * PgBouncer there are no regular expressions and groups; what looks like one is an error here, and so
 * is every other line that PgBouncer would skip with a warning.
 * @param place the setting that names the file
 */
export function readIdentFile(
  path: string,
  place: Place,
  files: RuleFiles,
): { maps: IdentMap[]; problems: readonly Problem[] } {
  const reader = new RuleReader('ident', files);
  const maps = new Map<string, IdentLine[]>();
  for (const line of reader.lines(path, place)) {
    const read = parseLine(line);
    if (typeof read === 'string') {
      reader.error(line, read);
      continue;
    }
    const pairs = maps.get(read.map) ?? [];
    maps.set(read.map, pairs);
    pairs.push(read.pair);
  }
  const found = Array.from(maps, ([name, pairs]) => ({ name, pairs }));
  return { maps: found, problems: reader.problems };
}

/** The line's meaning, or why it has none. */
function parseLine({ tokens }: RuleLine): { map: string; pair: IdentLine } | string {
  const [map, system, user, rest] = tokens;
  const bad = tokens.find(({ kind }) => kind === 'bad');
  if (bad !== undefined) return bad.text;
  if (map!.kind !== 'word') return 'a map name is one word without quotes';
  if (system === undefined || user === undefined)
    return 'a system name or database user is missing';
  if (system.kind === 'comma' || user.kind === 'comma') return 'lists of names are not supported';
  if (rest !== undefined) return 'unsupported parameters';
  if (system.kind === 'word' && system.text.startsWith('/')) {
    return `regular expressions are not supported: ${system.text} (quote it if it is a name)`;
  }
  if (user.kind === 'word' && /^[+/]/.test(user.text)) {
    const what = user.text.startsWith('+') ? 'groups' : 'regular expressions';
    return `${what} are not supported: ${user.text} (quote it if it is a name)`;
  }
  const isAll = user.kind === 'word' && user.text === 'all';
  const databaseUser = isAll ? null : user.text;
  return { map: map!.text, pair: { systemName: system.text, databaseUser } };
}
