import assert from 'node:assert/strict';
import { test } from 'node:test';
import { deriveVerifier, type ScramKeys } from '../../../src/auth/scram.ts';
import { classifySecret, type StoredSecret } from '../../../src/auth/secret.ts';
import { type ServerAuth, startServerAuth } from '../../../src/auth/server-auth.ts';
import { Secret } from '../../../src/util/secret.ts';
import {
  clientAuth,
  exchange,
  initialBody,
  PENCIL_SCRAM,
  readAnswer,
  readRequest,
  seededRandom,
  sent,
} from './exchange.ts';

const SECRET = classifySecret(PENCIL_SCRAM);
const PLAIN = classifySecret('pencil');
const PLUS = 'SCRAM-SHA-256-PLUS';
const HASH = Buffer.alloc(32, 7);
const OTHER_HASH = Buffer.alloc(32, 8);
const BARE = 'n=,r=abc';

/** The pooler's side of a client's login over TLS; null: its certificate has no hash to bind to. */
const overTls = (endPoint: Buffer | null, secret: StoredSecret | null = SECRET) =>
  clientAuth({
    secret,
    connection: {
      isUnix: false,
      address: '127.0.0.1',
      tls: { version: 'TLSv1.3', cipher: 'TLS_AES_256_GCM_SHA384', certificate: null, endPoint },
      osUser: null,
    },
  });

interface Given {
  readonly endPoint?: Buffer | null;
  readonly secret?: StoredSecret;
  readonly clientKeys?: ScramKeys | null;
}

/** The pooler's side of a login to a server whose certificate has the hash `endPoint`. */
const toServer = ({ endPoint = HASH, secret = PLAIN, clientKeys = null }: Given): ServerAuth =>
  startServerAuth({
    user: 'user',
    secret,
    clientKeys,
    random: seededRandom(5),
    endPoint: () => endPoint,
  });

const keys = () =>
  deriveVerifier(new Secret('pencil'), Buffer.from('W22ZaJ0SNY7soEsUEjb6gQ==', 'base64'), 4096);

test('channel binding is offered first, over TLS, with a certificate that has a hash', () => {
  const offer = (auth: ReturnType<typeof clientAuth>) =>
    readRequest(sent(auth.begin())).body.toString('latin1');
  assert.equal(offer(overTls(HASH)), `${PLUS}\0SCRAM-SHA-256\0\0`);
  assert.equal(offer(overTls(HASH, null)), `${PLUS}\0SCRAM-SHA-256\0\0`);
  assert.equal(offer(overTls(null)), 'SCRAM-SHA-256\0\0');
  assert.equal(offer(clientAuth({ secret: SECRET })), 'SCRAM-SHA-256\0\0');
});

test('both ends of one certificate agree, by password and by proved keys', async () => {
  for (const secret of [SECRET, PLAIN]) {
    const { requests, clientEnd, serverEnd } = await exchange(overTls(HASH, secret), toServer({}));
    assert.deepEqual(requests, [10, 11, 12]);
    assert.equal(clientEnd?.kind, 'accepted');
    assert.deepEqual(serverEnd, { kind: 'ok' });
  }
  const passedOn = toServer({ secret: SECRET, clientKeys: await keys() });
  const { clientEnd, serverEnd } = await exchange(overTls(HASH), passedOn);
  assert.equal(clientEnd?.kind === 'accepted' && clientEnd.clientKeys !== null, true);
  assert.deepEqual(serverEnd, { kind: 'ok' });
});

test('a client that binds to another certificate is refused, the right password or not', async () => {
  for (const secret of [SECRET, PLAIN, null]) {
    const { clientEnd } = await exchange(overTls(HASH, secret), toServer({ endPoint: OTHER_HASH }));
    assert.deepEqual(clientEnd, {
      kind: 'refused',
      text: 'SASL authentication failed',
      detail: 'SCRAM channel binding check failed',
    });
  }
});

test('a bound login with a wrong password is refused as any other', async () => {
  const wrong = toServer({ secret: classifySecret('eraser') });
  assert.deepEqual((await exchange(overTls(HASH), wrong)).clientEnd, {
    kind: 'refused',
    text: 'SASL authentication failed',
    detail: 'password authentication failed',
  });
});

const NEGOTIATION =
  'SCRAM channel binding negotiation error: client supports it but thinks that it was not offered';
const NO_DATA =
  'malformed SCRAM message (client selected SCRAM-SHA-256-PLUS, but did not send channel binding data)';
const STRAY_DATA =
  'malformed SCRAM message (client selected SCRAM-SHA-256 without channel binding, but sent channel binding data)';
const UNSUPPORTED = 'client requires SCRAM channel binding, but it is not supported';
const OTHER_TYPE = 'unsupported SCRAM channel-binding type';

/** What was offered, what the client chose, its header, and why it is refused; null: it is not. */
const flags: readonly (readonly [Buffer | null, string, string, string | null])[] = [
  [HASH, 'SCRAM-SHA-256', 'n,,', null],
  [HASH, 'SCRAM-SHA-256', 'y,,', NEGOTIATION],
  [HASH, 'SCRAM-SHA-256', 'p=tls-server-end-point,,', STRAY_DATA],
  [HASH, PLUS, 'p=tls-server-end-point,,', null],
  [HASH, PLUS, 'n,,', NO_DATA],
  [HASH, PLUS, 'y,,', NO_DATA],
  [HASH, PLUS, 'p=tls-unique,,', OTHER_TYPE],
  [HASH, PLUS, 'p=tls-exporter,,', OTHER_TYPE],
  [HASH, PLUS, 'p=tls-server-end-point ,,', OTHER_TYPE],
  [HASH, PLUS, 'p=,,', OTHER_TYPE],
  [HASH, PLUS, 'p', OTHER_TYPE],
  [HASH, PLUS, 'p,,', OTHER_TYPE],
  [
    HASH,
    PLUS,
    'p=tls-server-end-point,a=root,',
    'client uses authorization identity, but it is not supported',
  ],
  [HASH, PLUS, 'x,,', 'malformed SCRAM message (unexpected channel-binding flag "\'x\'")'],
  [null, 'SCRAM-SHA-256', 'n,,', null],
  [null, 'SCRAM-SHA-256', 'y,,', null],
  [null, 'SCRAM-SHA-256', 'p=tls-server-end-point,,', UNSUPPORTED],
];

for (const [endPoint, mechanism, header, detail] of flags) {
  const offered = endPoint === null ? 'nothing' : 'binding';
  const verdict = detail === null ? 'goes on' : 'is refused';
  test(`a client offered ${offered} that says ${header} to ${mechanism} ${verdict}`, async () => {
    const auth = overTls(endPoint);
    auth.begin();
    const step = await auth.onMessage(initialBody(header + BARE, mechanism));
    if (detail === null) assert.equal(readRequest(sent(step)).code, 11);
    else assert.deepEqual(step, { kind: 'refused', text: 'SASL authentication failed', detail });
  });
}

test('channel binding that was not offered is no mechanism', async () => {
  const auth = overTls(null);
  auth.begin();
  const step = await auth.onMessage(initialBody(`p=tls-server-end-point,,${BARE}`, PLUS));
  assert.equal(
    step.kind === 'refused' && step.text,
    'client selected an invalid SASL authentication mechanism',
  );
});

test('the final message of a bound login must carry header and hash, whole', async () => {
  const header = Buffer.from('p=tls-server-end-point,,');
  for (const binding of [
    header,
    Buffer.from('n,,'),
    Buffer.concat([header, OTHER_HASH]),
    Buffer.concat([header, HASH.subarray(1)]),
    Buffer.concat([header, HASH, Buffer.of(0)]),
  ]) {
    const auth = overTls(HASH);
    auth.begin();
    const first = readRequest(sent(await auth.onMessage(initialBody(`${header}${BARE}`, PLUS))));
    const nonce = /^r=([^,]+),/.exec(first.body.toString('latin1'))![1]!;
    const proof = Buffer.alloc(32).toString('base64');
    const final = `c=${binding.toString('base64')},r=${nonce},p=${proof}`;
    const step = await auth.onMessage(Buffer.from(final));
    assert.equal(step.kind === 'refused' && step.detail, 'SCRAM channel binding check failed');
  }
});

const BOTH = `${PLUS}\0SCRAM-SHA-256\0\0`;

/** What a server offers, the hash of its certificate, and our answer: mechanism and header. */
const offers: readonly (readonly [string, Buffer | null, string | null])[] = [
  [BOTH, HASH, `${PLUS} p=tls-server-end-point,,`],
  [`SCRAM-SHA-256\0${PLUS}\0\0`, HASH, `${PLUS} p=tls-server-end-point,,`],
  [`${PLUS}\0\0`, HASH, `${PLUS} p=tls-server-end-point,,`],
  ['SCRAM-SHA-256\0\0', HASH, 'SCRAM-SHA-256 y,,'],
  [BOTH, null, 'SCRAM-SHA-256 n,,'],
  ['SCRAM-SHA-256\0\0', null, 'SCRAM-SHA-256 n,,'],
  [`${PLUS}\0\0`, null, null],
];

for (const [offer, endPoint, expected] of offers) {
  const names = offer.replaceAll('\0', ' ').trim();
  const where = endPoint === null ? 'with nothing to bind to' : 'with a certificate';
  test(`a server ${where} that offers ${names} gets ${expected ?? 'no answer'}`, async () => {
    const step = await toServer({ endPoint }).onRequest(10, Buffer.from(offer));
    if (expected === null) {
      assert.equal(step.kind, 'failed');
      return;
    }
    const answer = readAnswer(sent(step)).toString('latin1');
    const [mechanism] = answer.split('\0');
    const header = answer.slice(mechanism!.length + 5, answer.indexOf('n=,r='));
    assert.equal(`${mechanism} ${header}`, expected);
  });
}

test('a server that has hidden its offer of channel binding refuses our answer', async () => {
  const peer = toServer({});
  const answer = readAnswer(sent(await peer.onRequest(10, Buffer.from('SCRAM-SHA-256\0\0'))));
  const auth = overTls(HASH);
  auth.begin();
  const step = await auth.onMessage(answer);
  assert.equal(step.kind === 'refused' && step.detail, NEGOTIATION);
});

test('the caller is told before a password or its hash leaves, and only then', async () => {
  const told = async (code: number, body: Buffer, secret: StoredSecret | null) => {
    const methods: string[] = [];
    const auth = startServerAuth({
      user: 'user',
      secret,
      clientKeys: null,
      random: seededRandom(5),
      onExposed: (method) => methods.push(method),
    });
    await auth.onRequest(code, body);
    return methods;
  };
  const salt = Buffer.from([1, 2, 3, 4]);
  assert.deepEqual(await told(3, Buffer.alloc(0), PLAIN), ['plain']);
  assert.deepEqual(await told(5, salt, PLAIN), ['md5']);
  assert.deepEqual(await told(10, Buffer.from(BOTH), PLAIN), []);
  assert.deepEqual(await told(0, Buffer.alloc(0), PLAIN), []);
  assert.deepEqual(await told(3, Buffer.alloc(0), null), []);
  assert.deepEqual(await told(5, salt, SECRET), []);
});
