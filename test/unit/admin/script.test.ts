import assert from 'node:assert/strict';
import { test } from 'node:test';
import { statementsIn } from '../../../src/admin/script.ts';

const CASES: readonly [string, readonly string[]][] = [
  ['', []],
  [' ; ;\n', []],
  ['a', ['a']],
  ['a;b', ['a', 'b']],
  ['a; b ;', ['a', ' b ']],
  ["a 'x;y' ; b", ["a 'x;y' ", ' b']],
  ["a 'it''s;' ; b", ["a 'it''s;' ", ' b']],
  ['a "x;--y";b', ['a "x;--y"', 'b']],
  ["a 'never; ends", ["a 'never; ends"]],
  ['a -- b; c\n;d', ['a  ', 'd']],
  ['-- a', []],
  ['a - b / c', ['a - b / c']],
  ['a/* b; c */d', ['a d']],
  ['/* a /* b */ ; */ c', ['  c']],
  ['/* never; ends', []],
  ["a /* ' */ ; b /* ' */", ['a   ', ' b  ']],
];

for (const [text, expected] of CASES) {
  test(`a query ${JSON.stringify(text)} is cut into ${expected.length} statements`, () => {
    assert.deepEqual(statementsIn(text), expected);
  });
}

test('a huge query of any shape is cut in time that grows with its length only', () => {
  const size = 400_000;
  const started = process.cpuUsage().user;
  for (const shape of [';', "'", '"', '-', '--', '/', '/*', '*/', '/**/', 'a;', "';", '-- \n']) {
    for (const prefix of ['', "'", '/*']) {
      statementsIn(prefix + shape.repeat(size / shape.length));
    }
  }
  // Quadratic time would be hours.
  assert.ok(process.cpuUsage().user - started < 20_000_000);
});
