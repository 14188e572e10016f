import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { log } from '../log/logger.ts';

/** Set in the environment of the process that goes on in the background. */
const MARK = 'PGFLEET_IN_BACKGROUND';

/** What the background process tells the one that the operator started. */
type Report = { readonly kind: 'up' } | { readonly kind: 'fatal'; readonly text: string };

/** Whether this process is the one in the background. Its children are not told so. */
export function isInBackground(): boolean {
  const isMarked = process.env[MARK] === '1' && process.send !== undefined;
  delete process.env[MARK];
  return isMarked;
}

/**
 * Starts this program again without a terminal and waits until it is up or has given up, so that the
 * exit status tells which, and the reason is not lost with its stderr. Returns the exit status.
 */
export function runInBackground(args: readonly string[], mainUrl: string): Promise<number> {
  const child = spawn(process.execPath, [...process.execArgv, fileURLToPath(mainUrl), ...args], {
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    detached: true,
    env: { ...process.env, [MARK]: '1' },
  });
  return new Promise((resolve) => {
    child.on('message', (report: Report) => {
      if (report.kind === 'fatal') {
        log.fatal(report.text);
        return;
      }
      child.disconnect();
      child.unref();
      resolve(0);
    });
    child.on('error', (error) => {
      log.fatal(`fork failed: ${error.message}`);
      resolve(1);
    });
    child.on('close', (code) => resolve(code ?? 1));
  });
}

/** Tells the process in the foreground how it went, and lets go of it. */
export function reportToForeground(report: Report): void {
  if (!process.connected) return;
  process.send?.(report, () => {
    if (process.connected) process.disconnect();
  });
}
