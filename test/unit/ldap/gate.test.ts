import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Gate } from '../../../src/ldap/gate.ts';

const STAYS = new AbortController().signal;

/** Lets all that is due happen. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

test('no more tasks run than there are places, and the first to come is the first to go', async () => {
  const gate = new Gate(2);
  const order: string[] = [];
  const leaves = new Map<string, () => void>();
  for (const name of ['a', 'b', 'c', 'd']) {
    void gate.enter(STAYS).then((leave) => {
      order.push(name);
      leaves.set(name, leave!);
    });
  }
  await settle();
  assert.deepEqual(order, ['a', 'b']);
  assert.equal(gate.waiting, 2);
  leaves.get('b')!();
  await settle();
  assert.deepEqual(order, ['a', 'b', 'c']);
  leaves.get('a')!();
  leaves.get('c')!();
  leaves.get('d')?.();
  await settle();
  assert.deepEqual(order, ['a', 'b', 'c', 'd']);
});

test('whoever leaves the queue takes no place from those behind', async () => {
  const gate = new Gate(1);
  const first = await gate.enter(STAYS);
  const gone = new AbortController();
  const second = gate.enter(gone.signal);
  const third = gate.enter(STAYS);
  gone.abort();
  assert.equal(await second, null);
  assert.equal(gate.waiting, 1);
  first!();
  const leave = await third;
  assert.ok(leave);
  leave();
  assert.ok(await gate.enter(STAYS), 'the place is free again');
});

test('whoever has left before takes no place at all', async () => {
  const gate = new Gate(1);
  assert.equal(await gate.enter(AbortSignal.abort()), null);
  assert.ok(await gate.enter(STAYS));
});

test('a place that was given is not lost when its holder leaves the queue in the same moment', async () => {
  const gate = new Gate(1);
  const first = await gate.enter(STAYS);
  const gone = new AbortController();
  const second = gate.enter(gone.signal);
  first!();
  gone.abort();
  const leave = await second;
  assert.ok(leave, 'it was let in first');
  leave();
  assert.ok(await gate.enter(STAYS));
});
