import type { Config } from './config.ts';
import type { Given } from './cross-checks.ts';
import { parseLdapOptions, sendsClearText } from './ldap-options.ts';
import type { Problem } from './problem.ts';
import type { Settings } from './schema.ts';
import { isLoopback, splitCommas } from './values.ts';

/** A way in by LDAP: the setting that brings it, its options, and who may come without TLS. */
interface Way {
  readonly key: 'auth_ldap_options' | 'auth_hba_file';
  readonly options: string;
  /** It also lets in clients over TCP whose connection is not encrypted. */
  readonly takesClearText: boolean;
}

const TO_SERVER = 'passwords go to the LDAP server unencrypted: set ldaptls=1 or ldapscheme=ldaps';
const FROM_CLIENTS =
  'clients may send passwords for ldap unencrypted: set client_tls_sslmode = require';

/**
 * What is wrong with LDAP logins as the settings have them, and which ways passwords travel that can
 * be listened to. `auth_ldap_options` is checked whatever `auth_type` is, since it may come to be
 * `ldap`; lines of an HBA file are checked where they are read.
 */
export function checkLdap({ settings, hba }: Config, given: readonly Given[]): Problem[] {
  const { auth_type, auth_ldap_options } = settings;
  const report = (key: keyof Settings, text: string, level: Problem['level']): Problem => {
    const place = given.find((one) => one.section === 'pgbouncer' && one.key === key);
    const { file, line } = place ?? { file: settings.conffile ?? '', line: 0 };
    return { file, line, key, text, level };
  };
  const options = auth_ldap_options ?? '';
  const parsed = options === '' ? null : parseLdapOptions(options);
  if (parsed !== null && 'problem' in parsed) {
    return [report('auth_ldap_options', parsed.problem, 'error')];
  }
  if (auth_type === 'ldap' && parsed === null) {
    const text = 'ldap lets nobody in while auth_ldap_options is not set';
    return [report('auth_type', text, 'warning')];
  }
  const ways: Way[] = [];
  if (auth_type === 'ldap') ways.push({ key: 'auth_ldap_options', options, takesClearText: true });
  for (const { method, type } of hba?.rules ?? []) {
    if (method.kind !== 'ldap') continue;
    const takesClearText = type === 'host' || type === 'hostnossl';
    ways.push({ key: 'auth_hba_file', options: method.options, takesClearText });
  }
  const warnings: Problem[] = [];
  const toServer = ways.find((way) => isInClear(way.options));
  if (toServer !== undefined) warnings.push(report(toServer.key, TO_SERVER, 'warning'));
  const fromClients = ways.find((way) => way.takesClearText);
  if (fromClients !== undefined && takesClearText(settings)) {
    const key = auth_type === 'ldap' ? 'auth_type' : fromClients.key;
    warnings.push(report(key, FROM_CLIENTS, 'warning'));
  }
  return warnings;
}

function isInClear(options: string): boolean {
  const parsed = parseLdapOptions(options);
  return 'options' in parsed && sendsClearText(parsed.options);
}

/** Whether clients of other machines can come without TLS. */
function takesClearText({ client_tls_sslmode, listen_addr }: Settings): boolean {
  const isOptional = ['disable', 'allow', 'prefer'].includes(client_tls_sslmode);
  return isOptional && splitCommas(listen_addr).some((address) => !isLoopback(address));
}
