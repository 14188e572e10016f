import { closeSync, openSync } from 'node:fs';
import type { Config } from '../config/config.ts';
import { droppedLines } from '../config/diff.ts';
import { formatProblem, loadConfig } from '../config/load.ts';
import { smallBudgets } from '../config/small-budgets.ts';
import { keepStartOnly } from '../config/start-only.ts';
import { type LogOutputs, log } from '../log/logger.ts';
import { osErrorText } from '../log/os-error.ts';

export type ReloadResult = { readonly ok: true } | { readonly ok: false; readonly text: string };

/** Brings a configuration to the workers, all or none; `Fleet.reload`. */
type Spread = (
  config: Config,
  outputs: LogOutputs,
  onDecided: () => void,
) => Promise<string | null>;

export interface ReloaderOptions {
  /** The configuration that the fleet was started with. */
  readonly config: Config;
  /** Number of workers. */
  readonly size: number;
  /** Where a fleet with this configuration logs. */
  readonly outputsOf: (config: Config) => LogOutputs;
  readonly spread: Spread;
  /** Makes the workers open their log files anew. */
  readonly reopenLogs: () => void;
  readonly load?: typeof loadConfig;
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
  #running: Promise<ReloadResult> | null = null;
  #next: Promise<ReloadResult> | null = null;

  constructor(options: ReloaderOptions) {
    this.#options = options;
    this.#config = options.config;
    this.#version = options.config.version;
  }

  /** The configuration in force. */
  get config(): Config {
    return this.#config;
  }

  /** Resolves when the configuration is in force in every worker, or when it is clear that it is not. */
  reload(): Promise<ReloadResult> {
    if (this.#running === null) return this.#begin();
    this.#next ??= this.#running.then(() => {
      this.#next = null;
      return this.#begin();
    });
    return this.#next;
  }

  #begin(): Promise<ReloadResult> {
    this.#running = this.#reload().finally(() => {
      this.#running = null;
    });
    return this.#running;
  }

  async #reload(): Promise<ReloadResult> {
    const old = this.#config;
    const next = this.#read(old);
    if ('text' in next) return this.#keep(next.text);
    const outputs = this.#options.outputsOf(next.config);
    if (outputs.logfile !== this.#options.outputsOf(old).logfile) {
      const refusal = tryLogfile(outputs.logfile);
      if (refusal !== null) {
        log.error(refusal);
        return this.#keep(refusal);
      }
    }
    const refusal = await this.#options.spread(next.config, outputs, () => {
      this.#announce(old, next.config, next.changed);
    });
    if (refusal !== null) {
      log.error(refusal);
      return this.#keep(refusal);
    }
    this.#config = next.config;
    // What the load had to say is in the old file still; what follows goes to the new one.
    configureLog(outputs);
    return { ok: true };
  }

  /** The file's configuration with what only a restart can change as it was; else its first error. */
  #read(old: Config): { config: Config; changed: readonly string[] } | { text: string } {
    const { load = loadConfig } = this.#options;
    const file = old.settings.conffile ?? old.file;
    const { config, problems } = load(file, { version: ++this.#version });
    for (const problem of problems) {
      const text = formatProblem(problem);
      if (problem.level === 'error') log.error(text);
      else log.warning(text);
    }
    if (config === null) {
      const error = problems.find(({ level }) => level === 'error');
      return { text: error === undefined ? file : formatProblem(error) };
    }
    return keepStartOnly(old, withUsersOf(old, config));
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
