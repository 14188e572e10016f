import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type LdapOptions,
  parseLdapOptions,
  sendsClearText,
} from '../../../src/config/ldap-options.ts';

function read(text: string): LdapOptions {
  const parsed = parseLdapOptions(text);
  assert.ok('options' in parsed, `${text}: ${JSON.stringify(parsed)}`);
  return parsed.options;
}

/** What a text says, on one line. */
function shown(text: string): string {
  const { scheme, servers, domain, startTls, mode } = read(text);
  const where = domain ?? servers.map(({ host, port }) => `${host}:${port}`).join(' ');
  const how =
    mode.kind === 'simple'
      ? `<${mode.prefix}|${mode.suffix}>`
      : `${mode.baseDn} ${mode.scope} ${mode.attribute ?? mode.filter}` +
        (mode.bindDn === '' ? '' : ` as ${mode.bindDn}/${mode.bindPassword.reveal()}`);
  return `${scheme}${startTls ? '+tls' : ''} ${where} ${how}`;
}

test('options say where the servers are and how the entry of a name is found', () => {
  const rows: readonly (readonly [string, string])[] = [
    ['ldapserver=h ldapprefix="cn=" ldapsuffix=", dc=x"', 'ldap h:389 <cn=|, dc=x>'],
    ['ldapserver=h,ldapsuffix=@x.net', 'ldap h:389 <|@x.net>'],
    ['"ldapserver=h" ldapprefix="DOM\\"', 'ldap h:389 <DOM\\|>'],
    ['ldapserver=h ldapprefix="a""b"', 'ldap h:389 <a"b|>'],
    ['\tldapserver=h\n ldapprefix=a=b ', 'ldap h:389 <a=b|>'],
    ['ldapserver=h ldapprefix=', 'ldap h:389 <|>'],
    ['ldapserver="a b:1 c" ldapport=2 ldapprefix=u', 'ldap a:2 b:1 c:2 <u|>'],
    ['ldapserver="::1 [::1] [::1]:5" ldapprefix=u', 'ldap ::1:389 ::1:389 ::1:5 <u|>'],
    ['ldapserver=h ldapscheme=ldaps ldapprefix=u', 'ldaps h:636 <u|>'],
    ['ldapserver=h ldaptls=1 ldapprefix=u', 'ldap+tls h:389 <u|>'],
    ['ldapserver=h ldaptls=0 ldapprefix=u', 'ldap h:389 <u|>'],
    ['ldapserver=h ldapbasedn="dc=x"', 'ldap h:389 dc=x sub uid'],
    ['ldapserver=h ldapbasedn=""', 'ldap h:389  sub uid'],
    ['ldapserver=h ldapbasedn=b ldapsearchattribute=cn', 'ldap h:389 b sub cn'],
    [
      'ldapserver=h ldapbasedn=b ldapsearchfilter="(|(a=$username)(b=$username))"',
      'ldap h:389 b sub (|(a=$username)(b=$username))',
    ],
    ['ldapserver=h ldapbasedn=b ldapsearchfilter=a=$username', 'ldap h:389 b sub a=$username'],
    [
      'ldapserver=h ldapbasedn=b ldapbinddn=d ldapbindpasswd="p ""w"',
      'ldap h:389 b sub uid as d/p "w',
    ],
    ['ldapserver=a ldapserver=b ldapprefix=u', 'ldap b:389 <u|>'],
    [
      'ldapbasedn="ou=People, DC=example,dc=net"',
      'ldap example.net ou=People, DC=example,dc=net sub uid',
    ],
    ['ldapbasedn="dc=a,ou=x,dc=b,dc=c"', 'ldap b.c dc=a,ou=x,dc=b,dc=c sub uid'],
  ];
  for (const [text, expected] of rows) assert.equal(shown(text), expected, text);
});

test('a URL sets the keys that it has, and keys behind it win', () => {
  const rows: readonly (readonly [string, string])[] = [
    ['ldapurl=ldap://h/dc=x', 'ldap h:389 dc=x base uid'],
    ['ldapurl="ldap://h/dc=x?cn?sub"', 'ldap h:389 dc=x sub cn'],
    ['ldapurl="ldaps://h:1/dc=x??one?(mail=$username)"', 'ldaps h:1 dc=x one (mail=$username)'],
    ['ldapurl="ldaps://h/dc=x,dc=y?uid,cn?subtree"', 'ldaps h:636 dc=x,dc=y sub uid'],
    ['ldapurl="ldap://a b:7/dc=x??sub"', 'ldap a:7 b:7 dc=x sub uid'],
    ['ldapurl="ldap://a%20b/dc=x??children"', 'ldap a:389 b:389 dc=x children uid'],
    ['ldapurl="LDAP://[::1]:7/dc=x??sub"', 'ldap ::1:7 dc=x sub uid'],
    ['ldapurl="ldap:///dc=x,dc=y??sub"', 'ldap x.y dc=x,dc=y sub uid'],
    ['ldapurl=ldap://h/ou=a%2Cdc=b??sub??x', 'ldap h:389 ou=a,dc=b sub uid'],
    ['ldapurl=ldap://h/?uid?sub', 'ldap h:389  sub uid'],
    ['ldapurl=ldap://h/ ldapprefix=uid= ldapsuffix=s', 'ldap h:389 <uid=|s>'],
    ['ldapurl=ldap://h ldapprefix=uid= ldaptls=1', 'ldap+tls h:389 <uid=|>'],
    [
      'ldapurl=ldap://h/dc=x?cn?sub ldapserver=i ldapport=8 ldapsearchattribute=sn',
      'ldap i:8 dc=x sub sn',
    ],
  ];
  for (const [text, expected] of rows) assert.equal(shown(text), expected, text);
});

test('options that cannot be used say why', () => {
  const rows: readonly (readonly [string, string])[] = [
    [
      '',
      'authentication method "ldap" requires argument "ldapbasedn", "ldapprefix", or "ldapsuffix" to be set',
    ],
    [
      'ldapserver=h',
      'authentication method "ldap" requires argument "ldapbasedn", "ldapprefix", or "ldapsuffix" to be set',
    ],
    [
      'ldapserver=h ldapprefix=a ldapbasedn=b',
      'cannot mix options for simple bind and search+bind modes',
    ],
    [
      'ldapserver=h ldapsuffix=a ldapbindpasswd=b',
      'cannot mix options for simple bind and search+bind modes',
    ],
    [
      'ldapurl=ldap://h/dc=x ldapprefix=a',
      'cannot mix options for simple bind and search+bind modes',
    ],
    [
      'ldapserver=h ldapbasedn=b ldapsearchattribute=a ldapsearchfilter=(a=$username)',
      'cannot use ldapsearchattribute together with ldapsearchfilter',
    ],
    [
      'ldapurl=ldap://h/dc=x?uid?sub?(a=$username)',
      'cannot use ldapsearchattribute together with ldapsearchfilter',
    ],
    [
      'ldapserver=h ldapbasedn=b ldapsearchattribute=uid)(x',
      'invalid ldapsearchattribute value: "uid)(x"',
    ],
    ['ldapserver=h ldapbasedn=b ldapsearchfilter=(a=b)', 'ldapsearchfilter must hold $username'],
    [
      'ldapserver=h ldapbasedn=b ldapsearchfilter=(&(a=$username)',
      'invalid ldapsearchfilter value: "(&(a=$username)"',
    ],
    [
      'ldapserver=h ldapbasedn=b ldapsearchfilter=(|(a=$username)($username=b))',
      '$username must stand behind a = in ldapsearchfilter',
    ],
    ['ldapserver=h ldapprefix=u ldapport=0', 'invalid LDAP port number: "0"'],
    ['ldapserver=h ldapprefix=u ldapport=65536', 'invalid LDAP port number: "65536"'],
    ['ldapserver=h ldapprefix=u ldapport=ldap', 'invalid LDAP port number: "ldap"'],
    ['ldapserver=h:0 ldapprefix=u', 'invalid ldapserver value: "h:0"'],
    ['ldapserver=ldap://h ldapprefix=u', 'invalid ldapserver value: "ldap://h"'],
    ['ldapserver=h ldapprefix=u ldapscheme=http', 'invalid ldapscheme value: "http"'],
    ['ldapserver=h ldapprefix=u ldaptls=on', 'ldaptls must be 0 or 1'],
    ['ldapurl=ldaps://h ldapprefix=u ldaptls=1', 'ldaptls cannot be used together with ldaps'],
    ['ldapurl=http://h/dc=x', 'unsupported LDAP URL scheme: http'],
    ['ldapurl=h', 'could not parse LDAP URL "h": it does not start with ldap:// or ldaps://'],
    [
      'ldapurl=ldap://h?uid',
      'could not parse LDAP URL "ldap://h?uid": a / must stand before the first ?',
    ],
    ['ldapurl=ldap://h/x??all', 'could not parse LDAP URL "ldap://h/x??all": bad scope'],
    ['ldapurl=ldap://h/%zz', 'could not parse LDAP URL "ldap://h/%zz": bad percent-encoding'],
    ['ldapurl=ldap://h/x????!y', 'could not parse LDAP URL "ldap://h/x????!y": bad extension'],
    [
      'ldapurl=ldap://h/x?????',
      'could not parse LDAP URL "ldap://h/x?????": it has too many parts',
    ],
    ['ldapprefix=u', 'LDAP server not specified, and no ldapbasedn'],
    ['ldapbasedn=ou=people', 'could not extract domain name from ldapbasedn'],
    ['ldapserver=h ldapfoo=1', 'invalid LDAP option: "ldapfoo"'],
    ['ldapserver=h ldapprefix="u', 'a double quote of the LDAP options is not closed'],
    [`ldapserver=h ldapprefix=${'u'.repeat(1000)}`, 'LDAP options are longer than 1023 bytes'],
  ];
  for (const [text, expected] of rows) {
    assert.deepEqual(parseLdapOptions(text), { problem: expected }, text);
  }
});

test('no error shows what may be a part of a password', () => {
  for (const text of [
    'ldapserver=h ldapbasedn=b ldapbindpasswd=top secret',
    'ldapserver=h ldapbasedn=b ldapbindpasswd=top,secret=1',
    'ldapserver=h ldapbasedn=b ldapbindpasswd= secret',
    'ldapserver=h ldapbasedn=b ldapbindpasswd="secret',
    'ldapserver=h ldapprefix=u ldapbindpasswd=secret',
  ]) {
    const parsed = parseLdapOptions(text);
    assert.ok('problem' in parsed, text);
    assert.doesNotMatch(parsed.problem, /secret/, text);
  }
  assert.doesNotMatch(
    JSON.stringify(read('ldapserver=h ldapbasedn=b ldapbindpasswd=secret')),
    /secret/,
  );
});

test('1023 bytes of options are taken', () => {
  const text = 'ldapserver=h ldapprefix=';
  read(text + 'u'.repeat(1023 - text.length));
});

test('passwords are known to travel in clear text unless encrypted or to this machine', () => {
  const rows: readonly (readonly [string, boolean])[] = [
    ['ldapserver=h ldapprefix=u', true],
    ['ldapserver=10.0.0.1 ldapprefix=u', true],
    ['ldapserver="127.0.0.1 h" ldapprefix=u', true],
    ['ldapbasedn=dc=x', true],
    ['ldapserver="127.0.0.1 ::1 localhost" ldapprefix=u', false],
    ['ldapserver=h ldaptls=1 ldapprefix=u', false],
    ['ldapserver=h ldapscheme=ldaps ldapprefix=u', false],
  ];
  for (const [text, expected] of rows) assert.equal(sendsClearText(read(text)), expected, text);
});
