/** What a server may say to its client, and what becomes of both when it says anything else. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { type FakeConnection, type FakeServer, startFakeServer } from '../support/fake-server.ts';
import { int16, int32, message, query, textRows } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import type { RuleCase } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
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
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';
import { fatal, line, lines, linesUntilClose, login, logSince } from './support.ts';

let server: FakeServer;
before(async () => {
  server = await startFakeServer(async (connection) => {
    await connection.welcome();
    await connection.answerQueries((sql) => answer(sql, connection));
    connection.close();
  });
});

/** A query `say <hex>` is answered with those bytes and nothing else, any other with its own text. */
function answer(sql: string, { index }: FakeConnection): Buffer {
  if (sql === 'which') return textAnswer(String(index));
  const [, hex] = /^say (.*)$/.exec(sql) ?? [];
  return hex === undefined ? textAnswer(sql) : Buffer.from(hex, 'hex');
}

const say = (...parts: readonly Uint8Array[]): Buffer =>
  query(`say ${Buffer.concat(parts).toString('hex')}`);

const database = (settings = {}) => ({
  databases: { app: `host=127.0.0.1 port=${server.port} pool_size=1` },
  settings,
});

/** Number of the connection that serves the client's next query. */
async function which(client: WireClient): Promise<number> {
  const [[index]] = textRows(await client.query('which')) as [[string]];
  return Number(index);
}

const notice = message('N', ['SNOTICE', 'C00000', 'Mhear', Buffer.of(0)]);
const notification = message('A', [int32(4), 'channel', 'payload']);
const copyColumns = [Buffer.of(0), int16(0)];

/** One message of each type that a server may send, besides ReadyForQuery. */
const ACCEPTED: readonly Buffer[] = [
  parameterStatus('TimeZone', 'Europe/Paris'),
  errorResponse('22012', 'division by zero'),
  commandComplete('SELECT 1'),
  notice,
  notification,
  message('G', copyColumns),
  message('W', copyColumns),
  message('H', copyColumns),
  message('1'),
  message('2'),
  message('3'),
  message('n'),
  textColumns('a'),
  message('t', [int16(1), int32(23)]),
  message('c'),
  message('f', ['no more']),
  message('V', [int32(-1)]),
  message('I'),
  message('s'),
  message('d', [Buffer.from('row')]),
  textRow('a'),
];

const TYPES = new Set([90, ...ACCEPTED.map((bytes) => bytes[0])]);
// Type 0 is no type: PgBouncer reads a startup packet there.
const UNKNOWN = Array.from({ length: 255 }, (_, index) => index + 1).filter(
  (type) => !TYPES.has(type),
);

const FAULTS: readonly (readonly [fault: Buffer, text: string])[] = [
  [message('!'), 'unknown pkt'],
  [message('D', [], 3), 'bad pkt header'],
  [message('S'), 'broken ParameterStatus packet'],
];

/** Replies that belong to a request which the client has not sent. */
const OF_NO_REQUEST = new Set(['1', '2', '3', 'n', 's']);

const accepted = (bytes: Buffer): RuleCase => {
  const type = bytes.toString('latin1', 0, 1);
  const heard = async (pooler: TestPooler, t: TestContext): Promise<[number, number]> => {
    const client = await login(t, pooler);
    const before = await which(client);
    client.send(say(bytes, commandComplete('DO'), ready()));
    const received = await client.untilReady();
    assert.deepEqual(
      Buffer.concat(received.map((one) => message(one.type, [one.body]))),
      Buffer.concat([bytes, commandComplete('DO'), ready()]),
    );
    await client.end();
    const other = await login(t, pooler);
    return [before, await which(other)];
  };
  const staysTheSame: RuleCase['check'] = async (pooler, t) => {
    const [before, after] = await heard(pooler, t);
    assert.equal(after, before);
  };
  if (!OF_NO_REQUEST.has(type)) {
    return {
      name: `a message ${type} comes through, and the server goes on`,
      // 1.18 does not know CopyBothResponse.
      ...(type === 'W' ? { since: '1.23' } : {}),
      check: staysTheSame,
    };
  }
  return {
    name: `a message ${type} that answers no request comes through, and the server is closed behind it`,
    check: async (pooler, t) => {
      const [before, after] = await heard(pooler, t);
      assert.notEqual(after, before);
    },
    differs: {
      because: 'PgBouncer keeps a server whose answers no longer match the requests',
      check: staysTheSame,
    },
  };
};

rules('of what a server says to its client', () => ({ ...database(), logs: [/unknown pkt/] }), [
  ...ACCEPTED.map(accepted),
  {
    name: 'any other type ends both',
    check: async (pooler) => {
      for (const type of UNKNOWN) {
        const client = await WireClient.login(pooler);
        client.send(say(message(String.fromCharCode(type), ['what']), ready()));
        assert.equal(await linesUntilClose(client), fatal('unknown pkt'), `type ${type}`);
        client.destroy();
      }
    },
  },
  {
    name: 'what comes in one read before the fault is passed on',
    check: async (pooler) => {
      for (const [fault, text] of FAULTS) {
        const client = await WireClient.login(pooler);
        client.send(say(textColumns('a'), textRow('1'), fault));
        assert.equal(await linesUntilClose(client), `T D ${fatal(text)}`);
        client.destroy();
      }
    },
    differs: {
      because: 'PgBouncer drops it',
      check: async (pooler) => {
        for (const [fault, text] of FAULTS) {
          const client = await WireClient.login(pooler);
          client.send(say(textColumns('a'), textRow('1'), fault));
          assert.equal(await linesUntilClose(client), fatal(text));
          client.destroy();
        }
      },
    },
  },
  {
    name: 'any other type is written to the log',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const from = pooler.log().length;
      client.send(say(message('!')));
      await client.untilClose();
      await until('it is logged', () => pooler.log().includes('pooler error', from));
      assert.deepEqual(
        logSince(pooler, from).filter((text) => /pkt/.test(text)),
        [
          "ERROR S app/app unknown pkt: '!'",
          'LOG S app/app closing because: unknown pkt (age)',
          'LOG C app/app closing because: unknown pkt (age)',
          'WARNING C app/app pooler error: unknown pkt',
        ],
      );
    },
  },
  ...[authenticationOk(), message('K', [Buffer.alloc(8)])].map(
    (bytes): RuleCase => ({
      name: `a message ${bytes.toString('latin1', 0, 1)}, which belongs to the login, ends both`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        client.send(say(bytes));
        assert.equal(await linesUntilClose(client), fatal('unknown pkt'));
      },
    }),
  ),
  ...[0, 1, 2, 3, -1, -2_147_483_648].map(
    (length): RuleCase => ({
      name: `a message of length ${length} ends both`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        client.send(say(message('D', [], length), ready()));
        assert.equal(await linesUntilClose(client), fatal('bad pkt header'));
        const other = await login(t, pooler);
        assert.equal(lines(await other.query('go on')), 'T D C Z:I');
      },
    }),
  ),
  ...[message('Z'), message('Z', ['I'])].map(
    (bytes): RuleCase => ({
      name: `a ReadyForQuery of ${bytes.length} bytes ends both`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        client.send(say(bytes));
        assert.equal(await linesUntilClose(client), fatal('unknown pkt'));
      },
      differs: { because: 'PgBouncer waits for the status, or takes what follows it along' },
    }),
  ),
  ...[
    { name: 'no value', bytes: message('S', ['TimeZone']) },
    { name: 'no NUL behind its value', bytes: message('S', ['TimeZone', Buffer.from('UTC')]) },
    { name: 'nothing', bytes: message('S') },
  ].map(
    ({ name, bytes }): RuleCase => ({
      name: `a ParameterStatus with ${name} ends both`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        client.send(say(bytes, ready()));
        assert.equal(await linesUntilClose(client), fatal('broken ParameterStatus packet'));
      },
    }),
  ),
  {
    name: 'a ParameterStatus of 2 MB ends both',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      client.send(say(parameterStatus('TimeZone', 'v'.repeat(2_000_000)), ready()));
      assert.equal(await linesUntilClose(client), fatal('broken ParameterStatus packet'));
    },
    differs: { because: 'PgBouncer waits for the rest of it, for which it has no room' },
  },
  {
    name: "a server's own last words come before the pooler's",
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const words = errorResponse('57P01', 'terminating connection', 'FATAL');
      client.send(say(textColumns('a'), words));
      assert.equal(line(await client.next()), 'T');
      assert.equal(line(await client.next()), 'FATAL 57P01 terminating connection');
      server.connections.at(-1)!.close();
      assert.equal(await linesUntilClose(client), fatal('server conn crashed?'));
    },
  },
  {
    name: 'a message that is cut off is never made whole by other bytes',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      client.send(say(textColumns('a'), textRow('of many words').subarray(0, 10)));
      assert.equal(line(await client.next()), 'T');
      server.connections.at(-1)!.close();
      assert.equal(await linesUntilClose(client), 'closed');
    },
    differs: {
      because: 'PgBouncer sends its FATAL in the middle of the message',
    },
  },
  ...[
    { name: 'Terminate', leave: (client: WireClient) => client.end() },
    { name: 'no word', leave: async (client: WireClient) => client.destroy() },
  ].map(
    ({ name, leave }): RuleCase => ({
      name: `a client that leaves with ${name} says Terminate to a server that is not ready`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        const before = await which(client);
        client.send(say(textColumns('a')));
        assert.equal(line(await client.next()), 'T');
        await leave(client);
        const other = await login(t, pooler);
        assert.equal(await which(other), before + 1);
      },
    }),
  ),
]);

rules('max_packet_size', () => database({ max_packet_size: 1000 }), [
  {
    name: 'a message of a server that is longer ends both',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const row = (size: number): Buffer => textRow('x'.repeat(size - textRow('').length));
      const connection = server.connections[await which(client)]!;
      const begin = async (): Promise<void> => {
        client.send(say(textColumns('a')));
        assert.equal(line(await client.next()), 'T');
      };
      for (const size of [999, 1000]) {
        await begin();
        connection.send(row(size), commandComplete('SELECT 1'), ready());
        assert.equal(lines(await client.untilReady()), 'D C Z:I', `size ${size}`);
      }
      await begin();
      connection.send(row(1001));
      assert.equal(await linesUntilClose(client), fatal('bad pkt header'));
    },
  },
]);

/** What comes to a server that no client has, and whether the server is still good. */
const UNASKED: readonly { name: string; bytes: Buffer; isGood: boolean }[] = [
  { name: 'a notice', bytes: notice, isGood: false },
  { name: 'an error', bytes: errorResponse('57P01', 'bye', 'FATAL'), isGood: false },
  { name: 'a parameter', bytes: parameterStatus('TimeZone', 'Asia/Tokyo'), isGood: false },
  { name: 'a row', bytes: textRow('of nobody'), isGood: false },
  { name: 'a message of no type', bytes: message('!'), isGood: false },
  { name: 'a message of an impossible length', bytes: message('D', [], 3), isGood: false },
  { name: 'a notification', bytes: notification, isGood: true },
  { name: 'a second ReadyForQuery', bytes: ready(), isGood: true },
];

rules(
  'to a server that no client has',
  () => ({ ...database(), logs: [/unknown pkt/] }),
  UNASKED.map(
    ({ name, bytes, isGood }): RuleCase => ({
      name: `${name} ${isGood ? 'changes nothing' : 'ends it, and no client hears of it'}`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        const before = await which(client);
        const from = pooler.log().length;
        server.connections[before]!.send(bytes);
        await until('the pooler has read it', () =>
          pooler
            .log()
            .slice(from)
            .match(/from server when not linked|closing because/),
        );
        assert.equal((await which(client)) === before, isGood);
      },
    }),
  ),
);

rules('in session mode', () => database({ pool_mode: 'session', server_reset_query: '' }), [
  {
    name: 'a server that goes between queries takes its client along',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      server.connections[await which(client)]!.close();
      assert.equal(await linesUntilClose(client), fatal('server conn crashed?'));
    },
  },
  ...[
    { name: 'a notice', bytes: notice },
    { name: 'an error', bytes: errorResponse('57P01', 'bye') },
    { name: 'a parameter', bytes: parameterStatus('TimeZone', 'Asia/Tokyo') },
  ].map(
    ({ name, bytes }): RuleCase => ({
      name: `${name} between queries reaches the client, whose server is closed when it leaves`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        const before = await which(client);
        const from = pooler.log().length;
        server.connections[before]!.send(bytes);
        const heard = await client.next();
        assert.deepEqual(message(heard.type, [heard.body]), bytes);
        await client.end();
        const other = await login(t, pooler);
        assert.notEqual(await which(other), before);
        await until('it is logged', () =>
          logSince(pooler, from).includes(
            'LOG S app/app closing because: client disconnect while server was not ready (age)',
          ),
        );
        await other.end();
      },
    }),
  ),
  {
    name: 'a notification between queries reaches the client and changes nothing',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const before = await which(client);
      server.connections[before]!.send(notification);
      assert.equal(line(await client.next()), 'A');
      await client.end();
      const other = await login(t, pooler);
      assert.equal(await which(other), before);
      await other.end();
    },
  },
]);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('the server can be stopped when all has been asked', () => server.stop());
