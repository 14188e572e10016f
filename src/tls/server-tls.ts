import { readFileSync, type Stats, statSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { isIP } from 'node:net';
import {
  type ConnectionOptions,
  createSecureContext,
  type SecureContext,
  type SecureContextOptions,
} from 'node:tls';
import type { FleetSettings, Settings } from '../config/schema.ts';
import { cipherList } from '../config/tls-values.ts';
import { log } from '../log/logger.ts';
import { osErrorText } from '../log/os-error.ts';
import { opensslText } from './handshake-error.ts';
import { checkServerName } from './server-name.ts';
import { TlsSetupError } from './setup-error.ts';
import { systemBundle } from './system-ca.ts';
import { versionOptions } from './versions.ts';

/** PostgreSQL's name in the handshake of direct TLS (PostgreSQL documentation, "SSL Session Encryption"). */
export const ALPN = 'postgresql';

/** Settings that name a file. */
type FileKey = 'server_tls_ca_file' | 'server_tls_key_file' | 'server_tls_cert_file';
const FILE_KEYS: readonly FileKey[] = [
  'server_tls_ca_file',
  'server_tls_key_file',
  'server_tls_cert_file',
];

/** One certificate of a PEM file. */
const CERTIFICATE = /-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----/;

/**
 * TLS towards servers: what each `server_tls_sslmode` means. `allow` equals `prefer`, as in
 * PgBouncer; the certificate is checked from `verify-ca` on, the host name for `verify-full` only.
 *
 * PgBouncer reads the files at each connect. Here they are read when the configuration takes effect,
 * so that one that cannot be used is noticed then, and again when one of them has changed since, so
 * that a renewed certificate is used without a RELOAD.
 */
export class ServerTls {
  /** True when TCP servers are asked for TLS. */
  readonly isAsked: boolean;
  /** True when a server that answers `N` may be used in clear text. */
  readonly isOptional: boolean;
  /** True when the handshake begins at once, without SSLRequest. */
  readonly isDirect: boolean;
  readonly #settings: Settings;
  readonly #isVerified: boolean;
  readonly #checksName: boolean;
  #context: SecureContext | null = null;
  /** Which state of the files `#context` was made from. */
  #stamp = '';

  /** @throws TlsSetupError when a setting or a file cannot be used */
  constructor(settings: Settings, { server_tls_negotiation }: FleetSettings) {
    const mode = settings.server_tls_sslmode;
    this.isAsked = mode !== 'disable';
    this.isOptional = mode === 'allow' || mode === 'prefer';
    this.isDirect = server_tls_negotiation === 'direct';
    this.#isVerified = mode === 'verify-ca' || mode === 'verify-full';
    this.#checksName = mode === 'verify-full';
    this.#settings = settings;
    if (!this.isAsked) return;
    this.#stamp = this.#files().map(stampNow).join();
    this.#context = this.#build();
  }

  /** Options of `tls.connect` for a connection to `host`, by the files as they are now. */
  async options(host: string): Promise<ConnectionOptions> {
    await this.#refresh();
    const options: ConnectionOptions = {
      host,
      rejectUnauthorized: this.#isVerified,
      checkServerIdentity: this.#checksName ? checkServerName : isAnyName,
    };
    if (this.#context !== null) options.secureContext = this.#context;
    if (this.isDirect) options.ALPNProtocols = [ALPN];
    // The server name of the handshake may not be an address (RFC 6066, section 3).
    if (this.#checksName && isIP(host) === 0) options.servername = host;
    return options;
  }

  async #refresh(): Promise<void> {
    const stamp = (await Promise.all(this.#files().map(stampLater))).join();
    if (stamp === this.#stamp) return;
    try {
      this.#context = this.#build();
      this.#stamp = stamp;
    } catch (error) {
      // Half written, or on its way out: the next connection looks again.
      const why = error instanceof TlsSetupError ? error.why : String(error);
      log.warning(`TLS connect error: ${why}, going on with what was read before`);
    }
  }

  #files(): string[] {
    const paths = FILE_KEYS.map((key) => this.#settings[key]);
    return paths.filter((path) => path !== '');
  }

  #build(): SecureContext {
    const settings = this.#settings;
    const { server_tls_ciphers, server_tls13_ciphers } = settings;
    const options: SecureContextOptions = versionOptions(
      'server_tls_protocols',
      settings.server_tls_protocols,
    );
    const ciphers = cipherList(server_tls_ciphers, server_tls13_ciphers);
    if (ciphers !== undefined) {
      options.ciphers = ciphers;
      attempt({ ciphers }, () => `invalid server_tls_ciphers: ${server_tls_ciphers}`);
    }
    options.ca = this.#authorities();
    const key = readNamed(settings, 'server_tls_key_file');
    const cert = readNamed(settings, 'server_tls_cert_file');
    if (key !== null && cert !== null) {
      attempt({ cert }, (why) => unusable(settings, 'server_tls_cert_file', why));
      const pair = { key, cert };
      attempt(pair, (why) => unusable(settings, 'server_tls_key_file', why));
      Object.assign(options, pair);
    } else if (key !== null || cert !== null) {
      throw new TlsSetupError('server_tls_key_file and server_tls_cert_file must be set together');
    }
    return attempt(options, (why) => `server_tls: ${why}`);
  }

  /** Certificates that servers' certificates may be signed by; empty: nobody asks. */
  #authorities(): Buffer | [] {
    const settings = this.#settings;
    const own = readNamed(settings, 'server_tls_ca_file');
    if (own === null && !this.#isVerified) return [];
    if (own === null) {
      const path = systemBundle();
      if (path !== null) return readFileSync(path);
      const why = `must be set, this system has no bundle of certificates`;
      throw new TlsSetupError(`server_tls_ca_file: ${why}`);
    }
    // OpenSSL is content with none.
    if (!CERTIFICATE.test(own.toString('latin1'))) {
      throw new TlsSetupError(unusable(settings, 'server_tls_ca_file', 'it holds no certificate'));
    }
    attempt({ ca: own }, (why) => unusable(settings, 'server_tls_ca_file', why));
    return own;
  }
}

function isAnyName(): undefined {
  return undefined;
}

/** Node makes a context for each connection otherwise, and reads all certificates for that. */
function attempt(options: SecureContextOptions, toText: (why: string) => string): SecureContext {
  try {
    return createSecureContext(options);
  } catch (error) {
    throw new TlsSetupError(toText(opensslText(error as Error)), { cause: error });
  }
}

function unusable(settings: Settings, key: FileKey, why: string): string {
  return `${key}: could not use "${settings[key]}": ${why}`;
}

/** The file that a setting names; null when it names none. */
function readNamed(settings: Settings, key: FileKey): Buffer | null {
  const path = settings[key];
  if (path === '') return null;
  try {
    return readFileSync(path);
  } catch (error) {
    const why = `could not read "${path}": ${osErrorText(error)}`;
    throw new TlsSetupError(`${key}: ${why}`, { cause: error });
  }
}

function stampNow(path: string): string {
  return stampOf(statSync(path, { throwIfNoEntry: false }));
}

async function stampLater(path: string): Promise<string> {
  return stampOf(await stat(path).catch(() => undefined));
}

/** Changes when the file is written or another one is put in its place. */
function stampOf(stats: Stats | undefined): string {
  if (stats === undefined) return 'none';
  return `${stats.dev}:${stats.ino}:${stats.size}:${stats.mtimeMs}:${stats.ctimeMs}`;
}
