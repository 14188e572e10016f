import { getHashes, hash } from 'node:crypto';

/**
 * Channel binding data of type `tls-server-end-point` (RFC 5929, section 4). Node names a
 * certificate's signature algorithm in its newest versions only, so it is read out of the DER here.
 */

const SEQUENCE = 0x30;
const OBJECT_ID = 0x06;
/** `hashAlgorithm` of the parameters of RSASSA-PSS, `[0] EXPLICIT` (RFC 4055, section 3.1). */
const PSS_HASH = 0xa0;

/** Contents of object identifiers, hexadecimal. */
const RSA = '2a864886f70d0101';
const ECDSA = '2a8648ce3d04';
const NIST_HASH = '6086480165030402';
const NIST_SIGNATURE = '6086480165030403';
const RSASSA_PSS = `${RSA}0a`;
const SHA1 = '2b0e03021a';

/** Hashes of signature algorithms that name one, as `node:crypto` spells them. */
const SIGNATURE_HASHES: ReadonlyMap<string, string> = new Map([
  [`${RSA}04`, 'md5'],
  [`${RSA}05`, 'sha1'],
  [`${RSA}0b`, 'sha256'],
  [`${RSA}0c`, 'sha384'],
  [`${RSA}0d`, 'sha512'],
  [`${RSA}0e`, 'sha224'],
  [`${RSA}0f`, 'sha512-224'],
  [`${RSA}10`, 'sha512-256'],
  [`${ECDSA}01`, 'sha1'],
  [`${ECDSA}0301`, 'sha224'],
  [`${ECDSA}0302`, 'sha256'],
  [`${ECDSA}0303`, 'sha384'],
  [`${ECDSA}0304`, 'sha512'],
  ['2a8648ce380403', 'sha1'],
  [`${NIST_SIGNATURE}01`, 'sha224'],
  [`${NIST_SIGNATURE}02`, 'sha256'],
  [`${NIST_SIGNATURE}03`, 'sha384'],
  [`${NIST_SIGNATURE}04`, 'sha512'],
  [`${NIST_SIGNATURE}09`, 'sha3-224'],
  [`${NIST_SIGNATURE}0a`, 'sha3-256'],
  [`${NIST_SIGNATURE}0b`, 'sha3-384'],
  [`${NIST_SIGNATURE}0c`, 'sha3-512'],
  [`${NIST_SIGNATURE}0d`, 'sha3-224'],
  [`${NIST_SIGNATURE}0e`, 'sha3-256'],
  [`${NIST_SIGNATURE}0f`, 'sha3-384'],
  [`${NIST_SIGNATURE}10`, 'sha3-512'],
]);

/** Hashes that the parameters of RSASSA-PSS may name. */
const PSS_HASHES: ReadonlyMap<string, string> = new Map([
  [SHA1, 'sha1'],
  [`${NIST_HASH}01`, 'sha256'],
  [`${NIST_HASH}02`, 'sha384'],
  [`${NIST_HASH}03`, 'sha512'],
  [`${NIST_HASH}04`, 'sha224'],
  [`${NIST_HASH}05`, 'sha512-224'],
  [`${NIST_HASH}06`, 'sha512-256'],
]);

/**
 * The hash of a server's certificate that both ends of a TLS connection can compute: by the hash
 * function of its signature, SHA-256 in place of MD5 and SHA-1. PostgreSQL and libpq do the same.
 * Null for a signature without one hash of its own (Ed25519), an unknown algorithm, and bytes that
 * are no certificate: there is no channel binding then.
 */
export function endPointHash(certificateDer: Buffer): Buffer | null {
  const name = signatureHash(certificateDer);
  if (name === null) return null;
  const used = name === 'md5' || name === 'sha1' ? 'sha256' : name;
  return getHashes().includes(used) ? hash(used, certificateDer, 'buffer') : null;
}

/** Reads `Certificate.signatureAlgorithm` (RFC 5280, section 4.1.1.2). */
function signatureHash(der: Buffer): string | null {
  const certificate = element(der, 0, der.length);
  if (certificate?.tag !== SEQUENCE) return null;
  const signed = element(der, certificate.start, certificate.end);
  if (signed === null) return null;
  const algorithm = element(der, signed.end, certificate.end);
  if (algorithm?.tag !== SEQUENCE) return null;
  const id = element(der, algorithm.start, algorithm.end);
  if (id?.tag !== OBJECT_ID) return null;
  const name = der.toString('hex', id.start, id.end);
  if (name === RSASSA_PSS) return pssHash(der, id.end, algorithm.end);
  return SIGNATURE_HASHES.get(name) ?? null;
}

function pssHash(der: Buffer, at: number, end: number): string | null {
  const parameters = element(der, at, end);
  if (parameters?.tag !== SEQUENCE) return null;
  const first = element(der, parameters.start, parameters.end);
  // DER leaves out what has its default value.
  if (first?.tag !== PSS_HASH) return 'sha1';
  const algorithm = element(der, first.start, first.end);
  if (algorithm?.tag !== SEQUENCE) return null;
  const id = element(der, algorithm.start, algorithm.end);
  if (id?.tag !== OBJECT_ID) return null;
  return PSS_HASHES.get(der.toString('hex', id.start, id.end)) ?? null;
}

interface Element {
  readonly tag: number;
  /** Of its contents. */
  readonly start: number;
  readonly end: number;
}

/** The DER element at `at`; null when it does not fit before `limit`. */
function element(der: Buffer, at: number, limit: number): Element | null {
  if (at + 2 > limit) return null;
  const tag = der[at]!;
  const first = der[at + 1]!;
  let start = at + 2;
  let length = first;
  if (first >= 0x80) {
    const bytes = first & 0x7f;
    if (bytes === 0 || bytes > 4 || start + bytes > limit) return null;
    length = der.readUIntBE(start, bytes);
    start += bytes;
  }
  const end = start + length;
  return end > limit ? null : { tag, start, end };
}
