import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import { type Certs, makeCerts } from '../support/certs.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { reportRules, runProgram } from '../support/programs.ts';
import { REPOSITORY } from '../support/repository.ts';
import { requirePackage } from '../support/skip.ts';
import { tlsSettings } from '../support/tls-client.ts';

/** psycopg 3 and the JDBC driver over TLS; each of their rules is a subtest. */

const PYTHON = '/usr/bin/python3';
const DRIVER = '/usr/share/java/postgresql.jar';
const DRIVERS = join(REPOSITORY, 'test/support/drivers');

let postgres: TestPostgres;
let certs: Certs;
let ports: string[];
const fleets: TestPgfleet[] = [];

/** One that takes SCRAM, one that takes certificates, one with a certificate for another name. */
before(async () => {
  [postgres, certs] = await Promise.all([startPostgres(), makeCerts()]);
  const scram = {
    ...tlsSettings(certs, 'require'),
    auth_type: 'scram-sha-256',
    // The JDBC driver names it in its StartupMessage.
    ignore_startup_parameters: 'extra_float_digits',
  };
  const kinds: Section[] = [
    scram,
    { ...scram, ...tlsSettings(certs, 'verify-full'), auth_type: 'cert' },
    {
      ...scram,
      client_tls_cert_file: certs.file('wrong-name.crt'),
      client_tls_key_file: certs.file('wrong-name.key'),
    },
  ];
  for (const settings of kinds) {
    const databases = { app: settings['auth_type'] === 'cert' ? 'user=app password=app' : '' };
    const fleet = await startPgfleet({ postgres, size: 2, databases, settings });
    fleet.allowLog(/pooler error: /, /TLS handshake error: /, /password authentication failed/);
    fleets.push(fleet);
  }
  ports = fleets.map(({ port }) => String(port));
});

async function temporary(t: TestContext): Promise<string> {
  const folder = await makeFolder('drivers-tls');
  t.after(() => removeFolder(folder));
  return folder;
}

async function succeeds(program: string, args: readonly string[]): Promise<void> {
  const { status, stderr } = await runProgram(program, args, { asServer: true });
  assert.equal(status, 0, stderr);
}

test('psycopg 3 over TLS', async (t) => {
  const isThere = spawnSync(PYTHON, ['-c', 'import psycopg'], { stdio: 'ignore' }).status === 0;
  if (!requirePackage(t, 'python3-psycopg', isThere)) return;
  const script = join(DRIVERS, 'psycopg_tls.py');
  await reportRules(t, PYTHON, ['-B', script, ...ports, dirname(certs.file('ca.crt'))]);
});

test('JDBC over TLS', async (t) => {
  const hasJava = spawnSync('javac', ['-version'], { stdio: 'ignore' }).status === 0;
  if (!requirePackage(t, 'libpostgresql-jdbc-java', existsSync(DRIVER))) return;
  if (!requirePackage(t, 'default-jdk-headless', hasJava)) return;
  const folder = await temporary(t);
  // The driver reads keys in PKCS #8 only.
  for (const name of ['app', 'mallory'] as const) {
    const files = ['-in', certs.file(`${name}.key`), '-out', join(folder, `${name}.pk8`)];
    await succeeds('openssl', ['pkcs8', '-topk8', '-nocrypt', '-outform', 'DER', ...files]);
  }
  const source = join(DRIVERS, 'JdbcTls.java');
  const { status, stderr } = await runProgram('javac', ['-cp', DRIVER, '-d', folder, source]);
  assert.equal(status, 0, stderr);
  const options = ['-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-cp', `${DRIVER}:${folder}`];
  const args = [...ports, dirname(certs.file('ca.crt')), folder];
  await reportRules(t, 'java', [...options, 'JdbcTls', ...args]);
});

test('the fleets and PostgreSQL stop', async () => {
  for (const fleet of fleets) await fleet.stop();
  await postgres.dispose();
});
