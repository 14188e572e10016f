import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseConnectionString } from '../../../src/config/connection-string.ts';

function pairsOf(text: string): [string, string][] {
  const result = parseConnectionString(text);
  assert.ok(result.ok, `${text}: ${result.ok ? '' : result.why}`);
  return result.pairs.map((pair) => [pair.key, pair.value]);
}

test('a string is cut into its pairs as PgBouncer does', () => {
  const rows: [string, [string, string][]][] = [
    ['', []],
    ['   ', []],
    ['host=a', [['host', 'a']]],
    [
      '  host=a  port=1  ',
      [
        ['host', 'a'],
        ['port', '1'],
      ],
    ],
    [
      'host = a port= 1',
      [
        ['host', 'a'],
        ['port', '1'],
      ],
    ],
    ["host=a'b", [['host', "a'b"]]],
    ['host=a\\b', [['host', 'a\\b']]],
    ['host=a;b#c', [['host', 'a;b#c']]],
    ["q='a b'", [['q', 'a b']]],
    [
      "q='it''s' x=1",
      [
        ['q', "it's"],
        ['x', '1'],
      ],
    ],
    ["q=''''", [['q', "'"]]],
    ["q='a=b c=d'", [['q', 'a=b c=d']]],
    ["q= 'a b'", [['q', 'a b']]],
    [
      'a=1 a=2',
      [
        ['a', '1'],
        ['a', '2'],
      ],
    ],
    ['Host=a', [['Host', 'a']]],
    ['a=b=c', [['a', 'b=c']]],
    ['host=a\tport=5', [['host', 'a\tport=5']]],
    ['__proto__=1', [['__proto__', '1']]],
  ];
  for (const [text, expected] of rows) assert.deepEqual(pairsOf(text), expected, text);
});

test('a broken string is refused with the reason', () => {
  const rows: [string, RegExp][] = [
    ['host', /no "=" after/],
    ['host a=1', /no "=" after/],
    ['a=1 b', /without "=" follows the value of a/],
    ['=1', /no key/],
    ['a=1 =2', /no key/],
    ['host=', /no value for host/],
    ['host=   ', /no value for host/],
    ["host=''", /no value for host/],
    ["host='abc", /no closing quote in the value of host/],
    ["host='abc''", /no closing quote/],
    ["dbname='abc'zport=7", /no space after the closing quote of dbname/],
    ["dbname='abc'\tport=7", /no space after the closing quote of dbname/],
  ];
  for (const [text, why] of rows) {
    const result = parseConnectionString(text);
    assert.ok(!result.ok, text);
    assert.match(result.why, why, text);
  }
});

test('an empty value that swallows the next pair earns a warning', () => {
  const result = parseConnectionString('user= port=3');
  assert.ok(result.ok);
  assert.deepEqual(result.pairs, [{ key: 'user', value: 'port=3' }]);
  assert.equal(result.warnings.length, 1);
  assert.match(result.warnings[0]!, /^user /);
});

test('spaces around "=" alone, and a "=" inside a value, earn no warning', () => {
  for (const text of ['user = bob', 'password=a=b', "q = 'a=b'"]) {
    const result = parseConnectionString(text);
    assert.ok(result.ok);
    assert.deepEqual(result.warnings, [], text);
  }
});

test('no reason and no warning shows a part of a password', () => {
  for (const text of ['password=one hunter2', 'password= hunter2=x', "password='hunter2"]) {
    const result = parseConnectionString(text);
    assert.doesNotMatch(JSON.stringify(result.ok ? result.warnings : result.why), /hunter2/, text);
  }
});
