import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { defaultSettings, type Settings } from '../../../src/config/schema.ts';
import { ServerTls } from '../../../src/tls/server-tls.ts';

const tls = (changes: Partial<Settings>) => new ServerTls({ ...defaultSettings(), ...changes });

test('each sslmode says whether TLS is asked for, may be refused, and what is checked', () => {
  const rows = (['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'] as const).map(
    (server_tls_sslmode) => {
      const { isAsked, isOptional } = tls({ server_tls_sslmode });
      const { rejectUnauthorized } = tls({ server_tls_sslmode }).options('db.example');
      return [server_tls_sslmode, isAsked, isOptional, rejectUnauthorized];
    },
  );
  assert.deepEqual(rows, [
    ['disable', false, false, false],
    ['allow', true, true, false],
    ['prefer', true, true, false],
    ['require', true, false, false],
    ['verify-ca', true, false, true],
    ['verify-full', true, false, true],
  ]);
});

test('the name is checked for verify-full only, and an address is not sent as a server name', () => {
  const full = tls({ server_tls_sslmode: 'verify-full' });
  assert.equal(full.options('db.example').checkServerIdentity, undefined);
  assert.equal(full.options('db.example').servername, 'db.example');
  for (const address of ['192.0.2.7', '2001:db8::7']) {
    const options = full.options(address);
    assert.equal(options.checkServerIdentity, undefined);
    assert.deepEqual([options.host, options.servername], [address, undefined]);
  }
  const ca = tls({ server_tls_sslmode: 'verify-ca' }).options('db.example');
  assert.equal(ca.checkServerIdentity?.('other.example', {} as never), undefined);
});

test('key, certificate and authority are read when TLS is asked for, and only then', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-tls-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const files = {
    server_tls_ca_file: join(folder, 'ca'),
    server_tls_key_file: join(folder, 'key'),
    server_tls_cert_file: join(folder, 'cert'),
  };
  tls({ server_tls_sslmode: 'disable', ...files });
  assert.throws(
    () => tls({ server_tls_sslmode: 'require', ...files }),
    /server_tls_(ca|key|cert)_file: could not read ".*": No such file or directory/,
  );
  for (const path of Object.values(files)) writeFileSync(path, path);
  const { ca, key, cert } = tls({ server_tls_sslmode: 'require', ...files }).options('h');
  assert.deepEqual([ca, key, cert].map(String), [
    files.server_tls_ca_file,
    files.server_tls_key_file,
    files.server_tls_cert_file,
  ]);
});
