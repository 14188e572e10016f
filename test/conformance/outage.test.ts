/** What clients are told, and how servers are tried, while no server lets the pooler in. */
import assert from 'node:assert/strict';
import { describe } from 'node:test';
import { type Crowd, ending } from '../support/crowd.ts';
import type { FakeConnection } from '../support/fake-server.ts';
import { query, startup, typesOf } from '../support/messages.ts';
import { type Stage, scripted } from '../support/scripted.ts';
import * as say from '../support/server-messages.ts';
import { until } from '../support/until.ts';
import type { WireClient } from '../support/wire-client.ts';

/** Lets the pooler in and answers its queries. */
async function serve(connection: FakeConnection): Promise<void> {
  await connection.welcome();
  await connection.answerQueries(answerOf);
}

function answerOf(sql: string): Buffer {
  if (sql === 'BEGIN') return Buffer.concat([say.commandComplete('BEGIN'), say.ready('T')]);
  if (sql === 'COMMIT') return Buffer.concat([say.commandComplete('COMMIT'), say.ready()]);
  return say.textAnswer(sql);
}

async function refuse(connection: FakeConnection, sqlstate: string, text: string): Promise<void> {
  await connection.expectStartup();
  connection.send(say.errorResponse(sqlstate, text, 'FATAL'));
  connection.close();
}

/** A client that has introduced itself and is not asked for a password. */
async function newcomer(crowd: Crowd): Promise<WireClient> {
  const client = await crowd.connect();
  client.send(startup({ user: 'app', database: 'app' }));
  return client;
}

async function areQueued(crowd: Crowd, count: number): Promise<void> {
  await until(`${count} clients wait`, async () => (await crowd.waiting()) === count);
}

const failing = (reason: string): string =>
  `FATAL 08P01: server login has been failing, cached error: ${reason} (server_login_retry)`;

/** PgBouncer 1.18 has other words for failed logins, and tells clients of a server that starts up. */
const TELLS_WHY = '1.22';

describe('the login queue', { concurrency: 4 }, () => {
  scripted(
    'a newcomer is told nothing while no server can be reached, and is welcome when one can',
    { settings: { server_login_retry: 0.5 }, script: serve, isDown: true },
    async (crowd, stage) => {
      const client = await newcomer(crowd);
      await until('two attempts have failed', () => failures(crowd).length > 1);
      assert.equal(client.receivedBytes, 0);
      await stage.up();
      assert.equal((await client.untilReady()).at(-1)!.type, 'Z');
      assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
    },
  );

  scripted(
    'a server that refuses the login is quoted, with its SQLSTATE, to all who wait for it',
    {
      settings: {},
      script: async (connection, stage) => {
        await stage.turn(connection);
        await refuse(connection, '28000', 'role "app" is not permitted to log in');
      },
    },
    async (crowd, stage) => {
      const clients = [await newcomer(crowd), await newcomer(crowd), await newcomer(crowd)];
      await areQueued(crowd, 3);
      stage.admitted = 1;
      for (const client of clients) {
        assert.equal(await ending(client), 'FATAL 28000: role "app" is not permitted to log in');
      }
      assert.equal(stage.connections.length, 1);
    },
    { since: TELLS_WHY },
  );

  scripted(
    'clients stay queued while the server says that it is starting up',
    {
      settings: { server_login_retry: 0.5 },
      script: (connection) =>
        connection.index < 2
          ? refuse(connection, '57P03', 'the database system is starting up')
          : serve(connection),
    },
    async (crowd, stage) => {
      const client = await newcomer(crowd);
      await client.untilReady();
      assert.equal(stage.connections.length, 3);
    },
    { since: TELLS_WHY },
  );

  scripted(
    'a refused login is told to nobody while the pool has another server',
    {
      settings: { server_login_retry: 0.5 },
      script: (connection) =>
        connection.index === 0
          ? serve(connection)
          : refuse(connection, '53300', 'sorry, too many clients already'),
    },
    async (crowd, stage) => {
      const holder = await crowd.holder();
      const client = await crowd.queued();
      await until('a second login is refused', () => stage.connections.length > 2);
      assert.equal(client.isClosed, false);
      await holder.query('COMMIT');
      assert.equal(typesOf(await client.untilReady()), 'T D C Z:I');
    },
  );

  scripted(
    'attempts begin server_login_retry apart, and one at a time',
    {
      settings: { server_login_retry: 0.7 },
      script: (connection) => refuse(connection, '57P03', 'the database system is starting up'),
    },
    async (crowd, stage) => {
      for (let i = 0; i < 3; i++) await newcomer(crowd);
      await until('four attempts were made', () => stage.connections.length > 3);
      const [first, second, third, fourth] = stage.times;
      // The pooler's clock starts a little before the server sees the connection.
      for (const gap of [second! - first!, third! - second!, fourth! - third!]) {
        assert.ok(gap > 600, `attempts at ${stage.times.join(', ')}`);
      }
    },
    { since: TELLS_WHY },
  );

  /** Four clients want to begin a transaction; the first server has shown that logins succeed. */
  async function fourBegin(crowd: Crowd, stage: Stage): Promise<WireClient[]> {
    const clients = [];
    for (let i = 0; i < 4; i++) clients.push(await newcomer(crowd));
    await areQueued(crowd, 4);
    assert.equal(stage.connections.length, 1);
    stage.admitted = 1;
    for (const client of clients) {
      await client.untilReady();
      client.send(query('BEGIN'));
    }
    return clients;
  }

  scripted(
    'once a login has succeeded the others of a pool go on at a time',
    {
      settings: { default_pool_size: 4 },
      script: async (connection, stage) => {
        await stage.turn(connection);
        await serve(connection);
      },
    },
    async (crowd, stage) => {
      const clients = await fourBegin(crowd, stage);
      await until('all attempts begin', () => stage.connections.length === 4);
      await areQueued(crowd, 3);
      assert.equal(await crowd.sum('sv_login'), 3);
      stage.admitted = 4;
      for (const client of clients) assert.equal(typesOf(await client.untilReady()), 'C Z:T');
      assert.equal(stage.connections.length, 4);
    },
    {
      differs: {
        because: 'PgBouncer logs in to one server at a time, however many clients wait',
        check: async (crowd, stage) => {
          const clients = await fourBegin(crowd, stage);
          for (let servers = 2; servers <= 4; servers++) {
            await until('the next attempt begins', () => stage.connections.length >= servers);
            await areQueued(crowd, 5 - servers);
            assert.equal(stage.connections.length, servers);
            assert.equal(await crowd.sum('sv_login'), 1);
            stage.admitted = servers;
          }
          for (const client of clients) assert.equal(typesOf(await client.untilReady()), 'C Z:T');
        },
      },
    },
  );

  scripted(
    'a server that does not let the pooler in within server_connect_timeout is given up',
    {
      settings: { server_connect_timeout: 1, server_login_retry: 0.2 },
      script: async (connection) => {
        if (connection.index > 0) await serve(connection);
        else await connection.ended();
      },
    },
    async (crowd) => {
      const client = await newcomer(crowd);
      await client.untilReady();
      assert.match(crowd.pooler.log(), /S-\S+ app\/app@\S+ closing because: connect timeout/);
    },
  );

  for (const server_connect_timeout of ['0', '0.9']) {
    scripted(
      `server_connect_timeout = ${server_connect_timeout} lets a connection be made`,
      { settings: { server_connect_timeout, query_wait_timeout: 1 }, script: serve },
      async (crowd) => {
        await (await newcomer(crowd)).untilReady();
      },
      {
        differs: {
          because: 'PgBouncer gives up every connect at once',
          check: async (crowd) => {
            assert.equal(await ending(await newcomer(crowd)), 'FATAL 08P01: query_wait_timeout');
          },
        },
      },
    );
  }
});

/** How the second connection of a pool comes to nothing, and what clients that come later are told. */
const OUTAGES: readonly {
  readonly name: string;
  readonly fail: ((connection: FakeConnection) => Promise<void>) | null;
  readonly reason: string;
  /** What the client that waits for that connection is told; null: nothing. */
  readonly told: string | null;
}[] = [
  { name: 'that nobody listens', fail: null, reason: 'connect failed', told: null },
  {
    name: 'that closes at once',
    fail: async (connection) => connection.close(),
    reason: 'server conn crashed?',
    told: null,
  },
  {
    name: 'that never answers',
    fail: (connection) => connection.ended(),
    reason: 'connect timeout',
    told: null,
  },
  {
    name: 'that refuses',
    fail: (connection) => refuse(connection, '53300', 'sorry, too many clients already'),
    reason: 'sorry, too many clients already',
    told: 'FATAL 53300: sorry, too many clients already',
  },
];

describe('an outage', { concurrency: 4 }, () => {
  for (const { name, fail, reason, told } of OUTAGES) {
    scripted(
      `a welcome client that comes while logins fail is told so at once: a server ${name}`,
      {
        settings: { server_connect_timeout: 1, server_login_retry: 60 },
        script: async (connection) => {
          if (connection.index > 0) return fail!(connection);
          await connection.welcome();
          await connection.ended();
        },
      },
      async (crowd, stage) => {
        const first = await crowd.login();
        const later = await crowd.login();
        if (fail === null) await stage.down();
        else stage.connections[0]!.close();
        await until('the pool has no server', async () => (await crowd.servers()).length === 0);
        const before = failures(crowd).length;
        first.send(query('SELECT 1'));
        if (told === null) await until('it failed', () => failures(crowd).length > before);
        else assert.equal(await ending(first), told);
        later.send(query('SELECT 1'));
        assert.equal(await ending(later), failing(reason));
        if (told === null) assert.equal(first.isClosed, false);
      },
      { since: TELLS_WHY },
    );
  }

  scripted(
    'of a long reason 99 bytes are told, in whole characters',
    {
      settings: { server_login_retry: 60 },
      script: async (connection) => {
        if (connection.index > 0) return refuse(connection, '57P03', 'ä'.repeat(60));
        await connection.welcome();
        await connection.ended();
      },
    },
    async (crowd, stage) => {
      assert.equal(await endingAfter(crowd, stage), failing('ä'.repeat(49)));
    },
    {
      since: TELLS_WHY,
      differs: {
        because: 'PgBouncer cuts the whole text to 127, and the name of its setting with it',
        check: async (crowd, stage) => {
          const told = await endingAfter(crowd, stage);
          assert.ok(failing('ä'.repeat(50)).startsWith(told), told);
          assert.equal(Buffer.byteLength(told.replace(/^.*08P01: /, '')), 127);
        },
      },
    },
  );

  scripted(
    'the first client after an outage is still refused, and has the next attempt made',
    {
      settings: { server_login_retry: 0.5, query_wait_timeout: 1 },
      script: serve,
    },
    async (crowd, stage) => {
      const clients = [await crowd.login(), await crowd.login(), await crowd.login()];
      const [during, after, later] = clients as [WireClient, WireClient, WireClient];
      await stage.down();
      await until('the pool has no server', async () => (await crowd.servers()).length === 0);
      during.send(query('SELECT 1'));
      assert.equal(await ending(during), 'FATAL 08P01: query_wait_timeout');
      await stage.up();
      const upAt = performance.now();
      await until('server_login_retry is over', () => performance.now() > upAt + 600);
      // Nobody waits, so nobody has noticed.
      assert.equal(stage.connections.length, 0);
      after.send(query('SELECT 1'));
      assert.equal(await ending(after), failing('connect failed'));
      await until('the server is back', async () => (await crowd.servers()).length === 1);
      assert.equal(typesOf(await later.query('SELECT 1')), 'T D C Z:I');
    },
    { since: TELLS_WHY },
  );
});

/** What a client is told that comes when the next login after the first has failed. */
async function endingAfter(crowd: Crowd, stage: Stage): Promise<string> {
  const first = await crowd.login();
  const later = await crowd.login();
  stage.connections[0]!.close();
  await until('the pool has no server', async () => (await crowd.servers()).length === 0);
  const before = failures(crowd).length;
  first.send(query('SELECT 1'));
  await until('it failed', () => failures(crowd).length > before);
  later.send(query('SELECT 1'));
  return ending(later);
}

/** Log lines of connections that were closed. */
function failures(crowd: Crowd): string[] {
  return crowd.pooler.log().match(/^.*S-\S+ app\/app@.* closing because: .*$/gm) ?? [];
}
