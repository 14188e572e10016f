import { closeSync, openSync } from 'node:fs';
import { changeLines } from '../config/changes.ts';
import type { Config } from '../config/config.ts';
import { droppedLines } from '../config/diff.ts';
import type { FileReads } from '../config/file-reads.ts';
import { formatProblem, loadConfig, problemLine } from '../config/load.ts';
import type { Problem } from '../config/problem.ts';
import { readSetting, SETTINGS } from '../config/schema.ts';
import { smallBudgets } from '../config/small-budgets.ts';
import { keepStartOnly, type Reloadable } from '../config/start-only.ts';
import { type LogOutputs, log } from '../log/logger.ts';
import { osErrorText } from '../log/os-error.ts';
import type { Changes } from './inquiries.ts';

export type ReloadResult = { readonly ok: true } | { readonly ok: false; readonly text: string };

/** `notice`: it is noted, but not in force. */
export type SetResult =
  | { readonly ok: true; readonly notice?: string }
  | { readonly ok: false; readonly text: string };

const TLS_KEY = /_tls(?:13)?_/;
const NOT_APPLIED = 'TLS settings could not be applied, still using old configuration';

/** Brings a configuration to the workers, all or none; `Fleet.reload`. */
type Spread = (
  config: Config,
  outputs: LogOutputs,
  onDecided: () => void,
) => Promise<string | null>;

export interface ReloaderOptions {
  /** The configuration that the fleet was started with. */
  readonly config: Config;
  /** What its load has read; default: it is read again when a single setting changes. */
  readonly reads?: FileReads;
  /** Number of workers. */
  readonly size: number;
  /** Where a fleet with this configuration logs. */
  readonly outputsOf: (config: Config) => LogOutputs;
  readonly spread: Spread;
  /** Makes the workers open their log files anew. */
  readonly reopenLogs: () => void;
  readonly load?: typeof loadConfig;
}

/** What a reload has read. */
interface Read extends Reloadable {
  readonly reads: FileReads;
  readonly file: string;
}

/**
 * Reads the configuration anew and puts it in force, whole or not at all, where PgBouncer leaves a
 * file with an error in it half applied. One at a time: a call during a reload waits for it and then
 * reads the files once more, together with all others that wait.
 */
export class Reloader {
  readonly #options: ReloaderOptions;
  #config: Config;
  /** Of the last attempt, so that no answer to one can be taken for an answer to the next. */
  #version: number;
  /** The end of all that has been asked for, reloads and single settings; null: nothing is under way. */
  #last: Promise<void> | null = null;
  /** A reload that waits for its turn. */
  #next: Promise<ReloadResult> | null = null;
  /** What the load of the configuration in force has read, and the main file's path. */
  #reads: FileReads | undefined;
  #file: string;
  /** Settings in force that were set one by one since the files were read, by key. */
  #overrides: ReadonlyMap<string, string> = new Map();
  /** TLS settings that are noted until the whole of them can be used. */
  #noted: ReadonlyMap<string, string> = new Map();

  constructor(options: ReloaderOptions) {
    this.#options = options;
    this.#config = options.config;
    this.#reads = options.reads;
    this.#file = options.config.file;
    this.#version = options.config.version;
  }

  /** The configuration in force. */
  get config(): Config {
    return this.#config;
  }

  /** Resolves when the configuration is in force in every worker, or when it is clear that it is not. */
  reload(): Promise<ReloadResult> {
    if (this.#last === null) return this.#after(() => this.#reload());
    this.#next ??= this.#after(() => {
      this.#next = null;
      return this.#reload();
    });
    return this.#next;
  }

  /**
   * Changes one setting of `[pgbouncer]` in every worker or in none, until the next reload (PgBouncer's
   * SET). As in PgBouncer what only a restart can change is ignored without a word, and a TLS setting
   * that cannot be used yet is noted, so that several can be set one after the other.
   *
   * @param text as it would stand in the file
   */
  set(key: string, text: string): Promise<SetResult> {
    return this.#after(() => this.#set(key, text));
  }

  /** What a reload would change now. Nothing is changed or logged. */
  preview(): Changes {
    const { load = loadConfig } = this.#options;
    const { config, problems } = load(this.#nextFile, { version: this.#version });
    return {
      changes:
        config === null ? null : changeLines(this.#config, withUsersOf(this.#config, config)),
      problems: problems.map(problemLine),
    };
  }

  /** Begins `work` when nothing else is under way. */
  #after<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last === null ? work() : this.#last.then(work);
    const end = (): void => {
      if (this.#last === last) this.#last = null;
    };
    const last: Promise<void> = result.then(end, end);
    this.#last = last;
    return result;
  }

  async #set(key: string, text: string): Promise<SetResult> {
    const spec = SETTINGS.find((one) => one.key === key && !one.isWindowsOnly);
    if (spec === undefined) {
      log.error(`unknown parameter: pgbouncer/${key}`);
      return { ok: false, text: `there is no setting ${key}` };
    }
    if (!spec.changeable) return { ok: true };
    const isTls = TLS_KEY.test(key);
    const noted = isTls ? this.#noted : [];
    const overrides = new Map([...this.#overrides, ...noted, [key, text]]);
    const old = this.#config;
    const { load = loadConfig } = this.#options;
    const version = ++this.#version;
    const { config, problems } = load(this.#file, {
      version,
      overrides,
      ...(this.#reads === undefined ? {} : { known: this.#reads }),
    });
    if (config === null) {
      const errors = problems.filter(({ level }) => level === 'error');
      const isNoted =
        isTls && isReadable(key, text) && errors.every((one) => TLS_KEY.test(one.key));
      if (isNoted) return this.#note(overrides, formatProblem(errors[0]!));
      return { ok: false, text: firstError(problems) ?? this.#file };
    }
    // The name that SHOW CONFIG has for the file in force is that of the start.
    const conffile = overrides.get('conffile') ?? old.settings.conffile;
    const named = Object.freeze({ ...config, settings: { ...config.settings, conffile } });
    const next = keepStartOnly(old, withUsersOf(old, named)).config;
    const refusal = await this.#putInForce(next, []);
    if (refusal === null) {
      this.#overrides = overrides;
      if (isTls) this.#noted = new Map();
      return { ok: true };
    }
    if (isTls) return this.#note(overrides, refusal);
    log.warning(refusal);
    return { ok: false, text: refusal };
  }

  /** What cannot be used yet is tried again with the next TLS setting. */
  #note(overrides: ReadonlyMap<string, string>, why: string): SetResult {
    log.warning(why);
    this.#noted = new Map([...overrides].filter(([key]) => TLS_KEY.test(key)));
    return { ok: true, notice: NOT_APPLIED };
  }

  async #reload(): Promise<ReloadResult> {
    const old = this.#config;
    const next = this.#read(old);
    if ('text' in next) return this.#keep(next.text);
    const refusal = await this.#putInForce(next.config, next.changed);
    if (refusal !== null) {
      log.error(refusal);
      return this.#keep(refusal);
    }
    this.#reads = next.reads;
    this.#file = next.file;
    this.#overrides = new Map();
    this.#noted = new Map();
    return { ok: true };
  }

  /** Returns null when it is in force in every worker, else why in none. */
  async #putInForce(next: Config, changed: readonly string[]): Promise<string | null> {
    const old = this.#config;
    const outputs = this.#options.outputsOf(next);
    if (outputs.logfile !== this.#options.outputsOf(old).logfile) {
      const refusal = tryLogfile(outputs.logfile);
      if (refusal !== null) return refusal;
    }
    const refusal = await this.#options.spread(next, outputs, () => {
      this.#announce(old, next, changed);
    });
    if (refusal !== null) return refusal;
    this.#config = next;
    // What the load had to say is in the old file still; what follows goes to the new one.
    configureLog(outputs);
    return null;
  }

  /** Which file a reload reads. */
  get #nextFile(): string {
    return this.#config.settings.conffile ?? this.#config.file;
  }

  /** The file's configuration with what only a restart can change as it was; else its first error. */
  #read(old: Config): Read | { text: string } {
    const { load = loadConfig } = this.#options;
    const file = this.#nextFile;
    const { config, problems, reads } = load(file, { version: ++this.#version });
    for (const problem of problems) {
      const text = formatProblem(problem);
      if (problem.level === 'error') log.error(text);
      else log.warning(text);
    }
    if (config === null) return { text: firstError(problems) ?? file };
    return { ...keepStartOnly(old, withUsersOf(old, config)), reads, file };
  }

  /** Nothing changes. Log files are opened anew all the same: that is what rotation asks for. */
  #keep(text: string): ReloadResult {
    log.warning('config file loading failed');
    log.reopen();
    this.#options.reopenLogs();
    return { ok: false, text };
  }

  /** What the operator should know of a change that is about to take effect. */
  #announce(old: Config, next: Config, changed: readonly string[]): void {
    if (changed.length > 0) {
      log.warning(`changed in the file but kept until a restart: ${changed.join(', ')}`);
    }
    const dropped = droppedLines(old, next);
    for (const name of dropped.databases) log.warning(droppingDatabase(name));
    for (const id of dropped.peers) {
      log.warning(`dropping peer ${id} as it does not exist anymore`);
    }
    const known = new Set(smallBudgets(old, this.#options.size));
    for (const text of smallBudgets(next, this.#options.size)) {
      if (!known.has(text)) log.warning(text);
    }
  }
}

/** Whether the text is a value of the setting, taken by itself. */
function isReadable(key: string, text: string): boolean {
  return readSetting('pgbouncer', key, text)?.ok === true;
}

function firstError(problems: readonly Problem[]): string | null {
  const error = problems.find(({ level }) => level === 'error');
  return error === undefined ? null : formatProblem(error);
}

/** As in PgBouncer, users stay as they are when their file cannot be read at a reload. */
function withUsersOf(old: Config, next: Config): Config {
  const { auth_file, auth_type } = next.settings;
  const wants = auth_file !== null && auth_file !== '' && auth_type !== 'any';
  if (!wants || next.authUsers !== null) return next;
  return Object.freeze({ ...next, authUsers: old.authUsers });
}

/** Why a log file cannot be opened, in PgBouncer's words; null when it can. */
function tryLogfile(path: string): string | null {
  if (path === '') return null;
  try {
    closeSync(openSync(path, 'a', 0o644));
    return null;
  } catch (error) {
    return `Cannot open logfile: '${path}': ${osErrorText(error)}`;
  }
}

function configureLog(outputs: LogOutputs): void {
  try {
    log.configure(outputs);
  } catch (error) {
    log.error(`Cannot open logfile: '${outputs.logfile}': ${osErrorText(error)}`);
  }
}

function droppingDatabase(name: string): string {
  return `dropping database '${name}' as it does not exist anymore or inactive auto-database`;
}
