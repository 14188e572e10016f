/** Limits of clients, shutdown, and which of several reasons to refuse a login is the one told. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { cancelRequest, message, query, startup } from '../support/messages.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleNotes, type RuleOptions, rule } from '../support/rule.ts';
import { ScramClient } from '../support/scram.ts';
import {
  APP,
  fatal,
  linesOf,
  type Step,
  saslFirst,
  scramSteps,
  transcript,
  WELCOME,
} from '../support/transcript.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient } from '../support/wire-client.ts';

const NO_MORE = fatal('no more connections allowed (max_client_conn)');
const NO_MORE_DB = fatal('client connections exceeded (max_db_client_connections)');
const NO_MORE_USER = fatal('client connections exceeded (max_user_client_connections)');
const TOO_LONG = 'u'.repeat(128);
/** A minor version that nobody speaks. */
const NEWER = 0x0003_0063;

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
});

const options = (settings: Section = {}): RuleOptions => ({
  postgres,
  databases: { app: '', forced: 'dbname=app user=app password=app' },
  authFile: { app: 'app', other: 'other', postgres: 'postgres' },
  settings,
});

async function loggedIn(
  t: TestContext,
  pooler: TestPooler,
  login: LoginOptions = {},
): Promise<WireClient> {
  const client = await WireClient.login(pooler, login);
  t.after(() => client.destroy());
  return client;
}

type Refused = readonly [what: string, steps: readonly Step[], says: readonly string[]];

/** With one client logged in, each of these is answered so. */
function afterOne(
  name: string,
  settings: Section,
  refused: readonly Refused[],
  notes: RuleNotes = {},
): void {
  rule(
    name,
    () => options(settings),
    async (pooler, t) => {
      await loggedIn(t, pooler);
      for (const [what, steps, says] of refused) {
        assert.deepEqual(await transcript(pooler, steps), says, what);
      }
    },
    notes,
  );
}

afterOne(
  'max_client_conn refuses behind the checks of the startup packet, before all others',
  { max_client_conn: 1, auth_type: 'scram-sha-256' },
  [
    ['a known user', [startup(APP)], NO_MORE],
    [
      'an unsupported parameter',
      [startup({ ...APP, geqo: '' })],
      fatal('unsupported startup parameter: geqo'),
    ],
    ['no user', [startup({ database: 'app' })], fatal('no username supplied')],
    ['a user name too long', [startup({ user: TOO_LONG })], NO_MORE],
    ['an unknown user of an unknown database', [startup({ user: 'x' })], NO_MORE],
  ],
);

afterOne(
  'max_client_conn refuses without a negotiation',
  { max_client_conn: 1 },
  [['a newer version', [startup({ ...APP, '_pq_.x': '' }, NEWER)], NO_MORE]],
  { since: '1.20' },
);

rule(
  'whoever is connected counts for max_client_conn, also before the login',
  () => options({ max_client_conn: 2, tcp_defer_accept: 0 }),
  async (pooler, t) => {
    const silent = await WireClient.connect(pooler);
    t.after(() => silent.destroy());
    silent.send(Buffer.of(0));
    const half = await WireClient.connect(pooler);
    t.after(() => half.destroy());
    half.send(startup(APP).subarray(0, 12));
    await until('both count', async () => {
      const client = await WireClient.connect(pooler);
      client.send(startup(APP));
      const lines = linesOf(await client.untilClose(300).catch(() => []));
      client.destroy();
      return lines[0] === NO_MORE[0];
    });
    silent.destroy();
    await until('there is room again', async () => {
      return (await transcript(pooler, [startup(APP)])).at(-1) === 'Z:I';
    });
  },
  { since: '1.20' },
);

rule(
  'a cancel request is taken when max_client_conn is reached',
  () => options({ max_client_conn: 1 }),
  async (pooler, t) => {
    const client = await loggedIn(t, pooler);
    client.send(query("DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(60); END $$"));
    await client.until('N');
    assert.deepEqual(await transcript(pooler, [cancelRequest(client.key)]), ['closed']);
    assert.match(linesOf(await client.untilReady())[0]!, /^ERROR 57014 /);
  },
);

afterOne('the console is open when max_client_conn is reached', { max_client_conn: 1 }, [
  ['an administrator', [startup({ user: 'postgres', database: 'pgbouncer' })], WELCOME],
]);

for (const [setting, says] of [
  ['max_db_client_connections', NO_MORE_DB],
  ['max_user_client_connections', NO_MORE_USER],
] as const) {
  afterOne(
    `${setting} refuses before a password is asked for, behind all that the startup packet says`,
    { [setting]: 1, auth_type: 'scram-sha-256' },
    [
      ['the same user and database', [startup(APP)], says],
      [
        'a user name too long',
        [startup({ user: TOO_LONG, database: 'app' })],
        fatal('username too long'),
      ],
      ['a newer version', [startup({ ...APP, '_pq_.x': '' })], ['v 3.0 _pq_.x', ...says]],
      [
        'another database and user',
        scramSteps('other', 'other', 'forced'),
        ['R10', 'R11', 'R12', ...WELCOME],
      ],
    ],
    { since: '1.24' },
  );
}

afterOne(
  'the limit of the database is told before that of the user',
  { max_db_client_connections: 1, max_user_client_connections: 1 },
  [['both', [startup(APP)], NO_MORE_DB]],
  { since: '1.24' },
);

afterOne(
  'max_user_client_connections counts over all databases, unknown ones too',
  { max_user_client_connections: 1 },
  [
    ['another database', [startup({ user: 'app', database: 'forced' })], NO_MORE_USER],
    ['an unknown database', [startup({ user: 'app', database: 'nowhere' })], NO_MORE_USER],
  ],
  { since: '1.24' },
);

rule(
  'with auth_type any the forced user counts, behind an error of the configuration',
  () => options({ max_user_client_connections: 1, auth_type: 'any' }),
  async (pooler, t) => {
    await loggedIn(t, pooler, { user: 'one', database: 'forced' });
    const second = [startup({ user: 'two', database: 'forced' })];
    assert.deepEqual(await transcript(pooler, second), NO_MORE_USER);
    const without = [startup({ user: 'app', database: 'app' })];
    assert.deepEqual(await transcript(pooler, without), fatal('bouncer config error'));
  },
  { since: '1.24' },
);

rule(
  'a client that was refused or has left counts no more',
  () => options({ max_db_client_connections: 1, max_user_client_connections: 1 }),
  async (pooler) => {
    for (let round = 0; round < 3; round++) {
      const client = await until('there is room', () => WireClient.login(pooler));
      assert.deepEqual(await transcript(pooler, [startup(APP)]), NO_MORE_DB);
      await client.end();
    }
  },
  { since: '1.24' },
);

rule(
  'a user name that is too long is refused for the console too',
  () => options(),
  async (pooler) => {
    const lines = await transcript(pooler, [startup({ user: TOO_LONG, database: 'pgbouncer' })]);
    assert.deepEqual(lines, fatal('username too long'));
  },
);

rule(
  'who has not logged in when the pooler shuts down is told so, after the authentication',
  () => options({ auth_type: 'scram-sha-256' }),
  async (pooler, t) => {
    // What keeps the pooler up.
    const busy = await loggedIn(t, pooler);
    await busy.query('BEGIN');
    const late = await WireClient.connect(pooler);
    t.after(() => late.destroy());
    const scram = new ScramClient('app');
    late.send(startup(APP));
    await late.until('R');
    pooler.signal('SIGINT');
    await until('it shuts down', () => /shutting down/i.test(pooler.log()));
    late.send(saslFirst('SCRAM-SHA-256', scram.first()));
    const challenge = (await late.until('R')).at(-1)!.body.toString('utf8', 4);
    late.send(message('p', [Buffer.from(scram.final(challenge))]));
    const refused = ['R12', 'FATAL 08P01 pooler is shutting down'];
    assert.deepEqual(linesOf(await late.untilClose()), refused);
  },
  { since: '1.20' },
);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
