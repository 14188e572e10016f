/** Clients that wait for a server: the order in which they get one, and what they are told meanwhile. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { type Crowd, crowded, fetchValue } from '../support/crowd.ts';
import { query, reportFields, TERMINATE, typesOf } from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { rule } from '../support/rule.ts';
import { until } from '../support/until.ts';

const NOTICE = 'No server connection available in postgres backend, client being queued';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

function noticeOf(body: Buffer): string {
  const { S, C, M } = reportFields(body);
  return `${S} ${C}: ${M}`;
}

const NOTIFYING = {
  databases: { app: '', witness: 'dbname=app' },
  settings: { default_pool_size: 1, query_wait_notify: 1 },
};

/** Waits until everybody who waits by now has waited long enough to be told so. */
async function allAreTold(crowd: Crowd): Promise<void> {
  const holder = await crowd.holder({ database: 'witness' });
  const witness = await crowd.queued({ database: 'witness' });
  await witness.until('N');
  holder.destroy();
}

describe('the queue', { concurrency: 4 }, () => {
  rule(
    'clients get servers in the order in which they asked',
    () => ({ postgres, settings: { default_pool_size: 1 } }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      const order: number[] = [];
      const waits = [];
      for (let i = 0; i < 5; i++) {
        const client = await crowd.queued();
        waits.push(client.untilReady().then(() => order.push(i)));
      }
      await holder.query('COMMIT');
      await Promise.all(waits);
      assert.deepEqual(order, [0, 1, 2, 3, 4]);
    }),
  );

  rule(
    'a client that asks again queues behind those who wait',
    () => ({ postgres, settings: { default_pool_size: 1 } }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      const next = await crowd.queued({}, 'BEGIN');
      const waiting = await crowd.queued();
      await holder.query('COMMIT');
      await next.untilReady();
      holder.send(query('SELECT 1'));
      await until('both wait', async () => (await crowd.waiting()) === 2);
      const order: string[] = [];
      const waits = [
        waiting.untilReady().then(() => order.push('waiting')),
        holder.untilReady().then(() => order.push('holder')),
      ];
      await next.query('COMMIT');
      await Promise.all(waits);
      assert.deepEqual(order, ['waiting', 'holder']);
    }),
  );

  rule(
    'a client is told once a wait that it is queued, when query_wait_notify and a second are over',
    () => ({ postgres, ...NOTIFYING }),
    crowded(async (crowd) => {
      let [holder, waiting] = [await crowd.holder(), await crowd.login()];
      for (const _wait of ['first', 'second']) {
        const askedAt = performance.now();
        waiting.send(query('BEGIN'));
        const [first] = await waiting.until('N');
        assert.equal(noticeOf(first!.body), `NOTICE 00000: ${NOTICE}`);
        assert.ok(performance.now() - askedAt > 1900, 'not before 2 s');
        await allAreTold(crowd);
        await holder.query('COMMIT');
        assert.equal(typesOf(await waiting.untilReady()), 'C Z:T');
        [holder, waiting] = [waiting, holder];
      }
    }),
    { since: '1.25' },
  );

  rule(
    'those who wait behind the first are told so too',
    () => ({ postgres, ...NOTIFYING }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      const first = await crowd.queued();
      const second = await crowd.queued();
      await second.until('N');
      await holder.query('COMMIT');
      assert.equal(typesOf(await first.untilReady()), 'N T D C Z:I');
      assert.equal(typesOf(await second.untilReady()), 'T D C Z:I');
    }),
    {
      since: '1.25',
      differs: {
        because: 'PgBouncer looks at the first alone while no server is free',
        check: crowded(async (crowd) => {
          await crowd.holder();
          const first = await crowd.queued();
          const second = await crowd.queued();
          const before = second.receivedBytes;
          await first.until('N');
          await allAreTold(crowd);
          assert.equal(second.receivedBytes, before);
        }),
      },
    },
  );

  rule(
    'query_wait_notify = 0 tells nobody',
    () => ({
      postgres,
      settings: { default_pool_size: 1, query_wait_notify: 0, query_wait_timeout: 2.5 },
    }),
    crowded(async (crowd) => {
      await crowd.holder();
      const client = await crowd.queued();
      assert.equal(typesOf(await client.untilClose()), 'E');
    }),
    { since: '1.25' },
  );

  rule(
    'a client that vanished while it was queued takes no server’s turn',
    () => ({ postgres, settings: { default_pool_size: 1 } }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      const gone = await crowd.queued();
      const waiting = await crowd.queued();
      gone.destroy();
      await until('it is out of the queue', async () => (await crowd.waiting()) === 1);
      await holder.query('COMMIT');
      assert.equal(typesOf(await waiting.untilReady()), 'T D C Z:I');
    }),
    {
      differs: {
        because: 'PgBouncer does not read from a client that waits',
        check: crowded(async (crowd) => {
          await crowd.holder();
          const gone = await crowd.queued();
          gone.destroy();
          await crowd.login({ user: 'app_trust' });
          assert.equal(await crowd.waiting(), 1);
        }),
      },
    },
  );

  rule(
    'a client that said Terminate while it was queued is served first',
    () => ({ postgres, settings: { default_pool_size: 1 } }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      const client = await crowd.queued();
      client.send(TERMINATE);
      await holder.query('COMMIT');
      const received = await client.untilClose();
      assert.ok(['', 'T D C Z:I'].includes(typesOf(received)));
      await until('nobody waits', async () => (await crowd.waiting()) === 0);
      assert.equal(await fetchValue(holder, 'SELECT 1'), '1');
    }),
  );
});

test('the server is ended', () => postgres.dispose());
