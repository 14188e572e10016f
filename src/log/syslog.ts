import { type ChildProcess, spawn } from 'node:child_process';
import type { Socket } from 'node:net';
import { Level, SEVERITIES } from './level.ts';
import { osErrorCode } from './os-error.ts';

/*
 * Lines for syslog. Node cannot write to the Unix datagram socket that syslog listens on, so each
 * process has one long-lived `logger` (of util-linux, in Debian's bsdutils) and writes to its stdin:
 * one for each because the tag, `pgbouncer[4711]`, is given when it starts and names the process.
 *
 * A line is in the pipe when `write` returns, and nobody waits for more: one that does not fit is
 * counted and dropped. A `logger` that ends is started again after a pause that doubles.
 */

/** PgBouncer's `syslog_ident` and `syslog_facility`. */
export interface SyslogTarget {
  readonly ident: string;
  readonly facility: string;
}

/** RFC 5424, 6.2.1. A word that is none of these is `daemon`, as in PgBouncer. */
const FACILITIES: Readonly<Record<string, number>> = {
  user: 1,
  daemon: 3,
  auth: 4,
  authpriv: 10,
  local0: 16,
  local1: 17,
  local2: 18,
  local3: 19,
  local4: 20,
  local5: 21,
  local6: 22,
  local7: 23,
};
const PROGRAM = 'logger';
/** Room for PgBouncer's longest message and what `logger` puts before it. */
const MAX_LINE_BYTES = '4096';
/** What may wait for a `logger` that does not read. */
const MAX_QUEUED_BYTES = 256 * 1024;
const FIRST_PAUSE_MS = 1000;
const MAX_PAUSE_MS = 60_000;
/** One that ran so long was well. */
const HEALTHY_MS = 30_000;
const MAX_COMPLAINT_CHARS = 200;

/** One process's way to syslog. */
export class Syslog {
  readonly target: SyslogTarget;
  readonly #facility: number;
  readonly #onProblem: (text: string) => void;
  readonly #program: string;
  #child: ChildProcess | null = null;
  #isClosed = false;
  #lost = 0;
  #failures = 0;
  #restart: NodeJS.Timeout | undefined;
  /** There is no such program; only a reload tries again. */
  isMissing = false;

  /** @param onProblem told once when lines go nowhere, and again after it had worked meanwhile */
  constructor(target: SyslogTarget, onProblem: (text: string) => void, program: string = PROGRAM) {
    this.target = target;
    this.#facility = FACILITIES[target.facility.toLowerCase()] ?? FACILITIES['daemon']!;
    this.#onProblem = onProblem;
    this.#program = program;
    this.#start();
  }

  /** Pid of the `logger`; 0 when there is none. */
  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  /** @param message one line's text, without time and level, in PgBouncer's wording */
  write(level: Level, message: string): void {
    if (level > Level.LOG) return;
    const stdin = this.#child?.stdin;
    if (stdin === null || stdin === undefined || stdin.writableLength > MAX_QUEUED_BYTES) {
      this.#lost++;
      return;
    }
    if (this.#lost > 0) {
      stdin.write(
        this.#line(Level.WARNING, `${this.#lost} log lines lost: syslog did not take them`),
      );
      this.#lost = 0;
    }
    stdin.write(this.#line(level, message));
  }

  /** Ends the `logger` once it has read what was written. */
  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#restart);
    this.#child?.stdin?.end();
    this.#child = null;
  }

  #line(level: Level, message: string): string {
    // A line break would begin another message; syslog daemons write it like this.
    const text = message.replaceAll('\n', '#012');
    return `<${this.#facility * 8 + SEVERITIES[level]!}>${text}\n`;
  }

  #start(): void {
    const options = ['--prio-prefix', '--socket-errors=on', '--size', MAX_LINE_BYTES];
    const child = spawn(
      this.#program,
      [...options, `--id=${process.pid}`, '--tag', this.target.ident],
      // Of a session of its own, so that a terminal's Ctrl-C does not end it before the last lines.
      { stdio: ['pipe', 'ignore', 'pipe'], detached: true },
    );
    const startedAt = performance.now();
    this.#child = child;
    let complaint = '';
    child.stderr.on('data', (bytes: Buffer) => {
      complaint = `${complaint}${bytes}`.slice(0, MAX_COMPLAINT_CHARS);
    });
    // Its end tells more.
    child.stdin.on('error', () => {});
    child.stderr.on('error', () => {});
    child.once('error', (error) => {
      if (this.#child !== child) return;
      this.#child = null;
      this.isMissing = osErrorCode(error) === 'ENOENT';
      this.#onFailed(this.isMissing ? MISSING : `syslog: ${error.message}`, 0);
    });
    child.once('close', (code, signal) => {
      if (this.#child !== child) return;
      this.#child = null;
      const how = signal ?? `exit code ${code}`;
      const why = complaint.trim();
      const text = `syslog: ${PROGRAM} ended (${how})${why === '' ? '' : `: ${why}`}`;
      this.#onFailed(text, performance.now() - startedAt);
    });
    // None of it keeps this process alive.
    child.unref();
    (child.stdin as Socket).unref();
    (child.stderr as Socket).unref();
  }

  #onFailed(text: string, ranMs: number): void {
    if (this.#isClosed) return;
    if (ranMs >= HEALTHY_MS) this.#failures = 0;
    if (this.#failures++ === 0) this.#onProblem(text);
    if (this.isMissing) return;
    const pauseMs = Math.min(FIRST_PAUSE_MS * 2 ** (this.#failures - 1), MAX_PAUSE_MS);
    this.#restart = setTimeout(() => this.#start(), pauseMs);
    this.#restart.unref();
  }
}

const MISSING =
  `syslog is on, but there is no program ${PROGRAM} (util-linux, in Debian bsdutils): ` +
  'nothing is written to syslog';
