import type { ClientOrigin } from '../client/client-origin.ts';
import type { ClientSession } from '../client/client-session.ts';
import type { Handoff } from '../ipc/messages.ts';
import { log } from '../log/logger.ts';
import type { SocketOptions } from '../net/sockets.ts';
import { inTurn } from '../net/turn.ts';
import { Relay } from './relay.ts';
import type { SocketPairs } from './socket-pair.ts';

const UNREACHABLE = 'the worker that has a slot for this pool cannot be reached';

/** What travels with a client that has no TLS of its own any more. */
type OriginMessage = NonNullable<Handoff['client']>;

/** Sends a client's socket on its way; false: there is no way. */
export type SendHandoff = (message: Handoff, handle: object, onFailed: () => void) => boolean;

/**
 * Hands over a client whose TLS this worker has. A TLS connection cannot travel, so this worker keeps
 * it and the other one gets an end of a socket between the two.
 */
export function handOffTls(
  session: ClientSession,
  message: Handoff,
  pairs: SocketPairs,
  options: SocketOptions,
  send: SendHandoff,
): void {
  const relay = new Relay(session.link);
  session.release();
  const onFailed = (): void => inTurn(() => relay.refuse(UNREACHABLE));
  pairs.make(relay.farHandler, options).then(
    ({ near, far }) => {
      inTurn(() => relay.connect(near));
      if (!send(message, far, onFailed)) onFailed();
    },
    (error: Error) => {
      log.error(`a TLS client cannot be passed to worker ${message.target}: ${error.message}`);
      onFailed();
    },
  );
}

/** Where a client of this worker has come from, if that is not to be seen from its socket. */
export function originOf(session: ClientSession): ClientOrigin | null {
  const { origin, tls, address, port } = session;
  if (origin !== null || tls === null) return origin;
  const { localAddress = '', localPort = 0 } = session.link.socket;
  return { address, port, localAddress, localPort, tls };
}

export function originMessage(origin: ClientOrigin | null): OriginMessage | null {
  if (origin === null) return null;
  const { certificate, endPoint, ...tls } = origin.tls;
  return {
    ...origin,
    tls: {
      ...tls,
      certificate: certificate?.toString('base64') ?? null,
      endPoint: endPoint?.toString('base64') ?? null,
    },
  };
}

export function readOrigin(message: OriginMessage | null): ClientOrigin | null {
  if (message === null) return null;
  const bytes = (text: string | null): Buffer | null =>
    text === null ? null : Buffer.from(text, 'base64');
  const { certificate, endPoint, ...tls } = message.tls;
  return {
    ...message,
    tls: { ...tls, certificate: bytes(certificate), endPoint: bytes(endPoint) },
  };
}
