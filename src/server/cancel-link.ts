import { log } from '../log/logger.ts';
import type { Link, LinkHandler } from '../net/link.ts';
import { connectLink } from '../net/sockets.ts';
import type { ServerConnection } from './server-connection.ts';
import type { OpenerOptions } from './server-opener.ts';
import { TlsHandshake } from './tls-handshake.ts';

/**
 * Connects to where `server` is connected to, for its cancel requests: by TLS, checked by the same
 * rules, if that connection is. PgBouncer sends the key in clear text.
 * @param onSafe the link may be written to
 */
export function connectLike(
  server: Pick<ServerConnection, 'place' | 'host' | 'tls'>,
  { sockets, tls, hosts }: Pick<OpenerOptions, 'sockets' | 'tls' | 'hosts'>,
  handler: LinkHandler,
  onSafe: () => void,
): Link {
  const onConnect = (): void => {
    if (server.tls === '' || server.host === null) {
      onSafe();
      return;
    }
    new TlsHandshake(link, tls, server.host, {
      isWanted: () => !link.isClosed,
      onSafe,
      onUnsafe: (reason) => {
        log.warning(`cancel request could not be sent: ${reason}`);
        link.destroy();
      },
    });
  };
  const link = connectLink(server.place, handler, sockets, onConnect, hosts.lookup);
  return link;
}
