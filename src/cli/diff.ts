import { realpathSync } from 'node:fs';
import type { Config } from '../config/config.ts';
import { loadConfig } from '../config/load.ts';
import { findUser } from '../launcher/accounts.ts';
import { askChanges, type Changes } from '../launcher/inquiries.ts';
import { launcherSockets } from '../launcher/runtime-dir.ts';
import { osErrorCode, osErrorText } from '../log/os-error.ts';
import { type Output, runCheck } from './check.ts';

/** What connecting fails with where nobody listens. */
const NOBODY: ReadonlySet<string> = new Set(['ENOENT', 'ECONNREFUSED']);

/**
 * `pgfleet check --diff FILE`: asks the fleet that runs with the file what a reload would change now,
 * and prints a line for each. Returns the exit status: 0 when the fleet would take the file, else 1.
 */
export async function runDiff(file: string, out: Output): Promise<number> {
  const { config } = loadConfig(file);
  // The fleet would say the same of it.
  if (config === null) return runCheck(file, out);
  const sockets = socketsOf(config);
  for (const socket of sockets) {
    try {
      return report(await askChanges(socket), out);
    } catch (error) {
      if (NOBODY.has(osErrorCode(error))) continue;
      out.write(`the fleet at ${socket} cannot be asked: ${osErrorText(error)}\n`);
      return 1;
    }
  }
  out.write(`no fleet runs with ${file}: nobody listens on ${sockets.join(' or ')}\n`);
  return 1;
}

/** Where the launcher of a fleet with this configuration listens. */
function socketsOf({ file, fleet, settings }: Config): string[] {
  const account = settings.user === null ? null : findUser(settings.user);
  const uids = [process.getuid!(), ...(account === null ? [] : [account])];
  return launcherSockets(fleet.runtime_dir, realpathSync(file), uids);
}

function report({ changes, problems }: Changes, out: Output): number {
  for (const problem of problems) out.write(`${problem}\n`);
  if (changes === null) return 1;
  for (const line of changes) out.write(`${line}\n`);
  if (changes.length === 0) out.write('a reload would change nothing\n');
  return 0;
}
