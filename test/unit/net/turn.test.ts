import assert from 'node:assert/strict';
import { test } from 'node:test';
import { beginTurn, endTurn, type Flushable, flushLater, inTurn } from '../../../src/net/turn.ts';
import { clock } from '../../../src/util/clock.ts';

/** Notes its name when flushed, and then does what it is told. */
function flushable(name: string, flushed: string[], act: () => void = () => {}): Flushable {
  return {
    flush() {
      flushed.push(name);
      act();
    },
  };
}

test('what was written in a turn leaves at its end, in the order of the first writes', () => {
  const flushed: string[] = [];
  inTurn(() => {
    flushLater(flushable('b', flushed));
    flushLater(flushable('a', flushed));
    assert.deepEqual(flushed, []);
  });
  assert.deepEqual(flushed, ['b', 'a']);
  inTurn(() => {});
  assert.deepEqual(flushed, ['b', 'a']);
});

test('a turn inside a turn is part of it: nothing leaves before the outer one ends', () => {
  const flushed: string[] = [];
  beginTurn();
  beginTurn();
  flushLater(flushable('a', flushed));
  endTurn();
  assert.deepEqual(flushed, []);
  endTurn();
  assert.deepEqual(flushed, ['a']);
});

test('a flush that makes another link write has it flushed in the same turn', () => {
  const flushed: string[] = [];
  const last = flushable('c', flushed);
  const middle = flushable('b', flushed, () => flushLater(last));
  inTurn(() => flushLater(flushable('a', flushed, () => flushLater(middle))));
  assert.deepEqual(flushed, ['a', 'b', 'c']);
});

test('what is written outside of any turn leaves together before the event loop goes on', async () => {
  const flushed: string[] = [];
  flushLater(flushable('a', flushed));
  flushLater(flushable('b', flushed));
  assert.deepEqual(flushed, []);
  await Promise.resolve();
  assert.deepEqual(flushed, ['a', 'b']);
  flushLater(flushable('c', flushed));
  await Promise.resolve();
  assert.deepEqual(flushed, ['a', 'b', 'c']);
});

test('work that throws still has its writes sent, and the next turn begins as usual', () => {
  const flushed: string[] = [];
  assert.throws(
    () =>
      inTurn(() => {
        flushLater(flushable('a', flushed));
        throw new Error('bug');
      }),
    /bug/,
  );
  assert.deepEqual(flushed, ['a']);
  inTurn(() => flushLater(flushable('b', flushed)));
  assert.deepEqual(flushed, ['a', 'b']);
});

test('the clock is read once a turn, when the outermost begins', () => {
  clock.now = 0;
  inTurn(() => {
    const { now } = clock;
    assert.ok(now > 0);
    clock.now = now - 1;
    inTurn(() => assert.equal(clock.now, now - 1));
    assert.equal(clock.now, now - 1);
  });
});
