import net from 'node:net';

/**
 * Sockets that are bound and not yet listening, to be inherited by workers.
 *
 * Node's public API binds and listens in one step, after which this process would accept the clients
 * itself. So the sockets are made by the function behind `net.Server`, which is private: this is the
 * only file that knows it, and `canBind` tells whether this Node has it. Without it workers bind for
 * themselves with `listen({ reusePort: true })`.
 */

/** libuv's flags of `uv_tcp_bind`. */
const UV_TCP_IPV6ONLY = 1;
const UV_TCP_REUSEPORT = 2;
/** What the private function takes as port and address type for a Unix socket. */
const UNIX = -1;

/** A bound socket. It stays bound, and keeps what the kernel has queued on it, until closed. */
export interface BoundSocket {
  readonly fd: number;
  close(): void;
}

interface Handle {
  readonly fd: number;
  close(): void;
  getsockname?(into: object): number;
}

type CreateServerHandle = (
  address: string,
  port: number,
  addressType: 4 | 6 | typeof UNIX,
  fd: null,
  flags?: number,
) => Handle | number;

const createServerHandle = (net as unknown as { _createServerHandle?: CreateServerHandle })
  ._createServerHandle;

export const canBind = typeof createServerHandle === 'function' && hasDescriptors();

/**
 * Binds a TCP socket. `isShared` sets SO_REUSEPORT; without it the call fails when another socket
 * listens on the port. IPv6 sockets never take IPv4. Returns a negative error number on failure.
 */
export function bindTcp(
  host: string,
  family: 4 | 6,
  port: number,
  isShared: boolean,
): BoundSocket | number {
  const flags = (family === 6 ? UV_TCP_IPV6ONLY : 0) | (isShared ? UV_TCP_REUSEPORT : 0);
  const handle = createServerHandle!(host, port, family, null, flags);
  if (typeof handle === 'number') return handle;
  // libuv keeps EADDRINUSE back until the next call on the socket.
  const error = handle.getsockname!({});
  if (error === 0) return handle;
  handle.close();
  return error;
}

/** Binds a Unix socket; a path that begins with NUL is abstract. Errors as for `bindTcp`. */
export function bindUnix(path: string): BoundSocket | number {
  return createServerHandle!(path, UNIX, UNIX, null);
}

/** Tries the private function once, because its arguments could change as well as its name. */
function hasDescriptors(): boolean {
  try {
    const handle = createServerHandle!('127.0.0.1', 0, 4, null, UV_TCP_REUSEPORT);
    if (typeof handle === 'number') return false;
    const isUsable = Number.isInteger(handle.fd) && handle.fd > 2 && handle.getsockname?.({}) === 0;
    handle.close();
    return isUsable;
  } catch {
    return false;
  }
}
