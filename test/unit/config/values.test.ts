import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  parseBool,
  parseDecimal,
  parseInt32,
  parseOnOff,
  parsePort,
  parseSeconds,
  parseUint32,
  parseWord,
  splitCommas,
  splitNames,
} from '../../../src/config/values.ts';

function table<T>(parse: (text: string) => T, rows: readonly (readonly [string, T])[]): void {
  for (const [text, expected] of rows) {
    assert.equal(parse(text), expected, JSON.stringify(text));
  }
}

test('a whole number follows C base detection and takes no text after it', () => {
  table(parseInt32, [
    ['0', 0],
    ['-0', 0],
    ['10', 10],
    ['+10', 10],
    ['-1', -1],
    ['0x1f', 31],
    ['0X1F', 31],
    ['-0x10', -16],
    ['010', 8],
    ['0777', 511],
    ['777', 777],
    ['2147483647', 2147483647],
    ['-2147483648', -2147483648],
    ['2147483648', null],
    ['-2147483649', null],
    ['08', null],
    ['0x', null],
    ['0b1', null],
    ['0o7', null],
    ['', null],
    [' 1', null],
    ['10 ; note', null],
    ['10s', null],
    ['1.0', null],
    ['1e3', null],
    ['1_000', null],
    ['--1', null],
    ['١', null],
  ]);
});

test('an unsigned number wraps a negative one as strtoul does', () => {
  table(parseUint32, [
    ['2147483648', 2147483648],
    ['4294967295', 4294967295],
    ['4294967296', null],
    ['-1', 4294967295],
    ['0xffffffff', 4294967295],
    ['-2147483649', null],
    ['1k', null],
  ]);
});

test('a switch is a number and never a word', () => {
  table(parseBool, [
    ['0', false],
    ['1', true],
    ['2', true],
    ['-1', true],
    ['0x0', false],
    ['yes', null],
    ['true', null],
    ['on', null],
    ['off', null],
    ['', null],
  ]);
});

test('a switch of the fleet section is on, off or a number', () => {
  table(parseOnOff, [
    ['on', true],
    ['ON', true],
    ['off', false],
    ['0', false],
    ['1', true],
    ['yes', null],
    ['true', null],
  ]);
});

test('a time is plain non-negative decimal seconds, kept to the microsecond', () => {
  table(parseSeconds, [
    ['0', 0],
    ['15', 15],
    ['0.5', 0.5],
    ['.5', 0.5],
    ['5.', 5],
    ['1e2', 100],
    ['1.5E-1', 0.15],
    ['0.0000004', 0],
    ['0.0000006', 0.000001],
    ['010', 10],
    ['-1', null],
    ['+1', null],
    ['5s', null],
    ['100ms', null],
    ['1 min', null],
    ['inf', null],
    ['nan', null],
    ['0x10', null],
    ['1e999', null],
    ['1e', null],
    ['.', null],
    ['', null],
  ]);
});

test('a number in a connection string is decimal and takes no text after it', () => {
  table(parseDecimal, [
    ['010', 10],
    ['-1', -1],
    ['0', 0],
    ['0x10', null],
    ['1.9', null],
    ['abc', null],
    ['10x', null],
    ['', null],
    ['99999999999', null],
  ]);
  assert.ok(Object.is(parseDecimal('-0'), 0));
});

test('a port is 1 to 65535', () => {
  table(parsePort, [
    ['1', 1],
    ['65535', 65535],
    ['0', null],
    ['65536', null],
    ['-1', null],
    ['5432a', null],
  ]);
});

test('a word matches in any case and is returned in lower case', () => {
  const parse = (text: string) => parseWord(['session', 'scram-sha-256'], text);
  table(parse, [
    ['session', 'session'],
    ['SESSION', 'session'],
    ['Scram-SHA-256', 'scram-sha-256'],
    ['sessio', null],
    [' session', null],
    ['', null],
  ]);
});

test('comma lists drop blanks around items and empty items', () => {
  assert.deepEqual(splitCommas(' a b ,, c\t,'), ['a b', 'c']);
  assert.deepEqual(splitCommas(''), []);
  assert.deepEqual(splitCommas('\u00a0a'), ['\u00a0a']);
});

test('name lists are split by commas and by blanks', () => {
  assert.deepEqual(splitNames(' a, b c\t,d,, '), ['a', 'b', 'c', 'd']);
  assert.deepEqual(splitNames(''), []);
});
