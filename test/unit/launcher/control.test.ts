import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { ControlCommand, ControlOutcome } from '../../../src/ipc/control.ts';
import type { ToWorker } from '../../../src/ipc/messages.ts';
import { Control } from '../../../src/launcher/control.ts';
import type { SetResult } from '../../../src/launcher/reload.ts';
import { log } from '../../../src/log/logger.ts';
import { config, database } from '../admin/support.ts';

const PAUSE: ControlCommand = { name: 'pause', database: null };
const RESUME: ControlCommand = { name: 'resume', database: null, isInUse: false };
const DISABLE: ControlCommand = { name: 'disable', database: 'app' };
const SUSPEND: ControlCommand = { name: 'suspend' };

/** A fleet of workers that do nothing until the test says so. */
class FakeFleet {
  live = [0, 1, 2];
  /** `seq name` of every action, in order; `forget seq`. */
  readonly sent: string[] = [];
  /** Answers in order, the worker and number of the asker first. */
  readonly answers: [string, ControlOutcome][] = [];
  readonly stops: string[] = [];
  readonly lines: string[] = [];
  reloads: ((result: { ok: true } | { ok: false; text: string }) => void)[] = [];
  readonly settings: string[] = [];
  sets: ((result: SetResult) => void)[] = [];
  readonly control: Control;

  constructor(t: TestContext) {
    t.mock.timers.enable({ apis: ['setTimeout'] });
    t.mock.method(log, 'info', (text: string) => this.lines.push(text));
    const settings = config({ databases: [database({ name: 'app' }), database({ name: 'b' })] });
    this.control = new Control({
      config: () => settings,
      broadcast: (message) => {
        this.sent.push(describe(message));
        return [...this.live];
      },
      sendTo: (worker, message) => {
        assert.equal(message.kind, 'control_answer');
        if (message.kind === 'control_answer') {
          this.answers.push([`${worker}.${message.id}`, message.outcome]);
        }
      },
      reload: () => new Promise((resolve) => this.reloads.push(resolve)),
      set: (key, value) => {
        this.settings.push(`${key}=${value}`);
        return new Promise((resolve) => this.sets.push(resolve));
      },
      stop: (mode) => {
        this.stops.push(mode);
        this.control.onStop(mode);
      },
    });
  }

  ask(worker: number, id: number, command: ControlCommand): void {
    this.control.onMessage(worker, { kind: 'control_ask', id, command });
  }

  done(seq: number, stage: 'applied' | 'settled', workers = this.live, isFound = true): void {
    for (const worker of workers) {
      this.control.onMessage(worker, { kind: 'control_done', incarnation: 1, seq, stage, isFound });
    }
  }

  /** Sessions of the console that a worker has. */
  consoles(worker: number, count: number): void {
    this.control.onMessage(worker, { kind: 'consoles', count });
  }

  die(worker: number): void {
    this.live = this.live.filter((each) => each !== worker);
    this.control.onWorkerGone(worker);
  }
}

function describe(message: ToWorker): string {
  if (message.kind === 'control') return `${message.seq} ${message.action.name}`;
  return message.kind === 'control_forget' ? `forget ${message.seq}` : message.kind;
}

const OK: ControlOutcome = { ok: true };
const refused = (text: string): ControlOutcome => ({ ok: false, text });

test('commands are done one after the other and numbered, however they arrive', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, DISABLE);
  fleet.ask(2, 1, { name: 'reconnect', database: null });
  fleet.ask(0, 2, { name: 'enable', database: 'app', isInUse: true });
  assert.deepEqual(fleet.sent, ['1 disable']);
  fleet.done(1, 'applied', [0, 2]);
  assert.deepEqual([fleet.sent, fleet.answers], [['1 disable'], []]);
  fleet.done(1, 'applied', [1]);
  assert.deepEqual(fleet.sent, ['1 disable', '2 reconnect']);
  assert.deepEqual(fleet.answers, [['0.1', OK]]);
  fleet.done(2, 'applied');
  fleet.done(3, 'applied');
  assert.deepEqual(fleet.answers, [
    ['0.1', OK],
    ['2.1', OK],
    ['0.2', OK],
  ]);
});

test('a worker that starts meanwhile starts in the state that the command brings', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, PAUSE);
  fleet.ask(0, 2, DISABLE);
  assert.deepEqual(fleet.control.state, { mode: 'paused', paused: [], disabled: [] });
});

test('PAUSE is answered when all workers have done it and come to a rest', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(1, 7, PAUSE);
  fleet.done(1, 'applied');
  fleet.done(1, 'settled', [0, 2]);
  assert.deepEqual(fleet.answers, []);
  fleet.done(1, 'settled', [1]);
  assert.deepEqual(fleet.answers, [['1.7', OK]]);
});

test('a worker may come to a rest before another has heard of the command', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(1, 7, PAUSE);
  fleet.done(1, 'applied', [0]);
  fleet.done(1, 'settled', [0]);
  fleet.done(1, 'applied', [1, 2]);
  fleet.done(1, 'settled', [1, 2]);
  assert.deepEqual(fleet.answers, [['1.7', OK]]);
});

test('a PAUSE that waits holds up nobody, and RESUME ends it with an error', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, PAUSE);
  fleet.done(1, 'applied');
  fleet.ask(1, 1, RESUME);
  assert.deepEqual(fleet.answers, [['0.1', refused('PAUSE was ended by RESUME')]]);
  assert.deepEqual(fleet.sent, ['1 pause', 'forget 1', '2 resume']);
  fleet.done(1, 'settled');
  fleet.done(2, 'applied');
  assert.deepEqual(fleet.answers.slice(1), [['1.1', OK]]);
  assert.equal(fleet.control.state.mode, 'active');
});

test('RESUME of a database ends the waits of that database only', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, { name: 'pause', database: 'app' });
  fleet.done(1, 'applied');
  fleet.ask(0, 2, { name: 'pause', database: 'b' });
  fleet.done(2, 'applied');
  fleet.ask(0, 3, { name: 'resume', database: 'b', isInUse: true });
  assert.deepEqual(fleet.answers, [['0.2', refused('PAUSE was ended by RESUME')]]);
  fleet.done(3, 'applied');
  fleet.done(1, 'settled');
  assert.deepEqual(fleet.answers.at(-1), ['0.1', OK]);
});

test('a console that leaves ends its wait, and what it has asked for is done all the same', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, PAUSE);
  fleet.done(1, 'applied');
  fleet.ask(1, 1, DISABLE);
  fleet.ask(1, 2, { name: 'wait_close', database: null });
  fleet.control.onMessage(0, { kind: 'control_leave', id: 1 });
  fleet.control.onMessage(1, { kind: 'control_leave', id: 1 });
  fleet.control.onMessage(1, { kind: 'control_leave', id: 2 });
  fleet.done(2, 'applied');
  fleet.done(3, 'applied');
  assert.deepEqual(fleet.sent, ['1 pause', '2 disable', 'forget 1', '3 wait_close', 'forget 3']);
  assert.deepEqual(fleet.answers, []);
  assert.deepEqual(fleet.control.state, { mode: 'paused', paused: [], disabled: ['app'] });
});

test('a worker that dies before it has done its part is named, and the next command begins', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, DISABLE);
  fleet.ask(0, 2, { name: 'reconnect', database: 'app' });
  fleet.done(1, 'applied', [0, 1]);
  fleet.die(2);
  const text = 'worker 2 died before DISABLE was done there; all others have done it';
  assert.deepEqual(fleet.answers, [['0.1', refused(text)]]);
  assert.deepEqual(fleet.control.state.disabled, ['app']);
  fleet.done(2, 'applied');
  assert.deepEqual(fleet.answers.at(-1), ['0.2', OK]);
});

test('a worker that dies while a PAUSE waits is named when the others have come to a rest', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, PAUSE);
  fleet.done(1, 'applied');
  fleet.done(1, 'settled', [0]);
  fleet.die(2);
  assert.deepEqual(fleet.answers, []);
  fleet.done(1, 'settled', [1]);
  const text = 'worker 2 died before PAUSE was done there; all others have done it';
  assert.deepEqual(fleet.answers, [['0.1', refused(text)]]);
});

test('a worker that had done its part may die, and one that dies with the asker is answered nothing', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, PAUSE);
  fleet.done(1, 'applied');
  fleet.done(1, 'settled', [2]);
  fleet.die(2);
  fleet.die(0);
  assert.deepEqual(fleet.sent, ['1 pause', 'forget 1']);
  fleet.ask(1, 1, DISABLE);
  fleet.done(2, 'applied');
  assert.deepEqual(fleet.answers, [['1.1', OK]]);
});

test('a worker that does not answer in time is named and holds up nobody', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, DISABLE);
  fleet.ask(1, 1, PAUSE);
  fleet.done(1, 'applied', [0, 2]);
  t.mock.timers.tick(10_000);
  const text = 'worker 1 has not answered before DISABLE was done there; all others have done it';
  assert.deepEqual(fleet.answers, [['0.1', refused(text)]]);
  fleet.done(1, 'applied', [1]);
  assert.deepEqual(fleet.sent, ['1 disable', '2 pause']);
});

test('a fleet without a worker that could do it takes the state on', (t) => {
  const fleet = new FakeFleet(t);
  fleet.live = [];
  fleet.control.run(PAUSE);
  fleet.control.run(RESUME);
  fleet.control.run({ name: 'pause', database: 'b' });
  assert.deepEqual(fleet.control.state, { mode: 'active', paused: ['b'], disabled: [] });
});

test('KILL_CLIENT is answered by the worker that has the client, or by none', (t) => {
  const fleet = new FakeFleet(t);
  const command: ControlCommand = { name: 'kill_client', id: 9 };
  fleet.ask(0, 1, command);
  fleet.done(1, 'applied', [0, 2], false);
  fleet.done(1, 'applied', [1]);
  fleet.ask(0, 2, command);
  fleet.done(2, 'applied', [0, 1, 2], false);
  assert.deepEqual(fleet.answers, [
    ['0.1', OK],
    ['0.2', refused('client not found')],
  ]);
});

test('RELOAD takes its turn and tells why it failed', async (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, { name: 'reload' });
  fleet.ask(0, 2, { name: 'reload' });
  fleet.ask(0, 3, DISABLE);
  assert.equal(fleet.reloads.length, 1);
  fleet.reloads[0]!({ ok: false, text: 'f.ini:3: no' });
  await settled();
  const text = 'RELOAD failed, see logs for additional details';
  assert.deepEqual(fleet.answers, [
    ['0.1', { ok: false, sqlstate: 'F0000', text, detail: 'f.ini:3: no' }],
  ]);
  assert.deepEqual([fleet.reloads.length, fleet.sent], [2, []]);
  fleet.reloads[1]!({ ok: true });
  await settled();
  assert.deepEqual(fleet.answers[1], ['0.2', OK]);
  assert.deepEqual(fleet.sent, ['1 disable']);
});

test('SET takes its turn like RELOAD, and what it notes or why it failed is told', async (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, { name: 'set', key: 'a', value: '1' });
  fleet.ask(0, 2, { name: 'set', key: 'b', value: '2' });
  fleet.ask(1, 1, { name: 'set', key: 'c', value: '3' });
  fleet.ask(0, 3, DISABLE);
  assert.deepEqual([fleet.settings, fleet.sent], [['a=1'], []]);
  for (const [at, result] of [
    { ok: true },
    { ok: true, notice: 'not yet' },
    { ok: false, text: 'no number' },
  ].entries()) {
    fleet.sets[at]!(result as SetResult);
    await settled();
  }
  assert.deepEqual(fleet.answers, [
    ['0.1', OK],
    ['0.2', { ok: true, notice: 'not yet' }],
    ['1.1', { ok: false, text: 'SET failed', detail: 'no number' }],
  ]);
  assert.deepEqual([fleet.settings, fleet.sent], [['a=1', 'b=2', 'c=3'], ['1 disable']]);
});

test('SHUTDOWN is answered before the fleet stops, except the one that stops it at once', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, { name: 'shutdown', mode: 'wait_for_clients' });
  assert.deepEqual([fleet.answers, fleet.stops], [[['0.1', OK]], ['wait_for_clients']]);
  fleet.ask(0, 2, RESUME);
  fleet.ask(0, 3, { name: 'shutdown', mode: 'wait_for_servers' });
  assert.equal(fleet.control.state.mode, 'paused');
  fleet.ask(0, 4, PAUSE);
  fleet.ask(0, 5, { name: 'shutdown', mode: 'now' });
  assert.deepEqual(fleet.answers.slice(1), [
    ['0.2', refused('pooler is shutting down')],
    ['0.3', OK],
    ['0.4', refused('already suspended/paused')],
  ]);
  assert.deepEqual(fleet.stops, ['wait_for_clients', 'wait_for_servers', 'now']);
});

test('a worker that ends because of a shutdown has done its part of what waits', (t) => {
  const fleet = new FakeFleet(t);
  fleet.ask(0, 1, PAUSE);
  fleet.done(1, 'applied');
  fleet.ask(0, 2, { name: 'shutdown', mode: 'wait_for_clients' });
  fleet.done(1, 'settled', [0, 1]);
  fleet.die(2);
  assert.deepEqual(fleet.answers.at(-1), ['0.1', OK]);
});

test('a suspended fleet resumes when its last console has left, in whatever worker that was', (t) => {
  const fleet = new FakeFleet(t);
  fleet.consoles(0, 1);
  fleet.consoles(2, 2);
  fleet.ask(0, 1, SUSPEND);
  fleet.done(1, 'applied');
  fleet.done(1, 'settled');
  fleet.consoles(2, 0);
  assert.equal(fleet.control.state.mode, 'suspended');
  fleet.die(0);
  assert.equal(fleet.control.state.mode, 'active');
  assert.ok(fleet.lines.includes('admin disappeared when suspended, doing RESUME'));
});

test('a console that leaves before its SUSPEND has begun leaves no fleet suspended', (t) => {
  const fleet = new FakeFleet(t);
  fleet.consoles(1, 1);
  fleet.ask(1, 1, DISABLE);
  fleet.ask(1, 2, SUSPEND);
  fleet.consoles(1, 0);
  fleet.done(1, 'applied');
  assert.deepEqual(fleet.sent, ['1 disable', '2 suspend']);
  fleet.done(2, 'applied');
  assert.deepEqual(fleet.sent.at(-1), '3 resume');
  assert.equal(fleet.control.state.mode, 'active');
});

test('in a shutdown a suspended fleet resumes for nobody who asks, but when all consoles have left', (t) => {
  const fleet = new FakeFleet(t);
  fleet.consoles(0, 1);
  fleet.ask(0, 1, SUSPEND);
  fleet.done(1, 'applied');
  fleet.done(1, 'settled');
  fleet.ask(0, 2, { name: 'shutdown', mode: 'wait_for_clients' });
  fleet.ask(0, 3, RESUME);
  assert.deepEqual(fleet.answers.at(-1), ['0.3', refused('pooler is shutting down')]);
  fleet.consoles(0, 0);
  fleet.consoles(1, 0);
  assert.deepEqual(fleet.sent, ['1 suspend', '2 resume']);
  const line = 'admin disappeared when suspended, doing RESUME';
  assert.equal(fleet.lines.filter((one) => one === line).length, 1);
});

test('a command is logged once, in PgBouncer’s words, unless the moment is wrong', (t) => {
  const fleet = new FakeFleet(t);
  fleet.live = [];
  fleet.ask(0, 1, { name: 'pause', database: 'none' });
  fleet.ask(0, 2, PAUSE);
  fleet.ask(0, 3, PAUSE);
  fleet.ask(0, 4, { name: 'kill_client', id: 1 });
  fleet.ask(0, 5, { name: 'shutdown', mode: 'wait_for_clients' });
  assert.deepEqual(fleet.lines, [
    "PAUSE 'none' command issued",
    'PAUSE command issued',
    'SHUTDOWN WAIT_FOR_CLIENTS command issued',
  ]);
});

const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
