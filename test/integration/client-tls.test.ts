/** Long streams through TLS, and what SUSPEND and RELOAD do to its clients. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { copyFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { memoryOf } from '../fault/support.ts';
import { giveToServer } from '../support/account.ts';
import { type CertFile, type Certs, makeCerts } from '../support/certs.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { COPY_DONE, copyData, query, textRows } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { failedReload, line, reload } from '../support/reload.ts';
import { connectTls, loginTls, type TlsOptions, tlsSettings } from '../support/tls-client.ts';
import { until } from '../support/until.ts';
import { WireError } from '../support/wire-client.ts';

const MEGABYTE = 1 << 20;

let postgres: TestPostgres;
let certs: Certs;
before(async () => {
  [postgres, certs] = await Promise.all([startPostgres(), makeCerts()]);
});

const pem = (name: CertFile): string => readFileSync(certs.file(name), 'utf8');
const as = (name: 'app' | 'revoked'): TlsOptions => ({
  cert: pem(`${name}.crt`),
  key: pem(`${name}.key`),
});

async function started(
  t: TestContext,
  settings: Section,
  more: { readonly size?: number; readonly fleet?: Section } = {},
): Promise<TestPgfleet> {
  const fleet = await startPgfleet({ postgres, settings, ...more });
  t.after(() => fleet.stop());
  fleet.allowLog(/pooler error: /, /TLS handshake error: /);
  return fleet;
}

test('long streams go both ways at the speed of the slower side, with little memory', async (t) => {
  const fleet = await started(t, tlsSettings(certs, 'require'));
  const { client, socket } = await loginTls(fleet);
  await client.query("SELECT repeat('w', 8000000)");
  const [worker] = fleet.workers();
  const before = memoryOf(worker!);
  let most = 0;
  const look = (): void => {
    most = Math.max(most, memoryOf(worker!) - before);
  };
  const clock = setInterval(look, 50);
  t.after(() => clearInterval(clock));

  socket.pause();
  client.send(query(`SELECT repeat('r', ${MEGABYTE}) FROM generate_series(1, 100)`));
  // Until then a pooler that did not hold back its server would have taken in everything.
  await sleep(1_500);
  socket.resume();
  const rows = textRows(await client.untilReady(120_000));
  assert.equal(rows.length, 100);
  assert.ok(rows.every(([value]) => value?.length === MEGABYTE));

  await client.query('BEGIN; CREATE TABLE copied (v text)');
  client.send(query('COPY copied FROM STDIN'));
  await client.until('G');
  postgres.signal('SIGSTOP');
  const block = copyData(Buffer.from(`${'c'.repeat(65_000)}\n`));
  const blocks = 1600;
  let sent = 0;
  while (sent < blocks) {
    sent++;
    if (socket.write(block)) continue;
    const drained = new Promise((resolve) => socket.once('drain', () => resolve(true)));
    if ((await Promise.race([drained, sleep(500)])) !== true) break;
  }
  assert.ok(sent < blocks, 'the client is held back');
  postgres.signal('SIGCONT');
  while (sent++ < blocks) {
    if (!socket.write(block)) await new Promise((resolve) => socket.once('drain', resolve));
  }
  client.send(COPY_DONE);
  await client.untilReady(120_000);
  const sums = await client.query('SELECT count(*), sum(length(v)) FROM copied; ROLLBACK');
  assert.deepEqual(textRows(sums), [[String(blocks), String(blocks * 65_000)]]);
  clearInterval(clock);
  assert.ok(most < 100 * MEGABYTE, `the worker grew by ${Math.round(most / MEGABYTE)} MB`);
  await client.end();
});

test('a fleet that is suspended and resumed goes on with its TLS clients', async (t) => {
  const fleet = await started(t, tlsSettings(certs, 'allow'));
  const { client } = await loginTls(fleet);
  await client.query('SELECT 1');
  const console = await fleet.client({
    user: 'postgres',
    password: 'postgres',
    database: 'pgbouncer',
  });
  await console.query('SUSPEND');
  client.send(query('SELECT 2'));
  const late = connectTls(fleet).catch((error: Error) => error);
  await sleep(300);
  await console.query('RESUME');
  await console.end();
  assert.deepEqual(textRows(await client.untilReady()), [['2']]);
  const secure = await late;
  assert.ok(!(secure instanceof Error), String(secure));
  await secure.client.login();
  await secure.client.end();
  await client.end();
});

/** A folder with a certificate that can be exchanged, and the settings that name it. */
async function exchangeable(t: TestContext) {
  const folder = await makeFolder('tls');
  t.after(() => removeFolder(folder));
  const put = async (name: 'server' | 'wrong-name'): Promise<void> => {
    for (const kind of ['crt', 'key'] as const) {
      await copyFile(certs.file(`${name}.${kind}`), join(folder, kind));
      await giveToServer(join(folder, kind));
    }
  };
  await put('server');
  const settings = {
    ...tlsSettings(certs, 'require'),
    client_tls_key_file: join(folder, 'key'),
    client_tls_cert_file: join(folder, 'crt'),
  };
  return { folder, put, settings };
}

/** Who the pooler says it is. */
async function shownName(fleet: TestPgfleet): Promise<unknown> {
  const { client, socket } = await connectTls(fleet);
  const name = socket.getPeerCertificate().subject.CN;
  client.destroy();
  return name;
}

test('a RELOAD brings a new certificate to all workers and drops no connection', async (t) => {
  const { put, settings } = await exchangeable(t);
  const fleet = await started(t, { ...settings, client_tls_sslmode: 'allow' }, { size: 2 });
  const { client, socket } = await loginTls(fleet);
  assert.equal(socket.getPeerCertificate().subject.CN, 'localhost');
  assert.equal(await shownName(fleet), 'localhost');
  await put('wrong-name');
  await reload(fleet);
  for (let round = 0; round < 8; round++) assert.equal(await shownName(fleet), 'db.example');
  assert.deepEqual(textRows(await client.query('SELECT 1')), [['1']]);
  await client.end();
});

test('a certificate that cannot be used refuses the RELOAD and the old one stays', async (t) => {
  const { folder, put, settings } = await exchangeable(t);
  const fleet = await started(t, { ...settings, client_tls_sslmode: 'allow' }, { size: 2 });
  fleet.allowLog(/TLS setup failed: /, /config file loading failed/);
  await writeFile(join(folder, 'crt'), 'no certificate');
  await failedReload(fleet);
  assert.match(
    fleet.log(),
    /ERROR .*client_tls_cert_file: TLS setup failed: failed to load certificate file ".*": error:0480006C:PEM routines::no start line/,
  );
  await assert.rejects(fleet.console('RELOAD'), /RELOAD failed/);
  assert.equal(await shownName(fleet), 'localhost');
  await put('wrong-name');
  await copyFile(certs.file('app.key'), join(folder, 'key'));
  await failedReload(fleet);
  assert.match(fleet.log(), /TLS setup failed: private\/public key mismatch/);
  assert.equal(await shownName(fleet), 'localhost');
});

test('a worker that is started again has what the others have, not what the files say', async (t) => {
  const { folder, settings } = await exchangeable(t);
  const fleet = await started(t, settings);
  const [worker] = fleet.workers();
  await writeFile(join(folder, 'crt'), 'no certificate');
  await writeFile(join(folder, 'key'), 'no key');
  fleet.allowLog(/died: signal SIGKILL/);
  process.kill(worker!, 'SIGKILL');
  await fleet.workersAre(1, [worker!]);
  await until('it takes clients', () =>
    shownName(fleet).then(
      (name) => name === 'localhost',
      () => false,
    ),
  );
});

test('a RELOAD changes mode, authorities and revoked certificates for new clients', async (t) => {
  const fleet = await started(t, tlsSettings(certs, 'allow'));
  await (await loginTls(fleet, as('revoked'))).client.end();
  await reload(fleet, line('fleet', 'client_tls_crl_file', certs.file('ca.crl')));
  await assert.rejects(
    loginTls(fleet, as('revoked')),
    (error: WireError) => error.text === 'certificate verify failed: cert revoked',
  );
  await (await loginTls(fleet, as('app'))).client.end();
  await reload(
    fleet,
    line('fleet', 'client_tls_crl_file', null),
    line('pgbouncer', 'client_tls_ca_file', certs.file('other-ca.crt')),
  );
  await assert.rejects(loginTls(fleet, as('app')), WireError);
  const { client } = await loginTls(fleet);
  await reload(fleet, line('pgbouncer', 'client_tls_sslmode', 'disable'));
  await assert.rejects(connectTls(fleet), /answered with N/);
  assert.deepEqual(textRows(await client.query('SELECT 1')), [['1']]);
  await client.end();
});

test('no key reaches the log or SHOW CONFIG', async (t) => {
  const fleet = await started(t, { ...tlsSettings(certs, 'allow'), verbose: 3 });
  await (await loginTls(fleet)).client.end();
  const shown = JSON.stringify(await fleet.console('SHOW CONFIG'));
  const secret = pem('server.key').split('\n')[1]!;
  for (const text of [shown, fleet.log()]) {
    assert.ok(!text.includes('PRIVATE KEY'));
    assert.ok(!text.includes(secret));
  }
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
