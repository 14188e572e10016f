import assert from 'node:assert/strict';
import { test } from 'node:test';
import { watchBackends } from '../support/backend-watch.ts';
import { makeCerts } from '../support/certs.ts';
import { query } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { startTlsProxy } from '../support/tls-proxy.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

const WHO = { user: 'app_trust', database: 'app' };

test('a killed worker leaves no statement running, and its successor keeps the limit', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({
    size: 1,
    postgres,
    settings: { pool_mode: 'transaction', auth_type: 'trust', default_pool_size: 4 },
    authFile: { app_trust: '' },
  });
  t.after(() => fleet.stop());
  fleet.allowLog(/worker 0 died/);
  const watch = await watchBackends(postgres);
  const busy = await Promise.all([0, 1, 2, 3].map(() => WireClient.login(fleet, WHO)));
  for (const client of busy) client.send(query('SELECT pg_sleep(60)'));
  const running = "SELECT count(*)::int AS n FROM pg_stat_activity WHERE query ~ 'sleep.60'";
  const countOf = async () =>
    (await postgres.query(`${running} AND pid <> pg_backend_pid()`))[0]!.n;
  await until('four running statements', async () => (await countOf()) === 4);

  process.kill((await fleet.workers())[0]!, 'SIGKILL');
  await Promise.all(busy.map((client) => client.untilClose()));
  const next = await Promise.all([0, 1, 2, 3].map(() => WireClient.login(fleet, WHO)));
  await Promise.all(next.map((client) => client.query('SELECT pg_sleep(0.1)')));
  assert.equal(await countOf(), 0);
  const peaks = await watch.stop();
  assert.ok(peaks.byUser.get('app_trust')! <= 4, `${peaks.byUser.get('app_trust')} connections`);
  for (const client of next) await client.end();
});

test('what a killed worker ran over TLS is cancelled over TLS', async (t) => {
  const certs = await makeCerts();
  const ssl_cert_file = certs.file('server.crt');
  const ssl_key_file = certs.file('server.key');
  const postgres = await startPostgres({ settings: { ssl: 'on', ssl_cert_file, ssl_key_file } });
  t.after(() => postgres.dispose());
  const proxy = await startTlsProxy({
    port: postgres.port,
    certificate: { cert: ssl_cert_file, key: ssl_key_file },
  });
  t.after(() => proxy.stop());
  const fleet = await startPgfleet({
    size: 1,
    postgres: proxy,
    settings: {
      server_tls_sslmode: 'verify-full',
      server_tls_ca_file: certs.file('ca.crt'),
    },
  });
  t.after(() => fleet.stop());
  fleet.allowLog(/worker 0 died/);
  const busy = await Promise.all([0, 1].map(() => WireClient.login(fleet)));
  for (const client of busy) client.send(query('SELECT pg_sleep(60)'));
  const states = async () =>
    (await postgres.backends({ user: 'app' })).map(({ state }) => state).join();
  await until('two running statements', async () => (await states()) === 'active,active');
  const before = proxy.names.length;

  process.kill((await fleet.workers())[0]!, 'SIGKILL');
  await Promise.all(busy.map((client) => client.untilClose()));
  await until('none runs any more', async () => (await states()) === '');
  assert.equal(proxy.names.length, before + 2, 'a handshake each');
});
