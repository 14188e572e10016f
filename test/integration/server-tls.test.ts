import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { type Certs, makeCerts } from '../support/certs.ts';
import { query, reportFields, textRows } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15, type PostgresVersion } from '../support/postgres-files.ts';
import { requirePackage } from '../support/skip.ts';
import { startTlsProxy } from '../support/tls-proxy.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient } from '../support/wire-client.ts';

/** What PgBouncer does not have: direct TLS to servers. */

const DIRECT = { server_tls_negotiation: 'direct' };
const VERSION = 'SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()';

let certs: Certs;
before(async () => {
  certs = await makeCerts();
});

const tlsServer = (version: PostgresVersion): Promise<TestPostgres> =>
  startPostgres({
    version,
    settings: {
      ssl: 'on',
      ssl_cert_file: certs.file('server.crt'),
      ssl_key_file: certs.file('server.key'),
    },
  });

const verified = (): Section => ({
  server_tls_sslmode: 'verify-full',
  server_tls_ca_file: certs.file('ca.crt'),
  server_login_retry: 1,
});

/** How a TLS record with a ClientHello begins. */
const HANDSHAKE = /^16030/;

test('direct TLS begins without SSLRequest, also for cancel requests', async (t) => {
  const postgres = await tlsServer(18);
  t.after(() => postgres.dispose());
  const proxy = await startTlsProxy({ port: postgres.port, certificate: null });
  t.after(() => proxy.stop());
  const fleet = await startPgfleet({ postgres: proxy, fleet: DIRECT, settings: verified() });
  t.after(() => fleet.stop());
  const client = await WireClient.login(fleet);
  assert.equal(textRows(await client.query(VERSION))[0]?.[0], 'TLSv1.3');
  client.send(query('SELECT pg_sleep(60)'));
  await until('the query runs', async () =>
    (await postgres.backends({ user: 'app' })).some(({ state }) => state === 'active'),
  );
  await sendCancel(fleet, client.key);
  const error = (await client.untilReady()).find(({ type }) => type === 'E');
  assert.equal(reportFields(error!.body)['C'], '57014');
  await client.end();
  assert.equal(proxy.firstBytes.length, 2);
  for (const first of proxy.firstBytes) assert.match(first, HANDSHAKE);
});

test('a server before PostgreSQL 17 fails direct TLS, and the log says what it needs', async (t) => {
  if (!requirePackage(t, 'postgresql-15', hasPostgres15())) return;
  const postgres = await tlsServer(15);
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({ postgres, fleet: DIRECT, settings: verified() });
  t.after(() => fleet.stop());
  const client = await WireClient.connect(fleet);
  t.after(() => client.destroy());
  const login = client.login().catch(() => undefined);
  await until('the log says why', () =>
    /WARNING TLS handshake error: handshake failed: .* \(server_tls_negotiation = direct needs PostgreSQL 17 or later with ssl = on\)\n.* closing because: server conn crashed\?/.test(
      fleet.log(),
    ),
  );
  client.destroy();
  await login;
});

test('direct TLS is refused where the mode would let it go without', async () => {
  for (const server_tls_sslmode of ['disable', 'allow', 'prefer']) {
    await assert.rejects(
      startPgfleet({ fleet: DIRECT, settings: { server_tls_sslmode } }),
      /ERROR .*server_tls_negotiation: direct needs server_tls_sslmode = require, verify-ca or verify-full/,
      server_tls_sslmode,
    );
  }
});
