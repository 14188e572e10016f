import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { assertSame, bytesOf, done, failIfError, onBoth, range } from '../support/compare.ts';
import { onEveryFleet, type Rules } from '../support/grid.ts';
import {
  bind,
  COPY_DONE,
  copyData,
  describe,
  execute,
  parse,
  query,
  rowValues,
  SYNC,
  textRows,
  typesOf,
  type WireMessage,
} from '../support/messages.ts';
import { TYPES } from '../support/type-samples.ts';
import { WireClient } from '../support/wire-client.ts';

/** What goes through the pooler is compared with what the server itself says, byte for byte. */

const LONG_MS = 120_000;
/** A client's bytes go through one worker, whatever the size of the fleet. */
const SIZES_OF_FLEETS = process.env['PGFLEET_LONG'] === '1' ? [1, 2, 4] : [2];

const MEGABYTE = 1 << 20;
/** Around the sizes of headers, pages, read buffers and out-runs. */
const SIZES: readonly number[] = [
  ...range(0, 20),
  ...range(4_085, 4_105),
  ...range(8_185, 8_200),
  ...range(16_375, 16_392),
  ...range(65_500, 65_545),
  ...range(131_060, 131_080),
  ...range(MEGABYTE - 8, MEGABYTE + 2),
];
const BIG_SIZES: readonly number[] = [
  16 * MEGABYTE - 1,
  16 * MEGABYTE,
  16 * MEGABYTE + 1,
  50 * MEGABYTE,
];

const RULES: Rules = {
  'every type is written and read back as the server itself would, as text and as binary': async ({
    postgres,
    fleet,
  }) => {
    await onBoth(postgres, fleet, async (direct, pooled) => {
      for (const [type, samples] of Object.entries(TYPES)) {
        const table = 'data_types';
        await done(
          direct,
          `DROP TABLE IF EXISTS ${table}; CREATE TABLE ${table} (n int, v ${type})`,
        );
        // Written as text through the pooler, read in binary from the server, written as binary.
        for (const [n, sample] of samples.entries()) {
          await written(pooled, table, n, sample, 0);
        }
        const binary = valuesOf(await answer(direct, table, 1));
        assert.equal(binary.length, samples.length);
        for (const [n, value] of binary.entries()) {
          await written(pooled, table, samples.length + n, value, 1);
        }
        for (const format of [0, 1]) {
          const wanted = await answer(direct, table, format);
          assertSame(await answer(pooled, table, format), wanted, `${type}, format ${format}`);
          const values = valuesOf(wanted);
          assert.deepEqual(values.slice(samples.length), values.slice(0, samples.length), type);
        }
        const simple = `SELECT * FROM ${table} ORDER BY n`;
        assertSame(await pooled.query(simple), await direct.query(simple), type);
      }
    });
  },

  'values of every size around the sizes of buffers come back as they were sent': async ({
    fleet,
  }) => {
    const client = await WireClient.login(fleet);
    try {
      for (const size of SIZES) {
        const value = bytesOf(size);
        client.send(parse('', 'SELECT $1::bytea, md5($1)', [17]));
        client.send(
          bind({ values: [value], formats: [1], resultFormats: [1, 0] }),
          execute(),
          SYNC,
        );
        const received = await client.untilReady(LONG_MS);
        assert.equal(typesOf(received), '1 2 D C Z:I');
        const [echo, hash] = rowValues(received[2]!.body);
        assert.ok(echo!.equals(value), `bytea of ${size} bytes`);
        assert.equal(hash!.toString(), md5(value));
        // The same in one simple query, whose own size moves over the boundaries.
        const text = 'y'.repeat(size);
        assert.deepEqual(textRows(await client.query(`SELECT '${text}'`, LONG_MS)), [[text]]);
      }
      await client.end();
    } finally {
      client.destroy();
    }
  },

  'messages of every size follow each other in one stream': async ({ postgres, fleet }) => {
    await onBoth(postgres, fleet, async (direct, pooled) => {
      const sizes = SIZES.filter((size) => size < MEGABYTE);
      const values = sizes.map((size) => bytesOf(size));
      for (const client of [direct, pooled]) {
        client.send(parse('echo', 'SELECT $1::bytea', [17]), SYNC);
        for (const value of values) {
          client.send(
            bind({ statement: 'echo', values: [value], formats: [1], resultFormats: [1] }),
          );
          client.send(describe('P'), execute(), SYNC);
        }
      }
      for (let left = values.length + 1; left > 0; left--) {
        assertSame(await pooled.untilReady(LONG_MS), await direct.untilReady(LONG_MS), 'echo');
      }
    });
  },

  'values up to 50 MB come back as they were sent, and are stored so': async ({
    postgres,
    fleet,
  }) => {
    await onBoth(postgres, fleet, async (direct, pooled) => {
      await done(direct, 'DROP TABLE IF EXISTS data_big; CREATE TABLE data_big (n int, v bytea)');
      await done(direct, 'ALTER TABLE data_big ALTER v SET STORAGE external');
      for (const [n, size] of BIG_SIZES.entries()) {
        const value = bytesOf(size);
        pooled.send(parse('', 'INSERT INTO data_big VALUES ($1, $2) RETURNING v', [23, 17]));
        const given = { values: [String(n), value], formats: [0, 1], resultFormats: [1] };
        pooled.send(bind(given), execute(), SYNC);
        const received = await pooled.untilReady(LONG_MS);
        assert.equal(typesOf(received), '1 2 D C Z:I');
        assert.ok(rowValues(received[2]!.body)[0]!.equals(value), `bytea of ${size} bytes`);
        const [row] = textRows(await direct.query(`SELECT md5(v) FROM data_big WHERE n = ${n}`));
        assert.deepEqual(row, [md5(value)]);
        // As text it is twice as long.
        const sql = `SELECT v FROM data_big WHERE n = ${n}`;
        const [text] = (await pooled.query(sql, LONG_MS)).filter(({ type }) => type === 'D');
        const [hex] = rowValues(text!.body);
        assert.equal(hex!.length, size * 2 + 2);
        assert.ok(Buffer.from(hex!.toString('latin1', 2), 'hex').equals(value));
      }
      await done(direct, 'DROP TABLE data_big');
    });
  },

  'text of all characters of Unicode comes back as it was sent': async ({ fleet }) => {
    const client = await WireClient.login(fleet);
    try {
      for (let first = 1; first < 0x11_0000; first += 0x1_0000) {
        const points = range(first, first + 0xffff).filter((n) => n < 0xd800 || n > 0xdfff);
        const text = points
          .filter((n) => n < 0x11_0000)
          .map((n) => String.fromCodePoint(n))
          .join('');
        client.send(parse('', 'SELECT $1, char_length($1)', [25]));
        client.send(bind({ values: [text] }), execute(), SYNC);
        const [row] = textRows(await client.untilReady(LONG_MS));
        assert.ok(row![0] === text, `from U+${first.toString(16)}`);
        assert.equal(row![1], String([...text].length));
        const quoted = text.replaceAll("'", "''");
        const [simple] = textRows(await client.query(`SELECT '${quoted}'`, LONG_MS));
        assert.ok(simple![0] === text, `from U+${first.toString(16)}`);
      }
      await client.end();
    } finally {
      client.destroy();
    }
  },

  'COPY in text, CSV and binary carries the same bytes both ways': async ({ postgres, fleet }) => {
    await onBoth(postgres, fleet, async (direct, pooled) => {
      await done(
        direct,
        `DROP TABLE IF EXISTS data_source, data_target;
         CREATE TABLE data_source AS
           SELECT n, repeat('tëxt' || n, n % 40) AS t, sha256(n::text::bytea) AS b,
                  n::float8 / 3 AS f, CASE WHEN n % 7 = 0 THEN NULL ELSE now() END AS at
             FROM generate_series(1, 40000) AS n;
         INSERT INTO data_source (n, t) VALUES (0, repeat('long ', 400000));
         CREATE TABLE data_target (LIKE data_source)`,
      );
      for (const format of ['text', 'csv', 'binary']) {
        const out = `COPY (SELECT * FROM data_source ORDER BY n) TO STDOUT (FORMAT ${format})`;
        const wanted = await direct.query(out, LONG_MS);
        const received = await pooled.query(out, LONG_MS);
        assertSame(received, wanted, format);
        const bytes = Buffer.concat(received.filter(isCopyData).map(({ body }) => body));
        for (const piece of [17, 4_093, 65_531, 300_000]) {
          await done(direct, 'TRUNCATE data_target');
          pooled.send(query(`COPY data_target FROM STDIN (FORMAT ${format})`));
          await pooled.until('G');
          // Pieces end anywhere in a row; the small ones only for a part, for the time it takes.
          const head = piece < 1000 ? Math.min(200_000, bytes.length) : 0;
          for (let at = 0; at < bytes.length; ) {
            const end = at < head ? at + piece : at + Math.max(piece, 4_093);
            pooled.send(copyData(bytes.subarray(at, end)));
            at = end;
          }
          pooled.send(COPY_DONE);
          assert.equal(typesOf(await pooled.untilReady(LONG_MS)), 'C Z:I');
          const differing = `SELECT count(*) FROM (
            (TABLE data_source EXCEPT ALL TABLE data_target) UNION ALL
            (TABLE data_target EXCEPT ALL TABLE data_source)) AS d`;
          assert.deepEqual(textRows(await direct.query(differing, LONG_MS)), [['0']]);
        }
      }
      await done(direct, 'DROP TABLE data_source, data_target');
    });
  },
};

onEveryFleet('data', RULES, {
  layouts: SIZES_OF_FLEETS.map((size) => ({ size, mode: 'transaction' })),
});

function md5(bytes: Buffer): string {
  return createHash('md5').update(bytes).digest('hex');
}

function isCopyData({ type }: WireMessage): boolean {
  return type === 'd';
}

async function written(
  client: WireClient,
  table: string,
  n: number,
  value: string | Buffer | null,
  format: number,
): Promise<void> {
  client.send(parse('', `INSERT INTO ${table} VALUES ($1, $2)`));
  client.send(bind({ values: [String(n), value], formats: [0, format] }), execute(), SYNC);
  failIfError(await client.untilReady(LONG_MS), `${table} ${n} ${value}`);
}

/** The whole answer to a read of all values in one format. */
async function answer(client: WireClient, table: string, format: number): Promise<WireMessage[]> {
  client.send(parse('', `SELECT v FROM ${table} ORDER BY n`));
  client.send(bind({ resultFormats: [format] }), describe('P'), execute(), SYNC);
  return client.untilReady(LONG_MS);
}

function valuesOf(messages: readonly WireMessage[]): (Buffer | null)[] {
  return messages.filter(({ type }) => type === 'D').map(({ body }) => rowValues(body)[0]!);
}
