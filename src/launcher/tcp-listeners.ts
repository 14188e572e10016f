import { lookup } from 'node:dns/promises';
import net from 'node:net';
import type { Settings } from '../config/schema.ts';
import { ConfigError } from '../errors.ts';
import { log } from '../log/logger.ts';
import { osErrorCode, osErrorText } from '../log/os-error.ts';
import { type BoundSocket, bindTcp, canBind } from './bind.ts';
import type { Listener } from './listener.ts';

/** libuv's number for an operating system without SO_REUSEPORT. */
const ENOTSUP = -95;
/** Texts and numbers of the C library for a failed lookup, by Node's code. */
const LOOKUP_ERRORS: Readonly<Record<string, string>> = {
  ENOTFOUND: 'Name or service not known [-2]',
  EAI_AGAIN: 'Temporary failure in name resolution [-3]',
};

export interface TcpAddress {
  readonly host: string;
  readonly family: 4 | 6;
}

type ListenSettings = Pick<Settings, 'listen_addr' | 'listen_port' | 'so_reuseport'>;

/** Items of `listen_addr`: blanks around them and empty ones do not count. */
export function listenItems(listenAddr: string): string[] {
  return listenAddr
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');
}

/** As the log and PgBouncer's error texts name a TCP address. */
export function tcpLabel({ host, family }: TcpAddress, port: number): string {
  return family === 6 ? `[${host}]:${port}` : `${host}:${port}`;
}

/**
 * Binds `size` sockets for every address of `listen_addr`. An address that cannot be bound is a
 * WARNING as long as another one can; ConfigError with PgBouncer's text otherwise.
 */
export async function bindTcpListeners(
  settings: ListenSettings,
  size: number,
): Promise<Listener[]> {
  const items = listenItems(settings.listen_addr);
  const addresses = (
    await Promise.all(items.map((item) => resolve(item, settings.listen_port)))
  ).flat();
  const listeners: Listener[] = [];
  const taken = new Set<string>();
  for (const address of addresses) {
    const label = tcpLabel(address, settings.listen_port);
    const bound = taken.has(label)
      ? 'bind(): Address already in use'
      : await bindAddress(address, settings, size);
    if (typeof bound === 'string') {
      log.warning(`cannot listen on ${label}: ${bound}`);
    } else {
      taken.add(label);
      listeners.push(tcpListener(address, settings.listen_port, bound));
    }
  }
  if (items.length > 0 && listeners.length === 0) {
    throw new ConfigError(
      `failed to listen on any address in listen_addr list: ${settings.listen_addr}`,
    );
  }
  return listeners;
}

async function resolve(item: string, port: number): Promise<TcpAddress[]> {
  if (item === '*') {
    return [
      { host: '0.0.0.0', family: 4 },
      { host: '::', family: 6 },
    ];
  }
  const family = net.isIP(item);
  if (family !== 0) return [{ host: item, family: family === 6 ? 6 : 4 }];
  try {
    const found = await lookup(item, { all: true, order: 'verbatim' });
    return found.map(({ address, family }) => ({ host: address, family: family === 6 ? 6 : 4 }));
  } catch (error) {
    const text = LOOKUP_ERRORS[osErrorCode(error)] ?? osErrorText(error);
    throw new ConfigError(`getaddrinfo('${item}', '${port}') = ${text}`, { cause: error });
  }
}

/** Sockets of one address, or the failed call and its error. */
async function bindAddress(
  { host, family }: TcpAddress,
  settings: ListenSettings,
  size: number,
): Promise<BoundSocket[] | string> {
  const port = settings.listen_port;
  if (!canBind) return await probe(host, port, settings.so_reuseport);
  if (!settings.so_reuseport) {
    // The workers' sockets share the port among themselves, which would let them share it with
    // a stranger that sets the option too; a socket without it cannot be bound beside a listener.
    const alone = bindTcp(host, family, port, false);
    if (typeof alone === 'number') return `bind(): ${osErrorText(alone)}`;
    alone.close();
  }
  const sockets: BoundSocket[] = [];
  while (sockets.length < size) {
    const socket = bindTcp(host, family, port, true);
    if (typeof socket !== 'number') {
      sockets.push(socket);
      continue;
    }
    for (const bound of sockets) bound.close();
    if (socket === ENOTSUP) throw new ConfigError('so_reuseport not supported on this platform');
    return `bind(): ${osErrorText(socket)}`;
  }
  return sockets;
}

/** Where sockets cannot be bound beforehand: whether a worker will be able to. */
async function probe(
  host: string,
  port: number,
  reusePort: boolean,
): Promise<BoundSocket[] | string> {
  const server = net.createServer();
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen({ host, port, ipv6Only: true, reusePort }, resolve);
    });
    return [];
  } catch (error) {
    return `bind(): ${osErrorText(error)}`;
  } finally {
    server.close();
  }
}

function tcpListener(address: TcpAddress, port: number, sockets: readonly BoundSocket[]): Listener {
  return {
    kind: 'tcp',
    label: tcpLabel(address, port),
    host: address.host,
    port,
    sockets,
    close() {
      for (const socket of sockets) socket.close();
    },
  };
}
