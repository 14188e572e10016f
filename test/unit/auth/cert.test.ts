import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isCertified } from '../../../src/auth/cert.ts';
import type { IdentPair } from '../../../src/auth/login-method.ts';
import type { ClientName } from '../../../src/config/hba-rules.ts';
import { madeCertificate } from '../../support/made-certificate.ts';

/** Whether the certificate lets its owner in under each name. */
function verdicts(
  der: Buffer | null,
  users: readonly string[],
  clientname: ClientName = 'any',
  map: readonly IdentPair[] | null = null,
): string[] {
  const tls = { version: 'TLSv1.3', cipher: 'x', certificate: der, endPoint: null };
  return users.filter((user) => isCertified(user, tls, { kind: 'cert', map, clientname }));
}

test('the common name is enough, whatever its case', () => {
  const der = madeCertificate([
    ['O', 'Example'],
    ['CN', 'App'],
  ]);
  assert.deepEqual(verdicts(der, ['app', 'APP', 'App', 'ap', 'appx', 'Example', '']), [
    'app',
    'APP',
    'App',
  ]);
});

test('only the first of several common names counts', () => {
  const der = madeCertificate([
    ['CN', 'one'],
    ['CN', 'two'],
  ]);
  assert.deepEqual(verdicts(der, ['one', 'two']), ['one']);
});

test('an alternative name is enough, and the common name still is', () => {
  const der = madeCertificate([['CN', 'common']], [{ dns: 'alt' }, { dns: 'Other' }]);
  assert.deepEqual(verdicts(der, ['common', 'alt', 'other', 'nobody']), ['common', 'alt', 'other']);
});

test('a star stands for one label in front of two or more', () => {
  const der = madeCertificate([['CN', '*.b.c']], [{ dns: '*.x.y.z' }]);
  assert.deepEqual(
    verdicts(der, [
      'a.b.c',
      'A.B.C',
      'q.x.y.z',
      'a.q.b.c',
      'b.c',
      '.b.c',
      'a.b.c.d',
      '*.b.c',
      'a.',
    ]),
    ['a.b.c', 'A.B.C', 'q.x.y.z', '*.b.c'],
  );
});

for (const pattern of ['*', '*.c', '*b.c', '*..c', '*.b..', 'a.*.c', 'a*.b.c', '*.']) {
  test(`the star of ${pattern} stands for nothing`, () => {
    const names = ['a.c', 'a.b.c', 'ab.c', 'a..c', 'a.b..', 'x', 'a.', 'app'];
    assert.deepEqual(verdicts(madeCertificate([['CN', pattern]]), names), []);
    assert.deepEqual(verdicts(madeCertificate([], [{ dns: pattern }]), names), []);
  });
}

test('a name that is an address is compared with addresses, or the common name to the letter', () => {
  const loopback6 = [...new Array<number>(15).fill(0), 1];
  const der = madeCertificate([['CN', '10.0.0.1']], [{ ip: [127, 0, 0, 1] }, { ip: loopback6 }]);
  assert.deepEqual(
    verdicts(der, ['127.0.0.1', '::1', '0:0:0:0:0:0:0:1', '10.0.0.1', '10.0.0.2', '::2']),
    ['127.0.0.1', '::1', '0:0:0:0:0:0:0:1', '10.0.0.1'],
  );
  const text = madeCertificate([['CN', '*.0.0.1']], [{ dns: '127.0.0.1' }]);
  assert.deepEqual(verdicts(text, ['127.0.0.1', '10.0.0.1']), []);
});

test('a value that only looks like more names, or ends early, is one name', () => {
  const listed = madeCertificate([['O', 'x\nCN=app']], [{ dns: 'x, DNS:app' }, { dns: 'a"b' }]);
  assert.deepEqual(verdicts(listed, ['app', 'x', 'x, DNS:app', 'a"b']), ['x, DNS:app', 'a"b']);
  const plus = madeCertificate([['O', 'x + CN=app']]);
  assert.deepEqual(verdicts(plus, ['app']), []);
  const nul = madeCertificate([['CN', 'app\0.evil']], [{ dns: 'app\0.evil' }]);
  assert.deepEqual(verdicts(nul, ['app']), []);
});

test('characters that a subject’s text escapes are those of the name', () => {
  for (const name of ['a,b', 'a+b', 'a\\b', ' a ', '#a', '"a"', 'a;b', '<a>', 'jösé', 'a/b=c']) {
    assert.deepEqual(verdicts(madeCertificate([['CN', name]]), [name, 'a']), [name], name);
  }
});

test('names beside the ASCII letters have one case', () => {
  assert.deepEqual(verdicts(madeCertificate([['CN', 'É']]), ['é', 'É']), ['É']);
  // The Kelvin sign is a k to Unicode.
  assert.deepEqual(verdicts(madeCertificate([['CN', '\u212a']]), ['k']), []);
});

test('clientname=CN takes the common name to the letter and nothing else', () => {
  const der = madeCertificate([['CN', 'App']], [{ dns: 'alt' }]);
  assert.deepEqual(verdicts(der, ['App', 'app', 'alt'], 'CN'), ['App']);
  assert.deepEqual(verdicts(madeCertificate([['CN', '*.b.c']]), ['a.b.c'], 'CN'), []);
});

test('clientname=DN takes all of the subject as RFC 2253 writes it, the last name first', () => {
  const der = madeCertificate([
    ['O', 'Exämple, Inc.'],
    [
      ['CN', 'a + b'],
      ['UID', '7'],
    ],
  ]);
  const name = 'UID=7+CN=a \\+ b,O=Ex\\C3\\A4mple\\, Inc.';
  assert.deepEqual(verdicts(der, [name, name.toLowerCase(), 'a + b'], 'DN'), [name]);
  assert.deepEqual(verdicts(madeCertificate([['O', 'x\ny']]), ['O=x\\0Ay'], 'DN'), ['O=x\\0Ay']);
});

test('a subject without names, or with one of an unknown type, has no distinguished name', () => {
  assert.deepEqual(verdicts(madeCertificate([]), ['', 'CN='], 'DN'), []);
  const unknown = madeCertificate([
    ['CN', 'app'],
    ['1.2.3.4', 'x'],
  ]);
  assert.deepEqual(verdicts(unknown, ['1.2.3.4=x,CN=app', 'CN=app'], 'DN'), []);
  assert.deepEqual(verdicts(unknown, ['app'], 'CN'), ['app']);
});

test('a map says which names of certificates may be which users', () => {
  const der = madeCertificate([['CN', 'Alice']]);
  const map = [
    { systemName: 'alice', databaseUser: 'app' },
    { systemName: 'bob', databaseUser: null },
  ];
  assert.deepEqual(verdicts(der, ['app', 'alice', 'bob', 'other'], 'any', map), ['app']);
  const all = [{ systemName: 'alice', databaseUser: null }];
  assert.deepEqual(verdicts(der, ['app', 'other'], 'any', all), ['app', 'other']);
  assert.deepEqual(verdicts(der, ['Alice'], 'any', []), []);
  const byDn = [{ systemName: 'CN=Alice', databaseUser: 'app' }];
  assert.deepEqual(verdicts(der, ['app', 'other'], 'DN', byDn), ['app']);
});

test('no TLS, no certificate and one that cannot be read let nobody in', () => {
  const method = { kind: 'cert', map: null, clientname: 'any' } as const;
  assert.equal(isCertified('app', null, method), false);
  assert.deepEqual(verdicts(null, ['app', '']), []);
  assert.deepEqual(verdicts(Buffer.from('garbage'), ['app', '']), []);
  assert.deepEqual(verdicts(madeCertificate([]), ['app', '']), []);
});
