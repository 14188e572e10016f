import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Ring } from '../../../src/util/ring.ts';
import { randomFrom } from './random.ts';

test('an empty ring has nothing to give', () => {
  const ring = new Ring<number>();
  assert.equal(ring.size, 0);
  assert.equal(ring.peek(), undefined);
  assert.equal(ring.shift(), undefined);
  assert.equal(ring.at(0), undefined);
  assert.equal(ring.size, 0);
});

test('items leave in the order they came, also when the ring grows while it is wrapped around', () => {
  const ring = new Ring<number>(4);
  for (const item of [1, 2, 3]) ring.push(item);
  assert.equal(ring.shift(), 1);
  assert.equal(ring.shift(), 2);
  for (const item of [4, 5, 6, 7, 8]) ring.push(item);
  const left: (number | undefined)[] = [];
  while (ring.size > 0) left.push(ring.shift());
  assert.deepEqual(left, [3, 4, 5, 6, 7, 8]);
});

test('an undefined item takes a place like any other', () => {
  const ring = new Ring<undefined | number>(1);
  ring.push(undefined);
  ring.push(7);
  assert.equal(ring.size, 2);
  assert.equal(ring.shift(), undefined);
  assert.equal(ring.shift(), 7);
});

test('clear empties the ring and leaves it usable', () => {
  const ring = new Ring<number>(2);
  for (const item of [1, 2, 3]) ring.push(item);
  ring.clear();
  assert.equal(ring.size, 0);
  assert.equal(ring.shift(), undefined);
  ring.push(9);
  assert.equal(ring.peek(), 9);
});

test('push, shift, peek and at agree with an array over thousands of random steps', () => {
  for (const seed of [1, 2, 3]) {
    const random = randomFrom(seed);
    const ring = new Ring<number>(1);
    const model: number[] = [];
    for (let step = 0; step < 5000; step++) {
      const grows = random() < (step % 1000 < 500 ? 0.6 : 0.4);
      if (grows) {
        ring.push(step);
        model.push(step);
      } else {
        assert.equal(ring.shift(), model.shift(), `seed ${seed} step ${step}`);
      }
      assert.equal(ring.size, model.length, `seed ${seed} step ${step}`);
      assert.equal(ring.peek(), model[0], `seed ${seed} step ${step}`);
      const index = Math.floor(random() * (model.length + 2)) - 1;
      assert.equal(
        ring.at(index),
        index < 0 ? undefined : model[index],
        `seed ${seed} at ${index}`,
      );
    }
  }
});
