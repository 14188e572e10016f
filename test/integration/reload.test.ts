/** A fleet that reads its configuration anew while it is used. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { watchBackends } from '../support/backend-watch.ts';
import { Load } from '../support/load.ts';
import { textRows } from '../support/messages.ts';
import { type PgfleetOptions, startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { userlist } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { failedReload, line, reload, rewrite } from '../support/reload.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient, WireError } from '../support/wire-client.ts';

const CONSOLE: LoginOptions = { user: 'postgres', database: 'pgbouncer' };

interface Given {
  readonly postgres: TestPostgres;
  readonly fleet: TestPgfleet;
}

async function start(t: TestContext, options: PgfleetOptions): Promise<Given> {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({ postgres, ...options });
  t.after(() => fleet.stop());
  return { postgres, fleet };
}

for (const size of [1, 4]) {
  test(`reloads of a fleet of ${size} under load cut nobody, and no limit is exceeded`, async (t) => {
    const { postgres, fleet } = await start(t, {
      size,
      databases: { app: 'pool_size=8', forced: 'dbname=app user=app password=app' },
      settings: { max_db_connections: 8, log_connections: 0, log_disconnections: 0 },
    });
    const line8 = `host=${postgres.host} port=${postgres.port}`;
    const forced = (user: string) =>
      line('databases', 'forced', `${line8} dbname=app user=${user} password=${user}`);
    const databases = Array.from({ length: 24 }, (_, i) => (i % 2 === 0 ? 'app' : 'forced'));
    const load = await Load.begin(
      fleet,
      postgres,
      databases.map((database) => ({ database })),
    );
    for (const user of ['app_plain', 'app']) {
      let watch = await watchBackends(postgres);
      await reload(fleet, line('databases', 'app', `${line8} pool_size=4`), forced(user));
      await load.goesOn();
      // `app` and `forced` have 8 connections each at most, whoever their user was or is.
      assert.ok((await watch.stop()).all <= 16);
      await reload(
        fleet,
        line('databases', 'app', `${line8} pool_size=4`),
        line('pgbouncer', 'max_db_connections', 5),
      );
      await until('surplus connections are gone', async () => {
        const app = await postgres.backends({ user: 'app' });
        const plain = await postgres.backends({ user: 'app_plain' });
        return app.length + plain.length <= 9;
      });
      watch = await watchBackends(postgres);
      await load.goesOn();
      assert.ok((await watch.stop()).all <= 9);
      watch = await watchBackends(postgres);
      await reload(
        fleet,
        line('databases', 'app', `${line8} pool_size=7 connect_query='SET work_mem = 9${size}'`),
        line('pgbouncer', 'max_db_connections', 7),
      );
      await load.goesOn();
      assert.ok((await watch.stop()).all <= 14);
      await reload(
        fleet,
        line('databases', 'app', `${line8} pool_size=8`),
        line('pgbouncer', 'max_db_connections', 8),
      );
      await load.goesOn();
    }
    await load.stop();
    await until('all servers are at rest', async () => {
      const rows = await fleet.console('SHOW SERVERS');
      return rows.every(({ state }) => state === 'idle' || state === 'used');
    });
  });
}

/** A value of SHOW CONFIG, as each worker has it, by worker. */
async function valuesOf(fleet: TestPgfleet, key: string, size: number): Promise<string[]> {
  const found = new Map<number, string>();
  await until('every worker has told', async () => {
    const client = await WireClient.login(fleet, CONSOLE);
    const rows = textRows(await client.query('SHOW CONFIG'));
    found.set(client.key[3]!, String(rows.find(([name]) => name === key)?.[1]));
    await client.end();
    return found.size === size;
  });
  return [...found.values()];
}

test('an invalid file changes nothing in any worker, and the log says its line once', async (t) => {
  const { fleet } = await start(t, { size: 4, settings: { query_wait_timeout: 50 } });
  fleet.allowLog(/ERROR .*pgbouncer\.ini:\d+/);
  await writeFile(join(fleet.folder, 'userlist.txt'), userlist({ postgres: 'postgres' }));
  await failedReload(
    fleet,
    line('pgbouncer', 'query_wait_timeout', 60),
    line('databases', 'app', 'host=nowhere pool_size=-'),
  );
  assert.deepEqual(await valuesOf(fleet, 'query_wait_timeout', 4), ['50', '50', '50', '50']);
  // The users are as they were, too.
  const clients = await Promise.all(Array.from({ length: 20 }, () => WireClient.login(fleet)));
  for (const client of clients) {
    assert.deepEqual(textRows(await client.query('SELECT 1')), [['1']]);
    await client.end();
  }
  const errors = fleet.log().match(/.* ERROR .*/g) ?? [];
  assert.equal(errors.length, 1, errors.join('\n'));
  assert.match(errors[0]!, /pgbouncer\.ini:\d+/);
  await rewrite(fleet, line('databases', 'app', null));
  await reload(fleet);
  assert.deepEqual(await valuesOf(fleet, 'query_wait_timeout', 4), ['60', '60', '60', '60']);
});

test('every worker takes another auth_file', async (t) => {
  const { fleet } = await start(t, {
    size: 4,
    settings: { auth_type: 'plain' },
    databases: { app: 'user=app password=app' },
  });
  const logsIn = async (user: string): Promise<boolean> => {
    try {
      await (await WireClient.login(fleet, { user, database: 'app' })).end();
      return true;
    } catch (error) {
      if (error instanceof WireError && error.text === 'password authentication failed')
        return false;
      throw error;
    }
  };
  const all = (user: string) => Promise.all(Array.from({ length: 40 }, () => logsIn(user)));
  assert.deepEqual(new Set(await all('new')), new Set([false]));
  const file = join(fleet.folder, 'userlist.txt');
  await writeFile(file, userlist({ new: 'new', postgres: 'postgres' }));
  await reload(fleet);
  assert.deepEqual(new Set(await all('new')), new Set([true]));
  assert.deepEqual(new Set(await all('app_plain')), new Set([false]));
});

test('what only a restart changes is kept, and named once', async (t) => {
  const { fleet } = await start(t, { size: 2, settings: { listen_backlog: 100 } });
  await reload(
    fleet,
    line('pgbouncer', 'listen_backlog', 200),
    line('fleet', 'size', 3),
    line('pgbouncer', 'query_wait_timeout', 70),
  );
  assert.deepEqual(await valuesOf(fleet, 'query_wait_timeout', 2), ['70', '70']);
  assert.deepEqual(await valuesOf(fleet, 'listen_backlog', 2), ['100', '100']);
  assert.equal(fleet.workers().length, 2);
  const lines = fleet.log().match(/ WARNING changed in the file but kept until a restart: .*/g);
  assert.equal(lines?.length, 1);
  assert.match(lines[0]!, / listen_backlog, \[fleet\] size$/);
});

test('when a worker ends before it has agreed to a reload, none switches', async (t) => {
  const { fleet } = await start(t, { size: 4, settings: { query_wait_timeout: 50 } });
  fleet.allowLog(/ERROR worker \(pid \d+\) ended meanwhile/);
  const victim = fleet.workers()[1]!;
  process.kill(victim, 'SIGSTOP');
  await rewrite(fleet, line('pgbouncer', 'query_wait_timeout', 60));
  fleet.signal('SIGHUP');
  await until('the reload has begun', () => fleet.log().includes('got SIGHUP'));
  process.kill(victim, 'SIGKILL');
  await until('it has failed', () => fleet.log().includes('config file loading failed'));
  await fleet.workersAre(4, [victim]);
  assert.deepEqual(await valuesOf(fleet, 'query_wait_timeout', 4), ['50', '50', '50', '50']);
  await reload(fleet);
  assert.deepEqual(await valuesOf(fleet, 'query_wait_timeout', 4), ['60', '60', '60', '60']);
});

test('a worker that is replaced after a reload has what is in force', async (t) => {
  const { fleet } = await start(t, { size: 2, settings: { query_wait_timeout: 50 } });
  await reload(fleet, line('pgbouncer', 'query_wait_timeout', 60));
  // Not yet in force, and not to be taken up by the replacement.
  await rewrite(fleet, line('pgbouncer', 'query_wait_timeout', 70));
  const victim = fleet.workers()[0]!;
  process.kill(victim, 'SIGKILL');
  await fleet.workersAre(2, [victim]);
  assert.deepEqual(await valuesOf(fleet, 'query_wait_timeout', 2), ['60', '60']);
});

test('many SIGHUPs in a row end with the last file in force in every worker', async (t) => {
  const { fleet } = await start(t, { size: 4 });
  for (let value = 100; value < 120; value++) {
    await rewrite(fleet, line('pgbouncer', 'query_wait_timeout', value));
    fleet.signal('SIGHUP');
  }
  await reload(fleet, line('pgbouncer', 'query_wait_timeout', 33));
  assert.deepEqual(await valuesOf(fleet, 'query_wait_timeout', 4), ['33', '33', '33', '33']);
});
