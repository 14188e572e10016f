import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { makeCerts } from '../support/certs.ts';
import { newFolder } from '../support/echo-fleet.ts';

const COMMAND = fileURLToPath(new URL('../../bin/pgfleet', import.meta.url));
/** A program that tells where it runs, ends as it is told, and answers SIGTERM with status 42. */
const MAIN = `
process.on('SIGTERM', () => process.exit(42));
console.log(process.versions.node, process.pid, process.argv.slice(2).join(' '));
if (process.argv[2] === 'die') process.kill(process.pid, 'SIGKILL');
else if (process.argv[2] === 'wait') setInterval(() => {}, 1000);
else process.exitCode = 5;
`;

/** A Node on this machine that is too old for pgfleet. */
const oldNode = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/local/bin', '/usr/bin']
  .map((folder) => join(folder, 'node'))
  .find((program) => existsSync(program) && isOld(program));

function isOld(program: string): boolean {
  const found = /^v(\d+)\.(\d+)/.exec(spawnSync(program, ['-v'], { encoding: 'utf8' }).stdout);
  if (found === null) return false;
  const [major, minor] = [Number(found[1]), Number(found[2])];
  return major < 22 || (major === 22 && minor < 12);
}

/** An installed package with `MAIN` as its program. Returns the command, through a link. */
function installedCommand(t: TestContext, hasRuntime: boolean): string {
  const folder = newFolder(t);
  const root = join(folder, 'node_modules', 'pgfleet');
  mkdirSync(join(root, 'bin'), { recursive: true });
  mkdirSync(join(root, 'dist', 'cli'), { recursive: true });
  copyFileSync(COMMAND, join(root, 'bin', 'pgfleet'));
  copyFileSync(join(dirname(COMMAND), 'package.json'), join(root, 'bin', 'package.json'));
  writeFileSync(join(root, 'package.json'), '{"type":"module"}');
  writeFileSync(join(root, 'dist', 'cli', 'main.js'), MAIN);
  if (hasRuntime) {
    const runtime = join(folder, 'node_modules', `node-${process.platform}-${process.arch}`, 'bin');
    mkdirSync(runtime, { recursive: true });
    symlinkSync(process.execPath, join(runtime, 'node'));
  }
  const link = join(folder, 'pgfleet');
  symlinkSync(join(root, 'bin', 'pgfleet'), link);
  return link;
}

function run(program: string, args: readonly string[]) {
  const { status, signal, stdout, stderr } = spawnSync(program, args, {
    encoding: 'utf8',
    cwd: '/',
  });
  return { status, signal, stdout, stderr };
}

test('an old Node hands over to the runtime beside the package, with arguments and exit status', (t) => {
  if (oldNode === undefined) return t.skip('no Node older than 22.12 on this machine');
  const { status, stdout } = run(oldNode, [installedCommand(t, true), 'a', '-b']);
  assert.match(stdout, new RegExp(`^${process.versions.node} \\d+ a -b\n$`));
  assert.equal(status, 5);
});

test('a signal to the old Node reaches the program, whose status it ends with', async (t) => {
  if (oldNode === undefined) return t.skip('no Node older than 22.12 on this machine');
  const child = spawn(oldNode, [installedCommand(t, true), 'wait'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  child.kill('SIGTERM');
  assert.deepEqual(await once(child, 'exit'), [42, null]);
});

test('when the program is killed the old Node ends by the same signal', (t) => {
  if (oldNode === undefined) return t.skip('no Node older than 22.12 on this machine');
  const { status, signal } = run(oldNode, [installedCommand(t, true), 'die']);
  assert.deepEqual([status, signal], [null, 'SIGKILL']);
});

test('an old Node without a runtime to hand over to says what is missing', (t) => {
  if (oldNode === undefined) return t.skip('no Node older than 22.12 on this machine');
  const { status, stderr } = run(oldNode, [installedCommand(t, false)]);
  assert.equal(status, 1);
  const missing = `node-${process.platform}-${process.arch}`;
  assert.match(stderr, new RegExp(`^pgfleet: Node 22\\.12 or newer is needed.*${missing}.*\n$`));
});

test('a Node that is new enough runs the program itself', async (t) => {
  const child = spawn(process.execPath, [installedCommand(t, false)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [output] = await once(child.stdout, 'data');
  assert.ok(String(output).startsWith(`${process.versions.node} ${child.pid} `));
});

test('-V names PgBouncer and its version first', () => {
  const { status, stdout } = run(process.execPath, [COMMAND, '-V']);
  assert.equal(status, 0);
  assert.match(stdout, /^PgBouncer 1\.\d+\.\d+ \(pgfleet \d+\.\d+\.\d+\)\nnode /);
});

test('without a file the two lines of PgBouncer are printed, with status 1', () => {
  const { status, stdout, stderr } = run(process.execPath, [COMMAND]);
  assert.deepEqual([status, stdout], [1, '']);
  assert.equal(
    stderr,
    'pgfleet: no configuration file specified\nTry "pgfleet --help" for more information.\n',
  );
});

test('check prints to stdout and its status tells whether the fleet would start', (t) => {
  const file = join(newFolder(t), 'pgfleet.ini');
  writeFileSync(file, '[pgbouncer]\nauth_type = any\n');
  assert.equal(run(process.execPath, [COMMAND, 'check', file]).status, 0);
  writeFileSync(file, '[pgbouncer]\nlisten_port = x\n');
  const { status, stdout } = run(process.execPath, [COMMAND, 'check', file]);
  assert.equal(status, 1);
  assert.ok(stdout.includes(`${file}:2: listen_port: `));
});

/** Status and the one FATAL line of a start that fails before anything is bound. */
function failedStart(t: TestContext, lines: string[], options: string[] = []) {
  const file = join(newFolder(t), 'pgfleet.ini');
  writeFileSync(
    file,
    ['[pgbouncer]', 'auth_type = any', 'unix_socket_dir =', ...lines, ''].join('\n'),
  );
  const { status, stderr } = run(process.execPath, [COMMAND, ...options, file]);
  return { status, text: / FATAL (.*)\n/.exec(stderr)?.[1], stderr };
}

test('a file that does not exist stops the start, silently under -q', () => {
  const loud = run(process.execPath, [COMMAND, '/no/such.ini']);
  assert.equal(loud.status, 1);
  assert.match(
    loud.stderr,
    / ERROR .*could not load file "\/no\/such\.ini": No such file or directory\n/,
  );
  assert.match(loud.stderr, / FATAL cannot load config file\n$/);
  const quiet = run(process.execPath, [COMMAND, '-q', '/no/such.ini']);
  assert.deepEqual([quiet.status, quiet.stderr], [1, '']);
});

test('root is refused unless an account to switch to is given', (t) => {
  if (process.getuid!() !== 0) return t.skip('not run as root');
  const plain = failedStart(t, []);
  assert.deepEqual([plain.status, plain.text], [1, 'PgBouncer should not run as root']);
  const named = failedStart(t, ['user = root']);
  assert.deepEqual([named.status, named.text], [1, 'PgBouncer should not run as root']);
});

test('an account that does not exist stops the start, and -u outranks the file', (t) => {
  const fromFile = failedStart(t, ['user = no-such-user']);
  assert.equal(fromFile.text, "could not find user 'no-such-user' to switch to");
  const fromOption = failedStart(t, ['user = root'], ['-u', 'no-such-user']);
  assert.equal(fromOption.text, "could not find user 'no-such-user' to switch to");
});

// Root may take every account, so only others have this to see.
if (process.getuid!() !== 0) {
  test('an account that only root may take stops the start of others', (t) => {
    const { text } = failedStart(t, ['user = root']);
    assert.equal(text, "failed to assume identity of user 'root': Operation not permitted");
  });
}

test('a log file that cannot be opened is told on stderr even under -q', (t) => {
  const asUser = process.getuid!() === 0 ? ['-u', 'nobody'] : [];
  const { status, text } = failedStart(t, ['logfile = /no/such/log'], ['-q', ...asUser]);
  assert.equal(text, "Cannot open logfile: '/no/such/log': No such file or directory");
  assert.equal(status, 1);
});

test('-d needs a pidfile', (t) => {
  const { status, text } = failedStart(t, [], ['-d']);
  assert.deepEqual([status, text], [1, 'daemon needs pidfile configured']);
});

test('in the background a start that fails is told in the foreground', (t) => {
  const asUser = process.getuid!() === 0 ? ['-u', 'nobody'] : [];
  const { status, text } = failedStart(t, ['pidfile = /no/such/pid'], ['-d', ...asUser]);
  assert.deepEqual([status, text], [1, 'nowhere to listen on']);
});

/** Settings of TLS towards clients, with a key that only this account may read. */
async function tlsLines(t: TestContext): Promise<string[]> {
  const certs = await makeCerts();
  const key = join(newFolder(t), 'key');
  writeFileSync(key, readFileSync(certs.file('server.key')), { mode: 0o600 });
  return [
    'client_tls_sslmode = require',
    `client_tls_key_file = ${key}`,
    `client_tls_cert_file = ${certs.file('server.crt')}`,
  ];
}

test('TLS that cannot be set up stops the start with the lines of PgBouncer', async (t) => {
  const [mode, key] = await tlsLines(t);
  const { status, text, stderr } = failedStart(t, [mode!, key!, 'client_tls_cert_file = /gone']);
  assert.deepEqual([status, text], [1, 'TLS setup failed']);
  assert.match(stderr, / ERROR .*TLS setup failed: .*"\/gone": .*No such file or directory\n/);
});

test('a key that only root may read is read before root is given up', async (t) => {
  if (process.getuid!() !== 0) return t.skip('not run as root');
  const { text } = failedStart(t, await tlsLines(t), ['-u', 'nobody']);
  assert.equal(text, 'nowhere to listen on');
});
