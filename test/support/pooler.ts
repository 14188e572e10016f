import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { asServer, giveToServer } from './account.ts';
import { makeFolder, removeFolder } from './folders.ts';
import { withHosts } from './own-hosts.ts';
import { freePort } from './ports.ts';
import { ROLES } from './postgres.ts';
import { hasEnded, processesWith, signalIfRunning, waitForEnd } from './processes.ts';
import { until } from './until.ts';

/** Values of one ini section; null leaves a key out that would be written otherwise. */
export type Section = Readonly<Record<string, string | number | null>>;

/** What both poolers are started with. */
export interface PoolerOptions {
  /** The server that database lines without `host=` mean. */
  readonly postgres?: { readonly host: string; readonly port: number };
  /** `[databases]` lines; default: `*`, every database of `postgres`. */
  readonly databases?: Readonly<Record<string, string>>;
  /** `[pgbouncer]`, added to and winning over what every test has. */
  readonly settings?: Section;
  /** `[users]` lines. */
  readonly users?: Readonly<Record<string, string>>;
  /** `[peers]` lines. */
  readonly peers?: Readonly<Record<string, string>>;
  /** Names and passwords of the auth_file; default: the roles of every test server. */
  readonly authFile?: Readonly<Record<string, string>>;
  /** Arguments put before the configuration file. */
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** A file that it sees as /etc/hosts; see `missingNamespaces`. */
  readonly hostsFile?: string;
  /** An empty folder to use instead of a temporary one. */
  readonly folder?: string;
  /** In a process group of its own, so that Ctrl-C at the terminal does not reach it. */
  readonly detached?: boolean;
}

/** How a pooler is run on a configuration file. */
export interface PoolerCommand {
  readonly name: string;
  readonly program: string;
  /** Arguments up to and without the file. */
  readonly args: readonly string[];
}

/** Lines that no test may cause without saying so with `allowLog`. */
const SUSPECT =
  /\] (?:ERROR|FATAL) |"level":"(?:ERROR|FATAL)"|InvariantError|[Uu]ncaught|[Uu]nhandled|^\s+at .*:\d+:\d+/;

/** A pooler that runs with a port and a folder of its own. */
export class TestPooler {
  readonly host = '127.0.0.1';
  readonly port: number;
  /** Holds `pgbouncer.ini`, `userlist.txt`, `log` and the Unix socket. */
  readonly folder: string;
  readonly #command: PoolerCommand;
  readonly #allowed: RegExp[] = [];
  #child: ChildProcess | null = null;

  constructor(port: number, folder: string, command: PoolerCommand) {
    this.port = port;
    this.folder = folder;
    this.#command = command;
  }

  get configFile(): string {
    return join(this.folder, 'pgbouncer.ini');
  }

  get unixDir(): string {
    return this.folder;
  }

  /** Path of the Unix socket. */
  get unixPath(): string {
    return join(this.folder, `.s.PGSQL.${this.port}`);
  }

  /** Pid of the process that was started: the fleet's launcher, or PgBouncer itself. */
  get pid(): number {
    const pid = this.#child?.pid;
    if (pid === undefined) throw new Error(`${this.#command.name} does not run`);
    return pid;
  }

  /** True once the started process has ended. */
  get hasEnded(): boolean {
    return this.#child === null || hasEnded(this.#child);
  }

  /** Exit status of the started process; null while it runs or when a signal ended it. */
  get exitCode(): number | null {
    return this.#child?.exitCode ?? null;
  }

  /** All that the pooler has written to stderr and stdout. */
  log(): string {
    return readFileSync(join(this.folder, 'log'), 'utf8');
  }

  /** Says that this test means to cause log lines that match. */
  allowLog(...lines: readonly RegExp[]): void {
    this.#allowed.push(...lines);
  }

  url(database = 'app', user = 'app', password: string = user): string {
    return `postgres://${user}:${password}@${this.host}:${this.port}/${database}`;
  }

  /** A connected client of the npm package `pg`; the test ends it. */
  async client(config: pg.ClientConfig = {}): Promise<pg.Client> {
    const client = new pg.Client({
      host: this.host,
      port: this.port,
      user: 'app',
      password: 'app',
      database: 'app',
      ...config,
    });
    await client.connect();
    return client;
  }

  /** Rows of one console command, given by the admin user. */
  async console(command: string): Promise<Record<string, string | null>[]> {
    const login = { user: 'postgres', password: 'postgres', database: 'pgbouncer' };
    const client = await this.client(login);
    try {
      return (await client.query(command)).rows;
    } finally {
      await client.end();
    }
  }

  /** Starts the process and waits until it says `process up:`. */
  async start(options: Pick<PoolerOptions, 'env' | 'detached' | 'hostsFile'> = {}): Promise<void> {
    const output = openSync(join(this.folder, 'log'), 'a');
    const logged = this.log().length;
    const { hostsFile } = options;
    const { program, args } =
      hostsFile === undefined ? this.#command : withHosts(this.#command, hostsFile);
    const child = spawn(program, [...args, this.configFile], {
      ...asServer,
      cwd: this.folder,
      detached: options.detached ?? false,
      env: { ...process.env, PGFLEET_TEST_POOLER: this.folder, ...options.env },
      stdio: ['ignore', output, output],
    });
    closeSync(output);
    let failure: Error | null = null;
    child.once('error', (error) => {
      failure = error;
    });
    this.#child = child;
    await until(
      `${this.#command.name} is up`,
      () => failure !== null || hasEnded(child) || this.log().includes('process up:', logged),
      { deadlineMs: 20_000 },
    ).catch(async (error: unknown) => {
      await this.#killAll();
      throw new Error(`${this.#command.name} did not come up:\n${this.log()}`, { cause: error });
    });
    if (failure !== null) throw failure;
    if (hasEnded(child)) {
      throw new Error(`${this.#command.name} ended at its start:\n${this.log()}`);
    }
  }

  /** Sends `signal` to the started process only. */
  signal(signal: NodeJS.Signals): void {
    process.kill(this.pid, signal);
  }

  /** Waits until the started process has ended, and returns its exit status. */
  async ended(deadlineMs = 10_000): Promise<number | null> {
    const child = this.#child;
    if (child === null) throw new Error(`${this.#command.name} was not started`);
    await waitForEnd(this.#command.name, child, deadlineMs);
    return child.exitCode;
  }

  /** Calls back when the started process ends, for whatever reason. */
  onceEnded(callback: () => void): void {
    this.#child?.once('exit', callback);
  }

  /**
   * Ends the pooler, removes its folder, and fails on what `end` finds wrong and on errors in the
   * log that the test did not announce.
   */
  async stop(signal: NodeJS.Signals = 'SIGINT'): Promise<void> {
    const problems = await this.end(signal);
    const log = this.log();
    await removeFolder(this.folder);
    const answers = consoleErrors(log);
    const suspects = log
      .split('\n')
      .filter((line) => SUSPECT.test(line) && !this.#allowed.some((allowed) => allowed.test(line)))
      .filter((line) => !answers.has(/ ERROR (.*)$/.exec(line)?.[1] ?? ''));
    if (suspects.length > 0) problems.push(`it logged:\n${suspects.join('\n')}`);
    if (problems.length > 0) {
      throw new Error(`${this.#command.name}: ${problems.join('; ')}\n--- its log ---\n${log}`);
    }
  }

  /**
   * Ends the pooler and returns what was wrong: it did not end, ended with another status than 0, or
   * left processes behind, which are killed. When clients still hold servers after a second, it is
   * told to end at once: by SIGQUIT, which ends a PgBouncer before 1.23 as it ends any program.
   */
  async end(signal: NodeJS.Signals = 'SIGINT'): Promise<string[]> {
    const child = this.#child;
    if (child === null) return [];
    const problems: string[] = [];
    if (!hasEnded(child)) {
      child.kill(signal);
      await until('it ended', () => hasEnded(child), { deadlineMs: 1_000 }).catch(() =>
        child.kill('SIGQUIT'),
      );
      await waitForEnd(this.#command.name, child, 10_000).catch((error: Error) =>
        problems.push(error.message),
      );
    }
    // A pgfleet that is about to exit has let go of its signals.
    const isToldTwice = child.signalCode === 'SIGQUIT';
    if (child.exitCode !== 0 && !isToldTwice)
      problems.push(`it ended with ${child.exitCode ?? child.signalCode}`);
    const left = await this.#killAll();
    if (left.length > 0) problems.push(`it left processes behind: ${left.join(', ')}`);
    return problems;
  }

  /** Pids of every running process that this pooler's start has brought. */
  processes(): number[] {
    return processesWith('PGFLEET_TEST_POOLER', this.folder).map(({ pid }) => pid);
  }

  /** Kills what still runs after a short grace, and returns the pids that had to be killed. */
  async #killAll(): Promise<number[]> {
    await until('all ended', () => this.processes().length === 0, { deadlineMs: 500 }).catch(
      () => undefined,
    );
    const left = this.processes();
    for (const pid of left) signalIfRunning(pid, 'SIGKILL');
    return left;
  }
}

/** What consoles were answered: the test has asked for that, and has looked at it. */
function consoleErrors(log: string): Set<string> {
  const lines = log.matchAll(/ C-\S+: pgbouncer\/\S+ pooler error: (.*)$/gm);
  return new Set([...lines].map(([, text]) => text!));
}

/** Makes folder and files of a pooler; it is not started yet. */
export async function preparePooler<Pooler extends TestPooler>(
  prefix: string,
  options: PoolerOptions,
  make: (port: number, folder: string) => Pooler,
  moreSections: (folder: string) => string = () => '',
): Promise<Pooler> {
  const folder = options.folder ?? (await makeFolder(prefix));
  const port = Number(options.settings?.['listen_port'] ?? (await freePort()));
  const pooler = make(port, folder);
  const roles = Object.fromEntries(Object.keys(ROLES).map((role) => [role, role]));
  await writePrivate(join(folder, 'userlist.txt'), userlist(options.authFile ?? roles));
  await writePrivate(pooler.configFile, configText(pooler, options) + moreSections(folder));
  return pooler;
}

/** Starts a prepared pooler; one that does not come up leaves no folder. */
export async function startOrRemove(pooler: TestPooler, options: PoolerOptions): Promise<void> {
  try {
    await pooler.start(options);
  } catch (error) {
    pooler.allowLog(/./);
    await pooler.stop().catch(() => undefined);
    throw error;
  }
}

/** `auth_file` text: a name and a password, both quoted, a line. */
export function userlist(passwords: Readonly<Record<string, string>>): string {
  const quote = (text: string): string => `"${text.replaceAll('"', '""')}"`;
  return Object.entries(passwords)
    .map(([name, password]) => `${quote(name)} ${quote(password)}\n`)
    .join('');
}

/** One ini section. */
export function sectionText(name: string, values: Section): string {
  const lines = Object.entries(values).flatMap(([key, value]) =>
    value === null ? [] : [`${key} = ${value}`],
  );
  return lines.length === 0 ? '' : `[${name}]\n${lines.join('\n')}\n\n`;
}

function configText(pooler: TestPooler, options: PoolerOptions): string {
  const { postgres } = options;
  const place = postgres === undefined ? '' : `host=${postgres.host} port=${postgres.port}`;
  const databases = Object.entries(options.databases ?? { '*': '' }).map(([name, line]) => [
    name,
    /\bhost\s*=/.test(line) ? line : `${place} ${line}`.trim(),
  ]);
  const settings: Section = {
    listen_addr: pooler.host,
    listen_port: pooler.port,
    unix_socket_dir: pooler.folder,
    auth_type: 'trust',
    auth_file: join(pooler.folder, 'userlist.txt'),
    pool_mode: 'transaction',
    admin_users: 'postgres',
    ...options.settings,
  };
  return (
    sectionText('databases', Object.fromEntries(databases)) +
    sectionText('users', options.users ?? {}) +
    sectionText('peers', options.peers ?? {}) +
    sectionText('pgbouncer', settings)
  );
}

async function writePrivate(file: string, text: string): Promise<void> {
  await writeFile(file, text, { mode: 0o600 });
  await giveToServer(file);
}
