import assert from 'node:assert/strict';
import { afterEach, test } from 'node:test';
import { nextId, pointerOf, startIds } from '../../../src/util/ids.ts';

afterEach(() => startIds(0, 1));

test('ids of a fleet never meet: each worker counts in steps of the fleet’s size', () => {
  const seen = new Set<number>();
  for (const worker of [0, 1, 2]) {
    startIds(worker, 3);
    const ids = Array.from({ length: 5 }, nextId);
    assert.deepEqual(
      ids,
      [1, 4, 7, 10, 13].map((id) => id + worker),
    );
    for (const id of ids) seen.add(id);
  }
  assert.equal(seen.size, 15);
});

test('an id fits int4 and the numbers begin anew once they are used up', () => {
  const size = 2 ** 29;
  startIds(3, size);
  const ids = Array.from({ length: 6 }, nextId);
  assert.deepEqual(ids, [4, 4 + size, 4 + 2 * size, 4 + 3 * size, 4, 4 + size]);
  assert.ok(ids.every((id) => id > 0 && id <= 2 ** 31 - 1));
});

test('a pointer is the id in hexadecimal, long enough to look like an address', () => {
  assert.equal(pointerOf(1), '0x100001');
  assert.equal(pointerOf(2 ** 31 - 1), '0x800fffff');
});
