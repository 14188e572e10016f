/** LDAP URLs (RFC 4516) as OpenLDAP's `ldap_url_parse` reads them for PostgreSQL and PgBouncer. */

import { isIP } from 'node:net';

export type LdapScope = 'base' | 'one' | 'sub' | 'children';

/** The parts that a URL has; null: it has none such. */
export interface LdapUrl {
  readonly scheme: 'ldap' | 'ldaps';
  /** One or several, separated by blanks. */
  readonly hosts: string | null;
  readonly port: string | null;
  readonly dn: string | null;
  readonly attribute: string | null;
  /** A URL that does not say means the base entry alone, which finds no user below it. */
  readonly scope: LdapScope;
  readonly filter: string | null;
}

const SCOPES: ReadonlyMap<string, LdapScope> = new Map([
  ['base', 'base'],
  ['one', 'one'],
  ['onelevel', 'one'],
  ['sub', 'sub'],
  ['subtree', 'sub'],
  ['children', 'children'],
  ['subordinate', 'children'],
]);

/** Reads `ldap://host:port/dn?attribute?scope?filter`. */
export function parseLdapUrl(url: string): LdapUrl | { readonly problem: string } {
  const broken = (why: string) => ({ problem: `could not parse LDAP URL "${url}": ${why}` });
  const [, name, authority, tail] = /^([a-z][a-z0-9+.-]*):\/\/([^/?]*)(.*)$/is.exec(url) ?? [];
  if (name === undefined || authority === undefined || tail === undefined) {
    return broken('it does not start with ldap:// or ldaps://');
  }
  const scheme = name.toLowerCase();
  if (scheme !== 'ldap' && scheme !== 'ldaps') {
    return { problem: `unsupported LDAP URL scheme: ${name}` };
  }
  if (tail !== '' && !tail.startsWith('/')) return broken('a / must stand before the first ?');
  const parts = tail.slice(1).split('?').map(decode);
  if (parts.length > 5) return broken('it has too many parts');
  const [dn = '', attributes = '', scopeName = '', filter = '', extensions = ''] = parts;
  const hosts = decode(authority);
  if (hosts === null || dn === null || attributes === null || filter === null) {
    return broken('bad percent-encoding');
  }
  const scope = scopeName === '' ? 'base' : SCOPES.get(scopeName?.toLowerCase() ?? '');
  if (scope === undefined) return broken('bad scope');
  if (extensions === null || /(^|,)!/.test(extensions)) return broken('bad extension');
  const [, before = hosts, port = null] = /^(.*?|.*\]):(\d*)$/s.exec(hosts) ?? [];
  return {
    scheme,
    // The port behind the last host is that of all.
    hosts: before.trim() || null,
    port: port || null,
    // Without anything behind the slash the URL names the server only, so that prefix and suffix
    // can be used with it.
    dn: tail.length > 1 ? dn : null,
    attribute: attributes.split(',')[0] || null,
    scope,
    filter: filter || null,
  };
}

/** Reads `host`, `host:port`, `::1`, `[::1]` or `[::1]:port`; null: it is none of them. */
export function parseHost(text: string): { host: string; port: string | null } | null {
  if (isIP(text) === 6) return { host: text, port: null };
  const bracketed = /^\[([^\]]*)\](?::(\d+))?$/.exec(text);
  if (bracketed !== null) {
    const [, host = '', port = null] = bracketed;
    return isIP(host) === 6 ? { host, port } : null;
  }
  const [, host, port = null] = /^([\w.-]+)(?::(\d+))?$/.exec(text) ?? [];
  return host === undefined ? null : { host, port };
}

function decode(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}
