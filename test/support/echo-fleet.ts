import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { childrenOf } from './processes.ts';

const LAUNCHER = fileURLToPath(new URL('echo-launcher.ts', import.meta.url));
const HIDE_BIND = encodeURIComponent("import net from 'node:net'; delete net._createServerHandle;");
const DEADLINE_MS = 15_000;

export interface EchoFleetOptions {
  readonly settings?: Record<string, unknown>;
  readonly fleet?: Record<string, unknown>;
  /** ECHO_MODE of the workers. */
  readonly mode?: string;
  /** Hides the private function that binds without listening, as a later Node might. */
  readonly withoutBind?: boolean;
  /** A folder of the caller's, so that two fleets can share a configuration file. */
  readonly folder?: string;
}

/** A launcher process over echo workers, and what it has logged. */
export interface EchoFleet {
  readonly child: ChildProcess;
  readonly folder: string;
  readonly port: number;
  lines(): string[];
  /** Pids of the workers by number, from the log. */
  workerPids(): number[];
  waitFor(pattern: RegExp): Promise<string>;
  /** Exit status, or the signal's name. */
  ended(): Promise<number | string>;
}

/** Starts a fleet and kills whatever is left of it after the test. */
export async function startEchoFleet(
  t: TestContext,
  options: EchoFleetOptions,
): Promise<EchoFleet> {
  const folder = options.folder ?? newFolder(t);
  const port = Number(options.settings?.['listen_port'] ?? (await freePort()));
  const settings = {
    listen_addr: '127.0.0.1',
    listen_port: port,
    unix_socket_dir: '',
    ...options.settings,
  };
  const fleet = { size: 4, runtime_dir: join(folder, 'run'), ...options.fleet };
  const file = join(folder, 'pgfleet.ini');
  writeFileSync(file, '');
  const args = [LAUNCHER, file, JSON.stringify(settings), JSON.stringify(fleet)];
  const env: NodeJS.ProcessEnv = { ...process.env, ECHO_MODE: options.mode ?? '' };
  if (options.withoutBind) env['NODE_OPTIONS'] = `--import=data:text/javascript,${HIDE_BIND}`;
  const errors = join(folder, `stderr-${Math.random()}`);
  // A file, because a worker that outlives its launcher would keep a pipe open.
  const child = spawn('/bin/sh', ['-c', 'exec "$0" "$@" 2>"$ERRORS"', process.execPath, ...args], {
    stdio: 'ignore',
    env: { ...env, ERRORS: errors },
  });
  const exit = once(child, 'exit');
  const lines = () =>
    readFileSync(errors, { encoding: 'utf8', flag: 'a+' }).split('\n').slice(0, -1);
  const workerPids = () => pidsIn(lines());
  cleanUp(t, async () => {
    // A worker that the launcher has started and not yet told of is in no line. While the launcher is
    // stopped it starts no other.
    child.kill('SIGSTOP');
    const untold =
      child.exitCode === null && child.signalCode === null ? childrenOf(child.pid!) : [];
    child.kill('SIGKILL');
    await exit;
    for (const pid of [...allPids(lines()), ...untold]) killWorker(pid);
  });
  return {
    child,
    folder,
    port,
    lines,
    workerPids,
    waitFor: (pattern) =>
      until(
        () => lines().find((line) => pattern.test(line)),
        () => `${pattern} in the log:\n${lines().join('\n')}`,
      ),
    ended: async () => {
      const [code, signal] = await exit;
      return code ?? signal;
    },
  };
}

/** The same, and waits until it is up. */
export async function startedEchoFleet(t: TestContext, options: EchoFleetOptions = {}) {
  const fleet = await startEchoFleet(t, options);
  await fleet.waitFor(/ LOG process up: /);
  return fleet;
}

export function newFolder(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-echo-'));
  cleanUp(t, () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

type CleanUp = () => void | Promise<void>;
const cleanUps = new WeakMap<TestContext, CleanUp[]>();

/** Runs a step after the test, the last one that was asked for first. */
export function cleanUp(t: TestContext, step: CleanUp): void {
  const steps = cleanUps.get(t);
  if (steps !== undefined) {
    steps.push(step);
    return;
  }
  const first = [step];
  cleanUps.set(t, first);
  t.after(async () => {
    for (const next of first.reverse()) await next();
  });
}

/** Waits until `question` answers something other than undefined and false. */
export async function until<T>(
  question: () => T | undefined | false | Promise<T | undefined | false>,
  what: () => string,
): Promise<T> {
  const deadline = Date.now() + DEADLINE_MS;
  for (;;) {
    const answer = await question();
    if (answer !== undefined && answer !== false) return answer;
    if (Date.now() > deadline) throw new Error(`waited in vain for ${what()}`);
    await pause(10);
  }
}

export async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as net.AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** A connection to a fleet that asks and awaits one answer at a time. */
export class EchoClient {
  readonly socket: net.Socket;
  #received = '';

  constructor(to: net.NetConnectOpts) {
    this.socket = net.connect(to);
    this.socket.setEncoding('utf8');
    this.socket.on('data', (text: string) => {
      this.#received += text;
    });
    this.socket.on('error', () => this.socket.destroy());
  }

  async ask(line: string): Promise<string> {
    this.socket.write(`${line}\n`);
    return await until(
      () => {
        if (this.socket.destroyed) throw new Error('the connection was closed');
        const end = this.#received.indexOf('\n');
        if (end < 0) return undefined;
        const answer = this.#received.slice(0, end);
        this.#received = this.#received.slice(end + 1);
        return answer;
      },
      () => `the answer to ${line}`,
    );
  }

  /** Number and pid of the worker that serves it. */
  async who(): Promise<{ worker: number; pid: number }> {
    const [worker, pid] = (await this.ask('who')).split(' ').map(Number);
    return { worker: worker!, pid: pid! };
  }

  close(): void {
    this.socket.destroy();
  }
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  // A process that nobody has waited for yet is dead all the same.
  return !/^State:\s+Z/m.test(statusOf(pid));
}

function statusOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/status`, 'utf8');
  } catch {
    return 'State:\tZ';
  }
}

function pidsIn(lines: readonly string[]): number[] {
  const pids: number[] = [];
  for (const line of lines) {
    const found = / worker (\d+) (?:re)?started \(pid (\d+)/.exec(line);
    if (found !== null) pids[Number(found[1])] = Number(found[2]);
  }
  return pids;
}

function allPids(lines: readonly string[]): number[] {
  return lines
    .flatMap((line) => / worker \d+ (?:re)?started \(pid (\d+)/.exec(line)?.[1] ?? [])
    .map(Number);
}

/** Ends a worker that a test has left behind, unless its number is another program's by now. */
function killWorker(pid: number): void {
  try {
    if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('echo-worker')) {
      process.kill(pid, 'SIGKILL');
    }
  } catch {
    // It has ended meanwhile.
  }
}
