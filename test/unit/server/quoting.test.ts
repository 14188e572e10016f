import assert from 'node:assert/strict';
import { test } from 'node:test';
import { literal, nameList } from '../../../src/server/quoting.ts';

test('no value can end its quotes: they are doubled, and backslashes too', () => {
  for (const [value, quoted] of [
    ["it's", "'it''s'"],
    ["'; DROP TABLE t; --", "'''; DROP TABLE t; --'"],
    ['back\\slash', "E'back\\\\slash'"],
    ["\\'", "E'\\\\'''"],
    ['', "''"],
    ['é', "'é'"],
  ]) {
    assert.equal(literal(value!, 'UTF8'), quoted);
    assert.equal(literal(value!, null), quoted);
  }
});

test('letters beyond ASCII are escapes where the session does not speak UTF-8', () => {
  assert.equal(literal("é\\'😀", 'LATIN1'), "E'\\U000000e9\\\\''\\U0001f600'");
  assert.equal(literal('plain', 'LATIN1'), "'plain'");
  assert.equal(literal('é', 'SQL_ASCII'), "'é'");
});

test('a list of names is cut as PostgreSQL cuts it', () => {
  for (const [text, expected] of [
    ['"$user", public', ['$user', 'public']],
    ['$user,Public', ['$user', 'public']],
    [' a ,"B c", "d""e" ', ['a', 'B c', 'd"e']],
    ['select', ['select']],
    ['ÄB', ['Äb']],
    ['""', ['']],
    ['', ['']],
    ['  ', ['']],
    ['a;drop table t', null],
    ['a;b', ['a;b']],
    ['a,', null],
    [',a', null],
    ['"a', null],
    ['"a"b', null],
    ['a b', null],
  ] as const) {
    assert.deepEqual(nameList(text), expected, text);
  }
});

test('a long list is cut in a time that grows no faster than it does', () => {
  const names = Array.from({ length: 20_000 }, (_, i) => `schema_${i}`);
  assert.deepEqual(nameList(names.join(', ')), names);
  assert.equal(nameList(`"${'""'.repeat(50_000)}x`), null);
});
