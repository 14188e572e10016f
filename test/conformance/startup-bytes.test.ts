/**
 * The first bytes of a connection: headers, requests for encryption, versions of the protocol
 * (PostgreSQL documentation, "Message Formats" and "Message Flow", section "Start-up").
 */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import {
  cancelRequest,
  message,
  packet,
  query,
  reportFields,
  sslRequest,
  startup,
} from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import {
  APP,
  badHeader,
  type Dialogue,
  fatal,
  GSS_REQUEST,
  linesOf,
  rawStartup,
  ruleOf,
  transcript,
  WELCOME,
  word,
  words,
} from '../support/transcript.ts';
import { WireClient } from '../support/wire-client.ts';

const V3 = 0x0003_0000;
const INVALID_LAYOUT = fatal('invalid startup packet layout: expected terminator as last byte');
const LOGGED_IN = [startup(APP), { until: 'Z' }] as const;

const BUFFERS = {
  because: 'PgBouncer waits for, and keeps, as much as the header says; the memory is capped here',
};
const speaks30 = (...says: readonly string[]): NonNullable<Dialogue['bouncer']> => ({
  because: 'PgBouncer does not speak 3.2, which brings longer cancel keys',
  says,
});

const HEADERS: readonly Dialogue[] = [
  ...[0, 1, 2, 3, 4, 7].map((length) => ({
    name: `a startup packet of length ${length} has a bad header`,
    steps: [words(length, V3)],
    says: badHeader(words(length, V3)),
  })),
  {
    name: 'a startup packet of length 8 has no terminator',
    steps: [words(8, V3)],
    says: INVALID_LAYOUT,
    since: '1.20',
  },
  {
    name: 'a startup packet whose second byte is not 0 has a bad header',
    steps: [Buffer.from('0001000800030000', 'hex')],
    says: badHeader(Buffer.from('0001000800030000', 'hex')),
  },
  {
    name: 'a startup packet longer than PostgreSQL takes has a bad header',
    steps: [words(10_001, V3)],
    says: badHeader(words(10_001, V3)),
    bouncer: BUFFERS,
  },
  {
    name: 'a startup packet as long as PostgreSQL takes is read',
    steps: [rawStartup('user', 'app', '_pq_.x', 'v'.repeat(10_000 - 8 - 9 - 7 - 2), Buffer.of(0))],
    says: ['v 3.0 _pq_.x', ...WELCOME],
    since: '1.20',
  },
  ...[0x0001_0000, 0x0004_0000, 0x0005_0000, 80_877_105, 80_877_101, -1].map((code) => ({
    name: `a packet with the unknown code ${code} has a bad header`,
    steps: [words(8, code)],
    says: badHeader(words(8, code)),
  })),
  {
    name: 'at most 8 bytes are shown of a bad header',
    steps: [Buffer.concat([words(3, V3), Buffer.from('more')])],
    says: badHeader(words(3, V3)),
  },
  {
    name: 'a startup packet of protocol 2 is refused',
    steps: [words(8, 0x0002_0000)],
    says: fatal('old V2 protocol not supported'),
  },
  ...[0, 1, 2, 3, -1, -2_147_483_648].map((length) => ({
    name: `a message of length ${length} before the startup packet has a bad header`,
    steps: [word('Q', length)],
    says: badHeader(word('Q', length)),
  })),
  {
    name: 'an HTTP request has a bad header',
    steps: [Buffer.from('GET / HTTP/1.1\r\nHost: a\r\n\r\n')],
    says: badHeader(Buffer.from('GET / HTTP/1.1')),
    bouncer: BUFFERS,
  },
  ...['Q', 'p', '\u0017'].map((type) => ({
    name: `a message '${escape(type)}' of 1 GB before the startup packet has a bad header`,
    steps: [word(type, 1 << 30)],
    says: badHeader(word(type, 1 << 30)),
    bouncer: BUFFERS,
  })),
  ...[
    ['a query', query('SELECT 1')],
    ['Sync', message('S')],
    ['Terminate', message('X')],
    ['CopyData', message('d', ['x'])],
  ].map(([name, bytes]) => ({
    name: `${name} before the startup packet closes without a word`,
    steps: [bytes as Buffer],
    says: ['closed'],
  })),
  {
    name: 'a password before the startup packet is refused',
    steps: [message('p', ['secret'])],
    says: fatal('client password pkt before startup packet'),
  },
  {
    name: 'fewer bytes than a header are waited for until the client ends',
    steps: [Buffer.of(0, 0, 0), { end: true }],
    says: ['closed'],
  },
  {
    name: 'half a startup packet is waited for until the client ends',
    steps: [startup(APP).subarray(0, 12), { end: true }],
    says: ['closed'],
    since: '1.20',
  },
  ...[
    ['a startup packet', startup(APP)],
    ['SSLRequest', sslRequest()],
    ['a cancel request', cancelRequest(Buffer.alloc(8))],
    ['a password', message('p', ['app'])],
  ].map(([name, bytes]) => ({
    name: `${name} after the login is an unknown packet`,
    steps: [...LOGGED_IN, bytes as Buffer],
    says: [...WELCOME, ...fatal('unknown pkt')],
  })),
];

const ENCRYPTION: readonly Dialogue[] = [
  {
    name: 'SSLRequest without TLS is answered N, and the startup packet may follow',
    steps: [sslRequest(), { raw: 1 }, startup(APP)],
    says: ['N', ...WELCOME],
  },
  {
    name: 'SSLRequest and GSSENCRequest may come in any order and number',
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
    name: 'bytes in one write with SSLRequest are refused',
    steps: [Buffer.concat([sslRequest(), startup(APP)])],
    says: fatal('received unencrypted data after SSL request'),
    since: '1.16.1',
  },
  {
    name: 'bytes in one write with GSSENCRequest are refused',
    steps: [Buffer.concat([GSS_REQUEST, sslRequest()])],
    says: fatal('received unencrypted data after GSSAPI encryption request'),
    since: '1.18',
  },
  ...[sslRequest(), GSS_REQUEST].map((request) => ({
    name: `${request === GSS_REQUEST ? 'GSSENCRequest' : 'SSLRequest'} of 9 bytes closes without a word`,
    steps: [packet([request.subarray(4), Buffer.of(0)]), { end: true as const }],
    says: ['closed'],
  })),
  {
    name: 'a cancel request may follow SSLRequest',
    steps: [sslRequest(), { raw: 1 }, cancelRequest(Buffer.alloc(8))],
    says: ['N', 'closed'],
  },
];

const VERSIONS: readonly Dialogue[] = [
  { name: 'protocol 3.0 is spoken without negotiation', steps: [startup(APP)], says: WELCOME },
  ...[0x0003_0001, 0x0003_0002].map((version) => ({
    name: `protocol 3.${version & 0xff} is spoken without negotiation`,
    steps: [startup(APP, version)],
    says: WELCOME,
    since: '1.20',
    bouncer: speaks30('v 3.0', ...WELCOME),
  })),
  ...[0x0003_0003, 0x0003_ffff].map((version) => ({
    name: `protocol 3.${version & 0xffff} is negotiated down`,
    steps: [startup(APP, version)],
    says: ['v 3.2', ...WELCOME],
    since: '1.20',
    bouncer: speaks30('v 3.0', ...WELCOME),
  })),
  {
    name: 'options _pq_ are told to be unknown, each as often as it came, whatever their values',
    steps: [
      rawStartup(
        ...['user', 'app', '_pq_.one', 'x', '_pq_.two', '', '_pq_.one', 'y'],
        Buffer.of(0),
      ),
    ],
    says: ['v 3.0 _pq_.one _pq_.two _pq_.one', ...WELCOME],
    since: '1.20',
  },
  {
    name: 'version and options are negotiated in one message',
    steps: [startup({ ...APP, '_pq_.one': 'x' }, 0x0003_0063)],
    says: ['v 3.2 _pq_.one', ...WELCOME],
    since: '1.20',
    bouncer: speaks30('v 3.0 _pq_.one', ...WELCOME),
  },
  {
    name: 'the negotiation comes before the refusal of an unknown database',
    steps: [startup({ user: 'app', database: 'nowhere', '_pq_.x': '' })],
    says: ['v 3.0 _pq_.x', ...fatal('no such database: nowhere')],
    since: '1.20',
  },
];

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
});

const options = (): RuleOptions => ({
  postgres,
  databases: { app: '' },
  authFile: { app: 'app' },
  size: 2,
  logs: [/ unknown pkt from client: /],
});

rules('headers', () => ({ ...options(), logs: [/unknown pkt from client/] }), HEADERS.map(ruleOf));
rules('requests for encryption', options, ENCRYPTION.map(ruleOf));
rules('versions of the protocol', options, VERSIONS.map(ruleOf));

rules('more about first bytes', options, [
  {
    name: 'a startup packet that comes byte by byte is one like any other',
    since: '1.20',
    check: async (pooler) => {
      const client = await WireClient.connect(pooler);
      for (const byte of Buffer.concat([startup(APP), query('SELECT 1')])) {
        client.send(Buffer.of(byte));
        await new Promise((resolve) => setImmediate(resolve));
      }
      assert.deepEqual(linesOf(await client.untilReady()), WELCOME);
      assert.deepEqual(linesOf(await client.untilReady()), ['T', 'D', 'C', 'Z:I']);
      await client.end();
    },
  },
  {
    name: 'what comes in one write with the startup packet waits for the welcome',
    check: async (pooler) => {
      const steps = [Buffer.concat([startup(APP), query('SELECT 1')]), { until: 'C' }];
      const says = [...WELCOME, 'T', 'D', 'C', 'Z:I'];
      assert.deepEqual(await transcript(pooler, steps), says);
    },
  },
  {
    name: 'SSLRequest over a Unix socket is answered N',
    check: async (pooler) => {
      const steps = [sslRequest(), { raw: 1 }, GSS_REQUEST, { raw: 1 }, startup(APP)];
      assert.deepEqual(await transcript({ path: pooler.unixPath }, steps), ['N', 'N', ...WELCOME]);
    },
  },
]);

rules(
  'during the authentication',
  () => ({ ...options(), settings: { auth_type: 'scram-sha-256' } }),
  (
    [
      {
        name: 'a second startup packet is refused',
        steps: [startup(APP), { until: 'R' }, startup(APP)],
        says: ['R10', ...fatal('client re-sent startup pkt')],
      },
      {
        name: 'the negotiation comes before the request for a password',
        steps: [startup({ ...APP, '_pq_.x': '' }), { until: 'R' }, message('X')],
        says: ['v 3.0 _pq_.x', 'R10', 'closed'],
        since: '1.20',
      },
      ...[sslRequest(), GSS_REQUEST].map((request) => ({
        name: `${request === GSS_REQUEST ? 'GSSENCRequest' : 'SSLRequest'} is refused`,
        steps: [startup(APP), { until: 'R' }, request],
        says: ['R10', ...fatal('client re-sent startup pkt')],
        bouncer: { because: 'PgBouncer answers N at any time before the welcome' },
      })),
      {
        name: 'a cancel request is refused',
        steps: [startup(APP), { until: 'R' }, cancelRequest(Buffer.alloc(8))],
        says: ['R10', ...fatal('client re-sent startup pkt')],
        bouncer: { because: 'PgBouncer closes without a word', says: ['R10', 'closed'] },
      },
      ...[query('SELECT 1'), message('X'), message('S')].map((bytes) => ({
        name: `a message '${String.fromCharCode(bytes[0]!)}' instead of a password closes without a word`,
        steps: [startup(APP), { until: 'R' }, bytes],
        says: ['R10', 'closed'],
      })),
      {
        name: 'a password of 64 KB has a bad header',
        steps: [startup(APP), { until: 'R' }, word('p', 65_536)],
        says: ['R10', ...badHeader(word('p', 65_536))],
        bouncer: BUFFERS,
      },
      ...[3, 0, -5].map((length) => ({
        name: `a password message of length ${length} has a bad header`,
        steps: [startup(APP), { until: 'R' }, word('p', length)],
        says: ['R10', ...badHeader(word('p', length))],
      })),
    ] satisfies Dialogue[]
  ).map(ruleOf),
);

rule(
  'a message of 1 GB before the login is refused at its header, and nothing of it is kept',
  () => options(),
  async (pooler) => {
    const client = await WireClient.connect(pooler);
    client.send(Buffer.concat([word('p', 1 << 30), Buffer.alloc(200_000)]));
    // The rest is still on its way when it closes, so that the reset may overtake the FATAL.
    const [refusal] = await client.untilClose();
    if (refusal !== undefined) {
      assert.match(reportFields(refusal.body)['M'] ?? '', /^bad packet header/);
    }
    client.destroy();
  },
  { differs: BUFFERS },
);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
