/** What a logged-in client may send, and that the server's answers come back as they are. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import {
  bind,
  COPY_DONE,
  close,
  copyData,
  copyFail,
  describe,
  execute,
  FLUSH,
  int16,
  int32,
  message,
  parse,
  query,
  SYNC,
  TERMINATE,
  textRows,
} from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import type { RuleCase } from '../support/rule.ts';
import { type RuleNotes, rule } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';
import {
  fatal,
  isFree,
  isTaken,
  line,
  lines,
  linesUntilClose,
  login,
  logSince,
  poolIs,
  STALLS,
} from './support.ts';

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
  const client = await WireClient.login(postgres);
  assert.equal(lines(await client.query('CREATE TABLE numbers (n int)')), 'C Z:I');
  await client.end();
});

const oneServer = () => ({ postgres, databases: { app: 'pool_size=1' } });

const KNOWN = new Set(Array.from('QFPBDECSHdcfX', (letter) => letter.charCodeAt(0)));
// Type 0 is no type: PgBouncer reads a startup packet there.
const UNKNOWN = Array.from({ length: 255 }, (_, index) => index + 1).filter(
  (type) => !KNOWN.has(type),
);

/** int4pl(2, 3), by its fixed object id. */
function functionCall(left: string, right: string): Buffer {
  const argument = (text: string): Buffer[] => [int32(text.length), Buffer.from(text)];
  return message('F', [
    int32(177),
    int16(1),
    int16(0),
    int16(2),
    ...argument(left),
    ...argument(right),
    int16(0),
  ]);
}

const ONE = [parse('', 'SELECT 1'), bind(), execute()];
const DIVIDED = [parse('', 'SELECT 1/(random() * 0)::int'), bind(), execute()];
const COPY_IN = 'COPY numbers FROM STDIN';
const COPY_OUT = 'COPY (SELECT generate_series(1, 3)) TO STDOUT';
const rowOf = (text: string): Buffer => copyData(Buffer.from(`${text}\n`));
const DIVISION = 'ERROR 22012 division by zero';
const COPY_FAILED = 'ERROR 57014 COPY from stdin failed: no more';
const BAD_ROW = 'ERROR 22P02 invalid input syntax for type integer: "x"';
const UNEXPECTED = 'G ERROR 08P01 unexpected message type 0x50 during COPY from stdin';

/** Bytes, joined with those that follow into one write; or a message type to wait for first. */
type Sent = Buffer | string;

/** What is sent, and all of the answer up to its last ReadyForQuery. */
interface Exchange extends RuleNotes {
  readonly name: string;
  readonly sends: readonly Sent[];
  readonly says: string;
}

/** A CopyDone that is passed on before CopyInResponse has come. */
const LOSES_SERVER = {
  because:
    'PgBouncer takes CopyInResponse for the beginning of a COPY, and the server is never free again',
};

const EXCHANGES: readonly Exchange[] = [
  { name: 'a simple query', sends: [query('SELECT 1')], says: 'T D C Z:I' },
  {
    name: 'several statements in one simple query',
    sends: [query('SELECT 1; SELECT 2; SET work_mem = 1000')],
    says: 'T D C T D C C Z:I',
  },
  { name: 'an empty simple query', sends: [query('')], says: 'I Z:I' },
  { name: 'a simple query of semicolons', sends: [query(';;')], says: 'I Z:I' },
  {
    name: 'a simple query that fails at its second statement',
    sends: [query('SELECT 1; SELECT 1/0; SELECT 3')],
    says: `T D C ${DIVISION} Z:I`,
  },
  { name: 'a function call', sends: [functionCall('2', '3')], says: 'V Z:I' },
  {
    name: 'a function call that fails',
    sends: [functionCall('2', 'x')],
    says: `${BAD_ROW} Z:I`,
  },
  {
    name: 'an extended query',
    sends: [parse('', 'SELECT 1'), bind(), describe('P'), execute(), close('P'), SYNC],
    says: '1 2 T D C 3 Z:I',
  },
  {
    name: 'Describe of the unnamed statement',
    sends: [parse('', 'SELECT $1::int'), describe('S'), SYNC],
    says: '1 t T Z:I',
  },
  {
    name: 'Describe of what has no rows',
    sends: [
      parse('', 'SET work_mem = 1000'),
      describe('S'),
      bind(),
      describe('P'),
      execute(),
      SYNC,
    ],
    says: '1 t n 2 n C Z:I',
  },
  {
    name: 'an empty extended query',
    sends: [parse('', ''), bind(), execute(), SYNC],
    says: '1 2 I Z:I',
  },
  {
    name: 'a portal that is suspended and goes on',
    sends: [
      parse('', 'SELECT generate_series(1, 5)'),
      bind(),
      execute('', 2),
      execute('', 2),
      execute('', 2),
      SYNC,
    ],
    says: '1 2 D D s D D s D C Z:I',
  },
  {
    name: 'a portal that is suspended in a transaction and goes on behind a Sync',
    sends: [
      query('BEGIN'),
      parse('', 'SELECT generate_series(1, 3)'),
      bind({ portal: 'p' }),
      execute('p', 2),
      SYNC,
      execute('p', 0),
      SYNC,
      query('COMMIT'),
    ],
    says: 'C Z:T 1 2 D D s Z:T D C Z:T C Z:I',
  },
  { name: 'Sync alone', sends: [SYNC], says: 'Z:I' },
  { name: 'several Syncs', sends: [SYNC, SYNC, SYNC], says: 'Z:I Z:I Z:I' },
  {
    name: 'a pipeline of several Syncs',
    sends: [...ONE, SYNC, ...ONE, ...ONE, SYNC, query('SELECT 1'), ...ONE, SYNC],
    says: '1 2 D C Z:I 1 2 D C 1 2 D C Z:I T D C Z:I 1 2 D C Z:I',
  },
  {
    name: 'an error in Parse, behind which everything up to Sync is left out',
    sends: [parse('', 'nonsense'), bind(), describe('P'), execute(), SYNC],
    says: 'ERROR 42601 syntax error at or near "nonsense" Z:I',
  },
  {
    name: 'an error in Bind',
    sends: [parse('', 'SELECT $1::int'), bind({ values: ['x'] }), execute(), ...ONE, SYNC],
    says: `1 ${BAD_ROW} Z:I`,
  },
  {
    name: 'an error in the first part of a pipeline, whose second part is carried out',
    sends: [...DIVIDED, ...ONE, SYNC, ...ONE, SYNC],
    says: `1 2 ${DIVISION} Z:I 1 2 D C Z:I`,
  },
  {
    name: 'an error behind which a simple query is left out too',
    sends: [...DIVIDED, query('SELECT 1'), SYNC, query('SELECT 1')],
    says: `1 2 ${DIVISION} Z:I T D C Z:I`,
  },
  {
    name: 'Flush in a pipeline',
    sends: [parse('', 'SELECT 1'), FLUSH, bind(), FLUSH, execute(), FLUSH, SYNC],
    says: '1 2 D C Z:I',
  },
  {
    name: 'a transaction over several messages, which fails',
    sends: [query('BEGIN'), query('SELECT 1/0'), query('SELECT 1'), query('ROLLBACK')],
    says: `C Z:T ${DIVISION} Z:E ERROR 25P02 current transaction is aborted, commands ignored until end of transaction block Z:E C Z:I`,
  },
  {
    name: 'COPY from the client',
    sends: [query(COPY_IN), 'G', rowOf('1'), rowOf('2'), COPY_DONE],
    says: 'G C Z:I',
  },
  {
    name: 'COPY from the client without a row',
    sends: [query(COPY_IN), 'G', COPY_DONE],
    says: 'G C Z:I',
  },
  {
    name: 'COPY from the client in one write with its data',
    sends: [query(COPY_IN), rowOf('1'), COPY_DONE, query('SELECT 1')],
    says: 'G C Z:I T D C Z:I',
    differs: LOSES_SERVER,
  },
  {
    name: 'COPY from the client that the client gives up',
    sends: [query(COPY_IN), 'G', rowOf('1'), copyFail('no more')],
    says: `G ${COPY_FAILED} Z:I`,
  },
  {
    name: 'COPY from the client that fails at a row, the rest of which is left out',
    sends: [query(COPY_IN), 'G', rowOf('x'), rowOf('1'), rowOf('2'), COPY_DONE],
    says: `G ${BAD_ROW} Z:I`,
  },
  {
    name: 'COPY from the client whose data goes on behind the answer to its failure',
    sends: [
      query(COPY_IN),
      'G',
      rowOf('x'),
      COPY_DONE,
      'Z',
      rowOf('1'),
      COPY_DONE,
      query('SELECT 1'),
    ],
    says: `G ${BAD_ROW} Z:I T D C Z:I`,
  },
  {
    name: 'COPY from the client that cannot begin, its data left out',
    sends: [query('COPY nowhere FROM STDIN'), rowOf('1'), COPY_DONE],
    says: 'ERROR 42P01 relation "nowhere" does not exist Z:I',
  },
  {
    name: 'a simple query right behind a COPY from the client',
    sends: [query(COPY_IN), 'G', rowOf('1'), COPY_DONE, query('SELECT 1')],
    says: 'G C Z:I T D C Z:I',
  },
  {
    name: 'two COPYs in one simple query',
    sends: [
      query(`${COPY_IN}; ${COPY_IN}`),
      'G',
      rowOf('1'),
      COPY_DONE,
      'G',
      rowOf('2'),
      COPY_DONE,
    ],
    says: 'G C G C Z:I',
  },
  {
    name: 'Sync and Flush during a COPY, which the server leaves out',
    sends: [query(COPY_IN), 'G', rowOf('1'), FLUSH, SYNC, rowOf('2'), COPY_DONE, query('SELECT 1')],
    says: 'G C Z:I T D C Z:I',
  },
  {
    name: 'COPY from the client by an extended query',
    sends: [parse('', COPY_IN), bind(), execute(), FLUSH, 'G', rowOf('1'), COPY_DONE, SYNC],
    says: '1 2 G C Z:I',
  },
  {
    name: 'COPY from the client by an extended query whose Sync comes too early',
    sends: [
      parse('', COPY_IN),
      bind(),
      execute(),
      SYNC,
      'G',
      rowOf('1'),
      COPY_DONE,
      SYNC,
      ...ONE,
      SYNC,
    ],
    says: '1 2 G C Z:I 1 2 D C Z:I',
  },
  {
    name: 'COPY from the client by an extended query that the client gives up',
    sends: [
      parse('', COPY_IN),
      bind(),
      execute(),
      FLUSH,
      'G',
      rowOf('1'),
      copyFail('no more'),
      SYNC,
    ],
    says: `1 2 G ${COPY_FAILED} Z:I`,
  },
  {
    name: 'COPY to the client',
    sends: [query(COPY_OUT)],
    says: 'H d d d c C Z:I',
  },
  {
    name: 'COPY to the client by an extended query, and a query behind it',
    sends: [parse('', COPY_OUT), bind(), execute(), SYNC, query('SELECT 1')],
    says: '1 2 H d d d c C Z:I T D C Z:I',
  },
  {
    name: 'COPY to the client that fails on its way',
    sends: [query('COPY (SELECT 1/(2 - n) FROM generate_series(1, 3) n) TO STDOUT')],
    says: `H d ${DIVISION} Z:I`,
  },
  {
    name: 'a message that has no place in a COPY',
    sends: [query(COPY_IN), 'G', rowOf('1'), parse('', 'SELECT 1')],
    says: UNEXPECTED,
  },
  {
    name: 'CopyData, CopyDone and CopyFail of no COPY, which are left out',
    sends: [rowOf('1'), COPY_DONE, copyFail('of nothing'), query('SELECT 1')],
    says: 'T D C Z:I',
  },
  {
    name: 'a notice',
    sends: [query("DO $$ BEGIN RAISE NOTICE 'hear'; END $$")],
    says: 'NOTICE 00000 hear C Z:I',
  },
  {
    name: 'parameters that change',
    sends: [query("SET TimeZone = 'Europe/Paris'; SET DateStyle = 'German'")],
    says: 'C C S S Z:I',
  },
  {
    name: 'a notification to the client that is linked',
    sends: [query('LISTEN ours'), query("NOTIFY ours, 'hear'"), query('UNLISTEN ours')],
    says: 'C Z:I C A Z:I C Z:I',
  },
];

function exchange({ sends, says, ...rule }: Exchange): RuleCase {
  const isOneWrite = !sends.includes('Z') && says.split(' Z:').length > 2;
  return {
    ...(isOneWrite ? { differs: STALLS } : {}),
    ...rule,
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const heard: string[] = [];
      const unsent: Buffer[] = [];
      for (const sent of sends) {
        if (typeof sent !== 'string') {
          unsent.push(sent);
          continue;
        }
        client.send(...unsent.splice(0));
        heard.push(lines(await client.until(sent)));
      }
      client.send(...unsent);
      const isOver = says.endsWith('Z:I');
      const soFar = (): string => heard.join(' ');
      while (soFar().length < says.length && says.startsWith(soFar())) {
        const next = await client.next().catch((error: Error) => error.message);
        heard.push(typeof next === 'string' ? next : line(next));
      }
      assert.equal(soFar(), says);
      if (!isOver) client.destroy();
      await isFree(t, pooler);
    },
  };
}

rules(
  'answers come back as the server gives them, and its link ends',
  oneServer,
  EXCHANGES.map(exchange),
);

rules(
  'of what a client sends',
  () => ({ ...oneServer(), logs: [/ERROR C-.* unknown pkt from client/] }),
  [
    {
      name: 'any other message type ends the session',
      check: async (pooler) => {
        for (const type of UNKNOWN) {
          const client = await WireClient.login(pooler);
          client.send(message(String.fromCharCode(type), ['what']));
          assert.equal(await linesUntilClose(client), fatal('unknown pkt'), `type ${type}`);
          client.destroy();
        }
      },
    },
    {
      name: 'any other message type is written to the log, the closing first',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        const from = pooler.log().length;
        client.send(message('!'));
        await client.untilClose();
        await until('it is logged', () => pooler.log().includes('pooler error', from));
        assert.deepEqual(
          logSince(pooler, from).filter((text) => text.includes(' C ')),
          [
            'ERROR C app/app unknown pkt from client: 33/0x21',
            'LOG C app/app closing because: unknown pkt (age)',
            'WARNING C app/app pooler error: unknown pkt',
          ],
        );
      },
    },
    {
      name: 'any other message type in a transaction rolls it back',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        await client.query('BEGIN; INSERT INTO numbers VALUES (-1)');
        client.send(message('!'));
        assert.equal(await linesUntilClose(client), fatal('unknown pkt'));
        const other = await login(t, pooler);
        const rows = textRows(await other.query('SELECT n FROM numbers WHERE n = -1'));
        assert.deepEqual(rows, []);
        await other.end();
      },
    },
    {
      name: 'Terminate ends the session without a word',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        client.send(TERMINATE);
        assert.equal(await linesUntilClose(client), 'closed');
      },
    },
    {
      name: 'Sync without a server gets one',
      check: async (pooler, t) => {
        const holder = await login(t, pooler);
        await holder.query('BEGIN');
        const client = await login(t, pooler);
        client.send(SYNC);
        await until('it waits', () => poolIs(pooler, { cl_waiting: 1 }));
        await holder.query('COMMIT');
        assert.equal(lines(await client.untilReady()), 'Z:I');
        await isFree(t, pooler);
      },
    },
    {
      name: 'Flush without a server takes none, since nothing is owed',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        client.send(FLUSH);
        await isFree(t, pooler);
        assert.equal(lines(await client.query('SELECT 1')), 'T D C Z:I');
      },
      differs: {
        because: 'PgBouncer gives it a server, which it keeps until its next Sync',
        check: async (pooler, t) => {
          const client = await login(t, pooler);
          client.send(FLUSH);
          const comesFree = await isTaken(t, pooler);
          client.send(SYNC);
          assert.equal(lines(await client.untilReady()), 'Z:I');
          await comesFree();
        },
      },
    },
    {
      name: 'CopyData, CopyDone and CopyFail without a server take none',
      // 1.18 gives them one.
      since: '1.26',
      check: async (pooler, t) => {
        const holder = await login(t, pooler);
        await holder.query('BEGIN');
        const client = await login(t, pooler);
        client.send(rowOf('1'), COPY_DONE, copyFail('late'), query('SELECT 1'));
        await until('its query waits', () => poolIs(pooler, { cl_waiting: 1 }));
        await holder.query('COMMIT');
        assert.equal(lines(await client.untilReady()), 'T D C Z:I');
        client.send(rowOf('1'));
        await isFree(t, pooler);
      },
    },
    {
      name: 'a notification to nobody is dropped, and its server lives on',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        const [[pid]] = textRows(await client.query('LISTEN ours; SELECT pg_backend_pid()')) as [
          [string],
        ];
        const from = pooler.log().length;
        const app = await WireClient.login(postgres);
        await app.query("NOTIFY ours, 'nobody'");
        await app.end();
        await until('it has come', () =>
          pooler.log().includes("got packet 'A' from server when not linked", from),
        );
        const answer = await client.query('SELECT pg_backend_pid()');
        assert.equal(lines(answer), 'T D C Z:I');
        assert.deepEqual(textRows(answer), [[pid]]);
        await client.query('UNLISTEN ours');
      },
    },
  ],
);

rule(
  'disable_pqexec ends who sends a simple query, and nobody else',
  () => ({
    ...oneServer(),
    settings: { disable_pqexec: 1 },
    logs: [/ERROR C-.* client used "Query" packet type/],
  }),
  async (pooler, t) => {
    const client = await login(t, pooler);
    client.send(...ONE, SYNC);
    assert.equal(lines(await client.untilReady()), '1 2 D C Z:I');
    const from = pooler.log().length;
    client.send(query('SELECT 1'));
    assert.equal(await linesUntilClose(client), fatal('PQexec disallowed'));
    await until('it is logged', () => pooler.log().includes('pooler error', from));
    const logged = logSince(pooler, from).filter((text) => text.includes(' C '));
    // 1.18 says 'Q'.
    assert.deepEqual(
      logged.map((text) => text.replace("'Q'", '"Query"')),
      [
        'ERROR C app/app client used "Query" packet type',
        'LOG C app/app closing because: PQexec disallowed (age)',
        'WARNING C app/app pooler error: PQexec disallowed',
      ],
    );
  },
);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
