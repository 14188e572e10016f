/** What becomes of a server when its client goes, and of a client when its server does. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { type Crowd, crowded, ending, fetchValue } from '../support/crowd.ts';
import {
  bind,
  copyData,
  execute,
  FLUSH,
  parse,
  query,
  startup,
  TERMINATE,
  typesOf,
} from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { rule } from '../support/rule.ts';
import { scripted } from '../support/scripted.ts';
import * as say from '../support/server-messages.ts';
import { until } from '../support/until.ts';
import { WireClient, WireError } from '../support/wire-client.ts';

const PID = 'SELECT pg_backend_pid()';
const NOT_READY = 'client disconnect while server was not ready';
const IN_PROGRESS = 'client disconnected with query in progress';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
  const owner = await WireClient.login(postgres);
  await owner.query('CREATE TABLE kept (n int); CREATE TABLE asked (pooler int)');
  await owner.end();
});

/** The ways in which a client goes. */
const LEAVES: Readonly<Record<string, (client: WireClient) => void>> = {
  'with Terminate': (client) => client.socket.end(TERMINATE),
  'without a word': (client) => client.destroy(),
  'with a TCP reset': (client) => client.reset(),
};

/** Where a client goes. */
const BUSY_PLACES: readonly {
  readonly where: string;
  readonly start: (client: WireClient) => Promise<void>;
}[] = [
  {
    where: 'while its query runs',
    start: async (client) => client.send(query('SELECT pg_sleep(1)')),
  },
  {
    where: 'inside its transaction',
    start: async (client) => {
      await client.query('BEGIN');
      await client.query('INSERT INTO kept VALUES (1)');
    },
  },
  {
    where: 'inside its failed transaction',
    start: async (client) => {
      await client.query('BEGIN');
      await client.query('INSERT INTO kept VALUES (1)');
      await client.query('SELECT 1/0');
    },
  },
  {
    where: 'while its COPY FROM STDIN runs',
    start: async (client) => {
      client.send(query('COPY kept FROM STDIN'));
      await client.until('G');
      client.send(copyData(Buffer.from('1\n')));
    },
  },
  {
    where: 'before its Sync',
    start: async (client) => {
      client.send(parse('', 'INSERT INTO kept VALUES (1)'), bind(), execute(), FLUSH);
      await client.until('C');
    },
  },
  {
    where: 'in the middle of its pipeline',
    start: async (client) => client.send(query('SELECT pg_sleep(1)'), query('SELECT 1')),
  },
];

/** How many servers were closed for that. */
function closings(crowd: Crowd, reason: string): number {
  const lines = crowd.pooler.log().split('\n');
  const mine = lines.filter((line) => line.includes(` closing because: ${reason} (`));
  return mine.filter((line) => line.includes(' S-')).length;
}

describe('a client that goes', { concurrency: 4 }, () => {
  for (const [how, leave] of Object.entries(LEAVES)) {
    rule(
      `${how} when it is idle leaves no trace`,
      () => ({ postgres }),
      crowded(async (crowd) => {
        const client = await crowd.login();
        const pid = await fetchValue(client, PID);
        leave(client);
        await until('it is gone', async () => (await crowd.sum('cl_active')) === 1);
        assert.equal(await fetchValue(await crowd.login(), PID), pid);
      }),
    );

    rule(
      `${how} between the queries of its session gives its server back, reset`,
      () => ({ postgres, settings: { pool_mode: 'session', default_pool_size: 1 } }),
      crowded(async (crowd) => {
        const client = await crowd.login();
        const pid = await fetchValue(client, PID);
        await client.query("SET work_mem = '9999kB'");
        leave(client);
        const next = await crowd.login();
        assert.equal(await fetchValue(next, PID), pid);
        assert.equal(await fetchValue(next, 'SHOW work_mem'), '4MB');
      }),
    );
  }

  for (const { where, start } of BUSY_PLACES) {
    rule(
      `${where} takes its server along, and PostgreSQL rolls back`,
      () => ({ postgres, settings: { default_pool_size: 1 } }),
      crowded(async (crowd) => {
        const pids: (string | null)[] = [];
        for (const leave of Object.values(LEAVES)) {
          const client = await crowd.login();
          pids.push(await fetchValue(client, PID));
          await start(client);
          leave(client);
          const next = await crowd.login();
          assert.notEqual(await fetchValue(next, PID), pids.at(-1));
          await next.end();
        }
        assert.equal(closings(crowd, NOT_READY), 3);
        await until('PostgreSQL has noticed', async () => {
          const backends = await postgres.backends();
          return !backends.some(({ pid }) => pids.includes(String(pid)));
        });
        assert.equal(await fetchValue(await crowd.login(), 'SELECT count(*) FROM kept'), '0');
      }),
    );
  }

  rule(
    'while its query runs leaves the query to run on, for nobody cancels it',
    () => ({ postgres }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      const pid = Number(await fetchValue(client, PID));
      client.send(query('SELECT pg_sleep(60)'));
      const state = async () =>
        (await postgres.backends()).find((backend) => backend.pid === pid)?.state;
      await until('it runs', async () => (await state()) === 'active');
      client.destroy();
      await until('the server is closed', async () => (await crowd.servers()).length === 0);
      assert.equal(await state(), 'active');
      await postgres.query('SELECT pg_terminate_backend($1)', [pid]);
    }),
  );

  rule(
    'while its COPY TO STDOUT runs takes its server along',
    () => ({ postgres, settings: { default_pool_size: 1 } }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      const pid = await fetchValue(client, PID);
      client.send(
        query("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 200000)) TO STDOUT"),
      );
      await client.until('d');
      client.socket.pause();
      client.reset();
      const next = await crowd.login();
      assert.notEqual(await fetchValue(next, PID), pid);
    }),
  );

  rule(
    'before it has read its answer takes no other client’s place',
    () => ({ postgres, settings: { default_pool_size: 1 } }),
    crowded(async (crowd) => {
      for (const leave of Object.values(LEAVES)) {
        const client = await crowd.login();
        client.socket.pause();
        client.send(query("SELECT repeat('x', 100000) FROM generate_series(1, 100)"));
        await until('it is linked', async () => (await crowd.sum('sv_active')) === 1);
        leave(client);
        client.destroy();
        assert.equal(await fetchValue(await crowd.login(), 'SELECT 1'), '1');
      }
    }),
  );

  for (const outstanding of [1, 2]) {
    scripted(
      `when ${outstanding} of its pipeline is still to be answered takes its server along`,
      {
        settings: {},
        script: async (connection) => {
          await connection.welcome();
          for (let i = 0; i <= outstanding; i++) await connection.next();
          connection.send(say.textAnswer('first'));
          await connection.ended();
        },
      },
      async (crowd) => {
        const client = await crowd.login();
        client.send(...Array.from({ length: outstanding + 1 }, () => query('SELECT 1')));
        await client.untilReady();
        client.destroy();
        await until('its server is closed', () => closings(crowd, IN_PROGRESS) === 1);
      },
      { since: '1.22' },
    );
  }

  rule(
    'with Terminate right behind its query has it run',
    () => ({ postgres }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      client.send(query(`INSERT INTO asked VALUES (${crowd.pooler.port})`), TERMINATE);
      await until('the pooler closes', () => client.isClosed);
      const count = `SELECT count(*) FROM asked WHERE pooler = ${crowd.pooler.port}`;
      const other = await crowd.login();
      await until('PostgreSQL has run it', async () => (await fetchValue(other, count)) === '1');
    }),
    { differs: { because: 'PgBouncer may close the server before it has sent the query' } },
  );

  rule(
    'during its login costs no server',
    () => ({ postgres, settings: { auth_type: 'md5' } }),
    crowded(async (crowd) => {
      for (const leave of Object.values(LEAVES)) {
        const client = await crowd.connect();
        client.send(startup({ user: 'app', database: 'app' }));
        await client.until('R');
        leave(client);
      }
      // The console's own login is over when it answers.
      await until('they are gone', async () => {
        const lists = await crowd.pooler.console('SHOW LISTS');
        return Number(lists.find(({ list }) => list === 'login_clients')!['items']) === 0;
      });
      assert.deepEqual(await crowd.servers(), []);
      assert.equal(await fetchValue(await crowd.login(), 'SELECT 1'), '1');
    }),
  );
});

/** What the client was sent at the end: each error, then nothing. */
async function lastErrors(client: WireClient): Promise<string[]> {
  const received = await client.untilClose();
  return received.filter(({ type }) => type === 'E').map(({ body }) => new WireError(body).message);
}

const TERMINATED = 'FATAL 57P01: terminating connection due to administrator command';
const CRASHED = 'FATAL 08P01: server conn crashed?';

describe('a server that goes', { concurrency: 4 }, () => {
  const PLACES = [
    {
      where: 'while a query runs',
      settings: {},
      start: async (client: WireClient) => client.send(query('SELECT pg_sleep(60)')),
    },
    {
      where: 'inside a transaction',
      settings: {},
      start: async (client: WireClient) => void (await client.query('BEGIN')),
    },
    {
      where: 'inside a failed transaction',
      settings: {},
      start: async (client: WireClient) => {
        await client.query('BEGIN');
        await client.query('SELECT 1/0');
      },
    },
    {
      where: 'while a COPY runs',
      settings: {},
      start: async (client: WireClient) => {
        client.send(query('COPY kept FROM STDIN'));
        await client.until('G');
      },
    },
    {
      where: 'between the queries of a session',
      settings: { pool_mode: 'session' },
      start: async () => undefined,
    },
  ];
  for (const { where, settings, start } of PLACES) {
    rule(
      `${where} takes its client along, which reads its last words first`,
      () => ({ postgres, settings }),
      crowded(async (crowd) => {
        const client = await crowd.login();
        const bystander = await crowd.login();
        const pid = Number(await fetchValue(client, PID));
        await start(client);
        const isThere = async () =>
          (await postgres.backends()).some((backend) => backend.pid === pid);
        assert.ok(await isThere());
        await postgres.query('SELECT pg_terminate_backend($1)', [pid]);
        assert.deepEqual(await lastErrors(client), [TERMINATED, CRASHED]);
        assert.equal(closings(crowd, 'server conn crashed?'), 1);
        assert.equal(await fetchValue(bystander, 'SELECT 1'), '1');
        await until('it has ended', async () => !(await isThere()));
      }),
    );
  }

  rule(
    'while nobody uses it is missed by nobody',
    () => ({ postgres }),
    crowded(async (crowd) => {
      const client = await crowd.login();
      const pid = Number(await fetchValue(client, PID));
      await postgres.query('SELECT pg_terminate_backend($1)', [pid]);
      await until('it is gone', async () => (await crowd.servers()).length === 0);
      assert.notEqual(await fetchValue(client, PID), String(pid));
    }),
  );

  for (const end of ['close', 'reset'] as const) {
    scripted(
      `without a word takes its client along too: ${end}`,
      {
        settings: {},
        script: async (connection) => {
          await connection.welcome();
          const found = await connection.nextOrEnd();
          if (found?.type === 'Q' && connection.index === 0) connection[end]();
          else if (found !== null) connection.send(say.textAnswer('again'));
          await connection.answerQueries(() => say.textAnswer('again'));
        },
      },
      async (crowd) => {
        const client = await crowd.login();
        client.send(query('SELECT 1'));
        assert.deepEqual(await lastErrors(client), [CRASHED]);
        // There is no second try: the query may have run.
        assert.equal(await fetchValue(await crowd.login(), 'SELECT 1'), 'again');
      },
    );
  }

  scripted(
    'in the middle of a pipeline takes its client along behind the answers that came',
    {
      settings: {},
      script: async (connection) => {
        await connection.welcome();
        for (const _ of [1, 2, 3]) await connection.next();
        connection.send(say.textAnswer('first', 'I'));
        connection.close();
      },
    },
    async (crowd) => {
      const client = await crowd.login();
      client.send(query('SELECT 1'), query('SELECT 2'), query('SELECT 3'));
      const received = await client.untilClose();
      assert.equal(typesOf(received), 'T D C Z:I E');
      assert.equal(new WireError(received.at(-1)!.body).message, CRASHED);
    },
  );

  scripted(
    'that is silent holds up its own client alone',
    {
      settings: { query_timeout: 1, default_pool_size: 2 },
      script: async (connection) => {
        await connection.welcome();
        if (connection.index > 0) await connection.answerQueries(() => say.textAnswer('1'));
        else await connection.ended();
      },
    },
    async (crowd) => {
      const client = await crowd.login();
      client.send(query('SELECT 1'));
      await until('it is linked', async () => (await crowd.sum('sv_active')) === 1);
      assert.equal(await fetchValue(await crowd.login(), 'SELECT 1'), '1');
      assert.equal(await ending(client), 'FATAL 08P01: query timeout');
    },
  );

  scripted(
    'that takes no bytes holds up its own client alone',
    {
      settings: { query_timeout: 1, default_pool_size: 2 },
      script: async (connection) => {
        await connection.welcome();
        if (connection.index > 0) {
          await connection.answerQueries(() => say.textAnswer('1'));
          return;
        }
        connection.stall();
        await until('it is closed', () => connection.socket.closed);
      },
    },
    async (crowd) => {
      const client = await crowd.login();
      // More than the sockets on the way can hold.
      client.send(query(`SELECT '${'x'.repeat(1 << 24)}'`));
      await until('it is linked', async () => (await crowd.sum('sv_active')) === 1);
      assert.equal(await fetchValue(await crowd.login(), 'SELECT 1'), '1');
      assert.equal(await ending(client), 'FATAL 08P01: query timeout');
    },
  );
});

test('the server is ended', () => postgres.dispose());
