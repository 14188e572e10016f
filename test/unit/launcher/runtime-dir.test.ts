import assert from 'node:assert/strict';
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { createRuntimeDir, runtimeDirOf } from '../../../src/launcher/runtime-dir.ts';

function folder(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), 'pgfleet-runtime-'));
  t.after(() => rmSync(path, { recursive: true }));
  return path;
}

test('each configuration file has a folder of its own', () => {
  const path = runtimeDirOf(null, '/etc/a.ini');
  assert.equal(runtimeDirOf(null, '/etc/a.ini'), path);
  assert.notEqual(runtimeDirOf(null, '/etc/b.ini'), path);
  assert.match(path, /\/pgfleet[^/]*\/[0-9a-f]{16}$/);
});

test('a folder that is configured is taken as it is written', () => {
  assert.equal(runtimeDirOf('/srv/run', '/no/such/file'), '/srv/run');
});

test('the folder is created private and may exist when it is private', (t) => {
  const path = join(folder(t), 'run');
  createRuntimeDir(path, true);
  assert.equal(statSync(path).mode & 0o777, 0o700);
  createRuntimeDir(path, true);
});

test('a link, a file and a folder open to others are refused by name', (t) => {
  const base = folder(t);
  const link = join(base, 'link');
  symlinkSync(folder(t), link);
  const file = join(base, 'file');
  writeFileSync(file, '');
  const open = join(base, 'open');
  mkdirSync(open);
  chmodSync(open, 0o750);
  for (const path of [link, file]) {
    assert.throws(() => createRuntimeDir(path, true), {
      message: `runtime_dir ${path} is not a folder`,
    });
  }
  assert.throws(() => createRuntimeDir(open, true), {
    message: `runtime_dir ${open} is open to others, its mode must be 0700`,
  });
  assert.throws(() => createRuntimeDir(join(base, 'no', 'such'), true), {
    message: /^could not create runtime_dir .*: No such file or directory$/,
  });
});

test("another account's folder is refused by name", (t) => {
  if (process.getuid!() !== 0) return t.skip('only root can give a folder away');
  const path = join(folder(t), 'run');
  mkdirSync(path, { mode: 0o700 });
  chownSync(path, 65534, 65534);
  assert.throws(() => createRuntimeDir(path, true), {
    message: `runtime_dir ${path} belongs to another user`,
  });
});
