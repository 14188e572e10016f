import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LoopDelay } from '../../../src/metrics/loop-delay.ts';

test('the delay is by how much a tick came late, at most, of the last thirty', () => {
  const delay = new LoopDelay(100);
  let now = 5000;
  const tick = (late: number): number => {
    now += 100 + late;
    delay.onTick(now);
    return delay.maxMs;
  };
  assert.equal(delay.maxMs, 0);
  assert.equal(tick(70), 0, 'the first one has none before it');
  assert.equal(tick(0.5), 0.5);
  assert.equal(tick(-3), 0.5);
  assert.equal(tick(40), 40);
  for (let i = 0; i < 29; i++) assert.equal(tick(1), 40);
  assert.equal(tick(1), 1);
});
