import assert from 'node:assert/strict';
import { copyFileSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import {
  defaultFleetSettings,
  defaultSettings,
  type FleetSettings,
  type Settings,
} from '../../../src/config/schema.ts';
import { log } from '../../../src/log/logger.ts';
import { ServerTls } from '../../../src/tls/server-tls.ts';
import { TlsSetupError } from '../../../src/tls/setup-error.ts';
import { makeCerts, missingOpenssl } from '../../support/certs.ts';

const skip = (await missingOpenssl()) ?? false;

const tls = (changes: Partial<Settings>, fleet: Partial<FleetSettings> = {}) =>
  new ServerTls({ ...defaultSettings(), ...changes }, { ...defaultFleetSettings(), ...fleet });

/** Why a configuration is refused: the lines of the log. */
function refusal(changes: Partial<Settings>): string {
  try {
    tls({ server_tls_sslmode: 'require', ...changes });
  } catch (error) {
    assert.ok(error instanceof TlsSetupError);
    return error.message;
  }
  throw new Error('it was accepted');
}

function folderOf(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-tls-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

const MODES = ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'] as const;

test('each sslmode says whether TLS is asked for, may be refused, and what is checked', async () => {
  const rows = MODES.map(async (server_tls_sslmode) => {
    const one = tls({ server_tls_sslmode });
    const { rejectUnauthorized } = await one.options('db.example');
    return [server_tls_sslmode, one.isAsked, one.isOptional, rejectUnauthorized];
  });
  assert.deepEqual(await Promise.all(rows), [
    ['disable', false, false, false],
    ['allow', true, true, false],
    ['prefer', true, true, false],
    ['require', true, false, false],
    ['verify-ca', true, false, true],
    ['verify-full', true, false, true],
  ]);
});

test('the name is checked and told for verify-full only, and an address is not told', async () => {
  const full = tls({ server_tls_sslmode: 'verify-full' });
  const named = await full.options('db.example');
  assert.equal(named.servername, 'db.example');
  const other = { subject: { CN: 'other.example' } } as never;
  assert.match(`${named.checkServerIdentity?.('db.example', other)}`, /not present/);
  for (const address of ['192.0.2.7', '2001:db8::7']) {
    const options = await full.options(address);
    assert.deepEqual([options.host, options.servername], [address, undefined]);
  }
  const ca = await tls({ server_tls_sslmode: 'verify-ca' }).options('db.example');
  assert.equal(ca.checkServerIdentity?.('db.example', other), undefined);
  assert.equal(ca.servername, undefined);
});

test('direct TLS names the protocol that is to be spoken', async () => {
  const direct = tls({ server_tls_sslmode: 'require' }, { server_tls_negotiation: 'direct' });
  assert.equal(direct.isDirect, true);
  assert.deepEqual((await direct.options('h')).ALPNProtocols, ['postgresql']);
  const asked = tls({ server_tls_sslmode: 'require' });
  assert.equal(asked.isDirect, false);
  assert.equal((await asked.options('h')).ALPNProtocols, undefined);
});

test('all connections share one context', async () => {
  const one = tls({ server_tls_sslmode: 'require' });
  const { secureContext } = await one.options('a');
  assert.ok(secureContext);
  assert.equal((await one.options('b')).secureContext, secureContext);
});

test('files are read when TLS is asked for, and only then', () => {
  const files = {
    server_tls_ca_file: '/nowhere/ca',
    server_tls_key_file: '/nowhere/key',
    server_tls_cert_file: '/nowhere/cert',
  };
  tls({ server_tls_sslmode: 'disable', ...files });
  for (const [key, path] of Object.entries(files)) {
    assert.equal(
      refusal({ [key]: path }),
      `TLS setup failed: ${key}: could not read "${path}": No such file or directory\nTLS setup failed`,
    );
  }
});

test('a file or a setting that cannot be used is refused by its name', { skip }, async (t) => {
  const certs = await makeCerts();
  const empty = join(folderOf(t), 'empty');
  writeFileSync(empty, 'nothing of the kind\n');
  const [key, cert] = [certs.file('app.key'), certs.file('app.crt')];
  const rows: readonly (readonly [Partial<Settings>, RegExp])[] = [
    [{ server_tls_ca_file: empty }, /: server_tls_ca_file: could not use ".*empty": it holds no/],
    [{ server_tls_ca_file: key }, /: server_tls_ca_file: could not use ".*app.key": it holds no/],
    [
      { server_tls_key_file: empty, server_tls_cert_file: cert },
      /: server_tls_key_file: could not use ".*empty": error:/,
    ],
    [
      { server_tls_key_file: key, server_tls_cert_file: empty },
      /: server_tls_cert_file: could not use ".*empty": error:/,
    ],
    [
      { server_tls_key_file: certs.file('mallory.key'), server_tls_cert_file: cert },
      /: server_tls_key_file: could not use ".*mallory.key": error:05800074:x509 certificate routines::key values mismatch\n/,
    ],
    [{ server_tls_key_file: key }, /: server_tls_key_file and server_tls_cert_file must be set /],
    [{ server_tls_cert_file: cert }, /: server_tls_key_file and server_tls_cert_file must be set /],
    [{ server_tls_ciphers: 'NOSUCH' }, /^invalid server_tls_ciphers: NOSUCH\nTLS setup failed$/],
    [
      { server_tls_protocols: 'tlsv1.2,!tlsv1.2' },
      /^invalid server_tls_protocols: tlsv1.2,!tlsv1.2\nTLS setup failed$/,
    ],
  ];
  for (const [changes, expected] of rows) assert.match(refusal(changes), expected);
});

test('a file that has changed is read again, and one that is broken is not', {
  skip,
}, async (t) => {
  const lines: string[] = [];
  t.mock.method(log, 'warning', (text: string) => lines.push(text));
  const certs = await makeCerts();
  const folder = folderOf(t);
  const path = join(folder, 'ca.crt');
  copyFileSync(certs.file('ca.crt'), path);
  const one = tls({ server_tls_sslmode: 'verify-ca', server_tls_ca_file: path });
  const context = async () => (await one.options('h')).secureContext;
  const first = await context();
  writeFileSync(path, 'half');
  assert.equal(await context(), first);
  rmSync(path);
  assert.equal(await context(), first);
  assert.match(lines[0]!, /^TLS connect error: server_tls_ca_file: could not use .* read before$/);
  assert.match(lines[1]!, /^TLS connect error: server_tls_ca_file: could not read .* read before$/);
  copyFileSync(certs.file('other-ca.crt'), join(folder, 'new'));
  renameSync(join(folder, 'new'), path);
  const second = await context();
  assert.notEqual(second, first);
  assert.equal(await context(), second);
  assert.equal(lines.length, 2);
});
