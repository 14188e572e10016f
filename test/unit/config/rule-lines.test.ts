import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatProblem } from '../../../src/config/problem.ts';
import { RuleReader } from '../../../src/config/rule-lines.ts';
import { memoryFiles } from './rule-files.ts';

function read(files: Readonly<Record<string, string>>, main = 'main') {
  const reader = new RuleReader('hba', memoryFiles(files));
  const found = [...reader.lines(main, { file: 'ini', line: 7 })].map(
    ({ file, line, tokens }) => `${file}:${line}: ${tokens.map(({ text }) => text).join(' ')}`,
  );
  return { found, problems: reader.problems.map(formatProblem) };
}

test('includes are read in their place, relative to the file that they stand in', () => {
  const { found, problems } = read({
    main: 'a\ninclude "d/one more"\nb',
    'd/one more': 'c\ninclude two\ninclude /abs\n',
    'd/two': 'd\ninclude ../three',
    '/abs': 'e',
    three: 'f',
  });
  assert.deepEqual(problems, []);
  assert.deepEqual(found, [
    'main:1: a',
    'd/one more:1: c',
    'd/two:1: d',
    'three:1: f',
    '/abs:1: e',
    'main:3: b',
  ]);
});

test('include_if_exists passes over a file that is not there, and no other', () => {
  const { found, problems } = read({
    main: 'include_if_exists gone\ninclude_if_exists there\ninclude gone',
    there: 'a',
  });
  assert.deepEqual(found, ['there:1: a']);
  assert.deepEqual(problems, ['main:3: could not open file "gone": No such file or directory']);
});

test('include_if_exists tells of a file that is there and cannot be read', () => {
  const reader = new RuleReader('hba', {
    readFile: (path) => {
      if (path === 'main') return 'include_if_exists x';
      throw Object.assign(new Error('EACCES'), { code: 'EACCES', errno: -13 });
    },
    listFolder: () => [],
  });
  assert.deepEqual([...reader.lines('main', { file: 'ini', line: 7 })], []);
  assert.deepEqual(reader.problems.map(formatProblem), [
    'main:1: could not open file "x": Permission denied',
  ]);
});

test('include_dir takes names that end in .conf and begin with no dot, in the order of bytes', () => {
  const { found, problems } = read({
    main: 'include_dir d\ninclude_dir gone',
    'd/b.conf': 'b',
    'd/a.conf': 'a',
    'd/Z.conf': 'z',
    'd/.hidden.conf': 'no',
    'd/c.conf~': 'no',
    'd/sub/x.conf': 'no',
  });
  assert.deepEqual(found, ['d/Z.conf:1: z', 'd/a.conf:1: a', 'd/b.conf:1: b']);
  assert.deepEqual(problems, [
    'main:2: could not open directory "gone": No such file or directory',
  ]);
});

test('files that include each other are an error where the circle closes', () => {
  const { found, problems } = read({
    main: 'include d/a\nx',
    'd/a': 'include ../d/./b',
    'd/b': 'include ../main\ny',
  });
  assert.deepEqual(problems, ['d/b:1: "main" includes itself']);
  assert.deepEqual(found, ['d/b:2: y', 'main:2: x']);
});

test('a file may be included twice side by side', () => {
  const { found, problems } = read({ main: 'include a\ninclude a', a: 'x' });
  assert.deepEqual(problems, []);
  assert.deepEqual(found, ['a:1: x', 'a:1: x']);
});

test('ten levels of includes are read, and no eleventh', () => {
  const files = Object.fromEntries(
    Array.from({ length: 12 }, (_, level) => [`f${level}`, `l${level}\ninclude f${level + 1}`]),
  );
  const { found, problems } = read(files, 'f0');
  assert.equal(found.at(-1), 'f10:1: l10');
  assert.deepEqual(problems, ['f10:2: include nesting level too deep']);
});

test('a main file that cannot be read is told where it is named', () => {
  assert.deepEqual(read({}).problems, [
    'ini:7: could not open hba config file main: No such file or directory',
  ]);
});

test('files that grow without end by including each other are given up soon', () => {
  const wide = 'include next\n'.repeat(2_000);
  const files: Record<string, string> = { main: wide.replaceAll('next', 'f1') };
  for (let level = 1; level < 10; level++) {
    files[`f${level}`] = wide.replaceAll('next', `f${level + 1}`);
  }
  files['f10'] = '# the end\n';
  const { problems } = read(files);
  assert.equal(problems.length, 1);
  assert.match(problems[0]!, /: more than 16777216 characters in hba files$/);
});

test('another number of words behind include makes an ordinary line', () => {
  assert.deepEqual(read({ main: 'include a b\ninclude ,\n"include" a' }).found, [
    'main:1: include a b',
    'main:2: include ,',
    'main:3: include a',
  ]);
});
