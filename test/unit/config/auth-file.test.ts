import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseAuthFile } from '../../../src/config/auth-file.ts';

interface Case {
  readonly rule: string;
  readonly text: string;
  readonly users: Record<string, string>;
  readonly problem?: readonly [line: number, text: string];
}

const cases: readonly Case[] = [
  { rule: 'an empty file has no users', text: '', users: {} },
  { rule: 'blank lines alone have no users', text: '\n \t\r\n\f\v\n', users: {} },
  { rule: 'a line is a name and a secret', text: '"a" "x"\n"b" "y"', users: { a: 'x', b: 'y' } },
  { rule: 'lines may end in CR LF', text: '"a" "x"\r\n"b" "y"\r\n', users: { a: 'x', b: 'y' } },
  { rule: 'leading blanks do not matter', text: '  \t"a" "x"', users: { a: 'x' } },
  {
    rule: 'no blank is needed before the secret but for the quotes',
    text: '"a"\t"x"',
    users: { a: 'x' },
  },
  { rule: 'what stands between the fields is skipped', text: '"a": "x"', users: { a: 'x' } },
  {
    rule: 'the rest of the line is ignored',
    text: '"a" "x" "y" z\n"b" "y"',
    users: { a: 'x', b: 'y' },
  },
  { rule: 'a semicolon starts a comment line', text: '; "z" "z"\n  ;\n"a" "x"', users: { a: 'x' } },
  { rule: 'a semicolon inside a secret is text', text: '"a" "x;y"', users: { a: 'x;y' } },
  { rule: 'two quotes inside quotes are one', text: '"a""b" "x""""y"', users: { 'a"b': 'x""y' } },
  { rule: 'quotes can be all of a name and a secret', text: '"""" """"', users: { '"': '"' } },
  { rule: 'a backslash escapes nothing', text: '"a\\" "x\\"', users: { 'a\\': 'x\\' } },
  { rule: 'a secret may be empty', text: '"a" ""\n"b" "y"', users: { a: '', b: 'y' } },
  { rule: 'a name may be any text', text: '"ü @/" "ß"', users: { 'ü @/': 'ß' } },
  {
    rule: 'a secret may hold a line break',
    text: '"a" "x\ny"\n"b" "z"',
    users: { a: 'x\ny', b: 'z' },
  },
  {
    rule: 'of a name given twice the last line counts',
    text: '"a" "x"\n"b" "y"\n"a" "z"',
    users: { a: 'z', b: 'y' },
  },
  {
    rule: 'a hash is no comment',
    text: '"a" "x"\n# no\n"b" "y"',
    users: { a: 'x' },
    problem: [2, 'broken auth file'],
  },
  {
    rule: 'a name without quotes is broken',
    text: 'a "x"',
    users: {},
    problem: [1, 'broken auth file'],
  },
  {
    rule: 'a name without a secret does not take that of the next line',
    text: '"a" "x"\n"b"\n"c" "y"',
    users: { a: 'x' },
    problem: [2, 'broken auth file'],
  },
  {
    rule: 'a name without a secret at the end is broken',
    text: '"a"',
    users: {},
    problem: [1, 'broken auth file'],
  },
  {
    rule: 'a name without an end is broken',
    text: '\n\n"a',
    users: {},
    problem: [3, 'broken auth file'],
  },
  {
    rule: 'a secret that nobody closed runs on to the next quote',
    text: '"a" "x\n"b" "y"',
    users: { a: 'x\n' },
  },
  {
    rule: 'a secret that never ends is broken',
    text: '"a" "x\n',
    users: {},
    problem: [1, 'broken auth file'],
  },
  {
    rule: 'an escaped quote does not end a secret',
    text: '"a" "x""',
    users: {},
    problem: [1, 'broken auth file'],
  },
  {
    rule: 'a NUL byte breaks a line',
    text: '"a" "x"\n"b" "y\0"\n"c" "z"',
    users: { a: 'x' },
    problem: [2, 'broken auth file'],
  },
  {
    rule: 'a byte order mark is no blank',
    text: '\ufeff"a" "x"',
    users: {},
    problem: [1, 'broken auth file'],
  },
  {
    rule: 'a name of 127 bytes is taken',
    text: `"${'n'.repeat(127)}" "x"`,
    users: { ['n'.repeat(127)]: 'x' },
  },
  {
    rule: 'a name of 128 bytes is not',
    text: `"a" "x"\n"${'n'.repeat(128)}" "x"`,
    users: { a: 'x' },
    problem: [2, 'username too long in auth file'],
  },
  {
    rule: 'the length of a name counts bytes and escapes',
    text: `"${'ü'.repeat(63)}""" "x"`,
    users: {},
    problem: [1, 'username too long in auth file'],
  },
  {
    rule: 'a secret of 65530 bytes is taken',
    text: `"a" "${'s'.repeat(65_530)}"`,
    users: { a: 's'.repeat(65_530) },
  },
  {
    rule: 'a secret of 65531 bytes is not',
    text: `"a" "x"\n\n"b" "${'s'.repeat(65_531)}"\n"c" "y"`,
    users: { a: 'x' },
    problem: [3, 'password too long in auth file'],
  },
];

for (const { rule, text, users, problem } of cases) {
  test(`auth_file: ${rule}`, () => {
    const file = parseAuthFile(text);
    const read = file.users.map(({ name, secret }) => [name, secret]);
    assert.deepEqual(Object.fromEntries(read), users);
    assert.deepEqual(
      file.problem,
      problem === undefined ? null : { line: problem[0], text: problem[1] },
    );
  });
}

test('auth_file: names of object properties are ordinary names', () => {
  const { users } = parseAuthFile('"__proto__" "x"\n"constructor" "y"');
  assert.deepEqual(
    users.map(({ name }) => name),
    ['__proto__', 'constructor'],
  );
});
