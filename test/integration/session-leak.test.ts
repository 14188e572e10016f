import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { ask, linesOf } from '../support/dialogue.ts';
import {
  bind,
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
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { WireClient } from '../support/wire-client.ts';

/** `session_leak`: statements that leave something in the session of a server that clients share. */

let postgres: TestPostgres;
let fleet: TestPgfleet;

const REFUSED = /would leave session state on a server that other clients use/;

before(async () => {
  postgres = await startPostgres();
  const settings = 'dbname=app pool_size=1';
  fleet = await startPgfleet({
    postgres,
    databases: {
      plain: settings,
      warned: `${settings} session_leak=warn`,
      rejected: `${settings} session_leak=reject`,
      own: `${settings} session_leak=reject pool_mode=session`,
      bare: `${settings} session_leak=reject`,
    },
    settings: { max_prepared_statements: 100 },
  });
  fleet.allowLog(REFUSED);
});

const enter = (database: string): Promise<WireClient> => WireClient.login(fleet, { database });

/** `linesOf` with the refusal's text cut out. */
const linesWith = (messages: Parameters<typeof linesOf>[0]): string =>
  linesOf(messages).replaceAll(/E\(ERROR 0A000 (.*?) would leave [^)]*\(session_leak\)\)/g, '<$1>');

async function leaksOf(database: string): Promise<Record<string, number>> {
  const rows = await fleet.console('SHOW SESSION_LEAKS');
  const {
    database: _,
    session_leak,
    ...counts
  } = rows.find((row) => row['database'] === database)!;
  assert.equal(session_leak, { plain: 'allow', warned: 'warn' }[database] ?? 'reject');
  const found = Object.entries(counts).filter(([, count]) => count !== '0');
  return Object.fromEntries(found.map(([kind, count]) => [kind, Number(count)]));
}

const LEAKS: readonly (readonly [string, string, string])[] = [
  ['prepare', 'PREPARE', 'PREPARE p AS SELECT 1'],
  ['listen', 'LISTEN', 'LISTEN news'],
  ['advisory_lock', 'a session-level advisory lock', 'SELECT pg_advisory_lock(pg_backend_pid())'],
  ['temp_table', 'a temporary table without ON COMMIT DROP', 'CREATE TEMP TABLE leak (a int)'],
  ['set', 'SET without LOCAL', "SET work_mem = '1MB'"],
  ['role', 'SET ROLE', 'SET ROLE app'],
  ['hold_cursor', 'a cursor WITH HOLD', 'BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT'],
  ['load', 'LOAD', "LOAD 'plpgsql'"],
];

test('allow, the default, lets all through and counts nothing', async () => {
  const client = await enter('plain');
  for (const [, , sql] of LEAKS.filter(([kind]) => kind !== 'load')) {
    assert.doesNotMatch(linesOf(await client.query(sql)), /E\(/, sql);
  }
  await client.end();
  assert.deepEqual(await leaksOf('plain'), {});
});

test('warn lets all through, counts each and logs each kind once for a client', async () => {
  const client = await enter('warned');
  for (const [, name, sql] of LEAKS.filter(([kind]) => kind !== 'load')) {
    assert.doesNotMatch(linesOf(await client.query(sql)), /E\(/, sql);
    assert.ok(fleet.log().includes(`WARNING C-`), sql);
    assert.ok(fleet.log().includes(`${name} would leave session state`), sql);
  }
  const lines = fleet.log().split('LISTEN would leave').length;
  await client.query('LISTEN more');
  const extended = [parse('', 'LISTEN extended'), bind({}), execute(), SYNC];
  assert.equal(linesOf(await ask(client, extended)), '1 2 C Z:I');
  const named = [parse('n', 'LISTEN named'), bind({ statement: 'n' }), execute(), SYNC];
  assert.equal(linesOf(await ask(client, named)), '1 2 C Z:I');
  assert.equal(fleet.log().split('LISTEN would leave').length, lines);
  assert.deepEqual(
    textRows(await client.query('SELECT pg_listening_channels()'))
      .flat()
      .sort(),
    ['extended', 'more', 'named', 'news'],
  );
  await client.end();
  const once = LEAKS.filter(([kind]) => kind !== 'load').map(([kind]) => [kind, 1]);
  assert.deepEqual(await leaksOf('warned'), { ...Object.fromEntries(once), listen: 4 });
});

for (const [kind, name, sql] of LEAKS) {
  test(`reject refuses ${name} in both protocols, and nothing of it reaches the server`, async () => {
    const client = await enter('rejected');
    const before = (await leaksOf('rejected'))[kind] ?? 0;
    assert.equal(linesWith(await client.query(sql)), `<${name}> Z:I`);
    assert.equal(linesWith(await client.query(`SELECT 1; ${sql}`)), `<${name}> Z:I`);
    if (!sql.includes(';')) {
      for (const statement of ['', 'named']) {
        const parts = [parse(statement, sql), describe('S', statement), bind({ statement }), SYNC];
        assert.equal(linesWith(await ask(client, parts)), `<${name}> Z:I`);
      }
    }
    assert.equal((await leaksOf('rejected'))[kind], before + (sql.includes(';') ? 2 : 4));
    assert.equal(linesOf(await client.query('SELECT 1')), 'T D C Z:I');
    await client.end();
  });
}

/** A FunctionCall; the arguments as text or, bytes, in binary. */
function call(oid: number, values: readonly (string | Buffer | null)[]): Buffer {
  const args = values.flatMap((value) => {
    if (value === null) return [int32(-1)];
    return [int32(value.length), Buffer.from(value)];
  });
  const formats = values.map((value) => int16(Buffer.isBuffer(value) ? 1 : 0));
  const counted = (parts: readonly (string | Buffer)[]) => [int16(values.length), ...parts];
  return message('F', [int32(oid), ...counted(formats), ...counted(args), int16(0)]);
}

/** OIDs as pg_proc has them. */
const PG_ADVISORY_LOCK = 2880;
const PG_TRY_ADVISORY_LOCK_SHARED_OF_TWO = 2889;
const SET_CONFIG = 2078;
const LO_CREAT = 957;

test('a FunctionCall of what leaves something behind is found like a statement', async () => {
  const calls: readonly (readonly [string, Buffer])[] = [
    ['a session-level advisory lock', call(PG_ADVISORY_LOCK, ['4711'])],
    [
      'a session-level advisory lock',
      call(PG_TRY_ADVISORY_LOCK_SHARED_OF_TWO, [int32(1), int32(2)]),
    ],
    ['SET without LOCAL', call(SET_CONFIG, ['work_mem', '1MB', 'false'])],
    ['SET without LOCAL', call(SET_CONFIG, ['work_mem', '1MB', Buffer.of(0)])],
    ['SET without LOCAL', call(SET_CONFIG, ['work_mem', '1MB', null])],
  ];
  const client = await enter('rejected');
  const warned = await enter('warned');
  const before = await leaksOf('warned');
  for (const [name, bytes] of calls) {
    assert.equal(linesWith(await ask(client, [bytes])), `<${name}> Z:I`);
    // A call that comes in pieces is judged once.
    warned.send(bytes.subarray(0, 7));
    await new Promise(setImmediate);
    assert.equal(linesOf(await ask(warned, [bytes.subarray(7)])), 'V Z:I');
  }
  const { advisory_lock, set } = await leaksOf('warned');
  assert.deepEqual([advisory_lock, set], [before['advisory_lock']! + 2, before['set']! + 3]);
  for (const bytes of [
    call(SET_CONFIG, ['work_mem', '1MB', 'true']),
    call(SET_CONFIG, ['work_mem', '1MB', Buffer.of(1)]),
    call(SET_CONFIG, ['TimeZone', 'UTC', 'f']),
    call(LO_CREAT, ['393216']),
  ]) {
    assert.equal(linesOf(await ask(client, [bytes])), 'V Z:I');
  }
  assert.match(linesOf(await ask(client, [message('F', [int32(SET_CONFIG)])])), /^E\(/);
  await client.end();
  await warned.query('SELECT pg_advisory_unlock_all(); RESET work_mem');
  await warned.end();
});

test('what was refused has left nothing behind', async () => {
  const client = await enter('rejected');
  const rows = await client.query(
    `SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors),
            (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), to_regclass('pg_temp.leak'),
            (SELECT count(*) FROM pg_listening_channels()), current_setting('work_mem')`,
  );
  assert.deepEqual(textRows(rows), [['0', '0', '0', null, '0', '4MB']]);
  await client.end();
});

test('a refusal comes in its turn, ends its group and aborts the transaction', async () => {
  const client = await enter('rejected');
  const run = (text: string): Buffer => Buffer.concat([parse('', text), bind({}), execute()]);
  const listen = run('LISTEN a');
  assert.equal(
    linesWith(
      await ask(client, [run('SELECT 1'), listen, run('SELECT 2'), SYNC, run('SELECT 3'), SYNC], 2),
    ),
    '1 2 D C <LISTEN> Z:I 1 2 D C Z:I',
  );
  assert.equal(
    linesWith(await ask(client, [query('BEGIN'), query('LISTEN a')], 2)),
    'C Z:T <LISTEN> Z:E',
  );
  const aborted =
    'E(ERROR 25P02 current transaction is aborted, commands ignored until end of transaction block)';
  assert.equal(linesOf(await client.query('SELECT 1')), `${aborted} Z:E`);
  // What is refused is refused there too.
  assert.equal(linesWith(await client.query('LISTEN a')), '<LISTEN> Z:E');
  assert.equal(linesOf(await client.query('ROLLBACK')), 'C Z:I');
  // Behind an error in its group it is ignored, as the server does.
  const division = 'E(ERROR 22012 division by zero)';
  assert.equal(
    linesWith(await ask(client, [run('SELECT 1/0'), listen, SYNC])),
    `1 ${division} Z:I`,
  );
  assert.equal(linesOf(await client.query('SELECT 1')), 'T D C Z:I');
  await client.end();
});

test('a name whose Parse was refused is free', async () => {
  const client = await enter('rejected');
  assert.equal(linesWith(await ask(client, [parse('a', 'LISTEN a'), SYNC])), '<LISTEN> Z:I');
  const parts = [parse('a', 'SELECT 1'), bind({ statement: 'a' }), execute(), SYNC];
  assert.equal(linesOf(await ask(client, parts)), '1 2 D C Z:I');
  await client.end();
});

test('what leaves nothing behind is not refused', async () => {
  const client = await enter('rejected');
  for (const sql of [
    "BEGIN; SET LOCAL work_mem = '1MB'; CREATE TEMP TABLE gone (a int) ON COMMIT DROP; COMMIT",
    "SET application_name = 'carried'",
    "SET TIME ZONE 'UTC'",
    'RESET work_mem',
    'NOTIFY news',
    "SELECT pg_advisory_xact_lock(1), 'LISTEN a; PREPARE b'",
    'UNLISTEN *',
    'DEALLOCATE ALL',
    'DISCARD ALL',
  ]) {
    assert.doesNotMatch(linesOf(await client.query(sql)), /E\(/, sql);
  }
  await client.end();
});

test('in session mode nothing is refused, for the session is the client’s own', async () => {
  const client = await enter('own');
  for (const [, , sql] of LEAKS.filter(([kind]) => kind !== 'load')) {
    assert.doesNotMatch(linesOf(await client.query(sql)), /E\(/, sql);
  }
  await client.end();
  assert.deepEqual(await leaksOf('own'), {});
});

test('a text that comes in pieces, or is longer than what is looked at, is judged once', async () => {
  const client = await enter('bare');
  const listen = query(`/* ${'x'.repeat(100_000)} */ LISTEN a`);
  for (let at = 0; at < listen.length; at += 9_999) {
    client.send(listen.subarray(at, at + 9_999));
    await new Promise(setImmediate);
  }
  assert.equal(linesWith(await client.untilReady()), '<LISTEN> Z:I');
  assert.deepEqual(await leaksOf('bare'), { listen: 1 });
  const long = `LISTEN a; SELECT '${'x'.repeat(1_000_000)}'`;
  assert.equal(linesWith(await client.query(long)), '<LISTEN> Z:I');
  assert.deepEqual(await leaksOf('bare'), { listen: 2 });
  // 256 KB are looked at.
  assert.equal(
    linesOf(await client.query(`SELECT '${'x'.repeat(300_000)}'; NOTIFY a`)),
    'T D C C Z:I',
  );
  await client.end();

  const warned = await enter('warned');
  const old = (await leaksOf('warned'))['listen']!;
  assert.equal(linesOf(await warned.query(long)), 'C T D C Z:I');
  const parts = [parse('big', `LISTEN big ${' '.repeat(400_000)}`), SYNC];
  assert.equal(linesOf(await ask(warned, parts)), '1 Z:I');
  assert.equal((await leaksOf('warned'))['listen'], old + 2);
  await warned.end();
});

test('the fleet and the server of this file end', async () => {
  await fleet.stop();
  await postgres.dispose();
});
