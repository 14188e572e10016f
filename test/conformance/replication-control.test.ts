/** Replication connections, and the console's commands that pause, end or renew what is pooled. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { ConsoleClient } from '../support/console.ts';
import { query, typesOf } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import type { TestPostgres } from '../support/postgres.ts';
import {
  beginStream,
  errors,
  ordinary,
  replica,
  shown,
  startSource,
  value,
  walSenders,
} from '../support/replication.ts';
import { rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import type { WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;
before(async () => {
  postgres = await startSource();
});

function controlRule(
  name: string,
  check: (pooler: TestPooler, console: ConsoleClient) => Promise<void>,
): void {
  const run = async (pooler: TestPooler, t: TestContext): Promise<void> =>
    check(pooler, await ConsoleClient.open(t, pooler));
  const options = () => ({ postgres, databases: { postgres: '', app: '' } });
  rule(name, options, run, { since: '1.24' });
}

/** One at rest and one in a stream. */
async function two(pooler: TestPooler, slot: string): Promise<WireClient[]> {
  const resting = await replica(pooler);
  await resting.query('SELECT 1');
  return [resting, await beginStream(await replica(pooler), slot)];
}

async function untilNoneIsLeft(): Promise<void> {
  await until('all WAL senders have ended', async () => (await walSenders(postgres)) === 0);
}

controlRule('RECONNECT ends them at once', async (pooler, console) => {
  const clients = await two(pooler, 'reconnected');
  assert.equal(await console.run('RECONNECT app'), 'RECONNECT');
  assert.equal(await value(clients[0]!, 'SELECT 1'), '1');
  assert.equal(await console.run('RECONNECT postgres'), 'RECONNECT');
  for (const client of clients) {
    const seen = errors(await client.untilClose());
    assert.deepEqual(seen, ['FATAL 08P01 database configuration changed']);
  }
  await untilNoneIsLeft();
});

controlRule('PAUSE waits for them, and they work on meanwhile', async (pooler, console) => {
  const [resting, streaming] = await two(pooler, 'paused');
  console.begin('PAUSE postgres');
  await console.isPending();
  assert.equal(await value(resting!, 'SELECT 1'), '1');
  await postgres.query('TRUNCATE changes');
  await postgres.query('INSERT INTO changes VALUES (1)');
  await until('a change has come', async () => (await streaming!.next()).body.includes('INSERT'));
  await resting!.end();
  await console.isPending();
  await streaming!.end();
  assert.equal(await console.answer(), 'PAUSE');
});

controlRule('during a pause none is opened until RESUME', async (pooler, console) => {
  const first = await ordinary(pooler);
  await first.query('SELECT 1');
  assert.equal(await console.run('PAUSE'), 'PAUSE');
  const client = await replica(pooler);
  client.send(query('SELECT 1'));
  await until('it waits', async () =>
    (await shown(pooler, 'SHOW CLIENTS', 'state')).includes('waiting'),
  );
  assert.equal(await walSenders(postgres), 0);
  assert.equal(await console.run('RESUME'), 'RESUME');
  assert.equal(typesOf(await client.untilReady()), 'T D C Z:I');
  for (const one of [client, first]) await one.end();
});

controlRule('DISABLE refuses new ones and leaves those that are', async (pooler, console) => {
  const clients = await two(pooler, 'disabled');
  assert.equal(await console.run('DISABLE postgres'), 'DISABLE');
  await assert.rejects(replica(pooler), /FATAL 08P01: database "postgres" is disabled/);
  assert.equal(await value(clients[0]!, 'SELECT 1'), '1');
  for (const client of clients) await client.end();
  await untilNoneIsLeft();
});

controlRule('KILL ends them with all that is pooled', async (pooler, console) => {
  const clients = await two(pooler, 'killed');
  assert.equal(await console.run('KILL postgres'), 'KILL');
  for (const client of clients) {
    assert.deepEqual(errors(await client.untilClose()), ['FATAL 08P01 database removed']);
  }
  await untilNoneIsLeft();
});

controlRule('KILL_CLIENT ends its server too', async (pooler, console) => {
  const streaming = await beginStream(await replica(pooler), 'client_killed');
  const [id] = await shown(pooler, 'SHOW CLIENTS', 'id');
  assert.equal(await console.run(`KILL_CLIENT ${id}`), 'KILL_CLIENT');
  const seen = errors(await streaming.untilClose());
  assert.deepEqual(seen, ['FATAL 08P01 admin forced disconnect']);
  await untilNoneIsLeft();
});

test('the server of this file ends', async () => {
  await postgres.dispose();
});
