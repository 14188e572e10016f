/** The forms that PgBouncer accepts for the TLS settings which are more than free text. */

import { constants } from 'node:crypto';

const PROTOCOLS = new Set(['tlsv1.0', 'tlsv1.1', 'tlsv1.2', 'tlsv1.3', 'tlsv1', 'all']);
const PROTOCOL_SETS = new Set(['secure', 'default']);
type TlsVersion = 'TLSv1' | 'TLSv1.1' | 'TLSv1.2' | 'TLSv1.3';
const ALL_VERSIONS: readonly TlsVersion[] = ['TLSv1', 'TLSv1.1', 'TLSv1.2', 'TLSv1.3'];
const PROTOCOL_VERSIONS: Readonly<Record<string, readonly TlsVersion[]>> = {
  'tlsv1.0': ['TLSv1'],
  'tlsv1.1': ['TLSv1.1'],
  'tlsv1.2': ['TLSv1.2'],
  'tlsv1.3': ['TLSv1.3'],
  tlsv1: ALL_VERSIONS,
  all: ALL_VERSIONS,
  secure: ['TLSv1.2', 'TLSv1.3'],
  default: ['TLSv1.2', 'TLSv1.3'],
};
const NO_VERSION: Readonly<Record<TlsVersion, number>> = {
  TLSv1: constants.SSL_OP_NO_TLSv1,
  'TLSv1.1': constants.SSL_OP_NO_TLSv1_1,
  'TLSv1.2': constants.SSL_OP_NO_TLSv1_2,
  'TLSv1.3': constants.SSL_OP_NO_TLSv1_3,
};
const CIPHER_DEFAULTS = new Set(['default', 'secure', 'fast', 'normal']);
const DEFAULT_CIPHERS = 'DEFAULT';
/** OpenSSL's own choice for TLS 1.3. */
const DEFAULT_SUITES = 'TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256';
/** OpenSSL's own choice for all versions, as a list that Node takes. */
export const OPENSSL_CIPHERS = `${DEFAULT_SUITES}:${DEFAULT_CIPHERS}`;
const TLS13_SUITES = new Set([
  'TLS_AES_256_GCM_SHA384',
  'TLS_CHACHA20_POLY1305_SHA256',
  'TLS_AES_128_GCM_SHA256',
  'TLS_AES_128_CCM_8_SHA256',
  'TLS_AES_128_CCM_SHA256',
]);

/**
 * Names split by `,` or `:`, any case, `!` before one takes it out again; empty means `secure`. A list
 * that leaves no version is refused, where PgBouncer starts and then fails every handshake.
 */
export function isProtocolList(text: string): boolean {
  const areKnown = splitItems(text, /[,:]/).every((item) => {
    const name = item.toLowerCase().replace(/^!/, '');
    return PROTOCOLS.has(name) || PROTOCOL_SETS.has(name);
  });
  return areKnown && allowedVersions(text).size > 0;
}

/** TLS versions that a protocol list allows; one that begins by taking out takes from all. */
function allowedVersions(text: string): Set<TlsVersion> {
  const items = splitItems(text.toLowerCase(), /[,:]/);
  const allowed = new Set<TlsVersion>();
  for (const item of items.length === 0 ? ['secure'] : items) {
    const versions = PROTOCOL_VERSIONS[item.replace(/^!/, '')] ?? [];
    if (item.startsWith('!')) {
      if (allowed.size === 0) for (const version of ALL_VERSIONS) allowed.add(version);
      for (const version of versions) allowed.delete(version);
    } else {
      for (const version of versions) allowed.add(version);
    }
  }
  return allowed;
}

/**
 * The TLS versions of a protocol list, as options of a secure context. Node takes the oldest and the
 * newest; a version left out between them is turned off by itself.
 */
export function protocolOptions(text: string): {
  minVersion: TlsVersion;
  maxVersion: TlsVersion;
  secureOptions: number;
} {
  const allowed = allowedVersions(text);
  const inOrder = ALL_VERSIONS.filter((version) => allowed.has(version));
  const minVersion = inOrder[0];
  const maxVersion = inOrder.at(-1);
  if (minVersion === undefined || maxVersion === undefined) {
    throw new Error(`${text} allows no version of TLS`);
  }
  const off = ALL_VERSIONS.filter((version) => !allowed.has(version));
  const secureOptions = off.reduce((bits, version) => bits | NO_VERSION[version], 0);
  return { minVersion, maxVersion, secureOptions };
}

/**
 * The cipher list of OpenSSL for both settings; undefined: the library's own choice. Node turns
 * TLS 1.3 off for a list without a suite of it, so a default is never left to it.
 */
export function cipherList(ciphers: string, tls13: string | null): string | undefined {
  const isDefault = CIPHER_DEFAULTS.has(ciphers.toLowerCase()) || ciphers === '';
  const areDefaultSuites = tls13 === null || tls13 === '';
  if (isDefault && areDefaultSuites) return undefined;
  const suites = areDefaultSuites ? DEFAULT_SUITES : tls13;
  return `${suites}:${isDefault ? DEFAULT_CIPHERS : ciphers}`;
}

/** TLS 1.3 suites split by `:`; empty means the library's own choice. */
export function isTls13SuiteList(text: string): boolean {
  return splitItems(text, /:/).every((suite) => TLS13_SUITES.has(suite));
}

/** `auto`, `none` or one OpenSSL curve name; PgBouncer refuses a list. */
export function isCurve(text: string): boolean {
  return /^[A-Za-z0-9_.-]+$/.test(text);
}

function splitItems(text: string, separator: RegExp): string[] {
  return text
    .split(separator)
    .map((item) => item.trim())
    .filter((item) => item !== '');
}
