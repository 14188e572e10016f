import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Clock } from '../../../src/util/clock.ts';

test('the time stands still between ticks and never goes back', () => {
  const clock = new Clock();
  const first = clock.now;
  while (performance.now() === first);
  assert.equal(clock.now, first);
  const second = clock.tick();
  assert.ok(second > first);
  assert.equal(clock.now, second);
});

test('a moment of the clock turns into wall-clock time', () => {
  const clock = new Clock();
  const before = Date.now();
  const shown = clock.wallTime(clock.tick());
  // The two clocks of the system may be set apart by an adjustment since the process started.
  assert.ok(Math.abs(shown - before) < 60_000);
  assert.equal(clock.wallTime(clock.now + 250) - clock.wallTime(clock.now), 250);
});
