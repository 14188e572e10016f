import { X509Certificate } from 'node:crypto';
import { createSecureContext, type TLSSocketOptions } from 'node:tls';
import { clientTlsOptions } from '../config/client-tls.ts';
import type { Config } from '../config/config.ts';
import { endPointHash } from './channel-binding.ts';

/** What a client that negotiates a protocol by ALPN has to offer (PostgreSQL's name for its own). */
const PROTOCOL = 'postgresql';

/**
 * TLS towards clients: what each `client_tls_sslmode` means.
 *
 *   mode                    SSLRequest   without TLS   client certificate
 *   disable                 N            allowed       not asked for
 *   allow, prefer           S            allowed       checked if there is one
 *   require                 S            refused       checked if there is one
 *   verify-ca, verify-full  S            refused       required and checked
 *
 * On a Unix socket all are as `disable`. One object holds for all handshakes that begin while its
 * configuration is in force.
 */
export class ClientTls {
  /** TCP clients may use TLS. */
  readonly isOffered: boolean;
  /** TCP clients must use TLS. */
  readonly isRequired: boolean;
  /** How to accept a handshake; null: TLS is not offered. */
  readonly accepting: TLSSocketOptions | null;
  /** Channel binding data of our certificate; null: it has none, or TLS is not offered. */
  readonly endPoint: Buffer | null;

  /** @throws Error when OpenSSL cannot use what the configuration says */
  constructor({ settings, clientTls: files }: Pick<Config, 'settings' | 'clientTls'>) {
    const mode = settings.client_tls_sslmode;
    const isVerified = mode === 'verify-ca' || mode === 'verify-full';
    this.isOffered = mode !== 'disable' && files !== null;
    this.isRequired = isVerified || mode === 'require';
    this.accepting = null;
    this.endPoint = null;
    if (!this.isOffered || files === null) return;
    this.accepting = {
      isServer: true,
      secureContext: createSecureContext(clientTlsOptions(settings, files)),
      requestCert: true,
      // Fails the handshake without a certificate. One that is there is for `acceptTls` to judge.
      rejectUnauthorized: isVerified,
      ALPNProtocols: [PROTOCOL],
    };
    this.endPoint = endPointHash(new X509Certificate(files.cert).raw);
  }
}
