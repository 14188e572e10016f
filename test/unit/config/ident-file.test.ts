import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readIdentFile } from '../../../src/config/ident-file.ts';
import { formatProblem } from '../../../src/config/problem.ts';
import { memoryFiles } from './rule-files.ts';

function read(text: string, more: Readonly<Record<string, string>> = {}) {
  const files = memoryFiles({ ident: text, ...more });
  const { maps, problems } = readIdentFile('ident', { file: 'ini', line: 3 }, files);
  return { maps, lines: problems.map(formatProblem) };
}

test('lines of one map are kept in order, whatever stands between them', () => {
  const { maps, lines } = read(
    '# map os db\nm a b\nother "a b" all\nm c "all"\ninclude more\nm2 "/x" "+g"',
    { more: 'm "" all # last\n' },
  );
  assert.deepEqual(lines, []);
  assert.deepEqual(maps, [
    {
      name: 'm',
      pairs: [
        { systemName: 'a', databaseUser: 'b' },
        { systemName: 'c', databaseUser: 'all' },
        { systemName: '', databaseUser: null },
      ],
    },
    { name: 'other', pairs: [{ systemName: 'a b', databaseUser: null }] },
    { name: 'm2', pairs: [{ systemName: '/x', databaseUser: '+g' }] },
  ]);
});

test('names of object properties are ordinary map names', () => {
  assert.deepEqual(
    read('__proto__ a b').maps.map(({ name }) => name),
    ['__proto__'],
  );
});

const BAD: readonly (readonly [string, string])[] = [
  ['m', 'a system name or database user is missing'],
  ['m a', 'a system name or database user is missing'],
  ['m a b c', 'unsupported parameters'],
  ['m a,b c', 'lists of names are not supported'],
  ['m a b,c', 'unsupported parameters'],
  ['"m" a b', 'a map name is one word without quotes'],
  ['m "a b', 'a quote that nobody closed'],
  ['m /^a b', 'regular expressions are not supported: /^a (quote it if it is a name)'],
  ['m a /^b', 'regular expressions are not supported: /^b (quote it if it is a name)'],
  ['m a +b', 'groups are not supported: +b (quote it if it is a name)'],
];

for (const [text, why] of BAD) {
  test(`ident: ${JSON.stringify(text)} is an error`, () => {
    assert.deepEqual(read(`m x y\n${text}`).lines, [`ident:2: ${why}`]);
  });
}

test('a file that cannot be read is told where it is named', () => {
  const { problems } = readIdentFile('gone', { file: 'ini', line: 3 }, memoryFiles({}));
  assert.deepEqual(problems.map(formatProblem), [
    'ini:3: could not open ident config file gone: No such file or directory',
  ]);
});
