/** When a linked server is free for the next client, in each pool mode. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import {
  bind,
  COPY_DONE,
  copyData,
  describe,
  execute,
  FLUSH,
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
import {
  fatal,
  isFree,
  isTaken,
  lines,
  linesUntilClose,
  login,
  logSince,
  pidOf,
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

const oneServer = (mode: string) => () => ({
  postgres,
  databases: { app: 'pool_size=1' },
  settings: { pool_mode: mode },
});

const ONE = [parse('', 'SELECT 1'), bind(), execute()];
const COPY_IN = 'COPY numbers FROM STDIN';
const rowOf = (text: string): Buffer => copyData(Buffer.from(`${text}\n`));
const BAD_ROW = 'ERROR 22P02 invalid input syntax for type integer: "x"';
const BLOCKS = 'transaction blocks not allowed in statement pooling mode';
const SLEEP = query('SELECT pg_sleep(1)');

/** What is sent and answered before the server is looked at, and then until it comes free. */
interface Hold {
  readonly name: string;
  readonly sends: readonly Buffer[];
  /** Answer behind which the server is still the client's. */
  readonly says: string;
  readonly next: readonly Buffer[];
  readonly ends: string;
  readonly differs?: RuleCase['differs'];
}

const HOLDS: readonly Hold[] = [
  {
    name: 'a transaction block',
    sends: [query('BEGIN')],
    says: 'C Z:T',
    next: [query('COMMIT')],
    ends: 'C Z:I',
  },
  {
    name: 'a failed transaction block',
    sends: [query('BEGIN; SELECT nonsense')],
    says: 'C ERROR 42703 column "nonsense" does not exist Z:E',
    next: [query('ROLLBACK')],
    ends: 'C Z:I',
  },
  {
    name: 'a transaction that an extended query begins and another ends',
    sends: [parse('', 'BEGIN'), bind(), execute(), SYNC],
    says: '1 2 C Z:T',
    next: [parse('', 'COMMIT'), bind(), execute(), SYNC],
    ends: '1 2 C Z:I',
  },
  {
    name: 'a transaction that is chained to the next',
    sends: [query('BEGIN'), query('COMMIT AND CHAIN')],
    says: 'C Z:T C Z:T',
    next: [query('COMMIT')],
    ends: 'C Z:I',
  },
  {
    name: 'a Parse with Flush, until Sync',
    sends: [parse('', 'SELECT 1'), FLUSH],
    says: '1',
    next: [bind(), execute(), SYNC],
    ends: '2 D C Z:I',
  },
  {
    name: 'an Execute with Flush, until Sync',
    sends: [...ONE, FLUSH],
    says: '1 2 D C',
    next: [SYNC],
    ends: 'Z:I',
  },
  {
    name: 'an error in an extended query, until Sync',
    sends: [parse('', 'SELECT nonsense')],
    says: 'ERROR 42703 column "nonsense" does not exist',
    next: [SYNC],
    ends: 'Z:I',
  },
  {
    name: 'a suspended portal, until Sync',
    sends: [parse('', 'SELECT generate_series(1, 3)'), bind(), execute('', 1), FLUSH],
    says: '1 2 D s',
    next: [execute('', 0), SYNC],
    ends: 'D D C Z:I',
  },
  {
    name: 'a Parse behind a Sync, until its own Sync',
    sends: [...ONE, SYNC, parse('', 'SELECT 2'), describe('S'), FLUSH],
    says: '1 2 D C Z:I 1 t T',
    next: [SYNC],
    ends: 'Z:I',
    differs: STALLS,
  },
  {
    name: 'a Parse behind a Sync whose pipeline failed, until its own Sync',
    sends: [parse('', 'SELECT nonsense'), SYNC, parse('', 'SELECT 2'), FLUSH],
    says: 'ERROR 42703 column "nonsense" does not exist Z:I 1',
    next: [SYNC],
    ends: 'Z:I',
    differs: STALLS,
  },
  {
    name: 'a query behind a query',
    sends: [query('SELECT 1'), SLEEP],
    says: 'T D C Z:I',
    next: [],
    ends: 'T D C Z:I',
  },
  {
    name: 'several Syncs, until the last is answered',
    sends: [SYNC, SYNC, parse('', 'SELECT pg_sleep(1)'), bind(), execute(), SYNC, SYNC],
    says: 'Z:I Z:I',
    next: [],
    ends: '1 2 D C Z:I Z:I',
  },
  {
    name: 'COPY from the client',
    sends: [query(COPY_IN)],
    says: 'G',
    next: [rowOf('1'), COPY_DONE],
    ends: 'C Z:I',
  },
];

const hold = ({ name, sends, says, next, ends, differs }: Hold): RuleCase => ({
  name: `${name} keeps the server`,
  ...(differs === undefined ? {} : { differs }),
  check: async (pooler, t) => {
    const client = await login(t, pooler);
    client.send(...sends);
    const hears = async (wanted: string): Promise<void> => {
      const heard: string[] = [];
      while (heard.join(' ').length < wanted.length) heard.push(lines([await client.next()]));
      assert.equal(heard.join(' '), wanted);
    };
    await hears(says);
    const comesFree = await isTaken(t, pooler);
    if (next.length > 0) client.send(...next);
    await hears(ends);
    await comesFree();
  },
});

rules('transaction mode', oneServer('transaction'), [
  ...HOLDS.map(hold),
  {
    name: 'a ReadyForQuery outside a transaction, with nothing outstanding, frees the server',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      for (const sent of [[query('SELECT 1')], [...ONE, SYNC], [SYNC], [query('nonsense')]]) {
        client.send(...sent);
        await client.untilReady();
        await isFree(t, pooler);
      }
    },
  },
  {
    name: 'a COPY that failed keeps the server no longer than ReadyForQuery',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      client.send(query(COPY_IN));
      await client.until('G');
      client.send(rowOf('x'), COPY_DONE);
      assert.equal(lines(await client.untilReady()), `${BAD_ROW} Z:I`);
      await isFree(t, pooler);
    },
  },
  {
    name: 'a COPY that failed while the client still sends frees the server, and the rest is left out',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      client.send(query(COPY_IN));
      await client.until('G');
      client.send(rowOf('x'), ...Array.from({ length: 20_000 }, () => rowOf('1')));
      assert.equal(lines(await client.untilReady()), `${BAD_ROW} Z:I`);
      await isFree(t, pooler);
      client.send(rowOf('1'), COPY_DONE, query('SELECT 1'));
      assert.equal(lines(await client.untilReady()), 'T D C Z:I');
    },
    differs: {
      because:
        'PgBouncer keeps the server until the client has ended the COPY and sent a Sync more',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        client.send(query(COPY_IN));
        await client.until('G');
        client.send(rowOf('x'), ...Array.from({ length: 20_000 }, () => rowOf('1')));
        assert.equal(lines(await client.untilReady()), `${BAD_ROW} Z:I`);
        const comesFree = await isTaken(t, pooler);
        client.send(COPY_DONE, SYNC);
        assert.equal(lines(await client.untilReady()), 'Z:I');
        await comesFree();
      },
    },
    since: '1.26',
  },
  {
    name: 'a client that does not read its answer keeps the server until it has read',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      client.socket.pause();
      client.send(query("SELECT repeat('x', 100000) FROM generate_series(1, 500)"));
      const comesFree = await isTaken(t, pooler);
      client.socket.resume();
      assert.equal((await client.untilReady(60_000)).length, 503);
      await comesFree();
    },
  },
  {
    name: 'what a session has set stays on the server, for there is no reset',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      await client.query("SET work_mem = '7777kB'");
      const other = await login(t, pooler);
      assert.deepEqual(textRows(await other.query('SHOW work_mem')), [['7777kB']]);
      await other.query('RESET work_mem');
    },
  },
]);

rules('statement mode', oneServer('statement'), [
  {
    name: 'every statement frees the server, also several in one query and several Syncs',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      assert.equal(lines(await client.query('SELECT 1; SELECT 2')), 'T D C T D C Z:I');
      await isFree(t, pooler);
      assert.equal(lines(await client.query('BEGIN; SELECT 1; COMMIT')), 'C T D C C Z:I');
      await isFree(t, pooler);
      client.send(...ONE, SYNC);
      assert.equal(lines(await client.untilReady()), '1 2 D C Z:I');
      await isFree(t, pooler);
    },
  },
  ...[
    { name: 'a simple query', sends: [query('BEGIN')] },
    { name: 'an extended query', sends: [parse('', 'BEGIN'), bind(), execute(), SYNC] },
    { name: 'a query that also fails in it', sends: [query('BEGIN; SELECT nonsense')] },
    { name: 'the end of a query', sends: [query('SELECT 1; BEGIN')] },
  ].map(({ name, sends }) => ({
    name: `a transaction block that ${name} leaves open ends server and client`,
    check: async (
      pooler: Parameters<RuleCase['check']>[0],
      t: Parameters<RuleCase['check']>[1],
    ) => {
      const client = await login(t, pooler);
      const before = await pidOf(client);
      const from = pooler.log().length;
      client.send(...sends);
      const heard = await linesUntilClose(client);
      assert.ok(heard.endsWith(fatal(BLOCKS)), heard);
      assert.doesNotMatch(heard, /Z:/);
      await until('it is logged', () => pooler.log().includes('pooler error', from));
      assert.deepEqual(
        logSince(pooler, from).filter((text) => text.includes(BLOCKS)),
        [
          `LOG S app/app closing because: ${BLOCKS} (age)`,
          `LOG C app/app closing because: ${BLOCKS} (age)`,
          `WARNING C app/app pooler error: ${BLOCKS}`,
        ],
      );
      const other = await login(t, pooler);
      assert.notEqual(await pidOf(other), before);
    },
  })),
]);

rules('session mode', oneServer('session'), [
  {
    name: "the server is the client's from its first query until it leaves",
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      await isFree(t, pooler);
      const pid = await pidOf(client);
      const comesFree = await isTaken(t, pooler);
      for (const sql of ['SELECT 1', 'BEGIN', 'COMMIT', 'nonsense']) await client.query(sql);
      assert.equal(await pidOf(client), pid);
      assert.ok(await poolIs(pooler, { cl_waiting: 1 }));
      await client.end();
      await comesFree();
    },
  },
  {
    name: 'the next client gets the same server, reset',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      const pid = await pidOf(client);
      await client.query("SET work_mem = '7777kB'");
      await client.end();
      const other = await login(t, pooler);
      assert.equal(await pidOf(other), pid);
      assert.deepEqual(textRows(await other.query('SHOW work_mem')), [['4MB']]);
      await other.end();
    },
  },
  {
    name: 'a notification comes between queries',
    check: async (pooler, t) => {
      const client = await login(t, pooler);
      await client.query('LISTEN ours');
      const app = await WireClient.login(postgres);
      await app.query("NOTIFY ours, 'hear'");
      await app.end();
      assert.equal((await client.next()).type, 'A');
      assert.equal(lines(await client.query('SELECT 1')), 'T D C Z:I');
      await client.end();
    },
  },
]);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
