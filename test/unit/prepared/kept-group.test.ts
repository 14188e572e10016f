import assert from 'node:assert/strict';
import { test } from 'node:test';
import { KeptGroup } from '../../../src/prepared/kept-group.ts';
import {
  bind,
  close,
  describe,
  execute,
  FLUSH,
  message,
  parse,
  query,
  SYNC,
} from '../../support/messages.ts';

function keep(...parts: readonly Buffer[]): KeptGroup {
  const group = new KeptGroup();
  group.begin(0);
  for (const part of parts) group.add(part, 0, part.length);
  return group;
}

const a = bind({ statement: 'a' });
const row = [a, describe('P'), execute(), SYNC];

/** Groups with how many requests are unanswered, and whether their client may be spared the error. */
const CASES: readonly (readonly [string, readonly Buffer[], number, boolean])[] = [
  ['Bind fails', row, 4, true],
  ['a Flush is no request', [a, FLUSH, describe('P'), execute(), FLUSH, SYNC], 4, true],
  ['Describe of the statement fails', [describe('S', 'a'), SYNC], 2, true],
  [
    'a Bind of another statement was answered',
    [bind({ statement: 'b', portal: 'p' }), ...row],
    4,
    true,
  ],
  ['a portal was closed', [close('P', 'p'), ...row], 4, true],
  ['the unnamed statement is used too', [parse('', 'x'), bind({}), execute(), ...row], 7, true],
  ['something was executed', [bind({ statement: 'b' }), execute(), ...row], 4, false],
  ['a description was given', [describe('S', 'b'), ...row], 4, false],
  ['a named statement is prepared', [a, describe('P'), execute(), parse('b', 'x'), SYNC], 5, false],
  ['a named statement is closed', [a, describe('P'), execute(), close('S', 'b'), SYNC], 5, false],
  ['a query is among it', [a, query('x'), SYNC], 3, false],
  ['there is no Sync yet', [a, describe('P'), execute()], 3, false],
  ['a message is half there', [a, describe('P'), execute().subarray(0, 7)], 3, false],
  ['something follows Sync', [...row, a], 4, false],
  ['more is unanswered than was kept', row, 5, false],
  ['nothing was described', [a, execute(), SYNC], 3, false],
  ['what is run was described too late', [a, execute(), describe('P'), SYNC], 4, false],
  [
    'another portal was described',
    [a, bind({ statement: 'a', portal: 'p' }), describe('P', 'p'), execute(), SYNC],
    5,
    false,
  ],
  [
    'the portal was described before it was bound anew',
    [a, describe('P'), a, execute(), SYNC],
    5,
    false,
  ],
  ['its statement was described', [describe('S', 'a'), a, execute(), SYNC], 4, true],
  [
    'a value is in binary form',
    [bind({ statement: 'a', values: ['x', 'y'], formats: [0, 1] }), ...row.slice(1)],
    4,
    false,
  ],
  [
    'a Bind is cut short',
    [message('B', ['', 'a', Buffer.from('0009', 'hex')]), ...row.slice(1)],
    4,
    false,
  ],
];

for (const [name, parts, left, isSpared] of CASES) {
  test(`${isSpared ? 'run again' : 'not run again'}: ${name}`, () => {
    const rerun = keep(...parts).rerun(left, true);
    assert.equal(rerun !== null, isSpared);
    if (rerun === null) return;
    assert.deepEqual(rerun.bytes, Buffer.concat(parts));
    const kinds = parts.filter((part) => part !== FLUSH).map((part) => part[0]);
    assert.deepEqual(rerun.answered, kinds.slice(0, kinds.length - left));
    assert.ok(rerun.statements.has('a'));
    assert.ok(!rerun.statements.has(''));
  });
}

test('a client that never asked for a description may get rows without one', () => {
  const group = keep(a, execute(), SYNC);
  assert.equal(group.rerun(3, true), null);
  assert.deepEqual([...group.rerun(3, false)!.statements], ['a']);
});

test('a group of up to 8 KB is kept, in whatever pieces it comes', () => {
  const long = bind({ statement: 'a', values: ['x'.repeat(8192 - 60)] });
  const bytes = Buffer.concat([long, describe('P'), execute(), SYNC]);
  assert.ok(bytes.length <= 8192);
  const group = new KeptGroup();
  group.begin(7);
  for (let at = 0; at < bytes.length; at += 1000) {
    group.add(bytes, at, Math.min(bytes.length, at + 1000));
  }
  assert.equal(group.isKept, true);
  assert.equal(group.segment, 7);
  assert.deepEqual(group.rerun(4, true)!.bytes, bytes);
  group.begin(8);
  group.add(Buffer.alloc(8193), 0, 8193);
  assert.equal(group.isKept, false);
});
