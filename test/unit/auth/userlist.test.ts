import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readUserlist } from '../../../src/auth/userlist.ts';

const HASH = 'md50123456789abcdef0123456789abcdef';
const users = (secrets: Readonly<Record<string, string>>) =>
  Object.entries(secrets).map(([name, secret]) => ({ name, secret }));

test('the kind of a secret is told from its text', () => {
  const list = readUserlist(users({ a: 'x', b: HASH, c: '' }), null);
  assert.deepEqual(
    [...list].map(([name, { kind }]) => [name, kind]),
    [
      ['a', 'plain'],
      ['b', 'md5'],
      ['c', 'empty'],
    ],
  );
});

test('a user whose text is unchanged keeps the object, whatever the order of the lines', () => {
  const before = users({ a: 'x', b: 'y', c: 'z' });
  const secrets = readUserlist(before, null);
  const next = readUserlist(users({ c: 'z', b: 'other', a: 'x' }), { users: before, secrets });
  assert.equal(next.get('a'), secrets.get('a'));
  assert.equal(next.get('c'), secrets.get('c'));
  assert.notEqual(next.get('b'), secrets.get('b'));
});

test('a user without a line is forgotten', () => {
  const before = users({ a: 'x', b: 'y' });
  const secrets = readUserlist(before, null);
  const next = readUserlist(users({ b: 'y' }), { users: before, secrets });
  assert.deepEqual([...next.keys()], ['b']);
});
