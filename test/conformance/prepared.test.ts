/**
 * Prepared statements of the protocol, whose names the pooler translates so that a statement prepared
 * once serves on whatever server the client is given.
 */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { ask, lastWords, linesOf } from '../support/dialogue.ts';
import {
  bind,
  close,
  describe,
  execute,
  FLUSH,
  message,
  parse,
  query,
  SYNC,
  textRows,
} from '../support/messages.ts';
import type { PoolerOptions, Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { line, reload } from '../support/reload.ts';
import { rule } from '../support/rule.ts';
import { type PlacedRule, type RulePlace, ruleSet } from '../support/rule-set.ts';
import { WireClient } from '../support/wire-client.ts';

const SINCE = '1.21';
const INT4 = 23;
const INT8 = 20;
const IN_USE = 'E(FATAL 08P01 prepared statement name is already in use)';
const UNKNOWN = 'E(FATAL 08P01 prepared statement did not exist)';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

const options = (settings: Section) => (): PoolerOptions => ({
  postgres,
  settings: { max_prepared_statements: 100, ...settings },
});

const enter = ({ pooler, database }: RulePlace): Promise<WireClient> =>
  WireClient.login(pooler, { database });

const two = (place: RulePlace): Promise<[WireClient, WireClient]> =>
  Promise.all([enter(place), enter(place)]);

/** Runs a statement without parameters. */
const run = (statement: string): Buffer => Buffer.concat([bind({ statement }), execute()]);

/** Texts of the statements that the pool's one server has, in the order of their preparation. */
async function onServer(place: RulePlace): Promise<string[]> {
  const client = await enter(place);
  const sql = 'SELECT statement FROM pg_prepared_statements ORDER BY prepare_time, name';
  const rows = textRows(await client.query(sql));
  await client.end();
  return rows.map(([text]) => text!);
}

async function endAll(...clients: readonly WireClient[]): Promise<void> {
  for (const client of clients) await client.end();
}

/** A statement in `text` cannot be prepared. */
const NO_TABLE = 'SELECT * FROM nowhere';
const NO_TABLE_ERROR = 'E(ERROR 42P01 relation "nowhere" does not exist)';
const STAYS = 'a rejected Parse leaves its name in use there';

ruleSet('prepared statements in transaction mode', options({}), SINCE, [
  {
    name: 'a statement goes by PGBOUNCER_ and a number on the server',
    check: async (place) => {
      const client = await enter(place);
      assert.equal(linesOf(await ask(client, [parse('a', 'SELECT 1'), SYNC])), '1 Z:I');
      const rows = textRows(await client.query('SELECT name FROM pg_prepared_statements'));
      assert.match(rows[0]![0]!, /^PGBOUNCER_[1-9]\d*$/);
      assert.equal(rows.length, 1);
      await client.end();
    },
  },
  {
    name: 'the same text prepared by several clients is one statement on the server',
    check: async (place) => {
      const [one, other] = await two(place);
      for (const client of [one, other]) {
        const parts = [
          parse(`by ${client === one}`, 'SELECT 2'),
          run(`by ${client === one}`),
          SYNC,
        ];
        assert.equal(linesOf(await ask(client, parts)), '1 2 D C Z:I');
      }
      assert.equal(linesOf(await ask(one, [parse('again', 'SELECT 2'), SYNC])), '1 Z:I');
      assert.deepEqual(await onServer(place), ['SELECT 2']);
      await endAll(one, other);
    },
  },
  {
    name: 'texts that differ in a byte, or in number or types of parameters, are different statements',
    check: async (place) => {
      const client = await enter(place);
      const parts = [
        parse('a', 'SELECT $1 + 1'),
        parse('b', 'SELECT $1 + 1', [INT4]),
        parse('c', 'SELECT $1 + 1', [INT8]),
        parse('d', 'SELECT $1 + 1 '),
        parse('e', 'SELECT $1 + 1', [0]),
      ];
      assert.equal(linesOf(await ask(client, [...parts, SYNC])), '1 1 1 1 1 Z:I');
      assert.equal((await onServer(place)).length, 5);
      await client.end();
    },
  },
  {
    name: 'a name that is in use cannot be prepared again: the client is disconnected',
    check: async (place) => {
      for (const text of ['SELECT 1', 'SELECT 2']) {
        const client = await enter(place);
        await ask(client, [parse('a', 'SELECT 1'), SYNC]);
        assert.equal(await lastWords(client, [parse('a', text), SYNC]), IN_USE);
      }
    },
  },
  {
    name: 'Bind and Describe of an unknown name disconnect',
    check: async (place) => {
      for (const part of [bind({ statement: 'a' }), describe('S', 'a')]) {
        const client = await enter(place);
        assert.equal(await lastWords(client, [part, SYNC]), UNKNOWN);
      }
    },
  },
  {
    name: "the names of one client are not another's",
    check: async (place) => {
      const [one, other] = await two(place);
      await ask(one, [parse('a', 'SELECT 1'), SYNC]);
      await ask(other, [parse('a', "SELECT 'x'"), SYNC]);
      assert.deepEqual(textRows(await ask(one, [run('a'), SYNC])), [['1']]);
      assert.deepEqual(textRows(await ask(other, [run('a'), SYNC])), [['x']]);
      await endAll(one, other);
    },
  },
  {
    name: 'names are compared in all their length',
    check: async (place) => {
      const client = await enter(place);
      const long = 'n'.repeat(200);
      await ask(client, [parse(`${long}1`, 'SELECT 1'), parse(`${long}2`, 'SELECT 2'), SYNC]);
      const rows = textRows(await ask(client, [run(`${long}1`), run(`${long}2`), SYNC]));
      assert.deepEqual(rows, [['1'], ['2']]);
      await client.end();
    },
  },
  {
    name: 'Close of any name is answered',
    check: async (place) => {
      const client = await enter(place);
      assert.equal(linesOf(await ask(client, [close('S', 'never'), SYNC])), '3 Z:I');
      await client.end();
    },
  },
  {
    name: 'Close frees the name, and the server keeps the statement',
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('a', 'SELECT 1'), SYNC]);
      assert.equal(linesOf(await ask(client, [close('S', 'a'), SYNC])), '3 Z:I');
      assert.deepEqual(await onServer(place), ['SELECT 1']);
      const again = [parse('a', "SELECT 'b'"), run('a'), SYNC];
      assert.deepEqual(textRows(await ask(client, again)), [['b']]);
      assert.equal(linesOf(await ask(client, [close('S', 'a'), SYNC])), '3 Z:I');
      assert.equal(await lastWords(client, [run('a'), SYNC]), UNKNOWN);
    },
  },
  {
    name: 'Close needs no server',
    check: async (place) => {
      const [holder, client] = await two(place);
      await ask(client, [parse('a', 'SELECT 1'), SYNC]);
      await holder.query('BEGIN');
      client.send(close('S', 'a'));
      assert.equal((await client.next()).type, '3');
      await holder.query('COMMIT');
      await endAll(holder, client);
    },
  },
  {
    name: 'Close and a known Parse in a pipeline are answered in their turn',
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('a', 'SELECT 1'), SYNC]);
      const parts = [
        run('a'),
        close('S', 'a'),
        parse('', 'SELECT 2'),
        run(''),
        parse('b', 'SELECT 1'),
        run('b'),
        close('P', 'p'),
        close('S', 'b'),
        close('S', 'b'),
        SYNC,
      ];
      assert.equal(linesOf(await ask(client, parts)), '2 D C 3 1 2 D C 1 2 D C 3 3 3 Z:I');
      await client.end();
    },
  },
  {
    name: 'Describe gives the types of a statement and of a portal',
    check: async (place) => {
      const client = await enter(place);
      const parts = [
        parse('a', 'SELECT $1', [INT4]),
        describe('S', 'a'),
        bind({ statement: 'a', portal: 'p', values: ['7'] }),
        describe('P', 'p'),
        execute('p'),
        SYNC,
      ];
      const answer = await ask(client, parts);
      assert.equal(linesOf(answer), '1 t T 2 T D C Z:I');
      assert.deepEqual(textRows(answer), [['7']]);
      assert.equal(linesOf(await ask(client, [describe('S', 'a'), SYNC])), 't T Z:I');
      await client.end();
    },
  },
  {
    name: 'unnamed statements and portals are passed on as they are',
    check: async (place) => {
      const client = await enter(place);
      const parts = [
        parse('', "SELECT 'unnamed'"),
        describe('S'),
        bind({}),
        describe('P'),
        execute(),
        close('P'),
        close('S'),
        SYNC,
      ];
      assert.equal(linesOf(await ask(client, parts)), '1 t T 2 T D C 3 3 Z:I');
      assert.deepEqual(await onServer(place), []);
      // The unnamed statement may be prepared again at any time.
      const twice = [parse('', 'SELECT 1'), parse('', 'SELECT 2'), run(''), SYNC];
      assert.deepEqual(textRows(await ask(client, twice)), [['2']]);
      await client.end();
    },
  },
  {
    name: 'the error of a rejected Parse is passed on, and the name is free again',
    check: async (place) => {
      const client = await enter(place);
      const bad = [parse('a', NO_TABLE), run('a'), SYNC];
      assert.equal(linesOf(await ask(client, bad)), `${NO_TABLE_ERROR} Z:I`);
      assert.equal(linesOf(await ask(client, bad)), `${NO_TABLE_ERROR} Z:I`);
      assert.equal(
        linesOf(await ask(client, [parse('a', 'SELECT 1'), run('a'), SYNC])),
        '1 2 D C Z:I',
      );
      assert.deepEqual(await onServer(place), ['SELECT 1']);
      await client.end();
    },
    differs: {
      because: STAYS,
      check: async (place) => {
        const client = await enter(place);
        const bad = [parse('a', NO_TABLE), run('a'), SYNC];
        assert.equal(linesOf(await ask(client, bad)), `${NO_TABLE_ERROR} Z:I`);
        assert.equal(await lastWords(client, [parse('a', 'SELECT 1'), SYNC]), IN_USE);
      },
    },
  },
  {
    name: 'behind an error nothing is answered up to Sync, and the names are as they were before',
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('known', 'SELECT 1'), SYNC]);
      const parts = [
        parse('bad', NO_TABLE),
        parse('other', 'SELECT 1'),
        run('other'),
        close('S', 'known'),
        parse('new', "SELECT 'new'"),
        SYNC,
      ];
      assert.equal(linesOf(await ask(client, parts)), `${NO_TABLE_ERROR} Z:I`);
      assert.equal(linesOf(await ask(client, [run('known'), SYNC])), '2 D C Z:I');
      const again = [parse('other', 'SELECT 3'), parse('new', 'SELECT 4'), run('new'), SYNC];
      assert.equal(linesOf(await ask(client, again)), '1 1 2 D C Z:I');
      assert.deepEqual(await onServer(place), ['SELECT 1', 'SELECT 3', 'SELECT 4']);
      await client.end();
    },
    differs: {
      because: 'what the server skipped counts as done there',
      check: async (place) => {
        const client = await enter(place);
        await ask(client, [parse('known', 'SELECT 1'), SYNC]);
        const parts = [
          parse('bad', NO_TABLE),
          parse('other', 'SELECT 1'),
          close('S', 'known'),
          SYNC,
        ];
        assert.equal(linesOf(await ask(client, parts)), `${NO_TABLE_ERROR} Z:I`);
        assert.equal(await lastWords(client, [run('known'), SYNC]), UNKNOWN);
      },
    },
  },
  ...['DEALLOCATE ALL', 'DISCARD ALL'].flatMap((sql) =>
    (['simple', 'extended'] as const).map((protocol) => ({
      name: `${sql} in the ${protocol} protocol forgets the client's names and the server's statements`,
      check: async (place: RulePlace) => {
        const [client, other] = await two(place);
        for (const one of [client, other]) await ask(one, [parse('a', 'SELECT 1'), SYNC]);
        const parts = protocol === 'simple' ? [query(sql)] : [parse('', sql), run(''), SYNC];
        const answer = linesOf(await ask(client, parts));
        assert.equal(answer, protocol === 'simple' ? 'C Z:I' : '1 2 C Z:I');
        assert.deepEqual(await onServer(place), []);
        // The other client has its name still, and does not notice that the server has forgotten.
        assert.equal(linesOf(await ask(other, [run('a'), SYNC])), '2 D C Z:I');
        assert.equal(linesOf(await ask(client, [parse('a', 'SELECT 2'), SYNC])), '1 Z:I');
        assert.deepEqual(await onServer(place), ['SELECT 1', 'SELECT 2']);
        await other.end();
        await ask(client, parts);
        assert.equal(await lastWords(client, [run('a'), SYNC]), UNKNOWN);
      },
    })),
  ),
  ...['DEALLOCATE ALL', ' discard all ; '].flatMap((sql) =>
    (['simple', 'extended'] as const).map(
      (protocol): Omit<PlacedRule, 'settings'> => ({
        name: `a known text whose Parse stands behind "${sql}" in the ${protocol} protocol in one write is prepared anew`,
        check: async (place) => {
          const client = await enter(place);
          await ask(client, [parse('a', 'SELECT 1'), parse('b', 'SELECT 2'), SYNC]);
          const isSimple = protocol === 'simple';
          const first = isSimple ? [query(sql)] : [parse('', sql), run('')];
          const parts = [...first, parse('c', 'SELECT 1'), run('c'), SYNC, run('c'), SYNC];
          const answer = linesOf(await ask(client, parts, isSimple ? 3 : 2));
          const begins = isSimple ? 'C Z:I' : '1 2 C';
          assert.equal(answer, `${begins} 1 2 D C Z:I 2 D C Z:I`);
          assert.equal(linesOf(await ask(client, [run('c'), SYNC])), '2 D C Z:I');
          assert.deepEqual(await onServer(place), ['SELECT 1']);
          await client.end();
        },
        differs: { because: 'until it is answered, PgBouncer counts on what it takes away' },
      }),
    ),
  ),
  {
    name: 'a DISCARD ALL that fails, which what stands behind it in one write cannot know, forgets nothing',
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('a', 'SELECT 1'), parse('b', 'SELECT 2'), SYNC]);
      const parts = [query('BEGIN'), query('DISCARD ALL'), query('ROLLBACK'), run('a'), SYNC];
      const failure = 'E(ERROR 25001 DISCARD ALL cannot run inside a transaction block)';
      assert.equal(linesOf(await ask(client, parts, 4)), `C Z:T ${failure} Z:E C Z:I 2 D C Z:I`);
      for (const name of ['b', 'a', 'b']) {
        assert.equal(linesOf(await ask(client, [run(name), SYNC])), '2 D C Z:I');
      }
      await client.end();
    },
  },
  {
    name: 'a tag that only begins like DEALLOCATE ALL forgets nothing',
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('a', 'SELECT 1'), SYNC]);
      await client.query('PREPARE x AS SELECT 2');
      assert.equal(linesOf(await client.query('DEALLOCATE x')), 'C Z:I');
      await client.query('DISCARD PLANS');
      await client.query('DISCARD SEQUENCES');
      assert.equal(linesOf(await ask(client, [run('a'), SYNC])), '2 D C Z:I');
      await client.end();
    },
  },
  {
    name: 'SQL PREPARE, EXECUTE and DEALLOCATE are not translated',
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('a', 'SELECT 1'), SYNC]);
      const missing = 'E(ERROR 26000 prepared statement "a" does not exist) Z:I';
      assert.equal(linesOf(await client.query('DEALLOCATE a')), missing);
      assert.equal(linesOf(await client.query('EXECUTE a')), missing);
      assert.equal(linesOf(await client.query('PREPARE b AS SELECT 2')), 'C Z:I');
      assert.equal(linesOf(await client.query('EXECUTE b')), 'T D C Z:I');
      const names = textRows(
        await client.query("SELECT name FROM pg_prepared_statements WHERE name NOT LIKE 'PGB%'"),
      );
      assert.deepEqual(names, [['b']]);
      assert.equal(await lastWords(client, [run('b'), SYNC]), UNKNOWN);
    },
  },
  {
    name: 'a text that is longer than a buffer is prepared, and found again',
    check: async (place) => {
      const [client, other] = await two(place);
      const text = `SELECT '${'x'.repeat(1_000_000)}'`;
      for (const one of [client, other]) {
        const rows = textRows(await ask(one, [parse('a', text), run('a'), SYNC]));
        assert.equal(rows[0]![0]!.length, 1_000_000);
      }
      assert.deepEqual(await onServer(place), [text]);
      await endAll(client, other);
    },
  },
  {
    name: 'a Bind of several megabytes is passed on',
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('a', 'SELECT length($1::text)'), SYNC]);
      const values = ['y'.repeat(8_000_000)];
      const rows = textRows(await ask(client, [bind({ statement: 'a', values }), execute(), SYNC]));
      assert.deepEqual(rows, [['8000000']]);
      await client.end();
    },
  },
  {
    name: 'the portals of a transaction keep their names, and are fetched from in pieces',
    check: async (place) => {
      const client = await enter(place);
      await client.query('BEGIN');
      const first = [
        parse('a', 'SELECT generate_series(1, 3)'),
        bind({ statement: 'a', portal: 'p' }),
        bind({ statement: 'a', portal: 'q' }),
        execute('p', 2),
        SYNC,
      ];
      assert.equal(linesOf(await ask(client, first)), '1 2 2 D D s Z:T');
      assert.equal(
        linesOf(await ask(client, [execute('p', 2), execute('q'), SYNC])),
        'D C D D D C Z:T',
      );
      await client.query('COMMIT');
      await client.end();
    },
  },
  {
    name: 'Flush brings the answers of what was sent, those of the pooler too',
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('a', 'SELECT 1'), SYNC]);
      client.send(parse('b', 'SELECT 1'), describe('S', 'b'), close('S', 'a'), FLUSH);
      assert.equal(linesOf(await client.until('3')), '1 t T 3');
      assert.equal(linesOf(await ask(client, [run('b'), SYNC])), '2 D C Z:I');
      await client.end();
    },
  },
  {
    name: 'a pipeline of many groups is answered in order, an error ending only its own',
    check: async (place) => {
      const client = await enter(place);
      const groups = Array.from({ length: 200 }, (_, i) => {
        const bad = i % 50 === 49;
        const text = bad ? 'SELECT 1 / 0' : `SELECT ${i % 7}`;
        return Buffer.concat([parse(`s${i}`, text), run(`s${i}`), close('S', `s${i}`), SYNC]);
      });
      const failed = 'E(ERROR 22012 division by zero)';
      const answer = linesOf(await ask(client, groups, groups.length));
      // The constants are folded when the statement is planned, which is at Bind.
      const expected = groups.map((_, i) => (i % 50 === 49 ? `1 ${failed} Z:I` : '1 2 D C 3 Z:I'));
      assert.equal(answer, expected.join(' '));
      await client.end();
    },
  },
  {
    name: 'groups, simple queries and errors may be mixed in one write',
    check: async (place) => {
      const client = await enter(place);
      const parts = [
        parse('a', 'SELECT 1'),
        run('a'),
        SYNC,
        query("SELECT 'simple'; SELECT 2"),
        run('a'),
        query('SELECT 3'),
        run('a'),
        parse('bad', NO_TABLE),
        query('SELECT 4'),
        run('a'),
        SYNC,
        query(NO_TABLE),
        run('a'),
        SYNC,
      ];
      // A simple query in a group that Sync has not ended is part of the group's transaction.
      assert.equal(
        linesOf(await ask(client, parts, 6)),
        `1 2 D C Z:I T D C T D C Z:I 2 D C T D C Z:T 2 D C ${NO_TABLE_ERROR} Z:I ${NO_TABLE_ERROR} Z:I 2 D C Z:I`,
      );
      await client.end();
    },
  },
]);

ruleSet(
  'the limit of prepared statements of a server',
  options({ max_prepared_statements: 2 }),
  SINCE,
  [
    {
      name: 'the one least recently used is closed for a new one',
      check: async (place) => {
        const client = await enter(place);
        await ask(client, [parse('a', "SELECT 'a'"), parse('b', "SELECT 'b'"), SYNC]);
        await ask(client, [run('a'), SYNC]);
        assert.equal(linesOf(await ask(client, [parse('c', "SELECT 'c'"), SYNC])), '1 Z:I');
        assert.deepEqual(await onServer(place), ["SELECT 'a'", "SELECT 'c'"]);
        assert.equal(linesOf(await ask(client, [describe('S', 'b'), SYNC])), 't T Z:I');
        assert.deepEqual(await onServer(place), ["SELECT 'c'", "SELECT 'b'"]);
        await client.end();
      },
    },
    {
      name: 'a Parse of one that is there is no use of it',
      check: async (place) => {
        const client = await enter(place);
        await ask(client, [parse('a', "SELECT 'a'"), parse('b', "SELECT 'b'"), SYNC]);
        await ask(client, [parse('a2', "SELECT 'a'"), SYNC]);
        await ask(client, [parse('c', "SELECT 'c'"), SYNC]);
        assert.deepEqual(await onServer(place), ["SELECT 'b'", "SELECT 'c'"]);
        await client.end();
      },
    },
    {
      name: 'a client uses more than the limit in one group and does not notice',
      check: async (place) => {
        const client = await enter(place);
        const names = ['a', 'b', 'c', 'd', 'e'];
        const parses = names.map((name) => parse(name, `SELECT '${name}'`));
        assert.equal(linesOf(await ask(client, [...parses, SYNC])), '1 1 1 1 1 Z:I');
        for (let i = 0; i < 3; i++) {
          const rows = textRows(await ask(client, [...names.map(run), SYNC]));
          assert.deepEqual(
            rows,
            names.map((name) => [name]),
          );
        }
        assert.equal((await onServer(place)).length, 2);
        await client.end();
      },
    },
    {
      name: 'one whose closing was skipped after an error is still used',
      check: async (place) => {
        const client = await enter(place);
        await ask(client, [parse('a', "SELECT 'a'"), parse('b', "SELECT 'b'"), SYNC]);
        const parts = [parse('', NO_TABLE), parse('c', "SELECT 'c'"), SYNC];
        assert.equal(linesOf(await ask(client, parts)), `${NO_TABLE_ERROR} Z:I`);
        assert.deepEqual(textRows(await ask(client, [run('a'), run('b'), SYNC])), [['a'], ['b']]);
        assert.equal((await onServer(place)).length, 2);
        await client.end();
      },
    },
  ],
);

ruleSet(
  'a statement on another server',
  () => ({
    ...options({})(),
    databases: { wide: 'dbname=app pool_size=2' },
  }),
  SINCE,
  [
    {
      name: 'it is prepared there unseen by the client, at Bind and at Describe',
      check: async ({ pooler }) => {
        const [client, holder] = await two({ pooler, database: 'wide' });
        const sql = "SELECT 'elsewhere', pg_backend_pid()";
        const [[, home] = []] = textRows(await ask(client, [parse('a', sql), run('a'), SYNC]));
        for (const [first, answer] of [
          [describe('S', 'a'), 't T 2 D C Z:I'],
          [bind({ statement: 'a', portal: 'x' }), '2 2 D C Z:I'],
        ] as const) {
          await client.query('DEALLOCATE ALL');
          await ask(client, [parse('a', sql), run('a'), SYNC]);
          await holder.query('BEGIN');
          const messages = await ask(client, [first, run('a'), SYNC]);
          assert.equal(linesOf(messages), answer);
          await holder.query('COMMIT');
        }
        assert.ok(home);
        await endAll(client, holder);
      },
    },
  ],
);

ruleSet('without prepared statement support', options({ max_prepared_statements: 0 }), SINCE, [
  {
    name: "names are the server's, and PostgreSQL's errors are passed on",
    check: async (place) => {
      const [client, other] = await two(place);
      await ask(client, [parse('a', 'SELECT 1'), SYNC]);
      const duplicate = 'E(ERROR 42P05 prepared statement "a" already exists) Z:I';
      assert.equal(linesOf(await ask(other, [parse('a', 'SELECT 2'), SYNC])), duplicate);
      const unknown = 'E(ERROR 26000 prepared statement "b" does not exist) Z:I';
      assert.equal(linesOf(await ask(other, [bind({ statement: 'b' }), SYNC])), unknown);
      assert.deepEqual(textRows(await ask(other, [run('a'), SYNC])), [['1']]);
      assert.equal(linesOf(await ask(other, [close('S', 'a'), SYNC])), '3 Z:I');
      assert.deepEqual(await onServer(place), []);
      await endAll(client, other);
    },
  },
]);

ruleSet('prepared statements in session mode', options({ pool_mode: 'session' }), SINCE, [
  {
    name: "names are the server's, and PostgreSQL's errors are passed on",
    check: async (place) => {
      const client = await enter(place);
      await ask(client, [parse('a', 'SELECT 1'), SYNC]);
      const names = textRows(await client.query('SELECT name FROM pg_prepared_statements'));
      assert.deepEqual(names, [['a']]);
      const duplicate = 'E(ERROR 42P05 prepared statement "a" already exists) Z:I';
      assert.equal(linesOf(await ask(client, [parse('a', 'SELECT 2'), SYNC])), duplicate);
      const unknown = 'E(ERROR 26000 prepared statement "b" does not exist) Z:I';
      assert.equal(linesOf(await ask(client, [bind({ statement: 'b' }), SYNC])), unknown);
      assert.equal(linesOf(await client.query('EXECUTE a')), 'T D C Z:I');
      assert.equal(linesOf(await client.query('DEALLOCATE a')), 'C Z:I');
      await client.end();
    },
  },
]);

ruleSet('prepared statements in statement mode', options({ pool_mode: 'statement' }), SINCE, [
  {
    name: 'they are translated as in transaction mode',
    check: async (place) => {
      const [client, other] = await two(place);
      for (const one of [client, other]) {
        assert.equal(linesOf(await ask(one, [parse('a', 'SELECT 1'), SYNC])), '1 Z:I');
        assert.equal(linesOf(await ask(one, [run('a'), SYNC])), '2 D C Z:I');
      }
      assert.deepEqual(await onServer(place), ['SELECT 1']);
      await endAll(client, other);
    },
  },
]);

/** A rule that changes the settings of its pooler, and so has one for itself. */
function reloadRule(name: string, check: (place: RulePlace) => Promise<void>): void {
  const settings = { max_prepared_statements: 3, default_pool_size: 1 };
  rule(name, options(settings), (pooler) => check({ pooler, database: 'app' }), { since: SINCE });
}

const limitOf = (value: number) => line('pgbouncer', 'max_prepared_statements', value);

reloadRule(
  'a lowered limit takes effect when a server next gets a new statement',
  async (place) => {
    const client = await enter(place);
    const three = ['a', 'b', 'c'].map((name) => parse(name, `SELECT '${name}'`));
    await ask(client, [...three, SYNC]);
    await reload(place.pooler, limitOf(1));
    assert.equal(linesOf(await ask(client, [run('a'), SYNC])), '2 D C Z:I');
    assert.equal((await onServer(place)).length, 3);
    await ask(client, [parse('d', "SELECT 'd'"), SYNC]);
    assert.deepEqual(await onServer(place), ["SELECT 'd'"]);
    assert.deepEqual(textRows(await ask(client, [run('b'), SYNC])), [['b']]);
    await client.end();
  },
);

reloadRule("with the limit set to 0 names are the server's from then on", async (place) => {
  const client = await enter(place);
  await ask(client, [parse('a', 'SELECT 1'), SYNC]);
  await reload(place.pooler, limitOf(0));
  const unknown = 'E(ERROR 26000 prepared statement "a" does not exist) Z:I';
  assert.equal(linesOf(await ask(client, [run('a'), SYNC])), unknown);
  assert.equal(linesOf(await ask(client, [parse('a', 'SELECT 2'), SYNC])), '1 Z:I');
  assert.deepEqual(textRows(await ask(client, [run('a'), SYNC])), [['2']]);
  // What was tracked before is known still.
  await reload(place.pooler, limitOf(3));
  assert.deepEqual(textRows(await ask(client, [run('a'), SYNC])), [['1']]);
  await client.end();
});

ruleSet(
  'prepared statements of a server that is reset after each use',
  options({ server_reset_query_always: 1 }),
  SINCE,
  [
    {
      name: 'they are forgotten with it, and prepared again for who uses them',
      check: async (place) => {
        const client = await enter(place);
        await ask(client, [parse('a', 'SELECT 1'), SYNC]);
        assert.deepEqual(await onServer(place), []);
        for (let i = 0; i < 3; i++) {
          assert.equal(linesOf(await ask(client, [run('a'), SYNC])), '2 D C Z:I');
        }
        await client.end();
      },
    },
  ],
);

const FAILED = 'failed to parse packet';
const cut = (type: string, text: string): Buffer => message(type, [Buffer.from(text)]);

const BROKEN: readonly (readonly [string, Buffer, string])[] = [
  ['a Parse without the end of its name', cut('P', 'a'), FAILED],
  ['a Parse without a text', message('P', ['a']), 'broken Parse packet'],
  ['a Parse without a count of types', message('P', ['a', 'SELECT 1']), 'broken Parse packet'],
  ['a Bind without the end of its portal', cut('B', 'p'), FAILED],
  ['a Bind without the end of its statement', cut('B', '\0a'), FAILED],
  ['an empty Describe', message('D'), FAILED],
  ['a Describe without the end of its name', cut('D', 'Sa'), FAILED],
  ['an empty Close', message('C'), FAILED],
  ['a Close without the end of its name', cut('C', 'Sa'), FAILED],
];

const TRAILED: readonly (readonly [string, Buffer, text: string, passed: string])[] = [
  ['a Parse', cut('P', 'b\0SELECT 1\0\0\0x'), 'broken Parse packet', '1'],
  ['a Describe', cut('D', 'Sa\0x'), 'broken Describe packet', 't T'],
  ['a Close', cut('C', 'Sa\0x'), 'broken Close packet', '3'],
];

ruleSet('messages about prepared statements that cannot be read', options({}), SINCE, [
  ...BROKEN.map(
    ([name, bytes, text]): PlacedRule => ({
      name: `${name} disconnects`,
      check: async (place) => {
        const client = await enter(place);
        await ask(client, [parse('', 'SELECT 1'), SYNC]);
        assert.equal(await lastWords(client, [bytes, SYNC]), `E(FATAL 08P01 ${text})`);
      },
    }),
  ),
  ...TRAILED.map(
    ([name, bytes, text, passed]): PlacedRule => ({
      name: `${name} with something behind its end disconnects`,
      check: async (place) => {
        const client = await enter(place);
        await ask(client, [parse('a', 'SELECT 1'), SYNC]);
        assert.equal(await lastWords(client, [bytes, SYNC]), `E(FATAL 08P01 ${text})`);
      },
      differs: {
        because: 'what PostgreSQL would refuse as an invalid message is not seen there',
        check: async (place) => {
          const client = await enter(place);
          await ask(client, [parse('a', 'SELECT 1'), SYNC]);
          assert.equal(linesOf(await ask(client, [bytes, SYNC])), `${passed} Z:I`);
          await client.end();
        },
      },
    }),
  ),
]);

test('the server of this file ends', () => postgres.dispose());
