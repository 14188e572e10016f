import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { PassThroughKeys } from '../../../src/auth/pass-through.ts';
import { deriveVerifier } from '../../../src/auth/scram.ts';
import { classifySecret } from '../../../src/auth/secret.ts';
import { startServerAuth } from '../../../src/auth/server-auth.ts';
import { readUserlist } from '../../../src/auth/userlist.ts';
import { Secret } from '../../../src/util/secret.ts';
import { clientAuth, exchange, PENCIL_MD5, PENCIL_SCRAM, seededRandom } from './exchange.ts';

test('no object of this room shows a password, a hash or a key, however it is printed', async () => {
  const texts = ['pencil', PENCIL_MD5, PENCIL_SCRAM];
  const stored = texts.map(classifySecret);
  const scram = stored[2]!;
  assert(scram.kind === 'scram');
  const derived = await deriveVerifier(new Secret('pencil'), scram.verifier.salt, 4096);
  const keys = new PassThroughKeys();
  keys.remember('user', scram, derived);
  const logins = stored.flatMap((secret) => [
    clientAuth({ method: 'plain', secret }),
    clientAuth({ method: 'md5', secret }),
    clientAuth({ method: 'scram-sha-256', secret }),
    startServerAuth({ user: 'user', secret, clientKeys: derived, random: seededRandom(1) }),
  ]);
  const login = clientAuth({ secret: scram });
  const peer = startServerAuth({
    user: 'user',
    secret: stored[0]!,
    clientKeys: null,
    random: seededRandom(2),
  });
  const { clientEnd } = await exchange(login, peer);
  assert(clientEnd?.kind === 'accepted' && clientEnd.clientKeys !== null);

  const rawKeys = [derived.clientKey, derived.storedKey, derived.serverKey].map((key) =>
    key.reveal(),
  );
  const hidden = [
    'pencil',
    PENCIL_MD5.slice(3),
    ...rawKeys.flatMap((key) => [
      key.toString('base64'),
      key.toString('hex'),
      key.toString('latin1'),
      [...key.subarray(0, 6)].join(','),
      key
        .toString('hex')
        .slice(0, 12)
        .replace(/(..)(?=.)/g, '$1 '),
    ]),
  ];
  const list = readUserlist(
    ['pencil', PENCIL_MD5, PENCIL_SCRAM].map((secret, at) => ({ name: `${at}`, secret })),
    null,
  );
  const shown = [
    ...stored,
    derived,
    keys,
    login,
    peer,
    clientEnd.clientKeys,
    list,
    ...list.values(),
    ...logins,
  ];
  for (const one of shown) {
    const options = { depth: 20, showHidden: true, maxArrayLength: 1000 };
    for (const print of [inspect(one, options), JSON.stringify(one), String(one), `${one}`]) {
      for (const secret of hidden) assert(!print.includes(secret), `${secret} in ${print}`);
    }
  }
});
