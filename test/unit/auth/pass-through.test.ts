import assert from 'node:assert/strict';
import { test } from 'node:test';
import { PassThroughKeys } from '../../../src/auth/pass-through.ts';
import { deriveVerifier } from '../../../src/auth/scram.ts';
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
  assert.equal(store.find('alice', STORED), null);
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
  store.retain((user) => reloaded.get(user) ?? null);
  assert.equal(store.size, 1);
  assert.equal(store.find('same', STORED), keys);
});
