/** TLS to servers: what it is good for. Who is in between, what a reload changes, what cancels it. */
import assert from 'node:assert/strict';
import { copyFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import { type Certs, makeCerts } from '../support/certs.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { query, reportFields, textRows } from '../support/messages.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { failedReload, line, reload } from '../support/reload.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { startTlsProxy, type TlsProxy } from '../support/tls-proxy.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient } from '../support/wire-client.ts';

const NOTES = { since: '1.26.0' };

let certs: Certs;
let postgres: TestPostgres;

before(async () => {
  certs = await makeCerts();
  postgres = await startPostgres({
    version: hasPostgres15() ? 15 : 18,
    settings: {
      ssl: 'on',
      ssl_cert_file: certs.file('server.crt'),
      ssl_key_file: certs.file('server.key'),
      wal_level: 'logical',
    },
    hba: ['hostssl replication postgres samehost scram-sha-256'],
  });
});

const verified = (ca = certs.file('ca.crt')): Section => ({
  server_tls_sslmode: 'verify-full',
  server_tls_ca_file: ca,
  server_login_retry: 1,
});

/** A proxy in front of the server, that ends TLS with a certificate of its own or only listens. */
async function proxyOf(t: TestContext, certificate: 'server' | 'named' | null): Promise<TlsProxy> {
  const proxy = await startTlsProxy({
    port: postgres.port,
    certificate:
      certificate === null
        ? null
        : { cert: certs.file(`${certificate}.crt`), key: certs.file(`${certificate}.key`) },
  });
  t.after(() => proxy.stop());
  return proxy;
}

/** The one value that a query returns. */
async function ask(client: WireClient, sql: string): Promise<string> {
  return String(textRows(await client.query(sql))[0]?.[0]);
}

const PID = 'SELECT pg_backend_pid()';
const VERSION = 'SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()';

// Who is in between

/** Proxies by the test that uses them; `options` is asked before `check`. */
const proxies = new WeakMap<TestContext, TlsProxy>();

async function behind(
  t: TestContext,
  certificate: 'server' | 'named' | null,
  settings: Section,
  host = '127.0.0.1',
): Promise<RuleOptions> {
  const proxy = await proxyOf(t, certificate);
  proxies.set(t, proxy);
  return {
    databases: { app: `host=${host} port=${proxy.port}` },
    settings: { server_login_retry: 1, ...settings },
  };
}

rule(
  'a login is bound to the certificate of the server, so that nobody in between can pass it on',
  (t) => behind(t, 'named', { server_tls_sslmode: 'require' }),
  async (pooler) => {
    pooler.allowLog(/./);
    await assert.rejects(
      WireClient.login(pooler),
      /FATAL 28000: (?:SCRAM channel binding check failed|password authentication failed)/,
    );
  },
  {
    ...NOTES,
    differs: {
      because: 'it knows no channel binding',
      check: async (pooler) => {
        await (await WireClient.login(pooler)).end();
      },
    },
  },
);

rule(
  'one in between that has the server’s own certificate and key is the server',
  (t) => behind(t, 'server', { server_tls_sslmode: 'require' }),
  async (pooler) => {
    const client = await WireClient.login(pooler);
    assert.match(await ask(client, VERSION), /^TLSv1\.3$/);
    await client.end();
  },
  NOTES,
);

rule(
  'keys that a client has proved log in with channel binding, without a password',
  async () => {
    const [row] = await postgres.query<{ rolpassword: string }>(
      "SELECT rolpassword FROM pg_authid WHERE rolname = 'app'",
    );
    return {
      postgres,
      authFile: { app: row!.rolpassword, postgres: 'postgres' },
      settings: { ...verified(), auth_type: 'scram-sha-256' },
    };
  },
  async (pooler) => {
    const client = await WireClient.login(pooler);
    assert.equal(await ask(client, VERSION), 'TLSv1.3');
    await client.end();
  },
  NOTES,
);

for (const [mode, host, expected] of [
  ['require', 'localhost', null],
  ['verify-ca', 'localhost', null],
  ['verify-full', 'localhost', 'localhost'],
  ['verify-full', '127.0.0.1', null],
] as const) {
  rule(
    `the handshake of ${mode} names ${expected ?? 'no server'} to ${host}`,
    (t) => behind(t, 'server', { ...verified(), server_tls_sslmode: mode }, host),
    async (pooler, t) => {
      const client = await WireClient.login(pooler);
      assert.deepEqual(proxies.get(t)!.names, [expected]);
      await client.end();
    },
    NOTES,
  );
}

// What else goes over it

for (const user of ['app_md5', 'app_plain', 'app_trust']) {
  rule(
    `the login of ${user} goes over TLS`,
    () => ({ postgres, settings: verified() }),
    async (pooler) => {
      const client = await WireClient.login(pooler, { user, database: 'app' });
      assert.equal(await ask(client, VERSION), 'TLSv1.3');
      await client.end();
    },
    NOTES,
  );
}

for (const kind of ['database', 'yes']) {
  rule(
    `a replication connection (replication=${kind}) goes over TLS`,
    () => ({ postgres, settings: verified() }),
    async (pooler) => {
      const client = await WireClient.login(pooler, {
        user: 'postgres',
        database: 'postgres',
        parameters: { replication: kind },
      });
      const [system] = textRows(await client.query('IDENTIFY_SYSTEM'));
      assert.match(String(system?.[0]), /^\d+$/);
      const servers = await pooler.console('SHOW SERVERS');
      assert.deepEqual(
        servers.map(({ tls }) => tls),
        ['TLSv1.3/TLS_AES_256_GCM_SHA384'],
      );
      await client.end();
    },
    NOTES,
  );
}

const SSL_REQUEST = '0000000804d2162f';
const CANCEL_REQUEST = '0000001004d2162e';

/** Cancels a query and returns how the connection that carried the request began. */
async function firstBytesOfCancel(pooler: TestPooler, t: TestContext): Promise<string | undefined> {
  const client = await WireClient.login(pooler);
  client.send(query('SELECT pg_sleep(60)'));
  await until('the query runs', async () =>
    (await postgres.backends({ user: 'app' })).some(({ state }) => state === 'active'),
  );
  await sendCancel(pooler, client.key);
  const error = (await client.untilReady()).find(({ type }) => type === 'E');
  assert.equal(reportFields(error!.body)['C'], '57014');
  // The connection that was cancelled goes on.
  assert.equal(await ask(client, 'SELECT 1'), '1');
  await client.end();
  return proxies.get(t)!.firstBytes[1];
}

rule(
  'a cancel request goes over TLS where the connection that it cancels does',
  (t) => behind(t, null, verified()),
  async (pooler, t) => {
    assert.equal(await firstBytesOfCancel(pooler, t), SSL_REQUEST);
  },
  {
    ...NOTES,
    differs: {
      because: 'it sends the key in clear text',
      check: async (pooler, t) => {
        assert.equal(await firstBytesOfCancel(pooler, t), CANCEL_REQUEST);
      },
    },
  },
);

rule(
  'a cancel request for a connection in clear text goes in clear text',
  (t) => behind(t, null, { server_tls_sslmode: 'disable' }),
  async (pooler, t) => {
    assert.match((await firstBytesOfCancel(pooler, t)) ?? '', /^000000..04d2162e$/);
  },
  NOTES,
);

rule(
  'a cancel request is not sent to one who cannot show the certificate that is asked for',
  (t) => behind(t, 'server', verified()),
  async (pooler, t) => {
    const client = await WireClient.login(pooler);
    client.send(query('SELECT pg_sleep(2)'));
    await until('the query runs', async () =>
      (await postgres.backends({ user: 'app' })).some(({ state }) => state === 'active'),
    );
    proxies.get(t)!.certificate = {
      cert: certs.file('named.crt'),
      key: certs.file('named.key'),
    };
    await sendCancel(pooler, client.key);
    assert.deepEqual(
      (await client.untilReady()).map(({ type }) => type).filter((type) => type === 'E'),
      [],
    );
    assert.match(
      pooler.log(),
      /WARNING cancel request could not be sent: name `127.0.0.1' not present in/,
    );
    await client.end();
  },
  { ...NOTES, differs: { because: 'it sends the key in clear text' } },
);

// Reload

for (const [what, setting, value] of [
  ['another sslmode', 'server_tls_sslmode', () => 'verify-ca'],
  ['another authority file', 'server_tls_ca_file', () => certs.file('server.crt')],
  ['other protocols', 'server_tls_protocols', () => 'tlsv1.3'],
  ['other ciphers', 'server_tls_ciphers', () => 'HIGH'],
] as const) {
  rule(
    `${what} replaces the servers`,
    () => ({ postgres, settings: { ...verified(), server_tls_sslmode: 'require' } }),
    async (pooler) => {
      const client = await WireClient.login(pooler);
      const pid = await ask(client, PID);
      await client.query('BEGIN');
      await reload(pooler, line('pgbouncer', setting, value()));
      assert.equal(await ask(client, PID), pid);
      await client.query('COMMIT');
      if (setting === 'server_tls_sslmode') assert.notEqual(await ask(client, PID), pid);
      else await until('the server is another', async () => (await ask(client, PID)) !== pid);
      await client.end();
    },
    NOTES,
  );
}

/** A copy of the authority's certificate that the pooler reads; another can be put in its place. */
const authorities = new WeakMap<
  TestContext,
  { path: string; put(name: 'ca' | 'other-ca'): Promise<void> }
>();

async function ownAuthority(t: TestContext): Promise<RuleOptions> {
  const folder = await makeFolder('ca');
  t.after(() => removeFolder(folder));
  const path = join(folder, 'ca.crt');
  const put = async (name: 'ca' | 'other-ca'): Promise<void> => {
    await copyFile(certs.file(`${name}.crt`), `${path}.new`);
    await rename(`${path}.new`, path);
  };
  await put('ca');
  authorities.set(t, { path, put });
  return { postgres, settings: { ...verified(path), server_tls_sslmode: 'verify-ca' } };
}

for (const reloads of [true, false]) {
  rule(
    `a file with other content is used for new connections and ends no old one, ${reloads ? 'at' : 'without'} a RELOAD`,
    ownAuthority,
    async (pooler, t) => {
      const client = await WireClient.login(pooler);
      const pid = await ask(client, PID);
      await authorities.get(t)!.put('other-ca');
      if (reloads) await reload(pooler);
      assert.equal(await ask(client, PID), pid);
      await pooler.console('RECONNECT');
      client.send(query(PID));
      const failed = /TLS handshake error: handshake failed: .*certificate verify failed/;
      await until('the new server is not trusted', () => failed.test(pooler.log()));
      await authorities.get(t)!.put('ca');
      const [row] = textRows(await client.untilReady());
      assert.notEqual(String(row?.[0]), pid);
      await client.end();
    },
    NOTES,
  );
}

rule(
  'a reload that names a file that is not there changes nothing',
  () => ({ postgres, settings: verified() }),
  async (pooler) => {
    pooler.allowLog(/TLS configuration could not be reloaded/);
    const client = await WireClient.login(pooler);
    const pid = await ask(client, PID);
    await failedReload(pooler, line('pgbouncer', 'server_tls_ca_file', '/nowhere/ca.crt'));
    assert.match(
      pooler.log(),
      /TLS configuration could not be reloaded, keeping old configuration: server_tls_ca_file: could not read "\/nowhere\/ca.crt": No such file or directory/,
    );
    assert.equal(await ask(client, PID), pid);
    await pooler.console('RECONNECT');
    assert.notEqual(await ask(client, PID), pid);
    await client.end();
  },
  { ...NOTES, differs: { because: 'it takes the name, and each connect fails' } },
);

test('the server is stopped', () => postgres.dispose());
