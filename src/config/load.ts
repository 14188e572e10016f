/**
 * Reads a configuration file into one frozen snapshot. All problems are collected, those of single
 * lines first and in file order, so that one run of `pgfleet check` shows every line to mend. One
 * error is enough for no snapshot, so a reload never leaves a half-applied file, as PgBouncer's can.
 */

import { readdirSync } from 'node:fs';
import { resolve } from 'node:path';
import { readAuthFiles } from './auth-files.ts';
import { type ClientTlsFiles, readClientTls } from './client-tls.ts';
import type { Config, DatabaseEntry, PeerEntry, UserEntry } from './config.ts';
import { checkHonoured, checkTogether, type Given } from './cross-checks.ts';
import { CONSOLE_NAMES, type Parsed, parseDatabase, parsePeer, parseUser } from './entries.ts';
import { type FileReads, noted } from './file-reads.ts';
import type { Problem } from './problem.ts';
import { readText } from './read-text.ts';
import { type EntryEvent, type ReadFile, type SectionEvent, scanConfig } from './scanner.ts';
import {
  defaultFleetSettings,
  defaultSettings,
  type FleetSettings,
  readSetting,
  SETTINGS,
  type Settings,
} from './schema.ts';

export { formatProblem, problemLine } from './problem.ts';

export interface LoadOptions {
  /** Returns a file's text, or throws the operating system's error. */
  readonly readFile?: ReadFile;
  /** Returns the names of what is in a folder, or throws the operating system's error. */
  readonly listFolder?: (path: string) => readonly string[];
  /** Becomes `config.version`. */
  readonly version?: number;
  /** What an earlier load has read, and this one does not read again. */
  readonly known?: FileReads;
  /** Settings of `[pgbouncer]` that hold whatever the files say, by key. */
  readonly overrides?: ReadonlyMap<string, string>;
}

export interface LoadResult {
  /** Null when at least one problem is an error. */
  readonly config: Config | null;
  readonly problems: readonly Problem[];
  readonly reads: FileReads;
}

const SECTIONS: readonly string[] = ['pgbouncer', 'databases', 'users', 'peers', 'fleet'];
const STICKY = new Set<string>(SETTINGS.filter((spec) => spec.isSticky).map((spec) => spec.key));

/** Reads and checks `file`; relative paths, also those of `%include`, start at the working directory. */
export function loadConfig(file: string, options: LoadOptions = {}): LoadResult {
  const { readFile, listFolder, reads } = noted(
    options.readFile ?? readText,
    options.listFolder ?? ((path) => readdirSync(path)),
    options.known,
  );
  const draft = new Draft();
  for (const event of scanConfig(file, readFile)) {
    if (event.kind === 'problem') draft.problems.push(event.problem);
    else if (event.kind === 'section') draft.openSection(event);
    else draft.addEntry(event);
  }
  for (const [key, text] of options.overrides ?? []) draft.override(key, text);
  const problems = draft.problems;
  const isUnreadable = problems.some((problem) => problem.line === 0);
  if (!draft.hasMainSection && !isUnreadable) {
    const text = 'load_init_file: main section missing from config file';
    problems.push({ file, line: 0, key: '', text, level: 'error' });
  }
  const given = draft.given();
  problems.push(...checkHonoured(given));

  const read = draft.settings();
  const settings = { ...read, conffile: read.conffile ?? file };
  const fleet = draft.fleet();
  const config: Config = {
    version: options.version ?? 1,
    file: resolve(file),
    settings,
    fleet,
    databases: [...draft.databases.values()].filter((entry) => entry.name !== '*'),
    autoDatabase: draft.databases.get('*') ?? null,
    users: [...draft.users.values()],
    peers: [...draft.peers.values()],
    ...readAuthFiles(settings, given, { readFile, listFolder }, problems),
    clientTls: readTls(settings, fleet, given, readFile, problems),
    given: given.filter((one) => one.section !== 'databases').map((one) => one.key),
  };
  problems.push(...checkTogether(config, given));
  const hasError = problems.some((problem) => problem.level === 'error');
  return { config: hasError ? null : deepFreeze(config), problems, reads };
}

/** What the file has said so far. */
class Draft {
  readonly problems: Problem[] = [];
  readonly databases = new Map<string, DatabaseEntry>();
  readonly users = new Map<string, UserEntry>();
  readonly peers = new Map<number, PeerEntry>();
  hasMainSection = false;
  readonly #settings = new Map<string, Given>();
  readonly #fleet = new Map<string, Given>();
  /** By database: a later line of the same name takes the place of the whole entry. */
  readonly #databaseKeys = new Map<string, Given[]>();

  openSection(event: SectionEvent): void {
    if (!SECTIONS.includes(event.name)) {
      this.#report(event, '', `invalid section "${event.name}"`, 'error');
    }
    if (event.name !== 'pgbouncer') return;
    if (this.hasMainSection) {
      const text = 'second [pgbouncer] header: settings above it go back to their defaults';
      this.#report(event, '', text, 'warning');
      for (const key of this.#settings.keys()) if (!STICKY.has(key)) this.#settings.delete(key);
    }
    this.hasMainSection = true;
  }

  addEntry(event: EntryEvent): void {
    const { section, key, value } = event;
    if (section === null) {
      this.#report(event, key, `load_init_file: value without section: ${key}`, 'error');
    } else if (section === 'pgbouncer') {
      this.#addSetting(event, section, this.#settings);
    } else if (section === 'fleet') {
      this.#addSetting(event, section, this.#fleet);
    } else if (section === 'databases') {
      this.#addDatabase(event);
    } else if (section === 'users') {
      const user = this.#accept(event, parseUser(key, value));
      if (user !== null) this.users.set(key, user);
    } else if (section === 'peers') {
      const peer = this.#accept(event, parsePeer(key, value));
      if (peer !== null) this.peers.set(peer.id, peer);
    }
  }

  /** A setting that was given by a command (PgBouncer's SET). */
  override(key: string, value: string): void {
    const place = { file: 'SET', line: 0 };
    this.#addSetting(
      { kind: 'entry', section: 'pgbouncer', key, value, ...place },
      'pgbouncer',
      this.#settings,
    );
  }

  settings(): Settings {
    return { ...defaultSettings(), ...valuesOf(this.#settings) };
  }

  fleet(): FleetSettings {
    return { ...defaultFleetSettings(), ...valuesOf(this.#fleet) };
  }

  given(): Given[] {
    const inEntries = [...this.#databaseKeys.values()].flat();
    return [...this.#settings.values(), ...this.#fleet.values(), ...inEntries];
  }

  #addSetting(event: EntryEvent, section: 'pgbouncer' | 'fleet', into: Map<string, Given>): void {
    const { key, value, file, line } = event;
    const result = readSetting(section, key, value);
    if (result === null) {
      this.#report(event, key, `unknown parameter: ${section}/${key}`, 'error');
    } else if (!result.ok) {
      const comment = /[;#]/.test(value) ? ' (a comment needs a line of its own)' : '';
      const text = `invalid value "${value}" for parameter ${key}: ${result.why}${comment}`;
      this.#report(event, key, text, 'error');
    } else if (key === 'auth_dbname' && CONSOLE_NAMES.includes(value)) {
      const text = 'cannot use the reserved "pgbouncer" database as an auth_dbname';
      this.#report(event, key, text, 'error');
    } else {
      // Deleted first, so that the order of the keys is that of the lines in force.
      into.delete(key);
      into.set(key, { section, key, value: result.value, entry: null, file, line });
    }
  }

  #addDatabase(event: EntryEvent): void {
    const parsed = parseDatabase(event.key, event.value);
    const database = this.#accept(event, parsed);
    if (database === null) return;
    const { key: entry, file, line } = event;
    this.databases.set(entry, database);
    const read = new Map<string, unknown>(Object.entries(database));
    const keys = parsed.keys.map((key): Given => {
      const value = read.get(key);
      const isPlain = typeof value === 'string' || typeof value === 'number';
      return { section: 'databases', key, value: isPlain ? value : null, entry, file, line };
    });
    this.#databaseKeys.set(entry, keys);
  }

  #accept<E>(event: EntryEvent, parsed: Parsed<E>): E | null {
    for (const text of parsed.errors) this.#report(event, event.key, text, 'error');
    for (const text of parsed.warnings) this.#report(event, event.key, text, 'warning');
    return parsed.entry;
  }

  #report(at: SectionEvent | EntryEvent, key: string, text: string, level: Problem['level']): void {
    this.problems.push({ file: at.file, line: at.line, key, text, level });
  }
}

/** With an error when TLS is wanted and cannot be had: nobody must come in without it then. */
function readTls(
  settings: Settings,
  fleet: FleetSettings,
  given: readonly Given[],
  readFile: ReadFile,
  problems: Problem[],
): ClientTlsFiles | null {
  const { files, problem } = readClientTls(settings, fleet, readFile);
  if (problem !== null) {
    const { key, text } = problem;
    const place = given.find((one) => one.section !== 'databases' && one.key === key);
    const mode = given.find(
      (one) => one.section === 'pgbouncer' && one.key === 'client_tls_sslmode',
    );
    const { file, line } = place ?? mode ?? { file: '', line: 0 };
    problems.push({ file, line, key, text, level: 'error' });
  }
  return files;
}

function valuesOf(given: ReadonlyMap<string, Given>): Record<string, never> {
  return Object.fromEntries([...given.values()].map((one) => [one.key, one.value as never]));
}

function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value);
    for (const inner of Object.values(value)) deepFreeze(inner);
  }
  return value;
}
