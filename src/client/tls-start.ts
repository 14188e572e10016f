import type { TLSSocket } from 'node:tls';
import type { TlsFacts } from '../auth/client-connection.ts';
import { log } from '../log/logger.ts';
import { acceptTls } from '../net/accept-tls.ts';
import type { ClientTls } from '../tls/client-tls.ts';
import { opensslText } from '../util/openssl-error.ts';
import type { ClientSession } from './client-session.ts';

/** First byte of a TLS handshake record (RFC 8446, section 5.1). */
export const HANDSHAKE_RECORD = 0x16;

/** An alert record, fatal, `handshake_failure` (RFC 8446, section 6.2). */
const HANDSHAKE_FAILURE = Buffer.from([0x15, 3, 1, 0, 2, 2, 40]);

/** Errors that OpenSSL would have for what is judged here. */
const VERIFY_FAILED = 'error:0A000086:SSL routines::certificate verify failed';

/**
 * Begins the TLS handshake on a session's link, with PgBouncer's log lines. The login goes on when
 * the client's StartupMessage has come through TLS.
 * @param first what has been read of the handshake
 */
export function startTls(session: ClientSession, tls: ClientTls, first: Buffer | null): void {
  acceptTls(session.link, tls.accepting!, first, {
    onSecure: (socket, certificate) => {
      session.tls = factsOf(socket, certificate, tls.endPoint);
    },
    // PgBouncer ends such a handshake with an alert, for which Node has no way: the client is told
    // in words, through the connection that nobody reads any more.
    onBadCertificate: (problem) => {
      const reason = problem.toLowerCase().replaceAll('_', ' ');
      log.warning(`TLS handshake error: handshake failed: ${VERIFY_FAILED} (${reason})`);
      session.refuse('08P01', `certificate verify failed: ${reason}`);
    },
    onFailed: (error) => {
      log.warning(`TLS handshake error: handshake failed: ${opensslText(error)}`);
      session.vanish();
    },
    onBroken: (error) => {
      if ('library' in error) log.warning(`tls_sbufio_recv: ${opensslText(error)}`);
    },
  });
}

/** Ends a client that begins TLS where there is none; PgBouncer lets it wait for `client_login_timeout`. */
export function refuseTls(session: ClientSession): void {
  session.link.write(HANDSHAKE_FAILURE);
  session.close('direct TLS connection, but TLS is not enabled here');
}

/** As PgBouncer's log and SHOW CLIENTS have it, without the curve, which Node does not tell a server. */
export function tlsText({ version, cipher }: TlsFacts): string {
  return `${version}/${cipher}`;
}

function factsOf(socket: TLSSocket, certificate: Buffer | null, endPoint: Buffer | null): TlsFacts {
  return {
    version: socket.getProtocol() ?? 'TLS',
    cipher: socket.getCipher().name,
    certificate,
    endPoint,
  };
}
