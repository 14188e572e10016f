import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { type TestContext, test } from 'node:test';
import { startFakeServer } from '../support/fake-server.ts';
import {
  bind,
  cancelRequest,
  execute,
  int32,
  packet,
  parse,
  query,
  reportFields,
  SYNC,
  textRows,
  typesOf,
  type WireMessage,
} from '../support/messages.ts';
import { type PgfleetOptions, startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { errorResponse, ready, textAnswer } from '../support/server-messages.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient } from '../support/wire-client.ts';

const CANCELED = '57014';

/** Says that it runs by a notice, then sleeps. */
const SLEEP = "DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(60); END $$";

for (const version of [15, 18] as const) {
  test(`PostgreSQL ${version}: five hundred cancels on a fleet of four all arrive, and hit nobody else`, async (t) => {
    if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const postgres = await startedPostgres(t, version);
    const fleet = await startedFleet(t, { postgres, size: 4, settings: { default_pool_size: 32 } });
    const sleepers = await loggedIn(t, fleet, 25);
    const bystanders = await loggedIn(t, fleet, 16);
    let areDone = false;
    const watch = bystanders.map((client, who) => asksUntil(client, who, () => areDone));
    try {
      await Promise.all(
        sleepers.map(async (client, who) => {
          for (let round = 0; round < 20; round++) {
            client.send(query(SLEEP));
            assert.equal(reportFields((await client.until('N', 60_000)).at(-1)!.body)['M'], 'runs');
            await sendCancel(fleet, client.key);
            const answer = await client.untilReady(30_000);
            assert.equal(typesOf(answer), 'E Z:I');
            assert.equal(sqlstateOf(answer), CANCELED);
            const mark = `sleeper ${who} round ${round}`;
            assert.deepEqual(textRows(await client.query(`SELECT '${mark}'`, 30_000)), [[mark]]);
          }
        }),
      );
    } finally {
      areDone = true;
      await Promise.allSettled(watch);
    }
    const asked = await Promise.all(watch);
    assert.ok(
      asked.every((count) => count > 20),
      `the others ran queries all along: ${asked}`,
    );
    const hits = postgres.log().split('canceling statement due to user request').length - 1;
    assert.equal(hits, 500);
    const carriers = fleet.log().matchAll(/\[(\d+)\] LOG .*successfully sent cancel request/g);
    assert.equal(new Set([...carriers].map(([, pid]) => pid)).size, 4, 'every worker got some');
    await ended([...sleepers, ...bystanders]);
  });
}

test('a cancel that comes as its query ends never hits the next user of the server', async (t) => {
  const postgres = await startedPostgres(t);
  const fleet = await startedFleet(t, { postgres, size: 4, settings: { default_pool_size: 4 } });
  const victims = await loggedIn(t, fleet, 12);
  const bystanders = await loggedIn(t, fleet, 12);
  let areDone = false;
  const watch = bystanders.map((client, who) => asksUntil(client, who, () => areDone));
  const seen = { cancelled: 0, answered: 0 };
  try {
    await Promise.all(
      victims.map(async (client, who) => {
        for (let round = 0; round < 50; round++) {
          const seconds = ((who + round) % 8) / 1000;
          client.send(query(`SELECT 'victim ${who} ${round}', pg_sleep(${seconds})`));
          await sendCancel(fleet, client.key);
          const answer = await client.untilReady(30_000);
          if (sqlstateOf(answer) === null) {
            seen.answered++;
            assert.deepEqual(textRows(answer), [[`victim ${who} ${round}`, '']]);
          } else {
            seen.cancelled++;
            assert.equal(sqlstateOf(answer), CANCELED);
          }
        }
      }),
    );
  } finally {
    areDone = true;
    await Promise.allSettled(watch);
  }
  await Promise.all(watch);
  assert.ok(seen.cancelled > 20 && seen.answered > 20, JSON.stringify(seen));
  await ended([...victims, ...bystanders]);
});

test('a server is lent to nobody while a cancel for it is on its way, and then to who waits', async (t) => {
  const queries: string[] = [];
  const server = await startFakeServer(async (connection) => {
    await connection.welcome();
    await connection.answerQueries(async (sql) => {
      queries.push(sql);
      if (sql !== 'slow') return textAnswer(sql);
      await until('a cancel came', () => server.cancels.length > 0, { everyMs: 2 });
      return Buffer.concat([errorResponse(CANCELED, 'cancelled'), ready()]);
    });
  });
  t.after(() => server.stop());
  server.holdsCancels = true;
  const fleet = await startedFleet(t, { postgres: server, settings: { default_pool_size: 1 } });
  const [first, next] = await loggedIn(t, fleet, 2);
  first!.send(query('slow'));
  await until('the query runs', () => queries.includes('slow'));
  next!.send(query('next'));
  await waitsFor(fleet, 1);
  const closed = sendCancel(fleet, first!.key);
  assert.equal(sqlstateOf(await first!.untilReady()), CANCELED);
  const [pool] = (await fleet.console('SHOW POOLS')).filter(({ database }) => database === 'app');
  assert.equal(Number(pool?.['cl_waiting']), 1);
  assert.deepEqual(queries, ['slow']);
  server.releaseCancels();
  await closed;
  assert.deepEqual(textRows(await next!.untilReady()), [['next']]);
  await ended([first!, next!]);
});

for (const size of [1, 4]) {
  test(`a fleet of ${size}: a client cancelled in the queue gets 57014 and stays usable`, async (t) => {
    const postgres = await startedPostgres(t);
    const fleet = await startedFleet(t, { postgres, size, settings: { default_pool_size: 1 } });
    const holder = await WireClient.login(fleet);
    const client = await WireClient.login(fleet);
    t.after(() => {
      for (const each of [holder, client]) each.destroy();
    });
    assert.equal(typesOf(await holder.query('BEGIN')), 'C Z:T');

    await t.test('a simple query', async () => {
      client.send(query("SELECT 'never'"));
      await waitsFor(fleet, 1);
      await sendCancel(fleet, client.key);
      const answer = await client.untilReady();
      assert.equal(typesOf(answer), 'E Z:I');
      assert.equal(sqlstateOf(answer), CANCELED);
      await waitsFor(fleet, 0);
    });

    await t.test('a query longer than what is read while a client waits', async () => {
      client.send(query(`SELECT '${'x'.repeat(300_000)}'`));
      await waitsFor(fleet, 1);
      await sendCancel(fleet, client.key);
      assert.equal(typesOf(await client.untilReady()), 'E Z:I');
    });

    await t.test('an extended query, answered by ReadyForQuery when its Sync comes', async () => {
      client.send(parse('', 'SELECT 1'), bind(), execute());
      await waitsFor(fleet, 1);
      await sendCancel(fleet, client.key);
      assert.equal(sqlstateOf([await client.next()]), CANCELED);
      client.send(bind(), execute());
      await assert.rejects(client.next(50), /no message within/);
      client.send(SYNC);
      assert.equal(typesOf(await client.untilReady()), 'Z:I');
    });

    await t.test('an extended query with its Sync, and a named statement', async () => {
      client.send(parse('mine', 'SELECT 1'), bind({ statement: 'mine' }), execute(), SYNC);
      await waitsFor(fleet, 1);
      await sendCancel(fleet, client.key);
      const answer = await client.untilReady();
      assert.equal(typesOf(answer.filter(({ type }) => type !== '1')), 'E Z:I');
      assert.equal(sqlstateOf(answer), CANCELED);
    });

    await t.test('only the first of the queries that it has sent', async () => {
      client.send(query("SELECT 'never'"), query("SELECT 'then'"));
      await waitsFor(fleet, 1);
      await sendCancel(fleet, client.key);
      assert.equal(typesOf(await client.untilReady()), 'E Z:I');
      await waitsFor(fleet, 1);
      assert.equal(typesOf(await holder.query('COMMIT')), 'C Z:I');
      assert.deepEqual(textRows(await client.untilReady()), [['then']]);
    });

    await t.test('and what it asks afterwards is answered', async () => {
      client.send(parse('', 'SELECT $1::text', [25]), bind({ values: ['x'] }), execute(), SYNC);
      assert.equal(typesOf(await client.untilReady()), '1 2 D C Z:I');
      assert.deepEqual(textRows(await client.query("SELECT 'usable'")), [['usable']]);
      assert.deepEqual(textRows(await holder.query("SELECT 'too'")), [['too']]);
    });
    await ended([holder, client]);
  });

  test(`a fleet of ${size}: a cancel for an idle client does nothing`, async (t) => {
    const postgres = await startedPostgres(t);
    const fleet = await startedFleet(t, { postgres, size, settings: { default_pool_size: 4 } });
    const [client, other] = await loggedIn(t, fleet, 2);
    await sendCancel(fleet, client!.key);
    for (let round = 0; round < 10; round++) {
      assert.deepEqual(textRows(await client!.query('SELECT 1')), [['1']]);
      const sleeping = other!.query("SELECT pg_sleep(0.02), 'slept'");
      await sendCancel(fleet, client!.key);
      assert.deepEqual(textRows(await sleeping), [['', 'slept']]);
    }
    // In a transaction, between two statements.
    assert.equal(typesOf(await client!.query('BEGIN')), 'C Z:T');
    await sendCancel(fleet, client!.key);
    assert.equal(typesOf(await client!.query('SELECT 1')), 'T D C Z:T');
    assert.equal(typesOf(await client!.query('COMMIT')), 'C Z:I');
    assert.equal(postgres.log().includes('canceling statement'), false);
    await ended([client!, other!]);
  });

  test(`a fleet of ${size}: unknown keys and broken cancel requests are closed without a word`, async (t) => {
    const postgres = await startedPostgres(t);
    const fleet = await startedFleet(t, { postgres, size, settings: { default_pool_size: 4 } });
    const client = await WireClient.login(fleet);
    t.after(() => client.destroy());
    client.send(query(SLEEP));
    await client.until('N');
    const { key } = client;
    const CODE = int32(80_877_102);
    const almost = [...key.keys()].map((at) => {
      const other = Buffer.from(key);
      other[at] = other[at]! ^ 0x10;
      return cancelRequest(other);
    });
    const requests: Buffer[] = [
      ...almost,
      ...Array.from({ length: 20 }, () => cancelRequest(randomBytes(8))),
      cancelRequest(Buffer.alloc(8)),
      cancelRequest(Buffer.alloc(8, 0xff)),
      cancelRequest(key.subarray(0, 4)),
      cancelRequest(Buffer.alloc(0)),
      cancelRequest(Buffer.concat([key, Buffer.of(0)])),
      cancelRequest(Buffer.concat([key, randomBytes(24)])),
    ];
    for (const request of requests) {
      const canceller = await WireClient.connect(fleet);
      canceller.send(request);
      assert.deepEqual(await canceller.untilClose(), [], request.toString('hex'));
      canceller.destroy();
    }
    // Cut short, and the end of the connection after it.
    for (const cut of [7, 8, 12, 15]) {
      const canceller = await WireClient.connect(fleet);
      canceller.socket.end(packet([CODE, key]).subarray(0, cut));
      assert.deepEqual(await canceller.untilClose(), [], `cut after ${cut} bytes`);
      canceller.destroy();
    }
    assert.equal(postgres.log().includes('canceling statement'), false);
    await sendCancel(fleet, key);
    assert.equal(typesOf(await client.untilReady()), 'E Z:I');
    await client.end();
  });
}

test('the second cancel of one query, and cancels of a client that has gone, do no harm', async (t) => {
  const postgres = await startedPostgres(t);
  const fleet = await startedFleet(t, { postgres, size: 2, settings: { default_pool_size: 8 } });
  const [client, other] = await loggedIn(t, fleet, 2);
  for (let round = 0; round < 10; round++) {
    client!.send(query(SLEEP));
    await client!.until('N');
    await Promise.all(Array.from({ length: 5 }, () => sendCancel(fleet, client!.key)));
    assert.equal(sqlstateOf(await client!.untilReady()), CANCELED);
    assert.equal(typesOf(await client!.query('SELECT 1')), 'T D C Z:I');
  }
  client!.send(query(SLEEP));
  await client!.until('N');
  client!.destroy();
  await sendCancel(fleet, client!.key);
  await sendCancel(fleet, client!.key);
  for (let round = 0; round < 20; round++) {
    assert.equal(typesOf(await other!.query('SELECT 1')), 'T D C Z:I');
  }
  await other!.end();
});

async function startedPostgres(t: TestContext, version: 15 | 18 = 18): Promise<TestPostgres> {
  const postgres = await startPostgres({ version });
  t.after(() => postgres.dispose());
  return postgres;
}

async function startedFleet(t: TestContext, options: PgfleetOptions): Promise<TestPgfleet> {
  const fleet = await startPgfleet(options);
  t.after(() => fleet.stop());
  return fleet;
}

async function loggedIn(t: TestContext, fleet: TestPgfleet, count: number): Promise<WireClient[]> {
  const clients = await Promise.all(Array.from({ length: count }, () => WireClient.login(fleet)));
  t.after(() => {
    for (const client of clients) client.destroy();
  });
  return clients;
}

async function ended(clients: readonly WireClient[]): Promise<void> {
  await Promise.all(clients.map((client) => client.end()));
}

/** Waits until `count` clients of the database `app` are in the queue. */
async function waitsFor(fleet: TestPgfleet, count: number): Promise<void> {
  await until(`${count} clients wait`, async () => {
    const pools = await fleet.console('SHOW POOLS');
    const waiting = pools
      .filter(({ database }) => database === 'app')
      .reduce((sum, row) => sum + Number(row['cl_waiting']), 0);
    return waiting === count;
  });
}

/** SQLSTATE of the first error among `messages`; null when there is none. */
function sqlstateOf(messages: readonly WireMessage[]): string | null {
  const error = messages.find(({ type }) => type === 'E');
  return error === undefined ? null : (reportFields(error.body)['C'] ?? '');
}

/** Runs short queries that must all be answered, by both protocols in turn; returns how many. */
async function asksUntil(client: WireClient, who: number, isOver: () => boolean): Promise<number> {
  let count = 0;
  while (!isOver()) {
    const mark = `bystander ${who} ${count++}`;
    if (count % 2 === 0) {
      client.send(query(`SELECT '${mark}', pg_sleep(0.001)`));
    } else {
      client.send(parse('', 'SELECT $1, pg_sleep(0.001)', [25]));
      client.send(bind({ values: [mark] }), execute(), SYNC);
    }
    const answer = await client.untilReady(60_000);
    assert.equal(sqlstateOf(answer), null);
    assert.deepEqual(textRows(answer), [[mark, '']]);
  }
  return count;
}
