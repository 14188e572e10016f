/** SUSPEND: everything stands still until RESUME. PgBouncer has it up to 1.25. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { ConsoleClient, fatalOf, loginUntilEnd, resultOf } from '../support/console.ts';
import { COPY_DONE, query } from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { beginStream, replica, startSource } from '../support/replication.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;
let source: TestPostgres;

before(async () => {
  postgres = await startPostgres();
  source = await startSource();
  // Tells where changes stand in the log, beside the stream of the test.
  await source.query("SELECT pg_create_logical_replication_slot('watch', 'test_decoding')");
});

const options =
  (settings: RuleOptions['settings'] = {}) =>
  (): RuleOptions => ({ postgres, databases: { app: '' }, settings });

const BUSY = 'ERROR 08P01 already suspended/paused';
const HAS_SUSPEND = { before: '1.26.0' };

rule(
  'a suspended client is not heard until RESUME; the console is',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    const pid = await resultOf(client, 'SELECT pg_backend_pid()');
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    client.send(query('SELECT pg_backend_pid()'));
    for (const sql of ['SUSPEND', 'PAUSE', 'PAUSE app', 'KILL']) {
      assert.equal(await console.run(sql), BUSY, sql);
    }
    const seen = client.receivedBytes;
    assert.equal(await console.poolSum('app', 'cl_waiting'), 0);
    assert.equal(client.receivedBytes, seen);
    assert.equal(await console.run('RESUME'), 'RESUME');
    const answer = await client.untilReady();
    assert.ok(
      answer.some(({ body }) => body.includes(pid)),
      'its server was kept',
    );
  },
  HAS_SUSPEND,
);

rule(
  'SHOW STATE tells of a SUSPEND',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    assert.equal(await console.state(), 'suspended');
    assert.equal(await console.run('RESUME'), 'RESUME');
    assert.equal(await console.state(), 'active');
  },
  { ...HAS_SUSPEND, since: '1.24.0' },
);

rule(
  'a suspended pooler that SIGTERM ends goes at once, with status 1',
  () => ({ ...options()(), logs: [/suspend was in progress, going down immediately/] }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    pooler.signal('SIGTERM');
    assert.equal(await pooler.ended(), 1);
    assert.deepEqual(await client.untilClose(), []);
    await pooler.start();
  },
  HAS_SUSPEND,
);

rule(
  'who connects while everything is suspended is served after RESUME',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    const login = WireClient.login(pooler);
    assert.equal(
      (await console.rows('SHOW CLIENTS')).filter(({ user }) => user === 'app').length,
      0,
    );
    assert.equal(await console.run('RESUME'), 'RESUME');
    await (await login).end();
  },
  HAS_SUSPEND,
);

rule(
  'a query that runs at a SUSPEND is answered after RESUME',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('SELECT 1');
    client.send(query("SELECT 'late', pg_advisory_lock(1)"));
    await postgres.query('SELECT pg_advisory_lock(1)').catch(() => undefined);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    await postgres.query('SELECT pg_advisory_unlock_all()');
    await console.isPending();
    assert.equal(await console.run('RESUME'), 'RESUME');
    assert.ok((await client.untilReady()).some(({ body }) => body.includes('late')));
  },
  HAS_SUSPEND,
);

rule(
  'SUSPEND is refused with an argument, to stats users, and while a database is paused',
  () => ({ ...options()(), settings: { stats_users: 'app' } }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const stats = await ConsoleClient.open(t, pooler, 'app');
    const invalid = "ERROR 08P01 invalid command 'SUSPEND x', use SHOW HELP;";
    assert.equal(await console.run('SUSPEND x'), invalid);
    assert.equal(await stats.run('SUSPEND x'), invalid);
    assert.equal(await stats.run('SUSPEND'), 'ERROR 08P01 admin access needed');
    assert.equal(await console.run('PAUSE app'), 'PAUSE');
    assert.equal(await console.run('SUSPEND'), 'ERROR 08P01 cannot suspend with paused databases');
    assert.equal(await console.isActive(), true);
  },
  HAS_SUSPEND,
);

rule(
  'a client in the middle of a message holds up SUSPEND for suspend_timeout, then is closed',
  options({ suspend_timeout: 1 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    await client.query('SELECT 1');
    client.send(query('SELECT 2').subarray(0, 9));
    await until('it has a server', async () => (await console.poolSum('app', 'cl_active')) === 1);
    console.begin('SUSPEND');
    assert.equal(await fatalOf(client), '08P01 suspend_timeout');
    assert.equal(await console.answer(), 'SUSPEND');
    assert.equal(await console.run('RESUME'), 'RESUME');
  },
  HAS_SUSPEND,
);

rule(
  'SUSPEND closes servers that are to be checked before they are used',
  options({ server_check_delay: 0 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    const pid = await resultOf(client, 'SELECT pg_backend_pid()');
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    assert.match(
      pooler.log(),
      /S-\S+: .* closing because: close unsafe file descriptors on suspend/,
    );
    assert.equal(await console.run('RESUME'), 'RESUME');
    assert.notEqual(await resultOf(client, 'SELECT pg_backend_pid()'), pid);
  },
  HAS_SUSPEND,
);

rule(
  'a client that waits for a server waits on behind SUSPEND',
  options({ suspend_timeout: 1, default_pool_size: 1 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const holds = await loginUntilEnd(t, pooler);
    await holds.query('BEGIN');
    const waits = await loginUntilEnd(t, pooler);
    waits.send(query('SELECT 1'));
    await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    assert.equal(await console.run('RESUME'), 'RESUME');
    await holds.query('COMMIT');
    await waits.untilReady();
  },
  {
    ...HAS_SUSPEND,
    differs: {
      because: 'PgBouncer closes it after suspend_timeout when the servers are those of others',
      check: async (pooler, t) => {
        const console = await ConsoleClient.open(t, pooler);
        const holds = await loginUntilEnd(t, pooler);
        await holds.query('BEGIN');
        const waits = await loginUntilEnd(t, pooler);
        waits.send(query('SELECT 1'));
        await until('it waits', async () => (await console.poolSum('app', 'cl_waiting')) === 1);
        console.begin('SUSPEND');
        assert.equal(await fatalOf(waits), '08P01 suspend_timeout');
        assert.equal(await console.answer(), 'SUSPEND');
        assert.equal(await console.run('RESUME'), 'RESUME');
        await holds.query('COMMIT');
      },
    },
  },
);

rule(
  'what is suspended goes on when the last console session has left',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    await console.wire.end();
    assert.equal(await resultOf(client, 'SELECT 1'), '1');
    await until('it says so', () =>
      pooler.log().includes('admin disappeared when suspended, doing RESUME'),
    );
  },
  HAS_SUSPEND,
);

rule(
  'and does so in the middle of a shutdown too, or nobody could ever leave',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await loginUntilEnd(t, pooler);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    assert.equal(await console.run('SHUTDOWN WAIT_FOR_CLIENTS'), 'SHUTDOWN');
    assert.equal(await console.run('RESUME'), 'ERROR 08P01 pooler is shutting down');
    await console.wire.end();
    assert.equal(await resultOf(client, 'SELECT 1'), '1');
    await client.end();
    assert.equal(await pooler.ended(), 0);
  },
  { ...HAS_SUSPEND, since: '1.24.0' },
);

rule(
  'SIGUSR2 ends SUSPEND',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    pooler.signal('SIGUSR2');
    await until('it is over', () => console.isActive());
    assert.match(pooler.log(), /LOG got SIGUSR2, continuing from SUSPEND\n/);
  },
  HAS_SUSPEND,
);

/** The last number inserted into the one source that all poolers have. */
let lastChange = 0;

rule(
  'a replication stream stands still from SUSPEND to RESUME, and then loses nothing',
  () => ({ postgres: source, settings: { suspend_timeout: 60 } }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const client = await beginStream(await replica(pooler), 'suspended');
    const [first, second, third] = [++lastChange, ++lastChange, ++lastChange];
    const insert = (n: number) => source.query('INSERT INTO changes VALUES ($1)', [n]);
    await insert(first);
    await untilChange(client, first);
    assert.equal(await console.run('SUSPEND'), 'SUSPEND');
    const seen = client.receivedBytes;
    await insert(second);
    await until('the server has sent it', async () => {
      const rows = await source.query(
        `SELECT 1 FROM pg_stat_replication WHERE sent_lsn >=
           (SELECT max(lsn) FROM pg_logical_slot_peek_changes('watch', NULL, NULL))`,
      );
      return rows.length === 1;
    });
    // Answered by the same process, so it would have passed the change on by now.
    await console.isPending();
    assert.equal(client.receivedBytes, seen);
    assert.equal(await console.run('RESUME'), 'RESUME');
    await untilChange(client, second);
    await insert(third);
    await untilChange(client, third);
    client.send(COPY_DONE);
    await client.untilReady();
    await client.end();
  },
  { ...HAS_SUSPEND, since: '1.23' },
);

/** Reads a stream up to the change that inserts `n`, which comes next. */
async function untilChange(client: WireClient, n: number): Promise<void> {
  for (;;) {
    const { type, body } = await client.next();
    assert.equal(type, 'd');
    const change = /INSERT: n\[integer\]:(\d+)/.exec(body.toString('latin1'))?.[1];
    if (change === undefined) continue;
    assert.equal(change, String(n));
    return;
  }
}

test('the servers before which all this ran end', async () => {
  await postgres.dispose();
  await source.dispose();
});
