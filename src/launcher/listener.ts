import type { ListenerGrant } from '../ipc/messages.ts';
import type { BoundSocket } from './bind.ts';

/** An address that the fleet listens on and the sockets bound to it. */
export interface Listener {
  readonly kind: 'tcp' | 'unix';
  /** As the log names it: `127.0.0.1:6432`, `unix:/tmp/.s.PGSQL.6432`. */
  readonly label: string;
  /** Address, or path of the Unix socket. */
  readonly host: string;
  readonly port: number;
  /** One for each worker, or one that all share; none: workers bind for themselves. */
  readonly sockets: readonly BoundSocket[];
  /** A service manager has bound it: it is not ours to announce. */
  readonly isPassed?: boolean;
  /** Closes this process's copies and removes what was made in the file system. */
  close(): void;
}

/** What a worker inherits: descriptors in the order of `stdio`, and the grants that name them. */
export interface Inheritance {
  readonly descriptors: readonly number[];
  readonly grants: readonly ListenerGrant[];
}

/** Sockets for one worker; its descriptors are numbered from `firstFd` on. */
export function inheritanceOf(
  listeners: readonly Listener[],
  workerId: number,
  firstFd: number,
): Inheritance {
  const descriptors: number[] = [];
  const grants = listeners.map(({ kind, label, host, port, sockets }) => {
    if (sockets.length === 0) return { fd: null, kind, label, host, port };
    const fd = firstFd + descriptors.length;
    descriptors.push(sockets[workerId % sockets.length]!.fd);
    return { fd, kind, label, host, port };
  });
  return { descriptors, grants };
}
