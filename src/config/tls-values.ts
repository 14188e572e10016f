/** The forms that PgBouncer accepts for the TLS settings which are more than free text. */

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
const CIPHER_DEFAULTS = new Set(['default', 'secure', 'fast', 'normal']);
const DEFAULT_CIPHERS = 'DEFAULT';
const TLS13_SUITES = new Set([
  'TLS_AES_256_GCM_SHA384',
  'TLS_CHACHA20_POLY1305_SHA256',
  'TLS_AES_128_GCM_SHA256',
  'TLS_AES_128_CCM_8_SHA256',
  'TLS_AES_128_CCM_SHA256',
]);

/** Names split by `,` or `:`, any case, `!` before one takes it out again; empty means `secure`. */
export function isProtocolList(text: string): boolean {
  return splitItems(text, /[,:]/).every((item) => {
    const name = item.toLowerCase().replace(/^!/, '');
    return PROTOCOLS.has(name) || PROTOCOL_SETS.has(name);
  });
}

/** TLS versions that a protocol list allows, oldest first, as Node names them; it may be none. */
export function allowedVersions(text: string): TlsVersion[] {
  const items = splitItems(text.toLowerCase(), /[,:]/);
  const allowed = new Set<TlsVersion>();
  for (const item of items.length === 0 ? ['secure'] : items) {
    // A list that begins with what it does not want means all others.
    if (item.startsWith('!') && allowed.size === 0) for (const v of ALL_VERSIONS) allowed.add(v);
    const versions = PROTOCOL_VERSIONS[item.replace(/^!/, '')] ?? [];
    for (const version of versions) {
      if (item.startsWith('!')) allowed.delete(version);
      else allowed.add(version);
    }
  }
  return ALL_VERSIONS.filter((version) => allowed.has(version));
}

/** The cipher list of OpenSSL for both settings; undefined: the library's own choice. */
export function cipherList(ciphers: string, tls13: string | null): string | undefined {
  const isDefault = CIPHER_DEFAULTS.has(ciphers.toLowerCase()) || ciphers === '';
  const older = isDefault ? DEFAULT_CIPHERS : ciphers.replace(/^all$/, 'ALL');
  if (tls13 === null || tls13 === '') return isDefault ? undefined : older;
  return `${tls13}:${older}`;
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
