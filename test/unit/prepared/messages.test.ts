import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  closeMessage,
  describeNameEnd,
  isDeallocateAll,
  MAX_NAMES_BYTES,
  mayDeallocateAll,
  parseMessage,
  parseNameEnd,
  Shape,
  saysDeallocateAll,
  shapeOf,
  writeBindHead,
  writeDescribe,
} from '../../../src/prepared/messages.ts';
import { PreparedStatement } from '../../../src/prepared/statement.ts';
import { bind, close, describe, message, oids, parse } from './builders.ts';

const STATEMENT = new PreparedStatement(12, `select $1\0${oids(23).toString('latin1')}`);

function shape(bytes: Buffer, end = bytes.length): Shape {
  // What stands around a message in a shared read buffer must not be looked at.
  const around = Buffer.concat([Buffer.from('\0x'), bytes.subarray(0, end), Buffer.from('x\0\0')]);
  return shapeOf(bytes[0]!, around, 2, 1 + bytes.readInt32BE(1), 2 + end);
}

test('messages of the unnamed statement and of portals are passed on untouched', () => {
  for (const bytes of [
    parse('', 'select 1'),
    bind('', ''),
    bind('portal', ''),
    describe(''),
    close(''),
    message('D', 'Pportal\0'),
    message('C', 'P\0'),
    message('D', 'x'),
  ]) {
    assert.equal(shape(bytes), Shape.untouched, bytes.toString('latin1'));
  }
});

test('messages of a named statement are told from their first bytes', () => {
  const long = 'n'.repeat(100);
  for (const [bytes, needed] of [
    [parse('a', 'select 1'), 6],
    [parse(long, 'select 1'), 6],
    [bind('', 'a'), 8],
    [bind('portal', 'a'), 14],
    [bind('', long), 107],
    [describe('a'), 7],
    [close(long), 7],
  ] as const) {
    for (let end = 5; end <= bytes.length; end++) {
      const expected = end < needed ? Shape.incomplete : Shape.named;
      assert.equal(shape(bytes, end), expected, `${bytes.toString('latin1')} up to ${end}`);
    }
  }
});

test('a Bind of the unnamed statement is told once both its names are there', () => {
  const bytes = bind('p', '');
  for (let end = 5; end <= bytes.length; end++) {
    assert.equal(shape(bytes, end), end < 8 ? Shape.incomplete : Shape.untouched);
  }
});

test('a message that ends before its names do is broken', () => {
  for (const bytes of [
    message('P'),
    message('B'),
    message('B', 'portal'),
    message('B', '\0'),
    message('B', '\0name'),
    message('D'),
    message('D', 'S'),
    message('C'),
  ]) {
    assert.equal(shape(bytes), Shape.broken, bytes.toString('latin1'));
  }
});

test('names without an end are not collected for ever', () => {
  const endless = message('B', '\0', 'n'.repeat(MAX_NAMES_BYTES + 10));
  assert.equal(shape(endless, MAX_NAMES_BYTES), Shape.incomplete);
  assert.equal(shape(endless, MAX_NAMES_BYTES + 1), Shape.broken);
  assert.equal(shape(describe('n'.repeat(MAX_NAMES_BYTES)), 10), Shape.broken);
  assert.equal(shape(parse('n', 'x'.repeat(MAX_NAMES_BYTES)), 10), Shape.named);
});

test('a Parse is whole only when name, text and types fill it exactly', () => {
  for (const bytes of [parse('a', ''), parse('abc', 'select 1'), parse('a', 'select $1', 23, 0)]) {
    assert.equal(parseNameEnd(bytes, 0, bytes.length), bytes.indexOf(0, 5));
    for (let end = 5; end < bytes.length; end++) {
      assert.equal(parseNameEnd(bytes, 0, end), -1, `cut at ${end}`);
    }
    const longer = Buffer.concat([bytes, Buffer.from([0])]);
    assert.equal(parseNameEnd(longer, 0, longer.length), -1);
  }
  const many = message('P', 'a\0x\0', '\xff\xff', Buffer.alloc(4 * 65_535));
  assert.equal(parseNameEnd(many, 0, many.length), 6);
});

test('a Describe or Close is whole only when its name fills it', () => {
  for (const bytes of [describe('abc'), close('abc')]) {
    assert.equal(describeNameEnd(bytes, 0, bytes.length), 9);
    for (let end = 6; end < bytes.length; end++) assert.equal(describeNameEnd(bytes, 0, end), -1);
  }
  const longer = message('D', 'Sabc\0x');
  assert.equal(describeNameEnd(longer, 0, longer.length), -1);
  const doubled = message('D', 'Sabc\0\0');
  assert.equal(describeNameEnd(doubled, 0, doubled.length), -1);
});

test('a statement is parsed, described and closed under its own name', () => {
  assert.deepEqual(parseMessage(STATEMENT), parse('PGBOUNCER_12', 'select $1', 23));
  assert.deepEqual(closeMessage(STATEMENT), close('PGBOUNCER_12'));
  const out = Buffer.alloc(100, 0xff);
  const size = writeDescribe(STATEMENT, out);
  assert.deepEqual(out.subarray(0, size), describe('PGBOUNCER_12'));
});

test('the bytes of a query text come out as they went in', () => {
  const tail = Buffer.from(Array.from({ length: 255 }, (_none, at) => at + 1));
  const statement = new PreparedStatement(1, tail.toString('latin1'));
  assert.deepEqual(statement.parseTail, tail);
  assert.deepEqual(parseMessage(statement).subarray(-255), tail);
});

test('a Bind gets the statement’s own name, an adjusted length, and keeps all else', () => {
  const out = Buffer.alloc(500);
  for (const portal of ['', 'p', 'a portal']) {
    for (const name of ['a', 'PGBOUNCER_12', 'a name that is longer than the other']) {
      const original = bind(portal, name, 'some value');
      const bytes = Buffer.concat([Buffer.from('junk'), original, Buffer.from('more')]);
      const nameStart = 4 + 5 + portal.length + 1;
      const nameEnd = nameStart + name.length;
      const size = writeBindHead(bytes, 4, nameStart, nameEnd, STATEMENT, out);
      const whole = Buffer.concat([
        out.subarray(0, size),
        bytes.subarray(nameEnd + 1, 4 + original.length),
      ]);
      assert.deepEqual(whole, bind(portal, 'PGBOUNCER_12', 'some value'));
    }
  }
});

test('the length of a huge Bind is adjusted in all four bytes', () => {
  const bytes = Buffer.concat([bind('', 'a')]);
  bytes.writeInt32BE(0x12ffffff, 1);
  const out = Buffer.alloc(100);
  writeBindHead(bytes, 0, 6, 7, STATEMENT, out);
  assert.equal(out.readInt32BE(1), 0x12ffffff + 'PGBOUNCER_12'.length - 1);
});

test('only the exact tags DEALLOCATE ALL and DISCARD ALL empty the tables', () => {
  for (const tag of ['DEALLOCATE ALL', 'DISCARD ALL']) {
    const bytes = Buffer.concat([Buffer.from('xx'), message('C', `${tag}\0`)]);
    assert.equal(isDeallocateAll(bytes, 2, bytes.length - 2), true, tag);
  }
  for (const tag of [
    'DEALLOCATE',
    'DISCARD PLANS',
    'DISCARD TEMP',
    'DISCARD ALL ',
    'deallocate all',
    'DEALLOCATE ALX',
    'XISCARD ALL',
    'SELECT 1',
    'INSERT 0 12345',
    'SELECT 1234',
  ]) {
    const bytes = message('C', `${tag}\0`);
    assert.equal(isDeallocateAll(bytes, 0, bytes.length), false, tag);
  }
});

/** Whether a Query is taken for DEALLOCATE ALL when all of it is there. */
function isTaken(sql: string): boolean {
  const bytes = Buffer.concat([
    Buffer.from('xx'),
    message('Q', `${sql}\0`),
    Buffer.from('discard'),
  ]);
  const total = bytes.length - 9;
  const isTold = saysDeallocateAll(bytes, 2, total);
  if (isTold) assert.ok(mayDeallocateAll(bytes, 2, total, 2 + total), sql);
  return isTold && mayDeallocateAll(bytes, 2, total, 2 + total);
}

test('a Query of nothing but DEALLOCATE ALL or DISCARD ALL is told by its text', () => {
  for (const sql of [
    'DEALLOCATE ALL',
    'discard all',
    ' \n Discard\tALL ; ',
    'DEALLOCATE PREPARE ALL;',
  ]) {
    assert.ok(isTaken(sql), sql);
  }
  for (const sql of [
    '',
    ';',
    'D',
    'DISCARD',
    'DISCARDALL',
    'DISCARD PLANS',
    'DEALLOCATE "all"',
    'DEALLOCATE ALL; SELECT 1',
    'DEALLOCATE ALLES',
    'SELECT 1',
    'DELETE FROM all',
  ]) {
    assert.equal(isTaken(sql), false, sql);
  }
});

test('only a short Query that begins with a blank or a D needs a look at its text', () => {
  const needsLook = (sql: string, there = 1000): boolean => {
    const bytes = message('Q', `${sql}\0`);
    return mayDeallocateAll(bytes, 0, bytes.length, Math.min(there, bytes.length));
  };
  assert.equal(needsLook('SELECT 1'), false);
  assert.equal(needsLook('SELECT 1', 6), false);
  assert.equal(needsLook('SELECT 1', 5), true, 'its text has not come');
  assert.equal(needsLook('delete from t'), true);
  assert.equal(needsLook(`DELETE FROM t WHERE ${'a = 1 OR '.repeat(5)}`), false);
  assert.equal(needsLook(`SELECT ${'1'.repeat(50)}`, 5), false);
});
