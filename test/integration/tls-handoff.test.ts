/**
 * TLS clients whose worker has no slot for their pool: it keeps their TLS and passes their bytes on to
 * the worker that has one. A pool of one connection is held by one of two workers, so that about half
 * of the clients are passed on.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { descriptorsOf, memoryOf } from '../fault/support.ts';
import { type Certs, makeCerts } from '../support/certs.ts';
import {
  COPY_DONE,
  cancelRequest,
  copyData,
  query,
  TERMINATE,
  textRows,
} from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { connectTls, loginTls, type TlsClient, tlsSettings } from '../support/tls-client.ts';
import { until } from '../support/until.ts';
import { WireError } from '../support/wire-client.ts';

const MEGABYTE = 1 << 20;
const CLIENTS = 16;

let postgres: TestPostgres;
let fleet: TestPgfleet;
let certs: Certs;

before(async () => {
  [postgres, certs] = await Promise.all([startPostgres(), makeCerts()]);
  fleet = await startPgfleet({
    postgres,
    size: 2,
    databases: { app: 'pool_size=1' },
    settings: { ...tlsSettings(certs, 'require'), auth_type: 'scram-sha-256' },
  });
  fleet.allowLog(/pooler error: /, /canceling statement/, /password authentication failed/);
});
const crowd = (count: number): Promise<TlsClient[]> => {
  const cert = readFileSync(certs.file('app.crt'), 'utf8');
  const key = readFileSync(certs.file('app.key'), 'utf8');
  return Promise.all(Array.from({ length: count }, () => loginTls(fleet, { cert, key })));
};
const descriptors = (): number[] => fleet.workers().map(descriptorsOf);

async function shownClients(): Promise<Record<string, string | null>[]> {
  const { client } = await loginTls(fleet, {}, { user: 'postgres', database: 'pgbouncer' });
  const rows = await client.query('SHOW CLIENTS');
  const names = rows.find(({ type }) => type === 'T')!;
  await client.end();
  const columns = columnNames(names.body);
  return textRows(rows)
    .map((values) => Object.fromEntries(values.map((value, at) => [columns[at]!, value])))
    .filter(({ database }) => database === 'app');
}

function columnNames(body: Buffer): string[] {
  const names: string[] = [];
  for (let at = 2; at < body.length; ) {
    const end = body.indexOf(0, at);
    names.push(body.toString('utf8', at, end));
    at = end + 19;
  }
  return names;
}

test('clients of both workers are served, and shown as they have come in', async () => {
  const before = descriptors();
  const clients = await crowd(CLIENTS);
  assert.ok(
    descriptors().every((count, at) => count > before[at]!),
    'both workers have some of them',
  );
  for (const { client } of clients) {
    const answer = await client.query('SELECT 1');
    assert.deepEqual(textRows(answer), [['1']]);
  }
  const shown = await shownClients();
  assert.equal(shown.length, CLIENTS);
  const ports = clients.map(({ raw }) => String(raw.localPort)).sort();
  assert.deepEqual(shown.map(({ port }) => port).sort(), ports);
  for (const row of shown) {
    assert.equal(row['addr'], '127.0.0.1');
    assert.equal(row['local_addr'], '127.0.0.1');
    assert.equal(row['local_port'], String(fleet.port));
    assert.equal(row['tls'], 'TLSv1.3/TLS_AES_256_GCM_SHA384');
  }
  const logged = fleet.log().match(/login attempt: db=app user=app tls=\S+/g) ?? [];
  assert.ok(logged.every((line) => line.endsWith('tls=TLSv1.3/TLS_AES_256_GCM_SHA384')));
  for (const { client } of clients) await client.end();
  await until('nothing of them is left', async () => {
    const left = descriptors();
    return (
      (await shownClients()).length === 0 && left.every((count, at) => count <= before[at]! + 1)
    );
  });
  const sockets = readdirSync(join(fleet.folder, 'run')).filter((name) => name.startsWith('pair'));
  assert.deepEqual(sockets, []);
});

test('a wrong password is told through the other worker', async () => {
  const attempts = Array.from({ length: 8 }, () =>
    loginTls(fleet, {}, { password: 'wrong' }).then(
      () => 'in',
      (error: unknown) => (error instanceof WireError ? error.text : String(error)),
    ),
  );
  const told = await Promise.all(attempts);
  assert.deepEqual(
    told,
    told.map(() => 'SASL authentication failed'),
  );
});

test('clients that vanish leave nothing behind, whatever they were at', async () => {
  const before = descriptors();
  const clients = await crowd(CLIENTS);
  clients.forEach(({ client, raw }, at) => {
    client.send(query('SELECT pg_sleep(0.1)'));
    if (at % 3 === 0) raw.resetAndDestroy();
    else if (at % 3 === 1) raw.end();
    else client.send(TERMINATE);
  });
  await until(
    'nothing of them is left',
    async () => {
      const left = descriptors();
      return (
        (await shownClients()).length === 0 && left.every((count, at) => count <= before[at]! + 1)
      );
    },
    { deadlineMs: 20_000 },
  );
  for (const { client } of clients) client.destroy();
});

test('a cancel request finds its query', async () => {
  const clients = await crowd(4);
  for (const { client } of clients) {
    client.send(query('SELECT pg_sleep(60)'));
    await until('it runs', async () => {
      const rows = await postgres.query(
        "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'",
      );
      return rows.length > 0;
    });
    const other = await connectTls(fleet);
    other.client.send(cancelRequest(client.key));
    await other.client.untilClose();
    other.client.destroy();
    const answer = await client.untilReady();
    assert.match(answer.map(({ body }) => body.toString()).join(), /57014/);
  }
  for (const { client } of clients) await client.end();
});

test('long streams go both ways with little memory, at the speed of the slower side', async () => {
  const clients = await crowd(4);
  await clients[0]!.client.query('CREATE TABLE streamed (v text)');
  const before = fleet.workers().map(memoryOf);
  const grown = (): number =>
    Math.max(...fleet.workers().map((pid, at) => memoryOf(pid) - before[at]!));
  let most = 0;
  for (const { client, socket } of clients) {
    socket.pause();
    client.send(query(`SELECT repeat('r', ${MEGABYTE}) FROM generate_series(1, 40)`));
    // Until then a pooler that did not hold back its server would have taken in everything.
    await new Promise((resolve) => setTimeout(resolve, 700));
    most = Math.max(most, grown());
    socket.resume();
    const rows = textRows(await client.untilReady(60_000));
    assert.equal(rows.length, 40);
    assert.ok(rows.every(([value]) => value?.length === MEGABYTE));

    const line = Buffer.from(`${'c'.repeat(MEGABYTE - 1)}\n`);
    client.send(query('COPY streamed FROM STDIN'));
    await client.until('G');
    for (let sent = 0; sent < 40; sent++) {
      if (socket.write(copyData(line))) continue;
      await new Promise((resolve) => socket.once('drain', resolve));
    }
    client.send(COPY_DONE);
    await client.untilReady(60_000);
    most = Math.max(most, grown());
    const sums = await client.query('SELECT count(*), md5(string_agg(v, NULL)) FROM streamed');
    const all = createHash('md5')
      .update('c'.repeat((MEGABYTE - 1) * 40))
      .digest('hex');
    assert.deepEqual(textRows(sums), [['40', all]]);
    await client.query('TRUNCATE streamed');
    await client.end();
  }
  assert.ok(most < 100 * MEGABYTE, `a worker grew by ${Math.round(most / MEGABYTE)} MB`);
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('fleet and server can be stopped when all has been asked', async () => {
  await fleet.stop();
  await postgres.dispose();
});
