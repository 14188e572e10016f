import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { before, test } from 'node:test';
import { loadConfig } from '../../../src/config/load.ts';
import { endPointHash } from '../../../src/tls/channel-binding.ts';
import { ClientTls } from '../../../src/tls/client-tls.ts';
import { type Certs, makeCerts, missingOpenssl } from '../../support/certs.ts';

const skip = (await missingOpenssl()) ?? false;

let certs: Certs;
before(async () => {
  if (skip === false) certs = await makeCerts();
});

function tls(mode: string, more = ''): ClientTls {
  const text = [
    '[pgbouncer]',
    `client_tls_sslmode = ${mode}`,
    `client_tls_key_file = ${certs.file('server.key')}`,
    `client_tls_cert_file = ${certs.file('server.crt')}`,
    `client_tls_ca_file = ${certs.file('ca.crt')}`,
    more,
  ].join('\n');
  const readFile = (path: string): string => (path === 'f' ? text : readFileSync(path, 'utf8'));
  const { config, problems } = loadConfig('f', { readFile });
  assert.ok(config, JSON.stringify(problems));
  return new ClientTls(config);
}

test('each sslmode says whether TLS may be used, must be, and needs a certificate', {
  skip,
}, () => {
  const modes = ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'];
  const rows = modes.map((mode) => {
    const { isOffered, isRequired, accepting } = tls(mode);
    return [mode, isOffered, isRequired, accepting?.requestCert, accepting?.rejectUnauthorized];
  });
  assert.deepEqual(rows, [
    ['disable', false, false, undefined, undefined],
    ['allow', true, false, true, false],
    ['prefer', true, false, true, false],
    ['require', true, true, true, false],
    ['verify-ca', true, true, true, true],
    ['verify-full', true, true, true, true],
  ]);
});

test('the channel binding is that of our own certificate', { skip }, () => {
  const { raw } = new X509Certificate(readFileSync(certs.file('server.crt')));
  assert.deepEqual(tls('require').endPoint, endPointHash(raw));
  assert.equal(tls('disable').endPoint, null);
});
