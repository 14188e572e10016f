import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { copyFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import pg from 'pg';
import { giveToServer } from '../support/account.ts';
import { type Certs, makeCerts } from '../support/certs.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { clientProgram } from '../support/postgres-files.ts';
import { runProgram } from '../support/programs.ts';
import { requirePackage } from '../support/skip.ts';
import { startTlsProxy } from '../support/tls-proxy.ts';

/** SCRAM-SHA-256-PLUS as clients of other makers speak it; PgBouncer has none. */

let certs: Certs;
let postgres: TestPostgres;
before(async () => {
  certs = await makeCerts();
  postgres = await startPostgres({
    settings: {
      ssl: 'on',
      ssl_cert_file: certs.file('server.crt'),
      ssl_key_file: certs.file('server.key'),
    },
  });
});

const settings = (folder?: string): Section => ({
  auth_type: 'scram-sha-256',
  client_tls_sslmode: 'require',
  client_tls_cert_file: folder === undefined ? certs.file('server.crt') : join(folder, 'crt'),
  client_tls_key_file: folder === undefined ? certs.file('server.key') : join(folder, 'key'),
  server_tls_sslmode: 'verify-full',
  server_tls_ca_file: certs.file('ca.crt'),
});

/** What psql says to a login as `app`; `options` are of its connection string. */
async function psql(port: number, options: string): Promise<string> {
  const { status, stdout, stderr } = await runProgram(clientProgram('psql')!, [
    '-XAtqc',
    'SELECT 1',
    `host=localhost port=${port} user=app password=app dbname=app sslmode=verify-full sslrootcert=${certs.file('ca.crt')} ${options}`,
  ]);
  return status === 0 ? stdout.trim() : stderr;
}

/** The login of a client of the npm package `pg` that binds if it is offered. */
async function bound(pooler: TestPgfleet, password = 'app'): Promise<unknown> {
  const client = new pg.Client({
    ...{ host: 'localhost', port: pooler.port, user: 'app', password, database: 'app' },
    ssl: { ca: readFileSync(certs.file('ca.crt')) },
    enableChannelBinding: true,
  });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query('SELECT 1 AS one')).rows[0].one;
  } finally {
    await client.end();
  }
}

test('psql and the npm package pg bind their logins to the certificate', async (t) => {
  if (!requirePackage(t, 'postgresql-15', clientProgram('psql') !== null)) return;
  const fleet = await startPgfleet({ postgres, settings: settings() });
  t.after(() => fleet.stop());
  assert.equal(await psql(fleet.port, 'channel_binding=require'), '1');
  assert.equal(await psql(fleet.port, 'channel_binding=prefer'), '1');
  assert.equal(await psql(fleet.port, 'channel_binding=disable'), '1');
  assert.equal(await bound(fleet), 1);
  fleet.allowLog(/password authentication failed/, /SASL authentication failed/);
  await assert.rejects(bound(fleet, 'wrong'), /SASL authentication failed/);
});

test('a login that somebody in between passes on is refused', async (t) => {
  if (!requirePackage(t, 'postgresql-15', clientProgram('psql') !== null)) return;
  const fleet = await startPgfleet({ postgres, settings: settings() });
  t.after(() => fleet.stop());
  fleet.allowLog(/SCRAM channel binding check failed/, /SASL authentication failed/);
  // Another certificate of the same authority, for the same name: TLS alone notices nothing.
  const certificate = { cert: certs.file('named.crt'), key: certs.file('named.key') };
  const proxy = await startTlsProxy({ port: fleet.port, certificate });
  t.after(() => proxy.stop());
  assert.match(await psql(proxy.port, 'channel_binding=require'), /SASL authentication failed/);
  assert.match(await psql(proxy.port, 'channel_binding=prefer'), /SASL authentication failed/);
  assert.match(fleet.log(), / ERROR .*SCRAM channel binding check failed/);
  assert.equal(await psql(proxy.port, 'channel_binding=disable'), '1');
});

test('logins bind to the certificate of their own handshake when a RELOAD brings another', async (t) => {
  if (!requirePackage(t, 'postgresql-15', clientProgram('psql') !== null)) return;
  const folder = await makeFolder('binding');
  t.after(() => removeFolder(folder));
  const put = async (name: 'server' | 'named'): Promise<void> => {
    for (const kind of ['crt', 'key'] as const) {
      await copyFile(certs.file(`${name}.${kind}`), join(folder, kind));
      await giveToServer(join(folder, kind));
    }
  };
  await put('server');
  const fleet = await startPgfleet({ postgres, size: 2, settings: settings(folder) });
  t.after(() => fleet.stop());
  assert.equal(await psql(fleet.port, 'channel_binding=require'), '1');
  await put('named');
  fleet.signal('SIGHUP');
  for (let round = 0; round < 5; round++) {
    assert.equal(await psql(fleet.port, 'channel_binding=require'), '1');
  }
});

test('the server is stopped', () => postgres.dispose());
