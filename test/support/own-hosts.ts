import { spawnSync } from 'node:child_process';
import { asServer, serverAccount } from './account.ts';
import type { PoolerCommand } from './pooler.ts';

/**
 * A process that sees a file of the test's own as /etc/hosts. It runs in a mount namespace, for which
 * the account must be allowed to make a user namespace: inside of a first one it is root and mounts, in
 * a second one it is itself again, since servers refuse to run as root. All is done by `exec`, so that
 * the pid stays the one that was started.
 */

const { uid, gid } = serverAccount ?? {
  uid: process.getuid?.() ?? 0,
  gid: process.getgid?.() ?? 0,
};

const SCRIPT = `mount --bind "$1" /etc/hosts && shift &&
exec unshare --user --map-user=${uid} --map-group=${gid} "$@"`;

/** `command`, with `file` in place of /etc/hosts; what is written into the file later is seen too. */
export function withHosts(command: PoolerCommand, file: string): PoolerCommand {
  const inside = [file, command.program, ...command.args];
  const args = ['--user', '--map-root-user', '--mount', 'sh', '-c', SCRIPT, 'sh', ...inside];
  return { ...command, program: 'unshare', args };
}

/** Why `withHosts` cannot work here; null: it can. */
export function missingNamespaces(): string | null {
  const command = withHosts({ name: 'true', program: 'true', args: [] }, '/etc/hosts');
  const { status } = spawnSync(command.program, command.args, { ...asServer, stdio: 'ignore' });
  return status === 0 ? null : 'needs user and mount namespaces (unshare of util-linux)';
}
