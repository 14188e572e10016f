import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { before, test } from 'node:test';
import { giveToServer } from '../support/account.ts';
import { type Certs, makeCerts } from '../support/certs.ts';
import { TLS_DRIVERS, type TlsDriver, type TlsLogin } from '../support/drivers/tls-drivers.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { reportRules, runProgram } from '../support/programs.ts';
import { REPOSITORY } from '../support/repository.ts';
import { requirePackage } from '../support/skip.ts';
import { tlsSettings } from '../support/tls-client.ts';
import { until } from '../support/until.ts';

/**
 * Clients of other makers over TLS. psql and the npm packages follow the rules here; psycopg 3 and
 * the JDBC driver have the same ones in their own languages, each a subtest.
 */

const PYTHON = '/usr/bin/python3';
const DRIVER = '/usr/share/java/postgresql.jar';
const DRIVERS = join(REPOSITORY, 'test/support/drivers');

/**
 * A fleet each: passwords; client certificates; passwords, with a certificate for another name; an
 * HBA file, by which mallory's certificate proves app_plain in the database `mapped`, and everybody
 * else needs a certificate and a password.
 */
const KINDS = ['scram', 'cert', 'misnamed', 'hba'] as const;
type Kind = (typeof KINDS)[number];

const HBA = `
hostssl  mapped  all  all  cert map=m
hostssl  all     all  all  scram-sha-256
`;
const IDENT = 'm mallory app_plain\n';

let postgres: TestPostgres;
let certs: Certs;
let folder: string;
const fleets = new Map<Kind, TestPgfleet>();

before(async () => {
  [postgres, certs] = await Promise.all([startPostgres(), makeCerts()]);
  folder = await makeFolder('drivers-tls');
  for (const [name, text] of Object.entries({ hba: HBA, ident: IDENT })) {
    await writeFile(join(folder, name), text);
    await giveToServer(join(folder, name));
  }
  for (const kind of KINDS) {
    const fleet = await startPgfleet({
      postgres,
      size: 2,
      databases: { app: kind === 'cert' ? 'user=app password=app' : '', mapped: 'dbname=app' },
      // The JDBC driver names it in its StartupMessage.
      settings: { ...settingsOf(kind), ignore_startup_parameters: 'extra_float_digits' },
    });
    fleet.allowLog(/pooler error: /, /TLS handshake error: /, /password authentication failed/);
    fleets.set(kind, fleet);
  }
});

function settingsOf(kind: Kind): Section {
  const scram = { ...tlsSettings(certs, 'require'), auth_type: 'scram-sha-256' };
  const strict = tlsSettings(certs, 'verify-full');
  switch (kind) {
    case 'scram':
      return scram;
    case 'cert':
      return { ...strict, auth_type: 'cert' };
    case 'misnamed':
      return {
        ...scram,
        client_tls_cert_file: certs.file('wrong-name.crt'),
        client_tls_key_file: certs.file('wrong-name.key'),
      };
    case 'hba':
      return {
        ...strict,
        auth_type: 'hba',
        auth_hba_file: join(folder, 'hba'),
        auth_ident_file: join(folder, 'ident'),
      };
  }
}

const to = (kind: Kind, more: Partial<TlsLogin> = {}): TlsLogin => ({
  port: fleets.get(kind)!.port,
  certs,
  ...more,
});
const WITH_PASSWORD = { password: 'app' };

const RULES: Readonly<Record<string, (driver: TlsDriver) => Promise<void>>> = {
  'SCRAM with sslmode verify-full': async ({ whoAmI }) => {
    assert.equal(await whoAmI(to('scram', WITH_PASSWORD)), 'app');
    const wrong = to('scram', { password: 'wrong' });
    await assert.rejects(whoAmI(wrong), /SASL authentication failed/);
  },

  'a pooler whose certificate is of another authority is refused': ({ whoAmI, refusals }) =>
    assert.rejects(whoAmI(to('scram', { ...WITH_PASSWORD, ca: 'other-ca' })), refusals.authority),

  'a pooler whose certificate is for another name is refused by verify-full only': async ({
    whoAmI,
    refusals,
  }) => {
    await assert.rejects(whoAmI(to('misnamed', WITH_PASSWORD)), refusals.name);
    assert.equal(await whoAmI(to('misnamed', { ...WITH_PASSWORD, mode: 'verify-ca' })), 'app');
  },

  'a client certificate proves the name, without a password': async ({ whoAmI }) => {
    assert.equal(await whoAmI(to('cert', { certificate: 'app' })), 'app');
    await assert.rejects(
      whoAmI(to('cert', { certificate: 'mallory' })),
      /certificate authentication failed/,
    );
    await assert.rejects(
      whoAmI(to('cert', { certificate: 'stranger' })),
      /certificate verify failed/,
    );
    // In TLS 1.3 the alert for it races with what the driver sends meanwhile: the words differ.
    await assert.rejects(whoAmI(to('cert')));
  },

  'an HBA rule maps a certificate to a name, or asks for a password besides': async ({
    whoAmI,
  }) => {
    const mapped = { database: 'mapped', user: 'app_plain' };
    assert.equal(await whoAmI(to('hba', { ...mapped, certificate: 'mallory' })), 'app_plain');
    await assert.rejects(
      whoAmI(to('hba', { ...mapped, certificate: 'app' })),
      /certificate authentication failed/,
    );
    assert.equal(await whoAmI(to('hba', { ...WITH_PASSWORD, certificate: 'app' })), 'app');
    await assert.rejects(
      whoAmI(to('hba', { password: 'wrong', certificate: 'app' })),
      /SASL authentication failed/,
    );
    await assert.rejects(whoAmI(to('hba', WITH_PASSWORD)));
  },
};

for (const driver of TLS_DRIVERS) {
  test(`${driver.name} over TLS`, async (t) => {
    if (!requirePackage(t, 'postgresql-client-15', driver.isThere())) return;
    for (const [rule, check] of Object.entries(RULES)) await t.test(rule, () => check(driver));
    const { cancel } = driver;
    if (cancel === undefined) return;
    await t.test('a cancelled statement fails, and says so', async () => {
      const sql = `SELECT pg_sleep(60) /* ${driver.name} */`;
      const runs = until('it runs', async () =>
        (await postgres.backends({ user: 'app' })).some(
          ({ state, query }) => state === 'active' && query.includes(sql),
        ),
      );
      const error = await cancel(to('scram', WITH_PASSWORD), sql, runs);
      assert.match(error, /canceling statement due to user request/);
    });
  });
}

/** Arguments of the rules in other languages. */
const places = (): string[] => [
  ...KINDS.map((kind) => String(fleets.get(kind)!.port)),
  dirname(certs.file('ca.crt')),
];

test('psycopg 3 over TLS', async (t) => {
  const isThere = spawnSync(PYTHON, ['-c', 'import psycopg'], { stdio: 'ignore' }).status === 0;
  if (!requirePackage(t, 'python3-psycopg', isThere)) return;
  const script = join(DRIVERS, 'psycopg_tls.py');
  await reportRules(t, PYTHON, ['-B', script, ...places()]);
});

test('JDBC over TLS', async (t) => {
  const hasJava = spawnSync('javac', ['-version'], { stdio: 'ignore' }).status === 0;
  if (!requirePackage(t, 'libpostgresql-jdbc-java', existsSync(DRIVER))) return;
  if (!requirePackage(t, 'default-jdk-headless', hasJava)) return;
  // The driver reads keys in PKCS #8 only.
  for (const name of ['app', 'mallory'] as const) {
    const files = ['-in', certs.file(`${name}.key`), '-out', join(folder, `${name}.pk8`)];
    await succeeds('openssl', ['pkcs8', '-topk8', '-nocrypt', '-outform', 'DER', ...files]);
  }
  await succeeds('javac', ['-cp', DRIVER, '-d', folder, join(DRIVERS, 'JdbcTls.java')]);
  const options = ['-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-cp', `${DRIVER}:${folder}`];
  await reportRules(t, 'java', [...options, 'JdbcTls', ...places(), folder]);
});

async function succeeds(program: string, args: readonly string[]): Promise<void> {
  const { status, stderr } = await runProgram(program, args);
  assert.equal(status, 0, stderr);
}

test('the fleets and PostgreSQL stop', async () => {
  for (const fleet of fleets.values()) await fleet.stop();
  await removeFolder(folder);
  await postgres.dispose();
});
