/**
 * Cuts PgBouncer's configuration format into lines. The npm package `ini` cannot be given a whole
 * file of it: it cuts values at `;` and `#`, strips quotes, turns `true` into a boolean, knows no
 * `%include` and loses line numbers. So lines are cut here and `ini` decodes each value.
 */

import { parse as parseIni } from 'ini';
import { osErrorText, type Problem } from './problem.ts';

/** Levels of `%include` below the main file, as in PgBouncer. */
const MAX_INCLUDE_LEVELS = 10;

/** C's isspace without the line feed. Other Unicode blanks are ordinary text. */
const BLANK_START = /^[ \t\v\f\r]+/;
const BLANK_END = /[ \t\v\f\r]+$/;
const INCLUDE = /^%include[ \t]+(.*)$/su;
const BARE_KEY = /^[A-Za-z0-9_.*-]+/;
const QUOTED_KEY = /^'([^']+)'/;

export interface SectionEvent {
  readonly kind: 'section';
  readonly file: string;
  readonly line: number;
  readonly name: string;
}

export interface EntryEvent {
  readonly kind: 'entry';
  readonly file: string;
  readonly line: number;
  /** Null: the line stands before any header. */
  readonly section: string | null;
  readonly key: string;
  readonly value: string;
}

interface ProblemEvent {
  readonly kind: 'problem';
  readonly problem: Problem;
}

export type ScanEvent = SectionEvent | EntryEvent | ProblemEvent;
/** Returns a file's text; throws the operating system's error. */
export type ReadFile = (path: string) => string;

interface Scan {
  readonly readFile: ReadFile;
  /** Shared with included files: the header in force stays so on the way in and out. */
  section: string | null;
}

/**
 * Yields headers, entries and problems in file order, following `%include`. Goes on after a bad
 * line, so that all problems of a file are found at once.
 */
export function* scanConfig(file: string, readFile: ReadFile): Generator<ScanEvent> {
  const scan: Scan = { readFile, section: null };
  let text: string;
  try {
    text = readFile(file);
  } catch (error) {
    yield bad(file, 0, '', `could not load file "${file}": ${osErrorText(error)}`);
    return;
  }
  yield* scanText(scan, file, text, 0);
}

/** Returns false when the nesting is too deep: going on could double the work at every level. */
function* scanText(
  scan: Scan,
  file: string,
  text: string,
  level: number,
): Generator<ScanEvent, boolean> {
  let line = 0;
  for (const whole of text.split('\n')) {
    line++;
    const event = yield* cutHeaders(scan, file, line, whole);
    if (event === null) continue;
    if (event.kind !== 'include') {
      yield event;
      continue;
    }
    if (level >= MAX_INCLUDE_LEVELS) {
      yield bad(file, line, '%include', 'include nesting level too deep');
      return false;
    }
    let included: string;
    try {
      included = scan.readFile(event.path);
    } catch (error) {
      const why = `could not load file "${event.path}": ${osErrorText(error)}`;
      yield bad(file, line, '%include', why);
      continue;
    }
    if (!(yield* scanText(scan, event.path, included, level + 1))) return false;
  }
  return true;
}

/** Takes headers off the front of a line; what follows one is read as if it stood on its own line. */
function* cutHeaders(
  scan: Scan,
  file: string,
  line: number,
  whole: string,
): Generator<ScanEvent, ScanEvent | { kind: 'include'; path: string } | null> {
  let rest = whole.replace(BLANK_START, '');
  if (rest.includes('\0')) return syntaxError(file, line, 'a NUL byte');
  while (rest.startsWith('[')) {
    const end = rest.indexOf(']');
    if (end === -1) return syntaxError(file, line, 'no "]" after the section name');
    scan.section = rest.slice(1, end);
    yield { kind: 'section', file, line, name: scan.section };
    rest = rest.slice(end + 1).replace(BLANK_START, '');
  }
  if (rest === '' || rest.startsWith(';') || rest.startsWith('#')) return null;
  rest = rest.replace(BLANK_END, '');
  const include = INCLUDE.exec(rest);
  if (include !== null) return { kind: 'include', path: include[1]! };
  return cutEntry(scan.section, file, line, rest);
}

function cutEntry(section: string | null, file: string, line: number, rest: string): ScanEvent {
  const quoted = QUOTED_KEY.exec(rest);
  const match = quoted ?? BARE_KEY.exec(rest);
  if (match === null) return syntaxError(file, line, whyNoKey(rest));
  const after = rest.slice(match[0].length).replace(/^[ \t]+/, '');
  if (!after.startsWith('=')) return syntaxError(file, line, 'no "=" after the key');
  const value = after.slice(1).replace(/^[ \t]+/, '');
  return {
    kind: 'entry',
    file,
    line,
    section,
    key: quoted === null ? match[0] : quoted[1]!,
    value: decodeValue(value),
  };
}

/**
 * Hands one value to `ini` in the only form that it returns unchanged. The name is a fixed one,
 * since `ini` drops keys such as `__proto__` and cannot take one that holds `=`. Its line pattern
 * stops at the two Unicode line separators, which JSON does not escape by itself.
 */
function decodeValue(value: string): string {
  const json = JSON.stringify(value)
    .replaceAll('\u2028', '\\u2028')
    .replaceAll('\u2029', '\\u2029');
  return parseIni(`value=${json}`)['value'];
}

function whyNoKey(rest: string): string {
  if (rest.startsWith('"')) return 'a key is quoted with single quotes, not double quotes';
  if (rest.startsWith("''")) return 'an empty key';
  if (rest.startsWith("'")) return 'no closing quote after the key';
  if (rest.startsWith('=')) return 'no key before "="';
  if (rest.startsWith('%include')) return '%include names no file';
  return 'a key holds letters, digits and _ . - * only; quote any other with single quotes';
}

function syntaxError(file: string, line: number, why: string): ProblemEvent {
  return bad(file, line, '', `syntax error in configuration: ${why}`);
}

function bad(file: string, line: number, key: string, text: string): ProblemEvent {
  return { kind: 'problem', problem: { file, line, key, text, level: 'error' } };
}
