/** Cancel requests between hosts of `[peers]` whose clients and servers use TLS. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { type Certs, makeCerts } from '../support/certs.ts';
import { startFakeServer } from '../support/fake-server.ts';
import { cancelRequest, query, reportFields } from '../support/messages.ts';
import { hasPgbouncer, pgbouncerVersion, startPgbouncer } from '../support/pgbouncer.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { isAtLeast } from '../support/rule.ts';
import { requirePackage } from '../support/skip.ts';
import { tlsSettings } from '../support/tls-client.ts';
import { startTlsProxy, type TlsProxy } from '../support/tls-proxy.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient } from '../support/wire-client.ts';

/** The first PgBouncer whose keys are laid out as they are now. */
const SINCE = '1.21';
/** Says that it runs by a notice, then sleeps. */
const SLEEP = "DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(60); END $$";
const OWN = 1;
const OTHER = 2;

let postgres: TestPostgres;
let certs: Certs;
before(async () => {
  certs = await makeCerts();
  const ssl_cert_file = certs.file('server.crt');
  const ssl_key_file = certs.file('server.key');
  postgres = await startPostgres({ settings: { ssl: 'on', ssl_cert_file, ssl_key_file } });
});

/** A fleet whose peer is at `port`, with `server_tls_sslmode` as given. */
async function fleetBeside(
  t: TestContext,
  port: number,
  mode: string,
  logs: readonly RegExp[] = [],
): Promise<TestPooler> {
  const settings: Section = {
    peer_id: OWN,
    server_tls_sslmode: mode,
    server_tls_ca_file: certs.file('ca.crt'),
    server_login_retry: 1,
  };
  const peers = { [OTHER]: `host=127.0.0.1 port=${port}` };
  const fleet = await startPgfleet({ postgres, size: 2, peers, settings });
  fleet.allowLog(...logs);
  t.after(() => fleet.stop());
  return fleet;
}

/** The peer, which takes clients with and without TLS, and a look at what it is sent. */
async function ownerBehindProxy(
  t: TestContext,
  kind: 'fleet' | 'bouncer' = 'fleet',
): Promise<{ owner: TestPooler; proxy: TlsProxy }> {
  const settings: Section = { peer_id: OTHER, ...tlsSettings(certs, 'allow') };
  const options = { postgres, settings };
  const owner = kind === 'fleet' ? await startPgfleet(options) : await startPgbouncer(options);
  if (kind === 'bouncer') owner.allowLog(/./);
  t.after(() => owner.stop());
  const certificate = { cert: certs.file('server.crt'), key: certs.file('server.key') };
  const proxy = await startTlsProxy({ port: owner.port, certificate });
  t.after(() => proxy.stop());
  return { owner, proxy };
}

async function sleeper(owner: TestPooler): Promise<WireClient> {
  const client = await WireClient.login(owner);
  client.send(query(SLEEP));
  await client.until('N');
  return client;
}

async function isCancelled(client: WireClient): Promise<void> {
  const [error] = await client.untilReady();
  assert.equal(reportFields(error!.body)['C'], '57014');
  await client.end();
}

for (const kind of ['fleet', 'bouncer'] as const) {
  if (kind === 'bouncer' && hasPgbouncer() && !isAtLeast(pgbouncerVersion(), SINCE)) continue;
  const title = kind === 'fleet' ? 'another fleet' : 'PgBouncer';
  test(`a request for ${title} goes by TLS where server_tls_sslmode is verify-full`, async (t) => {
    if (kind === 'bouncer' && !requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
    const { owner, proxy } = await ownerBehindProxy(t, kind);
    const fleet = await fleetBeside(t, proxy.port, 'verify-full');
    for (let round = 1; round <= 3; round++) {
      const client = await sleeper(owner);
      await sendCancel(fleet, client.key);
      await isCancelled(client);
      assert.equal(proxy.names.length, round, 'handshakes');
    }
  });
}

test('a peer whose certificate is for another name is sent no key until it has the right one', async (t) => {
  const { owner, proxy } = await ownerBehindProxy(t);
  const right = proxy.certificate;
  proxy.certificate = { cert: certs.file('wrong-name.crt'), key: certs.file('wrong-name.key') };
  const failure = /WARNING cancel request could not be sent: .*127\.0\.0\.1/;
  const fleet = await fleetBeside(t, proxy.port, 'verify-full', [failure]);
  const client = await sleeper(owner);
  const seen = client.receivedBytes;
  const requester = await WireClient.connect(fleet);
  requester.send(cancelRequest(client.key));
  await until('it is logged', () => failure.test(fleet.log()));
  assert.equal(client.receivedBytes, seen, 'nothing has been cancelled');
  proxy.certificate = right;
  await isCancelled(client);
  assert.deepEqual(await requester.untilClose(), []);
});

test('a peer without TLS is sent the key in clear text only where the mode lets it', async (t) => {
  const peer = await startFakeServer(async () => {
    throw new Error('a peer is sent nothing but cancel requests');
  });
  t.after(() => peer.stop());
  const key = Buffer.from([0x11, OTHER, 0, 0, 0x22, 0x33, 0x44, 0xf3]);

  const strict = await fleetBeside(t, peer.port, 'require', [/cancel request could not be sent/]);
  const requester = await WireClient.connect(strict);
  t.after(() => requester.destroy());
  requester.send(cancelRequest(key));
  const refused = 'WARNING cancel request could not be sent: server refused SSL';
  await until('it is logged', () => strict.log().includes(refused));
  await until('it is tried again', () => peer.encryptionRequests >= 2);
  assert.equal(peer.cancels.length, 0);
  requester.destroy();

  const lax = await fleetBeside(t, peer.port, 'prefer');
  const before = peer.encryptionRequests;
  await sendCancel(lax, key);
  await until('the peer has it', () => peer.cancels.length === 1);
  assert.ok(peer.encryptionRequests > before);

  const off = await fleetBeside(t, peer.port, 'disable');
  const asked = peer.encryptionRequests;
  await sendCancel(off, key);
  await until('the peer has it', () => peer.cancels.length === 2);
  assert.equal(peer.encryptionRequests, asked);
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
