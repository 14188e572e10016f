/**
 * The options of LDAP logins: the text of `auth_ldap_options`, or what stands behind `ldap` in an HBA
 * line. Keys and rules are PgBouncer's, which took them from PostgreSQL ("LDAP Authentication").
 */

import { FilterParser } from 'ldapts';
import { Secret } from '../util/secret.ts';
import { type LdapScope, type LdapUrl, parseHost, parseLdapUrl } from './ldap-url.ts';
import { isLoopback } from './values.ts';

/** Longest text, as in PgBouncer. */
const MAX_BYTES = 1023;

/** A server that the options name. */
export interface LdapServer {
  readonly host: string;
  readonly port: number;
}

/** How the entry of a login name is found. */
export type LdapMode =
  /** It is prefix, name and suffix. */
  | { readonly kind: 'simple'; readonly prefix: string; readonly suffix: string }
  /** It is the one entry that a search by another account finds. */
  | {
      readonly kind: 'search';
      readonly baseDn: string;
      /** Account that searches; empty: nobody's. */
      readonly bindDn: string;
      readonly bindPassword: Secret;
      readonly scope: LdapScope;
      /** Null when `filter` is given. */
      readonly attribute: string | null;
      /** Holds `$username`; null when `attribute` is given. */
      readonly filter: string | null;
    };

export interface LdapOptions {
  readonly scheme: 'ldap' | 'ldaps';
  /** In the order in which they are tried; empty: those that `domain` has in DNS. */
  readonly servers: readonly LdapServer[];
  /** Domain of the base DN, when no server is named; else null. */
  readonly domain: string | null;
  /** `ldaptls`: the connection is encrypted by StartTLS. */
  readonly startTls: boolean;
  readonly mode: LdapMode;
}

/** What a text says, or why it cannot be used; the reason holds no value that may be a password. */
export type ParsedLdapOptions = { readonly options: LdapOptions } | { readonly problem: string };

type Values = Partial<Record<(typeof KEYS)[number], string>>;

const KEYS = [
  'ldapbasedn',
  'ldapbinddn',
  'ldapbindpasswd',
  'ldapport',
  'ldapprefix',
  'ldapscheme',
  'ldapsearchattribute',
  'ldapsearchfilter',
  'ldapserver',
  'ldapsuffix',
  'ldaptls',
  'ldapurl',
] as const;
const SEARCH_KEYS = [
  'ldapbasedn',
  'ldapbinddn',
  'ldapbindpasswd',
  'ldapsearchattribute',
  'ldapsearchfilter',
] as const;

class OptionsError extends Error {
  override readonly name = 'OptionsError';
}

/** Reads `key=value` pairs: separated by blanks or commas, values in double quotes if need be. */
export function parseLdapOptions(text: string): ParsedLdapOptions {
  try {
    return { options: read(text) };
  } catch (error) {
    if (error instanceof OptionsError) return { problem: error.message };
    throw error;
  }
}

/** True when passwords travel unencrypted to a server that is not this machine. */
export function sendsClearText({ scheme, startTls, servers }: LdapOptions): boolean {
  if (scheme === 'ldaps' || startTls) return false;
  return servers.length === 0 || servers.some(({ host }) => !isLoopback(host));
}

function read(text: string): LdapOptions {
  if (Buffer.byteLength(text) > MAX_BYTES) fail(`LDAP options are longer than ${MAX_BYTES} bytes`);
  const { values, url } = collect(text);
  const scheme = values.ldapscheme ?? 'ldap';
  if (scheme !== 'ldap' && scheme !== 'ldaps') fail(`invalid ldapscheme value: "${scheme}"`);
  const startTls = values.ldaptls === '1';
  // PostgreSQL takes any other word than 1 for "no", and sends passwords in clear text.
  if (!startTls && (values.ldaptls ?? '0') !== '0') fail('ldaptls must be 0 or 1');
  if (startTls && scheme === 'ldaps') fail('ldaptls cannot be used together with ldaps');
  const mode = modeOf(values, url?.scope ?? 'sub');
  const servers = serversOf(values, scheme === 'ldaps' ? 636 : 389);
  const domain = servers.length === 0 ? domainOf(mode) : null;
  return { scheme, servers, domain, startTls, mode };
}

/** Values by key; a later one takes the place of an earlier one, also of those inside a URL. */
function collect(text: string): { values: Values; url: LdapUrl | null } {
  const values: Values = {};
  let url: LdapUrl | null = null;
  for (const { key, value } of pairs(text)) {
    values[key] = value;
    if (key !== 'ldapurl') continue;
    const parsed = parseLdapUrl(value);
    if ('problem' in parsed) fail(parsed.problem);
    url = parsed;
    values.ldapscheme = url.scheme;
    const given = {
      ldapserver: url.hosts,
      ldapport: url.port,
      ldapbasedn: url.dn,
      ldapsearchattribute: url.attribute,
      ldapsearchfilter: url.filter,
    };
    for (const [name, part] of Object.entries(given)) {
      if (part !== null) values[name as keyof typeof given] = part;
    }
  }
  return { values, url };
}

function pairs(text: string): { key: (typeof KEYS)[number]; value: string }[] {
  return tokens(text).map((token, index) => {
    const equals = token.indexOf('=');
    const name = equals === -1 ? '' : token.slice(0, equals);
    // Not shown unless it looks like a key: it may be part of a password that is not quoted.
    if (!/^ldap\w*$/.test(name)) {
      fail(`LDAP option ${index + 1} is not key=value: quote a value that holds blanks or commas`);
    }
    const key = KEYS.find((known) => known === name);
    if (key === undefined) fail(`invalid LDAP option: "${name}"`);
    return { key, value: token.slice(equals + 1) };
  });
}

/** PostgreSQL's rules for tokens of pg_hba.conf: quotes may stand anywhere in one. */
function tokens(text: string): string[] {
  const found: string[] = [];
  let token: string | null = null;
  let isQuoted = false;
  for (let at = 0; at < text.length; at++) {
    const char = text[at]!;
    if (char === '"') {
      const isDoubled = isQuoted && text[at + 1] === '"';
      token = (token ?? '') + (isDoubled ? '"' : '');
      if (isDoubled) at++;
      else isQuoted = !isQuoted;
    } else if (!isQuoted && /[\s,]/.test(char)) {
      if (token !== null) found.push(token);
      token = null;
    } else {
      token = (token ?? '') + char;
    }
  }
  if (isQuoted) fail('a double quote of the LDAP options is not closed');
  if (token !== null) found.push(token);
  return found;
}

function modeOf(values: Values, scope: LdapScope): LdapMode {
  const { ldapprefix, ldapsuffix, ldapbasedn } = values;
  if (ldapprefix !== undefined || ldapsuffix !== undefined) {
    if (SEARCH_KEYS.some((key) => values[key] !== undefined)) {
      fail('cannot mix options for simple bind and search+bind modes');
    }
    return { kind: 'simple', prefix: ldapprefix ?? '', suffix: ldapsuffix ?? '' };
  }
  if (ldapbasedn === undefined) {
    fail(
      'authentication method "ldap" requires argument "ldapbasedn", "ldapprefix", or "ldapsuffix" to be set',
    );
  }
  const { ldapsearchattribute, ldapsearchfilter: filter } = values;
  if (ldapsearchattribute !== undefined && filter !== undefined) {
    fail('cannot use ldapsearchattribute together with ldapsearchfilter');
  }
  const attribute = filter === undefined ? (ldapsearchattribute ?? 'uid') : null;
  // An attribute description (RFC 4512, section 2.5): anything else would change the filter.
  if (attribute !== null && !/^[\w.-]+(;[\w-]+)*$/.test(attribute)) {
    fail(`invalid ldapsearchattribute value: "${attribute}"`);
  }
  if (filter !== undefined) checkFilter(filter);
  return {
    kind: 'search',
    baseDn: ldapbasedn,
    bindDn: values.ldapbinddn ?? '',
    bindPassword: new Secret(values.ldapbindpasswd ?? ''),
    scope,
    attribute,
    filter: filter ?? null,
  };
}

function checkFilter(filter: string): void {
  // Whoever knows the password of the one entry that it finds would come in under every name.
  if (!filter.includes('$username')) fail('ldapsearchfilter must hold $username');
  // Elsewhere than in a value, the client would say what is asked.
  if (/(?:^|\()[^=()]*\$username/.test(filter))
    fail('$username must stand behind a = in ldapsearchfilter');
  const invalid = `invalid ldapsearchfilter value: "${filter}"`;
  // Parentheses inside a value are written as \28 and \29; the library lets the last one be missing.
  if (filter.split('(').length !== filter.split(')').length) fail(invalid);
  try {
    FilterParser.parseString(filter.replaceAll('$username', 'name'));
  } catch {
    fail(invalid);
  }
}

function serversOf({ ldapserver = '', ldapport }: Values, usual: number): LdapServer[] {
  const port = ldapport === undefined ? usual : Number(ldapport);
  if (ldapport !== undefined && !isPort(ldapport)) fail(`invalid LDAP port number: "${ldapport}"`);
  const words = ldapserver.split(/[\s,]+/).filter((word) => word !== '');
  return words.map((word) => {
    const place = parseHost(word);
    if (place === null || (place.port !== null && !isPort(place.port))) {
      fail(`invalid ldapserver value: "${word}"`);
    }
    return { host: place.host, port: place.port === null ? port : Number(place.port) };
  });
}

function isPort(text: string): boolean {
  return /^\d{1,5}$/.test(text) && Number(text) >= 1 && Number(text) <= 65_535;
}

/** `dc=example,dc=net` at the end of the base DN is the domain `example.net` (RFC 2247). */
function domainOf(mode: LdapMode): string {
  if (mode.kind === 'simple') fail('LDAP server not specified, and no ldapbasedn');
  const labels: string[] = [];
  for (const part of mode.baseDn.split(',').reverse()) {
    const label = /^\s*dc\s*=\s*([\w-]+)\s*$/i.exec(part)?.[1];
    if (label === undefined) break;
    labels.unshift(label);
  }
  if (labels.length === 0) fail('could not extract domain name from ldapbasedn');
  return labels.join('.');
}

function fail(text: string): never {
  throw new OptionsError(text);
}
