import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Budget } from '../../../src/budget/budget.ts';

test('a share has room until as many are held as it allows, and again after one is given back', () => {
  const budget = new Budget({ kind: 'max', value: 2 });
  budget.take();
  assert.equal(budget.hasRoom, true);
  budget.take();
  assert.equal(budget.hasRoom, false);
  budget.give();
  assert.equal(budget.hasRoom, true);
  assert.equal(budget.held, 1);
});

test('a share of nothing is never room, no limit always is', () => {
  assert.equal(new Budget({ kind: 'max', value: 0 }).hasRoom, false);
  const unlimited = new Budget({ kind: 'unlimited' });
  for (let i = 0; i < 1000; i++) unlimited.take();
  assert.equal(unlimited.hasRoom, true);
  assert.equal(unlimited.held, 1000);
});

test('a lowered share has no room until enough has been given back', () => {
  const budget = new Budget({ kind: 'max', value: 3 });
  for (let i = 0; i < 3; i++) budget.take();
  budget.max = 1;
  budget.give();
  budget.give();
  assert.equal(budget.hasRoom, false);
  budget.give();
  assert.equal(budget.hasRoom, true);
});
