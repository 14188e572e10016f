import { readFile } from 'node:fs/promises';

/**
 * Whose certificates LDAP servers may show: what OpenLDAP's library, and so PgBouncer, goes by
 * (ldap.conf(5)). `TLS_CACERT` and `TLS_REQCERT` are read from the system's ldap.conf, from the file
 * that `LDAPCONF` names, and from `LDAPTLS_CACERT` and `LDAPTLS_REQCERT`; the last one wins.
 * `LDAPNOINIT` turns all of that off. Files of users (`.ldaprc`) are not read.
 */
export interface Trust {
  /** PEM; undefined: the authorities that Node.js knows, with those of `NODE_EXTRA_CA_CERTS`. */
  readonly ca: string | undefined;
  /** False: any certificate will do (`never`, `allow`). */
  readonly isChecked: boolean;
}

/** Debian's and Red Hat's. */
const SYSTEM_FILES = ['/etc/ldap/ldap.conf', '/etc/openldap/ldap.conf'];

type Env = Readonly<Record<string, string | undefined>>;
type ReadText = (path: string) => Promise<string>;

const readUtf8: ReadText = (path) => readFile(path, 'utf8');

/** @throws Error when the file of authorities cannot be read */
export async function readTrust(env: Env, readText: ReadText = readUtf8): Promise<Trust> {
  const said = new Map<string, string>();
  if (env['LDAPNOINIT'] === undefined) {
    for (const path of [...SYSTEM_FILES, env['LDAPCONF'] ?? '']) {
      // A file that is not there says nothing, as with OpenLDAP.
      const text = path === '' ? '' : await readText(path).catch(() => '');
      for (const [option, value] of optionsIn(text)) said.set(option, value);
    }
    for (const option of ['TLS_CACERT', 'TLS_REQCERT']) {
      const value = env[`LDAP${option}`];
      if (value !== undefined && value !== '') said.set(option, value);
    }
  }
  const wanted = said.get('TLS_REQCERT')?.toLowerCase();
  const isChecked = wanted !== 'never' && wanted !== 'allow';
  const path = said.get('TLS_CACERT');
  if (path === undefined || !isChecked) return { ca: undefined, isChecked };
  return { ca: await readText(path), isChecked };
}

function optionsIn(text: string): [string, string][] {
  return text.split('\n').flatMap((line): [string, string][] => {
    const [, option, value] = /^\s*([A-Za-z_]+)\s+(.*\S)\s*$/.exec(line) ?? [];
    return option === undefined || value === undefined ? [] : [[option.toUpperCase(), value]];
  });
}
