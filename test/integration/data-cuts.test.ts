import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { assertSame, bytesOf, range } from '../support/compare.ts';
import { type Cut, startCutProxy } from '../support/cut-proxy.ts';
import {
  bind,
  COPY_DONE,
  close,
  copyData,
  copyFail,
  describe,
  execute,
  FLUSH,
  parse,
  query,
  SYNC,
  typesOf,
  type WireMessage,
} from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { WireClient } from '../support/wire-client.ts';

/**
 * Streams that are cut anywhere, on both sides of the pooler and in both directions: what comes out
 * is what the server itself says to the same bytes.
 */

const isLong = process.env['PGFLEET_LONG'] === '1';

/** One exchange: what the client sends, and how many ReadyForQuery it brings. */
interface Exchange {
  readonly sent: Buffer;
  readonly readies: number;
}

/** Small ones: a byte at a time takes a millisecond for each. */
const SMALL: readonly Exchange[] = [
  { sent: query("SELECT 1; SELECT 'zwölf' AS t WHERE false; SELECT NULL"), readies: 1 },
  { sent: query(''), readies: 1 },
  { sent: query('SELECT nothing'), readies: 1 },
  { sent: query("DO $$ BEGIN RAISE NOTICE 'said'; END $$"), readies: 1 },
  {
    sent: Buffer.concat([
      ...[parse('named', 'SELECT $1::int, $2::text', [23, 25]), describe('S', 'named'), SYNC],
      ...[bind({ statement: 'named', values: ['7', null] }), execute(), SYNC],
    ]),
    readies: 2,
  },
  {
    sent: Buffer.concat([
      ...[bind({ portal: 'p', statement: 'named', values: ['8', 'x'], resultFormats: [1] })],
      ...[describe('P', 'p'), execute('p', 1), execute('p', 1), close('P', 'p'), SYNC],
    ]),
    readies: 1,
  },
  {
    sent: Buffer.concat([
      ...[parse('', 'SELECT 1 / $1::int'), bind({ values: ['0'] }), execute()],
      ...[bind({ statement: 'named', values: ['1', 'skipped'] }), execute(), SYNC],
      ...[close('S', 'named'), parse('named', 'SELECT 2'), FLUSH],
      ...[bind({ statement: 'named' }), execute(), SYNC],
    ]),
    readies: 2,
  },
  { sent: Buffer.concat([query('BEGIN'), query('SELECT 1/0'), query('ROLLBACK')]), readies: 3 },
  {
    sent: Buffer.concat([
      ...[query('CREATE TEMP TABLE cut (v text) ON COMMIT DROP'), query('BEGIN')],
      ...[query('CREATE TEMP TABLE cut (v text) ON COMMIT DROP')],
      ...[
        query('COPY cut FROM STDIN'),
        copyData(Buffer.from('a\nb')),
        copyData(Buffer.from('c\n')),
      ],
      ...[COPY_DONE, query('COPY cut TO STDOUT'), query('COPY cut FROM STDIN'), copyFail('no')],
      ...[query('ROLLBACK')],
    ]),
    readies: 7,
  },
];

/** Long ones, to be cut in the middle of bodies and of the names and heads in them. */
const LONG: readonly Exchange[] = [
  ...SMALL,
  { sent: query(`SELECT '${'q'.repeat(70_000)}'`), readies: 1 },
  { sent: query("SELECT n, repeat('r', n % 50) FROM generate_series(1, 3000) AS n"), readies: 1 },
  {
    sent: Buffer.concat([
      parse('long', `SELECT $1::bytea, $2::text /* ${'c'.repeat(30_000)} */`, [17, 25]),
      ...range(0, 20).flatMap((n) => [
        bind({
          statement: 'long',
          values: [bytesOf(n * 1_000), 't'.repeat(n)],
          formats: [1, 0],
          resultFormats: [1, 0],
        }),
        describe('P'),
        execute(),
      ]),
      SYNC,
    ]),
    readies: 1,
  },
  {
    sent: Buffer.concat([
      ...[query('BEGIN'), query('CREATE TEMP TABLE cut (v bytea) ON COMMIT DROP')],
      query('COPY cut FROM STDIN (FORMAT binary)'),
      copyData(Buffer.from('5047434f50590aff0d0a000000000000000000', 'hex')),
      ...range(1, 40).map((n) => {
        const head = Buffer.alloc(6);
        head.writeInt16BE(1);
        head.writeInt32BE(n * 300, 2);
        return copyData(Buffer.concat([head, bytesOf(n * 300)]));
      }),
      ...[copyData(Buffer.from('ffff', 'hex')), COPY_DONE],
      ...[query('COPY cut TO STDOUT (FORMAT binary)'), query('ROLLBACK')],
    ]),
    readies: 5,
  },
];

test('cut after every byte, on both sides and in both directions', async (t) => {
  const postgres = await started(t);
  await saysTheSame(postgres, SMALL, 'every byte');
});

test('cut at every offset of the first messages after the login', async (t) => {
  const postgres = await started(t);
  const exchanges = SMALL.slice(4, 7);
  for (const step of isLong ? [2, 3, 5, 7] : [3, 7]) {
    await saysTheSame(
      postgres,
      exchanges,
      range(0, 4_000).filter((at) => at % step === 0),
    );
  }
});

test('cut at seeded random offsets of a long stream', async (t) => {
  const postgres = await started(t);
  for (let round = 0; round < (isLong ? 20 : 2); round++) {
    const seed = (Date.now() + round) % 2 ** 31;
    t.diagnostic(`seed ${seed}`);
    let state = seed;
    const cuts = Array.from({ length: 1_500 }, () => {
      state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
      return state % 600_000;
    });
    await saysTheSame(postgres, LONG, cuts);
  }
});

test('cut every two thousand bytes of a long stream, from shifting offsets on', async (t) => {
  const postgres = await started(t);
  for (const offset of isLong ? range(1, 12) : [1, 6]) {
    const cuts = range(0, 300).map((n) => n * 1_999 + offset);
    await saysTheSame(postgres, LONG, cuts);
  }
});

async function started(t: TestContext): Promise<TestPostgres> {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  return postgres;
}

/** Says `exchanges` to the server itself and through a fleet between two proxies that cut. */
async function saysTheSame(
  postgres: TestPostgres,
  exchanges: readonly Exchange[],
  cut: Cut,
): Promise<void> {
  const options = { toServer: cut, toClient: cut, pauseMs: 0 };
  const behind = await startCutProxy({ ...options, target: postgres });
  const fleet = await startPgfleet({
    postgres: behind,
    size: 2,
    settings: { default_pool_size: 4, query_wait_timeout: 60 },
  });
  const before = await startCutProxy({ ...options, target: fleet });
  const direct = await WireClient.login(postgres);
  try {
    const wanted = await says(direct, exchanges);
    const pooled = await WireClient.login(before);
    try {
      const found = await says(pooled, exchanges);
      for (const [index, messages] of wanted.entries()) {
        assertSame(found[index]!, messages, `exchange ${index}`);
      }
      assert.equal(typesOf(await pooled.query('SELECT 1')), 'T D C Z:I');
      await pooled.end();
    } finally {
      pooled.destroy();
    }
    await direct.end();
  } finally {
    direct.destroy();
    await before.stop();
    await fleet.stop();
    await behind.stop();
  }
}

async function says(client: WireClient, exchanges: readonly Exchange[]): Promise<WireMessage[][]> {
  const answers: WireMessage[][] = [];
  for (const { sent, readies } of exchanges) {
    client.send(sent);
    const received: WireMessage[] = [];
    for (let left = readies; left > 0; left--) received.push(...(await client.untilReady(60_000)));
    answers.push(received);
  }
  return answers;
}
