/** That a name that nobody has cannot be told from a wrong password, by the messages or by the work. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { derivationQueue } from '../../../src/auth/scram.ts';
import { classifySecret, type StoredSecret } from '../../../src/auth/secret.ts';
import { profileOf } from '../../../src/auth/secret-profile.ts';
import { startServerAuth } from '../../../src/auth/server-auth.ts';
import {
  clientAuth,
  exchange,
  PENCIL_MD5,
  PENCIL_SCRAM,
  readRequest,
  seededRandom,
  sent,
} from './exchange.ts';

const METHODS = ['plain', 'md5', 'scram-sha-256'] as const;
type Method = (typeof METHODS)[number];

const KINDS: Readonly<Record<string, readonly string[]>> = {
  plain: ['pencil'],
  md5: [PENCIL_MD5],
  SCRAM: [PENCIL_SCRAM],
  mixed: ['pencil', PENCIL_MD5, PENCIL_SCRAM],
};

/** A login with a wrong password: the requests, the text at its end, and the derivations it cost. */
async function refusal(method: Method, file: readonly StoredSecret[], secret: StoredSecret | null) {
  const before = derivationQueue.started;
  const pooler = clientAuth({ method, secret, profile: profileOf(file) });
  const peer = startServerAuth({
    user: 'user',
    secret: classifySecret('wrong'),
    clientKeys: null,
    random: seededRandom(2),
  });
  const { requests, clientEnd } = await exchange(pooler, peer);
  assert.equal(clientEnd?.kind, 'refused');
  // The peer derives its own keys once; that is not the pooler's work.
  const peers = requests.includes(11) ? 1 : 0;
  return {
    requests,
    text: clientEnd.text,
    derivations: derivationQueue.started - before - peers,
  };
}

for (const method of METHODS) {
  for (const [kind, texts] of Object.entries(KINDS)) {
    test(`auth_type = ${method}: where all secrets are ${kind}, a name that nobody has is like them`, async () => {
      for (let attempt = 0; attempt < 3; attempt++) {
        // A new object is what a secret is after a reload; the last attempt finds cached keys.
        const file = texts.map(classifySecret);
        const unknown = await refusal(method, file, null);
        const empty = await refusal(method, file, classifySecret(''));
        assert.deepEqual(empty, unknown);
        for (const secret of file) {
          // Users of SCRAM secrets are offered SASL by md5, which others cannot be.
          if (kind === 'mixed' && method === 'md5' && secret.kind === 'scram') continue;
          for (let again = 0; again < 2; again++) {
            assert.deepEqual(await refusal(method, file, secret), unknown);
          }
        }
      }
    });
  }
}

test('where secrets are plain, every refusal of SCRAM costs one derivation, and no success more', async () => {
  const file = ['pencil', PENCIL_SCRAM].map(classifySecret);
  for (const secret of [...file, null]) {
    assert.equal((await refusal('scram-sha-256', file, secret)).derivations, 1);
  }
});

test('where no refusal needs a derivation, none has one', async () => {
  const scramOnly = [classifySecret(PENCIL_SCRAM)];
  assert.equal((await refusal('scram-sha-256', scramOnly, null)).derivations, 0);
  const plainOnly = [classifySecret('pencil')];
  assert.equal((await refusal('plain', plainOnly, null)).derivations, 0);
});

test('nobody’s SCRAM login shows the count that stored secrets have, else scram_iterations', async () => {
  const stored = classifySecret(PENCIL_SCRAM.replace('$4096:', '$9000:'));
  for (const [file, expected] of [
    [[stored], 'i=9000'],
    [[stored, classifySecret('pencil')], 'i=5000'],
    [[], 'i=5000'],
  ] as const) {
    const login = clientAuth({ profile: profileOf(file), scramIterations: 5000 });
    login.begin();
    const first = Buffer.from('n,,n=,r=abc');
    const size = Buffer.alloc(4);
    size.writeInt32BE(first.length);
    const step = await login.onMessage(
      Buffer.concat([Buffer.from('SCRAM-SHA-256\0'), size, first]),
    );
    assert.match(readRequest(sent(step)).body.toString(), new RegExp(`,${expected}$`));
  }
});

test('work that is queued for a client that has gone is not done', async () => {
  const before = derivationQueue.started;
  let isGone = false;
  const logins = Array.from({ length: 20 }, () => {
    const login = clientAuth({
      method: 'plain',
      secret: classifySecret(PENCIL_SCRAM),
      isGone: () => isGone,
    });
    login.begin();
    return login.onMessage(Buffer.from('pencil\0'));
  });
  isGone = true;
  for (const step of await Promise.all(logins)) {
    if (step.kind === 'accepted') continue;
    assert.equal(step.kind, 'refused');
  }
  assert.ok(derivationQueue.started - before <= 2);
});
