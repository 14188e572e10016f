import { TLSSocket, type TLSSocketOptions } from 'node:tls';
import type { Link } from './link.ts';

/** What became of a handshake with a client. */
export interface AcceptEvents {
  /** The peer's certificate is checked. From now on the link reads and writes through TLS. */
  onSecure(socket: TLSSocket, certificate: Buffer | null): void;
  /**
   * The handshake is over, and its end is a certificate that does not hold: `problem` is Node's name
   * for why. The link is secure, so that the peer can be told; nothing is read from it.
   */
  onBadCertificate(problem: string): void;
  /** The handshake failed, with OpenSSL's error; the socket closes by itself. */
  onFailed(error: Error): void;
  /** A secure connection broke with an error of TLS; the socket closes by itself. */
  onBroken(error: Error): void;
}

/** Says which check a peer's certificate did not pass; a private method of Node's. */
interface WithVerifyError {
  verifyError?(): { readonly code?: string } | null | undefined;
}

/**
 * Puts TLS, as its server, on an accepted link. While the handshake lasts nothing can be written to
 * the link, and closing it closes the socket at once; its handler is told of the end as usual. A TLS
 * socket has no `onread`, so the link goes on through `data` events.
 * @param first what was read of the handshake already
 */
export function acceptTls(
  link: Link,
  options: TLSSocketOptions,
  first: Buffer | null,
  events: AcceptEvents,
): void {
  // What was written goes in clear text, before anything of the handshake.
  link.flush();
  const plain = link.socket;
  plain.pause();
  plain.removeAllListeners('data');
  // Node feeds to TLS what a socket has read and not given out.
  if (first !== null) plain.unshift(first);
  const secure = new TLSSocket(plain, options);
  link.beginTls(secure);
  let isSecure = false;
  secure.on('error', (error) => {
    if (!isSecure && isOfOpenssl(error)) events.onFailed(error);
  });
  // Node's own server turns these into errors of the socket once it has let go of it; for a socket
  // without such a server they are told by this event only, and the socket would stay open.
  secure.on('_tlsError', (error: Error) => {
    if (!isSecure || secure.destroyed) return;
    events.onBroken(error);
    secure.destroy(error);
  });
  secure.once('secure', () => {
    isSecure = true;
    link.endTls();
    const certificate = secure.getPeerX509Certificate()?.raw ?? null;
    const problem = certificate === null ? null : certificateProblem(secure);
    if (problem !== null) {
      events.onBadCertificate(problem);
      return;
    }
    secure.on('data', (bytes: Buffer) => link.read(bytes.length, bytes));
    events.onSecure(secure, certificate);
  });
}

function isOfOpenssl(error: Error): boolean {
  return /\berror:[0-9A-F]{8}:/.test(error.message);
}

/** Null when the certificate holds. Where Node does not say, none does. */
function certificateProblem(secure: TLSSocket): string | null {
  const { ssl } = secure as unknown as { ssl: WithVerifyError | null };
  if (ssl === null || typeof ssl.verifyError !== 'function') return 'UNKNOWN';
  const error = ssl.verifyError();
  return error === null || error === undefined ? null : (error.code ?? 'UNKNOWN');
}
