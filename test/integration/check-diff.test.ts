import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { removeFolder } from '../support/folders.ts';
import { preparePgfleet, startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { type Ended, runProgram } from '../support/programs.ts';
import { line, reload, rewrite } from '../support/reload.ts';
import { pgfleetFiles } from '../support/repository.ts';
import { until } from '../support/until.ts';

/** `pgfleet check --diff` asks the fleet that runs. */

async function diff(fleet: TestPgfleet, asServer = true): Promise<Ended> {
  const { node, program } = await pgfleetFiles();
  return runProgram(node, [program, 'check', '--diff', fleet.configFile], { asServer });
}

test('what a reload would change is told by the fleet that runs, and changes nothing', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({
    postgres,
    size: 2,
    databases: { app: 'pool_size=3', old: 'dbname=app' },
  });
  t.after(() => fleet.stop());
  const is = async (expected: string, status = 0): Promise<void> => {
    const ended = await diff(fleet);
    assert.deepEqual([ended.stdout, ended.stderr, ended.status], [expected, '', status]);
  };
  await is('a reload would change nothing\n');

  const place = `host=${postgres.host} port=${postgres.port}`;
  await rewrite(
    fleet,
    line('databases', 'app', `${place} pool_size=4 password=hidden`),
    line('databases', 'old', null),
    line('databases', 'new', place),
    line('pgbouncer', 'query_timeout', 7),
    line('pgbouncer', 'listen_backlog', 99),
  );
  const changes = [
    '[pgbouncer] listen_backlog: 128 -> 99 (needs a restart)',
    '[pgbouncer] query_timeout: 0 -> 7',
    '[databases] app: password: (not set) -> [redacted]',
    '[databases] app: pool_size: 3 -> 4',
    '[databases] old: removed',
    '[databases] new: added',
  ];
  const sorted = (text: string): string[] =>
    text
      .split('\n')
      .filter((one) => one !== '')
      .map(withoutNote)
      .sort();
  const asked = await diff(fleet);
  assert.deepEqual(sorted(asked.stdout), [...changes].sort());
  // Root asks a fleet of another account.
  assert.deepEqual(sorted((await diff(fleet, false)).stdout), [...changes].sort());
  const shown = await fleet.console('SHOW CONFIG');
  assert.equal(shown.find(({ key }) => key === 'query_timeout')?.['value'], '0');

  await reload(fleet);
  const after = await diff(fleet);
  assert.deepEqual(sorted(after.stdout), [
    '[pgbouncer] listen_backlog: 128 -> 99 (needs a restart)',
  ]);

  await rewrite(fleet, line('pgbouncer', 'query_timeout', 'soon'));
  const refused = await diff(fleet);
  assert.equal(refused.status, 1);
  assert.match(refused.stdout, /pgbouncer\.ini:\d+: query_timeout: /);
  assert.doesNotMatch(fleet.log(), /hidden|config file loading failed/);
});

/** What a line says of the connections of a database is not looked at here. */
function withoutNote(text: string): string {
  return text.replace(/ \(its connections .*\)$/, '');
}

test('without a fleet there is nothing to compare with', async (t) => {
  const fleet = await preparePgfleet();
  t.after(() => removeFolder(fleet.folder));
  const ended = await diff(fleet);
  assert.equal(ended.status, 1);
  assert.match(
    ended.stdout,
    /no fleet runs with .*pgbouncer\.ini: nobody listens on .*launcher\.sock/,
  );
});

test('the launcher’s socket puts up with whatever comes', async (t) => {
  const fleet = await startPgfleet();
  t.after(() => fleet.stop());
  const path = join(fleet.folder, 'run', 'launcher.sock');
  for (const bytes of ['nonsense\n', 'x'.repeat(100_000), 'changes\nchanges\n', '\0\0\n']) {
    const socket = connect(path);
    let isClosed = false;
    socket.on('error', () => undefined);
    socket.on('close', () => {
      isClosed = true;
    });
    socket.write(bytes);
    await until('it is closed', () => isClosed);
  }
  for (let i = 0; i < 50; i++)
    connect(path)
      .on('error', () => undefined)
      .destroy();
  assert.equal((await diff(fleet)).stdout, 'a reload would change nothing\n');
});
