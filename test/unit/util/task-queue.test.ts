import assert from 'node:assert/strict';
import { test } from 'node:test';
import { TaskQueue } from '../../../src/util/task-queue.ts';

/** Work that ends when the test says so. */
function job(): { work: () => Promise<string>; end: (text: string) => void; fail: () => void } {
  let end: (text: string) => void = () => {};
  let fail = (): void => {};
  const promise = new Promise<string>((resolve, reject) => {
    end = resolve;
    fail = () => reject(new Error('failed'));
  });
  return { work: () => promise, end, fail };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

test('no more than so many tasks run at a time, first come first served', async () => {
  const queue = new TaskQueue(2);
  const jobs = [job(), job(), job(), job()];
  const begun: number[] = [];
  const results = jobs.map(({ work }, index) =>
    queue.run(() => {
      begun.push(index);
      return work();
    }),
  );
  await settled();
  assert.deepEqual(begun, [0, 1]);
  jobs[1]!.end('b');
  await settled();
  assert.deepEqual(begun, [0, 1, 2]);
  for (const { end } of jobs) end('x');
  assert.deepEqual(await Promise.all(results), ['x', 'b', 'x', 'x']);
  assert.equal(queue.started, 4);
});

test('a task that nobody wants any more when its turn comes is left out', async () => {
  const queue = new TaskQueue(1);
  const [first, second] = [job(), job()];
  let isWanted = true;
  const results = [
    queue.run(first.work),
    queue.runIfWanted(
      () => Promise.reject(new Error('begun in vain')),
      () => isWanted,
    ),
    queue.runIfWanted(second.work, () => true),
  ];
  isWanted = false;
  first.end('a');
  second.end('c');
  assert.deepEqual(await Promise.all(results), ['a', null, 'c']);
  assert.equal(queue.started, 2);
});

test('a task that fails makes way for the next', async () => {
  const queue = new TaskQueue(1);
  const [first, second] = [job(), job()];
  const failing = queue.run(first.work);
  const next = queue.run(second.work);
  first.fail();
  await assert.rejects(failing, /failed/);
  second.end('b');
  assert.equal(await next, 'b');
});
