/** `auth_ldap_options` may hold the password of the search account, which is for nobody's eyes. */
export function withoutLdapPassword(value: string): string {
  return value.replace(/(\bldapbindpasswd\s*=\s*)("(?:[^"]|"")*"?|\S+)/gi, '$1[redacted]');
}
