import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, readdir, symlink } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import pg from 'pg';
import { canServerRead, giveToServer, serverAccount } from '../support/account.ts';
import { copyReadable, makeFolder, removeFolder } from '../support/folders.ts';
import { hasEnded, isRunning, processesWith, signalIfRunning } from '../support/processes.ts';
import { REPOSITORY } from '../support/repository.ts';
import { until } from '../support/until.ts';

/** Starting takes initdb, and under a closed folder copies of Node and PostgreSQL. */
const START_MS = 90_000;
const END_MS = 20_000;
const USUAL_PORT = 6432;
const MARK = 'PGFLEET_DEMO_TEST';

test('as root, in a clone that only root can enter, npm start pools queries until Ctrl-C', async (t) => {
  if (serverAccount === null) return t.skip('needs root');
  const folder = await makeFolder('demo-root');
  t.after(() => removeFolder(folder));
  const closed = join(folder, 'closed');
  await mkdir(closed);
  await chmod(closed, 0o700);
  const clone = join(closed, 'clone');
  await makeClone(clone);
  await symlink(join(REPOSITORY, 'node_modules'), join(clone, 'node_modules'));
  assert.ok(!canServerRead([join(clone, 'package.json')]));

  const blocker = createServer();
  await new Promise<void>((resolve) => {
    // Whoever has the port already blocks it as well.
    blocker.once('error', () => resolve());
    blocker.listen(USUAL_PORT, '127.0.0.1', resolve);
  });
  t.after(() => blocker.close());
  const demo = await startDemo(t, clone, {}, join(folder, 'tmp'));
  assert.notEqual(demo.port, USUAL_PORT);
  assert.match(demo.output(), /port 6432 is taken/);
  assert.match(demo.output(), /account +nobody/);
  await poolsQueries(demo);
  // Ctrl-C at a terminal reaches npm and the demo alike.
  await endsCleanly(demo, () => process.kill(-demo.pid, 'SIGINT'));
});

test('as a plain user npm start pools queries until it is told to end', async (t) => {
  const folder = await makeFolder('demo-user');
  t.after(() => removeFolder(folder));
  const clone = join(folder, 'clone');
  await makeClone(clone);
  const modules = join(REPOSITORY, 'node_modules');
  if (canServerRead([join(modules, 'pg/package.json')]))
    await symlink(modules, join(clone, 'node_modules'));
  else await copyReadable(modules, clone);

  const demo = await startDemo(t, clone, serverAccount ?? {}, join(folder, 'tmp'));
  await poolsQueries(demo);
  await endsCleanly(demo, () => process.kill(demo.pid, 'SIGTERM'));
});

interface RunningDemo {
  readonly child: ChildProcess;
  readonly pid: number;
  readonly port: number;
  readonly mark: string;
  readonly temporary: string;
  output(): string;
}

/** What a clone has, without node_modules. */
async function makeClone(clone: string): Promise<void> {
  await mkdir(clone, { recursive: true });
  for (const part of ['bench', 'bin', 'package.json', 'src', 'test']) {
    await copyReadable(join(REPOSITORY, part), clone);
  }
}

/** `npm start` as `account`, with an own folder for temporary files, up to its last line. */
async function startDemo(
  t: TestContext,
  clone: string,
  account: { uid?: number; gid?: number },
  temporary: string,
): Promise<RunningDemo> {
  await mkdir(temporary);
  await giveToServer(temporary);
  const mark = randomBytes(8).toString('hex');
  const own = Object.entries(process.env).filter(
    ([name]) => !/^(?:npm_|NODE_|PGFLEET_TEST_FOLDER$)/.test(name),
  );
  const env = {
    ...Object.fromEntries(own),
    HOME: temporary,
    TMPDIR: temporary,
    [MARK]: mark,
    npm_config_update_notifier: 'false',
    npm_config_cache: join(clone, '..', 'npm-cache'),
  };
  const child = spawn('npm', ['start'], { ...account, cwd: clone, env, detached: true });
  t.after(() => {
    for (const { pid } of processesWith(MARK, mark)) signalIfRunning(pid, 'SIGKILL');
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  await until('the demo is up', () => output.includes('Ctrl-C ends all of it') || hasEnded(child), {
    deadlineMs: START_MS,
  }).catch((error: unknown) => {
    throw new Error(`npm start said:\n${output}`, { cause: error });
  });
  assert.ok(!hasEnded(child) && child.pid !== undefined, output);
  const port = Number(/psql 'postgres:\/\/demo:demo@127\.0\.0\.1:(\d+)\/demo'/.exec(output)?.[1]);
  return { child, pid: child.pid, port, mark, temporary, output: () => output };
}

/** Runs queries through the printed address; the printed pids are running workers. */
async function poolsQueries(demo: RunningDemo): Promise<void> {
  const workers = /worker pids +([\d ]+\d)/.exec(demo.output())?.[1]?.split(' ').map(Number) ?? [];
  assert.ok(workers.length > 0 && workers.every(isRunning), demo.output());
  const url = `postgres://demo:demo@127.0.0.1:${demo.port}/demo`;
  const clients = Array.from({ length: 8 }, () => new pg.Client({ connectionString: url }));
  for (const client of clients) await client.connect();
  for (const [index, client] of clients.entries()) {
    const { rows } = await client.query('SELECT $1::int AS n, current_user AS who', [index]);
    assert.deepEqual(rows, [{ n: index, who: 'demo' }]);
  }
  await Promise.all(clients.map((client) => client.end()));
}

/** After `end` the demo exits with 0 and leaves neither a process nor a file. */
async function endsCleanly(demo: RunningDemo, end: () => void): Promise<void> {
  end();
  await until('npm start ended', () => hasEnded(demo.child), { deadlineMs: END_MS });
  assert.equal(demo.child.exitCode, 0, demo.output());
  await until('all processes ended', () => processesWith(MARK, demo.mark).length === 0, {
    deadlineMs: 1_000,
  });
  const left = await readdir(demo.temporary);
  assert.deepEqual(
    left.filter((name) => name.startsWith('pgfleet')),
    [],
  );
}
