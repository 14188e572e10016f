/** How a client proves who it is, what it is told when it cannot, and the welcome. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { before, test } from 'node:test';
import { int32, message, reportFields, sslRequest, startup } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import type { RuleCase } from '../support/rule.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import {
  APP,
  type Dialogue,
  fatal,
  linesOf,
  ruleOf,
  type Step,
  saslFirst,
  scramSteps,
  transcript,
  WELCOME,
} from '../support/transcript.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

/** What cannot be read yet may still come, PgBouncer finds, although the message is all there. */
const WAITS_ON = {
  because: 'PgBouncer goes on waiting when a password message cannot be read; it is refused here',
};
const SCRAM_FAILED = fatal('SASL authentication failed');
const WRONG_MECHANISM = fatal('client selected an invalid SASL authentication mechanism');
const WRONG_PASSWORD = fatal('password authentication failed');
const NO_SUCH_DATABASE = fatal('no such database: nowhere');
const asked = (...answers: readonly Step[]): Step[] => [startup(APP), { until: 'R' }, ...answers];

const TRUST: readonly Dialogue[] = [
  {
    name: 'a known user gets in without a password',
    steps: [startup(APP)],
    says: WELCOME,
  },
  {
    name: 'an unknown user does not',
    steps: [startup({ user: 'u'.repeat(127), database: 'app' })],
    says: fatal('"trust" authentication failed'),
  },
  {
    name: 'an unknown database is told after the authentication',
    steps: [startup({ user: 'app', database: 'nowhere' })],
    says: NO_SUCH_DATABASE,
  },
  {
    name: 'an unknown user of an unknown database is told that the authentication failed',
    steps: [startup({ user: 'nobody', database: 'nowhere' })],
    says: fatal('"trust" authentication failed'),
  },
  {
    name: 'the name of an unknown database is cut to 63 bytes',
    steps: [startup({ user: 'app', database: 'd'.repeat(70) })],
    says: fatal(`no such database: ${'d'.repeat(63)}`),
  },
  {
    name: 'a user of neither list is not allowed in the console',
    steps: [startup({ user: 'app', database: 'pgbouncer' })],
    says: fatal('not allowed'),
  },
];

const SCRAM: readonly Dialogue[] = [
  {
    name: 'the right password',
    steps: scramSteps('app'),
    says: ['R10', 'R11', 'R12', ...WELCOME],
  },
  { name: 'a wrong password', steps: scramSteps('wrong'), says: ['R10', 'R11', ...SCRAM_FAILED] },
  {
    name: 'an unknown user is asked like a known one',
    steps: scramSteps('app', 'nobody'),
    says: ['R10', 'R11', ...SCRAM_FAILED],
  },
  {
    name: 'a wrong password for an unknown database',
    steps: scramSteps('wrong', 'app', 'nowhere'),
    says: ['R10', 'R11', ...SCRAM_FAILED],
  },
  {
    name: 'the right password for an unknown database',
    steps: scramSteps('app', 'app', 'nowhere'),
    says: ['R10', 'R11', 'R12', ...NO_SUCH_DATABASE],
  },
  {
    name: 'a user who is not allowed in the console is told before a password is asked for',
    steps: [startup({ user: 'app', database: 'pgbouncer' })],
    says: fatal('not allowed'),
  },
  {
    name: 'another mechanism',
    steps: asked(saslFirst('SCRAM-SHA-256-PLUS', 'n,,n=,r=abc')),
    says: ['R10', ...WRONG_MECHANISM],
  },
  ...[
    ['an empty message', message('p')],
    ['a message without a NUL', message('p', [Buffer.from('SCRAM-SHA-256')])],
  ].map(([name, bytes]) => ({
    name: name as string,
    steps: asked(bytes as Buffer),
    says: ['R10', ...WRONG_MECHANISM],
    bouncer: WAITS_ON,
  })),
  {
    name: 'a first message cut short',
    steps: asked(message('p', ['SCRAM-SHA-256', int32(400), Buffer.from('n,,')])),
    says: ['R10', ...SCRAM_FAILED],
    bouncer: WAITS_ON,
  },
  ...[
    ['a first message of nonsense', 'nonsense'],
    ['an empty first message', ''],
    ['a first message without a nonce', 'n,,n='],
  ].map(([name, text]) => ({
    name: name!,
    steps: asked(saslFirst('SCRAM-SHA-256', text!)),
    says: ['R10', ...SCRAM_FAILED],
  })),
  ...['', 'c=biws', 'c=biws,r=wrong,p=AAAA', 'nonsense'].map((final) => ({
    name: `the final message '${final}'`,
    steps: [...scramSteps('app').slice(0, 4), message('p', [Buffer.from(final)])],
    says: ['R10', 'R11', ...SCRAM_FAILED],
  })),
];

const md5 = (...parts: readonly (string | Uint8Array)[]): string => {
  const hash = createHash('md5');
  for (const part of parts) hash.update(part);
  return hash.digest('hex');
};
const md5Answer = (user: string, password: string) => (request: Buffer) =>
  message('p', [`md5${md5(md5(password, user), request.subarray(4))}`]);

const MD5: readonly Dialogue[] = [
  {
    name: 'the right password',
    steps: asked(md5Answer('app', 'app')),
    says: ['R5', ...WELCOME],
  },
  {
    name: 'a wrong password',
    steps: asked(md5Answer('app', 'wrong')),
    says: ['R5', ...WRONG_PASSWORD],
  },
  {
    name: 'an unknown user is asked like a known one',
    steps: [startup({ user: 'nobody', database: 'app' }), { until: 'R' }, md5Answer('nobody', '')],
    says: ['R5', ...WRONG_PASSWORD],
  },
  {
    name: 'an answer cut short',
    steps: asked(message('p', ['md5'])),
    says: ['R5', ...WRONG_PASSWORD],
  },
];

const PLAIN: readonly Dialogue[] = [
  {
    name: 'the right password',
    steps: asked(message('p', ['app'])),
    says: ['R3', ...WELCOME],
  },
  {
    name: 'a wrong password',
    steps: asked(message('p', ['wrong'])),
    says: ['R3', ...WRONG_PASSWORD],
  },
  {
    name: 'an empty password',
    steps: asked(message('p', [''])),
    says: ['R3', ...fatal('empty password returned by client')],
  },
  {
    name: 'an unknown user is asked like a known one',
    steps: [startup({ user: 'nobody', database: 'app' }), { until: 'R' }, message('p', ['app'])],
    says: ['R3', ...WRONG_PASSWORD],
  },
  {
    name: 'a password without a NUL',
    steps: asked(message('p', [Buffer.from('app')])),
    says: ['R3', ...WRONG_PASSWORD],
    bouncer: WAITS_ON,
  },
];

const ANY: readonly Dialogue[] = [
  {
    name: 'any name gets in and uses the forced user',
    steps: [startup({ user: 'whoever', database: 'forced' })],
    says: WELCOME,
  },
  {
    name: 'a database without a forced user is an error of the configuration',
    steps: [startup({ user: 'whoever', database: 'app' })],
    says: fatal('bouncer config error'),
  },
];

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
});

const options = (settings: Readonly<Record<string, string | number>> = {}): RuleOptions => ({
  postgres,
  databases: { app: '', forced: 'dbname=app user=app password=app' },
  authFile: { app: 'app', postgres: 'postgres' },
  size: 2,
  settings,
  // Why a SCRAM exchange failed is a line of its own.
  logs: [/ERROR C-\S+ /],
});

for (const [authType, dialogues] of [
  ['trust', TRUST],
  ['scram-sha-256', SCRAM],
  ['md5', MD5],
  ['plain', PLAIN],
  ['any', ANY],
] as const) {
  rules(`auth_type ${authType}`, () => options({ auth_type: authType }), dialogues.map(ruleOf));
}

/** Sees to it that the pool has a server, so that no welcome waits. */
async function warmed(pooler: TestPooler): Promise<void> {
  const client = await WireClient.login(pooler);
  await client.query('SELECT 1');
  await client.end();
}

const inPool = async (pooler: TestPooler, column: string): Promise<number> => {
  const rows = await pooler.console('SHOW POOLS');
  return Number(rows.find(({ database }) => database === 'app')?.[column] ?? 0);
};

const WELCOMES: readonly RuleCase[] = [
  {
    name: 'no server is linked by the welcome, only by the first request',
    check: async (pooler) => {
      await warmed(pooler);
      const client = await WireClient.login(pooler);
      assert.equal(await inPool(pooler, 'sv_active'), 0);
      await client.query('BEGIN');
      await until('it is linked', async () => (await inPool(pooler, 'sv_active')) === 1);
      await client.end();
    },
  },
  {
    name: 'a value of the startup packet is echoed as it came, valid or not',
    check: async (pooler) => {
      await warmed(pooler);
      const parameters = { TimeZone: 'No/Where', application_name: 'one' };
      const client = await WireClient.login(pooler, { parameters });
      assert.equal(client.parameters.get('TimeZone'), 'No/Where');
      assert.equal(client.parameters.get('application_name'), 'one');
      await client.end();
    },
  },
];
// One worker, so that the pool that was warmed is the client's.
rules('the welcome', () => ({ ...options(), size: 1 }), WELCOMES);

rule(
  'the welcome is AuthenticationOk, ParameterStatus, the key, the notice and ReadyForQuery, in this order',
  () => options({ login_notify_message: 'be kind' }),
  async (pooler) => {
    const client = await WireClient.connect(pooler);
    const received = await client.login();
    assert.match(received.map(({ type }) => type).join(''), /^RS{10,}KNZ$/);
    assert.deepEqual(linesOf(received), ['R0', 'K', 'N be kind', 'Z:I']);
    const notice = reportFields(received.find(({ type }) => type === 'N')!.body);
    assert.deepEqual(notice, { S: 'NOTICE', C: '00000', M: 'be kind' });
    await client.end();
  },
  { since: '1.25' },
);

rule(
  'client_login_timeout ends whoever is not logged in',
  () => options({ auth_type: 'scram-sha-256', client_login_timeout: 1 }),
  async (pooler) => {
    const starts: readonly (readonly Step[])[] = [
      [Buffer.of(0)],
      [sslRequest(), { raw: 1 }],
      [startup(APP).subarray(0, 12)],
      [startup(APP), { until: 'R' }],
      scramSteps('app').slice(0, 4),
    ];
    const said = await Promise.all(starts.map((steps) => transcript(pooler, steps)));
    for (const lines of said) assert.deepEqual(lines.slice(-2), fatal('client_login_timeout'));
    const client = await WireClient.login(pooler);
    await client.query('SELECT 1');
    await client.end();
  },
  { since: '1.20' },
);

rule(
  'client_login_timeout says that the server is down to who waits for the first connection',
  () => ({
    ...options({ client_login_timeout: 1 }),
    databases: { app: 'host=127.0.0.1 port=1' },
    logs: [/./],
  }),
  async (pooler) => {
    const lines = await transcript(pooler, [startup(APP)]);
    assert.deepEqual(lines, fatal('client_login_timeout (server down)'));
  },
);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
