import { isIP } from 'node:net';
import type { PeerCertificate } from 'node:tls';
import { ServerNameError } from './handshake-error.ts';

/**
 * Whether a server's certificate is for `host` (`verify-full`), by PgBouncer's rules: a name of its
 * subjectAltName, or its common name, whatever else it has. Node's own check knows no common name
 * beside subjectAltName, and none for an address.
 * @returns what is wrong, as `tls.connect` wants it from `checkServerIdentity`
 */
export function checkServerName(host: string, certificate: PeerCertificate): Error | undefined {
  const isAddress = isIP(host) !== 0;
  const alternatives = readAlternatives(certificate.subjectaltname);
  const isNamed = isAddress
    ? alternatives.addresses.some((address) => canonical(address) === canonical(host))
    : alternatives.names.some((name) => isNameFor(name, host));
  if (isNamed || commonNames(certificate).some((name) => isCommonNameFor(name, host, isAddress))) {
    return undefined;
  }
  return new ServerNameError(host);
}

interface Alternatives {
  readonly names: readonly string[];
  readonly addresses: readonly string[];
}

/** Reads Node's text of subjectAltName: `DNS:a.example, IP Address:192.0.2.1, URI:"a, b"`. */
function readAlternatives(text: string | undefined): Alternatives {
  const names: string[] = [];
  const addresses: string[] = [];
  for (const [, kind, quoted, plain] of (text ?? '').matchAll(
    /(?:^|, )([^:,"]+):(?:("(?:[^"\\]|\\.)*")|([^,]*))/g,
  )) {
    const value = quoted === undefined ? plain! : unquote(quoted);
    if (kind === 'DNS') names.push(value);
    else if (kind === 'IP Address') addresses.push(value);
  }
  return { names, addresses };
}

/** Node puts values that hold a comma or a quote into JSON; one that it did not write so is no name. */
function unquote(text: string): string {
  try {
    return String(JSON.parse(text));
  } catch {
    return '';
  }
}

function commonNames({ subject }: PeerCertificate): string[] {
  const names: string | string[] | undefined = subject?.CN;
  if (names === undefined) return [];
  return Array.isArray(names) ? names : [names];
}

function isCommonNameFor(name: string, host: string, isAddress: boolean): boolean {
  return isAddress ? name === host : isNameFor(name, host);
}

/** `*.b.c` is for `x.b.c`, not for `b.c` or `x.y.b.c`; a wildcard in another place is none. */
function isNameFor(pattern: string, host: string): boolean {
  if (hasOddCharacter(pattern)) return false;
  const [wanted, asked] = [pattern.toLowerCase(), host.toLowerCase()];
  if (wanted === asked) return true;
  if (!/^\*\.[^.]+\.[^.]/.test(wanted)) return false;
  const dot = asked.indexOf('.');
  return dot > 0 && dot < asked.length - 1 && asked.slice(dot) === wanted.slice(1);
}

/** A NUL ends the name for some readers and not for others. */
function hasOddCharacter(name: string): boolean {
  return name === '' || name.includes('\0') || name.includes(' ');
}

/** One spelling of an address. */
function canonical(address: string): string {
  if (isIP(address) !== 6) return address;
  return new URL(`http://[${address.replace(/%.*/, '')}]`).hostname;
}
