import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { test } from 'node:test';
import { CommandError, type ControlCommand } from '../../../src/admin/control.ts';
import type { FromWorker } from '../../../src/ipc/messages.ts';
import { LauncherPort } from '../../../src/worker/launcher-port.ts';

const PAUSE: ControlCommand = { name: 'pause', database: null };

/** A port whose launcher notes what it hears. */
function given() {
  const sent: FromWorker[] = [];
  const launcher = { isThere: true };
  const port = new LauncherPort((message) => {
    if (launcher.isThere) sent.push(message);
    return launcher.isThere;
  });
  const leaving = new AbortController();
  return { port, sent, launcher, leaving, ask: () => port.ask(PAUSE, leaving.signal) };
}

test('each command has its number, by which its answer finds it', async () => {
  const { port, sent, ask } = given();
  const [first, second] = [ask(), ask()];
  assert.deepEqual(sent, [
    { kind: 'control_ask', id: 1, command: PAUSE },
    { kind: 'control_ask', id: 2, command: PAUSE },
  ]);
  port.onAnswer(2, { ok: false, text: 'no', sqlstate: 'F0000', detail: 'line 3' });
  port.onAnswer(1, { ok: true });
  port.onAnswer(1, { ok: true });
  await first;
  await assert.rejects(second, (error) => {
    assert.ok(error instanceof CommandError);
    assert.deepEqual([error.message, error.sqlstate, error.detail], ['no', 'F0000', 'line 3']);
    return true;
  });
});

test('a console that leaves takes its commands back once, and those answered are none', async () => {
  const { port, sent, leaving, ask } = given();
  const answered = ask();
  port.onAnswer(1, { ok: true });
  await answered;
  void ask();
  leaving.abort();
  port.onAnswer(2, { ok: true });
  assert.deepEqual(sent.slice(2), [{ kind: 'control_leave', id: 2 }]);
});

test('without a launcher a command is refused by name, one that it was asked before too', async () => {
  const { port, launcher, ask } = given();
  const refusal = /^CommandError: PAUSE is not possible now: the fleet's launcher does not run/;
  const before = ask();
  launcher.isThere = false;
  port.onLauncherGone();
  await assert.rejects(before, refusal);
  await assert.rejects(ask(), refusal);
});

test('a session may ask as often as it likes, and nothing of it stays', async () => {
  const { port, leaving, launcher, ask } = given();
  for (let id = 1; id <= 20; id++) {
    const asked = ask();
    port.onAnswer(id, id % 2 === 0 ? { ok: true } : { ok: false, text: 'no' });
    await asked.catch(() => undefined);
  }
  const last = ask();
  assert.equal(getEventListeners(leaving.signal, 'abort').length, 1);
  launcher.isThere = false;
  port.onLauncherGone();
  await assert.rejects(last);
  assert.equal(getEventListeners(leaving.signal, 'abort').length, 0);
});
