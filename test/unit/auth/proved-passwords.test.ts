import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { ProvedPasswords } from '../../../src/auth/proved-passwords.ts';
import { Secret } from '../../../src/util/secret.ts';

function found(store: ProvedPasswords, database: string, user: string): string | null {
  const secret = store.find(database, user);
  return secret?.kind === 'plain' ? secret.password.reveal() : null;
}

test('a password serves the name and the database that it was learnt for, and no other', () => {
  const store = new ProvedPasswords();
  store.remember('d', 'alice', new Secret('one'));
  assert.equal(found(store, 'd', 'alice'), 'one');
  assert.equal(found(store, 'd', 'bob'), null);
  assert.equal(found(store, 'e', 'alice'), null);
});

test('the next login puts its password in the place of the old one', () => {
  const store = new ProvedPasswords();
  store.remember('d', 'alice', new Secret('one'));
  const first = store.find('d', 'alice');
  store.remember('d', 'alice', new Secret('one'));
  assert.equal(store.find('d', 'alice'), first, 'the same password keeps what was derived from it');
  store.remember('d', 'alice', new Secret('two'));
  assert.equal(found(store, 'd', 'alice'), 'two');
  assert.equal(store.size, 1);
});

test('a password that looks like a stored hash is a password', () => {
  const store = new ProvedPasswords();
  const text = `md5${'0'.repeat(32)}`;
  store.remember('d', 'alice', new Secret(text));
  assert.equal(found(store, 'd', 'alice'), text);
});

test('beyond the limit the login of longest ago is forgotten', () => {
  const store = new ProvedPasswords(2);
  for (const user of ['a', 'b', 'a', 'c']) store.remember('d', user, new Secret(user));
  assert.deepEqual(
    [found(store, 'd', 'a'), found(store, 'd', 'b'), found(store, 'd', 'c')],
    ['a', null, 'c'],
  );
  assert.equal(store.size, 2);
  store.clear();
  assert.equal(store.size, 0);
});

test('no password can be printed', () => {
  const store = new ProvedPasswords();
  store.remember('d', 'alice', new Secret('hush-hush'));
  assert.doesNotMatch(inspect(store.find('d', 'alice'), { depth: 9 }), /hush/);
});
