/** The README's set-ups of logins, each tried as it stands there. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { copyFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import pg from 'pg';
import { giveToServer } from '../support/account.ts';
import { type CertFile, type Certs, makeCerts } from '../support/certs.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { textRows } from '../support/messages.ts';
import { type PgfleetOptions, startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { REPOSITORY } from '../support/repository.ts';
import { requirePackage } from '../support/skip.ts';
import { hasSlapd, READER, SUFFIX, startSlapd } from '../support/slapd.ts';
import { loginTls, type TlsOptions } from '../support/tls-client.ts';
import { WireClient } from '../support/wire-client.ts';

/** Where the recipes have their files. */
const PLACE = '/etc/pgfleet';
/** What stands in that folder here. */
const CERTIFICATES: Readonly<Record<string, CertFile>> = {
  'server.key': 'server.key',
  'server.crt': 'server.crt',
  'clients-ca.crt': 'ca.crt',
  'servers-ca.crt': 'ca.crt',
};

const README = readFileSync(join(REPOSITORY, 'README.md'), 'utf8');
const chapter = /^### Logins and TLS\n([\s\S]*?)\n### /m.exec(README)?.[1] ?? '';

let postgres: TestPostgres;
let certs: Certs;
let folder: string;

before(async () => {
  certs = await makeCerts();
  folder = await makeFolder('recipes');
  const ssl = { ssl_cert_file: certs.file('server.crt'), ssl_key_file: certs.file('server.key') };
  postgres = await startPostgres({
    settings: { ssl: 'on', ...ssl },
    hba: ['host all pgfleet_auth samehost scram-sha-256'],
  });
  for (const [name, file] of Object.entries(CERTIFICATES)) {
    await copyFile(certs.file(file), join(folder, name));
    await giveToServer(join(folder, name));
  }
  const [row] = await postgres.query("SELECT rolpassword FROM pg_authid WHERE rolname = 'app'");
  await write('userlist.txt', `"app" "${String(row!['rolpassword'])}"\n`);
  await write('hba.conf', 'include more.conf\nhost all all all reject\n');
  await write('more.conf', 'host app app 127.0.0.0/8 scram-sha-256\nlocal all all peer map=own\n');
  await write('ident.conf', 'own postgres app\n');
});

async function write(name: string, text: string): Promise<void> {
  await writeFile(join(folder, name), text);
  await giveToServer(join(folder, name));
}

/** The blocks of the chapter, by the beginning of the comment that each begins with. */
const blocks = [...chapter.matchAll(/^```(?:ini|sql)\n(?:;|--) ([\s\S]*?)^```$/gm)].map(
  ([, text]) => text!,
);
const tried = new Set<string>();

function blockOf(beginning: string): string {
  const found = blocks.filter((text) => text.startsWith(beginning));
  assert.equal(found.length, 1, `one recipe begins with "${beginning}"`);
  tried.add(found[0]!);
  return found[0]!;
}

/** The settings of a recipe, with the files of this test. */
function settingsOf(beginning: string): Section {
  const lines = blockOf(beginning).split('\n').slice(1);
  const settings = lines
    .filter((line) => line !== '' && !line.startsWith(';'))
    .map((line) => {
      const [key = '', ...value] = line.split(' = ');
      return [key, value.join(' = ').replaceAll(PLACE, folder)] as const;
    });
  return Object.fromEntries(settings);
}

async function start(
  t: TestContext,
  settings: Section,
  more: PgfleetOptions = {},
): Promise<TestPgfleet> {
  const fleet = await startPgfleet({ postgres, size: 2, settings, ...more });
  t.after(() => fleet.stop());
  fleet.allowLog(/authentication failed|pooler error|login rejected|TLS handshake error/);
  return fleet;
}

const loginOf = { user: 'app', password: 'app', database: 'app' };

async function isServed(client: WireClient): Promise<void> {
  const rows = textRows(await client.query('SELECT current_user, current_database()'));
  assert.deepEqual(rows, [['app', 'app']]);
  await client.end();
}

const isRefused = (attempt: Promise<unknown>, text: RegExp): Promise<void> =>
  assert.rejects(attempt, (error: Error) => text.test(error.message));

test('clients over TLS with SCRAM', async (t) => {
  const fleet = await start(t, settingsOf('Clients over TLS with SCRAM'));
  await isServed((await loginTls(fleet, {}, loginOf)).client);
  await isRefused(
    loginTls(fleet, {}, { ...loginOf, password: 'no' }),
    /SASL authentication failed/,
  );
  await isRefused(WireClient.login(fleet, loginOf), /SSL required/);
  const client = new pg.Client({
    ...loginOf,
    ...{ host: 'localhost', port: fleet.port, enableChannelBinding: true },
    ssl: { ca: readFileSync(certs.file('ca.crt')) },
  });
  await client.connect();
  assert.deepEqual((await client.query('SELECT 1 AS one')).rows, [{ one: 1 }]);
  await client.end();
});

test('names looked up in the server', async (t) => {
  const sql = blockOf('In each database');
  const { host, port } = postgres;
  const database = new pg.Client({
    host,
    port,
    user: 'postgres',
    password: 'postgres',
    database: 'app',
  });
  await database.connect();
  await database.query(`-- ${sql}`);
  await database.end();
  const fleet = await start(t, settingsOf('Names are looked up'), {
    authFile: { pgfleet_auth: 'another secret' },
  });
  await isServed(await WireClient.login(fleet, loginOf));
  await isRefused(WireClient.login(fleet, { ...loginOf, password: 'no' }), /SASL authentication/);
  await postgres.query("ALTER ROLE app_md5 VALID UNTIL '2020-01-01'");
  const late = { user: 'app_md5', password: 'app_md5', database: 'app' };
  await isRefused(WireClient.login(fleet, late), /SASL authentication failed/);
  // The function is for the pooler alone.
  const client = await WireClient.login(fleet, loginOf);
  const answer = await client.query("SELECT pgfleet.lookup('app')");
  assert.match(answer[0]!.body.toString(), /permission denied for schema pgfleet/);
  await client.end();
});

test('client certificates', async (t) => {
  const fleet = await start(t, settingsOf('Client certificates'), {
    databases: { app: 'user=app password=app' },
  });
  const own = (name: 'app' | 'mallory'): TlsOptions => ({
    cert: readFileSync(certs.file(`${name}.crt`)),
    key: readFileSync(certs.file(`${name}.key`)),
  });
  await isServed((await loginTls(fleet, own('app'), loginOf)).client);
  await isRefused(loginTls(fleet, own('mallory'), loginOf), /certificate authentication failed/);
});

test('HBA and ident files', async (t) => {
  const fleet = await start(t, settingsOf('By address and database'));
  await isServed(await WireClient.login(fleet, loginOf));
  const other = { user: 'app_md5', password: 'app_md5', database: 'app' };
  await isRefused(WireClient.login(fleet, other), /login rejected/);
});

test('LDAP, by search and bind', async (t) => {
  const { auth_ldap_options: written, ...rest } = settingsOf('LDAP: search, then bind');
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const slapd = await startSlapd({
    people: [{ rdn: 'uid=app,ou=people', uid: 'app', password: 'app' }],
    lines: ['access to * by * read'],
  });
  t.after(() => slapd.dispose());
  const place = 'ldap.example/dc=example,dc=com';
  assert.ok(String(written).includes(place));
  const auth_ldap_options = String(written).replace(place, `localhost:${slapd.tlsPort}/${SUFFIX}`);
  const fleet = await start(
    t,
    { ...rest, auth_ldap_options },
    {
      authFile: {},
      env: { LDAPTLS_CACERT: certs.file('ca.crt') },
    },
  );
  await isServed(await WireClient.login(fleet, loginOf));
  await isRefused(WireClient.login(fleet, { ...loginOf, password: 'no' }), /LDAP authentication/);
  assert.ok(slapd.count(READER.dn) === 0, 'nobody is bound to search');
});

test('servers whose certificate is checked', async (t) => {
  const settings = settingsOf('Certificate and name of the server');
  const fleet = await start(t, settings, {
    databases: { app: `host=localhost port=${postgres.port}` },
  });
  const client = await WireClient.login(fleet, loginOf);
  const sql = 'SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()';
  assert.deepEqual(textRows(await client.query(sql)), [['t']]);
  await client.end();
});

test('every recipe of the README has been tried', async () => {
  assert.ok(blocks.length >= 7);
  assert.deepEqual(
    blocks.filter((text) => !tried.has(text)),
    [],
  );
  await postgres.dispose();
  await removeFolder(folder);
});
