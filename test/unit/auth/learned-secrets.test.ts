import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { LearnedSecrets } from '../../../src/auth/learned-secrets.ts';

test('what was learnt is kept by database and name', () => {
  const learned = new LearnedSecrets();
  const secret = learned.learn('a', 'u', 'one');
  assert.equal(learned.find('a', 'u'), secret);
  assert.equal(learned.find('b', 'u'), null);
  assert.equal(learned.find('a', 'v'), null);
  assert.notEqual(learned.learn('b', 'u', 'other'), secret);
  assert.equal(learned.find('a', 'u'), secret);
});

test('the same text is the same object, with which derived keys are cached; another is not', () => {
  const learned = new LearnedSecrets();
  const secret = learned.learn('a', 'u', 'one');
  assert.equal(learned.learn('a', 'u', 'one'), secret);
  assert.notEqual(learned.learn('a', 'u', 'two'), secret);
  assert.equal(learned.size, 1);
});

test('of too many the one that was used longest ago is forgotten', () => {
  const learned = new LearnedSecrets(2);
  learned.learn('a', 'first', 'x');
  learned.learn('a', 'second', 'x');
  learned.find('a', 'first');
  learned.learn('a', 'third', 'x');
  assert.equal(learned.find('a', 'second'), null);
  assert.notEqual(learned.find('a', 'first'), null);
  assert.equal(learned.knows('second'), false);
  assert.equal(learned.knows('third'), true);
});

test('a name is known as long as it is kept for some database', () => {
  const learned = new LearnedSecrets();
  learned.learn('a', 'u', 'x');
  learned.learn('b', 'u', 'x');
  learned.retain((database) => database === 'b');
  assert.equal(learned.knows('u'), true);
  assert.equal(learned.find('a', 'u'), null);
  learned.retain(() => false);
  assert.equal(learned.knows('u'), false);
  assert.equal(learned.size, 0);
});

test('nothing of it is shown when it is printed', () => {
  const learned = new LearnedSecrets();
  assert.doesNotMatch(inspect(learned.learn('a', 'u', 'hush'), { depth: 9 }), /hush/);
});
