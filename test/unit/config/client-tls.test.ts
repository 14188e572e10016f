import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { createSecureContext } from 'node:tls';
import { runCheck } from '../../../src/cli/check.ts';
import { clientTlsOptions } from '../../../src/config/client-tls.ts';
import { formatProblem, loadConfig } from '../../../src/config/load.ts';
import { type Certs, makeCerts, missingOpenssl } from '../../support/certs.ts';

const skip = (await missingOpenssl()) ?? false;
const NO_FILE = 'error:80000002:system library::No such file or directory';

let certs: Certs;
before(async () => {
  if (skip === false) certs = await makeCerts();
});

/** Loads `[pgbouncer]` with these lines; a file that is none of the certificates has its own text. */
function load(lines: readonly string[], fleet = '', files: Record<string, string> = {}) {
  const text = `[pgbouncer]\n${lines.join('\n')}\n[fleet]\n${fleet}\n`;
  const readFile = (path: string): string =>
    path === 'f' ? text : (files[path] ?? readFileSync(path, 'utf8'));
  const { config, problems } = loadConfig('f', { readFile });
  return { config, said: problems.map(formatProblem) };
}

const MODE = 'client_tls_sslmode = require';
const key = (): string => `client_tls_key_file = ${certs.file('server.key')}`;
const cert = (): string => `client_tls_cert_file = ${certs.file('server.crt')}`;
const ca = (): string => `client_tls_ca_file = ${certs.file('ca.crt')}`;

test('with TLS off no file is read', () => {
  const { config, said } = load(['client_tls_key_file = nowhere', 'client_tls_ca_file = nowhere']);
  assert.deepEqual(said, []);
  assert.equal(config?.clientTls, null);
});

test('the files travel with the configuration, and come whole through the workers channel', {
  skip,
}, () => {
  const { config } = load(
    ['client_tls_sslmode = verify-full', key(), cert(), ca()],
    `client_tls_crl_file = ${certs.file('ca.crl')}`,
  );
  const files = config?.clientTls;
  assert.deepEqual(JSON.parse(JSON.stringify(files)), files);
  assert.equal(files?.key, readFileSync(certs.file('server.key'), 'utf8'));
  assert.equal(files.cert, readFileSync(certs.file('server.crt'), 'utf8'));
  assert.equal(files.ca, readFileSync(certs.file('ca.crt'), 'utf8'));
  assert.equal(files.crl?.length, 1);
});

test('what cannot work is refused with the words of PgBouncer and the line at fault', {
  skip,
}, () => {
  const fail = 'TLS setup failed: failed to load';
  const file = (name: Parameters<Certs['file']>[0]): string => certs.file(name);
  const rows: readonly [lines: string[], expected: string, fleet?: string][] = [
    [
      [MODE],
      'f:2: client_tls_sslmode: To allow TLS connections from clients, client_tls_key_file and client_tls_cert_file must be set.',
    ],
    [
      [MODE, key()],
      'f:2: client_tls_sslmode: To allow TLS connections from clients, client_tls_key_file and client_tls_cert_file must be set.',
    ],
    [
      ['client_tls_sslmode = verify-full', key(), cert()],
      'f:2: client_tls_sslmode: client_tls_sslmode requires client_tls_ca_file',
    ],
    [
      [MODE, key(), 'client_tls_cert_file = /gone'],
      `f:4: client_tls_cert_file: ${fail} certificate file "/gone": ${NO_FILE}`,
    ],
    [
      [MODE, 'client_tls_key_file = /gone', cert()],
      `f:3: client_tls_key_file: ${fail} private key file "/gone": ${NO_FILE}`,
    ],
    [
      [MODE, key(), cert(), 'client_tls_ca_file = /gone'],
      `f:5: client_tls_ca_file: ${fail} CA: ${NO_FILE}`,
    ],
    [
      [MODE, 'client_tls_key_file = junk', cert()],
      `f:3: client_tls_key_file: ${fail} private key file "junk": error:1E08010C:DECODER routines::unsupported`,
    ],
    [
      [MODE, key(), 'client_tls_cert_file = junk'],
      `f:4: client_tls_cert_file: ${fail} certificate file "junk": error:0480006C:PEM routines::no start line`,
    ],
    [
      [MODE, key(), cert(), 'client_tls_ca_file = junk'],
      `f:5: client_tls_ca_file: ${fail} CA: error:05800088:x509 certificate routines::no certificate or crl found`,
    ],
    [
      [MODE, `client_tls_key_file = ${file('app.key')}`, cert()],
      `f:3: client_tls_key_file: TLS setup failed: private/public key mismatch: "${file('app.key')}" is not the key of "${file('server.crt')}"`,
    ],
    [
      [MODE, key(), cert(), 'client_tls_ciphers = FOO'],
      'f:5: client_tls_ciphers: invalid client_tls_ciphers: FOO',
    ],
    [
      [MODE, key(), cert(), 'client_tls_ciphers = all'],
      'f:5: client_tls_ciphers: invalid client_tls_ciphers: all',
    ],
    [
      [MODE, key(), cert(), 'client_tls_ecdhcurve = FOO'],
      'f:5: client_tls_ecdhcurve: invalid client_tls_ecdhecurve: FOO',
    ],
    [
      [MODE, key(), cert()],
      'f:6: client_tls_crl_file: client_tls_crl_file requires client_tls_ca_file',
      `client_tls_crl_file = ${file('ca.crl')}`,
    ],
    [
      [MODE, key(), cert(), ca()],
      `f:7: client_tls_crl_file: ${fail} CRL file "/gone": ${NO_FILE}`,
      'client_tls_crl_file = /gone',
    ],
    [
      [MODE, key(), cert(), ca()],
      `f:7: client_tls_crl_file: ${fail} CRL file "junk": error:05800088:x509 certificate routines::no certificate or crl found`,
      'client_tls_crl_file = junk',
    ],
  ];
  for (const [lines, expected, fleet] of rows) {
    const { config, said } = load(lines, fleet, { junk: 'junk' });
    assert.deepEqual(said, [expected]);
    assert.equal(config, null);
  }
});

test('one bad certificate spoils a bundle of authorities', { skip }, () => {
  const good = readFileSync(certs.file('ca.crt'), 'utf8');
  const bad = '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n';
  const lines = [MODE, key(), cert(), 'client_tls_ca_file = bundle'];
  assert.match(load(lines, '', { bundle: good + bad }).said.join(), /failed to load CA: error:/);
  assert.deepEqual(load(lines, '', { bundle: good + good }).said, []);
});

test('nothing that is printed of a key file is out of it', { skip }, () => {
  const secret = readFileSync(certs.file('server.key'), 'utf8');
  const half = secret.slice(0, secret.length / 2);
  const { said } = load([MODE, 'client_tls_key_file = half', cert()], '', { half });
  assert.match(said.join(), /^f:3: client_tls_key_file: /);
  assert.ok(!said.join().includes(secret.split('\n')[1]!.slice(0, 20)));
  const { config } = load([MODE, key(), cert()]);
  assert.ok(!JSON.stringify(config?.settings).includes('PRIVATE'));
});

test('pgfleet check tells what a start would fail with', { skip }, (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-tls-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'pgbouncer.ini');
  const check = (lines: readonly string[]): [number, string] => {
    writeFileSync(file, `[pgbouncer]\n${lines.join('\n')}\n`);
    let said = '';
    const status = runCheck(file, { write: (line: string) => (said += line) });
    return [status, said];
  };
  assert.deepEqual(check([MODE, key(), cert()]), [0, `${file}: ok\n`]);
  const gone = `client_tls_cert_file: TLS setup failed: failed to load certificate file "/gone": ${NO_FILE}`;
  assert.deepEqual(check([MODE, key(), 'client_tls_cert_file = /gone']), [
    1,
    `${file}:4: ${gone}\n`,
  ]);
});

test('protocols, ciphers and curve become what OpenSSL is told', { skip }, () => {
  const options = (...lines: string[]) => {
    const { config, said } = load([MODE, key(), cert(), ...lines]);
    assert.ok(config?.clientTls, said.join());
    const all = clientTlsOptions(config.settings, config.clientTls);
    createSecureContext(all);
    return all;
  };
  const usual = options();
  assert.deepEqual([usual.minVersion, usual.maxVersion], ['TLSv1.2', 'TLSv1.3']);
  assert.deepEqual([usual.ecdhCurve, usual.dhparam], ['auto', 'auto']);
  assert.match(usual.ciphers!, /^TLS_AES_256_GCM_SHA384:.*:DEFAULT$/);
  assert.equal(options('client_tls_ecdhcurve = none').ecdhCurve, 'auto');
  assert.equal(options('client_tls_ecdhcurve = secp384r1').ecdhCurve, 'secp384r1');
  assert.equal(options('client_tls_dheparams = none').dhparam, undefined);
  const older = options('client_tls_ciphers = HIGH').ciphers!;
  assert.match(older, /^TLS_AES_256_GCM_SHA384:.*:HIGH$/);
  const newer = options('client_tls13_ciphers = TLS_AES_128_GCM_SHA256').ciphers;
  assert.equal(newer, 'TLS_AES_128_GCM_SHA256:DEFAULT');
});
