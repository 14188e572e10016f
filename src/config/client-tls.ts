/**
 * Key, certificates and revocation list for TLS towards clients. They are read with the configuration
 * and travel with it: all workers have the same ones, also one that is started again later, and a key
 * that only root may read is read before the program gives root up. What cannot work is found here,
 * so that `pgfleet check`, a start and a reload all refuse it.
 */

import { constants, createPrivateKey, X509Certificate } from 'node:crypto';
import { createSecureContext, type SecureContextOptions } from 'node:tls';
import { opensslText } from '../util/openssl-error.ts';
import { osErrorText } from './problem.ts';
import type { FleetSettings, Settings } from './schema.ts';
import { cipherList, OPENSSL_CIPHERS, protocolOptions } from './tls-values.ts';

/** Contents of the files, PEM. The key is a secret: it goes to no log, listing or file. */
export interface ClientTlsFiles {
  readonly key: string;
  /** The certificate, and those that lead from it to its authority. */
  readonly cert: string;
  /** Authorities of clients' certificates; null: those that Node trusts. */
  readonly ca: string | null;
  /** Revocation lists, one text each; null: none are looked at. */
  readonly crl: readonly string[] | null;
}

type FileKey = 'client_tls_key_file' | 'client_tls_cert_file' | 'client_tls_ca_file';

/** A setting that cannot be used, and why, in PgBouncer's words. */
export interface ClientTlsProblem {
  readonly key: keyof Settings | keyof FleetSettings;
  readonly text: string;
}

/** Thrown and caught in this file. */
class Unusable extends Error {
  readonly key: ClientTlsProblem['key'];

  constructor(key: ClientTlsProblem['key'], text: string) {
    super(text);
    this.key = key;
  }
}

const CERTIFICATE = /-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----[\s\S]*?-----END \1-----/g;
const REVOCATION_LIST = /-----BEGIN X509 CRL-----[\s\S]*?-----END X509 CRL-----/g;
const NO_CERTIFICATE = 'error:05800088:x509 certificate routines::no certificate or crl found';

/** Reads the files unless TLS is off; a problem is the first thing that makes them useless. */
export function readClientTls(
  settings: Settings,
  fleet: FleetSettings,
  readFile: (path: string) => string,
): { files: ClientTlsFiles | null; problem: ClientTlsProblem | null } {
  if (settings.client_tls_sslmode === 'disable') return { files: null, problem: null };
  try {
    const files = readAll(settings, fleet, readFile);
    checkContext(settings, files);
    return { files, problem: null };
  } catch (error) {
    if (!(error instanceof Unusable)) throw error;
    return { files: null, problem: { key: error.key, text: error.message } };
  }
}

/**
 * Options of a secure context. A session is never taken up again: its certificate would not be looked
 * at once more, and PostgreSQL has no resumption either. Renegotiation is off, as in PostgreSQL.
 * @throws Error when a value is none that the configuration's checks let through
 */
export function clientTlsOptions(settings: Settings, files: ClientTlsFiles): SecureContextOptions {
  const { secureOptions, ...range } = protocolOptions(settings.client_tls_protocols);
  const { client_tls_ciphers: older, client_tls13_ciphers: suites } = settings;
  const { client_tls_ecdhcurve: curve, client_tls_dheparams: dheparams } = settings;
  return {
    key: files.key,
    cert: files.cert,
    ...(files.ca === null ? {} : { ca: files.ca }),
    ...(files.crl === null ? {} : { crl: [...files.crl] }),
    ...range,
    // Node's own default puts smaller keys first; PgBouncer's is OpenSSL's.
    ciphers: cipherList(older, suites) ?? OPENSSL_CIPHERS,
    ecdhCurve: isChoice(curve) ? 'auto' : curve,
    ...(dheparams.toLowerCase() === 'auto' ? { dhparam: 'auto' } : {}),
    honorCipherOrder: true,
    sessionIdContext: 'pgfleet',
    secureOptions:
      secureOptions |
      constants.SSL_OP_NO_TICKET |
      constants.SSL_OP_NO_RENEGOTIATION |
      constants.SSL_OP_NO_COMPRESSION,
  };
}

/** To PgBouncer, `none` means that it sets no curve, so that the library's own list holds as well. */
function isChoice(curve: string): boolean {
  return /^(?:auto|none)$/i.test(curve);
}

function readAll(
  settings: Settings,
  fleet: FleetSettings,
  readFile: (path: string) => string,
): ClientTlsFiles {
  const { client_tls_sslmode: mode } = settings;
  if (settings.client_tls_key_file === '' || settings.client_tls_cert_file === '') {
    throw new Unusable(
      'client_tls_sslmode',
      'To allow TLS connections from clients, client_tls_key_file and client_tls_cert_file must be set.',
    );
  }
  const hasCa = settings.client_tls_ca_file !== '';
  if (mode === 'verify-full' && !hasCa) {
    throw new Unusable('client_tls_sslmode', 'client_tls_sslmode requires client_tls_ca_file');
  }
  const read = (key: FileKey, failure: string, check: (text: string) => void): string => {
    try {
      const text = readFile(settings[key]);
      check(text);
      return text;
    } catch (error) {
      throw new Unusable(key, `TLS setup failed: ${failure}: ${reason(error)}`);
    }
  };
  const { client_tls_key_file: keyFile, client_tls_cert_file: certFile } = settings;
  const ca = hasCa ? read('client_tls_ca_file', `failed to load CA`, checkBundle) : null;
  const cert = read(
    'client_tls_cert_file',
    `failed to load certificate file "${certFile}"`,
    (text) => createSecureContext({ cert: text }),
  );
  const key = read('client_tls_key_file', `failed to load private key file "${keyFile}"`, (text) =>
    createPrivateKey(text),
  );
  if (!new X509Certificate(cert).checkPrivateKey(createPrivateKey(key))) {
    throw new Unusable(
      'client_tls_key_file',
      `TLS setup failed: private/public key mismatch: "${keyFile}" is not the key of "${certFile}"`,
    );
  }
  return { key, cert, ca, crl: readLists(fleet.client_tls_crl_file, hasCa, readFile) };
}

function checkBundle(text: string): void {
  const certificates = text.match(CERTIFICATE);
  if (certificates === null) throw new Error(NO_CERTIFICATE);
  for (const certificate of certificates) new X509Certificate(certificate);
}

/** Each revocation list of the file, since Node reads the first one of a text only. */
function readLists(
  path: string,
  hasCa: boolean,
  readFile: (path: string) => string,
): readonly string[] | null {
  if (path === '') return null;
  if (!hasCa) {
    throw new Unusable('client_tls_crl_file', 'client_tls_crl_file requires client_tls_ca_file');
  }
  try {
    const lists = readFile(path).match(REVOCATION_LIST);
    if (lists === null) throw new Error(NO_CERTIFICATE);
    createSecureContext({ crl: [...lists] });
    return [...lists];
  } catch (error) {
    const text = `TLS setup failed: failed to load CRL file "${path}": ${reason(error)}`;
    throw new Unusable('client_tls_crl_file', text);
  }
}

/** Tries each setting by itself, then all together, so that the one at fault can be named. */
function checkContext(settings: Settings, files: ClientTlsFiles): void {
  const { client_tls_ciphers: ciphers, client_tls_ecdhcurve: curve } = settings;
  if (!isUsable({ ciphers: cipherList(ciphers, null) })) {
    throw new Unusable('client_tls_ciphers', `invalid client_tls_ciphers: ${ciphers}`);
  }
  if (!isChoice(curve) && !isUsable({ ecdhCurve: curve })) {
    throw new Unusable('client_tls_ecdhcurve', `invalid client_tls_ecdhecurve: ${curve}`);
  }
  try {
    createSecureContext(clientTlsOptions(settings, files));
  } catch (error) {
    throw new Unusable('client_tls_sslmode', `TLS setup failed: ${reason(error)}`);
  }
}

function isUsable(options: { [Key in keyof SecureContextOptions]: string | undefined }): boolean {
  try {
    createSecureContext(options as SecureContextOptions);
    return true;
  } catch {
    return false;
  }
}

/** PgBouncer has the system's errors by way of OpenSSL. */
function reason(error: unknown): string {
  const isOfSystem = error instanceof Error && 'syscall' in error;
  return isOfSystem
    ? `error:${systemNumber(error)}:system library::${osErrorText(error)}`
    : opensslText(error);
}

/** How OpenSSL numbers a failed system call: the highest bit, and `errno`. */
function systemNumber(error: Error): string {
  const errno = 'errno' in error && typeof error.errno === 'number' ? Math.abs(error.errno) : 0;
  return (0x80000000 + errno).toString(16).toUpperCase();
}
