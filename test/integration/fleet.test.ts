import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { watchBackends } from '../support/backend-watch.ts';
import { query, reportFields, textRows, typesOf } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet, workerOf } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { clientProgram, hasPostgres15 } from '../support/postgres-files.ts';
import { pgfleetFiles } from '../support/repository.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { type Address, WireClient, WireError } from '../support/wire-client.ts';

const run = promisify(execFile);

const SIZE = 4;
const IDLE_CLIENTS = 2_000;
/** Descriptors that a process needs besides those of the idle clients. */
const OTHER_FDS = 300;

const hasIpv6 = Object.values(networkInterfaces()).some((list) =>
  list?.some(({ address }) => address === '::1'),
);

async function ask(client: WireClient): Promise<void> {
  assert.equal(typesOf(await client.query('SELECT 1', 20_000)), 'T D C Z:I');
}

/** Runs one query after the other until `stop`; counts them, and keeps the first error. */
class Traffic {
  count = 0;
  #isStopped = false;
  readonly #loops: Promise<void>;

  constructor(clients: readonly WireClient[]) {
    this.#loops = Promise.all(clients.map((client) => this.#loop(client))).then(() => undefined);
    this.#loops.catch(() => undefined);
  }

  /** Ends it; throws what has gone wrong. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#loops;
  }

  async #loop(client: WireClient): Promise<void> {
    while (!this.#isStopped) {
      await ask(client);
      this.count++;
      await sleep(1);
    }
  }
}

for (const version of [15, 18] as const) {
  test(`a fleet of 4 before PostgreSQL ${version}: addresses, pauses, 2,000 clients, a killed worker`, async (t) => {
    if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const postgres = await startPostgres({ version });
    t.after(() => postgres.dispose());
    const fleet = await startPgfleet({
      postgres,
      size: SIZE,
      settings: {
        listen_addr: `127.0.0.1,127.0.0.2${hasIpv6 ? ',::1' : ''}`,
        default_pool_size: 10,
        max_client_conn: 6_000,
        log_connections: 0,
        log_disconnections: 0,
      },
    });
    t.after(() => fleet.stop());

    await t.test('`pgfleet check` says ok, or names every problem with file and line', async () => {
      await checksFiles(fleet);
    });
    await t.test('every address and the Unix socket serve psql, pg and every worker', async (t) => {
      await usesAddresses(t, fleet);
    });
    await t.test('SIGUSR1 and SIGUSR2 pause and resume traffic without an error', async () => {
      await pausesAndResumes(postgres, fleet);
    });
    await t.test(
      '2,000 idle clients share 10 servers, and a killed worker is replaced',
      async (t) => {
        await holdsManyClients(t, postgres, fleet);
      },
    );
  });
}

async function checksFiles(fleet: TestPgfleet): Promise<void> {
  const { node, program } = await pgfleetFiles();
  const check = (file: string) => run(node, [program, 'check', file]);
  assert.equal((await check(fleet.configFile)).stdout, `${fleet.configFile}: ok\n`);
  const file = join(fleet.folder, 'broken.ini');
  await writeFile(file, '[fleet]\nsize = -1\n[pgbouncer]\nlisten_port = 70000\nnone = 1\n');
  await assert.rejects(check(file), (error: Error & { code?: number; stdout?: string }) => {
    assert.equal(error.code, 1);
    const found = (error.stdout ?? '').replaceAll(file, 'FILE').split('\n');
    const expected = [/^FILE:2: size: ./, /^FILE:4: listen_port: ./, /^FILE:5: none: ./, /^$/];
    assert.equal(found.length, expected.length, error.stdout);
    for (const [i, pattern] of expected.entries()) assert.match(found[i]!, pattern);
    return true;
  });
}

async function usesAddresses(t: TestContext, fleet: TestPgfleet): Promise<void> {
  const { port } = fleet;
  const hosts = ['127.0.0.1', '127.0.0.2', ...(hasIpv6 ? ['::1'] : [])];
  for (const host of [...hosts, fleet.unixDir]) {
    const client = await fleet.client({ host });
    const { rows } = await client.query('SELECT current_user AS name');
    assert.deepEqual(rows, [{ name: 'app' }]);
    await client.end();
    const isUnix = host === fleet.unixDir;
    const address: Address = isUnix ? { path: fleet.unixPath } : { host, port };
    // All at once, because an idle fleet serves Unix clients from whichever worker wakes first.
    const logins = Array.from({ length: isUnix ? 200 : 100 }, () => WireClient.login(address));
    const clients = await Promise.all(logins);
    const workers = new Set(clients.map(workerOf));
    if (!isUnix) assert.deepEqual([...workers].sort(), [0, 1, 2, 3], host);
    await Promise.all(clients.map((each) => each.end()));
  }
  const psql = clientProgram('psql');
  if (!requirePackage(t, 'postgresql-15', psql !== null)) return;
  for (const host of [...hosts, fleet.unixDir]) {
    const args = ['-XAtq', '-h', host, '-p', String(port), '-U', 'app', '-c', 'SELECT 6*7', 'app'];
    assert.equal((await run(psql!, args)).stdout, '42\n', host);
  }
}

async function pausesAndResumes(postgres: TestPostgres, fleet: TestPgfleet): Promise<void> {
  const clients = await Promise.all(Array.from({ length: 40 }, () => WireClient.login(fleet)));
  const traffic = new Traffic(clients);
  for (let round = 0; round < 3; round++) {
    const before = traffic.count;
    await until('queries run', () => traffic.count > before + 100);
    fleet.signal('SIGUSR1');
    await until('all servers are closed', async () => {
      return (await postgres.backends({ user: 'app' })).length === 0;
    });
    const paused = traffic.count;
    const newcomer = WireClient.login(fleet);
    await sleep(100);
    assert.equal(traffic.count, paused);
    fleet.signal('SIGUSR2');
    await until('queries run again', () => traffic.count > paused + 100);
    const late = await newcomer;
    await ask(late);
    await late.end();
  }
  await traffic.stop();
  await Promise.all(clients.map((client) => client.end()));
}

async function holdsManyClients(
  t: TestContext,
  postgres: TestPostgres,
  fleet: TestPgfleet,
): Promise<void> {
  const limit = Number(
    /^Max open files\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1],
  );
  if (limit < IDLE_CLIENTS + OTHER_FDS) {
    t.skip(`needs ${IDLE_CLIENTS + OTHER_FDS} open files (ulimit -n), and ${limit} are allowed`);
    return;
  }
  const watch = await watchBackends(postgres);
  const clients: WireClient[] = [];
  while (clients.length < IDLE_CLIENTS) {
    const logins = Array.from({ length: 100 }, () => WireClient.login(fleet));
    clients.push(...(await Promise.all(logins)));
  }
  await Promise.all(clients.map(ask));
  const lists = await fleet.console('SHOW LISTS');
  const used = lists.find(({ list }) => list === 'used_clients');
  assert.equal(Number(used?.['items']), IDLE_CLIENTS + 1);
  assert.equal((await fleet.console('SHOW CLIENTS')).length, IDLE_CLIENTS + 1);
  const peaks = await watch.stop();
  assert.equal(peaks.all, 10);
  await losesWorker(fleet, clients);
  await Promise.all(clients.filter(({ isClosed }) => !isClosed).map((client) => client.end()));
}

/** Kills one worker while the clients of the others have queries run. */
async function losesWorker(fleet: TestPgfleet, clients: readonly WireClient[]): Promise<void> {
  const workers = fleet.workers();
  const [, id, pid] = /worker (2) started \(pid (\d+)\)/.exec(fleet.log()) ?? [];
  const victim = Number(pid);
  assert.ok(workers.includes(victim));
  const lost = clients.filter((client) => workerOf(client) === Number(id));
  const kept = clients.filter((client) => workerOf(client) !== Number(id));
  assert.ok(lost.length > 0 && kept.length > 0);

  const traffic = new Traffic(kept.slice(0, 30));
  const before = traffic.count;
  process.kill(victim, 'SIGKILL');
  const newcomers = await Promise.all(Array.from({ length: 60 }, () => WireClient.login(fleet)));
  await fleet.workersAre(SIZE, [victim]);
  await Promise.all(newcomers.map(ask));
  const [, ms] = await until('the log tells of the new worker', () =>
    /worker 2 restarted \(pid \d+, attempt 1, after (\d+)ms\)/.exec(fleet.log()),
  );
  // Two seconds on a machine with nothing else to do.
  assert.ok(Number(ms) < 10_000, `it took ${ms} ms`);
  assert.match(fleet.log(), new RegExp(`WARNING worker 2 died: signal SIGKILL \\(pid ${pid}, `));
  await traffic.stop();
  assert.ok(traffic.count > before + 30);

  await until("the killed worker's clients are cut", () => lost.every(({ isClosed }) => isClosed));
  assert.ok(kept.every(({ isClosed }) => !isClosed));
  await Promise.all(kept.map(ask));
  const later = await Promise.all(Array.from({ length: 60 }, () => WireClient.login(fleet)));
  assert.ok([...newcomers, ...later].some((client) => workerOf(client) === 2));
  await Promise.all([...newcomers, ...later].map((client) => client.end()));
}

test('SIGTERM waits for the clients, who are served until they leave', async (t) => {
  const { fleet } = await startSmall(t);
  const clients = await Promise.all(Array.from({ length: 10 }, () => WireClient.login(fleet)));
  const busy = await WireClient.login(fleet);
  await busy.query('BEGIN');
  fleet.signal('SIGTERM');
  await until('TCP connections are refused', () => isRefused(fleet));
  await assert.rejects(
    WireClient.login({ path: fleet.unixPath }),
    (error: unknown) => error instanceof WireError && error.text === 'pooler is shutting down',
  );
  await Promise.all(clients.map(ask));
  assert.equal(typesOf(await busy.query('COMMIT')), 'C Z:I');
  await busy.end();
  await Promise.all(clients.slice(1).map((client) => client.end()));
  await sleep(700); // two rounds of what the workers do by the clock
  assert.ok(!fleet.hasEnded, 'one idle client keeps the fleet alive');
  await ask(clients[0]!);
  await clients[0]!.end();
  assert.equal(await fleet.ended(), 0);
  assert.match(fleet.log(), / LOG client connections dropped, exiting/);
});

test('SIGINT lets transactions end, and refuses clients that wait or come to wait', async (t) => {
  const { postgres, fleet } = await startSmall(t, { default_pool_size: 1 });
  const busy = await WireClient.login(fleet);
  await busy.query('BEGIN');
  const idle = await WireClient.login(fleet);
  const waiting = await WireClient.login(fleet);
  waiting.send(query('SELECT 1'));
  await until('a client waits', async () => {
    const pools = await fleet.console('SHOW POOLS');
    return Number(pools.find(({ database }) => database === 'app')?.['cl_waiting']) === 1;
  });
  fleet.signal('SIGINT');
  assert.equal(await lastWords(waiting), 'FATAL 08P01 server shutting down');
  idle.send(query('SELECT 1'));
  assert.equal(await lastWords(idle), 'FATAL 08P01 server shutting down');
  await until('TCP connections are refused', () => isRefused(fleet));
  assert.equal(textRows(await busy.query("SELECT 'still here'"))[0]?.[0], 'still here');
  assert.ok(!fleet.hasEnded);
  assert.equal(typesOf(await busy.query('COMMIT')), 'C Z:I');
  assert.equal(await fleet.ended(), 0);
  assert.equal((await postgres.backends({ user: 'app' })).length, 0);
  assert.match(fleet.log(), / LOG server connections dropped, exiting/);
});

test('SIGQUIT ends everything at once, without a word to the clients', async (t) => {
  const { postgres, fleet } = await startSmall(t);
  const clients = await Promise.all(Array.from({ length: 10 }, () => WireClient.login(fleet)));
  const busy = await WireClient.login(fleet);
  await busy.query('BEGIN');
  const pids = [fleet.pid, ...fleet.workers()];
  fleet.signal('SIGQUIT');
  assert.equal(await fleet.ended(2_000), 0);
  for (const client of [...clients, busy]) assert.deepEqual(await client.untilClose(), []);
  assert.deepEqual(fleet.processes(), [], `of ${pids.join(', ')}`);
  await until('the servers are gone', async () => {
    return (await postgres.backends({ user: 'app' })).length === 0;
  });
});

async function startSmall(
  t: TestContext,
  settings: Readonly<Record<string, string | number>> = {},
): Promise<{ postgres: TestPostgres; fleet: TestPgfleet }> {
  const postgres = await startPostgres({ version: hasPostgres15() ? 15 : 18 });
  t.after(() => postgres.dispose());
  const size = settings['default_pool_size'] === undefined ? 4 : 1;
  const fleet = await startPgfleet({ postgres, size, settings });
  t.after(() => fleet.stop());
  return { postgres, fleet };
}

/** The error that comes before the other side closes. */
async function lastWords(client: WireClient): Promise<string> {
  const messages = await client.untilClose();
  assert.equal(typesOf(messages), 'E');
  const { S, C, M } = reportFields(messages[0]!.body);
  return `${S} ${C} ${M}`;
}

async function isRefused({ port }: TestPgfleet): Promise<boolean> {
  try {
    (await WireClient.connect({ port })).destroy();
    return false;
  } catch {
    return true;
  }
}
