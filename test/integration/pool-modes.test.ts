import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { query, textRows, typesOf } from '../support/messages.ts';
import { type PgfleetOptions, startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient, WireError } from '../support/wire-client.ts';

/** Roles with settings of their own in `[users]`, or whose servers a test counts. */
const ROLES = {
  quick: 'query_timeout=1',
  hasty: 'transaction_timeout=1',
  awake: 'idle_transaction_timeout=1',
  alert: 'client_idle_timeout=1',
  keeper: 'pool_mode=session',
  young: '',
} as const;

const DATABASES = {
  app: '',
  sessions: 'pool_mode=session pool_size=1',
  statements: 'pool_mode=statement pool_size=2',
  one: 'pool_size=1',
  four: 'pool_size=4',
  brief: 'pool_size=1 server_lifetime=1',
  impatient: 'pool_size=1 query_wait_timeout=1',
  greeting: `connect_query='SET work_mem = ''77777kB'''`,
  forced: 'user=app_md5 password=app_md5',
} as const;

for (const version of [15, 18] as const) {
  test(`pools of every mode before PostgreSQL ${version}`, async (t) => {
    if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const { postgres, fleet } = await startModes(t, version, { server_login_retry: 1 });
    const step = (name: string, action: (pool: Place) => Promise<void>) =>
      t.test(name, () => action({ postgres, fleet }));

    await step(
      'session mode keeps a server and its state, and resets it in between',
      keepsSessions,
    );
    await step('statement mode refuses a transaction block', refusesBlocks);
    await step("a user's pool mode beats the database's, which beats the global one", ranksModes);
    await step('transaction mode lends four servers to forty clients', sharesServers);
    await step('the server that was released last is used first', reusesLast);
    await step('waiting clients are served in the order in which they came', servesInOrder);
    await step('tracked parameters follow the client to every server', tracksParameters);
    await step('a server that has lived long enough is replaced', replacesOldServers);
    await step('every timeout closes with its own text', timesOut);
    await step('connect_query runs before the first use', runsConnectQuery);
    await step('a forced user owns the one pool of its database', forcesUser);
    await step('a database without an entry is served by the entry *', servesUnknown);
    await step("the server's refusal of a login reaches the client", passesRefusals);
    await step('while PostgreSQL is down clients fail fast, and go on when it is back', survives);
  });
}

test('a check before every use, and servers that are idle for long', async (t) => {
  const { postgres, fleet } = await startModes(t, 18, {
    server_check_delay: 0,
    server_check_query: 'SELECT 4711',
    server_idle_timeout: 1,
    query_timeout: 1,
  });
  await t.test('the check query runs before every use', async () => {
    const client = await WireClient.login(fleet, { database: 'one' });
    await client.query('SELECT 1');
    const before = countIn(postgres.log(), 'SELECT 4711');
    for (let i = 0; i < 5; i++) await client.query('SELECT 1');
    assert.equal(countIn(postgres.log(), 'SELECT 4711') - before, 5);
    await client.end();
  });
  await t.test('query_timeout ends clients that wait for a server too', async () => {
    const holder = await WireClient.login(fleet, { database: 'one' });
    await holder.query('BEGIN');
    const client = await WireClient.login(fleet, { database: 'one' });
    client.send(query('SELECT 1'));
    assert.equal(await lastWords(client), 'FATAL 08P01: query_timeout');
    await holder.query('COMMIT');
    await holder.end();
  });
  await t.test('a server that nobody used for server_idle_timeout is closed', async () => {
    const client = await WireClient.login(fleet, { user: 'young', database: 'one' });
    await client.query('SELECT 1');
    assert.equal(await countOf(postgres, 'young'), 1);
    await until('the server is closed', async () => (await countOf(postgres, 'young')) === 0);
    assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
    await client.end();
  });
});

test('with server_round_robin the server that was released first is used first', async (t) => {
  const { fleet } = await startModes(t, 18, { server_round_robin: 1 });
  const { clients, pids } = await fourServers(fleet);
  const next = [await pidOf(clients[0]!), await pidOf(clients[0]!), await pidOf(clients[3]!)];
  assert.deepEqual(next, pids.slice(0, 3));
  await endAll(clients);
});

test('a reset after every use, and logins that take too long', async (t) => {
  const { fleet } = await startModes(
    t,
    18,
    {
      server_reset_query_always: 1,
      client_login_timeout: 1,
    },
    { down: 'host=127.0.0.1 port=1' },
  );
  await t.test('server_reset_query_always resets in transaction mode too', async () => {
    const client = await WireClient.login(fleet, { database: 'one' });
    const pid = await pidOf(client);
    await client.query("SET work_mem = '9999kB'; CREATE TEMP TABLE gone ()");
    assert.notEqual(await show(client, 'work_mem'), '9999kB');
    assert.equal(await pidOf(client), pid);
    assert.deepEqual(textRows(await client.query("SELECT to_regclass('gone')")), [[null]]);
    await client.end();
  });
  await t.test(
    'client_login_timeout ends silent clients, and those of a server that is down',
    async () => {
      const silent = await WireClient.connect(fleet);
      const [ours, down] = await Promise.all([
        lastWords(silent),
        refusalOf(fleet, { database: 'down' }),
      ]);
      assert.equal(ours, 'FATAL 08P01: client_login_timeout');
      assert.equal(down, 'FATAL 08P01: client_login_timeout (server down)');
    },
  );
  await t.test('without an entry * an unknown database is refused', async () => {
    const text = 'FATAL 08P01: no such database: unknown';
    assert.equal(await refusalOf(fleet, { database: 'unknown' }), text);
  });
});

/** A fleet of one worker, whose queues and servers have one order, and its PostgreSQL. */
interface Place {
  readonly postgres: TestPostgres;
  readonly fleet: TestPgfleet;
}

async function startModes(
  t: TestContext,
  version: 15 | 18,
  settings: NonNullable<PgfleetOptions['settings']>,
  databases?: Readonly<Record<string, string>>,
): Promise<Place> {
  const postgres = await startPostgres({ version, settings: { log_statement: 'all' } });
  t.after(() => postgres.dispose());
  const roles = Object.keys(ROLES);
  await postgres.query(
    roles.map((role) => `CREATE ROLE ${role} LOGIN PASSWORD '${role}'`).join(';'),
  );
  const lines = Object.entries(DATABASES).map(([name, line]) => [name, `dbname=app ${line}`]);
  const names = ['postgres', 'app', 'app_md5', ...roles];
  const fleet = await startPgfleet({
    postgres,
    databases: { ...Object.fromEntries(lines), ...(databases ?? { '*': '' }) },
    users: Object.fromEntries(Object.entries(ROLES).filter(([, line]) => line !== '')),
    authFile: Object.fromEntries(names.map((name) => [name, name])),
    settings,
  });
  t.after(() => fleet.stop());
  return { postgres, fleet };
}

async function keepsSessions({ fleet }: Place): Promise<void> {
  const sessions = { database: 'sessions' };
  const first = await WireClient.login(fleet, sessions);
  const pid = await pidOf(first);
  await first.query("SET work_mem = '9999kB'; CREATE TEMP TABLE gone (); PREPARE p AS SELECT 1");
  await first.query("SET application_name = 'mine'; LISTEN something");
  const second = await WireClient.login(fleet, sessions);
  const waiting = second.query('SELECT pg_backend_pid()');
  for (let i = 0; i < 3; i++) {
    assert.equal(await pidOf(first), pid);
    assert.equal(await show(first, 'work_mem'), '9999kB');
    assert.equal(typesOf(await first.query('SELECT * FROM gone; EXECUTE p')), 'T C T D C Z:I');
  }
  await until('a client waits', async () => (await waitingIn(fleet, 'sessions')) === 1);
  await first.end();
  assert.deepEqual(textRows(await waiting), [[String(pid)]]);
  assert.notEqual(await show(second, 'work_mem'), '9999kB');
  assert.equal(await show(second, 'application_name'), '');
  const left = await second.query(
    "SELECT to_regclass('gone'), (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels())",
  );
  assert.deepEqual(textRows(left), [[null, '0', '0']]);
  await second.end();
}

async function refusesBlocks({ fleet }: Place): Promise<void> {
  const client = await WireClient.login(fleet, { database: 'statements' });
  assert.equal(typesOf(await client.query('SELECT 1; SELECT 2')), 'T D C T D C Z:I');
  client.send(query('BEGIN'));
  const text = 'FATAL 08P01: transaction blocks not allowed in statement pooling mode';
  assert.equal(await lastWords(client), text);
  const next = await WireClient.login(fleet, { database: 'statements' });
  assert.equal(typesOf(await next.query('SELECT 1')), 'T D C Z:I');
  await next.end();
}

async function ranksModes({ fleet }: Place): Promise<void> {
  const pairs: readonly LoginOptions[] = [
    { database: 'statements', user: 'keeper' },
    { database: 'statements', user: 'app' },
    { database: 'app', user: 'app' },
    { database: 'sessions', user: 'app' },
  ];
  const clients = await Promise.all(pairs.map((pair) => WireClient.login(fleet, pair)));
  const pools = await fleet.console('SHOW POOLS');
  const modes = pairs.map(
    ({ database, user }) =>
      pools.find((pool) => pool['database'] === database && pool['user'] === user)?.['pool_mode'],
  );
  assert.deepEqual(modes, ['session', 'statement', 'transaction', 'session']);
  const [keeper] = clients;
  await keeper!.query("SET work_mem = '9999kB'");
  assert.equal(typesOf(await keeper!.query('BEGIN')), 'C Z:T');
  assert.equal(typesOf(await keeper!.query('COMMIT')), 'C Z:I');
  assert.equal(await show(keeper!, 'work_mem'), '9999kB');
  await endAll(clients);
}

async function sharesServers({ fleet }: Place): Promise<void> {
  const four = { database: 'four' };
  const clients = await Promise.all(
    Array.from({ length: 40 }, () => WireClient.login(fleet, four)),
  );
  const pids = new Set<number>();
  const visit = async (client: WireClient): Promise<void> => {
    for (let i = 0; i < 5; i++) {
      await client.query('BEGIN');
      const pid = await pidOf(client);
      await client.query('SELECT pg_sleep(0.001)');
      assert.equal(await pidOf(client), pid, 'a transaction stays on its server');
      await client.query('COMMIT');
      pids.add(pid);
    }
  };
  await Promise.all(clients.map(visit));
  assert.equal(pids.size, 4);
  await endAll(clients);
}

async function reusesLast({ fleet }: Place): Promise<void> {
  const { clients, pids } = await fourServers(fleet);
  for (const client of clients) assert.equal(await pidOf(client), pids[3]);
  await clients[0]!.query('BEGIN');
  assert.equal(await pidOf(clients[0]!), pids[3]);
  assert.equal(await pidOf(clients[1]!), pids[2]);
  await clients[0]!.query('COMMIT');
  await endAll(clients);
}

/** Four clients whose transactions ran at the same time and ended one after the other. */
async function fourServers(fleet: TestPgfleet): Promise<{ clients: WireClient[]; pids: number[] }> {
  const clients: WireClient[] = [];
  const pids: number[] = [];
  for (let i = 0; i < 4; i++) {
    const client = await WireClient.login(fleet, { database: 'four' });
    await client.query('BEGIN');
    pids.push(await pidOf(client));
    clients.push(client);
  }
  assert.equal(new Set(pids).size, 4);
  for (const client of clients) await client.query('COMMIT');
  return { clients, pids };
}

async function servesInOrder({ fleet }: Place): Promise<void> {
  const one = { database: 'one' };
  const holder = await WireClient.login(fleet, one);
  await holder.query('DROP TABLE IF EXISTS arrivals; CREATE TABLE arrivals (n serial, client int)');
  await holder.query('BEGIN');
  const clients = await Promise.all(Array.from({ length: 12 }, () => WireClient.login(fleet, one)));
  const answers: Promise<unknown>[] = [];
  for (const [i, client] of clients.entries()) {
    answers.push(client.query(`INSERT INTO arrivals (client) VALUES (${i})`));
    await until('it waits', async () => (await waitingIn(fleet, 'one')) === i + 1, { everyMs: 2 });
  }
  // One that leaves the queue does not change the order of the others.
  clients[5]!.destroy();
  answers[5]!.catch(() => undefined);
  await until('it has left', async () => (await waitingIn(fleet, 'one')) === 11, { everyMs: 2 });
  await holder.query('COMMIT');
  await Promise.all(answers.filter((_, i) => i !== 5));
  const rows = textRows(await holder.query('SELECT client FROM arrivals ORDER BY n'));
  assert.deepEqual(rows.flat(), ['0', '1', '2', '3', '4', '6', '7', '8', '9', '10', '11']);
  await endAll([holder, ...clients.filter((_, i) => i !== 5)]);
}

async function tracksParameters({ fleet }: Place): Promise<void> {
  const settings: readonly Readonly<Record<string, string>>[] = [
    {
      application_name: "it's \\ first",
      DateStyle: 'SQL, DMY',
      TimeZone: 'Asia/Tokyo',
      client_encoding: 'LATIN1',
      IntervalStyle: 'iso_8601',
      standard_conforming_strings: 'off',
    },
    { application_name: 'second', DateStyle: 'German, DMY', TimeZone: 'America/Lima' },
    {},
  ];
  const clients = await Promise.all(
    settings.map((parameters) => WireClient.login(fleet, { database: 'one', parameters })),
  );
  for (const [i, client] of clients.entries()) {
    for (const [name, value] of Object.entries(settings[i]!)) {
      assert.equal(client.parameters.get(name), value, `${name} in the welcome`);
    }
  }
  const check = async (client: WireClient, expected: Readonly<Record<string, string>>) => {
    for (const [name, value] of Object.entries(expected)) {
      assert.equal(await show(client, name), value);
    }
  };
  const plain = { application_name: '', DateStyle: 'ISO, MDY', client_encoding: 'UTF8' };
  for (let round = 0; round < 2; round++) {
    await check(clients[0]!, settings[0]!);
    await check(clients[1]!, settings[1]!);
    await check(clients[2]!, { ...plain, TimeZone: 'UTC', IntervalStyle: 'postgres' });
  }
  await clients[1]!.query("SET application_name = 'renamed'; SET timezone = 'Europe/Berlin'");
  await check(clients[0]!, settings[0]!);
  await check(clients[1]!, {
    ...settings[1]!,
    application_name: 'renamed',
    TimeZone: 'Europe/Berlin',
  });
  await endAll(clients);
}

async function replacesOldServers({ postgres, fleet }: Place): Promise<void> {
  const client = await WireClient.login(fleet, { user: 'young', database: 'brief' });
  const first = await pidOf(client);
  assert.equal(await pidOf(client), first);
  await until('an idle one is closed', async () => (await countOf(postgres, 'young')) === 0);
  await client.query('BEGIN');
  const second = await pidOf(client);
  assert.notEqual(second, first);
  await client.query('SELECT pg_sleep(1.2)');
  assert.equal(await pidOf(client), second, 'it is old, and its transaction goes on');
  await client.query('COMMIT');
  await until('it is closed when it is released', async () => {
    return !(await postgres.backends({ user: 'young' })).some(({ pid }) => pid === second);
  });
  await client.end();
}

async function timesOut({ fleet }: Place): Promise<void> {
  const sleeps = async (user: string): Promise<string> => {
    const client = await WireClient.login(fleet, { user });
    client.send(query('BEGIN; SELECT pg_sleep(6)'));
    return lastWords(client);
  };
  const idles = async (user: string, sql: string): Promise<string> => {
    const client = await WireClient.login(fleet, { user });
    await client.query(sql);
    return lastWords(client);
  };
  const waits = async (): Promise<string> => {
    const impatient = { database: 'impatient' };
    const holder = await WireClient.login(fleet, impatient);
    await holder.query('BEGIN');
    const client = await WireClient.login(fleet, impatient);
    client.send(query('SELECT 1'));
    const words = await lastWords(client);
    await holder.query('COMMIT');
    await holder.end();
    return words;
  };
  const timed = async (words: Promise<string>): Promise<string> => {
    const start = performance.now();
    const found = await words;
    const ms = performance.now() - start;
    assert.ok(ms > 900 && ms < 5_000, `"${found}" after ${Math.round(ms)} ms`);
    return found;
  };
  const found = await Promise.all([
    timed(sleeps('quick')),
    timed(sleeps('hasty')),
    timed(idles('awake', 'BEGIN')),
    timed(idles('alert', 'SELECT 1')),
    timed(waits()),
  ]);
  assert.deepEqual(found, [
    'FATAL 08P01: query timeout',
    'FATAL 08P01: transaction timeout',
    'FATAL 08P01: idle transaction timeout',
    'FATAL 08P01: client_idle_timeout',
    'FATAL 08P01: query_wait_timeout',
  ]);
}

async function runsConnectQuery({ fleet }: Place): Promise<void> {
  const client = await WireClient.login(fleet, { database: 'greeting' });
  assert.equal(await show(client, 'work_mem'), '77777kB');
  await client.end();
}

async function forcesUser({ postgres, fleet }: Place): Promise<void> {
  const logins = ['app', 'keeper'].map((user) =>
    WireClient.login(fleet, { user, database: 'forced' }),
  );
  const clients = await Promise.all(logins);
  for (const client of clients) {
    assert.deepEqual(textRows(await client.query('SELECT current_user')), [['app_md5']]);
  }
  assert.equal(await countOf(postgres, 'app_md5'), 1);
  const pools = await fleet.console('SHOW POOLS');
  const users = pools.filter(({ database }) => database === 'forced').map(({ user }) => user);
  assert.deepEqual(users, ['app_md5']);
  await endAll(clients);
}

async function servesUnknown({ fleet }: Place): Promise<void> {
  const client = await WireClient.login(fleet, { database: 'postgres' });
  const row = textRows(await client.query('SELECT current_database(), current_user'));
  assert.deepEqual(row, [['postgres', 'app']]);
  assert.ok(/ LOG C-\S+ \S+ registered new auto-database: postgres$/m.test(fleet.log()));
  await client.end();
}

async function passesRefusals({ fleet }: Place): Promise<void> {
  const database = 'nowhere';
  const text = 'FATAL 3D000: database "nowhere" does not exist';
  assert.equal(await refusalOf(fleet, { database }), text);
  assert.equal(await refusalOf(fleet, { database }), text, 'after server_login_retry');
}

async function survives({ postgres, fleet }: Place): Promise<void> {
  const clients = await Promise.all(Array.from({ length: 4 }, () => WireClient.login(fleet)));
  for (const client of clients) await client.query('SELECT 1');
  const [busy, patient, ...others] = clients as [WireClient, WireClient, ...WireClient[]];
  await busy.query('BEGIN');
  await postgres.stop();
  const lost = await busy.untilClose();
  assert.equal(lost.at(-1)?.type, 'E', 'the client of a lost server is told');
  const answer = patient.query('SELECT 1', 20_000);
  for (const client of others) {
    // The first of them may come before the first attempt has failed, and waits then.
    await until('the attempt has failed', async () => /connect failed/.test(fleet.log()));
    client.send(query('SELECT 1'));
    const cached = 'cached error: connect failed (server_login_retry)';
    assert.equal(await lastWords(client), `FATAL 08P01: server login has been failing, ${cached}`);
  }
  await postgres.start();
  assert.equal(typesOf(await answer), 'T D C Z:I');
  await patient.end();
  const client = await WireClient.login(fleet);
  assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
  await client.end();
}

async function pidOf(client: WireClient): Promise<number> {
  return Number(textRows(await client.query('SELECT pg_backend_pid()'))[0]?.[0]);
}

async function show(client: WireClient, name: string): Promise<string | null | undefined> {
  return textRows(await client.query(`SHOW ${name}`))[0]?.[0];
}

async function countOf(postgres: TestPostgres, user: string): Promise<number> {
  return (await postgres.backends({ user })).length;
}

async function waitingIn(fleet: TestPgfleet, database: string): Promise<number> {
  const pools = await fleet.console('SHOW POOLS');
  return Number(pools.find((pool) => pool['database'] === database)?.['cl_waiting']);
}

/** The error before the other side closes. */
async function lastWords(client: WireClient): Promise<string> {
  const messages = await client.untilClose();
  const error = messages.find(({ type }) => type === 'E');
  assert.ok(error !== undefined, `closed after ${typesOf(messages)}`);
  client.destroy();
  return new WireError(error.body).message;
}

/** What a login is refused with. */
async function refusalOf(fleet: TestPgfleet, options: LoginOptions): Promise<string> {
  const outcome = await WireClient.login(fleet, options).then(
    (client) => {
      client.destroy();
      return 'let in';
    },
    (error: unknown) => {
      if (error instanceof WireError) return error.message;
      throw error;
    },
  );
  return outcome;
}

function countIn(text: string, part: string): number {
  return text.split(part).length - 1;
}

async function endAll(clients: readonly WireClient[]): Promise<void> {
  await Promise.all(clients.map((client) => client.end()));
}
