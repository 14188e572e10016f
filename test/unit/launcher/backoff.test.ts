import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Backoff } from '../../../src/launcher/backoff.ts';

test('the first restart is at once, later ones wait twice as long each, up to ten seconds', () => {
  const backoff = new Backoff();
  const pauses = Array.from({ length: 10 }, () => backoff.next(0));
  assert.deepEqual(pauses, [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
});

test('the limit is reached with the first pause of ten seconds', () => {
  const backoff = new Backoff();
  const limits = Array.from({ length: 9 }, () => {
    backoff.next(0);
    return backoff.isAtLimit;
  });
  assert.equal(limits.indexOf(true), 8);
});

test('a process that ran for half a minute makes the next restart a first one', () => {
  const backoff = new Backoff();
  for (let i = 0; i < 5; i++) backoff.next(29_999);
  assert.equal(backoff.next(30_000), 0);
  assert.equal(backoff.attempt, 1);
});
