import { dirname, isAbsolute, join, normalize } from 'node:path';
import { osErrorText, type Problem } from './problem.ts';
import type { ReadFile } from './scanner.ts';

/**
 * Cuts HBA and ident files into lines of words and follows what PostgreSQL has to spread such files
 * over several (`include`, `include_if_exists`, `include_dir` and `@file`; PostgreSQL's page "The
 * pg_hba.conf File"). PgBouncer knows `@file` alone.
 */

/** Levels of files below the main one, PostgreSQL's CONF_FILE_MAX_DEPTH. */
const MAX_LEVELS = 10;
/** Characters of a file with all that it includes: so much is read in well under a second. */
const MAX_CHARS = 16 * 2 ** 20;
/** C's isspace. Other Unicode blanks are ordinary text. */
const BLANKS = ' \t\v\f\r';

/** How files and folders are read; both throw the operating system's error. */
export interface RuleFiles {
  readonly readFile: ReadFile;
  /** Names of the files in a folder. */
  readonly listFolder: (path: string) => readonly string[];
}

export interface RuleToken {
  /** `bad`: what follows cannot be cut into words; `text` says why. It is the line's last token. */
  readonly kind: 'word' | 'quoted' | 'comma' | 'bad';
  readonly text: string;
  /** Place of the first character behind it. */
  readonly end: number;
}

/** Where a problem is. */
export interface Place {
  readonly file: string;
  readonly line: number;
}

/** A line that is not blank, a comment or an include. */
export interface RuleLine extends Place {
  readonly text: string;
  readonly tokens: readonly RuleToken[];
  /** The files that lead to this line, the main one first. */
  readonly within: readonly string[];
}

/** Reads one main file and those that belong to it. */
export class RuleReader {
  readonly problems: Problem[] = [];
  readonly #what: string;
  readonly #files: RuleFiles;
  #charsLeft = MAX_CHARS;

  /** @param what how errors name the main file: `hba` or `ident` */
  constructor(what: string, files: RuleFiles) {
    this.#what = what;
    this.#files = files;
  }

  get hasError(): boolean {
    return this.problems.some(({ level }) => level === 'error');
  }

  /** All lines of the main file and of those that it includes, in order; `place` names it. */
  *lines(path: string, place: Place): Generator<RuleLine> {
    yield* this.#linesOf(normalize(path), place, []);
  }

  /** All lines of a file that `@name` stands for in `line`. */
  *listLines(name: string, line: RuleLine): Generator<RuleLine> {
    yield* this.#cut(pathFrom(line.file, name), line, line.within);
  }

  error(place: Place, text: string): void {
    this.#report(place, text, 'error');
  }

  warning(place: Place, text: string): void {
    this.#report(place, text, 'warning');
  }

  *#linesOf(path: string, place: Place, within: readonly string[]): Generator<RuleLine> {
    for (const line of this.#cut(path, place, within)) {
      const [first, second] = line.tokens;
      const isPair = line.tokens.length === 2 && first!.kind === 'word' && second!.kind !== 'comma';
      if (!isPair) yield line;
      else if (first!.text === 'include') yield* this.#include(second!.text, line);
      else if (first!.text === 'include_if_exists')
        yield* this.#includeIfExists(second!.text, line);
      else if (first!.text === 'include_dir') yield* this.#includeFolder(second!.text, line);
      else yield line;
    }
  }

  *#include(name: string, line: RuleLine): Generator<RuleLine> {
    yield* this.#linesOf(pathFrom(line.file, name), line, line.within);
  }

  *#includeIfExists(name: string, line: RuleLine): Generator<RuleLine> {
    try {
      this.#files.readFile(pathFrom(line.file, name));
    } catch (error) {
      if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return;
    }
    yield* this.#include(name, line);
  }

  /** Files whose name ends in `.conf` and does not begin with a dot, in the order of their bytes. */
  *#includeFolder(name: string, line: RuleLine): Generator<RuleLine> {
    const folder = pathFrom(line.file, name);
    let names: readonly string[];
    try {
      names = this.#files.listFolder(folder);
    } catch (error) {
      this.error(line, `could not open directory "${folder}": ${osErrorText(error)}`);
      return;
    }
    const chosen = names.filter((one) => one.endsWith('.conf') && !one.startsWith('.'));
    chosen.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    for (const one of chosen) yield* this.#linesOf(join(folder, one), line, line.within);
  }

  *#cut(path: string, place: Place, within: readonly string[]): Generator<RuleLine> {
    const text = this.#open(path, place, within);
    if (text === null) return;
    const inside = [...within, path];
    let line = 0;
    for (const whole of text.split('\n')) {
      line++;
      const tokens = cutTokens(whole);
      if (tokens.length > 0) yield { file: path, line, text: whole, tokens, within: inside };
    }
  }

  /** The file's text; null when it may not or cannot be read, which is reported for `place`. */
  #open(path: string, place: Place, within: readonly string[]): string | null {
    if (within.includes(path)) {
      this.error(place, `"${path}" includes itself`);
      return null;
    }
    if (within.length > MAX_LEVELS) {
      this.error(place, 'include nesting level too deep');
      return null;
    }
    // Told already, and every further file could hold as much.
    if (this.#charsLeft < 0) return null;
    let text: string;
    try {
      text = this.#files.readFile(path);
    } catch (error) {
      const file = within.length === 0 ? `${this.#what} config file ${path}` : `file "${path}"`;
      this.error(place, `could not open ${file}: ${osErrorText(error)}`);
      return null;
    }
    this.#charsLeft -= text.length;
    if (this.#charsLeft >= 0) return text;
    this.error(place, `more than ${MAX_CHARS} characters in ${this.#what} files`);
    return null;
  }

  #report({ file, line }: Place, text: string, level: Problem['level']): void {
    this.problems.push({ file, line, key: '', text, level });
  }
}

/** A file's path as written in `from`: relative ones start at the folder of that file. */
function pathFrom(from: string, name: string): string {
  return isAbsolute(name) ? normalize(name) : join(dirname(from), name);
}

/**
 * Words are split at blanks and commas; `#` starts a comment; `"…"` is one word without meaning
 * beyond its text, in which `""` is a quote. `@"…"` is a word that begins with `@`.
 */
function cutTokens(line: string): RuleToken[] {
  const tokens: RuleToken[] = [];
  if (line.includes('\0')) return [{ kind: 'bad', text: 'a NUL byte', end: line.length }];
  let at = 0;
  for (;;) {
    while (at < line.length && BLANKS.includes(line[at]!)) at++;
    const first = line[at];
    if (first === undefined || first === '#') return tokens;
    if (first === ',') {
      at++;
      tokens.push({ kind: 'comma', text: ',', end: at });
      continue;
    }
    const isList = line.startsWith('@"', at);
    if (first === '"' || isList) {
      const quoted = cutQuoted(line, isList ? at + 1 : at);
      if (quoted === null) {
        return [...tokens, { kind: 'bad', text: 'a quote that nobody closed', end: line.length }];
      }
      at = quoted.end;
      tokens.push(isList ? { kind: 'word', text: `@${quoted.text}`, end: at } : quoted);
    } else {
      const start = at;
      while (at < line.length && !BLANKS.includes(line[at]!) && !',#"'.includes(line[at]!)) at++;
      tokens.push({ kind: 'word', text: line.slice(start, at), end: at });
    }
    const next = line[at];
    if (next !== undefined && !BLANKS.includes(next) && next !== ',' && next !== '#') {
      // PgBouncer makes two words of it, PostgreSQL one.
      return [...tokens, { kind: 'bad', text: 'a quote inside a word', end: line.length }];
    }
  }
}

/** The quoted word that begins at `start`; null: it has no end. */
function cutQuoted(line: string, start: number): RuleToken | null {
  let end = line.indexOf('"', start + 1);
  while (end !== -1 && line[end + 1] === '"') end = line.indexOf('"', end + 2);
  if (end === -1) return null;
  const text = line.slice(start + 1, end).replaceAll('""', '"');
  return { kind: 'quoted', text, end: end + 1 };
}
