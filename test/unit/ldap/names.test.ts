import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseLdapOptions } from '../../../src/config/ldap-options.ts';
import { searchFilter, simpleBindName } from '../../../src/ldap/names.ts';

function modeOf(text: string) {
  const parsed = parseLdapOptions(`ldapserver=h ${text}`);
  assert.ok('options' in parsed, JSON.stringify(parsed));
  return parsed.options.mode;
}

function bound(text: string, user: string): string | null {
  const mode = modeOf(text);
  assert.ok(mode.kind === 'simple');
  return simpleBindName(mode, user);
}

function filter(text: string, user: string): string | null {
  const mode = modeOf(text);
  assert.ok(mode.kind === 'search');
  return searchFilter(mode, user)?.toString() ?? null;
}

test('a login name stays one value of the distinguished name that it is put into', () => {
  const dn = 'ldapprefix=uid= ldapsuffix=",dc=x"';
  const rows: readonly (readonly [string, string])[] = [
    ['alice', 'uid=alice,dc=x'],
    ['Zoë van D', 'uid=Zoë van D,dc=x'],
    ['x,ou=admins', 'uid=x\\,ou\\=admins,dc=x'],
    ['x+cn=y', 'uid=x\\+cn\\=y,dc=x'],
    ['a\\2cb', 'uid=a\\\\2cb,dc=x'],
    ['a;b', 'uid=a\\;b,dc=x'],
    ['"<>', 'uid=\\"\\<\\>,dc=x'],
    ['#0401', 'uid=\\#0401,dc=x'],
    [' a ', 'uid=\\ a\\ ,dc=x'],
    [' ', 'uid=\\ ,dc=x'],
    ['a\\ ', 'uid=a\\\\\\ ,dc=x'],
    ['$&', 'uid=$&,dc=x'],
  ];
  for (const [user, expected] of rows) assert.equal(bound(dn, user), expected, user);
});

test('where the name is no distinguished name, a login name that could make it one is refused', () => {
  for (const [options, prefix, suffix] of [
    ['ldapsuffix=@x.net', '', '@x.net'],
    ['ldapprefix="DOM\\"', 'DOM\\', ''],
    ['ldapprefix=""', '', ''],
  ] as const) {
    for (const user of ['alice', 'al ice', 'Zoë', 'a@b', 'a/b', '$&']) {
      assert.equal(bound(options, user), `${prefix}${user}${suffix}`);
    }
    for (const user of ['cn=a', 'a,b', 'a\\b', 'a+b', 'a"b', 'a<b', 'a>b', 'a;b', 'a\0b']) {
      assert.equal(bound(options, user), null, user);
    }
  }
  assert.equal(bound('ldapprefix=""', ''), null);
});

test('a login name is one value of the filter, and special characters in it are refused', () => {
  const both = 'ldapbasedn=b ldapsearchfilter="(|(uid=$username)(mail=$username))"';
  const rows: readonly (readonly [string, string, string | null])[] = [
    ['ldapbasedn=b', 'alice', '(uid=alice)'],
    ['ldapbasedn=b ldapsearchattribute=sn', 'Zoë', '(sn=Zoë)'],
    [both, 'alice', '(|(uid=alice)(mail=alice))'],
    [both, '$&', '(|(uid=$&)(mail=$&))'],
    [both, '$username', '(|(uid=$username)(mail=$username))'],
  ];
  for (const [options, user, expected] of rows) assert.equal(filter(options, user), expected, user);
  for (const char of ['*', '(', ')', '\\', '/', '\0']) {
    for (const user of [char, `a${char}`, `${char}a`, `x)(uid=${char}`]) {
      assert.equal(filter('ldapbasedn=b', user), null, user);
      assert.equal(filter(both, user), null, user);
    }
  }
});
