import type { Given } from './cross-checks.ts';
import { type LdapOptions, parseLdapOptions, sendsClearText } from './ldap-options.ts';
import type { Problem } from './problem.ts';
import type { Settings } from './schema.ts';
import { isLoopback, splitCommas } from './values.ts';

/**
 * What is wrong with LDAP logins as the settings have them, and which ways passwords travel that can
 * be listened to. Options are checked whatever `auth_type` is, since it may come to be `ldap`.
 */
export function checkLdap(settings: Settings, given: readonly Given[]): Problem[] {
  const { auth_type, auth_ldap_options: text } = settings;
  const report = (key: keyof Settings, what: string, level: Problem['level']): Problem => {
    const place = given.find((one) => one.section === 'pgbouncer' && one.key === key);
    const { file, line } = place ?? { file: settings.conffile ?? '', line: 0 };
    return { file, line, key, text: what, level };
  };
  const isUsed = auth_type === 'ldap';
  if (text === null || text === '') {
    if (!isUsed) return [];
    return [
      report('auth_type', 'ldap lets nobody in while auth_ldap_options is not set', 'warning'),
    ];
  }
  const parsed = parseLdapOptions(text);
  if ('problem' in parsed) return [report('auth_ldap_options', parsed.problem, 'error')];
  if (!isUsed) return [];
  return clearTextWarnings(settings, parsed.options).map((what) =>
    report(what.key, what.text, 'warning'),
  );
}

/** Warnings for a rule or setting that has clients log in by LDAP. */
function clearTextWarnings(
  { client_tls_sslmode, listen_addr }: Settings,
  options: LdapOptions,
): { key: 'auth_type' | 'auth_ldap_options'; text: string }[] {
  const found: ReturnType<typeof clearTextWarnings> = [];
  if (sendsClearText(options)) {
    const text = 'passwords go to the LDAP server unencrypted: set ldaptls=1 or ldapscheme=ldaps';
    found.push({ key: 'auth_ldap_options', text });
  }
  const isOpen = ['disable', 'allow', 'prefer'].includes(client_tls_sslmode);
  if (isOpen && splitCommas(listen_addr).some((address) => !isLoopback(address))) {
    const text =
      'clients may send passwords for ldap unencrypted: set client_tls_sslmode = require';
    found.push({ key: 'auth_type', text });
  }
  return found;
}
