import assert from 'node:assert/strict';
import { test } from 'node:test';
import { pickTarget } from '../../../src/launcher/handoff.ts';

const cases: [string, number, number[], number[], number | null][] = [
  ['the worker that was asked for gets the client', 2, [0], [0, 1, 2, 3], 2],
  ['when it is down the next live one does', 2, [0], [0, 1, 3], 3],
  ['after the last worker comes the first', 3, [2], [0, 1, 2], 0],
  ['a worker that has had the client is passed over', 1, [0, 1, 2], [0, 1, 2, 3], 3],
  ['when all have had it nobody gets it', 1, [0, 1], [0, 1], null],
  ['when none is live nobody gets it', 1, [0], [], null],
];
for (const [name, target, visited, live, expected] of cases) {
  test(name, () => assert.equal(pickTarget({ target, visited }, live), expected));
}
