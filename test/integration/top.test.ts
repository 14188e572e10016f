import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { type Ended, runProgram } from '../support/programs.ts';
import { pgfleetFiles } from '../support/repository.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';

/** `pgfleet top` before a real fleet, on a terminal and without one. */

const SCRIPT = '/usr/bin/script';
const ENV = { PGUSER: 'postgres', PGPASSWORD: 'postgres' };

async function place(t: TestContext): Promise<TestPgfleet> {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({
    postgres,
    size: 2,
    databases: { app: 'pool_size=4' },
    settings: { auth_type: 'scram-sha-256' },
  });
  t.after(() => fleet.stop());
  return fleet;
}

async function top(args: readonly string[], env: Record<string, string> = ENV): Promise<Ended> {
  const { node, program } = await pgfleetFiles();
  return runProgram(node, [program, 'top', ...args], { asServer: true, env });
}

test('without a terminal it prints what it sees so many times, and ends', async (t) => {
  const fleet = await place(t);
  const client = await fleet.client();
  await client.query('BEGIN');
  const url = `postgres://postgres:postgres@127.0.0.1:${fleet.port}/pgbouncer`;
  for (const target of [fleet.configFile, url]) {
    const { status, stdout, stderr } = await top([target, '--count=2', '--interval=0.2']);
    assert.equal(status, 0, stderr);
    assert.equal(stdout.split('pgfleet 0.1.0').length - 1, 2);
    assert.match(stdout, /^active {2}clients 1, waiting 0 {2}servers 1, active 1$/m);
    assert.match(stdout, /^tx\/s \d+ {2}queries\/s \d+ /m);
    assert.match(stdout, /^app +app +tx +1 +0 +0us +1 +0 +0 +0$/m);
    assert.match(stdout, /^ +0 +\d+ +\d+ +\d+ +[\d.]+ +[\d.]+M +\S+ {2}active$/m);
    assert.match(stdout, /^ +1 +\d+ +/m);
    assert.ok(!stdout.includes('\x1b'));
  }
  await client.query('COMMIT');
  await client.end();
});

test('it ends when nobody reads it any more', async (t) => {
  const fleet = await place(t);
  const { node, program } = await pgfleetFiles();
  const command = `${node} ${program} top --interval=0.1 ${fleet.configFile} | head -n 1`;
  const { status, stdout } = await runProgram('/bin/sh', ['-c', command], {
    asServer: true,
    env: ENV,
    deadlineMs: 30_000,
  });
  assert.equal(status, 0);
  assert.match(stdout, /^pgfleet 0\.1\.0 .*\n$/);
});

test('a login that is refused, and a console that is not there, are told of', async (t) => {
  const fleet = await place(t);
  fleet.allowLog(/authentication failed/);
  const wrong = await top([fleet.configFile], { ...ENV, PGPASSWORD: 'wrong' });
  assert.equal(wrong.status, 1);
  assert.match(wrong.stderr, /^pgfleet: .*: SASL authentication failed$/m);
  const nobody = await top(['postgres://postgres@127.0.0.1:1/pgbouncer']);
  assert.equal(nobody.status, 1);
  assert.match(nobody.stderr, /ECONNREFUSED/);
  const noFile = await top(['/nowhere.ini']);
  assert.equal(noFile.status, 1);
  assert.match(noFile.stderr, /nowhere\.ini/);
});

/** `top` on a terminal of its own: what it has written, and keys for it. */
async function onTerminal(t: TestContext, fleet: TestPgfleet) {
  const { node, program } = await pgfleetFiles();
  const command = `stty rows 24 cols 80; exec ${node} ${program} top --interval=0.2 ${fleet.configFile}`;
  const child = spawn(SCRIPT, ['-qec', command, '/dev/null'], {
    env: { ...process.env, ...ENV, TERM: 'xterm', NO_COLOR: '' },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  t.after(() => child.kill('SIGKILL'));
  let written = '';
  child.stdout.on('data', (bytes: Buffer) => {
    written += bytes.toString('utf8');
  });
  const ended = once(child, 'exit') as Promise<[number | null]>;
  return {
    child,
    ended,
    written: () => written,
    /** The lines of the last screen. */
    screen: () => written.split('\x1b[H').at(-1)!.split('\r\n'),
    key: (key: string) => child.stdin.write(key),
  };
}

test('on a terminal it has a screen of its own, takes keys, and gives the screen back', async (t) => {
  if (!requirePackage(t, 'bsdutils', existsSync(SCRIPT))) return;
  const fleet = await place(t);
  const terminal = await onTerminal(t, fleet);
  await until('it shows the workers', () =>
    terminal.screen().some((each) => each.includes('worker')),
  );
  assert.ok(terminal.written().startsWith('\x1b[?1049h'));
  assert.ok(terminal.screen().length <= 24);
  terminal.key('?');
  await until('it shows its keys', () => terminal.screen().join().includes('q quit'));
  terminal.key('p');
  await until('it stands still', () => terminal.screen()[0]!.includes('paused'));
  terminal.key('p');
  await until('it goes on', () => terminal.screen()[0]!.includes('every 0.2s'));
  terminal.key('q');
  assert.deepEqual((await terminal.ended)[0], 0);
  assert.ok(terminal.written().trimEnd().endsWith('\x1b[?25h\x1b[?1049l'));
});

test('when its worker dies it asks another one, and Ctrl-C gives the screen back', async (t) => {
  if (!requirePackage(t, 'bsdutils', existsSync(SCRIPT))) return;
  const fleet = await place(t);
  const terminal = await onTerminal(t, fleet);
  await until('it shows the workers', () =>
    terminal.screen().some((each) => each.includes('worker')),
  );
  const old = fleet.workers();
  fleet.allowLog(/worker \d died/);
  const shows = (pids: readonly number[]): boolean =>
    pids.every((pid) => terminal.screen().join().includes(` ${pid} `));
  assert.ok(shows(old));
  for (const pid of old) process.kill(pid, 'SIGKILL');
  const next = await fleet.workersAre(2, old, 30_000);
  await until('it shows the new workers', () => shows(next), { deadlineMs: 30_000 });
  terminal.key('\x03');
  assert.deepEqual((await terminal.ended)[0], 0);
  assert.ok(terminal.written().trimEnd().endsWith('\x1b[?1049l'));
});
