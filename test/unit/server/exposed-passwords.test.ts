import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { log } from '../../../src/log/logger.ts';
import { ExposedPasswords } from '../../../src/server/exposed-passwords.ts';

const FAR = { tls: '', host: 'db.example', address: '192.0.2.7', port: 5432 };

function warned(t: TestContext) {
  const lines: string[] = [];
  t.mock.method(log, 'warning', (line: string) => lines.push(line));
  return lines;
}

test('a password that others can read is told once a database and server, with what to do', (t) => {
  const lines = warned(t);
  const exposed = new ExposedPasswords();
  exposed.note('shop', FAR, 'plain');
  exposed.note('shop', FAR, 'plain');
  exposed.note('shop', { ...FAR, host: 'standby.example' }, 'md5');
  exposed.note('other', FAR, 'md5');
  assert.deepEqual(lines, [
    'database "shop": server db.example:5432 is sent a password in clear text without TLS: set server_tls_sslmode to require or higher, or scram-sha-256 in its pg_hba.conf',
    'database "shop": server standby.example:5432 is sent an MD5 password, which is as good as the password itself, without TLS: set server_tls_sslmode to require or higher, or scram-sha-256 in its pg_hba.conf',
    'database "other": server db.example:5432 is sent an MD5 password, which is as good as the password itself, without TLS: set server_tls_sslmode to require or higher, or scram-sha-256 in its pg_hba.conf',
  ]);
});

test('TLS, a Unix socket and the loopback network show a password to nobody', (t) => {
  const lines = warned(t);
  const exposed = new ExposedPasswords();
  exposed.note('shop', { ...FAR, tls: 'TLSv1.3/TLS_AES_256_GCM_SHA384' }, 'plain');
  exposed.note('shop', { ...FAR, host: null, address: 'unix' }, 'plain');
  for (const address of ['127.0.0.1', '127.9.9.9', '::1', '::ffff:127.0.0.1']) {
    exposed.note('shop', { ...FAR, address }, 'md5');
  }
  assert.deepEqual(lines, []);
  exposed.note('shop', { ...FAR, address: '2001:db8::7' }, 'md5');
  assert.equal(lines.length, 1);
});
