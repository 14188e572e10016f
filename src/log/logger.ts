import { writeSync } from 'node:fs';
import { formatLine } from './line.ts';

/** PgBouncer's levels; `verbose` 0 shows up to LOG, 1 adds DEBUG, 2 adds NOISE. */
export const Level = { FATAL: 0, ERROR: 1, WARNING: 2, LOG: 3, DEBUG: 4, NOISE: 5 } as const;
export type Level = (typeof Level)[keyof typeof Level];
const NAMES = ['FATAL', 'ERROR', 'WARNING', 'LOG', 'DEBUG', 'NOISE'] as const;

/** Longest message, in bytes, that PgBouncer writes; the rest is cut. */
const MAX_MESSAGE_BYTES = 2047;

/**
 * Writes PgBouncer's log lines, each whole and at once: a line is written before its effect can be
 * seen by a client. A line that cannot be written is counted and dropped, never an exception.
 */
export class Logger {
  /** The most detailed level that is written. */
  level: Level = Level.LOG;
  /** Lines that no output took. */
  dropped = 0;
  #descriptors: number[] = [2];

  /** Sets the open descriptors that lines go to. */
  setDescriptors(descriptors: readonly number[]): void {
    this.#descriptors = [...descriptors];
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

  write(level: Level, text: string): void {
    if (level > this.level) return;
    const line = formatLine(new Date(), process.pid, NAMES[level]!, cut(text));
    for (const descriptor of this.#descriptors) {
      try {
        writeSync(descriptor, line);
      } catch {
        this.dropped++;
      }
    }
  }
}

/** The process's logger. */
export const log = new Logger();

function cut(text: string): string {
  if (text.length * 3 <= MAX_MESSAGE_BYTES) return text;
  const bytes = Buffer.from(text);
  return bytes.length <= MAX_MESSAGE_BYTES ? text : bytes.toString('utf8', 0, MAX_MESSAGE_BYTES);
}
