import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Cut, cutUp, startCutProxy } from '../support/cut-proxy.ts';
import { startFakeServer } from '../support/fake-server.ts';
import {
  bind,
  describe,
  execute,
  parse,
  query,
  SYNC,
  textRows,
  typesOf,
} from '../support/messages.ts';
import { hasPgbouncer, startPgbouncer } from '../support/pgbouncer.ts';
import { ROLES, startPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { isRunning } from '../support/processes.ts';
import { errorResponse, ready, textAnswer } from '../support/server-messages.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient, WireError } from '../support/wire-client.ts';

for (const version of [15, 18] as const) {
  test(`PostgreSQL ${version} lets every role in by its own method`, async (t) => {
    if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const postgres = await startPostgres({ version });
    t.after(() => postgres.dispose());
    const [row] = await postgres.query<{ server_version_num: string }>('SHOW server_version_num');
    assert.equal(Math.floor(Number(row?.server_version_num) / 10_000), version);
    for (const user of Object.keys(ROLES)) {
      const client = await WireClient.login(postgres, { user });
      assert.deepEqual(textRows(await client.query('SELECT current_user')), [[user]]);
      await client.end();
      if (user === 'app_trust') continue;
      await assert.rejects(
        WireClient.login(postgres, { user, password: 'wrong' }),
        (error: unknown) => error instanceof WireError && error.sqlstate === '28P01',
      );
    }
  });
}

test('a killed server starts again on its data folder, and no process of it is left', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  await postgres.query('CREATE TABLE kept AS SELECT 7 AS n');
  const client = await WireClient.login(postgres, { user: 'postgres', database: 'postgres' });
  const [backend] = await postgres.backends();
  await postgres.kill();
  await client.untilClose();
  assert.ok(backend !== undefined && !isRunning(backend.pid));
  await postgres.start();
  assert.deepEqual(await postgres.query('SELECT 1 AS n'), [{ n: 1 }]);
});

test('a cancel request ends the query of the connection whose key it carries', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const client = await WireClient.login(postgres);
  const answer = client.query('SELECT pg_sleep(60)');
  await until('the query runs', async () => {
    const backends = await postgres.backends({ user: 'app' });
    return backends.some(({ state }) => state === 'active');
  });
  await sendCancel(postgres, client.key);
  assert.equal(typesOf((await answer).filter(({ type }) => type !== 'T')), 'E Z:I');
  await client.end();
});

for (const cut of ['every byte', [1, 5, 6, 40]] satisfies Cut[]) {
  test(`a proxy that cuts at ${cut} changes no byte in either direction`, async (t) => {
    const postgres = await startPostgres();
    t.after(() => postgres.dispose());
    const proxy = await startCutProxy({
      target: postgres,
      toServer: cut,
      toClient: cut,
      pauseMs: 0,
    });
    t.after(() => proxy.stop());
    const client = await WireClient.login(proxy);
    const values = ['a'.repeat(300), null, ''];
    client.send(parse('', 'SELECT $1, $2, $3', [25, 25, 25]), bind({ values }));
    client.send(describe('P'), execute(), SYNC);
    const received = await client.untilReady();
    assert.equal(typesOf(received), '1 2 T D C Z:I');
    assert.deepEqual(textRows(received), [values]);
    await client.end();
  });
}

test('a chunk is cut at offsets of the stream, not of the chunk', () => {
  const pieces = (cut: Cut): string[] =>
    cutUp(Buffer.from('efgh'), 4, cut).map((piece) => piece.toString());
  assert.deepEqual(pieces('nowhere'), ['efgh']);
  assert.deepEqual(pieces('every byte'), ['e', 'f', 'g', 'h']);
  assert.deepEqual(pieces([2, 4, 7, 5, 8, 9]), ['e', 'fg', 'h']);
});

test('a stalled proxy holds bytes back until it goes on', async (t) => {
  const server = await startFakeServer(async (connection) => {
    await connection.welcome();
    await connection.answerQueries((sql) => textAnswer(sql));
  });
  t.after(() => server.stop());
  const proxy = await startCutProxy({ target: server });
  t.after(() => proxy.stop());
  const client = await WireClient.login(proxy);
  proxy.stall('toClient');
  client.send(query('held back'));
  await assert.rejects(client.next(100), /no message within 100 ms/);
  proxy.resume('toClient');
  assert.deepEqual(textRows(await client.untilReady()), [['held back']]);
  await client.end();
});

test('a fake server follows its script and reports where the client left it', async () => {
  const server = await startFakeServer(async (connection) => {
    await connection.welcome();
    const { body } = await connection.expect('Q');
    connection.send(
      errorResponse('22012', `no: ${body.toString('utf8', 0, body.length - 1)}`),
      ready(),
    );
    await connection.expect('S');
  });
  const client = await WireClient.login(server, { user: 'someone' });
  assert.equal(server.connections[0]?.parameters['user'], 'someone');
  assert.equal(typesOf(await client.query('SELECT 1/0')), 'E Z:I');
  await sendCancel(server, client.key);
  assert.deepEqual(server.cancels, [client.key]);
  await client.end();
  await until('the script has failed', () => server.connections[0]?.socket.destroyed);
  await assert.rejects(server.stop(), /received a message 'X', wanted 'S'/);
});

test("Debian's PgBouncer pools a test server, and an unannounced error fails its stop", async (t) => {
  if (!requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const quiet = await startPgbouncer({ postgres, settings: { auth_type: 'scram-sha-256' } });
  const client = await quiet.client();
  assert.equal((await client.query('SELECT 1 AS n')).rows[0].n, 1);
  const { pid } = quiet;
  await client.end();
  await quiet.stop();
  assert.ok(!isRunning(pid));

  const broken = await startPgbouncer({ databases: { app: 'host=127.0.0.1 port=1' } });
  await assert.rejects(broken.client({ user: 'nobody_knows', database: 'none' }));
  process.kill(broken.pid, 'SIGKILL');
  await assert.rejects(broken.stop(), /ended with SIGKILL/);
});
