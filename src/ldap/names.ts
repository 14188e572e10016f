/** Where a client's login name meets names and filters of the directory, whose characters it must not become. */

import { EqualityFilter, type Filter, FilterParser } from 'ldapts';
import type { LdapMode } from '../config/ldap-options.ts';

/** PostgreSQL refuses these in a name that is searched for: they have a meaning in filters and names. */
const REFUSED_IN_SEARCH = /[*()\\/]/;
/** Characters with a meaning in a distinguished name (RFC 4514, section 2.4). */
const SPECIAL_IN_DN = /[,+"\\<>;=]/;
const NUL = '\0';

/** A name of the directory that is none: a bind without a name succeeds with any password on some servers. */
const NOBODY = '';

/**
 * The name that a client binds by: prefix, login name, suffix. Null: the login name cannot be part of
 * it.
 *
 * PostgreSQL and PgBouncer put the texts together as they are, so that `x,ou=other` as a login name
 * means an entry of another branch: whoever knows any password below the suffix may come in. Here
 * the login name stays one value: in a distinguished name its special characters are escaped, and in
 * other forms (`name@domain`, `DOMAIN\name`), which have no escapes, they are refused, because a
 * server that is given a text that reads as a distinguished name takes it for one.
 */
export function simpleBindName(
  { prefix, suffix }: Extract<LdapMode, { kind: 'simple' }>,
  user: string,
): string | null {
  if (user.includes(NUL)) return null;
  const isDn = prefix.includes('=') || suffix.includes('=');
  if (!isDn && SPECIAL_IN_DN.test(user)) return null;
  const name = `${prefix}${isDn ? escapeDnValue(user) : user}${suffix}`;
  return name === NOBODY ? null : name;
}

/** The filter that finds the entry of a login name; null: the name may not be searched for. */
export function searchFilter(
  { attribute, filter }: Extract<LdapMode, { kind: 'search' }>,
  user: string,
): Filter | null {
  if (REFUSED_IN_SEARCH.test(user) || user.includes(NUL)) return null;
  if (filter === null) return new EqualityFilter({ attribute: attribute ?? 'uid', value: user });
  // No character that is left has a meaning in a filter (RFC 4515, section 3). A function, because
  // `$&` in a replacement text has one.
  return FilterParser.parseString(filter.replaceAll('$username', () => user));
}

/** Escapes a text so that it is one attribute value of a distinguished name (RFC 4514). */
function escapeDnValue(value: string): string {
  return value
    .replace(/[,+"\\<>;=]/g, '\\$&')
    .replace(/ $/, '\\ ')
    .replace(/^[ #]/, '\\$&');
}
