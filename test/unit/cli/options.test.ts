import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Command, readCommandLine } from '../../../src/cli/options.ts';

const plain = { daemon: false, quiet: false, reboot: false, user: null, verbose: 0 };

function run(options: object): Command {
  return { kind: 'run', options: { file: 'x.ini', ...plain, ...options } };
}

const cases: [string, string[], Command][] = [
  ['a file alone', ['x.ini'], run({})],
  ['short options together', ['-dqvv', 'x.ini'], run({ daemon: true, quiet: true, verbose: 2 })],
  ['options after the file', ['x.ini', '-R'], run({ reboot: true })],
  [
    'long options',
    ['--daemon', '--quiet', '--verbose', 'x.ini'],
    run({ daemon: true, quiet: true, verbose: 1 }),
  ],
  ['more than three -v', ['-vvvvv', 'x.ini'], run({ verbose: 3 })],
  ['-u with a blank', ['-u', 'app', 'x.ini'], run({ user: 'app' })],
  ['--user=', ['--user=app', 'x.ini'], run({ user: 'app' })],
  ['check', ['check', 'x.ini'], { kind: 'check', file: 'x.ini', isDiff: false }],
  ['check --diff', ['check', '--diff', 'x.ini'], { kind: 'check', file: 'x.ini', isDiff: true }],
  [
    '--diff without check',
    ['--diff', 'x.ini'],
    { kind: 'misuse', text: 'pgfleet: --diff is an option of check' },
  ],
  ['a file named check', ['./check'], run({ file: './check' })],
  ['-V', ['-V'], { kind: 'version' }],
  ['--version with a file', ['--version', 'x.ini'], { kind: 'version' }],
  ['-h', ['-h'], { kind: 'help' }],
];
for (const [name, args, expected] of cases) {
  test(`the command line with ${name} is read as PgBouncer reads it`, () => {
    assert.deepEqual(readCommandLine(args), expected);
  });
}

test('no file, or more than one, is misuse', () => {
  for (const args of [[], ['-v'], ['a', 'b'], ['check'], ['check', 'a', 'b']]) {
    const expected = { kind: 'misuse', text: 'pgfleet: no configuration file specified' };
    assert.deepEqual(readCommandLine(args), expected);
  }
});

test('an option that does not exist is misuse and is named', () => {
  for (const option of ['-x', '--nope']) {
    const command = readCommandLine([option, 'x.ini']);
    assert.ok(command.kind === 'misuse' && command.text.includes(option));
  }
});
