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
} from '../messages.ts';
import { TYPES } from '../type-samples.ts';
import { type Script, sent, sentUntil } from './script.ts';

const INT4 = 23;
const TEXT = 25;
const text = (value: string): Buffer => Buffer.from(value);

/** One statement by the extended protocol in one go. */
const whole = (
  sql: string,
  values: readonly (string | Uint8Array | null)[] = [],
  format = 0,
): Buffer[] => [
  parse('', sql),
  bind({ values, resultFormats: [format] }),
  describe('P'),
  execute(),
  SYNC,
];

function fastPath(oid: number, values: readonly (Buffer | null)[]): Buffer {
  const parts = values.flatMap((value) =>
    value === null ? [int32(-1)] : [int32(value.length), value],
  );
  return message('F', [int32(oid), int16(1), int16(1), int16(values.length), ...parts, int16(1)]);
}

/** Sequences of protocol messages, the extended protocol and COPY above all. */
export const SEQUENCES: readonly Script[] = [
  {
    name: 'every type by the extended protocol, as text and as binary',
    says: Object.entries(TYPES).flatMap(([type, values]) =>
      [0, 1].map((format) =>
        sent(
          `${type} in format ${format}`,
          values.flatMap((value) => whole(`SELECT $1::${type} AS v`, [value], format)),
          values.length,
        ),
      ),
    ),
  },
  {
    name: 'parts of the extended protocol',
    says: [
      sent('Sync alone', [SYNC]),
      sent('two Syncs', [SYNC, SYNC], 2),
      sent('an empty statement', whole('')),
      sent('a comment as a statement', whole('-- nothing')),
      sent('Parse alone', [parse('', 'SELECT 1'), SYNC]),
      sent('Describe of the unnamed statement', [
        parse('', 'SELECT $1::int', [INT4]),
        describe('S'),
        SYNC,
      ]),
      sent('types that are left open', [
        parse('', 'SELECT $1, $2::int4, $1 || $3', [0, 0, TEXT]),
        describe('S'),
        SYNC,
      ]),
      sent('no result', [
        parse('', 'SET work_mem = 1000'),
        describe('S'),
        bind(),
        describe('P'),
        execute(),
        SYNC,
      ]),
      sent('rows in portions', [
        parse('', 'SELECT generate_series(1, 7)'),
        bind(),
        describe('P'),
        execute('', 3),
        execute('', 3),
        execute('', 3),
        SYNC,
      ]),
      sent('exactly the rows asked for', [
        parse('', 'SELECT generate_series(1, 3)'),
        bind(),
        execute('', 3),
        execute('', 3),
        SYNC,
      ]),
      sent('a named portal twice', [
        parse('', 'SELECT generate_series(1, 4)'),
        bind({ portal: 'a' }),
        bind({ portal: 'b' }),
        execute('a', 2),
        execute('b', 1),
        execute('a'),
        close('P', 'a'),
        execute('b'),
        SYNC,
      ]),
      sent('a portal is gone after its Sync', [execute('a'), SYNC]),
      sent('a portal that is there already', [
        parse('', 'SELECT 1'),
        bind({ portal: 'a' }),
        bind({ portal: 'a' }),
        SYNC,
      ]),
      sent('Close of nothing', [close('P', 'nothing'), close('P'), SYNC]),
      sent('Describe of a portal that is not there', [describe('P', 'nothing'), SYNC]),
      sent('Execute of a portal that is not there', [execute('nothing'), SYNC]),
      sent('an error in Parse', [parse('', 'SELEC 1'), bind(), execute(), SYNC]),
      sent('two statements in a Parse', [parse('', 'SELECT 1; SELECT 2'), SYNC]),
      sent('too few values', [parse('', 'SELECT $1::int, $2::int'), bind({ values: ['1'] }), SYNC]),
      sent('a value that does not parse', [
        parse('', 'SELECT $1::int'),
        bind({ values: ['x'] }),
        SYNC,
      ]),
      sent('a binary value of the wrong size', [
        parse('', 'SELECT $1::int'),
        bind({ values: [Buffer.of(1)], formats: [1] }),
        SYNC,
      ]),
      sent('a format that does not exist', [
        parse('', 'SELECT $1::int'),
        bind({ values: ['1'], formats: [7] }),
        SYNC,
      ]),
      sent('result formats that do not fit', [
        parse('', 'SELECT 1, 2'),
        bind({ resultFormats: [0, 1, 1] }),
        SYNC,
      ]),
      sent('an error while running', [
        parse('', 'SELECT 1 / $1::int'),
        bind({ values: ['0'] }),
        describe('P'),
        execute(),
        SYNC,
      ]),
      sent('rows before an error', [
        parse('', 'SELECT 1 / (3 - g) FROM generate_series(1, 5) AS g'),
        bind(),
        execute(),
        SYNC,
      ]),
      sent('everything behind an error is skipped', [
        parse('', 'SELECT 1/0'),
        bind(),
        execute(),
        parse('', 'SELECT 2'),
        bind(),
        execute(),
        query('SELECT 3'),
        SYNC,
      ]),
      sent('mixed formats', [
        parse('', 'SELECT $1::int, $2::text, $3::bytea'),
        bind({
          values: [int32(5), 'five', Buffer.of(0, 255)],
          formats: [1, 0, 1],
          resultFormats: [1, 0, 1],
        }),
        execute(),
        SYNC,
      ]),
      sent(
        'ten thousand rows',
        whole('SELECT g, md5(g::text) FROM generate_series(1, 10000) AS g'),
      ),
      sent('a value of 2 MB there and back', whole('SELECT $1::text', ['z'.repeat(1 << 21)])),
      sent('a statement of 1 MB', whole(`SELECT length('${'q'.repeat(1 << 20)}')`)),
      sent(
        'a thousand parameters',
        whole(
          `SELECT ${Array.from({ length: 1000 }, (_, i) => `$${i + 1}::int`).join('+')}`,
          Array.from({ length: 1000 }, () => '1'),
        ),
      ),
      sent('notices', whole('SELECT noisy(2)')),
      sent('RETURNING', whole("INSERT INTO parent VALUES (60, 'x') RETURNING *")),
      sent('UPDATE', whole("UPDATE parent SET name = 'y' WHERE id = 60")),
      sent('DELETE', whole('DELETE FROM parent WHERE id = 60')),
      sent('EXPLAIN', whole('EXPLAIN (COSTS off) SELECT 1')),
      sent('SHOW', whole('SHOW search_path')),
      sent('VACUUM', whole('VACUUM parent')),
      sent('BEGIN and COMMIT in one group', [
        ...[parse('', 'BEGIN'), bind(), execute()],
        ...[parse('', 'SELECT 1'), bind(), execute()],
        ...[parse('', 'COMMIT'), bind(), execute()],
        SYNC,
      ]),
      sentUntil('Flush brings what is there', '2', [parse('', 'SELECT 1'), bind(), FLUSH]),
      sentUntil('and the rows', 'C', [describe('P'), execute(), FLUSH]),
      sent('and Sync ends it', [SYNC]),
    ],
  },
  {
    name: 'pipelines',
    says: [
      sent(
        'three groups in one go',
        [...whole('SELECT 1'), ...whole('SELECT 2'), ...whole('SELECT 3')],
        3,
      ),
      sent(
        'the second of three fails',
        [...whole('SELECT 1'), ...whole('SELECT 1/0'), ...whole('SELECT 3')],
        3,
      ),
      sent(
        'simple queries in one go',
        [query('SELECT 1'), query('SELECT 2'), query('SELECT nothing'), query('SELECT 4')],
        4,
      ),
      sent(
        'simple and extended in turn',
        [query('SELECT 1'), ...whole('SELECT 2'), query('SELECT 3'), ...whole('SELECT 4')],
        4,
      ),
      sent(
        'a hundred groups',
        Array.from({ length: 100 }, (_, i) => whole(`SELECT ${i}, $1::text`, [`${i}`])).flat(),
        100,
      ),
      sent(
        'an implicit transaction over several Executes',
        [
          ...[parse('', "INSERT INTO parent VALUES (70, 'a')"), bind(), execute()],
          ...[parse('', "INSERT INTO parent VALUES (70, 'b')"), bind(), execute()],
          SYNC,
          query('SELECT count(*) FROM parent WHERE id = 70'),
        ],
        2,
      ),
      sent(
        'a query in the middle of a group',
        [parse('', 'SELECT 1'), bind(), query('SELECT 2'), SYNC],
        2,
      ),
    ],
  },
  {
    name: 'named statements',
    says: [
      sent('Parse and Describe', [
        parse('s1', 'SELECT $1::int + 1 AS next'),
        describe('S', 's1'),
        SYNC,
      ]),
      sent('Bind in another group', [
        bind({ statement: 's1', values: ['41'] }),
        describe('P'),
        execute(),
        SYNC,
      ]),
      sent('and again, binary', [
        bind({ statement: 's1', values: [int32(41)], formats: [1], resultFormats: [1] }),
        execute(),
        SYNC,
      ]),
      sent('two of them in one group', [
        parse('s2', 'SELECT name FROM parent WHERE id = $1'),
        bind({ statement: 's2', values: ['1'] }),
        execute(),
        bind({ statement: 's1', values: ['1'] }),
        execute(),
        SYNC,
      ]),
      sent('Close and Parse anew', [
        close('S', 's1'),
        parse('s1', "SELECT 'another'"),
        bind({ statement: 's1' }),
        describe('P'),
        execute(),
        SYNC,
      ]),
      sent('Close of what is not there', [close('S', 'nothing'), SYNC]),
      sent('the same text under two names', [
        parse('a', 'SELECT 7'),
        parse('b', 'SELECT 7'),
        bind({ statement: 'b' }),
        execute(),
        bind({ statement: 'a' }),
        execute(),
        SYNC,
      ]),
      sent('an error in its Parse', [
        parse('broken', 'SELEC 1'),
        bind({ statement: 'broken' }),
        execute(),
        SYNC,
      ]),
      sent('the name is free after that', [
        parse('broken', 'SELECT 5'),
        bind({ statement: 'broken' }),
        execute(),
        SYNC,
      ]),
      sent(
        'a pipeline of named ones',
        [
          ...[bind({ statement: 's2', values: ['1'] }), execute(), SYNC],
          ...[bind({ statement: 's2', values: ['x'] }), execute(), SYNC],
          ...[bind({ statement: 's2', values: ['2'] }), execute(), SYNC],
        ],
        3,
      ),
      sent(
        'everything is closed',
        ['s1', 's2', 'a', 'b', 'broken'].map((name) => close('S', name)).concat(SYNC),
      ),
    ],
  },
  {
    name: 'the names of statements',
    says: [
      sent('too few values for a named statement', [
        parse('n1', 'SELECT $1::int'),
        bind({ statement: 'n1' }),
        SYNC,
      ]),
      'SELECT name, statement FROM pg_prepared_statements',
      'EXECUTE n1 (1)',
      'DEALLOCATE n1',
      sent('Bind after DEALLOCATE', [bind({ statement: 'n1', values: ['1'] }), execute(), SYNC]),
    ],
  },
  {
    name: 'a name that is in use',
    says: [sent('Parse twice', [parse('n1', 'SELECT 1'), parse('n1', 'SELECT 2'), SYNC])],
  },
  {
    name: 'a name that is not known',
    says: [sent('Bind', [bind({ statement: 'n9' }), SYNC])],
  },
  {
    name: 'transaction blocks by the extended protocol',
    hasBlocks: true,
    says: [
      sent('BEGIN', whole('BEGIN')),
      sent('a savepoint', whole('SAVEPOINT a')),
      sent('an error', whole('SELECT 1/0')),
      sent('nothing goes on', whole('SELECT 1')),
      sent('back to it', whole('ROLLBACK TO a')),
      sent('a portal over Syncs', [
        parse('', 'SELECT generate_series(1, 5)'),
        bind({ portal: 'p' }),
        execute('p', 2),
        SYNC,
      ]),
      sent('goes on', [execute('p', 2), SYNC]),
      sent('to its end', [execute('p', 2), close('P', 'p'), SYNC]),
      sent('COMMIT', whole('COMMIT')),
      sent('a portal does not outlive its block', [execute('p', 1), SYNC]),
    ],
  },
  {
    name: 'COPY out',
    says: [
      'COPY (SELECT g, md5(g::text) FROM generate_series(1, 100) AS g) TO STDOUT',
      'COPY (SELECT g FROM generate_series(1, 20000) AS g) TO STDOUT (FORMAT binary)',
      "COPY (SELECT 'a,b', NULL, 'ü') TO STDOUT (FORMAT csv, HEADER)",
      'COPY (SELECT 1 WHERE false) TO STDOUT',
      'COPY (SELECT 1/(5 - g) FROM generate_series(1, 10) AS g) TO STDOUT',
      'COPY nowhere TO STDOUT',
      'COPY parent TO STDOUT; SELECT 1',
      sent('by the extended protocol', whole('COPY (SELECT 1, 2) TO STDOUT')),
      sent('in a pipeline', [...whole('COPY (SELECT 1) TO STDOUT'), ...whole('SELECT 2')], 2),
    ],
  },
  {
    name: 'COPY in',
    says: [
      sentUntil('begins', 'G', [query('COPY filled FROM STDIN')]),
      sent('two rows', [copyData(text('1\tone\n2\ttwo\n')), COPY_DONE]),
      'SELECT * FROM filled ORDER BY a',
      sentUntil('begins again', 'G', [query('COPY filled FROM STDIN (FORMAT csv)')]),
      sent('the client gives up', [copyData(text('3,three\n')), copyFail('changed my mind')]),
      sentUntil('and again', 'G', [query('COPY filled FROM STDIN')]),
      sent('a row that does not parse', [copyData(text('x\tbad\n')), COPY_DONE]),
      sent('all in one go', [
        query('COPY filled FROM STDIN'),
        copyData(text('4\tfour\n')),
        COPY_DONE,
      ]),
      sent('in small pieces', [
        query('COPY filled FROM STDIN'),
        ...[...'5\tfive\n6\tsix\n'].map((c) => copyData(text(c))),
        COPY_DONE,
      ]),
      sent('no data', [query('COPY filled FROM STDIN'), COPY_DONE]),
      sent(
        'a query behind it',
        [
          query('COPY filled FROM STDIN'),
          copyData(text('7\tseven\n')),
          COPY_DONE,
          query('SELECT count(*) FROM filled'),
        ],
        2,
      ),
      sent('by the extended protocol', [
        parse('', 'COPY filled FROM STDIN'),
        bind(),
        execute(),
        copyData(text('8\teight\n')),
        COPY_DONE,
        SYNC,
      ]),
      sent('fails by the extended protocol', [
        parse('', 'COPY filled FROM STDIN'),
        bind(),
        execute(),
        copyData(text('bad\n')),
        COPY_DONE,
        SYNC,
      ]),
      sent('given up by the extended protocol', [
        parse('', 'COPY filled FROM STDIN'),
        bind(),
        execute(),
        copyFail('no'),
        SYNC,
      ]),
      sent('a megabyte', [
        query('COPY filled FROM STDIN'),
        ...Array.from({ length: 64 }, (_, i) =>
          copyData(text(`${1000 + i}\t${'m'.repeat(16_384)}\n`)),
        ),
        COPY_DONE,
      ]),
      'SELECT count(*), sum(length(b)) FROM filled',
      'COPY nowhere FROM STDIN',
      'COPY filled (nothing) FROM STDIN',
      'SELECT 1',
      'TRUNCATE filled',
    ],
  },
  {
    name: 'function calls',
    says: [
      sent('int4pl', [fastPath(177, [int32(40), int32(2)])]),
      sent('a NULL for a strict function', [fastPath(177, [int32(40), null])]),
      sent('a function that is not there', [fastPath(4_000_000, [])]),
      sent('too few values', [fastPath(177, [int32(1)])]),
      sent('division by zero', [fastPath(154, [int32(1), int32(0)])]),
      'SELECT 1',
    ],
  },
];
