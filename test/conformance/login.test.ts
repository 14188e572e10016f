/**
 * What a client may say until it is logged in, and what it is told: the same bytes go to fleets of
 * one and two workers and, where it is installed, to Debian's PgBouncer. Where PgBouncer 1.18 answers
 * otherwise the case says so and why.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { before, test } from 'node:test';
import {
  cancelRequest,
  int32,
  message,
  PROTOCOL_3_0,
  PROTOCOL_3_2,
  packet,
  query,
  reportFields,
  sslRequest,
  startup,
  type WireMessage,
} from '../support/messages.ts';
import { hasPgbouncer, pgbouncerVersion, startPgbouncer } from '../support/pgbouncer.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import type { PoolerOptions, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { ScramClient } from '../support/scram.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

/** Bytes to send, made of the last answer perhaps; or an answer to wait for: untyped bytes, or a message of this type. */
type Step =
  | Buffer
  | { readonly raw: number }
  | { readonly until: string }
  | ((last: Buffer) => Buffer);

interface Case {
  readonly name: string;
  readonly steps: readonly Step[];
  /** What comes back; ParameterStatus is left out. The last is `closed`, or the login's `Z:I`. */
  readonly says: readonly string[];
  /** PgBouncer 1.18's answer where it is another, and why that is so. */
  readonly bouncer?: { readonly says: readonly string[] | null; readonly because: string };
}

const GSS_REQUEST = packet([int32(80_877_104)]);
const WELCOME = ['R0', 'K', 'Z:I'];
const APP = { user: 'app', database: 'app' };
const BAD_OPTIONS =
  "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed";

const fatal = (text: string): string[] => [`FATAL 08P01 ${text}`, 'closed'];
const badHeader = (bytes: Buffer): string[] =>
  fatal(`bad packet header: '${bytes.toString('hex', 0, Math.min(8, bytes.length))}'`);
const word = (type: string, length: number, rest = ''): Buffer =>
  message(type, [Buffer.from(rest)], length);
const words = (...numbers: readonly number[]): Buffer => Buffer.concat(numbers.map(int32));
const withOptions = (options: string): Buffer => startup({ ...APP, options });
/** A startup packet whose parts are given as they are. */
const rawStartup = (...parts: readonly (string | Buffer)[]): Buffer =>
  packet([int32(PROTOCOL_3_0), ...parts]);

/** PgBouncer collects what a message says is its length before it looks at it. */
const BUFFERS = {
  says: null,
  because: 'PgBouncer waits for, and keeps, as much as the header says; the memory is capped here',
};
const NO_OPTIONS = {
  says: fatal('unsupported startup parameter: options'),
  because: 'PgBouncer reads the options parameter since 1.20',
};
const NO_LAYOUT_CHECK = (says: string[]) => ({
  says,
  because: 'PgBouncer 1.18 does not look at what ends the packet',
});
const NO_REPLICATION = {
  says: fatal('unsupported startup parameter: replication'),
  because: 'PgBouncer knows replication connections since 1.23',
};
/** What cannot be read yet may still come, PgBouncer finds, although the message is all there. */
const WAITS_ON = {
  says: null,
  because: 'PgBouncer goes on waiting when a password message cannot be read; it is refused here',
};
const NO_NEGOTIATION = (says: string[]) => ({
  says,
  because: 'PgBouncer negotiates minor versions and _pq_ options since 1.20',
});

const HEADERS: readonly Case[] = [
  ...[0, 1, 2, 3, 4, 7].map((length) => ({
    name: `a startup packet of length ${length}`,
    steps: [words(length, PROTOCOL_3_0)],
    says: badHeader(words(length, PROTOCOL_3_0)),
  })),
  {
    name: 'a startup packet whose second byte is not 0',
    steps: [Buffer.from('0001000800030000', 'hex')],
    says: badHeader(Buffer.from('0001000800030000', 'hex')),
  },
  {
    name: 'a startup packet longer than PostgreSQL takes',
    steps: [words(10_001, PROTOCOL_3_0)],
    says: badHeader(words(10_001, PROTOCOL_3_0)),
    bouncer: BUFFERS,
  },
  ...[0x0001_0000, 0x0004_0000, 0x0005_0000, 80_877_105, 80_877_101, -1].map((code) => ({
    name: `a packet with the code ${code}`,
    steps: [words(8, code)],
    says: badHeader(words(8, code)),
  })),
  {
    name: 'a startup packet of protocol 2',
    steps: [words(8, 0x0002_0000)],
    says: fatal('old V2 protocol not supported'),
  },
  ...[0, 1, 2, 3, -1, -2_147_483_648].map((length) => ({
    name: `a message of length ${length} before the startup packet`,
    steps: [word('Q', length)],
    says: badHeader(word('Q', length)),
  })),
  {
    name: 'an HTTP request',
    steps: [Buffer.from('GET / HTTP/1.1\r\nHost: a\r\n\r\n')],
    says: badHeader(Buffer.from('GET / HTTP/1.1')),
    bouncer: BUFFERS,
  },
  ...['Q', 'p', '\u0016'].map((type) => ({
    name: `a message '${escape(type)}' of 1 GB before the startup packet`,
    steps: [word(type, 1 << 30)],
    says: badHeader(word(type, 1 << 30)),
    bouncer: BUFFERS,
  })),
  {
    name: 'a query before the startup packet',
    steps: [query('SELECT 1')],
    says: ['closed'],
  },
  { name: 'Terminate before the startup packet', steps: [message('X')], says: ['closed'] },
  {
    name: 'a password before the startup packet',
    steps: [message('p', ['secret'])],
    says: fatal('client password pkt before startup packet'),
  },
  {
    name: 'a cancel request that is too short',
    steps: [cancelRequest(Buffer.alloc(4))],
    says: ['closed'],
  },
  {
    name: 'a cancel request that is too long',
    steps: [cancelRequest(Buffer.alloc(9))],
    says: ['closed'],
  },
  {
    name: 'a cancel request with an unknown key',
    steps: [cancelRequest(Buffer.alloc(8, 0x33))],
    says: ['closed'],
  },
];

const ENCRYPTION: readonly Case[] = [
  {
    name: 'SSLRequest, then the startup packet',
    steps: [sslRequest(), { raw: 1 }, startup(APP)],
    says: ['N', ...WELCOME],
  },
  {
    name: 'SSLRequest and GSSENCRequest in any order and number',
    steps: [
      ...[sslRequest(), GSS_REQUEST, GSS_REQUEST, sslRequest()].flatMap((request) => [
        request,
        { raw: 1 },
      ]),
      startup(APP),
    ],
    says: ['N', 'N', 'N', 'N', ...WELCOME],
  },
  {
    name: 'a startup packet in one write with SSLRequest',
    steps: [Buffer.concat([sslRequest(), startup(APP)])],
    says: fatal('received unencrypted data after SSL request'),
  },
  {
    name: 'a startup packet in one write with GSSENCRequest',
    steps: [Buffer.concat([GSS_REQUEST, startup(APP)])],
    says: fatal('received unencrypted data after GSSAPI encryption request'),
  },
  {
    name: 'SSLRequest during the authentication',
    steps: [startup(APP), { until: 'R' }, sslRequest()],
    says: ['R10', ...fatal('client re-sent startup pkt')],
    bouncer: { says: null, because: 'PgBouncer answers N at any time before the welcome' },
  },
  {
    name: 'a cancel request behind SSLRequest',
    steps: [sslRequest(), { raw: 1 }, cancelRequest(Buffer.alloc(8))],
    says: ['N', 'closed'],
  },
];

const STARTUP: readonly Case[] = [
  { name: 'a startup packet', steps: [startup(APP)], says: WELCOME },
  {
    name: 'a startup packet without a database, which is the user name then',
    steps: [startup({ user: 'app' })],
    says: WELCOME,
  },
  {
    name: 'a query in one write with the startup packet',
    steps: [Buffer.concat([startup(APP), query('SELECT 1')]), { until: 'C' }],
    says: [...WELCOME, 'T', 'D', 'C', 'Z:I'],
  },
  {
    name: 'a startup packet whose repeated names count by their last value',
    steps: [rawStartup('user', 'app', 'database', 'nowhere', 'database', 'app', Buffer.of(0))],
    says: WELCOME,
  },
  {
    name: 'a startup packet without its terminator',
    steps: [rawStartup('user', 'app')],
    says: fatal('invalid startup packet layout: expected terminator as last byte'),
    bouncer: NO_LAYOUT_CHECK(WELCOME),
  },
  {
    name: 'a startup packet with a byte behind its terminator',
    steps: [rawStartup('user', 'app', Buffer.of(0, 0))],
    says: fatal('invalid startup packet layout: expected terminator as last byte'),
    bouncer: NO_LAYOUT_CHECK(WELCOME),
  },
  {
    name: 'a startup packet that ends in a value',
    steps: [rawStartup('user', Buffer.from('app'))],
    says: fatal('invalid startup packet layout: expected terminator as last byte'),
    bouncer: NO_LAYOUT_CHECK(fatal('no username supplied')),
  },
  {
    name: 'a startup packet of its code alone',
    steps: [rawStartup()],
    says: fatal('invalid startup packet layout: expected terminator as last byte'),
    bouncer: NO_LAYOUT_CHECK(fatal('no username supplied')),
  },
  {
    name: 'a startup packet without a user',
    steps: [startup({ database: 'app' })],
    says: fatal('no username supplied'),
  },
  {
    name: 'a startup packet with an empty user',
    steps: [startup({ user: '', database: 'app' })],
    says: fatal('no username supplied'),
  },
  {
    name: 'a user name of 128 bytes',
    steps: [startup({ user: 'u'.repeat(128), database: 'app' })],
    says: fatal('username too long'),
  },
  {
    name: 'an unknown user name of 127 bytes',
    steps: [startup({ user: 'u'.repeat(127), database: 'app' })],
    says: fatal('"trust" authentication failed'),
  },
  {
    name: 'an unknown database, told after the authentication',
    steps: [startup({ user: 'app', database: 'nowhere' })],
    says: fatal('no such database: nowhere'),
  },
  {
    name: 'an unknown user of an unknown database',
    steps: [startup({ user: 'nobody', database: 'nowhere' })],
    says: fatal('"trust" authentication failed'),
  },
  {
    name: 'a database name of 70 bytes, shown cut',
    steps: [startup({ user: 'app', database: 'd'.repeat(70) })],
    says: fatal(`no such database: ${'d'.repeat(63)}`),
  },
  {
    name: 'a parameter that is not supported',
    steps: [startup({ ...APP, search_path: 'a' })],
    says: fatal('unsupported startup parameter: search_path'),
  },
  {
    name: 'a parameter that is not supported, before a layout error and a missing user',
    steps: [rawStartup('geqo', 'off')],
    says: fatal('unsupported startup parameter: geqo'),
  },
  {
    name: 'a parameter that is to be ignored',
    steps: [startup({ ...APP, extra_float_digits: '2' })],
    says: WELCOME,
  },
  {
    name: 'an ignored parameter in other letters, which is not ignored',
    steps: [startup({ ...APP, Extra_Float_Digits: '2' })],
    says: fatal('unsupported startup parameter: Extra_Float_Digits'),
  },
  {
    name: 'a tracked parameter in other letters',
    steps: [startup({ ...APP, dateSTYLE: 'German' })],
    says: WELCOME,
  },
  ...['false', 'off', 'no', '0', 'nonsense', ''].map((value) => ({
    name: `replication=${value}`,
    steps: [startup({ ...APP, replication: value })],
    says: WELCOME,
    bouncer: NO_REPLICATION,
  })),
  {
    name: 'protocol 3.2',
    steps: [startup(APP, PROTOCOL_3_2)],
    says: ['v 3.0', ...WELCOME],
    bouncer: NO_NEGOTIATION(badHeader(startup(APP, PROTOCOL_3_2))),
  },
  {
    name: 'protocol 3.0 with a _pq_ option',
    steps: [startup({ ...APP, '_pq_.one': 'x', '_pq_.two': '' })],
    says: ['v 3.0 _pq_.one _pq_.two', ...WELCOME],
    bouncer: NO_NEGOTIATION(fatal('unsupported startup parameter: _pq_.one')),
  },
  {
    name: 'a minor version to come and a refusal behind it',
    steps: [startup({ user: 'app', database: 'nowhere' }, 0x0003_ffff)],
    says: ['v 3.0', ...fatal('no such database: nowhere')],
    bouncer: NO_NEGOTIATION(badHeader(startup({ user: 'app', database: 'nowhere' }, 0x0003_ffff))),
  },
];

const OPTIONS: readonly Case[] = [
  ...[
    '',
    '   ',
    '-c datestyle=German',
    '-cdatestyle=German',
    '--datestyle=German',
    '--datestyle=German -c TimeZone=UTC  --application_name=x',
    '-c datestyle=ISO,\\ DMY',
    '-c application_name=a\\\\b',
    '-c application_name=a=b=c',
    '-c extra_float_digits=3',
    '-c datestyle=German ',
  ].map((options) => ({
    name: `options '${options}'`,
    steps: [withOptions(options)],
    says: WELCOME,
    bouncer: NO_OPTIONS,
  })),
  ...['-c geqo=off', '--geqo=off', '-c datestyle=ISO -c geqo=off', '-c =5'].map((options) => ({
    name: `options '${options}'`,
    steps: [withOptions(options)],
    says: fatal(
      `unsupported startup parameter in options: ${options.includes('geqo') ? 'geqo' : ''}`,
    ),
    bouncer: NO_OPTIONS,
  })),
  ...[
    '-d 5',
    '-c',
    '-c datestyle',
    '--datestyle',
    '\t-c datestyle=ISO',
    'datestyle=ISO',
    '-',
    '--',
  ].map((options) => ({
    name: `options '${escape(options)}'`,
    steps: [withOptions(options)],
    says: fatal(BAD_OPTIONS),
    bouncer: NO_OPTIONS,
  })),
];

const md5 = (...parts: readonly (string | Uint8Array)[]): string => {
  const hash = createHash('md5');
  for (const part of parts) hash.update(part);
  return hash.digest('hex');
};
const md5Answer = (user: string, password: string) => (request: Buffer) =>
  message('p', [`md5${md5(md5(password, user), request.subarray(4))}`]);
const saslFirst = (mechanism: string, text: string): Buffer =>
  message('p', [mechanism, int32(Buffer.byteLength(text)), Buffer.from(text)]);

/** Steps of a SCRAM exchange, with one of its messages changed. */
function scramSteps(password: string, user = 'app', database = 'app'): Step[] {
  const scram = new ScramClient(password);
  return [
    startup({ user, database }),
    { until: 'R' },
    saslFirst('SCRAM-SHA-256', scram.first()),
    { until: 'R' },
    (request) => message('p', [Buffer.from(scram.final(request.toString('utf8', 4)))]),
  ];
}

const SCRAM_FAILED = fatal('SASL authentication failed');
const SCRAM: readonly Case[] = [
  { name: 'the right password', steps: scramSteps('app'), says: ['R10', 'R11', 'R12', ...WELCOME] },
  { name: 'a wrong password', steps: scramSteps('wrong'), says: ['R10', 'R11', ...SCRAM_FAILED] },
  {
    name: 'an unknown user, who is asked like a known one',
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
    says: ['R10', 'R11', 'R12', ...fatal('no such database: nowhere')],
  },
  {
    name: 'another mechanism',
    steps: [startup(APP), { until: 'R' }, saslFirst('SCRAM-SHA-256-PLUS', 'n,,n=,r=abc')],
    says: ['R10', ...fatal('client selected an invalid SASL authentication mechanism')],
  },
  ...[
    ['an empty message', message('p')],
    ['a message without a NUL', message('p', [Buffer.from('SCRAM-SHA-256')])],
  ].map(([name, bytes]) => ({
    name: name as string,
    steps: [startup(APP), { until: 'R' }, bytes as Buffer],
    says: ['R10', ...fatal('client selected an invalid SASL authentication mechanism')],
    bouncer: WAITS_ON,
  })),
  {
    name: 'a first message cut short',
    steps: [
      startup(APP),
      { until: 'R' },
      message('p', ['SCRAM-SHA-256', int32(400), Buffer.from('n,,')]),
    ],
    says: ['R10', ...SCRAM_FAILED],
    bouncer: WAITS_ON,
  },
  ...[
    ['a first message of nonsense', saslFirst('SCRAM-SHA-256', 'nonsense')],
    ['an empty first message', saslFirst('SCRAM-SHA-256', '')],
    ['a first message without a nonce', saslFirst('SCRAM-SHA-256', 'n,,n=')],
  ].map(([name, bytes]) => ({
    name: name as string,
    steps: [startup(APP), { until: 'R' }, bytes as Buffer],
    says: ['R10', ...SCRAM_FAILED],
  })),
  ...['', 'c=biws', 'c=biws,r=wrong,p=AAAA', 'nonsense'].map((final) => ({
    name: `the final message '${final}'`,
    steps: [...scramSteps('app').slice(0, 4), message('p', [Buffer.from(final)])],
    says: ['R10', 'R11', ...SCRAM_FAILED],
  })),
  {
    name: 'a second startup packet',
    steps: [startup(APP), { until: 'R' }, startup(APP)],
    says: ['R10', ...fatal('client re-sent startup pkt')],
  },
  {
    name: 'a query instead of a password',
    steps: [startup(APP), { until: 'R' }, query('SELECT 1')],
    says: ['R10', 'closed'],
  },
  {
    name: 'a password of 64 KB',
    steps: [startup(APP), { until: 'R' }, word('p', 65_536)],
    says: ['R10', ...badHeader(word('p', 65_536))],
    bouncer: BUFFERS,
  },
  {
    name: 'a password message of length 3',
    steps: [startup(APP), { until: 'R' }, word('p', 3)],
    says: ['R10', ...badHeader(word('p', 3))],
  },
];

const WRONG_PASSWORD = fatal('password authentication failed');
const MD5: readonly Case[] = [
  {
    name: 'the right password',
    steps: [startup(APP), { until: 'R' }, md5Answer('app', 'app')],
    says: ['R5', ...WELCOME],
  },
  {
    name: 'a wrong password',
    steps: [startup(APP), { until: 'R' }, md5Answer('app', 'wrong')],
    says: ['R5', ...WRONG_PASSWORD],
  },
  {
    name: 'an unknown user, who is asked like a known one',
    steps: [startup({ user: 'nobody', database: 'app' }), { until: 'R' }, md5Answer('nobody', '')],
    says: ['R5', ...WRONG_PASSWORD],
  },
  {
    name: 'an answer cut short',
    steps: [startup(APP), { until: 'R' }, message('p', ['md5'])],
    says: ['R5', ...WRONG_PASSWORD],
  },
];
const PLAIN: readonly Case[] = [
  {
    name: 'the right password',
    steps: [startup(APP), { until: 'R' }, message('p', ['app'])],
    says: ['R3', ...WELCOME],
  },
  {
    name: 'a wrong password',
    steps: [startup(APP), { until: 'R' }, message('p', ['wrong'])],
    says: ['R3', ...WRONG_PASSWORD],
  },
  {
    name: 'an empty password',
    steps: [startup(APP), { until: 'R' }, message('p', [''])],
    says: ['R3', ...fatal('empty password returned by client')],
  },
  {
    name: 'an unknown user, who is asked like a known one',
    steps: [startup({ user: 'nobody', database: 'app' }), { until: 'R' }, message('p', ['app'])],
    says: ['R3', ...WRONG_PASSWORD],
  },
  {
    name: 'a password without a NUL',
    steps: [startup(APP), { until: 'R' }, message('p', [Buffer.from('app')])],
    says: ['R3', ...WRONG_PASSWORD],
    bouncer: WAITS_ON,
  },
];

const GROUPS: readonly { authType: string; cases: readonly Case[] }[] = [
  {
    authType: 'trust',
    cases: [
      ...HEADERS,
      ...ENCRYPTION.filter(({ says }) => says[0] !== 'R10'),
      ...STARTUP,
      ...OPTIONS,
    ],
  },
  {
    authType: 'scram-sha-256',
    cases: [...SCRAM, ...ENCRYPTION.filter(({ says }) => says[0] === 'R10')],
  },
  { authType: 'md5', cases: MD5 },
  { authType: 'plain', cases: PLAIN },
];

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
});

function options(settings: Readonly<Record<string, string | number>>): PoolerOptions {
  return {
    postgres,
    databases: { app: '' },
    authFile: { app: 'app' },
    settings: { ignore_startup_parameters: 'extra_float_digits', ...settings },
  };
}

for (const { authType, cases } of GROUPS) {
  for (const size of [1, 2]) {
    test(`auth_type ${authType}, ${size} workers: every case is answered as it should be`, async (t) => {
      const fleet = await startPgfleet({ ...options({ auth_type: authType }), size });
      fleet.allowLog(/ERROR C-\S+ /);
      t.after(() => fleet.stop());
      const wanted = cases.map(({ name, says }) => [name, says]);
      assert.deepEqual(await runAll(fleet, cases), Object.fromEntries(wanted));
    });
  }

  test(`auth_type ${authType}: PgBouncer answers the same, but for what is listed`, async (t) => {
    if (!requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
    const bouncer = await startPgbouncer(options({ auth_type: authType }));
    bouncer.allowLog(/./);
    t.after(() => bouncer.stop());
    const is118 = pgbouncerVersion().startsWith('1.18.');
    const compared = cases.filter(
      (one) => one.bouncer === undefined || (is118 && one.bouncer.says !== null),
    );
    const wanted = compared.map(({ name, says, bouncer: other }) => [name, other?.says ?? says]);
    assert.deepEqual(await runAll(bouncer, compared), Object.fromEntries(wanted));
  });
}

test('a message of 1 GB before the login is refused at its header, and nothing of it is kept', async (t) => {
  const fleet = await startPgfleet(options({}));
  t.after(() => fleet.stop());
  const client = await WireClient.connect(fleet);
  client.send(Buffer.concat([word('p', 1 << 30), Buffer.alloc(200_000)]));
  const [refusal] = await client.untilClose();
  if (refusal !== undefined)
    assert.match(reportFields(refusal.body)['M'] ?? '', /^bad packet header/);
  client.destroy();
});

for (const size of [1, 2]) {
  test(`client_login_timeout ends whoever is not logged in, ${size} workers`, async (t) => {
    const fleet = await startPgfleet({
      ...options({ auth_type: 'scram-sha-256', client_login_timeout: 1 }),
      size,
    });
    t.after(() => fleet.stop());
    const starts: readonly (readonly Step[])[] = [
      [],
      [Buffer.of(0)],
      [sslRequest(), { raw: 1 }],
      [startup(APP).subarray(0, 12)],
      [startup(APP), { until: 'R' }],
      scramSteps('app').slice(0, 4),
    ];
    const said = await Promise.all(starts.map((steps) => transcript(fleet, steps)));
    for (const lines of said) {
      assert.deepEqual(lines.slice(-2), fatal('client_login_timeout'));
    }
    const client = await WireClient.login(fleet);
    await client.query('SELECT 1');
    await client.end();
  });
}

test('client_login_timeout says that the server is down to who waits for the first connection', async (t) => {
  const fleet = await startPgfleet({
    databases: { app: 'host=127.0.0.1 port=1' },
    settings: { client_login_timeout: 1 },
  });
  fleet.allowLog(/./);
  t.after(() => fleet.stop());
  const said = await transcript(fleet, [startup(APP), query('SELECT 1')]);
  assert.deepEqual(said, fatal('client_login_timeout (server down)'));
});

test('a startup packet that comes byte by byte is one like any other', async (t) => {
  const fleet = await startPgfleet({ ...options({}), size: 2 });
  t.after(() => fleet.stop());
  const client = await WireClient.connect(fleet);
  for (const byte of Buffer.concat([startup(APP), query('SELECT 1')])) {
    client.send(Buffer.of(byte));
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.deepEqual(describeAll(await client.untilReady()), WELCOME);
  assert.deepEqual(describeAll(await client.untilReady()), ['T', 'D', 'C', 'Z:I']);
  await client.end();
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());

/** Runs the cases, some at a time. */
async function runAll(
  pooler: TestPooler,
  cases: readonly Case[],
): Promise<Record<string, string[]>> {
  const found = new Map<string, string[]>();
  const queue = [...cases];
  const lanes = Array.from({ length: 4 }, async () => {
    for (let one = queue.shift(); one !== undefined; one = queue.shift()) {
      const { name } = one;
      const lines = await transcript(pooler, one.steps).catch((error: Error) => [String(error)]);
      found.set(name, lines);
    }
  });
  await Promise.all(lanes);
  return Object.fromEntries(cases.map(({ name }) => [name, found.get(name) ?? []]));
}

/** Takes the steps and tells what came back, up to the end or a ReadyForQuery after the last step. */
async function transcript(pooler: TestPooler, steps: readonly Step[]): Promise<string[]> {
  const client = await WireClient.connect(pooler);
  const lines: string[] = [];
  let last: Buffer = Buffer.alloc(0);
  try {
    for (const step of steps) {
      if (Buffer.isBuffer(step)) client.send(step);
      else if (typeof step === 'function') client.send(step(last));
      else if ('raw' in step) {
        lines.push((await client.rawBytes(step.raw, 3_000))?.toString('latin1') ?? 'closed');
      } else {
        const received = await client.until(step.until, 3_000);
        last = received.at(-1)!.body;
        lines.push(...describeAll(received));
      }
    }
    for (;;) {
      const next = await client.next(5_000).catch((error: Error) => {
        if (client.isClosed) return null;
        throw error;
      });
      if (next === null) return [...lines, 'closed'];
      lines.push(...describeAll([next]));
      if (next.type === 'Z') return lines;
    }
  } finally {
    client.destroy();
    await until('the socket is closed', () => client.socket.closed);
  }
}

/** One line a message, ParameterStatus left out. */
function describeAll(messages: readonly WireMessage[]): string[] {
  return messages.flatMap(({ type, body }) => {
    if (type === 'S') return [];
    if (type === 'Z') return [`Z:${body.toString('latin1')}`];
    if (type === 'R') return [`R${body.readInt32BE(0)}`];
    if (type === 'v') {
      const names = body
        .toString('utf8', 8)
        .split('\0')
        .filter((name) => name !== '');
      return [['v', `${body.readInt16BE(0)}.${body.readInt16BE(2)}`, ...names].join(' ')];
    }
    if (type !== 'E') return [type];
    const { S, C, M } = reportFields(body);
    return [`${S} ${C} ${M}`];
  });
}
