/** What the log says of logins, refusals and the console, line by line, as PgBouncer writes it. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { ConsoleClient } from '../support/console.ts';
import { message, query, sslRequest, startup } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleCase, type RuleOptions, rule } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient } from '../support/wire-client.ts';
import { logSince } from './support.ts';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

const ADMIN = { user: 'postgres', database: 'pgbouncer' };

const options = (): RuleOptions => ({
  postgres,
  databases: {
    app: '',
    missing: 'dbname=missing',
    one: 'dbname=app pool_size=1 reserve_pool_size=1',
  },
  settings: { auth_type: 'scram-sha-256', stats_users: 'app_plain', reserve_pool_timeout: 0.1 },
  logs: [/ ERROR /, /server login failed: FATAL/, /pooler error/],
});

interface Case {
  readonly name: string;
  readonly happen: (pooler: TestPooler) => Promise<void>;
  readonly lines: readonly string[];
}

/** Somebody who logs in and is refused, or leaves. */
async function visit(pooler: TestPooler, who: LoginOptions): Promise<void> {
  const client = await WireClient.login(pooler, who).catch(() => null);
  await client?.end();
}

/** Says some bytes, hears something if it is to, and leaves without a word. */
async function look(pooler: TestPooler, bytes: Uint8Array, answers = 0): Promise<void> {
  const client = await WireClient.connect(pooler);
  client.send(bytes);
  if (answers > 0) await client.rawBytes(answers);
  client.destroy();
  // Behind whose lines that client's would be seen.
  await visit(pooler, {});
}

async function command(pooler: TestPooler, who: LoginOptions, ...sql: string[]): Promise<void> {
  const client = await WireClient.login(pooler, who);
  for (const one of sql) await client.query(one);
  await client.end();
}

const attempt = (database: string, user: string): string =>
  `login attempt: db=${database} user=${user} tls=no replication=no`;
const LEFT = 'closing because: client close request (age)';
/** What `visit` of an ordinary client leaves when its server is there already. */
const VISIT = [`LOG C app/app ${attempt('app', 'app')}`, `LOG C app/app ${LEFT}`];
const said = (text: string, who = 'pgbouncer/postgres'): string[] => [
  `ERROR ${text}`,
  `WARNING C ${who} pooler error: ${text}`,
];
const AT_CONSOLE = `LOG C pgbouncer/postgres ${attempt('pgbouncer', 'postgres')}`;
const FROM_CONSOLE = `LOG C pgbouncer/postgres ${LEFT}`;

/** A name of a parameter that is too long to be told, and the text that is left of it. */
const LONG = 'x'.repeat(300);
const CUT = `unsupported startup parameter: ${LONG}`.slice(0, 127);

const CASES: readonly Case[] = [
  {
    name: 'whoever leaves before the login is over leaves no line of that',
    happen: async (pooler) => {
      await look(pooler, Buffer.alloc(0));
      await look(pooler, startup({ user: 'app', database: 'app' }).subarray(0, 20));
      await look(pooler, sslRequest(), 1);
      await look(pooler, startup({ user: 'app_md5', database: 'app' }), 9);
    },
    lines: [
      ...[...VISIT, ...VISIT, ...VISIT],
      `LOG C app/app_md5 ${attempt('app', 'app_md5')}`,
      ...VISIT,
    ],
  },
  {
    name: 'a wrong password',
    happen: (pooler) => visit(pooler, { password: 'wrong' }),
    lines: [
      VISIT[0]!,
      'ERROR C app/app password authentication failed',
      'LOG C app/app closing because: SASL authentication failed (age)',
      'WARNING C app/app pooler error: SASL authentication failed',
    ],
  },
  {
    name: 'a user whom nobody knows',
    happen: (pooler) => visit(pooler, { user: 'nobody' }),
    lines: [
      'LOG C (nodb)/(nouser) no such user: nobody',
      `LOG C (nodb)/nobody ${attempt('app', 'nobody')}`,
      'ERROR C (nodb)/nobody password authentication failed',
      'LOG C (nodb)/nobody closing because: SASL authentication failed (age)',
      'WARNING C (nodb)/nobody pooler error: SASL authentication failed',
    ],
  },
  {
    name: 'a database that there is not',
    happen: (pooler) => visit(pooler, { database: 'd'.repeat(90) }),
    lines: [
      `LOG C (nodb)/app ${attempt('d'.repeat(63), 'app')}`,
      `LOG C (nodb)/app login failed: db=${'d'.repeat(63)} user=app`,
      `LOG C (nodb)/app closing because: no such database: ${'d'.repeat(63)} (age)`,
      `WARNING C (nodb)/app pooler error: no such database: ${'d'.repeat(63)}`,
    ],
  },
  {
    name: 'a parameter that is not taken, with its value, and a reason that is cut',
    happen: async (pooler) => {
      const client = await WireClient.connect(pooler);
      client.send(startup({ user: 'app', [LONG]: 'value' }));
      const [error] = await client.untilClose();
      assert.ok(error!.body.includes(`M${CUT}\0`));
    },
    lines: [
      `WARNING C (nodb)/(nouser) unsupported startup parameter: ${LONG}=value`,
      `LOG C (nodb)/(nouser) closing because: ${CUT} (age)`,
      `WARNING C (nodb)/(nouser) pooler error: ${CUT}`,
    ],
  },
  {
    name: 'a server that refuses the login',
    happen: (pooler) => visit(pooler, { database: 'missing' }),
    lines: [
      `LOG C missing/app ${attempt('missing', 'app')}`,
      'LOG S missing/app new connection to server (from 127.0.0.1:N)',
      'WARNING server login failed: FATAL database "missing" does not exist',
      'LOG C missing/app closing because: database "missing" does not exist (age)',
      'WARNING C missing/app pooler error: database "missing" does not exist',
      'LOG S missing/app closing because: database "missing" does not exist (age)',
    ],
  },
  {
    name: 'the reserve, with the client that waits for it',
    happen: async (pooler) => {
      const [first, second] = [
        await WireClient.login(pooler, { database: 'one' }),
        await WireClient.login(pooler, { database: 'one' }),
      ];
      await first!.query('BEGIN');
      await second!.query('SELECT 1');
      await first!.query('COMMIT');
      await first!.end();
      await second!.end();
    },
    lines: [
      `LOG C one/app ${attempt('one', 'app')}`,
      'LOG S one/app new connection to server (from 127.0.0.1:N)',
      `LOG C one/app ${attempt('one', 'app')}`,
      'WARNING C one/app taking connection from reserve_pool',
      'LOG S one/app new connection to server (from 127.0.0.1:N)',
      ...[`LOG C one/app ${LEFT}`, `LOG C one/app ${LEFT}`],
    ],
  },
  {
    name: 'errors of the console, each without a name and with one',
    happen: (pooler) =>
      command(
        pooler,
        ADMIN,
        ...['nonsense', 'PAUSE none', 'KILL_CLIENT 0', 'KILL_CLIENT', 'RESUME app', 'DISABLE'],
        ...['SET nothing = 1', 'SET query_timeout = soon', 'RELOAD now'],
      ),
    lines: [
      AT_CONSOLE,
      ...said("invalid command 'nonsense', use SHOW HELP;"),
      ...["LOG PAUSE 'none' command issued", ...said('no such database: none')],
      ...said('client not found'),
      ...said('invalid client pointer supplied'),
      ...["LOG RESUME 'app' command issued", ...said('database app is not paused')],
      ...said('a database is required'),
      ...['ERROR unknown parameter: pgbouncer/nothing', ...said('SET failed')],
      ...said('SET failed'),
      ...said("invalid command 'RELOAD now', use SHOW HELP;"),
      FROM_CONSOLE,
    ],
  },
  {
    name: 'commands of the console',
    happen: (pooler) =>
      command(
        pooler,
        ADMIN,
        ...['PAUSE app', 'RESUME app', 'DISABLE app', 'ENABLE app', 'RECONNECT missing'],
        ...['WAIT_CLOSE', 'KILL missing', 'RESUME missing', 'RELOAD', 'SHOW VERSION'],
      ),
    lines: [
      AT_CONSOLE,
      "LOG PAUSE 'app' command issued",
      'LOG S app/app closing because: pause mode (age)',
      ...['RESUME', 'DISABLE', 'ENABLE'].map((word) => `LOG ${word} 'app' command issued`),
      "LOG RECONNECT 'missing' command issued",
      'LOG WAIT_CLOSE command issued',
      ...['KILL', 'RESUME'].map((word) => `LOG ${word} 'missing' command issued`),
      'LOG RELOAD command issued',
      FROM_CONSOLE,
    ],
  },
  {
    name: 'a console of somebody who may only look, and of somebody who may not even that',
    happen: async (pooler) => {
      await command(pooler, { user: 'app_plain', database: 'pgbouncer' }, 'PAUSE', 'SHUTDOWN');
      await visit(pooler, { user: 'app', database: 'pgbouncer' });
    },
    lines: [
      `LOG C pgbouncer/app_plain ${attempt('pgbouncer', 'app_plain')}`,
      ...said('admin access needed', 'pgbouncer/app_plain'),
      ...said('admin access needed', 'pgbouncer/app_plain'),
      `LOG C pgbouncer/app_plain ${LEFT}`,
      `LOG C pgbouncer/app ${attempt('pgbouncer', 'app')}`,
      'LOG C pgbouncer/app closing because: not allowed (age)',
      'WARNING C pgbouncer/app pooler error: not allowed',
    ],
  },
  {
    name: 'a message that the console does not take',
    happen: async (pooler) => {
      const client = await WireClient.login(pooler, ADMIN);
      client.send(message('F', [Buffer.alloc(8)]));
      await client.untilClose();
    },
    lines: [
      AT_CONSOLE,
      ...said('unsupported packet type for admin console: 70'),
      'LOG C pgbouncer/postgres closing because: bad packet (age)',
      'WARNING C pgbouncer/postgres pooler error: bad packet',
    ],
  },
  {
    name: 'a client that the console ends, in whose transaction a server is',
    happen: async (pooler) => {
      const console = new ConsoleClient(await WireClient.login(pooler, ADMIN));
      const client = await WireClient.login(pooler, { database: 'one' });
      await client.query('BEGIN');
      const clients = await console.rows('SHOW CLIENTS');
      const id = clients.find(({ database }) => database === 'one')?.['id'];
      await console.run(`KILL_CLIENT ${id}`);
      await client.untilClose();
      await console.wire.end();
    },
    lines: [
      AT_CONSOLE,
      `LOG C one/app ${attempt('one', 'app')}`,
      'LOG C one/app closing because: admin forced disconnect (age)',
      'LOG S one/app closing because: client disconnect while server was not ready (age)',
      'WARNING C one/app pooler error: admin forced disconnect',
      FROM_CONSOLE,
    ],
  },
];

/** Lines since a place, ports masked. */
const linesSince = (pooler: TestPooler, from: number): string[] =>
  logSince(pooler, from).map((line) => line.replace(/127\.0\.0\.1:\d+/g, '127.0.0.1:N'));

rules(
  'lines of logins, refusals and commands, in their order',
  options,
  CASES.map(
    ({ name, happen, lines }): RuleCase => ({
      name,
      since: '1.24.0',
      check: async (pooler) => {
        // The server of `app` is there, and what it took to have it is over.
        await command(pooler, {}, 'SELECT 1');
        await until('it has left', () => linesSince(pooler, 0).at(-1) === VISIT[1]);
        const from = pooler.log().length;
        await happen(pooler);
        let seen: string[] = [];
        await until('all is written', () => {
          seen = linesSince(pooler, from);
          return seen.length >= lines.length;
        }).catch(() => undefined);
        assert.deepEqual(seen, lines);
      },
    }),
  ),
);

rule(
  'with verbose the statements that set parameters, and spellings that differ, are lines each',
  () => ({ postgres, databases: { app: '' }, settings: { verbose: 1 } }),
  async (pooler) => {
    const parameters = { DateStyle: 'ISO', application_name: 'x' };
    const client = await WireClient.login(pooler, { parameters });
    for (let n = 0; n < 2; n++) await client.query('SELECT 1');
    await client.end();
    const lines = linesSince(pooler, 0).filter((line) => /varcache|logged in/.test(line));
    assert.deepEqual(lines, [
      'DEBUG C app/app logged in',
      "DEBUG S app/app varcache_apply: SET DateStyle='ISO';SET application_name='x';",
      'DEBUG C app/app varcache_set_canonical: setting DateStyle to its canonical version ISO -> ISO, MDY',
    ]);
  },
  { since: '1.24.0' },
);

rule(
  'with verbose no password and no proof is written',
  () => ({
    postgres,
    databases: { app: 'user=app password=app', other: 'dbname=app user=app password=app' },
    settings: { verbose: 3, auth_type: 'scram-sha-256' },
    authFile: { secretive: 'the password', postgres: 'postgres' },
    logs: [/password authentication failed/, /pooler error/],
  }),
  async (pooler) => {
    const who = { user: 'secretive', database: 'app', password: 'the password' };
    await command(pooler, who, 'SELECT 1');
    await visit(pooler, { ...who, password: 'another' });
    assert.match(pooler.log(), /\] DEBUG /);
    assert.doesNotMatch(pooler.log(), /the password|SCRAM-SHA-256\$|[pvsr]=[A-Za-z0-9+/]{20}/);
  },
  {
    differs: {
      because: 'PgBouncer writes what is stored, and all that is said to prove it',
      check: async (pooler) => {
        const who = { user: 'secretive', database: 'app', password: 'the password' };
        await command(pooler, who, 'SELECT 1');
        assert.match(pooler.log(), /stored secret = "the password"/);
      },
    },
  },
);

rule(
  'an error of the console is told whole, however long it is, and the session goes on',
  () => ({ postgres, logs: [/invalid command/] }),
  async (pooler) => {
    const console = new ConsoleClient(await WireClient.login(pooler, ADMIN));
    const sql = `(${'x'.repeat(1500)})`;
    assert.equal(await console.run(sql), `ERROR 08P01 invalid command '${sql}', use SHOW HELP;`);
    assert.equal(await console.run('SHOW VERSION'), 'SHOW');
    await console.wire.end();
  },
  {
    differs: {
      because: 'PgBouncer’s session dies of it',
      check: async (pooler) => {
        const client = await WireClient.login(pooler, ADMIN);
        client.send(query(`(${'x'.repeat(1500)})`));
        await client.untilClose();
      },
    },
  },
);

test('the server before which all this ran ends', () => postgres.dispose());
