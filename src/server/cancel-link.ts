import { log } from '../log/logger.ts';
import type { Link, LinkHandler } from '../net/link.ts';
import { connectLink } from '../net/sockets.ts';
import { placeAt, type SocketPlace } from './place.ts';
import type { ServerConnection } from './server-connection.ts';
import type { OpenerOptions } from './server-opener.ts';
import { type TlsChoice, TlsHandshake } from './tls-handshake.ts';

/** What links for cancel requests are made with: the same as server connections. */
export type CancelLinkOptions = Pick<OpenerOptions, 'sockets' | 'tls' | 'hosts'>;

/** Where a server connection leads, and the name that its certificate was checked for. */
export interface ServerPlace {
  readonly place: SocketPlace;
  /** As the configuration names the host; null: the connection is not encrypted. */
  readonly tlsHost: string | null;
}

/** Where `server` is connected to, for links like its own. */
export function placeOf(server: Pick<ServerConnection, 'place' | 'host' | 'tls'>): ServerPlace {
  return { place: server.place, tlsHost: server.tls === '' ? null : server.host };
}

/**
 * Connects to where a server connection leads, for its cancel requests: by TLS, checked by the same
 * rules, if that connection is. PgBouncer sends the key in clear text.
 * @param onSafe the link may be written to
 */
export function connectLike(
  { place, tlsHost }: ServerPlace,
  options: CancelLinkOptions,
  handler: LinkHandler,
  onSafe: () => void,
): Link {
  const { tls } = options;
  // A server that has had TLS has it still: whoever says no to it is another.
  const choice: TlsChoice | null =
    tlsHost === null
      ? null
      : { isOptional: false, isDirect: tls.isDirect, options: (name) => tls.options(name) };
  return connectSafely(place, tlsHost ?? '', choice, options, handler, onSafe);
}

/**
 * Connects to a host of `[peers]`: over TCP as `server_tls_sslmode` says for servers. TLS is always
 * asked for by SSLRequest, since a peer may know nothing of direct TLS.
 * @param onSafe the link may be written to
 */
export function connectPeer(
  { host, port }: { readonly host: string; readonly port: number },
  options: CancelLinkOptions,
  handler: LinkHandler,
  onSafe: () => void,
): Link {
  const { tls } = options;
  const place = placeAt(host, port);
  const choice: TlsChoice | null =
    tls.isAsked && 'host' in place
      ? { isOptional: tls.isOptional, isDirect: false, options: (name) => tls.options(name) }
      : null;
  return connectSafely(place, host, choice, options, handler, onSafe);
}

function connectSafely(
  place: SocketPlace,
  host: string,
  tls: TlsChoice | null,
  { sockets, hosts }: Pick<CancelLinkOptions, 'sockets' | 'hosts'>,
  handler: LinkHandler,
  onSafe: () => void,
): Link {
  const onConnect = (): void => {
    if (tls === null) {
      onSafe();
      return;
    }
    new TlsHandshake(link, tls, host, {
      isWanted: () => !link.isClosed,
      onSafe,
      onUnsafe: (reason) => {
        log.warning(`cancel request could not be sent: ${reason}`);
        link.destroy();
      },
    });
  };
  const link = connectLink(place, handler, sockets, onConnect, hosts.lookup);
  return link;
}
