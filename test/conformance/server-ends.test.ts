/** When a server that nobody uses is closed: its lifetime, idleness, and what it says unasked. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { type Crowd, crowded, fetchValue } from '../support/crowd.ts';
import type { FakeConnection } from '../support/fake-server.ts';
import { message, type Part, query, typesOf } from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { rule } from '../support/rule.ts';
import { scripted } from '../support/scripted.ts';
import * as say from '../support/server-messages.ts';
import { until } from '../support/until.ts';
import type { LoginOptions, WireClient } from '../support/wire-client.ts';

const PID = 'SELECT pg_backend_pid()';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

/** Times at which servers were closed for `reason`, milliseconds of the log's clock. */
function closings(crowd: Crowd, reason: string): number[] {
  const lines = crowd.pooler.log().split('\n');
  const mine = lines.filter((line) => line.includes(` closing because: ${reason} (`));
  return mine.map((line) => Date.parse(`${line.slice(0, 23).replace(' ', 'T')}Z`));
}

/** As many servers as clients that hold one at the same time, all free again. */
async function freeServers(
  crowd: Crowd,
  count: number,
  options: LoginOptions = {},
): Promise<WireClient[]> {
  const clients = [];
  for (let i = 0; i < count; i++) clients.push(await crowd.holder(options));
  for (const client of clients) await client.query('COMMIT');
  return clients;
}

describe('the life of a server', { concurrency: 4 }, () => {
  rule(
    'a free server that is older than server_lifetime is closed, one in use only when it is free',
    () => ({ postgres, settings: { server_lifetime: 1 } }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      const [idle] = await freeServers(crowd, 1);
      const pid = await fetchValue(holder, PID);
      await until('the free one is closed', () => closings(crowd, 'server lifetime over').length);
      // Closings are a lifetime apart at most: by now it would be the turn of the other.
      const from = performance.now();
      await until('a lifetime is over', () => performance.now() - from > 1500);
      assert.equal(await fetchValue(holder, PID), pid);
      await holder.query('COMMIT');
      // PgBouncer passes the answer on before it closes the server that gave it.
      await until('the other is closed', () => closings(crowd, 'server lifetime over').length > 1);
      assert.equal(closings(crowd, 'server lifetime over').length, 2);
      assert.notEqual(await fetchValue(idle!, PID), pid);
    }),
  );

  rule(
    'closings for server_lifetime are that divided by the pool size apart',
    () => ({ postgres, settings: { server_lifetime: 2, default_pool_size: 2 } }),
    crowded(async (crowd) => {
      await freeServers(crowd, 2);
      const times = await until('both are closed', () => {
        const found = closings(crowd, 'server lifetime over');
        return found.length === 2 && found;
      });
      assert.ok(times[1]! - times[0]! >= 990, `closed at ${times.join(' and ')}`);
    }),
  );

  rule(
    'server_lifetime = 0 uses a server once',
    () => ({ postgres, settings: { server_lifetime: 0 } }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      const first = await fetchValue(client, PID);
      await client.query('BEGIN');
      const second = await fetchValue(client, PID);
      assert.notEqual(second, first);
      assert.equal(await fetchValue(client, PID), second);
      await client.query('COMMIT');
      await until('it is closed', async () => (await crowd.servers()).length === 0);
    }),
  );

  rule(
    'server_lifetime of a database wins over the global one, and 0 there is no value',
    () => ({
      postgres,
      databases: {
        app: '',
        short: 'dbname=app server_lifetime=1',
        unset: 'dbname=app server_lifetime=0',
      },
    }),
    crowded(async (crowd) => {
      await freeServers(crowd, 1);
      await freeServers(crowd, 1, { database: 'unset' });
      await freeServers(crowd, 1, { database: 'short' });
      await until('one is closed', () => closings(crowd, 'server lifetime over').length === 1);
      assert.equal((await crowd.servers('short')).length, 0);
      assert.equal((await crowd.servers('unset')).length, 1);
      assert.equal((await crowd.servers()).length, 1);
    }),
    { since: '1.24' },
  );

  rule(
    'a server that nobody has used for server_idle_timeout is closed',
    () => ({ postgres, settings: { server_idle_timeout: 1, default_pool_size: 3 } }),
    crowded(async (crowd) => {
      const holder = await crowd.holder();
      const [client] = await freeServers(crowd, 2);
      const pid = await fetchValue(client!, PID);
      await until('the other is closed', async () => {
        assert.equal(await fetchValue(client!, PID), pid);
        return closings(crowd, 'server idle timeout').length === 1;
      });
      await until('this one too', () => closings(crowd, 'server idle timeout').length === 2);
      await holder.query('COMMIT');
      assert.equal(closings(crowd, 'server idle timeout').length, 2);
    }),
  );

  rule(
    'the server that became free last is used first',
    () => ({ postgres }),
    crowded(async (crowd) => {
      const { pids, client } = await releasedInOrder(crowd);
      assert.equal(await fetchValue(client, PID), pids[2]);
      assert.equal(await fetchValue(client, PID), pids[2]);
    }),
  );

  rule(
    'with server_round_robin the server that became free first is used first',
    () => ({ postgres, settings: { server_round_robin: 1 } }),
    crowded(async (crowd) => {
      const { pids, client } = await releasedInOrder(crowd);
      const found = [];
      for (let i = 0; i < 4; i++) found.push(await fetchValue(client, PID));
      assert.deepEqual(found, [...pids, pids[0]]);
    }),
  );
});

/** Three servers, by their process ids in the order in which they became free. */
async function releasedInOrder(
  crowd: Crowd,
): Promise<{ pids: (string | null)[]; client: WireClient }> {
  const clients = [await crowd.holder(), await crowd.holder(), await crowd.holder()];
  const pids = [];
  for (const client of clients) {
    pids.push(await fetchValue(client, PID));
    await client.query('COMMIT');
  }
  return { pids, client: clients[0]! };
}

/** What a server may say unasked, and what the pooler makes of it. */
const UNASKED: readonly { name: string; says: Buffer; isHarmless?: boolean }[] = [
  { name: 'a notice', says: message('N', noticeParts('NOTICE', '00000')) },
  { name: 'an error', says: say.errorResponse('57P01', 'terminating connection', 'FATAL') },
  { name: 'a parameter', says: say.parameterStatus('TimeZone', 'Europe/Vienna') },
  {
    name: 'a notification',
    says: message('A', [Buffer.alloc(4), 'channel', '']),
    isHarmless: true,
  },
  { name: 'that it is ready', says: say.ready(), isHarmless: true },
];

function noticeParts(severity: string, sqlstate: string): Part[] {
  const fields = [`S${severity}`, `C${sqlstate}`, 'Mwatch out'];
  return [...fields, Buffer.of(0)];
}

describe('a free server', { concurrency: 4 }, () => {
  for (const { name, says, isHarmless = false } of UNASKED) {
    scripted(
      `${name} from a free server ${isHarmless ? 'changes nothing' : 'ends it'}, and no client sees it`,
      {
        settings: {},
        script: async (connection) => {
          await connection.welcome();
          await connection.answerQueries(() => say.textAnswer(String(connection.index)));
        },
      },
      async (crowd, stage) => {
        const client = await crowd.login();
        assert.equal(await fetchValue(client, 'SELECT 1'), '0');
        const [server] = stage.connections as [FakeConnection];
        server.send(says);
        if (isHarmless) {
          assert.equal(await fetchValue(client, 'SELECT 1'), '0');
          assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
          return;
        }
        await until('it is closed', () => server.isClosed);
        assert.match(crowd.pooler.log(), /closing because: \w+ server got dirty/);
        assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
        assert.equal(await fetchValue(client, 'SELECT 1'), '1');
      },
    );
  }

  scripted(
    'the end of a free server is noticed by nobody',
    {
      settings: {},
      script: async (connection) => {
        await connection.welcome();
        await connection.answerQueries(() => say.textAnswer(String(connection.index)));
      },
    },
    async (crowd, stage) => {
      const client = await crowd.login();
      for (const end of [
        (one: FakeConnection) => one.close(),
        (one: FakeConnection) => one.reset(),
      ]) {
        const count = stage.connections.length;
        assert.equal(await fetchValue(client, 'SELECT 1'), String(count - 1));
        end(stage.connections[count - 1]!);
        await until('it is gone', async () => (await crowd.servers()).length === 0);
        client.send(query('SELECT 1'));
        assert.equal(typesOf(await client.untilReady()), 'T D C Z:I');
      }
    },
  );
});

test('the server is ended', () => postgres.dispose());
