import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { ConfigError } from '../errors.ts';
import { log } from '../log/logger.ts';
import { osErrorCode, osErrorText } from '../log/os-error.ts';

/**
 * Makes sure that no living process is named by the pidfile and removes one that a dead process
 * left. Throws ConfigError with PgBouncer's text.
 */
export function checkPidfile(path: string): void {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if (osErrorCode(error) === 'ENOENT') return;
    throw new ConfigError(`could not open pidfile '${path}': ${osErrorText(error)}`);
  }
  const pid = /^\s*(\d+)/.exec(text)?.[1];
  if (pid === undefined || isAlive(Number(pid))) {
    throw new ConfigError(`pidfile '${path}' exists, another instance running?`);
  }
  log.info('stale pidfile, removing');
  try {
    rmSync(path);
  } catch (error) {
    throw new ConfigError(`could not remove stale pidfile: ${osErrorText(error)}`);
  }
}

/** Creates the pidfile. Throws ConfigError when it exists or cannot be written. */
export function writePidfile(path: string): void {
  try {
    writeFileSync(path, `${process.pid}\n`, { flag: 'wx', mode: 0o644 });
  } catch (error) {
    throw new ConfigError(`could not open pidfile '${path}': ${osErrorText(error)}`);
  }
}

/** Removes the pidfile unless it is another process's by now. */
export function removePidfile(path: string): void {
  try {
    if (readFileSync(path, 'utf8').trim() === String(process.pid)) rmSync(path);
  } catch (error) {
    if (osErrorCode(error) === 'ENOENT') return;
    log.warning(`could not remove pidfile '${path}': ${osErrorText(error)}`);
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return osErrorCode(error) === 'EPERM';
  }
}
