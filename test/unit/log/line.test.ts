import assert from 'node:assert/strict';
import { test } from 'node:test';
import { escapeName, formatLine } from '../../../src/log/line.ts';

const AT = new Date(2026, 10, 29, 9, 5, 7, 4);
const SHAPE =
  /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ \[(\d+)\] (FATAL|ERROR|WARNING|LOG|DEBUG|NOISE) (.*)$/s;

function message(text: string): string {
  const line = formatLine(AT, 21793, 'LOG', text);
  assert.ok(line.endsWith('\n'));
  return SHAPE.exec(line.slice(0, -1))![3]!;
}

test('a line has local time with milliseconds, the pid, the level and the text', () => {
  assert.match(
    formatLine(AT, 21793, 'WARNING', 'x y'),
    /^2026-11-29 09:05:07\.004 [A-Z0-9+-]{3,5} \[21793\] WARNING x y\n$/,
  );
});

test('a line break becomes a line break and a tab, and the text loses its trailing blanks', () => {
  assert.equal(message('one\ntwo\n \n'), 'one\n\ttwo');
  assert.equal(message('one  '), 'one  ');
});

test('other control characters are written as escapes', () => {
  assert.equal(message('a\x1b[31m\r\0\tb'), 'a\\x1b[31m\\x0d\\x00\\x09b');
});

test('a message is cut at 2047 bytes and never inside a character', () => {
  assert.equal(message('x'.repeat(3000)).length, 2047);
  const cut = message('é'.repeat(2000));
  assert.equal(Buffer.byteLength(cut), 2046);
  assert.ok(!cut.includes('\ufffd'));
});

test('a message of line breaks only does not outgrow the limit', () => {
  assert.equal(message(`a${'\n'.repeat(2000)}b`).length, 2047);
});

test('a name in a prefix shows blanks and control characters as escapes, and nothing else', () => {
  assert.equal(escapeName('a b\n\x7f\u00a0'), 'a\\x20b\\x0a\\x7f\\xc2\\xa0');
  assert.equal(escapeName('o/r@ém-1'), 'o/r@ém-1');
});
