import { once } from 'node:events';
import { createConnection, type Socket } from 'node:net';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import type { Certs } from './certs.ts';
import { sslRequest } from './messages.ts';
import { within } from './until.ts';
import { type Address, endpoint, type LoginOptions, WireClient } from './wire-client.ts';

/** How a client begins TLS: it asks with an SSLRequest, or begins with the handshake itself. */
export interface TlsOptions extends ConnectionOptions {
  readonly direct?: boolean;
}

/** A client whose connection is encrypted; `socket` of `client` is `socket`. */
export interface TlsClient {
  readonly client: WireClient;
  readonly socket: TLSSocket;
  /** The connection below. */
  readonly raw: Socket;
}

/** Connects and ends the handshake. Throws when the pooler refuses TLS, or Node's error of it. */
export async function connectTls(address: Address, options: TlsOptions = {}): Promise<TlsClient> {
  const { direct = false, ...rest } = options;
  const raw = await connectRaw(address);
  try {
    if (!direct) {
      const answer = await ask(raw, sslRequest());
      if (answer !== 'S') throw new Error(`SSLRequest was answered with ${answer}`);
    }
    const socket = connect({ rejectUnauthorized: false, ...rest, socket: raw });
    await within('TLS handshake', once(socket, 'secureConnect'));
    return { client: WireClient.over(socket), socket, raw };
  } catch (error) {
    raw.destroy();
    throw error;
  }
}

/** The same, and logs in. */
export async function loginTls(
  address: Address,
  options: TlsOptions = {},
  login: LoginOptions = {},
): Promise<TlsClient> {
  const secure = await connectTls(address, options);
  try {
    await secure.client.login(login);
  } catch (error) {
    secure.client.destroy();
    throw error;
  }
  return secure;
}

/** A TCP connection that says nothing yet. */
export async function connectRaw(address: Address): Promise<Socket> {
  const raw = createConnection(endpoint(address));
  // What becomes of the connection is seen by whoever reads it.
  raw.on('error', () => undefined);
  await within('connection', once(raw, 'connect'));
  raw.setNoDelay(true);
  return raw;
}

/** Sends bytes and returns what comes back first; `closed` when nothing does. */
export async function ask(raw: Socket, bytes: Uint8Array): Promise<string> {
  raw.write(bytes);
  const answer = await within(
    'answer',
    Promise.race([
      once(raw, 'readable').then(() => raw.read() as Buffer | null),
      once(raw, 'close').then(() => null),
    ]).catch(() => null),
  );
  return answer === null ? 'closed' : answer.toString('latin1');
}

/** Settings of a pooler that takes TLS clients. */
export function tlsSettings(certs: Certs, mode: string): Record<string, string> {
  return {
    client_tls_sslmode: mode,
    client_tls_key_file: certs.file('server.key'),
    client_tls_cert_file: certs.file('server.crt'),
    client_tls_ca_file: certs.file('ca.crt'),
  };
}
