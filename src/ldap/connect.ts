import { connect, isIP, type LookupFunction, type Socket } from 'node:net';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import type { LdapServer } from '../config/ldap-options.ts';
import type { Trust } from './trust.ts';

/** A server gave no answer that counts: another one may be asked. */
export class NoAnswer extends Error {
  override readonly name = 'NoAnswer';
}

/** Finds the addresses of hosts that are names. */
export interface HostAddresses {
  readonly lookup: LookupFunction;
  /** Told of an address that could not be reached; true when the name has another one to try. */
  refused(name: string, address: string): boolean;
}

/** For how long a step may take, and what ends it before. */
export interface Patience {
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/** Opens a TCP connection. @throws NoAnswer when none of the host's addresses takes it */
export async function openSocket(
  { host, port }: LdapServer,
  hosts: HostAddresses,
  patience: Patience,
): Promise<Socket> {
  for (;;) {
    // The addresses of a name are tried one by one here.
    const socket = connect({ host, port, lookup: hosts.lookup, autoSelectFamily: false });
    socket.setNoDelay(true);
    let found: string | null = null;
    socket.once('lookup', (error, address) => {
      if (error === null) found = address;
    });
    try {
      await happens(socket, 'connect', patience);
      return socket;
    } catch (error) {
      const hasOther = found !== null && isIP(host) === 0 && hosts.refused(host, found);
      if (!hasOther || patience.signal.aborted) throw error;
    }
  }
}

/**
 * Puts TLS on a connection; the server must show a certificate for the host's name that the trusted
 * authorities have signed. @throws NoAnswer
 */
export async function secureSocket(
  socket: Socket,
  { host }: LdapServer,
  { ca, isChecked }: Trust,
  patience: Patience,
): Promise<Socket> {
  const options: ConnectionOptions = { socket, host, rejectUnauthorized: isChecked };
  if (ca !== undefined) options.ca = ca;
  if (!isChecked) options.checkServerIdentity = () => undefined;
  // The server name of the handshake may not be an address (RFC 6066, section 3).
  if (isIP(host) === 0) options.servername = host;
  const secure = connectTls(options);
  secure.once('close', () => socket.destroy());
  await happens(secure, 'secureConnect', patience);
  return secure;
}

/** Waits for `event`; a socket on which it does not happen is destroyed. */
async function happens(
  socket: Socket,
  event: 'connect' | 'secureConnect',
  { timeoutMs, signal }: Patience,
): Promise<void> {
  let settle: (error: Error | null) => void = () => undefined;
  const settled = new Promise<Error | null>((resolve) => {
    settle = resolve;
  });
  const onEvent = (): void => settle(null);
  const onError = (error: Error): void => settle(error);
  const onClose = (): void => settle(new Error('the server closed the connection'));
  const onAbort = (): void => settle(new Error('the client has left'));
  const timer = setTimeout(() => settle(new Error('timeout')), timeoutMs);
  socket.once(event, onEvent).on('error', onError).once('close', onClose);
  signal.addEventListener('abort', onAbort, { once: true });
  if (signal.aborted) onAbort();
  const error = await settled;
  clearTimeout(timer);
  signal.removeEventListener('abort', onAbort);
  // `onError` stays: an error that nobody listens for would end the process.
  socket.off(event, onEvent).off('close', onClose);
  if (error === null) return;
  socket.destroy();
  throw new NoAnswer(error.message, { cause: error });
}
