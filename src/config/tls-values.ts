/** The forms that PgBouncer accepts for the TLS settings which are more than free text. */

const PROTOCOLS = new Set(['tlsv1.0', 'tlsv1.1', 'tlsv1.2', 'tlsv1.3', 'tlsv1', 'all']);
const PROTOCOL_SETS = new Set(['secure', 'default']);
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
