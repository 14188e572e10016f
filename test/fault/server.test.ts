/**
 * Servers that die, hang or say what no PostgreSQL says: the client is told PgBouncer's text or sees
 * its connection end, nobody gets bytes that are not his own, and the pool serves the next client.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { type FakeConnection, type FakeServer, startFakeServer } from '../support/fake-server.ts';
import { int32, message, query, textRows, typesOf } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import {
  authenticationOk,
  commandComplete,
  errorResponse,
  parameterStatus,
  ready,
  textAnswer,
  textColumns,
  textRow,
} from '../support/server-messages.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';
import { fatal, inLanes, isServed, line, linesUntilClose, poolIs } from './support.ts';

type Answer = (sql: string, connection: FakeConnection) => Promise<void> | void;

/** A fake server whose connections log in and then answer each query as told. */
function answering(answer: Answer): Promise<FakeServer> {
  return startFakeServer(async (connection) => {
    await connection.welcome();
    await talk(connection, answer);
  });
}

/** Answers queries until the connection ends; queries named `ok…` get their own text back. */
async function talk(connection: FakeConnection, answer: Answer): Promise<void> {
  for (;;) {
    const found = await connection.nextOrEnd();
    if (found === null || found.type === 'X') {
      connection.close();
      return;
    }
    const sql = found.type === 'Q' ? found.body.toString('utf8', 0, found.body.length - 1) : '';
    if (sql.startsWith('ok')) connection.send(textAnswer(sql));
    else await answer(sql, connection);
  }
}

interface FleetOptions {
  readonly settings?: Section;
  readonly poolSize?: number;
  readonly size?: number;
}

/** A fleet before one server, as database `app`. */
function fleetBefore(
  t: TestContext,
  server: { readonly port: number },
  options: FleetOptions = {},
): Promise<TestPgfleet> {
  return fleetBeforeAll(t, [['app', server]], options);
}

/** A fleet before several servers, each a database. */
async function fleetBeforeAll(
  t: TestContext,
  servers: readonly (readonly [database: string, server: { readonly port: number }])[],
  { settings, poolSize = 1, size = 1 }: FleetOptions = {},
): Promise<TestPgfleet> {
  const entries = servers.map(([database, { port }]) => [
    database,
    `host=127.0.0.1 port=${port} pool_size=${poolSize}`,
  ]);
  const fleet = await startPgfleet({
    databases: Object.fromEntries(entries),
    settings: { server_login_retry: 1, query_wait_timeout: 8, ...settings },
    size,
  });
  t.after(() => fleet.stop());
  return fleet;
}

/**
 * Runs each case against a server of its own, all at once on one fleet. The fault of a case is told
 * with its name.
 */
async function eachOnOneFleet<Case extends readonly [name: string, ...rest: unknown[]]>(
  t: TestContext,
  cases: readonly Case[],
  options: FleetOptions,
  start: (one: Case) => Promise<FakeServer>,
  run: (one: Case, fleet: TestPgfleet, server: FakeServer, database: string) => Promise<void>,
): Promise<void> {
  const servers = await Promise.all(cases.map((one) => start(one)));
  for (const server of servers) t.after(() => server.stop());
  const named = servers.map((server, index) => [`app${index}`, server] as const);
  const fleet = await fleetBeforeAll(t, named, options);
  // Said before the connection of a server ends that sent it.
  fleet.allowLog(/ERROR S-\S+ \S+ unknown pkt: /);
  await inLanes(cases.entries(), 6, async ([index, one]) => {
    await run(one, fleet, servers[index]!, `app${index}`).catch((cause: unknown) => {
      throw new Error(`${one[0]}: ${String(cause)}`, { cause });
    });
  });
}

/** Fails unless a query of this client is answered with its own text. */
async function answersOk(client: WireClient, text: string, deadlineMs?: number): Promise<void> {
  assert.deepEqual(textRows(await client.query(text, deadlineMs)), [[text]]);
}

test('a reply that ends at any byte is never made whole by other bytes', async (t) => {
  const reply = Buffer.concat([
    parameterStatus('is_superuser', 'on'),
    textAnswer('0123456789012345678901234567890123456789'),
  ]);
  const server = await answering((sql, connection) => {
    const [, size, how] = /(\d+) (\w+)/.exec(sql) ?? [];
    connection.send(reply.subarray(0, Number(size)));
    if (how === 'end') connection.close();
    else connection.reset();
  });
  t.after(() => server.stop());
  const fleet = await fleetBefore(t, server, { poolSize: 4 });
  const told = errorResponse('08P01', 'server conn crashed?', 'FATAL').length - 'VFATAL\0'.length;
  const boundaries: number[] = [];
  for (let at = 0; at < reply.length; at += 1 + reply.readInt32BE(at + 1)) boundaries.push(at);

  const sizes = Array.from({ length: reply.length }, (_, size) => size);
  await inLanes(sizes, 3, async (size) => {
    const client = await WireClient.login(fleet);
    const before = client.receivedBytes;
    client.send(query(`cut ${size} ${size % 3 === 0 ? 'reset' : 'end'}`));
    const lines = await linesUntilClose(client);
    const got = client.receivedBytes - before;
    const whole = boundaries.findLast((boundary) => boundary <= size)!;
    const what = `cut at ${size}: ${lines.join(', ')}`;
    if (lines.at(-2) === fatal('server conn crashed?')[0]) {
      assert.ok(boundaries.includes(got - told), what);
    } else {
      assert.ok(got > whole && got <= size, what);
    }
    // A reset may overtake the bytes before it.
    if (size % 3 !== 0) assert.ok(got >= whole, what);
    client.destroy();
  });
  const client = await WireClient.login(fleet);
  await answersOk(client, 'ok after all');
  await client.end();
});

for (const size of [1, 2]) {
  test(`a reply that comes byte by byte arrives as it was sent, ${size} workers`, async (t) => {
    const reply = Buffer.concat([
      parameterStatus('TimeZone', 'Europe/Berlin'),
      textColumns('one', 'two'),
      textRow('a', null),
      message('N', ['SNOTICE', 'C00000', 'Mtext', Buffer.of(0)]),
      message('A', [int32(4), 'channel', 'payload']),
      textRow('', 'b'.repeat(20)),
      commandComplete('SELECT 2'),
      ready('T'),
    ]);
    const server = await answering(async (_sql, connection) => {
      for (const byte of reply) {
        connection.send(Buffer.of(byte));
        await nextTurn();
      }
    });
    t.after(() => server.stop());
    const fleet = await fleetBefore(t, server, { size });
    const client = await WireClient.login(fleet);
    const received = await client.query('slow');
    const bytes = received.map(({ type, body }) => message(type, [body]));
    assert.deepEqual(Buffer.concat(bytes), reply);
    client.destroy();
  });
}

/** What a server must not say to a linked client, and what the client is told. */
const GARBAGE: readonly (readonly [name: string, bytes: Buffer, text: string])[] = [
  ['a message of an unknown type', message('!', ['what']), 'unknown pkt'],
  ['a message of type 0', message('\0', ['what']), 'unknown pkt'],
  ['an authentication request', authenticationOk(), 'unknown pkt'],
  ['a second BackendKeyData', message('K', [Buffer.alloc(8)]), 'unknown pkt'],
  ['a NegotiateProtocolVersion', message('v', [int32(3), int32(0)]), 'unknown pkt'],
  ...[0, 1, 2, 3, -1, -2_147_483_648].map((length): [string, Buffer, string] => [
    `a row of length ${length}`,
    message('D', [], length),
    'bad pkt header',
  ]),
  ['a row above max_packet_size', message('D', [], 2_000_000), 'bad pkt header'],
  ['an HTTP answer', Buffer.from('HTTP/1.1 400 Bad Request\r\n\r\n'), 'bad pkt header'],
  ['a ReadyForQuery without a status', message('Z'), 'unknown pkt'],
  ['a ReadyForQuery that is too long', message('Z', ['II']), 'unknown pkt'],
  ['a ParameterStatus without a value', message('S', ['name']), 'broken ParameterStatus packet'],
  [
    'a ParameterStatus without a NUL',
    message('S', [Buffer.from('name')]),
    'broken ParameterStatus packet',
  ],
  [
    'a ParameterStatus of 2 MB',
    message('S', ['name', 'v'.repeat(2_000_000)]),
    'broken ParameterStatus packet',
  ],
];

for (const limit of [1_000_000, 10_000_000]) {
  // What is above 1 MB is a fault of its length there, and of something else here.
  const cases = GARBAGE.filter(
    ([, , text]) => (text === 'bad pkt header') === (limit === 1_000_000),
  );
  const texts = [...new Set(cases.map(([, , text]) => `'${text}'`))].join(' or ');
  test(`what no server says ends it and its client with ${texts}, behind what came before`, async (t) => {
    const rows = Buffer.concat([textColumns('a'), textRow('before'), textRow('b'.repeat(50))]);
    await eachOnOneFleet(
      t,
      cases,
      { settings: { max_packet_size: limit } },
      ([, bytes]) =>
        answering(async (sql, connection) => {
          // The end of a row and what must not come are read together.
          if (sql === 'parted') {
            connection.send(rows.subarray(0, rows.length - 20));
            await until(
              'the first part has been read',
              () => connection.socket.writableLength === 0,
            );
            connection.send(rows.subarray(rows.length - 20), bytes);
          } else connection.send(rows, bytes);
          await connection.ended().catch(() => undefined);
        }),
      async ([name, , text], fleet, _server, database) => {
        for (const sql of ['whole', 'parted']) {
          const client = await WireClient.login(fleet, { database });
          client.send(query(sql));
          const lines = await linesUntilClose(client);
          assert.deepEqual(lines, ['T', 'D', 'D', ...fatal(text)], `${name}, ${sql}`);
          client.destroy();
        }
        const client = await WireClient.login(fleet, { database });
        await answersOk(client, 'ok');
        await client.end();
      },
    );
  });
}

test("a server's own last words come before the pooler's", async (t) => {
  const server = await answering((_sql, connection) => {
    connection.send(errorResponse('57P01', 'terminating connection', 'FATAL'));
    connection.close();
  });
  t.after(() => server.stop());
  const fleet = await fleetBefore(t, server);
  const client = await WireClient.login(fleet);
  client.send(query('die'));
  assert.deepEqual(await linesUntilClose(client), [
    'FATAL 57P01 terminating connection',
    ...fatal('server conn crashed?'),
  ]);
  client.destroy();
});

test('a server that dies between statements takes its client along in session mode', async (t) => {
  const server = await answering(() => undefined);
  t.after(() => server.stop());
  const fleet = await fleetBefore(t, server, { settings: { pool_mode: 'session' } });
  const client = await WireClient.login(fleet);
  await answersOk(client, 'ok');
  server.connections.at(-1)!.reset();
  assert.deepEqual(await linesUntilClose(client), fatal('server conn crashed?'));
  client.destroy();
});

test('a server that dies while idle is missed by nobody', async (t) => {
  const server = await answering(() => undefined);
  t.after(() => server.stop());
  const fleet = await fleetBefore(t, server);
  const client = await WireClient.login(fleet);
  for (const how of ['close', 'reset'] as const) {
    await answersOk(client, `ok before ${how}`);
    server.connections.at(-1)![how]();
    await until('the loss is seen', () => poolIs(fleet, { sv_idle: 0 }));
    await answersOk(client, `ok after ${how}`);
  }
  assert.equal(server.connections.length, 3);
  await client.end();
});

const UNASKED: readonly (readonly [name: string, bytes: Buffer])[] = [
  ['a notice', message('N', ['SNOTICE', 'C00000', 'Mbye', Buffer.of(0)])],
  ['an error', errorResponse('57P01', 'terminating connection', 'FATAL')],
  ['a ParameterStatus', parameterStatus('TimeZone', 'Europe/Berlin')],
  ['a row', textRow('of nobody')],
  ['garbage', Buffer.from('garbage, surely')],
  ['a bad length', message('D', [], 3)],
];

test('what nobody asked for ends an idle server, and no client sees it', async (t) => {
  await eachOnOneFleet(
    t,
    UNASKED,
    {},
    () => answering(() => undefined),
    async ([, bytes], fleet, server, database) => {
      const client = await WireClient.login(fleet, { database });
      await answersOk(client, 'ok first');
      server.connections[0]!.send(bytes);
      await until('the server is closed', () => server.connections[0]!.isClosed);
      await answersOk(client, 'ok second');
      assert.equal(server.connections.length, 2);
      assert.match(
        fleet.log(),
        new RegExp(
          `${database}/.* closing because: ((SV_IDLE|idle) server got dirty|bad pkt header)`,
        ),
      );
      await client.end();
    },
  );
});

test('what comes in one write with a ReadyForQuery reaches neither this client nor the next', async (t) => {
  const asked = new Set<string>();
  const mayAnswer = new Set<string>();
  await eachOnOneFleet(
    t,
    UNASKED,
    {},
    ([name, bytes]) =>
      answering(async (sql, connection) => {
        asked.add(name);
        await until('the next client waits', () => mayAnswer.has(name));
        connection.send(textAnswer(sql), bytes);
      }),
    async ([name], fleet, server, database) => {
      const first = await WireClient.login(fleet, { database });
      const second = await WireClient.login(fleet, { database });
      const answer = first.query('one');
      await until('the first is asked', () => asked.has(name));
      const next = second.query('ok two');
      await until('the second waits', () => poolIs(fleet, { cl_waiting: 1 }, database));
      mayAnswer.add(name);
      assert.deepEqual(textRows(await answer), [['one']]);
      assert.deepEqual(textRows(await next), [['ok two']]);
      assert.equal(server.connections.length, 2);
      await first.end();
      await second.end();
    },
  );
});

test('a notification on an idle server changes nothing', async (t) => {
  const notification = message('A', [int32(4), 'channel', 'payload']);
  const server = await answering((sql, connection) => {
    connection.send(textAnswer(sql), notification.subarray(0, 9));
  });
  t.after(() => server.stop());
  const fleet = await fleetBefore(t, server);
  const client = await WireClient.login(fleet);
  assert.deepEqual(textRows(await client.query('half a notification')), [['half a notification']]);
  server.connections[0]!.send(notification.subarray(9), notification);
  await answersOk(client, 'ok');
  assert.equal(server.connections.length, 1);
  await client.end();
});

test('the rest of a message to a client that left is not for the next client', async (t) => {
  const notification = message('A', [int32(4), 'channel', 'p'.repeat(40)]);
  let isHalf = false;
  const server = await answering((sql, connection) => {
    connection.send(textAnswer(sql), notification.subarray(0, 20));
    isHalf = true;
  });
  t.after(() => server.stop());
  const fleet = await fleetBefore(t, server, {
    settings: { pool_mode: 'session', server_reset_query: '' },
  });
  const first = await WireClient.login(fleet);
  assert.deepEqual(textRows(await first.query('half')), [['half']]);
  const second = await WireClient.login(fleet);
  const answer = second.query('ok mine');
  assert.ok(isHalf);
  await first.end();
  server.connections[0]!.send(notification.subarray(20));
  assert.deepEqual(textRows(await answer), [['ok mine']]);
  await second.end();
});

/** How a login can go wrong, and how that is remembered for clients that come later. */
const BAD_LOGINS: readonly (readonly [
  name: string,
  script: (connection: FakeConnection) => Promise<void> | void,
  cached: string,
])[] = [
  ['closes at once', (connection) => connection.close(), 'server conn crashed?'],
  ['resets at once', (connection) => connection.reset(), 'server conn crashed?'],
  [
    'closes behind AuthenticationOk',
    (connection) => {
      connection.send(authenticationOk());
      connection.close();
    },
    'server conn crashed?',
  ],
  [
    'starts up',
    (connection) => {
      connection.send(errorResponse('57P03', 'the database system is starting up', 'FATAL'));
      connection.close();
    },
    'the database system is starting up',
  ],
  ['says nothing', () => undefined, 'connect timeout'],
  [
    'says nothing behind AuthenticationOk',
    (connection) => connection.send(authenticationOk()),
    'connect timeout',
  ],
  [
    'says half of a message',
    (connection) => connection.send(authenticationOk().subarray(0, 7)),
    'connect timeout',
  ],
  [
    'is no PostgreSQL',
    (connection) => connection.send(Buffer.from('SSH-2.0-OpenSSH_9.2p1\r\n')),
    'unknown pkt',
  ],
  ['sends a bad length', (connection) => connection.send(message('R', [], 2)), 'bad pkt header'],
  ['sends a row', (connection) => connection.send(textRow('a')), 'unknown pkt from server'],
  [
    'is ready before it has authenticated',
    (connection) => connection.send(ready()),
    'unknown pkt from server',
  ],
  [
    'authenticates by Kerberos',
    (connection) => connection.send(message('R', [int32(2)])),
    'failed to answer authreq',
  ],
  [
    'authenticates by nothing',
    (connection) => connection.send(message('R')),
    'failed to answer authreq',
  ],
  [
    'sends a short cancel key',
    (connection) => connection.send(authenticationOk(), message('K', [int32(1)])),
    'bad cancel key',
  ],
  [
    'sends a parameter without a NUL',
    (connection) => connection.send(authenticationOk(), message('S', [Buffer.from('name')])),
    'broken ParameterStatus packet',
  ],
];

test('a login that fails is tried again after a while, its reason told to who comes meanwhile', async (t) => {
  const bad = new Set<string>();
  const attempts = new Map<string, number>();
  await eachOnOneFleet(
    t,
    BAD_LOGINS,
    { settings: { server_connect_timeout: 1, query_wait_timeout: 20 } },
    ([name, script]) =>
      startFakeServer(async (connection) => {
        if (!bad.has(name)) {
          await connection.welcome();
          await talk(connection, () => connection.close());
          return;
        }
        attempts.set(name, (attempts.get(name) ?? 0) + 1);
        await connection.expectStartup();
        await script(connection);
        // It does not close by itself: the pooler must not wait for that.
        await until('the pooler has closed', () => connection.isClosed, { deadlineMs: 30_000 });
        connection.close();
      }),
    async ([name, , cached], fleet, _server, database) => {
      const login = { database };
      const linked = await WireClient.login(fleet, login);
      const late = await WireClient.login(fleet, login);
      await answersOk(linked, 'ok first');
      bad.add(name);
      linked.send(query('now the server goes'));
      assert.deepEqual(await linesUntilClose(linked), fatal('server conn crashed?'));

      const waiting = await WireClient.login(fleet, login);
      const logged = fleet.log().length;
      waiting.send(query('ok waits'));
      const failed = new RegExp(` S-\\S+ ${database}/.* closing because`);
      await until('the login has failed', () => failed.test(fleet.log().slice(logged)));
      late.send(query('ok late'));
      const text = `server login has been failing, cached error: ${cached} (server_login_retry)`;
      assert.deepEqual(await linesUntilClose(late), fatal(text));
      assert.ok(attempts.get(name)! <= 2, `${attempts.get(name)} attempts at once`);
      bad.delete(name);
      const answer = await waiting.until('Z', 20_000);
      assert.deepEqual(textRows(answer), [['ok waits']]);
      await waiting.end();
      linked.destroy();
      late.destroy();
    },
  );
});

const REFUSALS: readonly (readonly [name: string, bytes: Buffer, line: string])[] = [
  [
    'an error',
    errorResponse('3D000', 'database "app" does not exist', 'FATAL'),
    'FATAL 3D000 database "app" does not exist',
  ],
  [
    'an error behind AuthenticationOk',
    Buffer.concat([
      authenticationOk(),
      errorResponse('53300', 'sorry, too many clients already', 'FATAL'),
    ]),
    'FATAL 53300 sorry, too many clients already',
  ],
  [
    'an error without its end',
    message('E', ['SFATAL', 'C28000', Buffer.from('Mno')]),
    'FATAL 28000 ',
  ],
  ['an empty error', message('E'), 'FATAL 08P01 '],
  ['an error of one field without an end', message('E', [Buffer.from('M')]), 'FATAL 08P01 '],
];

test('an error instead of a login is told to everybody who waits for it', async (t) => {
  const good = new Set<string>();
  const waiting = new Map<string, number>();
  await eachOnOneFleet(
    t,
    REFUSALS,
    {},
    ([name, bytes]) =>
      startFakeServer(async (connection) => {
        if (good.has(name)) {
          await connection.welcome();
          await talk(connection, () => undefined);
          return;
        }
        await connection.expectStartup();
        await until('three wait', () => waiting.get(name) === 3);
        connection.send(bytes);
        connection.close();
      }),
    async ([name, , wanted], fleet, _server, database) => {
      const clients = await Promise.all([1, 2, 3].map(() => WireClient.connect(fleet)));
      const refused = clients.map((client) =>
        client.login({ database }).then(
          () => 'let in',
          (error: { severity?: string; sqlstate?: string; text?: string }) =>
            `${error.severity} ${error.sqlstate} ${error.text}`,
        ),
      );
      await until('three wait', () => poolIs(fleet, { cl_waiting: 3 }, database));
      waiting.set(name, 3);
      assert.deepEqual(await Promise.all(refused), [wanted, wanted, wanted]);
      for (const client of clients) client.destroy();
      good.add(name);
      const client = await WireClient.login(fleet, { database });
      await answersOk(client, 'ok');
      await client.end();
    },
  );
});

test('a server that answers no query is given up after query_timeout, its slot once it has ended', async (t) => {
  const stalled: FakeConnection[] = [];
  const server = await answering((sql, connection) => {
    if (sql !== 'hang') return;
    stalled.push(connection);
    connection.stall();
  });
  t.after(() => server.stop());
  const fleet = await fleetBefore(t, server, {
    settings: { query_timeout: 1, default_pool_size: 1 },
  });
  const first = await WireClient.login(fleet);
  const second = await WireClient.login(fleet);
  first.send(query('hang'));
  assert.deepEqual(await linesUntilClose(first), fatal('query timeout'));
  first.destroy();
  // PostgreSQL would run the statement on, and count the connection, until it notices.
  second.send(query('ok'));
  assert.equal(server.connections.length, 1);
  stalled[0]!.close();
  assert.equal(typesOf(await second.untilReady()), 'T D C Z:I');
  await second.end();
});

test('a server that hangs while tracked parameters are applied is given up after query_timeout', async (t) => {
  let isDeaf = true;
  const server = await startFakeServer(async (connection) => {
    await connection.welcome();
    for (
      let next = await connection.nextOrEnd();
      next !== null;
      next = await connection.nextOrEnd()
    ) {
      if (next.type === 'X') break;
      if (isDeaf) await connection.ended().catch(() => undefined);
      else if (next.body.toString().startsWith('SET'))
        connection.send(commandComplete('SET'), ready());
      else connection.send(textAnswer('ok'));
    }
    connection.close();
  });
  t.after(() => server.stop());
  const fleet = await fleetBefore(t, server, { settings: { query_timeout: 1 } });
  const first = await WireClient.login(fleet, { parameters: { DateStyle: 'German' } });
  first.send(query('SELECT 1'));
  assert.deepEqual(await linesUntilClose(first), fatal('query timeout'));
  first.destroy();
  isDeaf = false;
  const second = await WireClient.login(fleet, { parameters: { DateStyle: 'German' } });
  assert.deepEqual(textRows(await second.query('SELECT 1')), [['ok']]);
  await second.end();
});

test('a server that refuses a tracked parameter ends its client with the text of PgBouncer', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({ postgres });
  fleet.allowLog(/WARNING/);
  t.after(() => fleet.stop());
  const client = await WireClient.login(fleet, { parameters: { TimeZone: 'Nowhere/Land' } });
  client.send(query('SELECT 1'));
  assert.deepEqual(await linesUntilClose(client), fatal('invalid server parameter'));
  client.destroy();
  await isServed(fleet);
});

for (const version of [15, 18] as const) {
  for (const size of [1, 2]) {
    test(`PostgreSQL ${version} restarts at once under a fleet of ${size}: idle clients live on`, async (t) => {
      if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
      const postgres = await startPostgres({ version });
      t.after(() => postgres.dispose());
      const fleet = await startPgfleet({
        postgres,
        size,
        settings: { server_login_retry: 1, default_pool_size: 10 },
      });
      t.after(() => fleet.stop());
      const idle = await Promise.all([1, 2, 3, 4].map(() => WireClient.login(fleet)));
      for (const client of idle) await client.query('SELECT 1');
      const active = await WireClient.login(fleet);
      active.send(query('SELECT pg_sleep(600)'));
      const inTransaction = await WireClient.login(fleet);
      await inTransaction.query('BEGIN');
      await until('the query runs', async () => {
        const found = await postgres.backends({ user: 'app' });
        return found.some(({ state, query: sql }) => state === 'active' && sql.includes('sleep'));
      });

      await immediateShutdown(postgres);
      for (const client of [active, inTransaction]) {
        assert.deepEqual((await linesUntilClose(client)).slice(-2), fatal('server conn crashed?'));
        client.destroy();
      }
      await postgres.start();
      await until('logins succeed again', () => isServed(fleet).then(() => true), {
        deadlineMs: 20_000,
      });
      for (const client of idle) {
        assert.deepEqual((await client.query('SELECT 1')).map(line), ['T', 'D', 'C', 'Z:I']);
        await client.end();
      }
    });
  }
}

/** Ends PostgreSQL as `pg_ctl stop -m immediate` does. */
async function immediateShutdown(postgres: TestPostgres): Promise<void> {
  const file = join(postgres.folder, 'data/postmaster.pid');
  const pid = Number(readFileSync(file, 'utf8').split('\n')[0]);
  await postgres.query('SELECT 1');
  process.kill(pid, 'SIGQUIT');
  await until('PostgreSQL has ended', () => {
    try {
      process.kill(pid, 0);
      return false;
    } catch {
      return true;
    }
  });
}
