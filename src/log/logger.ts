import { closeSync, openSync, writeSync } from 'node:fs';
import { formatLine } from './line.ts';
import { osErrorCode, osErrorText } from './os-error.ts';

/** PgBouncer's levels; `verbose` 0 shows up to LOG, 1 adds DEBUG, 2 adds NOISE. */
export const Level = { FATAL: 0, ERROR: 1, WARNING: 2, LOG: 3, DEBUG: 4, NOISE: 5 } as const;
export type Level = (typeof Level)[keyof typeof Level];
const NAMES = ['FATAL', 'ERROR', 'WARNING', 'LOG', 'DEBUG', 'NOISE'] as const;

/** How often, and after how many milliseconds, a line is offered again to a full pipe. */
const FULL_RETRIES = 20;
const FULL_PAUSE_MS = 1;
const STDERR = 2;

/** Writes bytes to a descriptor and returns how many were taken; throws like `fs.writeSync`. */
export type WriteBytes = (descriptor: number, bytes: Buffer, from: number) => number;

/** Where lines go and which. */
export interface LogOutputs {
  /** False under `-q` and `-d`. */
  readonly stderr: boolean;
  /** Path of the file to append to; empty for none. */
  readonly logfile: string;
  /** PgBouncer's `verbose`, 0 to 3. */
  readonly verbose: number;
}

interface Output {
  readonly descriptor: number;
  /** Lines that it has not taken since it last took one. */
  lost: number;
  reason: string;
  /** A line was cut off in its middle, so the next one must begin with a line break. */
  isTorn: boolean;
}

/** The most detailed level that a value of `verbose` (0 to 3) shows. */
export function levelOf(verbose: number): Level {
  if (verbose <= 0) return Level.LOG;
  return verbose === 1 ? Level.DEBUG : Level.NOISE;
}

/**
 * Writes PgBouncer's log lines, each whole and at once: a line is written before its effect can be
 * seen by a client. A line that cannot be written is counted and dropped, never an exception.
 */
export class Logger {
  /** The most detailed level that is written. */
  level: Level = Level.LOG;
  /** Lines that an output did not take, since the process began. */
  dropped = 0;
  #outputs: Output[] = [newOutput(STDERR)];
  #logfile: { path: string; output: Output } | null = null;
  readonly #write: WriteBytes;

  constructor(write: WriteBytes = (descriptor, bytes, from) => writeSync(descriptor, bytes, from)) {
    this.#write = write;
  }

  /** Sets the open descriptors that lines go to. */
  setDescriptors(descriptors: readonly number[]): void {
    this.#outputs = descriptors.map(newOutput);
  }

  /**
   * Sets all outputs and the level. The new file is opened before the old one is closed; when it
   * cannot be opened the error of `fs.openSync` is thrown and the outputs stay as they are.
   */
  configure({ stderr, logfile, verbose }: LogOutputs): void {
    const old = this.#logfile;
    const output = logfile === '' ? null : newOutput(append(logfile));
    this.#logfile = output === null ? null : { path: logfile, output };
    this.level = levelOf(verbose);
    this.#outputs = stderr ? [newOutput(STDERR)] : [];
    if (this.#logfile !== null) this.#outputs.push(this.#logfile.output);
    if (old !== null) closeSync(old.output.descriptor);
  }

  /**
   * Opens the log file's path anew, so that a file that was renamed is let go. When that fails the
   * old file stays in use and an ERROR line says why.
   */
  reopen(): void {
    const old = this.#logfile;
    if (old === null) return;
    try {
      const output = newOutput(append(old.path));
      this.#outputs = this.#outputs.map((entry) => (entry === old.output ? output : entry));
      this.#logfile = { path: old.path, output };
      closeSync(old.output.descriptor);
    } catch (error) {
      this.error(`Cannot open logfile: '${old.path}': ${osErrorText(error)}`);
    }
  }

  get isDebug(): boolean {
    return this.level >= Level.DEBUG;
  }

  fatal(text: string): void {
    this.write(Level.FATAL, text);
  }

  error(text: string): void {
    this.write(Level.ERROR, text);
  }

  warning(text: string): void {
    this.write(Level.WARNING, text);
  }

  /** PgBouncer's ordinary level, LOG. */
  info(text: string): void {
    this.write(Level.LOG, text);
  }

  debug(text: string): void {
    this.write(Level.DEBUG, text);
  }

  noise(text: string): void {
    this.write(Level.NOISE, text);
  }

  write(level: Level, text: string): void {
    if (level > this.level) return;
    const now = new Date();
    const line = Buffer.from(formatLine(now, process.pid, NAMES[level]!, text));
    for (const output of this.#outputs) {
      if (output.lost > 0 && this.#tell(output, lostLine(now, output))) {
        output.lost = 0;
        output.isTorn = false;
      }
      if (!this.#tell(output, line)) {
        output.lost++;
        this.dropped++;
      }
    }
  }

  /** Writes one whole line; false when it is lost, with the cause in `output.reason`. */
  #tell(output: Output, line: Buffer): boolean {
    let from = 0;
    let retriesLeft = output.lost > 0 ? 0 : FULL_RETRIES;
    while (from < line.length) {
      try {
        from += this.#write(output.descriptor, line, from);
      } catch (error) {
        if (osErrorCode(error) !== 'EAGAIN' || retriesLeft-- === 0) {
          output.reason = osErrorText(error);
          output.isTorn ||= from > 0;
          return false;
        }
        // The data path stands still meanwhile, which is why a pipe that was full is not waited for
        // again until it has taken a line.
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, FULL_PAUSE_MS);
      }
    }
    return true;
  }
}

/** The process's logger. */
export const log = new Logger();

function newOutput(descriptor: number): Output {
  return { descriptor, lost: 0, reason: '', isTorn: false };
}

function append(path: string): number {
  return openSync(path, 'a', 0o644);
}

function lostLine(now: Date, output: Output): Buffer {
  const text = `${output.lost} log lines lost: ${output.reason}`;
  const line = formatLine(now, process.pid, NAMES[Level.WARNING], text);
  return Buffer.from(output.isTorn ? `\n${line}` : line);
}
