import assert from 'node:assert/strict';
import { test } from 'node:test';
import { leaksIn } from '../../../src/client/session-leak.ts';
import { LEAK_KINDS } from '../../../src/metrics/session-leaks.ts';

const TRACKED = new Set(['timezone', 'client_encoding', 'application_name', 'datestyle']);

function kindsOf(sql: string, hasBackslashes = false): string {
  const bytes = Buffer.from(`before${sql}\0behind pg_advisory_lock(1)`);
  const end = 6 + Buffer.byteLength(sql);
  const leaks = leaksIn(bytes, 6, end, hasBackslashes, (name) => TRACKED.has(name));
  return LEAK_KINDS.filter((_, kind) => (leaks & (1 << kind)) !== 0).join(' ');
}

const LEAKS: Readonly<Record<string, readonly string[]>> = {
  prepare: [
    'PREPARE transaction AS SELECT 1',
    'PREPARE transaction (int) AS SELECT 1',
    'PREPARE a AS SELECT 1',
    'prepare "transaction" as select 1',
    ' ; Prepare a(int) AS x',
  ],
  listen: [
    'LISTEN a',
    'select 1; listen "b"',
    '/* /* nested */ */ -- line\n listen a',
    'LISTEN\ta',
  ],
  advisory_lock: [
    'SELECT pg_advisory_lock(1)',
    'select PG_ADVISORY_LOCK (1, 2)',
    'SELECT pg_try_advisory_lock(1) FROM t',
    'SELECT pg_catalog.pg_advisory_lock_shared(1)',
    'EXPLAIN (ANALYZE) (SELECT pg_advisory_lock(1))',
    'WITH a AS (SELECT "pg_try_advisory_lock_shared"(1)) SELECT * FROM a',
    "SELECT 'a', $1, $x$ text $x$, E'\\'', pg_advisory_lock(1)",
    'SELECT U&"pg\\005fadvisory_lock"(1)',
    'SELECT pg_catalog.u&"pg!005fadvisory!+00005Flock" /* a */ UESCAPE \'!\' (1)',
    "SELECT 'a' -- it's\n 'b', pg_advisory_lock(1)",
    "SELECT E'a\\''\n'b\\'', pg_advisory_lock(1) --'",
    "SELECT E'a' -- 'b'\n -- c\n'\\'', pg_advisory_lock(1)",
    "SELECT E'a' 'b\\', pg_advisory_lock(1), 'c'",
    "SELECT E'a' /* \n */ 'b\\', pg_advisory_lock(1), 'c'",
    'ALTER TABLE t ALTER a TYPE bool USING pg_try_advisory_lock(a)',
    'ALTER TABLE t ADD b bool DEFAULT pg_try_advisory_lock(1)',
    'ALTER TABLE t ADD CHECK (pg_try_advisory_lock(a))',
    'ALTER DOMAIN d ADD CHECK (pg_try_advisory_lock(value))',
    'CREATE TABLE a AS SELECT pg_advisory_lock(1)',
    'CREATE TEMP TABLE a (b) ON COMMIT DROP AS SELECT pg_try_advisory_lock(1)',
    'CREATE MATERIALIZED VIEW a AS SELECT pg_try_advisory_lock(1)',
    'EXPLAIN ANALYZE CREATE TABLE a AS SELECT pg_try_advisory_lock(1)',
  ],
  temp_table: [
    'CREATE TEMP TABLE a (b int)',
    'create temporary table if not exists a as select 1',
    'CREATE LOCAL TEMP TABLE a () ON COMMIT DELETE ROWS',
    'CREATE GLOBAL TEMPORARY TABLE a () ON COMMIT PRESERVE ROWS',
    'CREATE TEMP VIEW a AS SELECT 1',
    'CREATE OR REPLACE TEMP VIEW a AS SELECT 1',
    'CREATE TEMP SEQUENCE a',
    'CREATE TABLE pg_temp.a (b int)',
    'CREATE TABLE IF NOT EXISTS pg_temp.a (b int)',
    'CREATE VIEW pg_temp.a AS SELECT 1',
    'CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1',
    'SELECT 1 AS b INTO pg_temp.a',
    'SELECT 1 AS b INTO U&"pg_temp".a',
    'CREATE TABLE U&"pg\\005f\\0074emp".a (b int)',
    'CREATE VIEW U&"pg\\\\temp" UESCAPE \'!\'.b AS SELECT 1; CREATE TEMP VIEW a AS SELECT 1',
    'SELECT 1 AS b INTO TEMP a',
    'SELECT * INTO TEMPORARY TABLE a FROM t',
    'SELECT 1 AS b INTO LOCAL TEMP a',
    'EXPLAIN ANALYZE VERBOSE CREATE TEMP TABLE a AS SELECT 1',
    'EXPLAIN (COSTS off, ANALYZE) CREATE TABLE pg_temp.a AS SELECT 1',
    'CREATE TEMP TABLE a (b int) /* ON COMMIT DROP */',
    "CREATE TEMP TABLE a (b text DEFAULT 'ON COMMIT DROP')",
  ],
  set: [
    'SET search_path = a',
    "SELECT set_config('search_path', '', false)",
    "SELECT set_config('search_path', '', NULL)",
    "SELECT U&\"set\\005fconfig\"(U&'work\\005Fmem', '1MB', false)",
    "SELECT set_config('work_mem', '1MB', E'\\x66')",
    "SELECT set_config('work_mem', '1MB', 'fal'\n'se')",
    'SELECT set_config($$work_mem$$, $$1MB$$, $a$no$a$)',
    'SET U&"work\\005fmem" = 1',
    "SELECT set_config('work_mem', '1MB', false::bool)",
    "SELECT set_config('work_mem', '1MB', (false))",
    "SELECT set_config('work_mem', '1MB', cast('no' AS bool))",
    "SELECT set_config('TimeZone', set_config('work_mem', '1MB', false), true)",
    "SELECT pg_catalog.set_config('work_mem', lower('1MB'), 'f'), 1",
    'SET SESSION work_mem TO 1',
    'set a.b = 1',
    "SET SCHEMA 'a'",
    'SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY',
    'BEGIN; SET statement_timeout = 1; COMMIT',
    "SET work_mem = '1MB';SET timezone = 'UTC'",
  ],
  role: ['SET ROLE a', 'set session role a', 'SET SESSION AUTHORIZATION a', 'SET ROLE "none"'],
  hold_cursor: [
    'DECLARE a CURSOR WITH HOLD FOR SELECT 1',
    'DECLARE a INSENSITIVE SCROLL CURSOR WITH HOLD FOR TABLE t',
  ],
  load: ["LOAD 'auto_explain'"],
  'prepare listen': ['PREPARE a AS SELECT 1; LISTEN b'],
  'advisory_lock hold_cursor': ['DECLARE a CURSOR FOR SELECT pg_advisory_lock(1); '].map((sql) =>
    sql.replace('CURSOR', 'CURSOR WITH HOLD'),
  ),
};

for (const [kinds, statements] of Object.entries(LEAKS)) {
  for (const sql of statements) {
    test(`found as ${kinds}: ${sql}`, () => assert.equal(kindsOf(sql), kinds));
  }
}

const HARMLESS = [
  '',
  ';;;',
  '--',
  '/* LISTEN a',
  "'",
  '"',
  '$$',
  'SELECT 1',
  'UNLISTEN a',
  'NOTIFY a',
  "PREPARE TRANSACTION 'a'",
  'EXECUTE a',
  'DEALLOCATE a',
  "SELECT 'LISTEN a; LISTEN b'",
  "SELECT 'it''s; LISTEN b'",
  "SELECT E'\\'; LISTEN b'",
  "SELECT e'\\\\'';LISTEN b'",
  'SELECT ";LISTEN a" FROM t',
  'SELECT "a"";LISTEN a" FROM t',
  'SELECT $$; LISTEN a$$',
  'SELECT $a$; LISTEN a $$ ; LISTEN b $a$',
  'SELECT 1 -- ; LISTEN a',
  'SELECT 1 /* ; LISTEN a; /* */ LISTEN b */',
  'DO $$BEGIN PERFORM pg_advisory_lock(1); END$$',
  'SELECT pg_advisory_unlock(1)',
  'SELECT pg_advisory_xact_lock(1), pg_try_advisory_xact_lock_shared(1)',
  'SELECT pg_advisory_lock FROM t',
  "SELECT 'pg_advisory_lock(1)'",
  'SELECT my_pg_advisory_lock(1)',
  'SELECT "PG_ADVISORY_LOCK"(1)',
  "CREATE FUNCTION f() RETURNS void AS 'SELECT pg_advisory_lock(1)' LANGUAGE sql",
  'CREATE FUNCTION f() RETURNS void BEGIN ATOMIC SELECT pg_advisory_lock(1); SELECT 1; END',
  'CREATE VIEW v AS SELECT pg_advisory_lock(1)',
  'CREATE TABLE a (b bool DEFAULT pg_try_advisory_lock(1))',
  'CREATE TABLE a (b int, c bool GENERATED ALWAYS AS (pg_try_advisory_lock(b)) STORED)',
  'ALTER TABLE t ALTER a SET DEFAULT pg_try_advisory_lock(1)',
  'ALTER POLICY p ON t USING (pg_try_advisory_lock(1))',
  'ALTER FUNCTION f SET work_mem = 1',
  'SELECT U&"pg\\005fadvisory_lock" FROM t',
  'SELECT \'U&"pg_advisory_lock"(1)\'',
  'SELECT U&"pg\\005fadvisory\\005flock" UESCAPE \'!\' (1)',
  "SELECT E'a'\n'b\\'; LISTEN a; --'",
  "SELECT E'a'\r\t-- '\n\f'b\\'; LISTEN a; --'",
  "SELECT 'a'\n';LISTEN a'",
  "SELECT U&'\\'; --\n",
  "SELECT U&';LISTEN a'",
  'CREATE TABLE a (b int)',
  'CREATE TABLE temp (b int)',
  'CREATE TEMP TABLE a (b int) ON COMMIT DROP',
  'CREATE TEMP TABLE a ON COMMIT DROP AS SELECT 1',
  'INSERT INTO temp SELECT 1',
  'INSERT INTO temp (a) VALUES (1)',
  'INSERT INTO temp AS t VALUES (1)',
  'MERGE INTO temp t USING s ON true WHEN MATCHED THEN DELETE',
  'SELECT * INTO temp FROM t',
  'SELECT 1 INTO temp',
  'SELECT temp, set, listen FROM temp',
  'SET LOCAL search_path = a',
  'SET TRANSACTION ISOLATION LEVEL SERIALIZABLE',
  'SET CONSTRAINTS ALL DEFERRED',
  "SET timezone = 'UTC'",
  "SET SESSION TimeZone TO 'UTC'",
  "SET TIME ZONE 'UTC'",
  "SET NAMES 'UTF8'",
  'SET "DateStyle" = \'ISO\'',
  'SET application_name TO a',
  'RESET search_path',
  'SET search_path TO DEFAULT',
  'SET a.b = default',
  'SET ROLE NONE',
  'SET SESSION AUTHORIZATION DEFAULT',
  "SELECT set_config('search_path', '', true)",
  "SELECT set_config('work_mem', (SELECT a FROM b WHERE NOT c), true)",
  "SELECT set_config('TimeZone', 'UTC', false)",
  "SELECT set_config(E'Time\\x5aone', 'UTC', false)",
  "SELECT set_config(U&'Time!005aone' UESCAPE '!', 'UTC', false)",
  "SELECT set_config('Time'\n'Zone', 'UTC', false)",
  'SET U&"Time\\005aone" = 1',
  "SELECT set_config('search_path', (SELECT a FROM b WHERE c = false), $1)",
  'SELECT set_config FROM t WHERE false',
  'SELECT * FROM pg_temp.a',
  'INSERT INTO pg_temp.a SELECT 1',
  'CREATE INDEX a ON pg_temp.b (c)',
  'CREATE VIEW v AS SELECT * FROM pg_temp.a',
  'UPDATE t SET search_path = 1',
  'ALTER ROLE a SET search_path = b',
  'DECLARE a CURSOR FOR SELECT 1',
  'DECLARE a CURSOR WITHOUT HOLD FOR SELECT 1',
  'DECLARE a CURSOR FOR WITH hold AS (SELECT 1) SELECT * FROM hold',
];

for (const sql of HARMLESS) {
  test(`not found in: ${sql}`, () => assert.equal(kindsOf(sql), ''));
}

test('with standard_conforming_strings off a backslash in any string escapes', () => {
  assert.equal(kindsOf("SELECT '\\'; LISTEN a; --'", true), '');
  assert.equal(kindsOf("SELECT '\\'; LISTEN a; --'"), 'listen');
});

test('no cut of a text makes the scanner read past its end or find what is behind it', () => {
  const texts = [...Object.values(LEAKS).flat(), ...HARMLESS];
  for (const sql of texts) {
    for (let size = 0; size <= sql.length; size++) {
      const cut = sql.slice(0, size);
      if (!/advisory.*lock/is.test(cut)) {
        assert.ok(!kindsOf(cut).includes('advisory_lock'), cut);
      }
    }
  }
});

test('calls of set_config in the arguments of others take no quadratic time', () => {
  const counted = (sql: string): number => {
    const bytes = Buffer.from(sql);
    let asked = 0;
    leaksIn(bytes, 0, bytes.length, false, () => ++asked > 0);
    return asked;
  };
  const nested = (depth: number): string => {
    return `SELECT ${"set_config('a', ".repeat(depth)}'b'${', false)'.repeat(depth)}`;
  };
  assert.equal(counted(nested(20)), 20);
  const begin = performance.now();
  assert.ok(counted(nested(10_000)) <= 32, 'the innermost ones are looked at');
  assert.equal(counted(`SELECT ${'set_config('.repeat(20_000)}`), 0);
  // Without a bound it is a hundred times as long.
  assert.ok(performance.now() - begin < 5_000);
});
