import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import postgres from 'postgres';
import { onEveryFleet, type Place, type Rules } from '../support/grid.ts';
import { until } from '../support/until.ts';

/** The npm package `postgres` (postgres.js), which prepares by name and pipelines by default. */

const RULES: Rules = {
  'queries are prepared by default and answered with their rows': async ({ fleet }) => {
    await using(fleet, {}, async (sql) => {
      for (let round = 0; round < 5; round++) {
        const rows = await sql`SELECT ${round}::int AS n, ${'tëxt'}::text AS t, ${null}::int AS z`;
        assert.deepEqual([...rows], [{ n: round, t: 'tëxt', z: null }]);
      }
      const bytes = Buffer.from([0, 1, 2, 255]);
      const [row] = await sql`SELECT ${bytes}::bytea AS b, ${sql.json({ a: [1] })}::jsonb AS j,
        ${sql.array([1, 2])}::int[] AS a`;
      assert.deepEqual(row, { b: bytes, j: { a: [1] }, a: [1, 2] });
      const both = await sql`SELECT 1 AS a; SELECT 2 AS b`.simple();
      assert.deepEqual(
        both.map((rows) => ({ ...rows[0] })),
        [{ a: 1 }, { b: 2 }],
      );
      assert.deepEqual([...(await sql.unsafe('SELECT $1::int AS n', [7]))], [{ n: 7 }]);
      const described = await sql`SELECT ${1}::int8 AS wide, now() AS at`.describe();
      assert.deepEqual(
        described.columns.map(({ name, type }) => [name, type]),
        [
          ['wide', 20],
          ['at', 1184],
        ],
      );
    });
  },

  'pipelined queries are answered in order, the failed ones among them': async ({ fleet }) => {
    await using(fleet, { max: 1 }, async (sql) => {
      const numbers = Array.from({ length: 200 }, (_, n) => n);
      const answers = await Promise.allSettled(
        numbers.map((n) => sql`SELECT ${n}::int AS n, 1 / ${n % 10}::int AS quotient`),
      );
      for (const [n, answer] of answers.entries()) {
        if (n % 10 === 0) {
          assert.equal(answer.status === 'rejected' && answer.reason.code, '22012');
        } else {
          assert.equal(answer.status === 'fulfilled' && answer.value[0]?.['n'], n);
        }
      }
      const failing = numbers.map((n) =>
        n % 10 === 0 ? sql`SELECT ${n} FROM nowhere` : sql`SELECT ${n}::int AS n`,
      );
      const mixed = await Promise.allSettled(failing);
      assert.deepEqual(
        mixed.map(({ status }) => status),
        numbers.map((n) => (n % 10 === 0 ? 'rejected' : 'fulfilled')),
      );
    });
  },

  'many connections share the servers without mixing rows': async ({ fleet }) => {
    await using(fleet, { max: 12 }, async (sql) => {
      const answers = Array.from({ length: 400 }, async (_, n) => {
        const [row] =
          n % 2 === 0
            ? await sql`SELECT ${n}::int AS n, ${`mark ${n}`} AS mark`
            : await sql`SELECT ${`mark ${n}`} AS mark, ${n}::int AS n`;
        assert.deepEqual({ ...row }, { n, mark: `mark ${n}` });
      });
      await Promise.all(answers);
    });
  },

  'transactions and savepoints are kept or undone as told': async ({ fleet }) => {
    await using(fleet, { max: 4 }, async (sql) => {
      await sql`DROP TABLE IF EXISTS js_kept`;
      await sql`CREATE TABLE js_kept (n int)`;
      await sql.begin(async (tx) => {
        await tx`INSERT INTO js_kept VALUES (${1})`;
        await assert.rejects(
          tx.savepoint(async (inner) => {
            await inner`INSERT INTO js_kept VALUES (${2})`;
            await inner`SELECT 1/0`;
          }),
          { code: '22012' },
        );
        // Pipelined inside the transaction.
        await Promise.all([3, 4, 5].map((n) => tx`INSERT INTO js_kept VALUES (${n})`));
      });
      const undone = sql.begin(async (tx) => {
        await tx`INSERT INTO js_kept VALUES (${6})`;
        throw new Error('changed my mind');
      });
      await assert.rejects(undone, /changed my mind/);
      const rows = await sql`SELECT n FROM js_kept ORDER BY n`;
      assert.deepEqual(
        rows.map(({ n }) => n),
        [1, 3, 4, 5],
      );
      await Promise.all(
        Array.from({ length: 12 }, (_, n) =>
          sql.begin(async (tx) => {
            await tx`SELECT set_config('grid.caller', ${String(n)}, true)`;
            const [row] = await tx`SELECT current_setting('grid.caller') AS caller`;
            assert.equal(row?.['caller'], String(n));
          }),
        ),
      );
    });
  },

  'COPY streams rows in and out': async ({ fleet }) => {
    await using(fleet, { max: 2 }, async (sql) => {
      await sql`DROP TABLE IF EXISTS js_copied`;
      await sql`CREATE TABLE js_copied (n int, t text)`;
      const lines = Array.from(
        { length: 20_000 },
        (_, n) => `${n}\tline ${n}${'y'.repeat(n % 90)}\n`,
      );
      const chunks = Array.from({ length: 200 }, (_, n) =>
        lines.slice(n * 100, n * 100 + 100).join(''),
      );
      await pipeline(Readable.from(chunks), await sql`COPY js_copied FROM STDIN`.writable());
      assert.equal((await sql`SELECT count(*)::int AS n FROM js_copied`)[0]?.['n'], 20_000);
      const out = await sql`COPY (SELECT * FROM js_copied ORDER BY n) TO STDOUT`.readable();
      const received: Buffer[] = [];
      for await (const chunk of out) received.push(Buffer.from(chunk));
      assert.ok(Buffer.concat(received).toString() === lines.join(''));
      assert.equal((await sql`SELECT 1 AS n`)[0]?.['n'], 1);
    });
  },

  'a cursor hands its rows out in portions': async ({ fleet }) => {
    await using(fleet, { max: 1 }, async (sql) => {
      const portions: number[] = [];
      await sql`SELECT generate_series(1, ${1000}::int) AS n`.cursor(300, (rows) => {
        portions.push(rows.length);
      });
      assert.deepEqual(portions, [300, 300, 300, 100]);
      let seen = 0;
      for await (const [row] of sql`SELECT generate_series(1, 1000) AS n`.cursor(1)) {
        seen++;
        if (row?.['n'] === 10) break;
      }
      assert.equal(seen, 10);
      assert.equal((await sql`SELECT 1 AS n`)[0]?.['n'], 1);
    });
  },

  'a cancelled query fails with 57014 and its connection goes on': async ({ fleet, postgres }) => {
    await using(fleet, { max: 1 }, async (sql) => {
      const mark = `js cancel ${process.hrtime.bigint()}`;
      const sleeping = sql.unsafe(`SELECT pg_sleep(60) /* ${mark} */`);
      const failed = assert.rejects(sleeping.execute(), { code: '57014' });
      await until('the query runs', async () =>
        (await postgres.backends({ user: 'app' })).some(
          ({ state, query }) => state === 'active' && query.includes(mark),
        ),
      );
      sleeping.cancel();
      await failed;
      assert.equal((await sql`SELECT 1 AS n`)[0]?.['n'], 1);
    });
  },
};

onEveryFleet('postgres.js', RULES);

/** Runs `use` with a pool of connections to the fleet, and closes it. */
async function using(
  fleet: Place['fleet'],
  options: postgres.Options<Record<string, never>>,
  use: (sql: postgres.Sql) => Promise<void>,
): Promise<void> {
  const sql = postgres(fleet.url(), { onnotice: () => undefined, ...options });
  try {
    await use(sql);
  } finally {
    await sql.end({ timeout: 5 });
  }
}
