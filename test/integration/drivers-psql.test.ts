import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { onEveryFleet, type Place, type Rules } from '../support/grid.ts';
import { clientProgram } from '../support/postgres-files.ts';
import { type Ended, type ProgramOptions, runProgram } from '../support/programs.ts';
import { until } from '../support/until.ts';

/** Debian's psql, version 15. */

const RULES: Rules = {
  'the describing commands show tables, roles and databases': async ({ fleet }) => {
    const set = await psql(
      fleet,
      [],
      `DROP TABLE IF EXISTS psql_described CASCADE;
       CREATE TABLE psql_described (id serial PRIMARY KEY, name text NOT NULL DEFAULT 'n');
       CREATE VIEW psql_view AS SELECT name FROM psql_described;
       \\d psql_described
       \\d+ psql_view
       \\dt
       \\du
       \\l
       \\df pg_sleep
       \\conninfo`,
    );
    assert.equal(set.status, 0, set.stderr);
    assert.match(set.stdout, /Table "public\.psql_described"/);
    assert.match(set.stdout, /"psql_described_pkey" PRIMARY KEY, btree \(id\)/);
    assert.match(set.stdout, /View "public\.psql_view"/);
    assert.match(set.stdout, /app_md5/);
    assert.match(set.stdout, /pg_sleep/);
    assert.match(set.stdout, new RegExp(`You are connected to database "app" .* "${fleet.port}"`));
  },

  'several statements in one string are one transaction, several -c are not': async ({ fleet }) => {
    await rows(fleet, 'DROP TABLE IF EXISTS psql_many; CREATE TABLE psql_many (n int)');
    const failed = await psql(fleet, ['-c', 'INSERT INTO psql_many VALUES (1); SELECT 1/0']);
    assert.equal(failed.status, 1);
    assert.match(failed.stderr, /ERROR: {2}division by zero/);
    assert.equal(await rows(fleet, 'SELECT count(*) FROM psql_many'), '0');
    const apart = ['-c', 'INSERT INTO psql_many VALUES (2)', '-c', 'SELECT 1/0'];
    assert.equal((await psql(fleet, apart)).status, 1);
    assert.equal(await rows(fleet, 'SELECT n FROM psql_many'), '2');
    assert.equal(await rows(fleet, "SELECT 1; SELECT 'two'; SELECT 3"), '1\ntwo\n3');
  },

  'errors stop a script or not as told, and -1 undoes all of it': async ({ fleet }) => {
    const script = `DROP TABLE IF EXISTS psql_undone;
      CREATE TABLE psql_undone (n int);
      INSERT INTO psql_undone VALUES (1);
      SELECT nothing;
      INSERT INTO psql_undone VALUES (2);
      SELECT 'end of the script';`;
    const going = await psql(fleet, [], script);
    assert.equal(going.status, 0);
    assert.match(going.stderr, /column "nothing" does not exist/);
    assert.match(going.stdout, /end of the script/);
    assert.equal(await rows(fleet, 'SELECT sum(n) FROM psql_undone'), '3');
    const stopped = await psql(fleet, ['-v', 'ON_ERROR_STOP=1', '-f', '-'], script);
    assert.equal(stopped.status, 3);
    assert.doesNotMatch(stopped.stdout, /end of the script/);
    assert.equal(await rows(fleet, 'SELECT sum(n) FROM psql_undone'), '1');
    const whole = await psql(
      fleet,
      ['-1', '-v', 'ON_ERROR_STOP=1', '-f', '-'],
      script.replace('INSERT', 'INSERT INTO psql_undone VALUES (40); INSERT'),
    );
    assert.equal(whole.status, 3);
    assert.equal(await rows(fleet, 'SELECT sum(n) FROM psql_undone'), '1');
    const kept = await psql(fleet, ['-1', '-f', '-'], 'INSERT INTO psql_undone VALUES (6);');
    assert.equal(kept.status, 0, kept.stderr);
    assert.equal(await rows(fleet, 'SELECT sum(n) FROM psql_undone'), '7');
  },

  'an error inside a transaction lasts until its end, or back to a savepoint': async ({
    fleet,
  }) => {
    const { stdout, stderr } = await psql(
      fleet,
      ['-At'],
      `BEGIN;
       SELECT 1/0;
       SELECT 'refused';
       ROLLBACK;
       \\set ON_ERROR_ROLLBACK on
       BEGIN;
       SELECT 1/0;
       SELECT 'goes on';
       COMMIT;
       SELECT 'after';`,
    );
    assert.match(stderr, /current transaction is aborted/);
    assert.equal(stdout, 'BEGIN\nROLLBACK\nBEGIN\ngoes on\nCOMMIT\nafter\n');
  },

  'variables, \\gset, \\gexec, \\if and \\errverbose work on answers': async ({ fleet }) => {
    const { stdout, stderr, status } = await psql(
      fleet,
      ['-At', '-v', "word=it's"],
      `SELECT :'word' AS quoted;
       SELECT 41 + 1 AS answer, 'x' AS letter \\gset got_
       SELECT :got_answer, :'got_letter';
       SELECT format('SELECT %s * 2', n) FROM generate_series(1, 3) AS n \\gexec
       \\if :{?got_answer}
       SELECT 'is set';
       \\endif
       SELECT 1/0;
       \\errverbose
       SELECT n, n % 3 AS m, n AS v FROM generate_series(1, 6) AS n \\crosstabview`,
    );
    assert.equal(status, 0, stderr);
    assert.ok(stdout.startsWith("it's\n42|x\n2\n4\n6\nis set\n"), stdout);
    assert.match(stderr, /ERROR: {2}22012: division by zero/);
  },

  'COPY from and to the script, and \\copy from and to files': async ({ fleet }) => {
    const folder = await makeFolder('psql');
    try {
      const lines = Array.from({ length: 3_000 }, (_, n) => `${n}\tline ${n}\n`).join('');
      const source = join(folder, 'source');
      const target = join(folder, 'target');
      await writeFile(source, lines);
      const { stdout, stderr, status } = await psql(
        fleet,
        ['-At', '-v', 'ON_ERROR_STOP=1'],
        `DROP TABLE IF EXISTS psql_copied;
         CREATE TABLE psql_copied (n int, t text);
         \\copy psql_copied FROM '${source}'
         COPY psql_copied FROM STDIN;
-1\tfrom the script
\\.
         COPY (SELECT * FROM psql_copied WHERE n < 1 ORDER BY n) TO STDOUT;
         \\copy (SELECT * FROM psql_copied WHERE n >= 0 ORDER BY n) TO '${target}'`,
      );
      assert.equal(status, 0, stderr);
      const tags = 'DROP TABLE\nCREATE TABLE\nCOPY 3000\nCOPY 1\n';
      assert.equal(stdout, `${tags}-1\tfrom the script\n0\tline 0\nCOPY 3000\n`);
      assert.ok((await readFile(target, 'utf8')) === lines);
      const broken = await psql(
        fleet,
        ['-At'],
        `COPY psql_copied FROM STDIN;
1\tgood
two\tbad
3\tunread
\\.
         SELECT count(*) FROM psql_copied;`,
      );
      assert.match(broken.stderr, /invalid input syntax for type integer: "two"/);
      assert.equal(broken.stdout, '3001\n');
    } finally {
      await removeFolder(folder);
    }
  },

  'a big result comes whole, at once or by a cursor': async ({ fleet }) => {
    const sql = "SELECT n, repeat('x', 100) FROM generate_series(1, 20000) AS n";
    const whole = await rows(fleet, sql);
    assert.equal(whole.split('\n').length, 20_000);
    const parts = await psql(fleet, ['-AtX', '-v', 'FETCH_COUNT=700', '-c', sql]);
    assert.ok(parts.stdout.trimEnd() === whole, parts.stderr);
  },

  'Ctrl-C cancels the running query': async ({ fleet, postgres }) => {
    const mark = `psql cancel ${process.hrtime.bigint()}`;
    const { status, stderr } = await psql(
      fleet,
      [],
      `SELECT pg_sleep(60) /* ${mark} */;\nSELECT 1;\n`,
      {
        started: (child) => {
          void until('the query runs', async () =>
            (await postgres.backends({ user: 'app' })).some(
              ({ state, query }) => state === 'active' && query.includes(mark),
            ),
          ).then(() => child.kill('SIGINT'));
        },
      },
    );
    assert.match(stderr, /ERROR: {2}canceling statement due to user request/);
    assert.equal(status, 3);
  },
};

onEveryFleet('psql', RULES, {
  needs: { 'postgresql-client-15': () => clientProgram('psql') !== null },
});

function psql(
  fleet: Place['fleet'],
  args: readonly string[],
  input = '',
  options: ProgramOptions = {},
): Promise<Ended> {
  const env = { PGCLIENTENCODING: 'UTF8', PSQLRC: '/dev/null', LC_ALL: 'C.UTF-8' };
  return runProgram(clientProgram('psql')!, ['-X', fleet.url(), ...args], {
    input,
    env,
    ...options,
  });
}

/** Rows of `sql`, unaligned. */
async function rows(fleet: Place['fleet'], sql: string): Promise<string> {
  const { stdout, stderr, status } = await psql(fleet, ['-Atq', '-c', sql]);
  assert.equal(status, 0, stderr);
  return stdout.trimEnd();
}
