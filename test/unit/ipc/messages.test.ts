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
  generation: 1,
  fleetSecret: '00',
  state: { mode: 'suspended', paused: ['a'], disabled: ['b'] },
  orphans: [{ place: { host: '10.0.0.1', port: 5432 }, tlsHost: 'db.example', key: 'AAAB' }],
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

test('commands, actions and answers of the control survive the channel', () => {
  for (const message of [
    { kind: 'control', seq: 1, action: { name: 'kill', databases: ['a'] } },
    { kind: 'control', seq: 2, action: { name: 'pause', database: null } },
    { kind: 'control_forget', seq: 1 },
    { kind: 'control_answer', id: 1, outcome: { ok: true } },
    { kind: 'control_answer', id: 1, outcome: { ok: false, text: 'x', sqlstate: 'F0000' } },
  ]) {
    assert.deepEqual(toWorkerSchema.parse(message), message);
  }
  for (const message of [
    { kind: 'control_ask', id: 1, command: { name: 'shutdown', mode: 'now' } },
    { kind: 'control_leave', id: 1 },
    { kind: 'control_done', incarnation: 1, seq: 1, stage: 'settled', isFound: true },
    { kind: 'consoles', count: 2 },
  ]) {
    assert.deepEqual(fromWorkerSchema.parse(message), message);
  }
  assert.ok(!toWorkerSchema.safeParse({ kind: 'control', seq: 1, action: { name: 'x' } }).success);
});
