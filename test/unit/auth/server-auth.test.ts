import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  authMessage,
  deriveVerifier,
  type ScramKeys,
  serverSignature,
} from '../../../src/auth/scram.ts';
import { classifySecret, type StoredSecret } from '../../../src/auth/secret.ts';
import { type ServerAuth, startServerAuth } from '../../../src/auth/server-auth.ts';
import { Secret } from '../../../src/util/secret.ts';
import {
  clientAuth,
  exchange,
  PENCIL_MD5,
  PENCIL_SCRAM,
  readAnswer,
  seededRandom,
  sent,
} from './exchange.ts';

const SALT = Buffer.from('W22ZaJ0SNY7soEsUEjb6gQ==', 'base64');
const SASL_OFFER = Buffer.from('SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0');
const NOTHING = Buffer.alloc(0);
const UNANSWERED = 'failed to answer authreq';
const WRONG_TYPE = 'server login failed: wrong password type';
const NO_MECHANISM =
  "server login failed: none of the server's SASL authentication mechanisms are supported";

function serverAuth(secret: StoredSecret | null, clientKeys: ScramKeys | null = null): ServerAuth {
  return startServerAuth({ user: 'user', secret, clientKeys, random: seededRandom(5) });
}

const pencilKeys = () => deriveVerifier(new Secret('pencil'), SALT, 4096);

type Asked =
  | 'nothing'
  | 'cleartext'
  | 'md5'
  | 'sasl'
  | 'plusOnly'
  | 'noMechanism'
  | 'kerberos'
  | 'gss'
  | 'sspi'
  | 'future';

const question: Record<Asked, [code: number, body: Buffer]> = {
  nothing: [0, NOTHING],
  cleartext: [3, NOTHING],
  md5: [5, Buffer.from([1, 2, 3, 4])],
  sasl: [10, SASL_OFFER],
  plusOnly: [10, Buffer.from('SCRAM-SHA-256-PLUS\0\0')],
  noMechanism: [10, Buffer.from('\0')],
  kerberos: [2, NOTHING],
  gss: [7, NOTHING],
  sspi: [9, NOTHING],
  future: [99, NOTHING],
};

/** md5sum of `pencil` + `user`, then of its digits and 01 02 03 04. */
const MD5_ANSWER = 'md54376eb6913b38f9aaff38dc7cf19ca76\0';
const EMPTY_MD5_ANSWER = 'md5ff7ca9a45f0757684ae06cc1933cfede\0';
const FIRST = `SCRAM-SHA-256\0\0\0\0\x20n,,n=,r=${seededRandom(5)(18).toString('base64')}`;

/** The server's question, the stored secret, and our answer: the body sent, or the failure. */
const table: readonly (readonly [Asked, string | null, string])[] = [
  ['nothing', 'pencil', 'ok'],
  ['nothing', PENCIL_MD5, 'ok'],
  ['nothing', PENCIL_SCRAM, 'ok'],
  ['nothing', null, 'ok'],
  ['cleartext', 'pencil', 'pencil\0'],
  ['cleartext', PENCIL_MD5, `${PENCIL_MD5}\0`],
  ['cleartext', PENCIL_SCRAM, `${PENCIL_SCRAM}\0`],
  ['cleartext', '', '\0'],
  ['cleartext', null, '\0'],
  ['md5', 'pencil', MD5_ANSWER],
  ['md5', PENCIL_MD5, MD5_ANSWER],
  ['md5', PENCIL_SCRAM, WRONG_TYPE],
  ['md5', null, EMPTY_MD5_ANSWER],
  ['sasl', 'pencil', FIRST],
  ['sasl', PENCIL_MD5, WRONG_TYPE],
  ['sasl', PENCIL_SCRAM, WRONG_TYPE],
  ['sasl', null, FIRST],
  ['plusOnly', 'pencil', NO_MECHANISM],
  ['plusOnly', PENCIL_MD5, NO_MECHANISM],
  ['plusOnly', PENCIL_SCRAM, NO_MECHANISM],
  ['noMechanism', 'pencil', NO_MECHANISM],
  ['kerberos', 'pencil', UNANSWERED],
  ['gss', 'pencil', UNANSWERED],
  ['sspi', 'pencil', UNANSWERED],
  ['future', 'pencil', UNANSWERED],
];

for (const [asked, stored, expected] of table) {
  const kind = stored === null ? 'no' : classifySecret(stored).kind;
  test(`a server that asks for ${asked} gets PgBouncer's answer from a ${kind} secret`, async () => {
    const auth = serverAuth(stored === null ? null : classifySecret(stored));
    const step = await auth.onRequest(...question[asked]);
    if (step.kind === 'send') assert.equal(readAnswer(step.message).toString('latin1'), expected);
    else assert.equal(step.kind === 'failed' ? step.text : step.kind, expected);
  });
}

/** A login that has sent its client-first-message; the server's nonce adds `server`. */
async function started(secret = classifySecret('pencil'), keys: ScramKeys | null = null) {
  const auth = serverAuth(secret, keys);
  const initial = readAnswer(sent(await auth.onRequest(10, SASL_OFFER))).toString('latin1');
  const bare = initial.slice(initial.indexOf('n,,') + 3);
  return { auth, bare, nonce: `${bare.slice('n=,r='.length)}server` };
}

/** A login that has sent its proof, and the right final message of the server. */
async function proved(secret = classifySecret('pencil'), keys: ScramKeys | null = null) {
  const { auth, bare, nonce } = await started(secret, keys);
  const serverFirst = `r=${nonce},s=${SALT.toString('base64')},i=4096`;
  const step = await auth.onRequest(11, Buffer.from(serverFirst));
  const withoutProof = readAnswer(sent(step)).toString('latin1').replace(/,p=.*/, '');
  const signed = authMessage(bare, serverFirst, withoutProof);
  const signature = serverSignature((await pencilKeys()).serverKey, signed).toString('base64');
  return { auth, final: `v=${signature}`, answer: readAnswer(sent(step)).toString('latin1') };
}

test('a whole SCRAM login ends in ok after the signature was checked', async () => {
  const { auth, final } = await proved();
  assert.deepEqual(await auth.onRequest(12, Buffer.from(final)), { kind: 'nothing' });
  assert.deepEqual(await auth.onRequest(0, NOTHING), { kind: 'ok' });
});

test('proved keys give the same answer as the password', async () => {
  const byPassword = await proved();
  const byKeys = await proved(classifySecret(PENCIL_SCRAM), await pencilKeys());
  assert.equal(byKeys.answer, byPassword.answer);
});

test('keys are used neither beside a plain password nor for another secret', async () => {
  const otherKeys = await deriveVerifier(new Secret('eraser'), SALT, 4096);
  const plain = await proved(classifySecret('pencil'), otherKeys);
  assert.equal(plain.answer, (await proved()).answer);
  const auth = serverAuth(classifySecret(PENCIL_SCRAM), otherKeys);
  const step = await auth.onRequest(10, SASL_OFFER);
  assert.equal(step.kind === 'failed' && step.text, WRONG_TYPE);
});

test('a server that lets us in without its signature is refused', async () => {
  for (const { auth } of [await started(), await proved()]) {
    assert.deepEqual(await auth.onRequest(0, NOTHING), {
      kind: 'failed',
      text: 'server login failed: failed to verify server signature',
      detail: 'failed to verify server signature',
    });
  }
});

test('a wrong server signature is refused, and ok after it too', async () => {
  const { auth, final } = await proved();
  const wrong = Buffer.from(final.slice(2), 'base64');
  wrong[31]! ^= 1;
  assert.deepEqual(await auth.onRequest(12, Buffer.from(`v=${wrong.toString('base64')}`)), {
    kind: 'failed',
    text: 'server login failed: invalid server signature',
    detail: 'invalid server signature',
  });
  assert.equal((await auth.onRequest(12, Buffer.from(final))).kind, 'failed');
  assert.equal((await auth.onRequest(0, NOTHING)).kind, 'failed');
});

const badFirsts: readonly (readonly [
  rule: string,
  first: (nonce: string) => string,
  detail: string,
])[] = [
  ['empty', () => '', 'malformed SCRAM message (attribute "r" expected)'],
  ['an error', () => 'e=other-error', 'malformed SCRAM message (attribute "r" expected)'],
  ['without salt', (nonce) => `r=${nonce},i=1`, 'malformed SCRAM message (attribute "s" expected)'],
  [
    'without count',
    (nonce) => `r=${nonce},s=QUJD`,
    'malformed SCRAM message (attribute "i" expected)',
  ],
  [
    'with a nonce of its own',
    () => 'r=foreign,s=QUJD,i=1',
    'invalid SCRAM response (nonce mismatch)',
  ],
  [
    'with our nonce alone',
    (nonce) => `r=${nonce.slice(0, -6)},s=QUJD,i=1`,
    'invalid SCRAM response (nonce mismatch)',
  ],
  [
    'with a cut nonce',
    (nonce) => `r=${nonce.slice(0, 5)},s=QUJD,i=1`,
    'invalid SCRAM response (nonce mismatch)',
  ],
  [
    'with blanks in its nonce',
    (nonce) => `r=${nonce} x,s=QUJD,i=1`,
    'non-printable characters in SCRAM nonce',
  ],
  ['with an empty salt', (nonce) => `r=${nonce},s=,i=1`, 'malformed SCRAM message (invalid salt)'],
  [
    'with a salt that is not base64',
    (nonce) => `r=${nonce},s=*,i=1`,
    'malformed SCRAM message (invalid salt)',
  ],
  [
    'with count 0',
    (nonce) => `r=${nonce},s=QUJD,i=0`,
    'malformed SCRAM message (invalid iteration count)',
  ],
  [
    'with a negative count',
    (nonce) => `r=${nonce},s=QUJD,i=-1`,
    'malformed SCRAM message (invalid iteration count)',
  ],
  [
    'with a count that is no number',
    (nonce) => `r=${nonce},s=QUJD,i=4096x`,
    'malformed SCRAM message (invalid iteration count)',
  ],
  [
    'with an absurd count',
    (nonce) => `r=${nonce},s=QUJD,i=10000001`,
    'malformed SCRAM message (invalid iteration count)',
  ],
  [
    'with a count beyond 32 bits',
    (nonce) => `r=${nonce},s=QUJD,i=99999999999`,
    'malformed SCRAM message (invalid iteration count)',
  ],
  [
    'with an extension',
    (nonce) => `r=${nonce},s=QUJD,i=1,x=y`,
    'malformed SCRAM message (garbage at end of server-first-message)',
  ],
  [
    'with a comma at its end',
    (nonce) => `r=${nonce},s=QUJD,i=1,`,
    'malformed SCRAM message (garbage at end of server-first-message)',
  ],
  [
    'that is too long',
    (nonce) => `r=${nonce}${'x'.repeat(2000)},s=QUJD,i=1`,
    'malformed SCRAM message (message too long)',
  ],
];

test('a malformed first message of a server ends the login with its reason', async () => {
  for (const [rule, first, detail] of badFirsts) {
    const { auth, nonce } = await started();
    const step = await auth.onRequest(11, Buffer.from(first(nonce)));
    assert.deepEqual(step, { kind: 'failed', text: UNANSWERED, detail }, rule);
  }
});

const badFinals: readonly (readonly [change: (good: string) => string, detail: string])[] = [
  [() => '', 'malformed SCRAM message (attribute "v" expected)'],
  [() => 'e=invalid-proof', 'error received from server in SCRAM exchange: invalid-proof'],
  [() => 'e', 'malformed SCRAM message (expected "=" after attribute "e")'],
  [() => 'v=', 'malformed SCRAM message (malformed server signature)'],
  [() => 'v=QUJD', 'malformed SCRAM message (malformed server signature)'],
  [(good) => good.slice(0, -1), 'malformed SCRAM message (malformed server signature)'],
  [(good) => `${good},x=y`, 'malformed SCRAM message (garbage at end of server-final-message)'],
  [(good) => `${good}\0`, 'malformed SCRAM message (NUL byte in attribute)'],
];

test('a malformed final message of a server ends the login with its reason', async () => {
  for (const [change, detail] of badFinals) {
    const { auth, final } = await proved();
    const step = await auth.onRequest(12, Buffer.from(change(final)));
    assert.deepEqual(step, { kind: 'failed', text: UNANSWERED, detail });
  }
});

test('a broken list of mechanisms or MD5 salt ends the login', async () => {
  for (const offer of ['', 'SCRAM-SHA-256', 'SCRAM-SHA-256\0', 'SCRAM-SHA-256\0\0x']) {
    const step = await serverAuth(classifySecret('pencil')).onRequest(10, Buffer.from(offer));
    assert.equal(step.kind === 'failed' && step.text, UNANSWERED, offer);
  }
  for (const size of [0, 3, 5]) {
    const step = await serverAuth(classifySecret('pencil')).onRequest(5, Buffer.alloc(size));
    assert.equal(step.kind === 'failed' && step.text, UNANSWERED, `${size} bytes`);
  }
});

test('a server asks one question only, so that a proof cannot turn into a password', async () => {
  const questions = [question.cleartext, question.md5, question.sasl];
  for (const first of questions) {
    for (const second of questions) {
      const auth = serverAuth(classifySecret('pencil'));
      assert.equal((await auth.onRequest(...first)).kind, 'send');
      const step = await auth.onRequest(...second);
      assert.equal(step.kind === 'failed' && step.text, UNANSWERED);
      assert.equal((await auth.onRequest(0, NOTHING)).kind, 'failed');
    }
  }
});

test('SASL messages without or out of their turn end the login', async () => {
  for (const code of [11, 12]) {
    const step = await serverAuth(classifySecret('pencil')).onRequest(code, Buffer.from('v=x'));
    assert.equal(step.kind === 'failed' && step.text, UNANSWERED);
  }
  const early = await started();
  assert.equal((await early.auth.onRequest(12, Buffer.from('v=x'))).kind, 'failed');
  const twice = await proved();
  const first = Buffer.from(`r=${'x'},s=QUJD,i=1`);
  assert.equal((await twice.auth.onRequest(11, first)).kind, 'failed');
  assert.equal((await twice.auth.onRequest(12, Buffer.from(twice.final))).kind, 'failed');
});

test('what a server sends while the password is being derived ends the login', async () => {
  const { auth, nonce } = await started();
  const pending = auth.onRequest(11, Buffer.from(`r=${nonce},s=QUJD,i=4096`));
  assert.equal((await auth.onRequest(0, NOTHING)).kind, 'failed');
  assert.equal((await pending).kind, 'failed');
  assert.equal((await auth.onRequest(0, NOTHING)).kind, 'failed');
});

test('a SCRAM client behind the pooler opens the server for its own name', async () => {
  const stored = classifySecret(PENCIL_SCRAM);
  const client = await exchange(
    clientAuth({ secret: stored }),
    serverAuth(classifySecret('pencil')),
  );
  assert(client.clientEnd?.kind === 'accepted');
  const onward = await exchange(
    clientAuth({ secret: stored, random: seededRandom(9) }),
    serverAuth(stored, client.clientEnd.clientKeys),
  );
  assert.equal(onward.serverEnd?.kind, 'ok');
});

test('two thousand random server messages crash nothing and log in nowhere', async () => {
  const seed = Number(process.env['SEED'] ?? 20_240_608);
  const random = seededRandom(seed);
  const pick = (n: number) => random(4).readUInt32BE(0) % n;
  for (let round = 0; round < 2000; round++) {
    const { auth } = await started();
    for (let n = 0; n < 3; n++) {
      const body = pick(2) === 0 ? random(pick(100)) : Buffer.from(`r=a,s=QUJD,i=${pick(9)}`);
      const step = await auth.onRequest([0, 3, 5, 10, 11, 12, pick(200)][pick(7)]!, body);
      assert.notEqual(step.kind, 'ok', `seed ${seed}, round ${round}`);
    }
  }
});
