import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { checkPidfile, removePidfile, writePidfile } from '../../../src/launcher/pidfile.ts';
import { log } from '../../../src/log/logger.ts';

function pidfile(t: TestContext, text?: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-pidfile-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'pid');
  if (text !== undefined) writeFileSync(path, text);
  return path;
}

const deadPid = spawnSync(process.execPath, ['-e', '0']).pid;

test('a pidfile of a living process, an empty one and one without a number are in use', (t) => {
  for (const text of [`${process.pid}\n`, '', 'none\n']) {
    const path = pidfile(t, text);
    assert.throws(() => checkPidfile(path), {
      name: 'ConfigError',
      message: `pidfile '${path}' exists, another instance running?`,
    });
    assert.ok(existsSync(path));
  }
});

test('a pidfile of a dead process is removed', (t) => {
  log.setDescriptors([]);
  t.after(() => log.setDescriptors([2]));
  const path = pidfile(t, `${deadPid}\n`);
  checkPidfile(path);
  assert.ok(!existsSync(path));
});

test('a pidfile is written with the pid and a line break, and never over another', (t) => {
  const path = pidfile(t);
  checkPidfile(path);
  writePidfile(path);
  assert.equal(readFileSync(path, 'utf8'), `${process.pid}\n`);
  assert.throws(() => writePidfile(path), {
    message: `could not open pidfile '${path}': File exists`,
  });
});

test('only the own pidfile is removed', (t) => {
  const own = pidfile(t, `${process.pid}\n`);
  const other = pidfile(t, `${deadPid}\n`);
  removePidfile(own);
  removePidfile(other);
  removePidfile(pidfile(t));
  assert.deepEqual([existsSync(own), existsSync(other)], [false, true]);
});

test('a pidfile in a folder that does not exist is told with the error of the system', () => {
  assert.throws(() => writePidfile('/no/such/pid'), {
    message: "could not open pidfile '/no/such/pid': No such file or directory",
  });
});
