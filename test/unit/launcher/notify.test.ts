import assert from 'node:assert/strict';
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Notify } from '../../../src/launcher/notify.ts';
import { log } from '../../../src/log/logger.ts';
import { until } from '../../support/until.ts';

const ON = { NOTIFY_SOCKET: '/run/notify' };

/** A program in place of `systemd-notify` that writes down what it is told. */
function fake(t: TestContext, status = 0) {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-notify-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const program = join(folder, 'notify');
  writeFileSync(program, `#!/bin/sh\necho "$@" >>"$0.calls"\nexit ${status}\n`);
  chmodSync(program, 0o755);
  const calls = () =>
    readFileSync(`${program}.calls`, { encoding: 'utf8', flag: 'a+' }).split('\n').slice(0, -1);
  return { program, calls };
}

function warnings(t: TestContext): string[] {
  const lines: string[] = [];
  t.mock.method(log, 'warning', (text: string) => lines.push(text));
  return lines;
}

test('states are told in order, each with the launcher as main process', async (t) => {
  const { program, calls } = fake(t);
  const notify = new Notify(ON, program);
  notify.ready();
  notify.reloading();
  notify.ready();
  notify.stopping();
  await until('all are told', () => calls().length === 4);
  const pid = `--pid=${process.pid}`;
  const [first, second, ...rest] = calls();
  assert.equal(first, `${pid} READY=1`);
  assert.match(second!, new RegExp(`^${pid} RELOADING=1 MONOTONIC_USEC=\\d+$`));
  assert.deepEqual(rest, [`${pid} READY=1`, `${pid} STOPPING=1`]);
});

test('of several statuses that have not been told yet only the last one is', async (t) => {
  const { program, calls } = fake(t);
  const notify = new Notify(ON, program);
  notify.ready();
  notify.status('stats: 1');
  notify.status('stats: 2');
  notify.stopping();
  await until('all are told', () => calls().length === 3);
  assert.equal(calls()[1], `--pid=${process.pid} STATUS=stats: 2`);
});

test('without a service manager nothing is run', (t) => {
  const lines = warnings(t);
  new Notify({}, '/no/such/program').ready();
  assert.deepEqual(lines, []);
});

test('a program that is missing is told of once', async (t) => {
  const lines = warnings(t);
  const notify = new Notify(ON, '/no/such/program');
  notify.ready();
  notify.stopping();
  await until('it is told', () => lines.length > 0);
  notify.ready();
  assert.equal(lines.length, 1);
  assert.match(lines[0]!, /^NOTIFY_SOCKET is set, but there is no program systemd-notify/);
});

test('a message that fails is told of, and the next one is tried', async (t) => {
  const lines = warnings(t);
  const { program, calls } = fake(t, 1);
  const notify = new Notify(ON, program);
  notify.ready();
  notify.stopping();
  await until('both are tried', () => calls().length === 2 && lines.length === 2);
  assert.equal(lines[0], 'systemd-notify READY=1 failed: exit code 1');
});
