/** Control of whole fleets: commands of the console while clients are at work. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import {
  beginLogins,
  ConsoleClient,
  fatalOf,
  loginUntilEnd,
  resultOf,
} from '../support/console.ts';
import { Load } from '../support/load.ts';
import { query } from '../support/messages.ts';
import { loginInWorker, type PgfleetOptions, workerOf } from '../support/pgfleet.ts';
import type { TestPostgres } from '../support/postgres.ts';
import { startTwoDatabases, type TwoDatabases } from '../support/two-databases.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

/** A log without the lines of hundreds of logins. */
const QUIET = { log_connections: 0, log_disconnections: 0 };

function start(t: TestContext, size: number, more: PgfleetOptions = {}): Promise<TwoDatabases> {
  return startTwoDatabases(t, size, { ...more, settings: { ...QUIET, ...more.settings } });
}

/** Sessions of `app` that PostgreSQL has, apart from those of the test itself. */
async function sessionsOf(postgres: TestPostgres): Promise<number[]> {
  return (await postgres.backends({ user: 'app' })).map(({ pid }) => pid);
}

for (const size of [1, 4]) {
  test(`a fleet of ${size} under load does what the console says, and cuts nobody`, async (t) => {
    const { postgres, fleet } = await start(t, size);
    const console = await ConsoleClient.open(t, fleet);
    const load = await Load.begin(fleet, postgres);
    await load.goesOn();

    await t.test('PAUSE comes between transactions, and RESUME lets all go on', async () => {
      assert.equal(await console.run('PAUSE'), 'PAUSE');
      const { count } = load;
      await until('no session is left', async () => (await sessionsOf(postgres)).length === 0);
      assert.equal(await console.poolSum('app', 'sv_active'), 0);
      await until('all wait', async () => {
        return (await console.poolSum('app', 'cl_waiting')) === load.clients.length;
      });
      // What was committed before the answer may have been read after it.
      assert.ok(load.count - count <= load.clients.length);
      assert.equal(await console.run('RESUME'), 'RESUME');
      await load.goesOn();
    });

    await t.test('PAUSE of a database leaves the others alone', async () => {
      const other = await Promise.all(
        Array.from({ length: 8 }, () => loginUntilEnd(t, fleet, { database: 'other' })),
      );
      for (const client of other) await client.query('SELECT 1');
      assert.equal(await console.run('PAUSE other'), 'PAUSE');
      await load.goesOn();
      for (const client of other) client.send(query('SELECT 2'));
      await until('all wait', async () => (await console.poolSum('other', 'cl_waiting')) === 8);
      assert.equal(await console.run('RESUME other'), 'RESUME');
      for (const client of other) await client.untilReady();
    });

    await t.test('RECONNECT replaces every server, and WAIT_CLOSE waits for that', async () => {
      const before = await sessionsOf(postgres);
      assert.ok(before.length > 0);
      assert.equal(await console.run('RECONNECT'), 'RECONNECT');
      assert.equal(await console.run('WAIT_CLOSE'), 'WAIT_CLOSE');
      await until('they are gone', async () => {
        const now = await sessionsOf(postgres);
        return !now.some((pid) => before.includes(pid));
      });
      await load.goesOn();
    });

    await t.test('SUSPEND stops all in the middle of whatever it is, until RESUME', async () => {
      assert.equal(await console.run('SUSPEND'), 'SUSPEND');
      assert.equal(await console.state(), 'suspended');
      let seen = -1;
      await until('what was sent has been read', () => {
        const isStill = seen === load.count;
        seen = load.count;
        return isStill;
      });
      assert.equal(await console.state(), 'suspended');
      assert.equal(load.count, seen);
      assert.equal(await console.run('RESUME'), 'RESUME');
      await load.goesOn();
    });

    await t.test('DISABLE refuses new clients in every worker and ENABLE admits them', async () => {
      assert.equal(await console.run('DISABLE app'), 'DISABLE');
      const refusal = { text: 'database "app" is disabled' };
      await Promise.all(
        Array.from({ length: 16 }, () => assert.rejects(WireClient.login(fleet), refusal)),
      );
      await load.goesOn();
      assert.equal(await console.run('ENABLE app'), 'ENABLE');
      const clients = Array.from({ length: 16 }, () => loginUntilEnd(t, fleet));
      for (const client of await Promise.all(clients)) await client.end();
    });

    await t.test('KILL_CLIENT finds its client in whatever worker it is', async () => {
      const victim = await loginUntilEnd(t, fleet, { parameters: { application_name: 'victim' } });
      const rows = await console.rows('SHOW CLIENTS');
      const id = rows.find((row) => row['application_name'] === 'victim')?.['id'];
      assert.equal(await console.run(`KILL_CLIENT ${id}`), 'KILL_CLIENT');
      assert.equal(await fatalOf(victim), '08P01 admin forced disconnect');
      assert.equal(await console.run(`KILL_CLIENT ${id}`), 'ERROR 08P01 client not found');
    });

    await load.stop();
  });

  test(`KILL ends every client and server of a fleet of ${size} under load`, async (t) => {
    const { postgres, fleet } = await start(t, size);
    const console = await ConsoleClient.open(t, fleet);
    const load = await Load.begin(fleet, postgres);
    await load.goesOn();
    assert.equal(await console.run('KILL'), 'KILL');
    await load.isOver();
    // Nothing can be told behind half an answer.
    const cut = 'Error: the connection was closed';
    const told = load.ends.get('08P01 database removed') ?? 0;
    assert.equal(told + (load.ends.get(cut) ?? 0), load.clients.length, String([...load.ends]));
    await until('no session is left', async () => (await sessionsOf(postgres)).length === 0);
    await load.nothingIsLost();
    const waiting = await beginLogins(t, fleet, 8);
    await until('all wait', async () => (await console.poolSum('app', 'cl_waiting')) === 8);
    assert.equal(await console.run('RESUME app'), 'RESUME');
    for (const one of waiting) await one.until('D');
  });
}

for (const [form, isOver] of [
  ['WAIT_FOR_SERVERS', (client: WireClient) => client.query('COMMIT')],
  ['WAIT_FOR_CLIENTS', (client: WireClient) => client.end()],
] as const) {
  test(`all workers stay until SHUTDOWN ${form} is due in the last of them`, async (t) => {
    const { fleet } = await start(t, 4);
    const console = await ConsoleClient.open(t, fleet);
    const own = workerOf(console.wire);
    const client = await loginInWorker(t, fleet, (worker) => worker !== own);
    await client.query('BEGIN');
    assert.equal(await console.run(`SHUTDOWN ${form}`), 'SHUTDOWN');
    assert.equal((await console.rows('SHOW VERSION BY PROCESS')).length, 4);
    assert.equal(await resultOf(client, 'SELECT 1'), '1');
    assert.equal((await console.rows('SHOW STATE BY PROCESS')).length, 12);
    assert.equal(fleet.workers().length, 4);
    await isOver(client);
    if (form === 'WAIT_FOR_CLIENTS') {
      assert.equal(await console.run('SHOW VERSION'), 'SHOW');
      await console.wire.end();
    } else {
      assert.deepEqual(await console.wire.untilClose(), []);
    }
    assert.equal(await fleet.ended(), 0);
  });
}
