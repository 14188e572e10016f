import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Traffic } from '../../../src/metrics/traffic.ts';

test('a database begins with every counter at zero and shares none with another', () => {
  const [one, other] = [new Traffic(), new Traffic()];
  assert.equal(Object.keys(one).length, 12);
  assert.ok(Object.values(one).every((count) => count === 0));
  for (const name of Object.keys(one) as (keyof Traffic)[]) one[name] += 5;
  assert.ok(Object.values(one).every((count) => count === 5));
  assert.ok(Object.values(other).every((count) => count === 0));
});
