/** What went wrong in TLS, in the words of PgBouncer's log. */

/** OpenSSL's text, of which Node shows more: thread, function, source file and line. */
const OPENSSL = /error:([0-9A-F]{8}):([^:]*):[^:]*:([^:\n]*)/;

/** What makes Node refuse a certificate itself, after OpenSSL's handshake. */
const VERIFY_FAILED = 'error:0A000086:SSL routines::certificate verify failed';

/** Reading or writing broke because of TLS, not of the connection under it. */
export function isTlsError(error: Error | null): error is Error {
  return error !== null && OPENSSL.test(error.message);
}

/** `error:0A00010B:SSL routines::wrong version number`; other errors keep their own text. */
export function opensslText(error: Error): string {
  const found = OPENSSL.exec(error.message);
  return found === null ? error.message : `error:${found[1]}:${found[2]}::${found[3]}`;
}

/**
 * What stands behind `TLS handshake error: `. Where PgBouncer says no more than that a certificate is
 * not good, the reason follows.
 * @param error what the socket broke with; null: the other side has closed
 */
export function handshakeErrorText(error: Error | null): string {
  if (error === null || isEarlyEnd(error)) return 'handshake failed: unexpected EOF';
  if (error instanceof ServerNameError) return error.message;
  if (OPENSSL.test(error.message)) return `handshake failed: ${opensslText(error)}`;
  // Node's name for a result of X509_verify_cert, `DEPTH_ZERO_SELF_SIGNED_CERT`.
  const isVerdict = 'code' in error && !('syscall' in error);
  return `handshake failed: ${isVerdict ? `${VERIFY_FAILED} (${error.message})` : error.message}`;
}

/** Node's error for a peer that closes in the middle of the handshake. */
function isEarlyEnd(error: Error): boolean {
  return 'code' in error && error.code === 'ECONNRESET' && !('syscall' in error);
}

/** The certificate is for other names. */
export class ServerNameError extends Error {
  constructor(host: string) {
    super(`name \`${host}' not present in server certificate`);
    this.name = 'ServerNameError';
  }
}
