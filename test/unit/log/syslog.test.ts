import assert from 'node:assert/strict';
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Level } from '../../../src/log/level.ts';
import { Syslog } from '../../../src/log/syslog.ts';
import { until } from '../../support/until.ts';

/** A program in place of `logger` that writes down its arguments and what it reads. */
function fakeLogger(t: TestContext, script = 'exec cat >>"$0.lines"') {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-syslog-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const program = join(folder, 'logger');
  writeFileSync(program, `#!/bin/sh\necho "$@" >>"$0.starts"\n${script}\n`);
  chmodSync(program, 0o755);
  const read = (what: 'starts' | 'lines') =>
    readFileSync(`${program}.${what}`, { encoding: 'utf8', flag: 'a+' }).split('\n').slice(0, -1);
  return { program, read };
}

function syslog(t: TestContext, program: string, facility = 'daemon') {
  const problems: string[] = [];
  const made = new Syslog({ ident: 'pgb', facility }, (text) => problems.push(text), program);
  t.after(() => made.close());
  return { made, problems };
}

test('lines have priority and text, the tag has this process, and DEBUG is left out', async (t) => {
  const { program, read } = fakeLogger(t);
  const { made } = syslog(t, program, 'LOCAL3');
  made.write(Level.LOG, 'one');
  made.write(Level.DEBUG, 'hidden');
  made.write(Level.WARNING, 'two\n\tlines');
  made.write(Level.FATAL, 'three');
  await until('all are read', () => read('lines').length === 3);
  assert.deepEqual(read('lines'), ['<158>one', '<156>two#012\tlines', '<154>three']);
  assert.match(read('starts')[0]!, new RegExp(`--prio-prefix .*--id=${process.pid} --tag pgb$`));
});

for (const [facility, priority] of [
  ['daemon', 30],
  ['auth', 38],
  ['authpriv', 86],
  ['user', 14],
  ['local0', 134],
  ['local7', 190],
  ['nonsense', 30],
] as const) {
  test(`a LOG line to facility ${facility} has priority ${priority}`, async (t) => {
    const { program, read } = fakeLogger(t);
    syslog(t, program, facility).made.write(Level.LOG, 'x');
    await until('it is read', () => read('lines').length === 1);
    assert.deepEqual(read('lines'), [`<${priority}>x`]);
  });
}

test('a program that is missing is told of once and not tried again', async (t) => {
  const { made, problems } = syslog(t, '/no/such/logger');
  made.write(Level.LOG, 'lost');
  await until('it is told', () => problems.length > 0);
  assert.match(problems.join(), /^syslog is on, but there is no program logger /);
  assert.ok(made.isMissing);
});

test('one that ends is started again, and tells how many lines went nowhere', async (t) => {
  // The first of them fails at once, as when there is no daemon to write to.
  const script =
    '[ -e "$0.once" ] || { touch "$0.once"; echo oops >&2; exit 3; }\nexec cat >>"$0.lines"';
  const { program, read } = fakeLogger(t, script);
  const { made, problems } = syslog(t, program);
  await until('it has ended', () => problems.length > 0);
  assert.deepEqual(problems, ['syslog: logger ended (exit code 3): oops']);
  made.write(Level.LOG, 'lost');
  await until('another one runs', () => made.pid > 0);
  made.write(Level.LOG, 'found');
  await until('it reads', () => read('lines').length === 2);
  assert.deepEqual(read('lines'), ['<28>1 log lines lost: syslog did not take them', '<30>found']);
});

test('one that does not read holds nobody up: what does not fit is dropped', (t) => {
  const { program } = fakeLogger(t, 'exec sleep 5');
  const { made } = syslog(t, program);
  const { pid } = made;
  assert.ok(pid > 0);
  t.after(() => process.kill(pid, 'SIGKILL'));
  const startedAt = performance.now();
  for (let i = 0; i < 2000; i++) made.write(Level.LOG, 'x'.repeat(1000));
  assert.ok(performance.now() - startedAt < 5000);
});
