/** The console's commands that pause, end or renew what is pooled, and when each is refused. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { ConsoleClient, fatalOf, loginUntilEnd, resultOf } from '../support/console.ts';
import { PROTOCOL_3_0, query, startup } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { line, rewrite } from '../support/reload.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

const options =
  (settings: RuleOptions['settings'] = {}, changes: RuleOptions = {}) =>
  (): RuleOptions => ({
    postgres,
    databases: { app: '', other: 'dbname=app' },
    ...changes,
    settings: { stats_users: 'app', ...settings },
  });

const BUSY = 'ERROR 08P01 already suspended/paused';
const IDLE = 'ERROR 08P01 pooler is not paused/suspended';
const NEEDED = 'ERROR 08P01 admin access needed';
const PID = 'SELECT pg_backend_pid()';
const FOR_LATER = { since: '1.24.0' };

const invalid = (sql: string) => `ERROR 08P01 invalid command '${sql}', use SHOW HELP;`;

/** Waits until the server session of that process id has ended. */
async function hasEnded(pid: string): Promise<void> {
  await until(`server ${pid} has ended`, async () => {
    const rows = await postgres.query('SELECT 1 FROM pg_stat_activity WHERE pid = $1', [pid]);
    return rows.length === 0;
  });
}

/** A client that has sent its startup packet and does not read yet. */
async function beginLogin(pooler: TestPooler, database = 'app'): Promise<WireClient> {
  const client = await WireClient.connect(pooler);
  client.send(startup({ user: 'app', database }, PROTOCOL_3_0));
  return client;
}

// What is refused

const REFUSALS: readonly (readonly [string, string])[] = [
  ...['PAUSE', 'RESUME', 'KILL', 'RECONNECT', 'DISABLE', 'ENABLE', 'WAIT_CLOSE'].map(
    (command) => [`${command} none`, 'ERROR 08P01 no such database: none'] as const,
  ),
  ['PAUSE pgbouncer', 'ERROR 08P01 cannot pause admin db: pgbouncer'],
  ['KILL pgbouncer', 'ERROR 08P01 cannot kill admin db: pgbouncer'],
  ['RECONNECT pgbouncer', 'ERROR 08P01 cannot reconnect admin db: pgbouncer'],
  ['DISABLE pgbouncer', 'ERROR 08P01 cannot disable admin db: pgbouncer'],
  ['ENABLE pgbouncer', 'ERROR 08P01 cannot enable admin db: pgbouncer'],
  ['WAIT_CLOSE pgbouncer', 'ERROR 08P01 cannot wait in admin db: pgbouncer'],
  ['RESUME pgbouncer', 'ERROR 08P01 database pgbouncer is not paused'],
  ['DISABLE', 'ERROR 08P01 a database is required'],
  ['ENABLE', 'ERROR 08P01 a database is required'],
  ['RESUME', IDLE],
  ['RESUME app', 'ERROR 08P01 database app is not paused'],
  ['RELOAD app', invalid('RELOAD app')],
  ['SHUTDOWN app', invalid('SHUTDOWN app')],
];

rule(
  'a command that names no database, the console, or what it takes no notice of is refused',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    for (const [sql, answer] of REFUSALS) assert.equal(await console.run(sql), answer, sql);
    assert.equal(await console.isActive(), true);
  },
  FOR_LATER,
);

rule(
  'a stats user may command nothing, and is told so unless the command is none',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler, 'app');
    for (const sql of [
      ...['PAUSE', 'PAUSE app', 'PAUSE none', 'RESUME', 'RESUME app', 'KILL', 'KILL app'],
      ...['DISABLE app', 'DISABLE', 'ENABLE app', 'RECONNECT', 'WAIT_CLOSE'],
      ...['RELOAD', 'SHUTDOWN'],
    ]) {
      assert.equal(await console.run(sql), NEEDED, sql);
    }
    for (const sql of ['RELOAD x', 'SHUTDOWN x']) {
      assert.equal(await console.run(sql), invalid(sql));
    }
    assert.equal(await console.ofDatabase('app', 'paused'), '0');
    assert.equal(await console.ofDatabase('app', 'disabled'), '0');
  },
);

rule(
  'KILL_CLIENT and the forms of SHUTDOWN that wait are for admins too',
  options(),
  async (pooler, t) => {
    const stats = await ConsoleClient.open(t, pooler, 'app');
    for (const sql of [
      ...['KILL_CLIENT', 'KILL_CLIENT 1'],
      ...['SHUTDOWN WAIT_FOR_CLIENTS', 'SHUTDOWN WAIT_FOR_SERVERS'],
    ]) {
      assert.equal(await stats.run(sql), NEEDED, sql);
    }
  },
  FOR_LATER,
);

rule(
  'during a PAUSE of everything no other is begun, and what does not pause is done',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('PAUSE'), 'PAUSE');
    for (const sql of ['PAUSE', 'PAUSE app', 'KILL', 'KILL app', 'PAUSE none']) {
      assert.equal(await console.run(sql), BUSY, sql);
    }
    assert.equal(await console.run('RESUME app'), 'ERROR 08P01 database app is not paused');
    for (const sql of ['DISABLE app', 'ENABLE app', 'RECONNECT', 'WAIT_CLOSE', 'RESUME']) {
      assert.equal(await console.run(sql), sql.split(' ')[0], sql);
    }
    assert.equal(await console.isActive(), true);
  },
);

// PAUSE and RESUME

rule(
  'PAUSE closes free servers, and who needs one waits for RESUME',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    const pid = await resultOf(client, PID);
    assert.equal(await console.run('PAUSE'), 'PAUSE');
    assert.equal(await console.isActive(), false);
    await hasEnded(pid);
    assert.match(pooler.log(), /S-\S+: .* closing because: pause mode/);
    client.send(query(PID));
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.ofDatabase('app', 'paused'), '0');
    assert.equal(await console.run('RESUME'), 'RESUME');
    assert.ok((await client.untilReady()).some(({ type }) => type === 'D'));
  },
);

rule(
  'PAUSE is answered when the last transaction has ended; the session is answered meanwhile',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('BEGIN');
    console.begin('PAUSE');
    await console.isPending();
    assert.equal(await resultOf(client, 'SELECT 1'), '1');
    await console.isPending();
    await client.query('COMMIT');
    assert.equal(await console.answer(), 'PAUSE');
    assert.equal(await console.run('RESUME'), 'RESUME');
    assert.equal(await resultOf(client, 'SELECT 2'), '2');
  },
);

rule(
  'in session mode PAUSE waits until the clients have left',
  options({ pool_mode: 'session' }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('SELECT 1');
    console.begin('PAUSE');
    await console.isPending();
    assert.equal(await resultOf(client, 'SELECT 2'), '2');
    await console.isPending();
    await client.end();
    assert.equal(await console.answer(), 'PAUSE');
  },
);

rule(
  'a PAUSE of one database waits for that one only, may be repeated, and RESUME alone leaves it',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const other = await loginUntilEnd(t, pooler, { database: 'other' });
    const client = await loginUntilEnd(t, pooler);
    await client.query('SELECT 1');
    await other.query('BEGIN');
    assert.equal(await console.run('PAUSE app'), 'PAUSE');
    assert.equal(await console.run('PAUSE app'), 'PAUSE');
    assert.equal(await console.isActive(), true);
    assert.equal(await console.ofDatabase('app', 'paused'), '1');
    assert.equal(await resultOf(other, 'SELECT 1'), '1');
    assert.equal(await console.run('RESUME'), IDLE);
    client.send(query('SELECT 2'));
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.run('RESUME app'), 'RESUME');
    await client.untilReady();
    assert.equal(await console.ofDatabase('app', 'paused'), '0');
    await other.query('COMMIT');
  },
);

rule(
  'the end of a PAUSE of everything leaves the databases that were paused before it',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('SELECT 1');
    for (const sql of ['PAUSE app', 'PAUSE', 'RESUME']) {
      assert.equal(await console.run(sql), sql.split(' ')[0], sql);
    }
    assert.equal(await console.ofDatabase('app', 'paused'), '1');
    client.send(query('SELECT 2'));
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.run('RESUME app'), 'RESUME');
    await client.untilReady();
  },
);

rule(
  'RESUME of a database during a PAUSE of everything takes effect when that ends',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('SELECT 1');
    for (const sql of ['PAUSE app', 'PAUSE', 'RESUME app']) {
      assert.equal(await console.run(sql), sql.split(' ')[0], sql);
    }
    client.send(query('SELECT 2'));
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.run('RESUME'), 'RESUME');
    await client.untilReady();
  },
);

rule(
  'during PAUSE a login succeeds when the pool knows its parameters, else it waits for RESUME',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    await (await loginUntilEnd(t, pooler)).query('SELECT 1');
    assert.equal(await console.run('PAUSE'), 'PAUSE');
    await loginUntilEnd(t, pooler);
    const waiting = await beginLogin(pooler, 'other');
    t.after(() => waiting.destroy());
    await until('it waits', async () => (await console.poolSum('other', 'cl_waiting')) === 1);
    assert.equal(waiting.receivedBytes, 0);
    assert.equal(await console.run('RESUME'), 'RESUME');
    await waiting.untilReady();
  },
);

rule(
  'a login to a paused pool that knows no parameters is served at once after RESUME',
  options({ server_login_retry: 100, default_pool_size: 1 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('PAUSE app'), 'PAUSE');
    const waiting = await beginLogin(pooler);
    t.after(() => waiting.destroy());
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.run('RESUME app'), 'RESUME');
    await waiting.untilReady();
  },
  {
    differs: {
      because:
        'PgBouncer opens a connection for it, drops that as a failed login and then waits for server_login_retry',
    },
  },
);

rule(
  'query_wait_timeout goes on during PAUSE, and no notice of a queue is sent',
  options({ query_wait_timeout: 4, query_wait_notify: 1 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('SELECT 1');
    assert.equal(await console.run('PAUSE'), 'PAUSE');
    client.send(query('SELECT 2'));
    const messages = await client.untilClose();
    assert.deepEqual(
      messages.map(({ type }) => type),
      ['E'],
    );
    assert.match(messages[0]!.body.toString(), /Mquery_wait_timeout\0/);
  },
  { since: '1.25.0' },
);

rule(
  'PAUSE takes any name that the line * serves, RESUME only one that has been used',
  options({}, { databases: { '*': 'dbname=app' } }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('RESUME any'), 'ERROR 08P01 no such database: any');
    assert.equal(await console.run('ENABLE any'), 'ERROR 08P01 no such database: any');
    assert.equal(await console.run('PAUSE any'), 'PAUSE');
    assert.equal(await console.ofDatabase('any', 'paused'), '1');
    assert.equal(await console.run('DISABLE "a-b"'), 'DISABLE');
    assert.equal(await console.ofDatabase('a-b', 'disabled'), '1');
    assert.equal(await console.run('ENABLE "a-b"'), 'ENABLE');
    assert.equal(await console.run('RESUME any'), 'RESUME');
  },
);

rule(
  'a PAUSE that waits is answered with an error when another session says RESUME',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const second = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('BEGIN');
    console.begin('PAUSE');
    await console.isPending();
    assert.equal(await second.run('RESUME'), 'RESUME');
    assert.equal(await console.answer(), 'ERROR 08P01 PAUSE was ended by RESUME');
    await client.query('COMMIT');
    assert.equal(await resultOf(client, 'SELECT 1'), '1');
  },
  {
    differs: {
      because: 'PgBouncer leaves it waiting until some later PAUSE is done',
      check: async (pooler, t) => {
        const console = await ConsoleClient.open(t, pooler);
        const second = await ConsoleClient.open(t, pooler);
        const client = await loginUntilEnd(t, pooler);
        await client.query('BEGIN');
        console.begin('PAUSE');
        await console.isPending();
        assert.equal(await second.run('RESUME'), 'RESUME');
        await client.query('COMMIT');
        await console.isPending();
        assert.equal(await second.run('PAUSE'), 'PAUSE');
        assert.equal(await console.answer(), 'PAUSE');
      },
    },
  },
);

rule(
  'a cancel request with the key of a console session ends a PAUSE of everything',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('PAUSE'), 'PAUSE');
    await sendCancel(pooler, console.wire.key);
    await until('it is over', () => console.isActive());
  },
);

rule('SIGUSR1 pauses everything and SIGUSR2 ends that', options(), async (pooler, t) => {
  const console = await ConsoleClient.open(t, pooler);
  pooler.signal('SIGUSR1');
  await until('it is paused', async () => !(await console.isActive()));
  pooler.signal('SIGUSR1');
  await until('it is refused', () => pooler.log().includes('LOG got SIGUSR1, but already paused'));
  pooler.signal('SIGUSR2');
  await until('it is over', () => console.isActive());
});

// KILL, KILL_CLIENT

rule(
  'KILL closes all servers and all clients of what is pooled, and pauses it until RESUME of it',
  options({ default_pool_size: 1, server_login_retry: 1 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const idle = await loginUntilEnd(t, pooler);
    const busy = await loginUntilEnd(t, pooler);
    const waits = await loginUntilEnd(t, pooler);
    const pid = await resultOf(busy, PID);
    await busy.query('BEGIN');
    waits.send(query('SELECT 1'));
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.run('KILL'), 'KILL');
    for (const client of [idle, busy, waits]) {
      assert.equal(await fatalOf(client), '08P01 database removed');
    }
    await hasEnded(pid);
    assert.equal(await console.isActive(), true);
    assert.equal(await console.ofDatabase('app', 'paused'), '1');
    assert.equal(await console.ofDatabase('other', 'paused'), '0', 'it had no pool');
    const next = await beginLogin(pooler);
    t.after(() => next.destroy());
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.run('RESUME'), IDLE);
    assert.equal(await console.run('RESUME app'), 'RESUME');
    await next.untilReady();
    assert.notEqual(await resultOf(next, PID), pid);
  },
  FOR_LATER,
);

rule(
  'KILL of a database leaves the others, may be repeated, and needs no pool',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    const other = await loginUntilEnd(t, pooler, { database: 'other' });
    assert.equal(await resultOf(client, 'SELECT 1'), '1');
    assert.equal(await console.run('KILL other'), 'KILL');
    assert.equal(await fatalOf(other), '08P01 database removed');
    assert.equal(await console.run('KILL other'), 'KILL');
    assert.equal(await resultOf(client, 'SELECT 2'), '2');
    assert.equal(await console.ofDatabase('other', 'paused'), '1');
  },
);

rule('KILL forgets what was counted', options(), async (pooler, t) => {
  const console = await ConsoleClient.open(t, pooler);
  const client = await loginUntilEnd(t, pooler);
  for (let i = 0; i < 5; i++) await client.query('SELECT 1');
  const counted = async (): Promise<number> => {
    const rows = await console.rows('SHOW STATS');
    return Number(rows.find(({ database }) => database === 'app')?.['total_query_count'] ?? 0);
  };
  assert.equal(await counted(), 5);
  assert.equal(await console.run('KILL app'), 'KILL');
  assert.equal(await counted(), 0);
  assert.equal(await console.run('RESUME app'), 'RESUME');
  await (await loginUntilEnd(t, pooler)).query('SELECT 1');
  assert.equal(await counted(), 1);
});

/** The `id` of the only client of a database in SHOW CLIENTS that is in a state. */
async function idOf(console: ConsoleClient, database: string, state: string): Promise<string> {
  return await until(`a client is ${state}`, async () => {
    const rows = await console.rows('SHOW CLIENTS');
    return rows.find((row) => row['database'] === database && row['state'] === state)?.['id'];
  });
}

rule(
  'KILL_CLIENT closes the client of that id, and its server if that is busy',
  options({ default_pool_size: 1 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const busy = await loginUntilEnd(t, pooler);
    const pid = await resultOf(busy, PID);
    await busy.query('BEGIN');
    const waits = await loginUntilEnd(t, pooler);
    waits.send(query('SELECT 1'));
    const waiting = await idOf(console, 'app', 'waiting');
    const active = await idOf(console, 'app', 'active');
    assert.equal(await console.run(`KILL_CLIENT ${waiting}`), 'KILL_CLIENT');
    assert.equal(await fatalOf(waits), '08P01 admin forced disconnect');
    assert.equal(await resultOf(busy, PID), pid);
    assert.equal(await console.run(`KILL_CLIENT ${active}`), 'KILL_CLIENT');
    assert.equal(await fatalOf(busy), '08P01 admin forced disconnect');
    await hasEnded(pid);
    assert.equal(await console.run(`KILL_CLIENT ${active}`), 'ERROR 08P01 client not found');
  },
  FOR_LATER,
);

rule(
  'KILL_CLIENT of an idle client leaves the server, and needs an id',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    const pid = await resultOf(client, PID);
    for (const sql of ['KILL_CLIENT', 'KILL_CLIENT x']) {
      assert.equal(await console.run(sql), 'ERROR 08P01 invalid client pointer supplied');
    }
    const rows = await console.rows('SHOW CLIENTS');
    const id = rows.find(({ database }) => database === 'app')?.['id'];
    assert.equal(await console.run(`KILL_CLIENT ${id}`), 'KILL_CLIENT');
    assert.equal(await fatalOf(client), '08P01 admin forced disconnect');
    assert.equal(await resultOf(await loginUntilEnd(t, pooler), PID), pid);
  },
  FOR_LATER,
);

rule(
  'KILL_CLIENT of the session that says it closes that session and nothing else',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const [own] = (await console.rows('SHOW CLIENTS')).map(({ id }) => id);
    console.begin(`KILL_CLIENT ${own}`);
    assert.equal(await fatalOf(console.wire), '08P01 admin forced disconnect');
    const next = await ConsoleClient.open(t, pooler);
    assert.equal(await next.isActive(), true);
  },
  { differs: { because: 'it makes PgBouncer crash' } },
);

// DISABLE, ENABLE

rule(
  'DISABLE refuses whoever logs in to the database, after the password, until ENABLE',
  options({ auth_type: 'scram-sha-256' }, { logs: [/password authentication failed/] }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    assert.equal(await console.run('DISABLE app'), 'DISABLE');
    assert.equal(await console.run('DISABLE app'), 'DISABLE');
    assert.equal(await console.ofDatabase('app', 'disabled'), '1');
    assert.equal(await resultOf(client, 'SELECT 1'), '1');
    await assert.rejects(loginUntilEnd(t, pooler), { text: 'database "app" is disabled' });
    await assert.rejects(loginUntilEnd(t, pooler, { password: 'wrong' }), {
      text: 'SASL authentication failed',
    });
    assert.equal(await console.run('ENABLE app'), 'ENABLE');
    assert.equal(await resultOf(await loginUntilEnd(t, pooler), 'SELECT 2'), '2');
  },
);

// RECONNECT, WAIT_CLOSE

rule(
  'RECONNECT replaces free servers, and others when their transaction has ended',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    const busy = await loginUntilEnd(t, pooler);
    await busy.query('BEGIN');
    const busyPid = await resultOf(busy, PID);
    const pid = await resultOf(client, PID);
    assert.equal(await console.run('RECONNECT'), 'RECONNECT');
    const next = await resultOf(client, PID);
    assert.ok(next !== pid && next !== busyPid);
    assert.equal(await resultOf(busy, PID), busyPid);
    await busy.query('COMMIT');
    assert.notEqual(await resultOf(busy, PID), busyPid);
    await hasEnded(pid);
    await hasEnded(busyPid);
    assert.match(pooler.log(), /S-\S+: .* closing because: close_needed/);
    // PgBouncer says so when it finds the free one at a look, and else when it is about to be used.
    const free = /S-\S+: .* closing because: (database configuration changed|obsolete connection)/;
    assert.match(pooler.log(), free);
  },
);

rule('RECONNECT of a database leaves the others', options(), async (pooler, t) => {
  const console = await ConsoleClient.open(t, pooler);
  const client = await loginUntilEnd(t, pooler);
  const other = await loginUntilEnd(t, pooler, { database: 'other' });
  const [pid, otherPid] = [await resultOf(client, PID), await resultOf(other, PID)];
  assert.equal(await console.run('RECONNECT other'), 'RECONNECT');
  assert.notEqual(await resultOf(other, PID), otherPid);
  assert.equal(await resultOf(client, PID), pid);
});

rule(
  'WAIT_CLOSE is answered when no server is left that RECONNECT has marked',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('WAIT_CLOSE'), 'WAIT_CLOSE');
    const client = await loginUntilEnd(t, pooler);
    await client.query('BEGIN');
    assert.equal(await console.run('WAIT_CLOSE'), 'WAIT_CLOSE');
    assert.equal(await console.run('RECONNECT'), 'RECONNECT');
    assert.equal(await console.run('WAIT_CLOSE other'), 'WAIT_CLOSE');
    console.begin('WAIT_CLOSE app');
    await console.isPending();
    const second = await ConsoleClient.open(t, pooler);
    second.begin('WAIT_CLOSE');
    await second.isPending();
    await client.query('COMMIT');
    assert.equal(await console.answer(), 'WAIT_CLOSE');
    assert.equal(await second.answer(), 'WAIT_CLOSE');
  },
);

rule(
  'a PAUSE after a WAIT_CLOSE waits for what is in use all the same',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('SELECT 1');
    assert.equal(await console.run('WAIT_CLOSE app'), 'WAIT_CLOSE');
    await client.query('BEGIN');
    console.begin('PAUSE');
    await console.isPending();
    await client.query('COMMIT');
    assert.equal(await console.answer(), 'PAUSE');
  },
  {
    differs: {
      because: 'PgBouncer answers it at once, with the tag WAIT_CLOSE',
      check: async (pooler, t) => {
        const console = await ConsoleClient.open(t, pooler);
        const client = await loginUntilEnd(t, pooler);
        await client.query('SELECT 1');
        assert.equal(await console.run('WAIT_CLOSE app'), 'WAIT_CLOSE');
        await client.query('BEGIN');
        assert.equal(await console.run('PAUSE'), 'WAIT_CLOSE');
        await client.query('COMMIT');
      },
    },
  },
);

// RELOAD

rule('RELOAD puts the file in force', options(), async (pooler, t) => {
  const console = await ConsoleClient.open(t, pooler);
  await rewrite(pooler, line('pgbouncer', 'query_wait_timeout', 77));
  assert.equal(await console.run('RELOAD'), 'RELOAD');
  const rows = await console.rows('SHOW CONFIG');
  assert.equal(rows.find(({ key }) => key === 'query_wait_timeout')?.['value'], '77');
});

rule(
  'RELOAD of a file with an error says that it failed, and the session goes on',
  options({}, { logs: [/pgbouncer\.ini/] }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    await rewrite(pooler, line('pgbouncer', 'query_wait_timeout', 'soon'));
    assert.equal(
      await console.run('RELOAD'),
      'ERROR F0000 RELOAD failed, see logs for additional details',
    );
    assert.equal(await console.isActive(), true);
  },
  FOR_LATER,
);

test('the server before which all this ran ends', () => postgres.dispose());
