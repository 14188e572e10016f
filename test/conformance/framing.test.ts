/** Messages that come in pieces, are longer than any buffer, or are no messages at all. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import {
  bind,
  COPY_DONE,
  copyData,
  copyFail,
  execute,
  int32,
  message,
  parse,
  query,
  SYNC,
  textRows,
} from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import type { RuleCase } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';
import { fatal, isFree, isTaken, lines, linesUntilClose, login, pidOf, poolIs } from './support.ts';

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
  const client = await WireClient.login(postgres);
  assert.equal(lines(await client.query('CREATE TABLE texts (t text)')), 'C Z:I');
  await client.end();
});

const oneServer = (settings = {}) => ({ postgres, databases: { app: 'pool_size=1' }, settings });

/** Far more than PgBouncer's buffer (4096 bytes) and ours hold. */
const LONG = 3_000_000;
const COPY_IN = 'COPY texts FROM STDIN';

/** What is sent, in as many steps as answers must be waited for, and all of the answers. */
const TALKS: readonly { name: string; steps: readonly [bytes: Buffer, says: string][] }[] = [
  { name: 'a simple query', steps: [[query("SELECT 'piecemeal'"), 'T D C Z:I']] },
  {
    name: 'an extended query',
    steps: [
      [
        Buffer.concat([
          parse('', 'SELECT $1::text'),
          bind({ values: ['piecemeal'] }),
          execute(),
          SYNC,
        ]),
        '1 2 D C Z:I',
      ],
    ],
  },
  {
    name: 'a prepared statement',
    steps: [
      [Buffer.concat([parse('named', 'SELECT $1::text'), SYNC]), '1 Z:I'],
      [
        Buffer.concat([bind({ statement: 'named', values: ['piecemeal'] }), execute(), SYNC]),
        '2 D C Z:I',
      ],
    ],
  },
  {
    name: 'COPY data',
    steps: [
      [query(COPY_IN), 'G'],
      [Buffer.concat([copyData(Buffer.from('row\n')), COPY_DONE]), 'C Z:I'],
    ],
  },
  {
    name: 'COPY data that is given up',
    steps: [
      [query(COPY_IN), 'G'],
      [
        Buffer.concat([copyData(Buffer.from('row\n')), copyFail('enough')]),
        'ERROR 57014 COPY from stdin failed: enough Z:I',
      ],
    ],
  },
];

rules('a message', oneServer, [
  ...TALKS.map(
    ({ name, steps }): RuleCase => ({
      name: `of ${name} may come byte by byte`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        for (const [bytes, says] of steps) {
          for (const byte of bytes) {
            client.send(Buffer.of(byte));
            await nextTurn();
          }
          const heard: string[] = [];
          while (heard.join(' ').length < says.length) heard.push(lines([await client.next()]));
          assert.equal(heard.join(' '), says);
        }
        await isFree(t, pooler);
      },
    }),
  ),
  {
    name: 'may be longer than every buffer, both ways, and passes unchanged',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const text = 'abcdefghij'.repeat(LONG / 10);
      assert.deepEqual(textRows(await client.query(`SELECT '${text}'`)), [[text]]);
      client.send(parse('', 'SELECT $1::text'), bind({ values: [text] }), execute(), SYNC);
      assert.deepEqual(textRows(await client.untilReady()), [[text]]);
      await client.query('TRUNCATE texts');
      client.send(query(COPY_IN));
      await client.until('G');
      client.send(copyData(Buffer.from(`${text}\n`)), COPY_DONE);
      assert.equal(lines(await client.untilReady()), 'C Z:I');
      const stored = await client.query('SELECT t FROM texts WHERE length(t) > 1000');
      assert.deepEqual(textRows(stored), [[text]]);
      client.send(query('COPY (SELECT t FROM texts WHERE length(t) > 1000) TO STDOUT'));
      const copied = (await client.untilReady()).filter(({ type }) => type === 'd');
      assert.equal(copied.map(({ body }) => body.toString()).join(''), `${text}\n`);
    },
  },
  {
    name: 'of a prepared statement may be longer than every buffer',
    since: '1.26',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const text = 'abcdefghij'.repeat(LONG / 10);
      client.send(parse('long', `SELECT length('${text}')`), SYNC);
      assert.equal(lines(await client.untilReady()), '1 Z:I');
      client.send(bind({ statement: 'long' }), execute(), SYNC);
      assert.deepEqual(textRows(await client.untilReady()), [[String(LONG)]]);
    },
  },
  {
    name: 'of which only part of the header has come takes no server',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const whole = query("SELECT 'late'");
      client.send(whole.subarray(0, 4));
      await isFree(t, pooler);
      client.send(whole.subarray(4));
      assert.deepEqual(textRows(await client.untilReady()), [['late']]);
    },
  },
  {
    name: 'whose end has not come holds its server until it has',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const whole = query("SELECT 'late'");
      client.send(whole.subarray(0, 10));
      await until('it has a server', () => poolIs(pooler, { sv_active: 1 }));
      const comesFree = await isTaken(t, pooler);
      client.send(whole.subarray(10));
      assert.deepEqual(textRows(await client.untilReady()), [['late']]);
      await comesFree();
    },
  },
  {
    name: 'whose client goes in its middle is made whole by nobody, its server closed',
    check: async (pooler, t) => {
      for (const size of [6, 20, 60]) {
        const client = await login(t, pooler);
        const before = await pidOf(client);
        client.send(query(`INSERT INTO texts VALUES ('${'x'.repeat(50)}')`).subarray(0, size));
        await until('it has a server', () => poolIs(pooler, { sv_active: 1 }));
        client.destroy();
        const other = await login(t, pooler);
        assert.notEqual(await pidOf(other), before);
        const rows = textRows(await other.query("SELECT 1 FROM texts WHERE t LIKE 'xx%'"));
        assert.deepEqual(rows, []);
        await other.end();
      }
    },
  },
  {
    name: 'of CopyDone that is longer than its header ends the session',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      client.send(query(COPY_IN));
      await client.until('G');
      client.send(message('c', ['more']));
      assert.equal(await linesUntilClose(client), fatal('failed to parse packet'));
    },
    differs: { because: 'PgBouncer lets the server say so' },
  },
  ...[0, 1, 2, 3, -1, -2_147_483_648].map(
    (length): RuleCase => ({
      name: `of length ${length} ends the session, its header told in hex`,
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        const bytes = message('Q', [int32(7)], length);
        client.send(bytes);
        const hex = bytes.toString('hex', 0, 8);
        assert.equal(await linesUntilClose(client), fatal(`bad packet header: '${hex}'`));
      },
    }),
  ),
  {
    name: 'of an impossible length ends a transaction with the session',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      await client.query("BEGIN; INSERT INTO texts VALUES ('undone')");
      client.send(message('Q', [], 1));
      const hex = '5100000001';
      assert.equal(await linesUntilClose(client), fatal(`bad packet header: '${hex}'`));
      const other = await login(t, pooler);
      assert.deepEqual(textRows(await other.query("SELECT 1 FROM texts WHERE t = 'undone'")), []);
    },
  },
]);

rules('with max_packet_size a message', () => oneServer({ max_packet_size: 1000 }), [
  {
    name: 'up to it passes, one that is longer by a byte ends the session',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const comment = (size: number): Buffer => query(`--${'x'.repeat(size - query('--').length)}`);
      client.send(comment(1000));
      assert.equal(lines(await client.untilReady()), 'I Z:I');
      client.send(comment(1001));
      const hex = comment(1001).toString('hex', 0, 8);
      assert.equal(await linesUntilClose(client), fatal(`bad packet header: '${hex}'`));
    },
  },
  {
    name: 'of a client that is too long is refused before the rest of it has come',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      client.send(message('d', [Buffer.alloc(8)], 1_000_000_000));
      assert.equal(await linesUntilClose(client), fatal("bad packet header: '643b9aca00000000'"));
    },
  },
  {
    name: 'of a server that is too long ends server and client',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const before = await pidOf(client);
      client.send(query("SELECT repeat('x', 2000)"));
      const heard = await linesUntilClose(client);
      assert.ok(heard.endsWith(fatal('bad pkt header')), heard);
      const other = await login(t, pooler);
      assert.notEqual(await pidOf(other), before);
    },
  },
]);

rules('with the smallest pkt_buf a message', () => oneServer({ pkt_buf: 512 }), [
  {
    name: 'is no shorter for it',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const text = 'abcdefghij'.repeat(LONG / 10);
      client.send(parse('', 'SELECT $1::text'), bind({ values: [text] }), execute(), SYNC);
      assert.deepEqual(textRows(await client.untilReady()), [[text]]);
    },
  },
]);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
