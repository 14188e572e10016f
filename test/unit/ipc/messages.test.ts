import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fromWorkerSchema, toWorkerSchema } from '../../../src/ipc/messages.ts';

const start = {
  kind: 'start',
  config: { version: 1 },
  previous: null,
  workerId: 3,
  size: 4,
  incarnation: 1,
  listeners: [{ fd: 4, kind: 'tcp', label: '127.0.0.1:6432', host: '127.0.0.1', port: 6432 }],
  runtimeDir: '/run/pgfleet/x',
  fleetSecret: '00',
  state: { isPaused: false },
  log: { stderr: true, logfile: '', verbose: 0 },
};

test('a start message survives the channel', () => {
  assert.deepEqual(toWorkerSchema.parse(JSON.parse(JSON.stringify(start))), start);
});

test('a worker number must fit one byte and a fleet must have a worker', () => {
  assert.ok(!toWorkerSchema.safeParse({ ...start, workerId: 256 }).success);
  assert.ok(!toWorkerSchema.safeParse({ ...start, size: 0 }).success);
});

test('a message of unknown kind or with a missing field is refused', () => {
  assert.ok(!toWorkerSchema.safeParse({ kind: 'dance' }).success);
  assert.ok(!toWorkerSchema.safeParse({ kind: 'stop', mode: 'soon' }).success);
  assert.ok(!fromWorkerSchema.safeParse({ kind: 'ready' }).success);
  assert.ok(!fromWorkerSchema.safeParse('ready').success);
});

test('an answer to a ping may leave the number of clients out', () => {
  assert.ok(fromWorkerSchema.safeParse({ kind: 'pong', seq: 1 }).success);
  assert.ok(fromWorkerSchema.safeParse({ kind: 'pong', seq: 1, clients: 7 }).success);
});
