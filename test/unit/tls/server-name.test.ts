import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PeerCertificate } from 'node:tls';
import { checkServerName } from '../../../src/tls/server-name.ts';

/** Host, subjectAltName and common name of the certificate, and whether it is for that host. */
const rows: readonly (readonly [string, string | undefined, string | string[], boolean])[] = [
  ['db.example', 'DNS:db.example', 'x', true],
  ['DB.Example', 'DNS:db.EXAMPLE', 'x', true],
  ['db.example', 'DNS:other.example, DNS:db.example', 'x', true],
  ['db.example', 'DNS:other.example', 'x', false],
  ['db.example', undefined, 'db.example', true],
  ['db.example', undefined, ['x', 'db.example'], true],
  ['db.example', 'DNS:other.example', 'db.example', true],
  ['a.db.example', 'DNS:*.db.example', 'x', true],
  ['a.b.db.example', 'DNS:*.db.example', 'x', false],
  ['db.example', 'DNS:*.db.example', 'x', false],
  ['db.example', 'DNS:*.example', 'x', false],
  ['a.db.example', 'DNS:a.*.example', 'x', false],
  ['ab.db.example', 'DNS:a*.db.example', 'x', false],
  ['db.example', 'DNS:*', 'x', false],
  ['.db.example', 'DNS:*.db.example', 'x', false],
  ['localhost', 'DNS:localhost', 'x', true],
  ['192.0.2.7', 'IP Address:192.0.2.7', 'x', true],
  ['192.0.2.7', 'IP Address:192.0.2.8', 'x', false],
  ['192.0.2.7', 'DNS:192.0.2.7', 'x', false],
  ['192.0.2.7', undefined, '192.0.2.7', true],
  ['192.0.2.7', undefined, '*.0.2.7', false],
  ['2001:db8::7', 'IP Address:2001:DB8:0:0:0:0:0:7', 'x', true],
  ['2001:db8::7', 'IP Address:2001:DB8:0:0:0:0:0:8', 'x', false],
  ['db.example', 'URI:http://db.example', 'x', false],
  ['db.example', 'othername:<unsupported>, DNS:db.example', 'x', true],
  ['db.example', 'DNS:"x, DNS:db.example"', 'x', false],
  ['db.example', 'URI:"http://x/, DNS:db.example"', 'x', false],
  ['db.example', 'DNS:"db.example\\u0000.evil"', 'x', false],
  ['db.example', undefined, 'db.example\0.evil', false],
  ['db.example', '', '', false],
];

test('a certificate is for the names and addresses in it, and for its common name', () => {
  for (const [host, subjectaltname, CN, isFor] of rows) {
    const certificate = { subject: { CN }, subjectaltname } as unknown as PeerCertificate;
    const problem = checkServerName(host, certificate);
    const row = `${host} in ${subjectaltname} or ${String(CN)}`;
    if (isFor) assert.equal(problem, undefined, row);
    else assert.equal(problem?.message, `name \`${host}' not present in server certificate`, row);
  }
});

test('a certificate without a subject is for its alternative names only', () => {
  const certificate = { subjectaltname: 'DNS:a.example' } as unknown as PeerCertificate;
  assert.equal(checkServerName('a.example', certificate), undefined);
  assert.notEqual(checkServerName('b.example', certificate), undefined);
});
