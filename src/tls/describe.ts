import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { endPointHash } from './channel-binding.ts';

/** Longest description that PgBouncer shows. */
const MAX_BYTES = 95;

/**
 * What PgBouncer says of a TLS connection, in its log and in SHOW: version and cipher by OpenSSL's
 * names, and up to TLS 1.2 the key exchange of a connection that was made from here.
 */
export function describeTls(socket: TLSSocket): string {
  const version = socket.getProtocol() ?? 'TLS';
  const text = `${version}/${socket.getCipher().name}${keyExchange(socket, version)}`;
  return text.slice(0, MAX_BYTES);
}

function keyExchange(socket: TLSSocket, version: string): string {
  if (version === 'TLSv1.3') return '';
  const key = socket.getEphemeralKeyInfo();
  if (key === null || !('type' in key)) return '';
  return key.type === 'ECDH' ? `/ECDH=${key.name}` : `/DH=${key.size}`;
}

/**
 * Channel-binding data of a connection to a server: the hash of the certificate that it has shown.
 * Null: the connection is in clear text, or that certificate has no such hash.
 */
export function endPointOf(socket: Socket): Buffer | null {
  if (!(socket instanceof TLSSocket)) return null;
  const raw = socket.getPeerX509Certificate()?.raw;
  return raw === undefined ? null : endPointHash(raw);
}
