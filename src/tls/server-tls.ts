import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { type ConnectionOptions, createSecureContext } from 'node:tls';
import type { Settings } from '../config/schema.ts';
import { cipherList, protocolOptions } from '../config/tls-values.ts';
import { osErrorText } from '../log/os-error.ts';

/**
 * TLS towards servers: what each `server_tls_sslmode` means. `allow` equals `prefer`, as in
 * PgBouncer; the certificate is checked from `verify-ca` on, the host name for `verify-full` only.
 * The files are read once, when the configuration takes effect.
 */
export class ServerTls {
  /** True when an SSLRequest is sent to a TCP server. */
  readonly isAsked: boolean;
  /** True when a server that answers `N` may be used in clear text. */
  readonly isOptional: boolean;
  readonly #checksName: boolean;
  readonly #base: ConnectionOptions;

  /** @throws an error that names setting and file when one cannot be read */
  constructor(settings: Settings) {
    const mode = settings.server_tls_sslmode;
    this.isAsked = mode !== 'disable';
    this.isOptional = mode === 'allow' || mode === 'prefer';
    this.#checksName = mode === 'verify-full';
    const base: ConnectionOptions = {
      ...protocolOptions(settings.server_tls_protocols),
      rejectUnauthorized: mode === 'verify-ca' || mode === 'verify-full',
    };
    const ciphers = cipherList(settings.server_tls_ciphers, settings.server_tls13_ciphers);
    if (ciphers !== undefined) base.ciphers = ciphers;
    if (this.isAsked) {
      base.ca = readNamed(settings, 'server_tls_ca_file');
      base.key = readNamed(settings, 'server_tls_key_file');
      base.cert = readNamed(settings, 'server_tls_cert_file');
    }
    this.#base = base;
  }

  /** @throws when OpenSSL cannot use what the files hold, which would fail each connect */
  check(): void {
    if (this.isAsked) createSecureContext(this.#base);
  }

  /** Options of `tls.connect` for a connection to `host`. */
  options(host: string): ConnectionOptions {
    if (!this.#checksName) return { ...this.#base, checkServerIdentity: () => undefined };
    // The server name of the handshake may not be an address (RFC 6066, section 3).
    return isIP(host) === 0 ? { ...this.#base, host, servername: host } : { ...this.#base, host };
  }
}

/** The file that a setting names; undefined when it names none. */
function readNamed(
  settings: Settings,
  key: 'server_tls_ca_file' | 'server_tls_key_file' | 'server_tls_cert_file',
): Buffer | undefined {
  const path = settings[key];
  if (path === '') return undefined;
  try {
    return readFileSync(path);
  } catch (error) {
    throw new Error(`${key}: could not read "${path}": ${osErrorText(error)}`, { cause: error });
  }
}
