import { chmodSync, chownSync, existsSync, lstatSync, rmSync } from 'node:fs';
import net from 'node:net';
import type { Settings } from '../config/schema.ts';
import { ConfigError } from '../errors.ts';
import { log } from '../log/logger.ts';
import { osErrorCode, osErrorText } from '../log/os-error.ts';
import { findGroup } from './accounts.ts';
import { bindUnix, canBind } from './bind.ts';
import type { Listener } from './listener.ts';

type UnixSettings = Pick<
  Settings,
  'unix_socket_dir' | 'unix_socket_mode' | 'unix_socket_group' | 'listen_port'
>;

export interface UnixAddress {
  /** What `bind` takes: a path, or NUL and a name of the abstract namespace. */
  readonly path: string;
  readonly isAbstract: boolean;
  readonly label: string;
}

/** The fleet's Unix socket; null when `unix_socket_dir` is empty. A leading `@` makes it abstract. */
export function unixAddress(dir: string, port: number): UnixAddress | null {
  if (dir === '') return null;
  const name = `${dir}/.s.PGSQL.${port}`;
  const isAbstract = name.startsWith('@');
  return { path: isAbstract ? `\0${name.slice(1)}` : name, isAbstract, label: `unix:${name}` };
}

/** Whether a process listens on a Unix socket. A queue that is full is a listener's too. */
export function hasListener(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect(path);
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', (error) => resolve(osErrorCode(error) === 'EAGAIN'));
  });
}

/** Throws ConfigError, in PgBouncer's words, when another process has the socket or its lock. */
export async function checkUnixSocket(settings: UnixSettings): Promise<void> {
  const address = unixAddress(settings.unix_socket_dir, settings.listen_port);
  if (address === null) return;
  if (await hasListener(address.path)) {
    throw new ConfigError('unix socket is in use, cannot continue');
  }
  if (!address.isAbstract && existsSync(`${address.path}.lock`)) {
    throw new ConfigError(`unix port ${settings.listen_port} is in use`);
  }
}

/**
 * Binds the one socket that all workers share, in place of a file that a dead process left behind,
 * and gives it mode and group. Null when `unix_socket_dir` is empty.
 */
export function bindUnixListener(settings: UnixSettings): Listener | null {
  const address = unixAddress(settings.unix_socket_dir, settings.listen_port);
  if (address === null) return null;
  if (!canBind) {
    log.warning(
      `cannot listen on ${address.label}: this version of Node cannot pass it to workers`,
    );
    throw new ConfigError('failed to create unix socket');
  }
  const { path, isAbstract, label } = address;
  if (!isAbstract && isSocket(path)) rmSync(path);
  // Nobody may connect before the file has its mode and group.
  const mask = process.umask(0o777);
  const socket = bindUnix(path);
  process.umask(mask);
  if (typeof socket === 'number') {
    log.warning(`cannot listen on ${label}: bind(): ${osErrorText(socket)}`);
    throw new ConfigError('failed to create unix socket');
  }
  const inode = isAbstract ? null : lstatSync(path).ino;
  const listener: Listener = {
    kind: 'unix',
    label,
    host: path,
    port: settings.listen_port,
    sockets: [socket],
    close() {
      socket.close();
      // By then the name may belong to a successor.
      if (inode !== null && isSocket(path) && lstatSync(path).ino === inode) rmSync(path);
    },
  };
  try {
    if (!isAbstract) setAccess(path, settings);
  } catch (error) {
    listener.close();
    throw error;
  }
  return listener;
}

function setAccess(
  path: string,
  { unix_socket_group: group, unix_socket_mode: mode }: UnixSettings,
) {
  if (group !== '') {
    const gid = findGroup(group);
    if (gid === null) throw new ConfigError(`could not find group '${group}': no such group`);
    try {
      chownSync(path, -1, gid);
    } catch (error) {
      throw new ConfigError(`chown(${path}, -1, ${gid}) failed: ${osErrorText(error)}`);
    }
  }
  try {
    chmodSync(path, mode);
  } catch (error) {
    throw new ConfigError(`failure to chmod(${path}, 0${mode.toString(8)}): ${osErrorText(error)}`);
  }
}

function isSocket(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSocket() ?? false;
}
