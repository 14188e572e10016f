import { X509Certificate } from 'node:crypto';
import type { ClientName } from '../config/hba-rules.ts';
import { ipBytes } from '../util/ip-address.ts';
import type { TlsFacts } from './client-connection.ts';
import { isMappedTo } from './ident-map.ts';
import type { LoginMethod } from './login-method.ts';

/** A certificate's subject, the first name first, as it stands there. */
interface NamePart {
  /** `CN`, `O`; a number with dots where OpenSSL knows no name. */
  readonly type: string;
  /** With RFC 2253's escapes. */
  readonly value: string;
  /** It belongs to the same set of names as the one before. */
  readonly isJoined: boolean;
}

/** Whether the certificate of a client, if it has sent one, lets it log in as `user` by `method`. */
export function isCertified(
  user: string,
  tls: TlsFacts | null,
  { map, clientname }: Extract<LoginMethod, { kind: 'cert' }>,
): boolean {
  if (tls === null || tls.certificate === null) return false;
  let names: CertificateNames;
  try {
    names = new CertificateNames(tls.certificate);
  } catch {
    return false;
  }
  return isMappedTo(user, map, (name) => names.has(name, clientname));
}

/**
 * What a client's certificate vouches for. That a trusted CA has signed it was found out by the TLS
 * handshake. The constructor throws when
 * it cannot be read.
 */
class CertificateNames {
  readonly #subject: readonly NamePart[];
  /** Alternative names of the types DNS and IP address. */
  readonly #dnsNames: readonly string[];
  readonly #addresses: readonly string[];

  constructor(der: Buffer) {
    const { subject, subjectAltName } = new X509Certificate(der);
    this.#subject = readSubject(subject ?? '');
    const others = readAltNames(subjectAltName ?? '');
    this.#dnsNames = others.filter(({ type }) => type === 'DNS').map(({ value }) => value);
    this.#addresses = others.filter(({ type }) => type === 'IP Address').map(({ value }) => value);
  }

  /** Whether the certificate is one of `name`, in the sense that `clientname` gives it. */
  has(name: string, clientname: ClientName): boolean {
    switch (clientname) {
      case 'any':
        return this.#hasName(name);
      case 'CN':
        return this.commonName === name;
      case 'DN':
        return this.distinguishedName === name;
    }
  }

  /** The first common name; null: there is none. */
  get commonName(): string | null {
    const found = this.#subject.find(({ type }) => type === 'CN');
    return found === undefined ? null : unescapeName(found.value);
  }

  /**
   * All of the subject as RFC 2253 writes it, the last name first, as PostgreSQL compares it with
   * `clientname=DN`: `CN=app,O=Example`. Null where a name's type is unknown to OpenSSL: its value
   * would have to be dumped.
   */
  get distinguishedName(): string | null {
    if (this.#subject.length === 0) return null;
    if (this.#subject.some(({ type }) => /^[0-9]/.test(type))) return null;
    let text = '';
    for (const { type, value, isJoined } of this.#subject) {
      const separator = text === '' ? '' : isJoined ? '+' : ',';
      text = `${type}=${escapeBytes(value)}${separator}${text}`;
    }
    return text;
  }

  /** PgBouncer's rule: an alternative name or the common name, whatever its case. */
  #hasName(name: string): boolean {
    const address = ipBytes(name);
    if (address !== null) {
      const same = (text: string) => ipBytes(text)?.join() === address.join();
      return this.#addresses.some(same) || this.commonName === name;
    }
    const isOne = (pattern: string) => isSameName(pattern, name);
    return this.#dnsNames.some(isOne) || (this.commonName !== null && isOne(this.commonName));
  }
}

/** Whether `pattern` is the name, or `*.b.c` where the name is `x.b.c` for any `x`. */
function isSameName(pattern: string, name: string): boolean {
  if (lower(pattern) === lower(name)) return true;
  // At least two labels below the star, and none of the first two empty.
  if (!/^\*\.[^.]+\.(?:[^.].*)?$/s.test(pattern)) return false;
  const dot = name.indexOf('.');
  return dot > 0 && name.length > dot + 1 && lower(name.slice(dot)) === lower(pattern.slice(1));
}

/** As C's strcasecmp: other letters than ASCII's have one case only. */
function lower(text: string): string {
  return text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}

/** Cuts Node's text of a subject: a line for each set of names, ` + ` between names of one set. */
function readSubject(subject: string): NamePart[] {
  if (subject === '') return [];
  return subject.split('\n').flatMap((line) =>
    // A plus sign inside a value is escaped.
    line.split(' + ').map((part, at) => {
      const equals = part.indexOf('=');
      return { type: part.slice(0, equals), value: part.slice(equals + 1), isJoined: at > 0 };
    }),
  );
}

/**
 * Cuts Node's text of alternative names, `DNS:a, IP Address:::1`, in which a value that could be
 * mistaken for more than one is written as a JSON string. Empty when the text is anything else.
 */
function readAltNames(text: string): { type: string; value: string }[] {
  const found: { type: string; value: string }[] = [];
  const entry = /([^:,"]+):("(?:[^"\\]|\\.)*"|[^",]*)(?:, |$)/gy;
  let end = 0;
  for (const match of text.matchAll(entry)) {
    const [whole, type, value] = match;
    found.push({ type: type!, value: value!.startsWith('"') ? JSON.parse(value!) : value! });
    end = match.index + whole.length;
  }
  return end === text.length ? found : [];
}

/** Takes RFC 2253's escapes out: a backslash before a special character or two hexadecimal digits. */
function unescapeName(value: string): string {
  return value.replace(/\\([0-9A-Fa-f]{2})|\\(.)/gs, (_, hex?: string, plain?: string) =>
    hex === undefined ? plain! : String.fromCharCode(Number.parseInt(hex, 16)),
  );
}

/** RFC 2253 as OpenSSL writes it has bytes above 127 as `\C3`. */
function escapeBytes(value: string): string {
  return value.replace(/[^\0-\x7f]+/g, (text) =>
    Array.from(Buffer.from(text), (byte) => `\\${byte.toString(16).toUpperCase()}`).join(''),
  );
}
