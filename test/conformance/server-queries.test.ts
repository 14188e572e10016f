/** What the pooler asks its servers itself: the first query, the check before a use, the reset after it. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { type Crowd, crowded, fetchValue } from '../support/crowd.ts';
import type { FakeConnection } from '../support/fake-server.ts';
import { query, textRows, typesOf } from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { rule } from '../support/rule.ts';
import { type Stage, scripted } from '../support/scripted.ts';
import * as say from '../support/server-messages.ts';
import { until } from '../support/until.ts';

const CHECK = 'SELECT 4711';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

/** Queries that each connection of a stage got. */
const asked = new WeakMap<Stage, string[]>();

function queriesOf(stage: Stage): string[] {
  const found = asked.get(stage) ?? [];
  asked.set(stage, found);
  return found;
}

/** Answers everything and notes it. */
async function note(connection: FakeConnection, stage: Stage): Promise<void> {
  await connection.welcome();
  await connection.answerQueries((sql) => {
    queriesOf(stage).push(sql);
    return sql === '' ? emptyAnswer() : say.textAnswer(String(connection.index));
  });
}

function emptyAnswer(): Buffer {
  return Buffer.concat([say.emptyQueryResponse(), say.ready()]);
}

function failedAnswer(): Buffer {
  return Buffer.concat([say.errorResponse('42601', 'syntax error'), say.ready()]);
}

describe('server_check_query', { concurrency: 4 }, () => {
  for (const [setting, sent] of [
    ['<empty>', ''],
    [CHECK, CHECK],
  ] as const) {
    scripted(
      `server_check_query = ${setting} is asked before every use when server_check_delay is 0`,
      { settings: { server_check_delay: 0, server_check_query: setting }, script: note },
      async (crowd, stage) => {
        const client = await crowd.login();
        await fetchValue(client, 'SELECT 1');
        const before = queriesOf(stage).length;
        for (let i = 0; i < 3; i++) assert.equal(await fetchValue(client, 'SELECT 1'), '0');
        const each = [sent, 'SELECT 1'];
        assert.deepEqual(queriesOf(stage).slice(before), [...each, ...each, ...each]);
        assert.equal((await crowd.servers())[0]!['state'], 'used');
      },
      // PgBouncer 1.18 sends `<empty>` as it is.
      sent === '' ? { since: '1.22' } : {},
    );
  }

  scripted(
    'an empty server_check_query asks nothing',
    { settings: { server_check_delay: 0, server_check_query: '' }, script: note },
    async (crowd, stage) => {
      const client = await crowd.login();
      for (let i = 0; i < 3; i++) assert.equal(await fetchValue(client, 'SELECT 1'), '0');
      assert.deepEqual(queriesOf(stage), ['SELECT 1', 'SELECT 1', 'SELECT 1']);
    },
  );

  scripted(
    'a server that was idle for server_check_delay is checked, and only when it is needed',
    { settings: { server_check_delay: 0.7, server_check_query: CHECK }, script: note },
    async (crowd, stage) => {
      const client = await crowd.login();
      for (let i = 0; i < 2; i++) assert.equal(await fetchValue(client, 'SELECT 1'), '0');
      assert.deepEqual(queriesOf(stage), ['SELECT 1', 'SELECT 1']);
      await until('it is parked', async () => (await crowd.servers())[0]!['state'] === 'used');
      assert.equal(queriesOf(stage).length, 2);
      assert.equal(await fetchValue(client, 'SELECT 1'), '0');
      assert.deepEqual(queriesOf(stage).slice(2), [CHECK, 'SELECT 1']);
    },
  );

  scripted(
    'a check that fails with an error has succeeded',
    {
      settings: { server_check_delay: 0, server_check_query: CHECK },
      script: async (connection, stage) => {
        await connection.welcome();
        await connection.answerQueries((sql) => {
          queriesOf(stage).push(sql);
          return sql === CHECK ? failedAnswer() : say.textAnswer(String(connection.index));
        });
      },
    },
    async (crowd, stage) => {
      const client = await crowd.login();
      for (let i = 0; i < 3; i++) {
        assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
      }
      assert.ok(queriesOf(stage).includes(CHECK));
      assert.equal(stage.connections.length, 1);
    },
  );

  scripted(
    'a server that ends at its check costs its client nothing but the time',
    {
      settings: { server_check_delay: 0, server_check_query: CHECK },
      script: async (connection, stage) => {
        await connection.welcome();
        await connection.answerQueries((sql) => {
          if (sql === CHECK && connection.index === 0 && queriesOf(stage).length > 0) {
            connection.close();
            return Buffer.alloc(0);
          }
          if (sql !== CHECK) queriesOf(stage).push(sql);
          return say.textAnswer(String(connection.index));
        });
      },
    },
    async (crowd) => {
      const client = await crowd.login();
      assert.equal(await fetchValue(client, 'SELECT 1'), '0');
      assert.equal(await fetchValue(client, 'SELECT 1'), '1');
    },
  );

  scripted(
    'a server is opened for who is queued behind a check, whose server goes to who comes first',
    {
      settings: { server_check_delay: 0, server_check_query: CHECK, default_pool_size: 2 },
      script: async (connection, stage) => {
        await connection.welcome();
        await connection.answerQueries(async (sql) => {
          // The first server never answers its second check.
          if (sql === CHECK && connection.index === 0 && queriesOf(stage).length > 0) {
            queriesOf(stage).push(sql);
            await connection.ended();
          }
          if (sql !== CHECK) queriesOf(stage).push(sql);
          return say.textAnswer(String(connection.index));
        });
      },
    },
    async (crowd, stage) => {
      const client = await crowd.login();
      assert.equal(await fetchValue(client, 'SELECT 1'), '0');
      client.send(query('SELECT 1'));
      await until('it is being checked', () => queriesOf(stage).includes(CHECK));
      const other = await crowd.login();
      other.send(query('SELECT 1'));
      assert.deepEqual(textRows(await client.untilReady()), [['1']]);
      assert.equal((await crowd.servers()).length, 2);
    },
  );
});

describe('server_reset_query', { concurrency: 4 }, () => {
  const MODES = {
    app: '',
    session: 'dbname=app pool_mode=session pool_size=1',
    transaction: 'dbname=app pool_mode=transaction pool_size=1',
  };

  async function setAndLeave(crowd: Crowd, database: string): Promise<string | null> {
    const first = await crowd.login({ database });
    await first.query("SET work_mem = '9999kB'");
    await first.end();
    return fetchValue(await crowd.login({ database }), 'SHOW work_mem');
  }

  rule(
    'DISCARD ALL is run when a client leaves its session, and after no transaction',
    () => ({ postgres, databases: MODES }),
    crowded(async (crowd) => {
      assert.equal(await setAndLeave(crowd, 'session'), '4MB');
      assert.equal(await setAndLeave(crowd, 'transaction'), '9999kB');
    }),
  );

  rule(
    'server_reset_query_always runs it in every mode',
    () => ({
      postgres,
      databases: { ...MODES, statement: 'dbname=app pool_mode=statement pool_size=1' },
      settings: { server_reset_query_always: 1 },
    }),
    crowded(async (crowd) => {
      for (const database of ['session', 'transaction', 'statement']) {
        assert.equal(await setAndLeave(crowd, database), '4MB');
      }
    }),
  );

  rule(
    'an empty server_reset_query runs nothing',
    () => ({ postgres, databases: MODES, settings: { server_reset_query: '' } }),
    crowded(async (crowd) => {
      assert.equal(await setAndLeave(crowd, 'session'), '9999kB');
    }),
  );

  rule(
    'a server_reset_query that fails keeps the server',
    () => ({
      postgres,
      databases: MODES,
      settings: { server_reset_query: 'RESET ALL; SELECT 1/0' },
    }),
    crowded(async (crowd) => {
      const first = await crowd.login({ database: 'session' });
      const pid = await fetchValue(first, 'SELECT pg_backend_pid()');
      await first.end();
      const second = await crowd.login({ database: 'session' });
      assert.equal(await fetchValue(second, 'SELECT pg_backend_pid()'), pid);
    }),
  );

  scripted(
    'the next client gets the server when its reset is over',
    {
      settings: { default_pool_size: 1, pool_mode: 'session' },
      script: async (connection, stage) => {
        await connection.welcome();
        await connection.answerQueries(async (sql) => {
          queriesOf(stage).push(sql);
          if (sql === 'DISCARD ALL') await until('it may end', () => stage.admitted > 0);
          return sql === 'DISCARD ALL'
            ? Buffer.concat([say.commandComplete('DISCARD ALL'), say.ready()])
            : say.textAnswer(String(connection.index));
        });
      },
    },
    async (crowd, stage) => {
      const first = await crowd.login();
      await first.query('SELECT 1');
      const second = await crowd.login();
      first.destroy();
      await until('the reset runs', () => queriesOf(stage).includes('DISCARD ALL'));
      assert.equal((await crowd.servers())[0]!['state'], 'tested');
      second.send(query('SELECT 2'));
      await until('it waits', async () => (await crowd.waiting()) === 1);
      assert.deepEqual(queriesOf(stage), ['SELECT 1', 'DISCARD ALL']);
      stage.admitted = 1;
      assert.equal(typesOf(await second.untilReady()), 'T D C Z:I');
      assert.deepEqual(queriesOf(stage), ['SELECT 1', 'DISCARD ALL', 'SELECT 2']);
    },
  );
});

describe('connect_query', { concurrency: 4 }, () => {
  rule(
    'connect_query is run on a new server before anybody uses it, all of its statements',
    () => ({
      postgres,
      databases: {
        app: "connect_query='SET work_mem = ''7777kB''; SELECT generate_series(1, 3)'",
      },
    }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      assert.equal(await fetchValue(client, 'SHOW work_mem'), '7777kB');
      await client.query('BEGIN');
      assert.equal(await fetchValue(await crowd.holder(), 'SHOW work_mem'), '7777kB');
    }),
  );

  rule(
    'a connect_query that fails is logged, and the server used',
    () => ({ postgres, databases: { app: "connect_query='SELECT 1/0'" } }),
    crowded(async (crowd) => {
      assert.equal(await fetchValue(await crowd.login(), 'SELECT 1'), '1');
      assert.match(crowd.pooler.log(), / error while executing exec_on_query: .*division by zero/);
    }),
  );

  rule(
    'what connect_query sets is what clients are told at their welcome',
    () => ({ postgres, databases: { app: "connect_query='SET timezone = ''Asia/Tokyo'''" } }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      assert.equal(client.parameters.get('TimeZone'), 'Asia/Tokyo');
      assert.equal(await fetchValue(client, 'SHOW timezone'), 'Asia/Tokyo');
    }),
  );
});

test('the server is ended', () => postgres.dispose());
