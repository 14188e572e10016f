import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { runCheck } from '../../../src/cli/check.ts';

function check(
  t: TestContext,
  text: string | null,
): { status: number; said: string; file: string } {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-check-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'pgbouncer.ini');
  if (text !== null) writeFileSync(file, text);
  let said = '';
  const status = runCheck(file, { write: (line: string) => (said += line) });
  return { status, said, file };
}

test('a good file is called ok and the status is 0', (t) => {
  const { status, said, file } = check(t, '[pgbouncer]\nlisten_port = 6432\n');
  assert.equal(said, `${file}: ok\n`);
  assert.equal(status, 0);
});

test('warnings are marked and do not spoil the status', (t) => {
  const { status, said, file } = check(t, '[pgbouncer]\ntcp_user_timeout = 5\n');
  assert.equal(
    said,
    `warning: ${file}:2: tcp_user_timeout: is accepted but has no effect in this version\n${file}: ok\n`,
  );
  assert.equal(status, 0);
});

test('every problem is printed as file:line: key: what and the status is 1', (t) => {
  const { status, said, file } = check(
    t,
    '[pgbouncer]\nfoo = 1\n\nlisten_port = 0\ntcp_user_timeout = 5\n',
  );
  assert.equal(
    said,
    `${file}:2: foo: unknown parameter: pgbouncer/foo\n` +
      `${file}:4: listen_port: invalid value "0" for parameter listen_port: must be 1 to 65535\n` +
      `warning: ${file}:5: tcp_user_timeout: is accepted but has no effect in this version\n`,
  );
  assert.equal(status, 1);
});

test('a file that is not there is a problem with the words of the operating system', (t) => {
  const { status, said, file } = check(t, null);
  assert.equal(said, `${file}: could not load file "${file}": No such file or directory\n`);
  assert.equal(status, 1);
});

test('auth_file, HBA and ident files are looked into as well, and no secret is shown', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-check-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const at = (name: string): string => join(folder, name);
  writeFileSync(at('users'), '"a" "x"\n"b" "hush" \n"c "hush\n');
  writeFileSync(at('hba'), 'local all all trust\ninclude more\nhost all all all gss\n');
  writeFileSync(at('more'), 'local all all peer map=m\n');
  writeFileSync(at('ident'), 'm a\n');
  const { status, said } = check(
    t,
    `[pgbouncer]\nauth_type = hba\nauth_file = ${at('users')}\n` +
      `auth_hba_file = ${at('hba')}\nauth_ident_file = ${at('ident')}\n`,
  );
  assert.deepEqual(said.trimEnd().split('\n'), [
    `warning: ${at('users')}:3: broken auth file: the users from here on are left out`,
    `${at('ident')}:1: a system name or database user is missing`,
    `${at('hba')}:3: unsupported method: buf=gss`,
  ]);
  assert.equal(status, 1);
});
