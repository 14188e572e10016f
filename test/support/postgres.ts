import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { appendFile, chmod, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { asServer, giveToServer } from './account.ts';
import { cached, copyFolder, makeFolder, removeFolder } from './folders.ts';
import { freePort } from './ports.ts';
import { clientProgram, type PostgresVersion, postgresBin } from './postgres-files.ts';
import { familyOf, hasEnded, isRunning, signalIfRunning, waitForEnd } from './processes.ts';
import { until } from './until.ts';

const run = promisify(execFile);

/** How a server is started. */
export interface PostgresOptions {
  /** 18, the npm package's, is there on every machine; 15 is Debian's. Default 18. */
  readonly version?: PostgresVersion;
  /** Lines put before the standing ones of pg_hba.conf; the first that matches decides. */
  readonly hba?: readonly string[];
  /** Added to postgresql.conf. */
  readonly settings?: Readonly<Record<string, string | number>>;
}

/**
 * Roles of every test server, each with its name as its password: the superuser, and one ordinary
 * role for each login method. `app` owns the database `app`.
 */
export const ROLES = {
  postgres: 'scram-sha-256',
  app: 'scram-sha-256',
  app_md5: 'md5',
  app_plain: 'password',
  app_trust: 'trust',
} as const;

const STANDING_SETTINGS: Readonly<Record<string, string | number>> = {
  fsync: 'off',
  full_page_writes: 'off',
  synchronous_commit: 'off',
  max_connections: 200,
  shared_buffers: '64MB',
  listen_addresses: '127.0.0.1',
  log_line_prefix: '%m [%p] %u@%d ',
  timezone: 'UTC',
};

/** Run once, in the template of all data folders. */
const STATEMENTS: readonly string[] = [
  "ALTER ROLE postgres PASSWORD 'postgres'",
  "CREATE ROLE app LOGIN PASSWORD 'app'",
  "CREATE ROLE app_plain LOGIN PASSWORD 'app_plain'",
  'CREATE ROLE app_trust LOGIN',
  "SET password_encryption = 'md5'",
  "CREATE ROLE app_md5 LOGIN PASSWORD 'app_md5'",
  'CREATE DATABASE app OWNER app',
];

/** Part of the template's name, so that one made from other statements is never used. */
const TEMPLATE_HASH = createHash('sha1').update(STATEMENTS.join('\n')).digest('hex').slice(0, 8);

/** One real PostgreSQL server with a data folder and a port of its own. */
export class TestPostgres {
  readonly host = '127.0.0.1';
  readonly superuser = 'postgres';
  readonly password = 'postgres';
  readonly version: PostgresVersion;
  readonly port: number;
  /** Holds `data`, `log` and the Unix socket. */
  readonly folder: string;
  readonly #program: string;
  #child: ChildProcess | null = null;
  #client: pg.Client | null = null;
  /** Ends when the standing connection is free; a client of `pg` runs one query at a time. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(version: PostgresVersion, port: number, folder: string, bin: string) {
    this.version = version;
    this.port = port;
    this.folder = folder;
    this.#program = join(bin, 'postgres');
  }

  get socketDir(): string {
    return this.folder;
  }

  /** All that the server has written to its log. */
  log(): string {
    return readFileSync(join(this.folder, 'log'), 'utf8');
  }

  /** `postgres://` URL of the server itself. */
  url(database = 'postgres', user = 'postgres', password: string = user): string {
    return `postgres://${user}:${password}@${this.host}:${this.port}/${database}`;
  }

  /**
   * Starts the server on its data folder, for the first time or after `stop` or `kill`. A detached
   * one has a process group of its own, so that Ctrl-C at the terminal does not reach it.
   */
  async start(options: { readonly detached?: boolean } = {}): Promise<void> {
    const log = openSync(join(this.folder, 'log'), 'a');
    const child = spawn(this.#program, ['-D', join(this.folder, 'data')], {
      ...asServer,
      cwd: this.folder,
      detached: options.detached ?? false,
      stdio: ['ignore', log, log],
    });
    closeSync(log);
    let failure: Error | null = null;
    child.once('error', (error) => {
      failure = error;
    });
    this.#child = child;
    await until(
      `PostgreSQL ${this.version} accepts connections`,
      () => {
        if (failure !== null) return true;
        return hasEnded(child) || this.#isReady(child.pid);
      },
      { deadlineMs: 60_000 },
    );
    if (failure !== null) throw failure;
    if (hasEnded(child)) throw new Error(`PostgreSQL ended at its start:\n${this.log()}`);
  }

  /** Calls back when the server ends, for whatever reason. */
  onceEnded(callback: () => void): void {
    this.#child?.once('exit', callback);
  }

  /** Runs `sql` on a standing connection of the superuser and returns the rows. */
  async query<Row extends pg.QueryResultRow = Record<string, unknown>>(
    sql: string,
    values: readonly unknown[] = [],
  ): Promise<Row[]> {
    const rows = this.#turn.then(() => this.#queryNow<Row>(sql, values));
    this.#turn = rows.catch(() => undefined);
    return rows;
  }

  /** Client backends except the one that `query` uses, narrowed by database and user. */
  async backends(filter: { database?: string; user?: string } = {}): Promise<Backend[]> {
    return this.query<Backend & pg.QueryResultRow>(
      `SELECT pid, datname AS database, usename AS user, application_name, state, query
         FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
          AND ($1::text IS NULL OR datname = $1) AND ($2::text IS NULL OR usename = $2)
        ORDER BY pid`,
      [filter.database ?? null, filter.user ?? null],
    );
  }

  /** Output of Debian's psql for `sql`, unaligned and without headers. */
  async psql(sql: string, database = 'postgres'): Promise<string> {
    const program = clientProgram('psql');
    if (program === null) throw new Error("needs Debian's package postgresql-15");
    const url = this.url(database);
    const { stdout } = await run(program, ['-XAtq', '-v', 'ON_ERROR_STOP=1', '-c', sql, url]);
    return stdout.trimEnd();
  }

  /** Ends the server in an orderly way (fast shutdown); the data folder stays. */
  async stop(): Promise<void> {
    await this.#client?.end();
    this.#client = null;
    const child = this.#child;
    if (child === null) return;
    this.#child = null;
    child.kill('SIGINT');
    await waitForEnd(`PostgreSQL ${this.version}`, child, 30_000);
  }

  /** Ends all processes of the server at once, as a crash of its machine would; `start` mends it. */
  async kill(): Promise<void> {
    const child = this.#child;
    if (child?.pid === undefined) return;
    this.#child = null;
    this.#client = null;
    const family = familyOf(child.pid);
    for (const pid of family) signalIfRunning(pid, 'SIGKILL');
    await until('the killed server is gone', () => !family.some(isRunning));
  }

  /** Sends `signal` to all processes of the server: SIGSTOP stalls it, SIGCONT goes on. */
  signal(signal: NodeJS.Signals): void {
    const pid = this.#child?.pid;
    if (pid === undefined) throw new Error('the server does not run');
    for (const member of familyOf(pid)) signalIfRunning(member, signal);
  }

  /** Ends the server and removes its folder. */
  async dispose(): Promise<void> {
    if (this.#child?.pid !== undefined) this.signal('SIGCONT');
    const isDead = this.#child === null;
    await this.stop();
    if (isDead) await this.#removeSharedMemory();
    await removeFolder(this.folder);
  }

  async #queryNow<Row extends pg.QueryResultRow>(
    sql: string,
    values: readonly unknown[],
  ): Promise<Row[]> {
    if (this.#client === null) {
      const client = new pg.Client({ connectionString: this.url() });
      // A server that a test kills ends this connection too; the next query opens another.
      client.on('error', () => undefined);
      client.once('end', () => {
        if (this.#client === client) this.#client = null;
      });
      await client.connect();
      this.#client = client;
    }
    const { rows } = await this.#client.query<Row>(sql, [...values]);
    return rows;
  }

  /** Whether postmaster.pid is this process's (a killed one leaves its own) and says "ready". */
  #isReady(pid: number | undefined): boolean {
    const lines = this.#postmasterLines();
    return lines[0] === String(pid) && lines[7]?.startsWith('ready') === true;
  }

  /** A killed server leaves its System V segment, which it names in line 7 of postmaster.pid. */
  async #removeSharedMemory(): Promise<void> {
    const id = this.#postmasterLines()[6]?.trim().split(/\s+/)[1];
    if (id !== undefined) await run('ipcrm', ['-m', id]).catch(() => undefined);
  }

  #postmasterLines(): string[] {
    try {
      return readFileSync(join(this.folder, 'data/postmaster.pid'), 'utf8').split('\n');
    } catch {
      return [];
    }
  }
}

/** One row of `backends`. */
export interface Backend {
  readonly pid: number;
  readonly database: string;
  readonly user: string;
  readonly application_name: string;
  readonly state: string | null;
  readonly query: string;
}

/**
 * Starts a server of its own for a test; end it with `t.after(() => postgres.dispose())`. The data
 * folder is copied from a template, which the first start of a run makes with initdb.
 */
export async function startPostgres(options: PostgresOptions = {}): Promise<TestPostgres> {
  const version = options.version ?? 18;
  const bin = await postgresBin(version, cached);
  const template = await cached(`data-${version}-${TEMPLATE_HASH}`, (folder) =>
    makeCluster(bin, folder, STATEMENTS),
  );
  const folder = await makeFolder(`pg${version}`);
  const server = new TestPostgres(version, await freePort(), folder, bin);
  try {
    await copyFolder(join(template, 'data'), folder);
    await configure(server, options);
    await server.start();
  } catch (error) {
    await server.dispose();
    throw error;
  }
  return server;
}

/** Makes the data folder `data` in `folder` and runs `statements`, each one line, in it. */
export async function makeCluster(
  bin: string,
  folder: string,
  statements: readonly string[],
): Promise<void> {
  const data = join(folder, 'data');
  const initdb = ['-D', data, '-U', 'postgres', '-E', 'UTF8', '--locale=C', '--no-sync'];
  // Locale C and time zone from the arguments, so that the environment decides nothing.
  await run(join(bin, 'initdb'), initdb, { ...asServer, cwd: folder });
  // Single-user mode runs one statement a line and needs no port.
  const child = run(join(bin, 'postgres'), ['--single', '-D', data, 'postgres'], {
    ...asServer,
    cwd: folder,
  });
  child.child.stdin?.end(`${statements.join('\n')}\n`);
  const { stderr } = await child;
  if (stderr.includes('ERROR:')) throw new Error(`a statement failed:\n${stderr}`);
}

/** Appends to postgresql.conf and writes pg_hba.conf. */
export async function configure(server: TestPostgres, options: PostgresOptions): Promise<void> {
  const settings = {
    ...STANDING_SETTINGS,
    port: server.port,
    unix_socket_directories: server.folder,
    ...options.settings,
  };
  const lines = Object.entries(settings).map(([name, value]) => `${name} = '${value}'`);
  await appendFile(join(server.folder, 'data/postgresql.conf'), `\n${lines.join('\n')}\n`);

  const standing = Object.entries(ROLES).flatMap(([role, method]) => [
    `local all ${role} ${method}`,
    `host all ${role} samehost ${method}`,
  ]);
  const rest = ['local all all scram-sha-256', 'host all all samehost scram-sha-256'];
  const hba = [...(options.hba ?? []), ...standing, ...rest];
  const file = join(server.folder, 'data/pg_hba.conf');
  await writeFile(file, `${hba.join('\n')}\n`);
  await chmod(file, 0o600);
  await giveToServer(file);
}
