import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Pulse } from '../../../src/launcher/pulse.ts';

/** Verdicts of so many seconds without an answer, the first of which only sends. */
function silence(pulse: Pulse, seconds: number): string[] {
  return Array.from({ length: seconds + 1 }, () => {
    const verdict = pulse.check();
    pulse.next();
    return verdict;
  });
}

test('three missed pings are told once, and the stall from its time-out on', () => {
  const verdicts = silence(new Pulse(5), 6);
  assert.deepEqual(verdicts, ['well', 'well', 'well', 'silent', 'well', 'stalled', 'stalled']);
});

test('a time-out of 0 never calls a worker stalled', () => {
  assert.ok(!silence(new Pulse(0), 100).includes('stalled'));
});

test('a time-out below three seconds does not wait for the third ping', () => {
  assert.deepEqual(silence(new Pulse(1), 1), ['well', 'stalled']);
});

test('an answer begins anew and tells whether the worker had been called silent', () => {
  const pulse = new Pulse(10);
  silence(pulse, 2);
  assert.equal(pulse.beat(), false);
  silence(pulse, 3);
  assert.equal(pulse.lateSeconds, 3);
  assert.equal(pulse.beat(), true);
  assert.deepEqual(silence(pulse, 3), ['well', 'well', 'well', 'silent']);
});

test('pings are numbered from 1', () => {
  const pulse = new Pulse(10);
  assert.deepEqual([pulse.next(), pulse.next()], [1, 2]);
});
