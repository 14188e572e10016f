import assert from 'node:assert/strict';
import { test } from 'node:test';
import { PassThroughKeys } from '../../../src/auth/pass-through.ts';
import { areKeysOf, deriveVerifier } from '../../../src/auth/scram.ts';
import { classifySecret } from '../../../src/auth/secret.ts';
import { Secret } from '../../../src/util/secret.ts';
import { PENCIL_SCRAM } from './exchange.ts';

const SALT = Buffer.from('W22ZaJ0SNY7soEsUEjb6gQ==', 'base64');
const STORED = classifySecret(PENCIL_SCRAM);

async function scramSecretOf(password: string) {
  const made = await deriveVerifier(new Secret(password), SALT, 4096);
  const [stored, server] = [made.storedKey, made.serverKey].map((key) =>
    key.reveal().toString('base64'),
  );
  const text = `SCRAM-SHA-256$4096:${SALT.toString('base64')}$${stored}:${server}`;
  return { keys: made, secret: classifySecret(text) };
}

test('keys serve the name that proved them and no other', async () => {
  const store = new PassThroughKeys();
  const { keys } = await scramSecretOf('pencil');
  assert.equal(store.remember('alice', STORED, keys), true);
  assert.equal(store.find('alice', STORED), keys);
  assert.equal(store.find('bob', STORED), null);
  assert.equal(store.find('__proto__', STORED), null);
});

test("a client of a database with a forced user does not touch that user's keys", async () => {
  const store = new PassThroughKeys();
  const forced = await scramSecretOf('forced');
  const client = await scramSecretOf('client');
  store.remember('forced', forced.secret, forced.keys);
  store.remember('client', client.secret, client.keys);
  assert.equal(store.find('forced', forced.secret), forced.keys);
});

test('a plain password always wins', async () => {
  const store = new PassThroughKeys();
  const { keys } = await scramSecretOf('pencil');
  store.remember('alice', STORED, keys);
  for (const secret of [classifySecret('pencil'), classifySecret(''), null]) {
    assert.equal(store.find('alice', secret), null);
  }
  assert.equal(store.find('alice', STORED), keys);
});

test('keys are remembered only for the secret that they belong to', async () => {
  const store = new PassThroughKeys();
  const other = await scramSecretOf('eraser');
  assert.equal(store.remember('alice', STORED, other.keys), false);
  assert.equal(store.remember('alice', classifySecret('eraser'), other.keys), false);
  assert.equal(store.remember('alice', null, other.keys), false);
  assert.equal(store.size, 0);
});

test('keys that are known already are no news, those of a changed secret are', async () => {
  const store = new PassThroughKeys();
  const { keys } = await scramSecretOf('pencil');
  const changed = await scramSecretOf('eraser');
  assert.equal(store.remember('alice', STORED, keys), true);
  assert.equal(store.remember('alice', STORED, keys), false);
  assert.equal(store.remember('alice', changed.secret, changed.keys), true);
  assert.equal(store.find('alice', changed.secret), changed.keys);
});

test('a name may have another secret in each database: keys of some are kept side by side', async () => {
  const store = new PassThroughKeys();
  const made = [];
  for (const password of ['a', 'b', 'c', 'd', 'e']) {
    const one = await scramSecretOf(password);
    made.push(one);
    assert.equal(store.remember('alice', one.secret, one.keys), true);
  }
  assert.deepEqual(
    made.map(({ secret }) => store.find('alice', secret)),
    [null, ...made.slice(1).map(({ keys }) => keys)],
  );
});

test('of too many names the one used longest ago is forgotten', async () => {
  const store = new PassThroughKeys(undefined, 2);
  const { keys } = await scramSecretOf('pencil');
  store.remember('alice', STORED, keys);
  store.remember('bob', STORED, keys);
  store.find('alice', STORED);
  store.remember('carol', STORED, keys);
  assert.deepEqual(store.all.map(({ user }) => user).sort(), ['alice', 'carol']);
});

test('what a client proves is told to the other workers once, what they tell is not', async () => {
  const told: string[] = [];
  const store = new PassThroughKeys(({ user }) => told.push(user));
  const { keys } = await scramSecretOf('pencil');
  store.accept({ user: 'bob', keys });
  for (let i = 0; i < 2; i++) {
    store.remember('alice', STORED, keys);
    store.remember('bob', STORED, keys);
  }
  assert.deepEqual(told, ['alice']);
  const other = new PassThroughKeys();
  for (const proved of store.all) other.accept(proved);
  assert.equal(other.find('alice', STORED), keys);
});

test('keys that another worker tells serve no secret that they do not belong to', async () => {
  const store = new PassThroughKeys();
  const other = await scramSecretOf('eraser');
  store.accept({ user: 'alice', keys: other.keys });
  assert.equal(store.find('alice', STORED), null);
  assert.equal(store.find('alice', other.secret), other.keys);
});

test('a reload drops the keys of names that are gone or have another secret', async () => {
  const store = new PassThroughKeys();
  const { keys } = await scramSecretOf('pencil');
  const changed = await scramSecretOf('eraser');
  for (const name of ['same', 'changed', 'plain', 'gone']) store.remember(name, STORED, keys);
  const reloaded = new Map([
    ['same', classifySecret(PENCIL_SCRAM)],
    ['changed', changed.secret],
    ['plain', classifySecret('pencil')],
  ]);
  store.retain(({ user, keys: proved }) => {
    const secret = reloaded.get(user);
    return secret?.kind === 'scram' && areKeysOf(proved, secret.verifier);
  });
  assert.equal(store.size, 1);
  assert.equal(store.find('same', STORED), keys);
});
