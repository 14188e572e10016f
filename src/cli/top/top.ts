import { isIP } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Config } from '../../config/config.ts';
import { loadConfig, problemLine } from '../../config/load.ts';
import { ConsoleConnection, type ConsolePlace, isRefusal } from './console.ts';
import { type Rates, type Reading, ratesBetween, readingOf } from './readings.ts';
import { draw, SORTS, type Sort, type View } from './screen.ts';
import { Terminal } from './terminal.ts';

export interface TopOptions {
  /** A configuration file, or a URL of the console (`postgres://…`). */
  readonly target: string;
  /** Seconds between two readings. */
  readonly interval: number;
  /** Ends after so many; null: goes on. */
  readonly count: number | null;
}

const URL_START = /^postgres(?:ql)?:\/\//;
const WILDCARDS: ReadonlySet<string> = new Set(['*', '0.0.0.0', '::']);
/** Columns of what goes to a file or a pipe. */
const PLAIN_COLUMNS = 120;

interface Target {
  readonly place: ConsolePlace;
  readonly label: string;
}

/**
 * `pgfleet top`: a live view of the console, on the whole terminal, or line by line where the output
 * is none. Returns the exit status.
 */
export async function runTop(options: TopOptions): Promise<number> {
  const target = targetOf(options.target);
  if (typeof target === 'string') {
    process.stderr.write(`pgfleet: ${target}\n`);
    return 1;
  }
  return await new Top(options, target).run();
}

class Top {
  readonly #options: TopOptions;
  readonly #target: Target;
  readonly #terminal: Terminal | null;
  readonly #stop = new AbortController();
  #connection: ConsoleConnection | null = null;
  #before: Reading | null = null;
  #version = '';
  #view: View;

  constructor(options: TopOptions, target: Target) {
    this.#options = options;
    this.#target = target;
    this.#view = {
      place: target.label,
      version: '',
      now: '',
      interval: options.interval,
      sort: 'waiting',
      scroll: 0,
      isFrozen: false,
      showsHelp: false,
      trouble: null,
      reading: null,
      rates: null,
    };
    this.#terminal = process.stdout.isTTY
      ? new Terminal(
          process.stdout,
          process.stdin.isTTY ? process.stdin : null,
          (process.env['NO_COLOR'] ?? '') === '',
          { onKey: (key) => this.#onKey(key), onResize: () => this.#show() },
        )
      : null;
  }

  async run(): Promise<number> {
    try {
      await this.#connect();
    } catch (error) {
      process.stderr.write(`pgfleet: ${this.#target.label}: ${messageOf(error)}\n`);
      return 1;
    }
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
      process.once(signal, () => this.#quit());
    }
    // Whoever reads it, `head` for one, has read enough.
    process.stdout.on('error', () => this.#quit());
    this.#terminal?.open();
    try {
      await this.#loop();
    } finally {
      this.#terminal?.close();
      this.#connection?.close();
    }
    return 0;
  }

  async #loop(): Promise<void> {
    const { interval, count } = this.#options;
    for (let done = 0; !this.#stop.signal.aborted; ) {
      if (!this.#view.isFrozen) {
        await this.#read();
        this.#show();
        done++;
      }
      if (count !== null && done >= count) return;
      await sleep(interval * 1000, null, { signal: this.#stop.signal }).catch(() => undefined);
    }
  }

  async #connect(): Promise<ConsoleConnection> {
    if (this.#connection?.failure === null) return this.#connection;
    this.#connection = null;
    const connection = await ConsoleConnection.open(this.#target.place);
    this.#version = await connection.version();
    this.#connection = connection;
    // What was counted before may be of another fleet.
    this.#before = null;
    return connection;
  }

  async #read(): Promise<void> {
    const now = new Date().toTimeString().slice(0, 8);
    try {
      const connection = await this.#connect();
      const reading = readingOf(await connection.ask(), performance.now());
      const rates: Rates | null =
        this.#before === null ? null : ratesBetween(this.#before, reading);
      this.#before = reading;
      const version = /\(([^)]*)\)/.exec(this.#version)?.[1] ?? this.#version;
      this.#view = { ...this.#view, version, now, reading, rates, trouble: null };
    } catch (error) {
      this.#connection?.close();
      const next = isRefusal(error) ? '' : ', trying again';
      this.#view = { ...this.#view, now, trouble: `${messageOf(error)}${next}` };
    }
  }

  #show(): void {
    if (this.#stop.signal.aborted) return;
    const view = this.#view;
    if (this.#terminal !== null) {
      this.#terminal.show(draw(view, this.#terminal.size));
      return;
    }
    const lines = draw(view, { columns: PLAIN_COLUMNS, rows: Number.POSITIVE_INFINITY });
    process.stdout.write(`${lines.map(({ text }) => text).join('\n')}\n\n`);
  }

  /** A console that is silent is not waited for. */
  #quit(): void {
    this.#stop.abort();
    this.#connection?.close();
  }

  #onKey(key: string): void {
    const view = this.#view;
    const next = SORTS[(SORTS.indexOf(view.sort) + 1) % SORTS.length] as Sort;
    if (key === 'q') this.#quit();
    else if (key === 's') this.#view = { ...view, sort: next, scroll: 0 };
    else if (key === 'p' || key === ' ') this.#view = { ...view, isFrozen: !view.isFrozen };
    else if (key === '?' || key === 'h') this.#view = { ...view, showsHelp: !view.showsHelp };
    else if (key === 'down') this.#view = { ...view, scroll: view.scroll + 1 };
    else if (key === 'up') this.#view = { ...view, scroll: Math.max(view.scroll - 1, 0) };
    else return;
    this.#show();
  }
}

/** Where the console is, or why that cannot be told. */
function targetOf(target: string): Target | string {
  if (URL_START.test(target)) {
    try {
      const { host } = new URL(target);
      return { place: { connectionString: target }, label: host === '' ? 'localhost' : host };
    } catch {
      return `${target} is no URL`;
    }
  }
  const { config, problems } = loadConfig(target);
  if (config !== null) return consoleOf(config);
  return problems
    .filter(({ level }) => level === 'error')
    .map(problemLine)
    .join('\n');
}

/** The Unix socket where there is one, else the first address. */
function consoleOf({ settings }: Config): Target {
  const port = settings.listen_port;
  const first = settings.listen_addr?.split(',')[0]?.trim() ?? '';
  const address = WILDCARDS.has(first) ? '127.0.0.1' : first;
  const isUnix = settings.unix_socket_dir !== '' && !settings.unix_socket_dir.startsWith('@');
  const host = isUnix ? settings.unix_socket_dir : address || '127.0.0.1';
  const label = isUnix
    ? `${host}/.s.PGSQL.${port}`
    : `${isIP(host) === 6 ? `[${host}]` : host}:${port}`;
  const [admin = ''] = `${settings.admin_users},${settings.stats_users}`
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '');
  const user = process.env['PGUSER'] ?? admin;
  return { place: { host, port, ...(user === '' ? {} : { user }) }, label };
}

function messageOf(error: unknown): string {
  if (error instanceof AggregateError) return messageOf(error.errors[0]);
  return error instanceof Error ? error.message : String(error);
}
