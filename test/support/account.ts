import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { chown } from 'node:fs/promises';

/** uid and gid that a server process is given; spread into the options of `spawn`. */
export interface Account {
  readonly uid: number;
  readonly gid: number;
}

/**
 * The account that PostgreSQL and the poolers run as when the caller is root, since both refuse to
 * run as root: `nobody`. Null for any other caller: servers then run as the caller.
 */
export const serverAccount: Account | null = process.getuid?.() === 0 ? nobody() : null;

/** Options of `spawn` that make the child run as the servers' account. */
export const asServer: Partial<Account> = serverAccount ?? {};

/** The name of the account that servers run as. */
export function serverAccountName(): string {
  const uid = serverAccount?.uid ?? process.getuid?.() ?? -1;
  return accountLines().find((fields) => fields[2] === String(uid))?.[0] ?? String(uid);
}

/** Gives a file or folder to the servers' account. */
export async function giveToServer(path: string): Promise<void> {
  if (serverAccount !== null) await chown(path, serverAccount.uid, serverAccount.gid);
}

/** True when the servers' account can read all of `paths`, folders on the way included. */
export function canServerRead(paths: readonly string[]): boolean {
  if (serverAccount === null) return true;
  const checks = paths.map((_, index) => `[ -r "$${index + 1}" ]`).join(' && ');
  const { status } = spawnSync('/bin/sh', ['-c', checks, 'sh', ...paths], {
    ...serverAccount,
    cwd: '/',
    stdio: 'ignore',
  });
  return status === 0;
}

function nobody(): Account {
  const fields = accountLines().find(([name]) => name === 'nobody');
  return { uid: Number(fields?.[2] ?? 65534), gid: Number(fields?.[3] ?? 65534) };
}

function accountLines(): string[][] {
  return readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'));
}
