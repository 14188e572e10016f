/** Clients that prove their name by a certificate. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { giveToServer } from '../support/account.ts';
import { type Certs, makeCerts } from '../support/certs.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { preparePgfleet } from '../support/pgfleet.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { ourPooler, type RuleOptions, rule } from '../support/rule.ts';
import { loginTls, type TlsOptions, tlsSettings } from '../support/tls-client.ts';
import { type LoginOptions, WireClient, WireError } from '../support/wire-client.ts';

const FAILED = 'certificate authentication failed';
const NO_METHOD = 'no authentication method is found';

let postgres: TestPostgres;
let certs: Certs;
let folder: string;

before(async () => {
  [postgres, certs] = await Promise.all([startPostgres(), makeCerts()]);
  folder = await makeFolder('cert');
  await write('hba', HBA);
  await write('ident', IDENT);
  await write('recipe', RECIPE);
  await write('named', NAMED_HBA);
  await write('named_ident', NAMED_IDENT);
});

const HBA = `
hostssl   bare      all         0.0.0.0/0   cert
hostssl   mapped    all         0.0.0.0/0   cert map=m
hostssl   scram     app         0.0.0.0/0   scram-sha-256
hostnossl notls     all         0.0.0.0/0   trust
`;
const IDENT = `
m  mallory  app_plain
m  APP      all
`;
const RECIPE = `
local      pgbouncer  all       scram-sha-256
host       pgbouncer  postgres  127.0.0.1/32   scram-sha-256
hostnossl  all        all       0.0.0.0/0      reject
hostssl    all        all       0.0.0.0/0      scram-sha-256
`;
/** Options that PostgreSQL has, and PgBouncer not. */
const NAMED_HBA = `
hostssl   cn        all         all   cert clientname=CN
hostssl   dn        all         all   cert map=d clientname=DN
`;
const NAMED_IDENT = 'd "CN=app,O=Example" app_plain\n';

async function write(name: string, text: string): Promise<string> {
  const path = join(folder, name);
  await writeFile(path, text);
  await giveToServer(path);
  return path;
}

const DATABASES = ['bare', 'mapped', 'scram', 'notls', 'cn', 'dn'];
const options = (settings: Section): RuleOptions => ({
  postgres,
  databases: {
    app: '',
    ...Object.fromEntries(DATABASES.map((name) => [name, 'dbname=app user=app password=app'])),
  },
  settings,
});

const byCert = (name: 'app' | 'mallory' | null): TlsOptions =>
  name === null
    ? {}
    : {
        cert: readFileSync(certs.file(`${name}.crt`)),
        key: readFileSync(certs.file(`${name}.key`)),
      };

type Login = readonly [
  certificate: 'app' | 'mallory' | null,
  user: string,
  database: string,
  /** Null: it is let in. */
  refusal: string | null,
];

async function check(pooler: TestPooler, logins: readonly Login[]): Promise<void> {
  for (const [certificate, user, database, refusal] of logins) {
    const said = await refusalOf(pooler, byCert(certificate), { user, database });
    assert.equal(said, refusal, `${certificate} as ${user} in ${database}`);
  }
}

async function refusalOf(
  pooler: TestPooler,
  tls: TlsOptions,
  login: LoginOptions,
): Promise<string | null> {
  try {
    const { client } = await loginTls(pooler, tls, login);
    client.destroy();
    return null;
  } catch (error) {
    if (error instanceof WireError) return error.text;
    throw error;
  }
}

const hba = (name: string, ident: string): Section => ({
  auth_type: 'hba',
  auth_hba_file: join(folder, name),
  auth_ident_file: join(folder, ident),
});

rule(
  'auth_type=cert lets in the name of the certificate and no other',
  () => options({ ...tlsSettings(certs, 'verify-full'), auth_type: 'cert' }),
  (pooler) =>
    check(pooler, [
      ['app', 'app', 'bare', null],
      ['app', 'app_plain', 'bare', FAILED],
      ['mallory', 'app', 'bare', FAILED],
      ['mallory', 'mallory', 'bare', FAILED],
    ]),
);

rule(
  'an HBA rule may ask for a certificate, and its map says whose it may be',
  () => options({ ...tlsSettings(certs, 'allow'), ...hba('hba', 'ident') }),
  async (pooler) => {
    await check(pooler, [
      ['app', 'app', 'bare', null],
      [null, 'app', 'bare', FAILED],
      ['mallory', 'app', 'bare', FAILED],
      ['mallory', 'app_plain', 'mapped', null],
      ['mallory', 'app', 'mapped', FAILED],
      ['app', 'app', 'mapped', null],
      ['app', 'app_md5', 'mapped', null],
      ['app', 'nobody', 'mapped', FAILED],
      [null, 'app', 'scram', null],
      ['mallory', 'app', 'scram', null],
      ['app', 'app', 'notls', NO_METHOD],
    ]);
    const client = await WireClient.login(pooler, { database: 'notls' });
    client.destroy();
  },
  { since: '1.23.0' },
);

rule(
  'SCRAM over TLS and nothing without it, as one HBA file says',
  () => ({
    ...options({ ...tlsSettings(certs, 'prefer'), ...hba('recipe', 'ident') }),
    logs: [/ERROR C-\S+ \S+ password authentication failed$/],
  }),
  async (pooler) => {
    assert.equal(await refusalOf(pooler, {}, { database: 'app' }), null);
    assert.equal(
      await refusalOf(pooler, {}, { database: 'app', password: 'wrong' }),
      'SASL authentication failed',
    );
    await assert.rejects(WireClient.login(pooler, { database: 'app' }), /login rejected/);
    const console = { user: 'postgres', database: 'pgbouncer' };
    (await WireClient.login(pooler, console)).destroy();
  },
  // `auth_ident_file`
  { since: '1.23.0' },
);

rule(
  'a rule may say that the common name counts alone, or the distinguished name',
  () => options({ ...tlsSettings(certs, 'verify-ca'), ...hba('named', 'named_ident') }),
  (pooler) =>
    check(pooler, [
      ['app', 'app', 'cn', null],
      ['mallory', 'app', 'cn', FAILED],
      ['app', 'app_plain', 'dn', null],
      ['app', 'app', 'dn', FAILED],
      ['mallory', 'app_plain', 'dn', FAILED],
    ]),
  { differs: { because: 'it has no option clientname' } },
);

for (const mode of ['allow', 'verify-full']) {
  test(`a certificate of another CA is refused by the handshake, with client_tls_sslmode=${mode}`, async (t) => {
    const settings = { ...tlsSettings(certs, mode), ...hba('hba', 'ident') };
    const fleet = await ourPooler(t, options(settings));
    const stranger = {
      cert: readFileSync(certs.file('stranger.crt')),
      key: readFileSync(certs.file('stranger.key')),
    };
    const login = refusalOf(fleet, stranger, { database: 'bare' });
    assert.match(String(await login.catch(String)), /certificate verify failed/);
  });
}

test('auth_type=cert is refused at the start without verify-full', async () => {
  const settings = { ...tlsSettings(certs, 'verify-ca'), auth_type: 'cert' };
  const fleet = await preparePgfleet({ postgres, settings });
  await assert.rejects(
    fleet.start(),
    /auth_type=cert requires client_tls_sslmode=SSLMODE_VERIFY_FULL/,
  );
  await removeFolder(fleet.folder);
});

test('the server is put away', async () => {
  await removeFolder(folder);
  await postgres.dispose();
});
