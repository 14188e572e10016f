import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { giveToServer } from '../support/account.ts';
import { cached, copyFolder, makeFolder, removeFolder } from '../support/folders.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { freePort } from '../support/ports.ts';
import { configure, startPostgres, TestPostgres } from '../support/postgres.ts';
import {
  clientProgram,
  hasPostgres15,
  type PostgresVersion,
  postgresBin,
} from '../support/postgres-files.ts';
import { type Ended, runProgram } from '../support/programs.ts';
import { startSource, terminateWalSenders, walSenders } from '../support/replication.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';

/** PostgreSQL's own replication, and Debian's tools for it, through a fleet of two. */

interface Place {
  readonly source: TestPostgres;
  readonly fleet: TestPgfleet;
}

async function startPlace(t: TestContext, version: PostgresVersion): Promise<Place> {
  const source = await startSource(version);
  t.after(() => source.dispose());
  const fleet = await startPgfleet({
    postgres: source,
    size: 2,
    settings: { auth_type: 'scram-sha-256', default_pool_size: 20 },
  });
  t.after(() => fleet.stop());
  return { source, fleet };
}

async function folderOf(t: TestContext, name: string): Promise<string> {
  const folder = await makeFolder(name);
  t.after(() => removeFolder(folder));
  return folder;
}

/** Runs one of PostgreSQL's programs against the fleet, as the superuser. */
function tool(
  { fleet }: Place,
  name: string,
  args: readonly string[],
  started: (child: ChildProcess) => void = () => undefined,
): Promise<Ended> {
  return runProgram(clientProgram(name)!, args, {
    asServer: true,
    deadlineMs: 120_000,
    env: {
      PGHOST: fleet.host,
      PGPORT: String(fleet.port),
      PGUSER: 'postgres',
      PGPASSWORD: 'postgres',
    },
    started,
  });
}

async function succeeds(place: Place, name: string, args: readonly string[]): Promise<void> {
  const { status, stderr } = await tool(place, name, args);
  assert.equal(status, 0, stderr);
}

/** A tool that runs until it is told to end. */
class Streaming {
  readonly ended: Promise<Ended>;
  child: ChildProcess | null = null;

  constructor(place: Place, name: string, args: readonly string[]) {
    this.ended = tool(place, name, args, (child) => {
      this.child = child;
    });
  }

  async end(signal: NodeJS.Signals): Promise<Ended> {
    this.child!.kill(signal);
    return this.ended;
  }
}

async function untilSenders({ source }: Place, count: number): Promise<void> {
  const isReached = async () => (await walSenders(source)) === count;
  await until(`there are ${count} WAL senders`, isReached, { deadlineMs: 30_000 });
}

async function untilStreaming(source: TestPostgres): Promise<void> {
  const states = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'";
  const isStreaming = async () => (await source.query(states)).length === 1;
  await until('a WAL sender streams', isStreaming, { deadlineMs: 30_000 });
}

/** Starts a standby on the data folder in `folder`, which says where its primary is. */
async function startStandby(t: TestContext, version: PostgresVersion, folder: string) {
  const bin = await postgresBin(version, cached);
  const standby = new TestPostgres(version, await freePort(), folder, bin);
  t.after(() => standby.dispose());
  await configure(standby, { settings: { wal_retrieve_retry_interval: '100ms' } });
  await standby.start();
  return standby;
}

/** What the source writes arrives at the standby, also after its connection has been cut. */
async function followsItsSource({ source, fleet }: Place, standby: TestPostgres): Promise<void> {
  const arrives = async (n: number): Promise<void> => {
    await source.query('INSERT INTO changes VALUES ($1)', [n]);
    await until(
      `row ${n} is on the standby`,
      async () => (await standby.query('SELECT 1 FROM changes WHERE n = $1', [n])).length === 1,
      { deadlineMs: 30_000 },
    );
  };
  await arrives(-1);
  const kinds = async () => (await fleet.console('SHOW CLIENTS')).map((row) => row['replication']);
  assert.ok((await kinds()).includes('physical'));
  const states = 'SELECT state, application_name FROM pg_stat_replication';
  assert.deepEqual(await source.query(states), [
    { state: 'streaming', application_name: 'walreceiver' },
  ]);
  await terminateWalSenders(source);
  await arrives(-2);
  await standby.stop();
  await until('the WAL sender has ended', async () => (await walSenders(source)) === 0);
  assert.ok(!(await kinds()).includes('physical'));
}

test('PostgreSQL 15’s replication tools through a fleet', async (t) => {
  if (!requirePackage(t, 'postgresql-15', hasPostgres15())) return;
  const place = await startPlace(t, 15);
  const { source } = place;

  await t.test('a base backup of 100 MB is intact, and a standby made of it follows', async (t) => {
    await source.query(
      'CREATE TABLE big AS SELECT n, repeat(md5(n::text), 30) FROM generate_series(1, 100000) AS n',
    );
    const folder = await folderOf(t, 'backup');
    const data = join(folder, 'data');
    const options = ['-X', 'stream', '-c', 'fast', '-R', '-C', '-S', 'standby', '--no-sync'];
    await succeeds(place, 'pg_basebackup', ['-D', data, ...options]);
    await succeeds(place, 'pg_verifybackup', [data]);
    await untilSenders(place, 0);
    const standby = await startStandby(t, 15, folder);
    assert.match(
      readFileSync(join(data, 'postgresql.auto.conf'), 'utf8'),
      new RegExp(`primary_conninfo = .*port=${place.fleet.port} `),
    );
    assert.deepEqual(
      await standby.query('SELECT count(*)::int AS n, count(DISTINCT repeat)::int AS m FROM big'),
      [{ n: 100_000, m: 100_000 }],
    );
    await followsItsSource(place, standby);
  });

  await t.test('a base backup as tar files, WAL fetched at its end, is whole', async (t) => {
    const folder = await folderOf(t, 'tar');
    const options = ['-F', 't', '-z', '-X', 'fetch', '-c', 'fast', '--no-sync'];
    await succeeds(place, 'pg_basebackup', ['-D', folder, ...options]);
    assert.deepEqual((await readdir(folder)).sort(), ['backup_manifest', 'base.tar.gz']);
  });

  await t.test('a killed base backup leaves no WAL sender', async (t) => {
    const data = join(await folderOf(t, 'killed'), 'data');
    // Without a second process that receives WAL, which would live on. It would take minutes.
    const options = ['-X', 'none', '-c', 'fast', '--max-rate', '500', '--no-sync'];
    const backup = new Streaming(place, 'pg_basebackup', ['-D', data, ...options]);
    await until('the backup has begun', async () => {
      const names: string[] = await readdir(data).catch(() => []);
      return names.includes('backup_label');
    });
    assert.equal(await walSenders(source), 1);
    await backup.end('SIGKILL');
    await untilSenders(place, 0);
  });

  await t.test('received WAL files are those of the server, and a slot remembers', async (t) => {
    const folder = await folderOf(t, 'wal');
    const slot = ['-D', folder, '-S', 'wal', '--no-loop'];
    await succeeds(place, 'pg_receivewal', [...slot, '--create-slot']);
    const first = new Streaming(place, 'pg_receivewal', slot);
    const switched = async (): Promise<string> => {
      await source.query("SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000000))");
      const [row] = await source.query<{ name: string }>(
        'SELECT pg_walfile_name(pg_switch_wal()) AS name',
      );
      return row!.name;
    };
    const arrives = (name: string) =>
      until(`${name} is there`, async () => (await readdir(folder)).includes(name), {
        deadlineMs: 30_000,
      });
    const isTheServers = async (name: string): Promise<void> => {
      const own = await readFile(join(source.folder, 'data/pg_wal', name));
      assert.ok(own.equals(await readFile(join(folder, name))), name);
    };
    await untilSenders(place, 1);
    const one = await switched();
    await arrives(one);
    await isTheServers(one);
    const ended = await first.end('SIGINT');
    assert.equal(ended.status, 0, ended.stderr);
    await untilSenders(place, 0);
    const missed = [await switched(), await switched()];
    const second = new Streaming(place, 'pg_receivewal', slot);
    for (const name of missed) await arrives(name);
    for (const name of missed) await isTheServers(name);
    await second.end('SIGKILL');
    await untilSenders(place, 0);
    await succeeds(place, 'pg_receivewal', ['-S', 'wal', '--drop-slot']);
  });

  await t.test('logical changes are received, each once', async (t) => {
    const file = join(await folderOf(t, 'logical'), 'changes');
    const slot = ['-d', 'postgres', '-S', 'logical'];
    await succeeds(place, 'pg_recvlogical', [...slot, '--create-slot', '-P', 'test_decoding']);
    const options = ['--start', '-f', file, '-s', '1', '-F', '1', '--no-loop'];
    const received = (): number[] => {
      const found = readFileSync(file, 'utf8').matchAll(/INSERT: n\[integer\]:(\d+)/g);
      return [...found].map((match) => Number(match[1]));
    };
    for (const [from, to] of [
      [1, 5000],
      [5001, 10_000],
    ] as const) {
      const stream = new Streaming(place, 'pg_recvlogical', [...slot, ...options]);
      const rows = 'INSERT INTO changes SELECT generate_series($1::int, $2::int)';
      await source.query(rows, [from, to]);
      // Commits are not waited for (synchronous_commit): what has been written may end before them.
      const [row] = await source.query<{ end: string }>(
        'SELECT pg_current_wal_insert_lsn()::text AS end',
      );
      // What it has not confirmed would be sent once more.
      await until(
        'the server has heard that all of it has arrived',
        async () => {
          const confirmed = `SELECT 1 FROM pg_replication_slots
            WHERE slot_name = 'logical' AND confirmed_flush_lsn >= $1::pg_lsn`;
          return (await source.query(confirmed, [row!.end])).length === 1;
        },
        { deadlineMs: 30_000 },
      );
      const ended = await stream.end('SIGINT');
      assert.equal(ended.status, 0, ended.stderr);
      await untilSenders(place, 0);
    }
    const all = Array.from({ length: 10_000 }, (_, index) => index + 1);
    assert.equal(received().join(), all.join());
    await succeeds(place, 'pg_recvlogical', [...slot, '--drop-slot']);
  });

  await t.test('a tool hears of the end of its server', async () => {
    const stream = new Streaming(place, 'pg_receivewal', ['-D', source.folder, '--no-loop']);
    // One that ends between two commands is told of as `server closed the connection unexpectedly`,
    // also without a pooler.
    await untilStreaming(source);
    await terminateWalSenders(source);
    const { status, stderr } = await stream.ended;
    assert.equal(status, 1);
    assert.match(stderr, /terminating connection due to administrator command/);
  });
});

test('a standby of PostgreSQL 18 follows its primary through a fleet', async (t) => {
  const place = await startPlace(t, 18);
  const { source, fleet } = place;
  const folder = await folderOf(t, 'standby');
  await source.stop();
  await copyFolder(join(source.folder, 'data'), folder);
  await source.start();
  const signalFile = join(folder, 'data/standby.signal');
  await writeFile(signalFile, '');
  await giveToServer(signalFile);
  const conninfo = `host=${fleet.host} port=${fleet.port} user=postgres password=postgres`;
  const auto = join(folder, 'data/postgresql.auto.conf');
  await writeFile(auto, `primary_conninfo = '${conninfo}'\n`, { flag: 'a' });
  await followsItsSource(place, await startStandby(t, 18, folder));
});

for (const version of [15, 18] as const) {
  test(`a subscription gets rows and changes from PostgreSQL ${version} through a fleet`, async (t) => {
    if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const { source, fleet } = await startPlace(t, version);
    const subscriber = await startPostgres();
    t.after(() => subscriber.dispose());
    const table = 'CREATE TABLE dated (n int PRIMARY KEY, at date, took interval)';
    for (const server of [source, subscriber]) await server.query(table);
    // A subscriber asks for the styles it can read by `options`, which these would spoil.
    await source.query("ALTER DATABASE postgres SET datestyle = 'German'");
    await source.query("ALTER DATABASE postgres SET intervalstyle = 'sql_standard'");
    await source.query(
      `INSERT INTO dated SELECT n, date '2026-02-01' + n, make_interval(days => n, secs => -n)
         FROM generate_series(1, 1000) AS n`,
    );
    await source.query('CREATE PUBLICATION all_of_it FOR TABLE dated');
    const conninfo = `host=${fleet.host} port=${fleet.port} user=postgres password=postgres dbname=postgres`;
    await subscriber.query(
      `CREATE SUBSCRIPTION sub CONNECTION '${conninfo}' PUBLICATION all_of_it`,
    );
    const sum =
      'SELECT count(*)::int AS n, md5(string_agg(d::text, $$,$$ ORDER BY n)) FROM dated AS d';
    // The connections of `query` are older than the two settings.
    const isSame = () =>
      until(
        'the subscriber has the same rows',
        async () => {
          const [[wanted], [found]] = await Promise.all([source.query(sum), subscriber.query(sum)]);
          return JSON.stringify(wanted) === JSON.stringify(found);
        },
        { deadlineMs: 60_000 },
      );
    await isSame();
    await source.query('UPDATE dated SET took = took * 2 WHERE n % 2 = 0');
    await source.query('DELETE FROM dated WHERE n % 10 = 0');
    await isSame();
    const kinds = (await fleet.console('SHOW SERVERS')).map((row) => row['replication']);
    assert.ok(kinds.includes('logical'));
    await subscriber.query('DROP SUBSCRIPTION sub');
    await until('the WAL senders have ended', async () => (await walSenders(source)) === 0);
  });
}
