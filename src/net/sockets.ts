import { connect, type LookupFunction, type NetConnectOpts, Socket } from 'node:net';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import { Link, type LinkHandler, readBuffer } from './link.ts';

/**
 * Makes links out of sockets. An outgoing socket takes `onread` officially. An accepted one cannot
 * be given it by `net.Server`, so its handle is taken out and wrapped in a new socket; the handle is
 * a private field of Node's, which only this file touches. Where it is missing the link reads
 * through `data` events, slower but the same.
 */

interface WithHandle {
  _handle: unknown;
}

/**
 * TCP options of every socket, both sides (PgBouncer's `tcp_keepalive`, `tcp_keepidle`). Node sets no
 * others. With an idle time libuv also has the kernel probe each second and give up after ten probes.
 */
export interface SocketOptions {
  readonly keepAlive: boolean;
  /** Seconds before the first probe; 0: the system's. */
  readonly keepAliveIdle: number;
}

/** The raw handle of a socket, or null where this Node does not show it. */
export function handleOf(socket: Socket): object | null {
  const handle = (socket as unknown as WithHandle)._handle;
  return typeof handle === 'object' && handle !== null ? handle : null;
}

/** The descriptor's number in this process; 0 when the socket has none now. */
export function descriptorOf(socket: Socket): number {
  const handle = handleOf(socket) as { readonly fd?: number } | null;
  return Math.max(handle?.fd ?? 0, 0);
}

/**
 * Takes the raw handle out of a socket that was accepted with `pauseOnConnect`: the socket is of no
 * use any more. Null where this Node does not show it.
 */
export function takeHandle(socket: Socket): object | null {
  const handle = handleOf(socket);
  if (handle !== null) (socket as unknown as WithHandle)._handle = null;
  return handle;
}

/**
 * Takes the raw handle of a socket that was accepted with `pauseOnConnect` or received from another
 * process, and makes a link that reads into the shared buffer.
 */
export function acceptLink(socket: Socket, handler: LinkHandler, options: SocketOptions): Link {
  const handle = takeHandle(socket);
  if (handle === null) {
    const link = new Link(socket, handler);
    socket.on('data', (bytes) => link.read(bytes.length, bytes));
    tune(socket, options);
    socket.resume();
    return link;
  }
  return wrapHandle(handle, handler, options);
}

/** A link over a raw handle. */
export function wrapHandle(handle: object, handler: LinkHandler, options: SocketOptions): Link {
  let link: Link | null = null;
  const onread = {
    buffer: readBuffer,
    callback: (size: number, bytes: Uint8Array) => link?.read(size, bytes as Buffer) ?? true,
  };
  const socket = new Socket({
    handle,
    onread,
    allowHalfOpen: true,
  } as unknown as ConstructorParameters<typeof Socket>[0]);
  tune(socket, options);
  link = new Link(socket, handler);
  socket.resume();
  return link;
}

/**
 * Connects to a server; `handler.onClose` tells of failure, `onConnect` of success.
 * @param lookup finds the address of a host that is a name; default: the system's resolver
 */
export function connectLink(
  where: { host: string; port: number } | { path: string },
  handler: LinkHandler,
  options: SocketOptions,
  onConnect: () => void,
  lookup?: LookupFunction,
): Link {
  let link: Link | null = null;
  const socket = connect({
    ...where,
    lookup,
    allowHalfOpen: true,
    noDelay: true,
    keepAlive: options.keepAlive,
    keepAliveInitialDelay: options.keepAliveIdle * 1000,
    autoSelectFamily: false,
    onread: {
      buffer: readBuffer,
      callback: (size: number, bytes: Uint8Array) => link?.read(size, bytes as Buffer) ?? true,
    },
  } as NetConnectOpts);
  link = new Link(socket, handler);
  socket.once('connect', onConnect);
  return link;
}

function tune(socket: Socket, options: SocketOptions): void {
  socket.setNoDelay(true);
  if (options.keepAlive) socket.setKeepAlive(true, options.keepAliveIdle * 1000);
}

/**
 * Puts TLS, as its client, on a connected link: what the peer sends from now on is the handshake.
 * A TLS socket has no `onread`, so the link goes on through `data` events.
 */
export function secureLink(link: Link, options: ConnectionOptions, onSecure: () => void): void {
  const plain = link.socket;
  plain.removeAllListeners('end');
  plain.removeAllListeners('close');
  const secure = connectTls({ ...options, socket: plain });
  link.replaceSocket(secure);
  secure.on('data', (bytes: Buffer) => link.read(bytes.length, bytes));
  secure.once('secureConnect', onSecure);
}
