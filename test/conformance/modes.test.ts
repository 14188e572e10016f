/**
 * What works in which pool mode: one rule for each feature and mode. Where a feature does not work,
 * the rule shows what happens instead, which is what `session_leak` is there to find.
 */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import pg from 'pg';
import { ask, lastWords, linesOf } from '../support/dialogue.ts';
import {
  bind,
  COPY_DONE,
  copyData,
  describe,
  execute,
  int16,
  int32,
  message,
  parse,
  query,
  SYNC,
  textRows,
} from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type PlacedRule, type RulePlace, ruleSet } from '../support/rule-set.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient } from '../support/wire-client.ts';

const MODES = ['session', 'transaction', 'statement'] as const;
type Mode = (typeof MODES)[number];

/** A feature: its rules by mode. */
interface Feature {
  readonly name: string;
  readonly check: (place: RulePlace, mode: Mode) => Promise<void>;
}

let postgres: TestPostgres;
let direct: pg.Client;

before(async () => {
  postgres = await startPostgres();
  direct = new pg.Client({ connectionString: postgres.url('app') });
  await direct.connect();
  await direct.query('CREATE TABLE kept (n int); GRANT ALL ON kept TO public');
  await direct.query('CREATE ROLE other_role; GRANT other_role TO app');
  await direct.query('CREATE SEQUENCE counted; GRANT ALL ON counted TO public');
});

const enter = ({ pooler, database }: RulePlace): Promise<WireClient> =>
  WireClient.login(pooler, { database });

/** The first value of the answer. */
async function ask1(client: WireClient, sql: string): Promise<string | null | undefined> {
  const answer = await client.query(sql);
  assert.doesNotMatch(linesOf(answer), /E\(/, sql);
  return textRows(answer)[0]?.[0];
}

/** Runs `leave` in one client, and `look` in the next, which has the same server. */
async function inTurn(
  place: RulePlace,
  leave: (client: WireClient) => Promise<unknown>,
  look: (client: WireClient) => Promise<unknown>,
): Promise<void> {
  for (const step of [leave, look]) {
    const client = await enter(place);
    await step(client);
    await client.end();
  }
}

const BLOCKED = 'E(FATAL 08P01 transaction blocks not allowed in statement pooling mode)';

/** A block that is begun in statement mode ends the client. */
async function isBlocked(place: RulePlace, sql = 'BEGIN'): Promise<void> {
  const client = await enter(place);
  const words = await lastWords(client, [query(sql)]);
  assert.ok(words.endsWith(BLOCKED), words);
}

/**
 * Something that stays in the session: it lasts as long as the client in session mode, and is the next
 * client's too in the others.
 */
function staying(
  name: string,
  leave: string,
  look: string,
  [without, having]: readonly [string | null, string | null],
): Feature {
  return {
    name,
    check: async (place, mode) => {
      await inTurn(
        place,
        async (client) => {
          assert.equal(await ask1(client, look), without);
          await ask1(client, leave);
          assert.equal(await ask1(client, look), having);
        },
        async (client) => {
          assert.equal(await ask1(client, look), mode === 'session' ? without : having);
        },
      );
    },
  };
}

/** Something that lasts to the end of its transaction, and so in statement mode within a message only. */
function ofTransaction(
  name: string,
  begin: string,
  look: string,
  [without, having]: readonly [string | null, string | null],
): Feature {
  return {
    name,
    check: async (place, mode) => {
      if (mode === 'statement') await isBlocked(place, `BEGIN; ${begin}`);
      const client = await enter(place);
      if (mode !== 'statement') {
        await client.query('BEGIN');
        await ask1(client, begin);
        assert.equal(await ask1(client, look), having);
        await client.query('COMMIT');
        assert.equal(await ask1(client, look), without);
      }
      const rows = textRows(await client.query(`BEGIN; ${begin}; ${look}; COMMIT`));
      assert.equal(rows.at(-1)![0], having);
      assert.equal(await ask1(client, look), without);
      await client.end();
    },
  };
}

const TEMP = `SELECT to_regclass('pg_temp.mine')::text`;
const LOCKS = `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`;

const FEATURES: readonly Feature[] = [
  {
    name: 'single statements, simple and extended, work',
    check: async (place) => {
      const client = await enter(place);
      assert.equal(linesOf(await client.query('SELECT 1')), 'T D C Z:I');
      const parts = [
        parse('', 'SELECT $1::int'),
        bind({ values: ['2'] }),
        describe('P'),
        execute(),
      ];
      assert.deepEqual(textRows(await ask(client, [...parts, SYNC])), [['2']]);
      assert.equal(linesOf(await client.query('')), 'I Z:I');
      await client.end();
    },
  },
  {
    name: 'BEGIN … COMMIT over several messages keeps the server, and ends the client in statement mode',
    check: async (place, mode) => {
      if (mode === 'statement') {
        await isBlocked(place);
        await isBlocked(place, 'BEGIN; SELECT 1/0');
        return;
      }
      const client = await enter(place);
      assert.equal(linesOf(await client.query('BEGIN')), 'C Z:T');
      const first = await ask1(client, 'SELECT pg_backend_pid(), txid_current()');
      assert.equal(await ask1(client, 'SELECT pg_backend_pid()'), first);
      assert.match(linesOf(await client.query('SELECT 1/0')), /Z:E$/);
      assert.match(linesOf(await client.query('SELECT 1')), /25P02.* Z:E$/);
      assert.equal(linesOf(await client.query('COMMIT')), 'C Z:I');
      await client.end();
    },
  },
  {
    name: 'several statements in a simple query that ends outside a transaction work',
    check: async (place) => {
      const client = await enter(place);
      assert.equal(linesOf(await client.query('SELECT 1; SELECT 2')), 'T D C T D C Z:I');
      assert.equal(linesOf(await client.query('BEGIN; SELECT 1; COMMIT')), 'C T D C C Z:I');
      assert.equal(linesOf(await client.query('BEGIN; ROLLBACK; SELECT 1')), 'C C T D C Z:I');
      await client.end();
    },
  },
  {
    name: 'a pipeline over several Syncs is answered by one server',
    check: async (place) => {
      const client = await enter(place);
      const group = [parse('', 'SELECT pg_backend_pid()'), bind(), execute(), SYNC];
      const answer = await ask(client, [...group, ...group, query('SELECT pg_backend_pid()')], 3);
      assert.equal(linesOf(answer), '1 2 D C Z:I 1 2 D C Z:I T D C Z:I');
      assert.equal(new Set(textRows(answer).flat()).size, 1);
      await client.end();
    },
  },
  {
    name: 'a group of a pipeline that leaves a transaction open keeps the server, or ends the client',
    check: async (place, mode) => {
      const client = await enter(place);
      const begin = [parse('', 'BEGIN'), bind(), execute(), SYNC];
      if (mode === 'statement') {
        assert.ok((await lastWords(client, begin)).endsWith(BLOCKED));
        return;
      }
      const rest = [parse('', 'COMMIT'), bind(), execute(), SYNC];
      assert.equal(linesOf(await ask(client, [...begin, ...rest], 2)), '1 2 C Z:T 1 2 C Z:I');
      await client.end();
    },
  },
  {
    name: 'parameters that are tracked go with their client, set at the start or later',
    check: async (place, mode) => {
      const { pooler, database } = place;
      const named = (application_name: string): Promise<WireClient> =>
        WireClient.login(pooler, { database, parameters: { application_name } });
      const asked = async (client: WireClient): Promise<string> =>
        textRows(
          await client.query(
            "SELECT current_setting('application_name'), current_setting('TimeZone')",
          ),
        )[0]!.join();
      const one = await named('one');
      await one.query("SET TIME ZONE 'Asia/Tokyo'");
      assert.equal(await asked(one), 'one,Asia/Tokyo');
      if (mode === 'session') await one.end();
      const other = await named('other');
      assert.doesNotMatch(await asked(other), /one|Tokyo/);
      await other.query("SET application_name = 'renamed'");
      if (mode !== 'session') {
        assert.equal(await asked(one), 'one,Asia/Tokyo');
        await one.end();
      }
      assert.match(await asked(other), /^renamed,/);
      await other.end();
    },
  },
  staying(
    'SET of another parameter lasts for the client in session mode, and for all on the server else',
    "SET work_mem = '1234kB'",
    'SHOW work_mem',
    ['4MB', '1234kB'],
  ),
  staying(
    'SET ROLE lasts for the client in session mode, and for all on the server else',
    'SET ROLE other_role',
    'SELECT current_user::text',
    ['app', 'other_role'],
  ),
  ofTransaction(
    'SET LOCAL lasts for the transaction',
    "SET LOCAL work_mem = '1MB'",
    'SHOW work_mem',
    ['4MB', '1MB'],
  ),
  {
    name: 'LISTEN brings notifications in session mode; else only to who has the server by chance',
    check: async (place, mode) => {
      const channel = `news_${mode}`;
      const client = await enter(place);
      await client.query(`LISTEN ${channel}`);
      if (mode === 'session') {
        await direct.query(`NOTIFY ${channel}, 'now'`);
        assert.match((await client.next()).body.toString(), /now/);
        await client.end();
        return;
      }
      // The server hears of it while nobody has it, and what it says then is dropped.
      await direct.query(`NOTIFY ${channel}, 'lost'`);
      const other = await enter(place);
      const heard = linesOf(await other.query(`NOTIFY ${channel}, 'found'`));
      assert.match(heard, /\bA\b/, 'the other client hears what it did not ask for');
      assert.equal(linesOf(await client.query('SELECT 1')), 'T D C Z:I');
      await client.end();
      await other.end();
    },
  },
  {
    name: 'NOTIFY reaches those who listen',
    check: async (place, mode) => {
      const heard: string[] = [];
      const listen = (note: pg.Notification): number => heard.push(note.payload!);
      direct.on('notification', listen);
      await direct.query(`LISTEN told_${mode}`);
      const client = await enter(place);
      await client.query(`NOTIFY told_${mode}, 'simple'`);
      await ask(client, [parse('', `NOTIFY told_${mode}, 'extended'`), bind(), execute(), SYNC]);
      await until('both are heard', () => heard.length === 2);
      direct.off('notification', listen);
      await client.end();
    },
  },
  {
    name: 'a cursor lasts for its transaction',
    check: async (place, mode) => {
      const declare = 'DECLARE c CURSOR FOR SELECT generate_series(1, 3)';
      if (mode === 'statement') await isBlocked(place, `BEGIN; ${declare}`);
      const client = await enter(place);
      const all = await client.query(`BEGIN; ${declare}; FETCH 2 FROM c; COMMIT`);
      assert.deepEqual(textRows(all), [['1'], ['2']]);
      if (mode !== 'statement') {
        await client.query(`BEGIN; ${declare}`);
        assert.deepEqual(textRows(await client.query('FETCH 2 FROM c')), [['1'], ['2']]);
        assert.deepEqual(textRows(await client.query('FETCH 2 FROM c')), [['3']]);
        await client.query('COMMIT');
      }
      assert.match(linesOf(await client.query('FETCH c')), /34000/);
      await client.end();
    },
  },
  staying(
    'a cursor WITH HOLD lasts for the client in session mode, and for all on the server else',
    'BEGIN; DECLARE held CURSOR WITH HOLD FOR SELECT 1; COMMIT',
    'SELECT count(*) FROM pg_cursors',
    ['0', '1'],
  ),
  {
    name: 'an unnamed statement is lost behind Sync when another client uses the server',
    check: async (place, mode) => {
      const client = await enter(place);
      const run = [bind(), execute(), SYNC];
      await ask(client, [parse('', "SELECT 'mine'"), SYNC]);
      assert.deepEqual(textRows(await ask(client, run)), [['mine']]);
      if (mode !== 'session') {
        const other = await enter(place);
        await ask(other, [parse('', "SELECT 'other'"), SYNC]);
        assert.deepEqual(textRows(await ask(client, run)), [['other']]);
        await other.query('SELECT 1');
        const lost = 'E(ERROR 26000 unnamed prepared statement does not exist) Z:I';
        assert.equal(linesOf(await ask(client, run)), lost);
        await other.end();
      }
      await client.end();
    },
  },
  staying(
    'SQL PREPARE lasts for the client in session mode, and for all on the server else',
    'PREPARE prepared AS SELECT 1',
    "SELECT count(*) FROM pg_prepared_statements WHERE name = 'prepared'",
    ['0', '1'],
  ),
  {
    name: 'a portal ends with its transaction',
    check: async (place, mode) => {
      const client = await enter(place);
      const bound = [parse('', 'SELECT 1'), bind({ portal: 'p' })];
      assert.equal(linesOf(await ask(client, [...bound, SYNC])), '1 2 Z:I');
      const gone = 'E(ERROR 34000 portal "p" does not exist)';
      assert.equal(linesOf(await ask(client, [execute('p'), SYNC])), `${gone} Z:I`);
      if (mode !== 'statement') {
        await client.query('BEGIN');
        await ask(client, [...bound, SYNC]);
        assert.equal(linesOf(await ask(client, [execute('p'), SYNC])), 'D C Z:T');
        await client.query('COMMIT');
        assert.equal(linesOf(await ask(client, [execute('p'), SYNC])), `${gone} Z:I`);
      }
      await client.end();
    },
  },
  ofTransaction(
    'a temporary table ON COMMIT DROP lasts for the transaction',
    'CREATE TEMP TABLE mine (n int) ON COMMIT DROP',
    TEMP,
    [null, 'mine'],
  ),
  staying(
    'another temporary table lasts for the client in session mode, and for all on the server else',
    'CREATE TEMP TABLE mine (n int)',
    TEMP,
    [null, 'mine'],
  ),
  staying(
    'a session advisory lock is held for the client in session mode, and by the server else',
    'SELECT pg_advisory_lock(pg_backend_pid())',
    LOCKS,
    ['0', '1'],
  ),
  ofTransaction(
    'a transaction advisory lock is held for the transaction',
    'SELECT pg_advisory_xact_lock(pg_backend_pid())',
    LOCKS,
    ['0', '1'],
  ),
  {
    name: 'currval is that of the client in session mode, and of all on the server else',
    check: async (place, mode) => {
      await inTurn(
        place,
        async (client) => {
          const last = await ask1(client, "SELECT nextval('counted')");
          assert.equal(await ask1(client, "SELECT currval('counted')"), last);
        },
        async (client) => {
          const answer = linesOf(await client.query("SELECT currval('counted')"));
          if (mode === 'session') assert.match(answer, /E\(ERROR 55000 /);
          else assert.equal(answer, 'T D C Z:I');
        },
      );
    },
  },
  {
    name: 'what LOAD loads stays on the server, also when it is reset',
    check: async ({ pooler, database }) => {
      const asSuperuser = { database, user: 'postgres' };
      const look = "SELECT current_setting('auto_explain.log_min_duration', true)";
      const client = await WireClient.login(pooler, asSuperuser);
      assert.equal(await ask1(client, look), null);
      assert.equal(linesOf(await client.query("LOAD 'auto_explain'")), 'C Z:I');
      await client.end();
      const next = await WireClient.login(pooler, asSuperuser);
      assert.equal(await ask1(next, look), '-1');
      await next.end();
    },
  },
  {
    name: 'COPY works in both directions and protocols',
    check: async (place, mode) => {
      const client = await enter(place);
      const start = MODES.indexOf(mode) * 10;
      const data = Buffer.from(`${start + 1}\n${start + 2}\n`);
      client.send(query('COPY kept FROM STDIN'), copyData(data), COPY_DONE);
      assert.equal(linesOf(await client.untilReady()), 'G C Z:I');
      const extended = [parse('', 'COPY kept FROM STDIN'), bind(), execute()];
      client.send(...extended, copyData(Buffer.from(`${start + 3}\n`)), COPY_DONE, SYNC);
      assert.equal(linesOf(await client.untilReady()), '1 2 G C Z:I');
      const out = `COPY (SELECT n FROM kept WHERE n BETWEEN ${start} AND ${start + 9}) TO STDOUT`;
      assert.equal(linesOf(await client.query(out)), 'H d d d c C Z:I');
      const portal = [parse('', out), bind(), execute(), SYNC];
      assert.equal(linesOf(await ask(client, portal)), '1 2 H d d d c C Z:I');
      await direct.query('DELETE FROM kept');
      await client.end();
    },
  },
  {
    name: 'a fast-path function call works',
    check: async (place) => {
      const client = await enter(place);
      const [oid] = (await direct.query("SELECT 'int4pl'::regproc::oid::int AS oid")).rows;
      const argument = (text: string): Buffer =>
        Buffer.concat([int32(text.length), Buffer.from(text)]);
      const call = [int32(oid.oid), int16(0), int16(2), argument('2'), argument('3'), int16(0)];
      const answer = await ask(client, [message('F', call)]);
      assert.equal(linesOf(answer), 'V Z:I');
      assert.equal(answer[0]!.body.toString('latin1', 4), '5');
      await client.end();
    },
  },
  {
    name: 'a cancel request ends the running query',
    check: async (place) => {
      const client = await enter(place);
      client.send(query('SELECT pg_sleep(60)'));
      await until('the query runs', async () => {
        const { rows } = await direct.query(
          "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(60)'",
        );
        return rows.length === 1;
      });
      await sendCancel(place.pooler, client.key);
      const canceled = 'E(ERROR 57014 canceling statement due to user request) Z:I';
      const words = linesOf(await client.untilReady());
      assert.ok(words.endsWith(canceled), words);
      assert.equal(linesOf(await client.query('SELECT 1')), 'T D C Z:I');
      await client.end();
    },
  },
];

for (const mode of MODES) {
  ruleSet(
    `in ${mode} mode`,
    () => ({ postgres, settings: { pool_mode: mode } }),
    '1.18',
    FEATURES.map(({ name, check }): PlacedRule => ({ name, check: (place) => check(place, mode) })),
  );

  ruleSet(
    `in ${mode} mode with max_prepared_statements`,
    () => ({ postgres, settings: { pool_mode: mode, max_prepared_statements: 10 } }),
    '1.21',
    [
      {
        name: 'named statements of the protocol work',
        check: async (place) => {
          const client = await enter(place);
          assert.equal(linesOf(await ask(client, [parse('a', 'SELECT 1'), SYNC])), '1 Z:I');
          if (mode !== 'session') {
            const other = await enter(place);
            await ask(other, [parse('a', 'SELECT 2'), SYNC]);
            await other.end();
          }
          const run = [bind({ statement: 'a' }), execute(), SYNC];
          assert.deepEqual(textRows(await ask(client, run)), [['1']]);
          await client.end();
        },
      },
    ],
  );

  ruleSet(
    `in ${mode} mode with server_reset_query_always`,
    () => ({ postgres, settings: { pool_mode: mode, server_reset_query_always: 1 } }),
    '1.18',
    [
      {
        name: 'nothing stays on a server that was given back',
        check: async (place) => {
          const client = await enter(place);
          await client.query("SET work_mem = '1234kB'");
          const own = mode === 'session' ? '1234kB' : '4MB';
          assert.equal(await ask1(client, 'SHOW work_mem'), own);
          await client.end();
          const next = await enter(place);
          assert.equal(await ask1(next, 'SHOW work_mem'), '4MB');
          await next.end();
        },
      },
    ],
  );
}

test('the server of this file ends', async () => {
  await direct.end();
  await postgres.dispose();
});
