import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseStatement, type Statement } from '../../../src/admin/grammar.ts';

const show = (argument: string | null, word = 'SHOW'): Statement => ({
  kind: 'command',
  word,
  argument,
  isByProcess: false,
});
const byProcess = (argument: string): Statement => ({
  kind: 'command',
  word: 'SHOW',
  argument,
  isByProcess: true,
});
const set = (key: string, value: string): Statement => ({ kind: 'set', key, value });
const invalid: Statement = { kind: 'invalid' };
const tooLong: Statement = { kind: 'tooLong' };
const bytes = (text: string): string => Buffer.from(text).toString('latin1');

const CASES: readonly [string, Statement][] = [
  ['show version', show('version')],
  ['SHOW VERSION;', show('VERSION')],
  [' \t\r\n show \n version \t; \r\n', show('version')],
  ['"show" version', show('version')],
  ['"sh""ow" "a;b""c -- \n"', show('a;b"c -- \n', 'SH"OW')],
  ['pause "my-db"', show('my-db', 'PAUSE')],
  [bytes('pause "größe"'), show('größe', 'PAUSE')],
  ['RELOAD', show(null, 'RELOAD')],
  ['RELOAD;', show(null, 'RELOAD')],
  ['show ""', show('')],
  ['kill_client 12', show('12', 'KILL_CLIENT')],
  ['set x', show('x', 'SET')],
  ['SHOW POOLS BY PROCESS', byProcess('POOLS')],
  ['show "pools"\nby\tprocess ;', byProcess('pools')],
  ['', invalid],
  [';', invalid],
  ['  ', invalid],
  ['show version;;', invalid],
  ['show version; show state', invalid],
  ['show help extra', invalid],
  ['show pools by', invalid],
  ['show pools by process now', invalid],
  ['show pools byprocess', invalid],
  ["show 'version'", invalid],
  ['show my-db', invalid],
  ['show"version"', invalid],
  ['show "version', invalid],
  ['show "version""', invalid],
  ['show "version"""', show('version"')],
  ['-- ping', invalid],
  ['/* x */ show version', invalid],
  ['select version()', invalid],
  [bytes('pause größe'), invalid],
  ['show version\0', invalid],
  ['set a = b', set('a', 'b')],
  ['SET a=b;', set('a', 'b')],
  ['set a to b', set('a', 'b')],
  ['set a TO "b c"', set('a', 'b c')],
  ["set a='it''s ; \\n'", set('a', "it's ; \\n")],
  ["set a to''", set('a', '')],
  ["set a to'b'", set('a', 'b')],
  ['set "a b" = 1', set('a b', '1')],
  ["set ato'b'", set('a', 'b')],
  ['set ato b', set('a', 'b')],
  ['set aTO to', set('a', 'to')],
  ['set ato = b', set('ato', 'b')],
  ['set ato to b', set('ato', 'b')],
  ['set a = 0.5', invalid],
  ['set a = verify-full', invalid],
  ['set a b', invalid],
  ['set to b', invalid],
  ['set a = ', invalid],
  ['set a = b c', invalid],
  ['set a := b', invalid],
  ["set a = 'b", invalid],
  ["set a = 'b' 'c'", invalid],
  ['"set" a = b', invalid],
  ['seta = b', invalid],
  [`${'x'.repeat(15)} y`, show('y', 'X'.repeat(15))],
  [`${'x'.repeat(16)} y`, tooLong],
  [`"${'x'.repeat(14)}" y`, tooLong],
  [`show ${'y'.repeat(63)}`, show('y'.repeat(63))],
  [`show ${'y'.repeat(64)}`, tooLong],
  [`show "${'y'.repeat(61)}"`, show('y'.repeat(61))],
  [`show "${'y'.repeat(62)}"`, tooLong],
  [bytes(`show "${'ü'.repeat(31)}"`), tooLong],
  [`set ${'k'.repeat(63)} = 1`, set('k'.repeat(63), '1')],
  [`set ${'k'.repeat(64)} = 1`, tooLong],
  [`set k = '${'v'.repeat(253)}'`, set('k', 'v'.repeat(253))],
  [`set k = '${'v'.repeat(254)}'`, tooLong],
];

for (const [text, expected] of CASES) {
  test(`the grammar reads ${JSON.stringify(text).slice(0, 60)} as ${expected.kind}`, () => {
    assert.deepEqual(parseStatement(text), expected);
  });
}

test('a huge text of any shape is read in time that grows with its length only', () => {
  const size = 400_000;
  const shapes = ['x', ' ', '"', "'", ';', 'to', '\0', 'set ', 'show ', 'set a to '];
  const started = process.cpuUsage().user;
  for (const shape of shapes) {
    for (const prefix of ['', 'set ', 'set a=', "set a='", 'show "', 'show x ']) {
      for (const suffix of ['', '!', ' !']) {
        parseStatement(prefix + shape.repeat(size / shape.length) + suffix);
      }
    }
  }
  // Quadratic time would be hours.
  assert.ok(process.cpuUsage().user - started < 20_000_000);
});
