import { closeSync, fstatSync, readFileSync } from 'node:fs';
import type { Settings } from '../config/schema.ts';
import { defaultSettings } from '../config/schema.ts';
import { ConfigError } from '../errors.ts';
import { log } from '../log/logger.ts';
import { osErrorText } from '../log/os-error.ts';
import type { BoundSocket } from './bind.ts';
import type { Listener } from './listener.ts';

/** First descriptor that a service manager passes (sd_listen_fds(3)). */
const FIRST_FD = 3;

/**
 * Descriptors of sockets that systemd has bound for this process; none when they are another
 * process's. The variables are taken out of the environment, since they are for nobody else.
 */
export function passedDescriptors(environment: NodeJS.ProcessEnv, pid: number): number[] {
  // `parent`: an older Node was started with them and has started this one.
  const isOurs = ['parent', `${pid}`].includes(environment['LISTEN_PID'] ?? '');
  const count = Number(environment['LISTEN_FDS']);
  for (const name of ['LISTEN_PID', 'LISTEN_FDS', 'LISTEN_FDNAMES']) delete environment[name];
  if (!isOurs || !Number.isInteger(count) || count <= 0) return [];
  return Array.from({ length: count }, (_, i) => FIRST_FD + i);
}

/**
 * The listeners of a fleet whose sockets were passed in: all of them are used, each shared by all
 * workers, and the addresses of the configuration are not. Texts are PgBouncer's. Throws ConfigError
 * when one of them is no socket.
 */
export function passedListeners(
  descriptors: readonly number[],
  settings: Pick<Settings, 'listen_addr' | 'listen_port' | 'unix_socket_dir'>,
): Listener[] {
  if (descriptors.length === 0) return [];
  if (settings.listen_addr !== '') {
    log.warning('sockets passed from service manager, cf_listen_addr ignored');
  }
  if (settings.unix_socket_dir !== defaultSettings().unix_socket_dir) {
    log.warning('sockets passed from service manager, cf_unix_socket_dir ignored');
  }
  const unixInodes = inodesOfUnixSockets();
  return descriptors.map((fd) => {
    const kind = kindOf(fd, unixInodes);
    log.info(`socket passed from service manager (fd ${fd})`);
    return {
      kind,
      label: `fd ${fd}`,
      host: '',
      port: settings.listen_port,
      sockets: [socketOf(fd)],
      isPassed: true,
      close: () => closeSync(fd),
    };
  });
}

/** A descriptor that this process was started with. */
function socketOf(fd: number): BoundSocket {
  return { fd, close: () => closeSync(fd) };
}

function kindOf(fd: number, unixInodes: ReadonlySet<number>): 'tcp' | 'unix' {
  try {
    const found = fstatSync(fd);
    if (found.isSocket()) return unixInodes.has(found.ino) ? 'unix' : 'tcp';
  } catch (error) {
    log.error(`descriptor ${fd} passed from service manager: ${osErrorText(error)}`);
  }
  throw new ConfigError(`failed to set up socket passed from service manager (fd ${fd})`);
}

/** Inodes by which the kernel's list of Unix sockets (proc_net(5)) names them. */
function inodesOfUnixSockets(): ReadonlySet<number> {
  const lines = readFileSync('/proc/net/unix', 'utf8').split('\n').slice(1);
  return new Set(lines.map((line) => Number(line.trim().split(/\s+/)[6])));
}
