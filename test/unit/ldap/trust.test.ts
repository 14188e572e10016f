import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readTrust } from '../../../src/ldap/trust.ts';

type Files = Readonly<Record<string, string>>;

function read(env: Record<string, string>, files: Files) {
  return readTrust(env, async (path) => {
    const text = files[path];
    if (text === undefined) throw new Error(`${path} is not there`);
    return text;
  });
}

const CONF = '/etc/ldap/ldap.conf';

test('certificates are checked unless told otherwise, by the authorities that ldap.conf names', async () => {
  const files = {
    [CONF]: '#TLS_REQCERT never\nTLS_CACERT\t/a \n',
    '/a': 'A',
    '/b': 'B',
    '/c': 'tls_cacert /b',
  };
  const rows: readonly (readonly [Record<string, string>, Files, string | undefined, boolean])[] = [
    [{}, {}, undefined, true],
    [{}, files, 'A', true],
    [{ LDAPTLS_CACERT: '/b' }, files, 'B', true],
    [{ LDAPTLS_CACERT: '' }, files, 'A', true],
    [{ LDAPCONF: '/c' }, files, 'B', true],
    [{ LDAPCONF: '/none' }, files, 'A', true],
    [{ LDAPNOINIT: '1', LDAPTLS_CACERT: '/b', LDAPTLS_REQCERT: 'never' }, files, undefined, true],
    [{ LDAPTLS_REQCERT: 'never' }, files, undefined, false],
    [{ LDAPTLS_REQCERT: 'Allow' }, files, undefined, false],
    [{ LDAPTLS_REQCERT: 'try' }, files, 'A', true],
    [{ LDAPTLS_REQCERT: 'demand' }, { [CONF]: 'TLS_REQCERT never' }, undefined, true],
    [{ LDAPTLS_REQCERT: 'nonsense' }, { [CONF]: '' }, undefined, true],
    [{}, { '/etc/openldap/ldap.conf': 'TLS_REQCERT never' }, undefined, false],
  ];
  for (const [env, given, ca, isChecked] of rows) {
    assert.deepEqual(await read(env, given), { ca, isChecked }, JSON.stringify(env));
  }
});

test('a file of authorities that cannot be read is an error, not a reason to trust others', async () => {
  await assert.rejects(read({ LDAPTLS_CACERT: '/none' }, {}), /\/none is not there/);
});
