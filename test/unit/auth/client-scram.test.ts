import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { AuthStep, ClientAuth } from '../../../src/auth/client-auth.ts';
import { authMessage, clientProof, deriveVerifier } from '../../../src/auth/scram.ts';
import { classifySecret } from '../../../src/auth/secret.ts';
import { Secret } from '../../../src/util/secret.ts';
import {
  clientAuth,
  initialBody,
  PENCIL_MD5,
  PENCIL_SCRAM,
  readRequest,
  seededRandom,
  sent,
} from './exchange.ts';

const FAILED = 'SASL authentication failed';
const SECRET = classifySecret(PENCIL_SCRAM);

interface Started {
  readonly auth: ClientAuth;
  readonly serverFirst: string;
  readonly nonce: string;
}

/** A login that has had its first message answered. */
async function started(first = 'n,,n=,r=abc', secret = SECRET, seed = 1): Promise<Started> {
  const auth = clientAuth({ secret, random: seededRandom(seed) });
  auth.begin();
  const { code, body } = readRequest(sent(await auth.onMessage(initialBody(first))));
  assert.equal(code, 11);
  const serverFirst = body.toString('latin1');
  return { auth, serverFirst, nonce: /^r=([^,]+),/.exec(serverFirst)![1]! };
}

/** The right final message of a client that knows `pencil`; `extra` goes before the proof. */
async function finalMessage(one: Started, bare: string, binding = 'biws', extra = '') {
  const [, salt, count] = /,s=([^,]+),i=(\d+)$/.exec(one.serverFirst)!;
  const keys = await deriveVerifier(
    new Secret('pencil'),
    Buffer.from(salt!, 'base64'),
    Number(count),
  );
  const withoutProof = `c=${binding},r=${one.nonce}${extra}`;
  const signed = authMessage(bare, one.serverFirst, withoutProof);
  return `${withoutProof},p=${clientProof(keys.clientKey, signed).toString('base64')}`;
}

function assertRefused(step: AuthStep, detail: string | null): void {
  assert.deepEqual(step, { kind: 'refused', text: FAILED, detail });
}

test('the offer names SCRAM-SHA-256 only', () => {
  const { code, body } = readRequest(sent(clientAuth({ secret: SECRET }).begin()));
  assert.equal(code, 10);
  assert.equal(body.toString('latin1'), 'SCRAM-SHA-256\0\0');
});

test('the first answer extends the nonce and shows salt and count of the stored secret', async () => {
  const { serverFirst } = await started();
  const random = seededRandom(1)(18).toString('base64');
  assert.equal(serverFirst, `r=abc${random},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096`);
});

const goodFirsts: readonly (readonly [
  rule: string,
  header: string,
  bare: string,
  binding: string,
])[] = [
  ['without channel binding', 'n,,', 'n=,r=abc', 'biws'],
  ['that believes we have no channel binding', 'y,,', 'n=,r=abc', 'eSws'],
  ['that names another user', 'n,,', 'n=somebody=2Celse,r=abc', 'biws'],
  ['that names a user in bytes that are not UTF-8', 'n,,', 'n=\xff\xfe,r=abc', 'biws'],
  ['with an optional extension', 'n,,', 'n=,r=abc,x=1', 'biws'],
];

for (const [rule, header, bare, binding] of goodFirsts) {
  test(`a client ${rule} is let in with the right proof`, async () => {
    const one = await started(header + bare);
    const step = await one.auth.onMessage(Buffer.from(await finalMessage(one, bare, binding)));
    assert.equal(step.kind, 'accepted');
  });
}

test('an optional extension in the final message is covered by the proof', async () => {
  const one = await started();
  const message = await finalMessage(one, 'n=,r=abc', 'biws', ',x=y=z');
  assert.equal((await one.auth.onMessage(Buffer.from(message))).kind, 'accepted');
  const two = await started();
  assertRefused(
    await two.auth.onMessage(Buffer.from(message.replace(',x=y=z', ',x=y=Z'))),
    'password authentication failed',
  );
});

const badFirsts: readonly (readonly [first: string, detail: string])[] = [
  ['', 'malformed SCRAM message (unexpected channel-binding flag "0x00")'],
  ['x,,n=,r=abc', 'malformed SCRAM message (unexpected channel-binding flag "\'x\'")'],
  ['\x1f,,n=,r=abc', 'malformed SCRAM message (unexpected channel-binding flag "0x1f")'],
  [
    'p=tls-server-end-point,,n=,r=abc',
    'client requires SCRAM channel binding, but it is not supported',
  ],
  ['n', 'malformed SCRAM message (comma expected, but found character "0x00")'],
  ['n;,n=,r=abc', 'malformed SCRAM message (comma expected, but found character "\';\'")'],
  ['n,a=root,n=,r=abc', 'client uses authorization identity, but it is not supported'],
  ['n,', 'malformed SCRAM message (unexpected attribute "0x00" in client-first-message)'],
  ['n,n=,r=abc', 'malformed SCRAM message (unexpected attribute "\'n\'" in client-first-message)'],
  ['n,,', 'malformed SCRAM message (attribute "n" expected)'],
  ['n,,m=1,n=,r=abc', 'client requires an unsupported SCRAM extension'],
  ['n,,r=abc', 'malformed SCRAM message (attribute "n" expected)'],
  ['n,,n', 'malformed SCRAM message (expected "=" after attribute "n")'],
  ['n,,n=', 'malformed SCRAM message (attribute "r" expected)'],
  ['n,,n=,', 'malformed SCRAM message (attribute "r" expected)'],
  ['n,,n=,,r=abc', 'malformed SCRAM message (attribute "r" expected)'],
  ['n,,,n=,r=abc', 'malformed SCRAM message (attribute "n" expected)'],
  ['n,,n=,r=', 'non-printable characters in SCRAM nonce'],
  ['n,,n=,r=a\x7fc', 'non-printable characters in SCRAM nonce'],
  ['n,,n=,r=a c', 'non-printable characters in SCRAM nonce'],
  ['n,,n=,r=\xe4', 'non-printable characters in SCRAM nonce'],
  ['n,,n=,r=abc\0', 'malformed SCRAM message (NUL byte in attribute)'],
  ['n,,n=\0,r=abc', 'malformed SCRAM message (NUL byte in attribute)'],
  [
    'n,,n=,r=abc,',
    'malformed SCRAM message (attribute expected, but found invalid character "0x00")',
  ],
  [
    'n,,n=,r=abc,,',
    'malformed SCRAM message (attribute expected, but found invalid character "\',\'")',
  ],
  [
    'n,,n=,r=abc,1=2',
    'malformed SCRAM message (attribute expected, but found invalid character "\'1\'")',
  ],
  ['n,,n=,r=abc,xx', 'malformed SCRAM message (expected character "=" after attribute "x")'],
  [`n,,n=,r=${'a'.repeat(1024)}`, 'malformed SCRAM message (message too long)'],
];

test('a first message that is not as RFC 5802 says is refused with its reason', async () => {
  for (const [first, detail] of badFirsts) {
    const auth = clientAuth({ secret: SECRET });
    auth.begin();
    assertRefused(await auth.onMessage(initialBody(first)), detail);
  }
});

const badFinals: readonly (readonly [
  rule: string,
  change: (good: string) => string,
  detail: string,
])[] = [
  ['nothing', () => '', 'malformed SCRAM message (attribute "c" expected)'],
  [
    'another binding',
    (good) => good.replace('biws', 'eSws'),
    'unexpected SCRAM channel-binding attribute in client-final-message',
  ],
  [
    'a binding with data',
    (good) => good.replace('biws', 'biwsYWJj'),
    'unexpected SCRAM channel-binding attribute in client-final-message',
  ],
  [
    'a nonce cut short',
    (good) => good.replace(/r=([^,]+).,/, 'r=$1,'),
    'invalid SCRAM response (nonce does not match)',
  ],
  [
    'a longer nonce',
    (good) => good.replace(/r=([^,]+),/, 'r=$1x,'),
    'invalid SCRAM response (nonce does not match)',
  ],
  [
    'its own nonce only',
    (good) => good.replace(/r=[^,]+,/, 'r=abc,'),
    'invalid SCRAM response (nonce does not match)',
  ],
  [
    'no nonce',
    (good) => good.replace(/r=[^,]+,/, ''),
    'malformed SCRAM message (attribute "r" expected)',
  ],
  ['no proof', (good) => good.replace(/,p=.*/, ''), 'could not read proof'],
  ['a proof cut short', (good) => good.slice(0, -2), 'could not decode proof'],
  [
    'an empty proof',
    (good) => good.replace(/,p=.*/, ',p='),
    'malformed SCRAM message (malformed proof in client-final-message)',
  ],
  [
    'a proof of 31 bytes',
    (good) => good.replace(/,p=.*/, `,p=${Buffer.alloc(31).toString('base64')}`),
    'malformed SCRAM message (malformed proof in client-final-message)',
  ],
  [
    'a proof of 33 bytes',
    (good) => good.replace(/,p=.*/, `,p=${Buffer.alloc(33).toString('base64')}`),
    'malformed SCRAM message (malformed proof in client-final-message)',
  ],
  ['a proof that is not base64', (good) => good.replace(/,p=./, ',p=!'), 'could not decode proof'],
  ['a blank in the proof', (good) => good.replace(',p=', ',p= '), 'could not decode proof'],
  ['base64url', (good) => good.replace(/,p=.*/, `,p=${'_'.repeat(43)}=`), 'could not decode proof'],
  ['stray bits behind the proof', (good) => good.replace(/.=$/, 'B='), 'could not decode proof'],
  [
    'a comma behind the proof',
    (good) => `${good},`,
    'malformed SCRAM message (garbage at the end of client-final-message)',
  ],
  [
    'an attribute behind the proof',
    (good) => `${good},x=1`,
    'malformed SCRAM message (garbage at the end of client-final-message)',
  ],
  [
    'a NUL behind the proof',
    (good) => `${good}\0`,
    'malformed SCRAM message (NUL byte in attribute)',
  ],
  [
    'two commas',
    (good) => good.replace(',p=', ',,p='),
    'malformed SCRAM message (attribute expected, but found invalid character "\',\'")',
  ],
  [
    'an extension without a value',
    (good) => good.replace(',p=', ',x,p='),
    'malformed SCRAM message (expected character "=" after attribute "x")',
  ],
  [
    'an oversized extension',
    (good) => good.replace(',p=', `,x=${'y'.repeat(1024)},p=`),
    'malformed SCRAM message (message too long)',
  ],
  [
    'an extension outside the proof',
    (good) => good.replace(',p=', ',x=1,p='),
    'password authentication failed',
  ],
  [
    'a wrong proof',
    (good) => good.replace(/,p=.*/, `,p=${Buffer.alloc(32).toString('base64')}`),
    'password authentication failed',
  ],
];

for (const [rule, change, detail] of badFinals) {
  test(`a final message with ${rule} is refused with its reason`, async () => {
    const one = await started();
    const good = await finalMessage(one, 'n=,r=abc');
    assertRefused(await one.auth.onMessage(Buffer.from(change(good), 'latin1')), detail);
    assertRefused(await one.auth.onMessage(Buffer.from(good)), null);
  });
}

test('a good final message cut at any byte is refused', async () => {
  const good = await finalMessage(await started(), 'n=,r=abc');
  for (let size = 0; size < good.length; size++) {
    const one = await started();
    const step = await one.auth.onMessage(Buffer.from(good.slice(0, size)));
    assert.equal(step.kind, 'refused', `cut at ${size}`);
  }
});

test('a final message replayed into another login is refused', async () => {
  const good = await finalMessage(await started(), 'n=,r=abc');
  const other = await started('n,,n=,r=abc', SECRET, 2);
  assertRefused(
    await other.auth.onMessage(Buffer.from(good)),
    'invalid SCRAM response (nonce does not match)',
  );
});

test('every mechanism but the one offered is refused by name', async () => {
  for (const name of ['SCRAM-SHA-256-PLUS', 'SCRAM-SHA-1', 'scram-sha-256', 'PLAIN', '']) {
    const auth = clientAuth({ secret: SECRET });
    auth.begin();
    assert.deepEqual(await auth.onMessage(initialBody('n,,n=,r=abc', name)), {
      kind: 'refused',
      text: 'client selected an invalid SASL authentication mechanism',
      detail: null,
    });
  }
});

test('a first message whose length field is not its length is refused', async () => {
  const good = initialBody('n,,n=,r=abc');
  const lengthAt = good.indexOf(0) + 1;
  for (const length of [-1, 0, 10, 12, 0x7fffffff, -0x80000000]) {
    const body = Buffer.from(good);
    body.writeInt32BE(length, lengthAt);
    const auth = clientAuth({ secret: SECRET });
    auth.begin();
    assertRefused(await auth.onMessage(body), null);
  }
  for (let size = 0; size < good.length; size++) {
    const auth = clientAuth({ secret: SECRET });
    auth.begin();
    assert.equal((await auth.onMessage(good.subarray(0, size))).kind, 'refused', `cut at ${size}`);
  }
});

test('an unknown user, an empty secret and a plain one show the same stable salt and count', async () => {
  const shown = async (secret: typeof SECRET | null, user = 'user', scramIterations = 4096) => {
    const auth = clientAuth({ secret, user, scramIterations, random: seededRandom(7) });
    auth.begin();
    return readRequest(sent(await auth.onMessage(initialBody('n,,n=,r=abc')))).body.toString();
  };
  const unknown = await shown(null);
  assert.equal(await shown(null), unknown);
  assert.equal(await shown(classifySecret('pencil')), unknown);
  assert.equal(await shown(classifySecret('')), unknown);
  assert.equal(await shown(classifySecret(PENCIL_MD5)), unknown);
  assert.match(unknown, /,s=[A-Za-z0-9+/]{22}==,i=4096$/);
  assert.notEqual(await shown(null, 'other'), unknown);
  assert.match(await shown(null, 'user', 10_000), /,i=10000$/);
  assert.match(await shown(null, 'user', 0), /,i=1$/);
});

test('a doomed login fails at the same message and with the same text as a wrong password', async () => {
  const details = new Map<string | null, string>([
    [null, 'password authentication failed'],
    ['', 'password authentication failed'],
    [PENCIL_MD5, 'SCRAM authentication failed: user has MD5 secret'],
    ['other', 'password authentication failed'],
  ]);
  for (const [text, detail] of details) {
    const auth = clientAuth({ secret: text === null ? null : classifySecret(text) });
    auth.begin();
    const first = readRequest(sent(await auth.onMessage(initialBody('n,,n=,r=abc'))));
    const serverFirst = first.body.toString('latin1');
    const nonce = /^r=([^,]+),/.exec(serverFirst)![1]!;
    const message = await finalMessage({ auth, serverFirst, nonce }, 'n=,r=abc');
    assertRefused(await auth.onMessage(Buffer.from(message)), detail);
  }
});

test('messages sent while the password is being derived are refused and let nobody in', async () => {
  const auth = clientAuth({ secret: classifySecret('pencil') });
  auth.begin();
  const first = readRequest(sent(await auth.onMessage(initialBody('n,,n=,r=abc'))));
  const serverFirst = first.body.toString('latin1');
  const nonce = /^r=([^,]+),/.exec(serverFirst)![1]!;
  const good = Buffer.from(await finalMessage({ auth, serverFirst, nonce }, 'n=,r=abc'));
  const wrong = Buffer.from(
    good.toString().replace(/,p=.*/, `,p=${Buffer.alloc(32).toString('base64')}`),
  );
  const pending = auth.onMessage(wrong);
  assertRefused(await auth.onMessage(good), null);
  assertRefused(await pending, 'password authentication failed');
});

test('five thousand random bodies crash nothing and let nobody in', async () => {
  const seed = Number(process.env['SEED'] ?? 20_240_607);
  const random = seededRandom(seed);
  const pick = (n: number) => random(4).readUInt32BE(0) % n;
  const secrets = [SECRET, classifySecret('pencil'), classifySecret(PENCIL_MD5), null];
  const methods = ['scram-sha-256', 'md5', 'plain'] as const;
  const firsts = ['n,,n=,r=abc', 'y,,n=u,r=q,x=1', 'p=tls-unique,,n=,r=abc', 'n,a=b,n=,r=abc'];
  const good = initialBody(firsts[0]!);
  for (let round = 0; round < 5000; round++) {
    const auth = clientAuth({ method: methods[pick(3)]!, secret: secrets[pick(4)]!, random });
    auth.begin();
    if (pick(2) === 0) await auth.onMessage(good);
    let body: Buffer;
    switch (pick(4)) {
      case 0:
        body = random(pick(200));
        break;
      case 1:
        body = initialBody(firsts[pick(4)]!);
        for (let n = pick(4); n >= 0; n--) body[pick(body.length)] = random(1)[0]!;
        break;
      case 2:
        body = Buffer.from(
          `c=biws,r=${random(9).toString('base64')},p=${random(32).toString('base64')}`,
        );
        break;
      default:
        body = initialBody(random(pick(60)).toString('latin1'));
    }
    for (const step of [await auth.onMessage(body), await auth.onMessage(random(pick(80)))]) {
      assert.notEqual(step.kind, 'accepted', `seed ${seed}, round ${round}`);
    }
  }
});
