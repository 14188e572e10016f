import { closeSync, fstatSync, openSync, writeSync } from 'node:fs';
import { formatJson } from './json-line.ts';
import { LEVEL_NAMES, Level, levelOf, SEVERITIES } from './level.ts';
import { formatLine, formatMessage } from './line.ts';
import { osErrorCode, osErrorText } from './os-error.ts';
import { Syslog, type SyslogTarget } from './syslog.ts';

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
  /** Of stderr and the file; default: `text`. */
  readonly format?: LogFormat | undefined;
  /** Default: none. */
  readonly syslog?: SyslogTarget | null | undefined;
}

/** PgBouncer's lines, or one JSON object a line. */
type LogFormat = 'text' | 'json';

/** `journal`: stderr is systemd's journal, which wants a priority and has time and pid itself. */
type Encoding = LogFormat | 'journal';

interface Output {
  readonly descriptor: number;
  readonly encoding: Encoding;
  /** Lines that it has not taken since it last took one. */
  lost: number;
  reason: string;
  /** A line was cut off in its middle, so the next one must begin with a line break. */
  isTorn: boolean;
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
  /** The worker's number; null in the launcher. */
  worker: number | null = null;
  #outputs: Output[] = [newOutput(STDERR)];
  #logfile: { path: string; output: Output } | null = null;
  #syslog: Syslog | null = null;
  readonly #write: WriteBytes;

  constructor(write: WriteBytes = (descriptor, bytes, from) => writeSync(descriptor, bytes, from)) {
    this.#write = write;
  }

  /** Sets the open descriptors that lines go to. */
  setDescriptors(descriptors: readonly number[]): void {
    this.#outputs = descriptors.map((descriptor) => newOutput(descriptor));
  }

  /**
   * Sets all outputs and the level. The new file is opened before the old one is closed; when it
   * cannot be opened the error of `fs.openSync` is thrown and the outputs stay as they are.
   */
  configure({ stderr, logfile, verbose, format = 'text', syslog = null }: LogOutputs): void {
    const old = this.#logfile;
    const output = logfile === '' ? null : newOutput(append(logfile), format);
    this.#logfile = output === null ? null : { path: logfile, output };
    this.level = levelOf(verbose);
    const isPlain = format === 'text';
    this.#outputs = stderr ? [newOutput(STDERR, isPlain && isJournal() ? 'journal' : format)] : [];
    if (this.#logfile !== null) this.#outputs.push(this.#logfile.output);
    if (old !== null) closeSync(old.output.descriptor);
    this.#configureSyslog(syslog);
  }

  #configureSyslog(target: SyslogTarget | null): void {
    const old = this.#syslog;
    const isSame =
      old !== null &&
      !old.isMissing &&
      old.target.ident === target?.ident &&
      old.target.facility === target.facility;
    if (isSame) return;
    old?.close();
    this.#syslog =
      target === null ? null : new Syslog(target, (text) => this.#onSyslogFailed(text));
  }

  /** Once for the fleet, since all of its processes have the same machine to blame. */
  #onSyslogFailed(text: string): void {
    this.write(this.worker === null ? Level.WARNING : Level.DEBUG, text);
  }

  /**
   * Opens the log file's path anew, so that a file that was renamed is let go. When that fails the
   * old file stays in use and an ERROR line says why.
   */
  reopen(): void {
    const old = this.#logfile;
    if (old === null) return;
    try {
      const output = newOutput(append(old.path), old.output.encoding);
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
    for (const output of this.#outputs) {
      if (output.lost > 0 && this.#tell(output, this.#lostLine(now, output))) {
        output.lost = 0;
        output.isTorn = false;
      }
      if (!this.#tell(output, this.#encode(output.encoding, now, level, text))) {
        output.lost++;
        this.dropped++;
      }
    }
    this.#syslog?.write(level, formatMessage(text));
  }

  #encode(encoding: Encoding, at: Date, level: Level, text: string): Buffer {
    const { pid } = process;
    const name = LEVEL_NAMES[level]!;
    switch (encoding) {
      case 'json':
        return Buffer.from(formatJson({ at, level: name, pid, worker: this.worker }, text));
      case 'journal':
        return Buffer.from(`<${SEVERITIES[level]!}>${formatMessage(text)}\n`);
      default:
        return Buffer.from(formatLine(at, pid, name, text));
    }
  }

  #lostLine(now: Date, output: Output): Buffer {
    const text = `${output.lost} log lines lost: ${output.reason}`;
    const line = this.#encode(output.encoding, now, Level.WARNING, text);
    return output.isTorn ? Buffer.concat([Buffer.from('\n'), line]) : line;
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

function newOutput(descriptor: number, encoding: Encoding = 'text'): Output {
  return { descriptor, encoding, lost: 0, reason: '', isTorn: false };
}

function append(path: string): number {
  return openSync(path, 'a', 0o644);
}

/** Whether stderr is what systemd says the journal's socket is (systemd.exec, `JOURNAL_STREAM`). */
function isJournal(): boolean {
  const named = process.env['JOURNAL_STREAM'];
  if (named === undefined) return false;
  try {
    const { dev, ino } = fstatSync(STDERR);
    return named === `${dev}:${ino}`;
  } catch {
    // It is closed.
    return false;
  }
}
