import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import net from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import {
  cleanUp,
  EchoClient,
  type EchoFleet,
  freePort,
  isAlive,
  newFolder,
  startEchoFleet,
  startedEchoFleet,
  until,
} from '../support/echo-fleet.ts';

const SHAPE = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ \[\d+\] (FATAL|ERROR|WARNING|LOG) .+$/;
const hasIpv6 = Object.values(networkInterfaces()).some((list) =>
  list?.some(({ address }) => address === '::1'),
);

function connect(t: TestContext, to: net.NetConnectOpts): EchoClient {
  const client = new EchoClient(to);
  cleanUp(t, () => client.close());
  return client;
}

/** Connects until every worker of a fleet has a client. */
async function clientOfEach(t: TestContext, { port }: EchoFleet, size = 4): Promise<EchoClient[]> {
  const clients: EchoClient[] = [];
  for (let i = 0; i < 300 && Object.keys(clients).length < size; i++) {
    const client = connect(t, { host: '127.0.0.1', port });
    const { worker } = await client.who();
    if (clients[worker] === undefined) clients[worker] = client;
    else client.close();
  }
  assert.equal(Object.keys(clients).length, size, 'every worker gets clients');
  return clients;
}

async function assertGone(fleet: EchoFleet, pids: readonly number[]): Promise<void> {
  for (const pid of pids) assert.ok(!isAlive(pid), `worker ${pid} is left behind`);
  const left = readdirSync(fleet.folder).filter((name) => !/^(stderr|pgfleet\.ini)/.test(name));
  assert.deepEqual(left, []);
  assert.ok(await isRefused(fleet.port), 'the port is free');
}

async function isRefused(port: number): Promise<boolean> {
  const socket = net.connect(port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    return false;
  } catch {
    return true;
  } finally {
    socket.destroy();
  }
}

test('four workers share a port, and all of them get clients', async (t) => {
  const fleet = await startedEchoFleet(t);
  const clients = await clientOfEach(t, fleet);
  const pids = await Promise.all(clients.map(async (client) => (await client.who()).pid));
  assert.deepEqual(pids, fleet.workerPids());
  for (const line of fleet.lines()) assert.match(line, SHAPE);
  const words = fleet.lines().map((line) => line.split(/ LOG /)[1]!);
  const first = [
    'kernel file',
    'worker',
    'listening on',
    'each of 4',
    'fleet up: 4',
    'process up: PgBouncer 1.25.2 (pgfleet ',
  ];
  const places = first.map((text) => words.findIndex((line) => line.startsWith(text)));
  assert.deepEqual(
    places,
    [...places].sort((a, b) => a - b),
  );
  assert.ok(!places.includes(-1));
});

test('a killed worker is back within two seconds, the others and new clients notice nothing', async (t) => {
  const fleet = await startedEchoFleet(t);
  const clients = await clientOfEach(t, fleet);
  const victim = (await clients[2]!.who()).pid;
  const killedAt = Date.now();
  process.kill(victim, 'SIGKILL');
  const others = [0, 1, 3].map((id) => clients[id]!.ask('still here'));
  const arrivals = Array.from({ length: 40 }, () =>
    connect(t, { host: '127.0.0.1', port: fleet.port }),
  );
  const served = await Promise.all(arrivals.map((client) => client.who()));
  assert.deepEqual(await Promise.all(others), ['still here', 'still here', 'still here']);
  assert.ok(served.some(({ worker, pid }) => worker === 2 && pid !== victim));
  await fleet.waitFor(/ LOG worker 2 restarted \(pid \d+, attempt 1, after \d+ms\)/);
  assert.ok(Date.now() - killedAt < 2000);
  await fleet.waitFor(/ WARNING worker 2 died: signal SIGKILL \(pid \d+, age=\d+s/);
});

test('a worker that keeps dying is restarted after pauses that double', async (t) => {
  const fleet = await startedEchoFleet(t, { fleet: { size: 1 } });
  for (let attempt = 1; attempt <= 4; attempt++) {
    connect(t, { host: '127.0.0.1', port: fleet.port })
      .ask('crash')
      .catch(() => {});
    await fleet.waitFor(new RegExp(`worker 0 restarted .* attempt ${attempt},`));
  }
  const died = fleet.lines().filter((line) => line.includes('worker 0 died: exit code 3'));
  assert.equal(died.length, 4);
  const pauses = fleet
    .lines()
    .flatMap((line) => / after (\d+)ms/.exec(line)?.[1] ?? [])
    .map(Number);
  [0, 100, 200, 400].forEach((least, i) => {
    assert.ok(pauses[i]! >= least, `${pauses}`);
  });
});

for (const [signal, text] of [
  ['SIGTERM', 'got SIGTERM, shutting down, waiting for all clients disconnect'],
  ['SIGINT', 'got SIGINT, shutting down, waiting for all servers connections to be released'],
  ['SIGQUIT', 'got SIGQUIT, fast exit'],
] as const) {
  test(`${signal} ends the whole fleet with status 0 and leaves nothing behind`, async (t) => {
    const folder = newFolder(t);
    const fleet = await startedEchoFleet(t, {
      folder,
      settings: { unix_socket_dir: folder, pidfile: join(folder, 'pid') },
    });
    const pids = fleet.workerPids();
    assert.equal(readFileSync(join(folder, 'pid'), 'utf8'), `${fleet.child.pid}\n`);
    fleet.child.kill(signal);
    assert.equal(await fleet.ended(), 0);
    await fleet.waitFor(new RegExp(` LOG ${text}$`));
    await assertGone(fleet, pids);
  });
}

test('SIGTERM lets clients stay, refuses new ones, and ends when the last has left', async (t) => {
  const fleet = await startedEchoFleet(t);
  const clients = await clientOfEach(t, fleet);
  const pids = fleet.workerPids();
  fleet.child.kill('SIGTERM');
  await until(
    () => isRefused(fleet.port),
    () => 'a refused connect',
  );
  for (const client of clients) assert.equal(await client.ask('on'), 'on');
  for (const client of clients) client.close();
  assert.equal(await fleet.ended(), 0);
  await fleet.waitFor(/ LOG client connections dropped, exiting$/);
  await assertGone(fleet, pids);
});

test('a second SIGTERM ends the fleet at once', async (t) => {
  const fleet = await startedEchoFleet(t);
  await clientOfEach(t, fleet);
  const pids = fleet.workerPids();
  fleet.child.kill('SIGTERM');
  await fleet.waitFor(/waiting for all clients/);
  fleet.child.kill('SIGTERM');
  assert.equal(await fleet.ended(), 0);
  await fleet.waitFor(/ LOG got SIGTERM while shutting down, fast exit$/);
  assert.ok(!fleet.lines().some((line) => line.includes('dropped, exiting')));
  await assertGone(fleet, pids);
});

test('workers that do not obey are killed at a fast exit', async (t) => {
  const fleet = await startedEchoFleet(t, { mode: 'deaf', fleet: { size: 2 } });
  const pids = fleet.workerPids();
  fleet.child.kill('SIGQUIT');
  assert.equal(await fleet.ended(), 0);
  await fleet.waitFor(/ WARNING worker 1 does not end, killing it/);
  await assertGone(fleet, pids);
});

test('a signal during the start ends it with nothing left behind', async (t) => {
  const fleet = await startEchoFleet(t, { fleet: { size: 3 } });
  await fleet.waitFor(/ LOG worker \d started/);
  fleet.child.kill('SIGINT');
  assert.equal(await fleet.ended(), 0);
  await assertGone(fleet, fleet.workerPids());
});

test('when the launcher is killed the workers go on serving', async (t) => {
  const fleet = await startedEchoFleet(t);
  const clients = await clientOfEach(t, fleet);
  fleet.child.kill('SIGKILL');
  assert.equal(await fleet.ended(), 'SIGKILL');
  for (const client of clients) assert.equal(await client.ask('on'), 'on');
  assert.equal(await connect(t, { host: '127.0.0.1', port: fleet.port }).ask('new'), 'new');
});

test('a new launcher does not start beside the workers of one that was killed', async (t) => {
  const fleet = await startedEchoFleet(t, { fleet: { size: 1 } });
  const worker = net.createServer().listen(join(fleet.folder, 'run', 'worker-0.sock'));
  cleanUp(t, () => void worker.close());
  await once(worker, 'listening');
  fleet.child.kill('SIGKILL');
  await fleet.ended();
  const second = await startEchoFleet(t, { folder: fleet.folder, fleet: { size: 1 } });
  assert.equal(await second.ended(), 1);
  await second.waitFor(/ FATAL workers of an earlier instance still run in runtime_dir /);
});

test('a worker that hangs is spoken of, killed and replaced', async (t) => {
  const fleet = await startedEchoFleet(t, { fleet: { size: 2, worker_stall_timeout: 4 } });
  const [, victim] = fleet.workerPids();
  process.kill(victim!, 'SIGSTOP');
  await fleet.waitFor(/ WARNING worker 1 not responding for 3s$/);
  await fleet.waitFor(/ WARNING worker 1 died: signal SIGKILL /);
  await fleet.waitFor(/ LOG worker 1 restarted /);
  assert.ok(!fleet.lines().some((line) => line.includes('worker 0 not responding')));
});

test('a worker that answers again in time stays', async (t) => {
  const fleet = await startedEchoFleet(t, { fleet: { size: 1, worker_stall_timeout: 60 } });
  const [pid] = fleet.workerPids();
  process.kill(pid!, 'SIGSTOP');
  await fleet.waitFor(/ WARNING worker 0 not responding for 3s$/);
  process.kill(pid!, 'SIGCONT');
  await fleet.waitFor(/ LOG worker 0 responding again$/);
  assert.equal((await connect(t, { host: '127.0.0.1', port: fleet.port }).who()).pid, pid);
});

test('a client that is passed on loses no byte', async (t) => {
  const fleet = await startedEchoFleet(t, { mode: 'pass', fleet: { size: 2 } });
  const text = `${'0123456789'.repeat(20_000)}`;
  for (let i = 0; i < 20; i++) {
    const client = connect(t, { host: '127.0.0.1', port: fleet.port });
    assert.equal(await client.ask(text), text);
    assert.equal((await client.who()).worker, 1, 'worker 0 passes all of its clients on');
  }
});

test('a client whose target stays down goes to nobody twice and is closed', async (t) => {
  const fleet = await startedEchoFleet(t, {
    mode: 'pass',
    settings: { unix_socket_dir: '' },
    fleet: { size: 2, worker_stall_timeout: 0 },
  });
  // Worker 1 keeps dying, so that its place is empty for longer than a client waits.
  for (let attempt = 1; attempt <= 7; attempt++) {
    process.kill(fleet.workerPids()[1]!, 'SIGKILL');
    if (attempt < 7) await fleet.waitFor(new RegExp(`worker 1 restarted .*attempt ${attempt},`));
  }
  const clients = Array.from({ length: 16 }, () =>
    connect(t, { host: '127.0.0.1', port: fleet.port }),
  );
  await fleet.waitFor(/ WARNING a client is closed because no worker is left to take it$/);
  await until(
    () => clients.some(({ socket }) => socket.destroyed),
    () => 'a closed client',
  );
});

test('a port that another process has is refused in words of PgBouncer', async (t) => {
  const other = net.createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  cleanUp(t, () => void other.close());
  const { port } = other.address() as net.AddressInfo;
  const fleet = await startEchoFleet(t, { settings: { listen_port: port } });
  assert.equal(await fleet.ended(), 1);
  await fleet.waitFor(
    new RegExp(
      ` WARNING cannot listen on 127\\.0\\.0\\.1:${port}: bind\\(\\): Address already in use$`,
    ),
  );
  await fleet.waitFor(/ FATAL failed to listen on any address in listen_addr list: 127\.0\.0\.1$/);
});

test('with so_reuseport two fleets share a port, without it the second is refused', async (t) => {
  const port = await freePort();
  const settings = { listen_port: port, so_reuseport: true };
  const first = await startedEchoFleet(t, { settings, fleet: { size: 1 } });
  const second = await startedEchoFleet(t, { settings, fleet: { size: 1 } });
  assert.notEqual(first.workerPids()[0], second.workerPids()[0]);
  const third = await startEchoFleet(t, { settings: { listen_port: port } });
  assert.equal(await third.ended(), 1);
  await third.waitFor(/ FATAL failed to listen on any address/);
});

test('a second fleet on the same configuration is refused, whatever it would collide on', async (t) => {
  const folder = newFolder(t);
  const pidfile = join(folder, 'pid');
  const settings = { unix_socket_dir: folder, pidfile, so_reuseport: true };
  const first = await startedEchoFleet(t, { folder, settings, fleet: { size: 1 } });
  const cases = [
    [{}, / FATAL unix socket is in use, cannot continue$/],
    [{ unix_socket_dir: '' }, / FATAL pidfile '.*' exists, another instance running\?$/],
    [
      { unix_socket_dir: '', pidfile: '' },
      / FATAL runtime_dir .* is in use, another instance running\?$/,
    ],
  ] as const;
  for (const [changed, text] of cases) {
    const all = { ...settings, listen_port: first.port, ...changed };
    const second = await startEchoFleet(t, { folder, settings: all });
    assert.equal(await second.ended(), 1);
    await second.waitFor(text);
  }
  assert.equal(await connect(t, { host: '127.0.0.1', port: first.port }).ask('on'), 'on');
  assert.ok(existsSync(pidfile));
});

test('what a killed launcher and its workers left behind is replaced', async (t) => {
  const folder = newFolder(t);
  const settings = { unix_socket_dir: folder, pidfile: join(folder, 'pid') };
  const first = await startedEchoFleet(t, { folder, settings, fleet: { size: 1 } });
  const pids = first.workerPids();
  first.child.kill('SIGKILL');
  await first.ended();
  for (const pid of pids) process.kill(pid, 'SIGKILL');
  await until(
    () => !pids.some(isAlive),
    () => 'dead workers',
  );
  const again = { ...settings, listen_port: first.port };
  const second = await startedEchoFleet(t, { folder, settings: again, fleet: { size: 1 } });
  await second.waitFor(/ LOG stale pidfile, removing$/);
  const path = join(folder, `.s.PGSQL.${first.port}`);
  assert.equal(await connect(t, { path }).ask('on'), 'on');
  second.child.kill('SIGINT');
  assert.equal(await second.ended(), 0);
});

test('several addresses, IPv4 and IPv6, each reach every worker', async (t) => {
  if (!hasIpv6) return t.skip('this machine has no ::1');
  const fleet = await startedEchoFleet(t, {
    settings: { listen_addr: ' 127.0.0.1 ,, ::1, 127.0.0.2' },
    fleet: { size: 2 },
  });
  for (const host of ['127.0.0.1', '::1', '127.0.0.2']) {
    const seen = new Set<number>();
    for (let i = 0; i < 100 && seen.size < 2; i++) {
      seen.add((await connect(t, { host, port: fleet.port }).who()).worker);
    }
    assert.equal(seen.size, 2);
  }
  const listening = fleet
    .lines()
    .flatMap((line) => / LOG listening on (.*)$/.exec(line)?.[1] ?? []);
  const { port } = fleet;
  assert.deepEqual(listening, [`127.0.0.1:${port}`, `[::1]:${port}`, `127.0.0.2:${port}`]);
});

test('an address that cannot be bound is a warning while another works', async (t) => {
  const fleet = await startedEchoFleet(t, {
    settings: { listen_addr: '192.0.2.1,127.0.0.1,127.0.0.1' },
    fleet: { size: 1 },
  });
  await fleet.waitFor(
    / WARNING cannot listen on 192\.0\.2\.1:\d+: bind\(\): Cannot assign requested address$/,
  );
  await fleet.waitFor(
    / WARNING cannot listen on 127\.0\.0\.1:\d+: bind\(\): Address already in use$/,
  );
});

test('a name is resolved, and one that does not exist stops the start', async (t) => {
  const fleet = await startedEchoFleet(t, {
    settings: { listen_addr: 'localhost' },
    fleet: { size: 1 },
  });
  await fleet.waitFor(/ LOG listening on (127\.0\.0\.1|\[::1\]):\d+$/);
  const wrong = await startEchoFleet(t, { settings: { listen_addr: 'no-such-name.invalid' } });
  assert.equal(await wrong.ended(), 1);
  await wrong.waitFor(/ FATAL getaddrinfo\('no-such-name\.invalid', '\d+'\) = .+ \[-\d\]$/);
});

test('without any address there is nowhere to listen on', async (t) => {
  const fleet = await startEchoFleet(t, { settings: { listen_addr: '' } });
  assert.equal(await fleet.ended(), 1);
  await fleet.waitFor(/ FATAL nowhere to listen on$/);
});

test('the workers share one Unix socket with the mode that the settings say', async (t) => {
  const folder = newFolder(t);
  const settings = { listen_addr: '', unix_socket_dir: folder, unix_socket_mode: 0o750 };
  const fleet = await startedEchoFleet(t, { folder, settings, fleet: { size: 2 } });
  const path = join(folder, `.s.PGSQL.${fleet.port}`);
  assert.equal(statSync(path).mode & 0o7777, 0o750);
  const seen = new Set<number>();
  await until(
    async () => {
      seen.add((await connect(t, { path }).who()).worker);
      return seen.size === 2;
    },
    () => 'a client of each worker',
  );
  // What comes in while a worker is down is served by the other or by its successor.
  for (const pid of fleet.workerPids()) process.kill(pid, 'SIGKILL');
  assert.equal(await connect(t, { path }).ask('on'), 'on');
});

test('an abstract Unix socket is served and leaves no file', async (t) => {
  const folder = newFolder(t);
  const settings = { listen_addr: '', unix_socket_dir: `@${folder}` };
  const fleet = await startedEchoFleet(t, { folder, settings, fleet: { size: 2 } });
  await fleet.waitFor(new RegExp(` LOG listening on unix:@${folder}/\\.s\\.PGSQL\\.\\d+$`));
  const path = `\0${folder}/.s.PGSQL.${fleet.port}`;
  assert.equal(await connect(t, { path }).ask('on'), 'on');
  const second = await startEchoFleet(t, {
    settings: { ...settings, listen_port: fleet.port },
  });
  assert.equal(await second.ended(), 1);
  await second.waitFor(/ FATAL unix socket is in use, cannot continue$/);
});

test('a lock file beside the Unix socket is respected', async (t) => {
  const folder = newFolder(t);
  const port = await freePort();
  writeFileSync(join(folder, `.s.PGSQL.${port}.lock`), '');
  const settings = { unix_socket_dir: folder, listen_port: port };
  const fleet = await startEchoFleet(t, { folder, settings });
  assert.equal(await fleet.ended(), 1);
  await fleet.waitFor(new RegExp(` FATAL unix port ${port} is in use$`));
});

test('a group that does not exist stops the start and leaves no socket', async (t) => {
  const folder = newFolder(t);
  const settings = { unix_socket_dir: folder, unix_socket_group: 'no-such-group' };
  const fleet = await startEchoFleet(t, { folder, settings });
  assert.equal(await fleet.ended(), 1);
  await fleet.waitFor(/ FATAL could not find group 'no-such-group': /);
  await assertGone(fleet, []);
});

test('a runtime folder that is a link or open to others stops the start and is named', async (t) => {
  const folder = newFolder(t);
  mkdirSync(join(folder, 'open'), { mode: 0o755 });
  symlinkSync(newFolder(t), join(folder, 'link'));
  for (const [name, why] of [
    ['open', 'is open to others, its mode must be 0700'],
    ['link', 'is not a folder'],
  ]) {
    const path = join(folder, name!);
    const fleet = await startEchoFleet(t, { fleet: { runtime_dir: path } });
    assert.equal(await fleet.ended(), 1);
    await fleet.waitFor(new RegExp(` FATAL runtime_dir ${path} ${why}$`));
  }
});

for (const [mode, text] of [
  ['refuse', 'the echo worker refuses'],
  ['die', 'worker \\d died while starting: exit code 7'],
] as const) {
  test(`workers that ${mode} at the first start end it with status 1 and the reason`, async (t) => {
    const fleet = await startEchoFleet(t, { mode });
    assert.equal(await fleet.ended(), 1);
    await fleet.waitFor(new RegExp(` FATAL ${text}$`));
    await assertGone(fleet, []);
  });
}

test('pause and resume reach the workers, also one that is started while paused', async (t) => {
  const fleet = await startedEchoFleet(t, { fleet: { size: 1 } });
  fleet.child.kill('SIGUSR1');
  await fleet.waitFor(/ LOG got SIGUSR1, pausing all activity$/);
  process.kill(fleet.workerPids()[0]!, 'SIGKILL');
  await fleet.waitFor(/ LOG worker 0 restarted /);
  const client = connect(t, { host: '127.0.0.1', port: fleet.port });
  assert.equal(await client.ask('state'), '{"mode":"paused","paused":[],"disabled":[]}');
  fleet.child.kill('SIGUSR1');
  await fleet.waitFor(/ LOG got SIGUSR1, but already paused\/suspended$/);
  fleet.child.kill('SIGUSR2');
  await fleet.waitFor(/ LOG got SIGUSR2, continuing from PAUSE$/);
});

test('where Node cannot bind without listening the workers bind and share the port themselves', async (t) => {
  const fleet = await startedEchoFleet(t, { withoutBind: true, fleet: { size: 2 } });
  await clientOfEach(t, fleet, 2);
  const pids = fleet.workerPids();
  const second = await startEchoFleet(t, {
    withoutBind: true,
    settings: { listen_port: fleet.port },
  });
  assert.equal(await second.ended(), 1);
  await second.waitFor(/ WARNING cannot listen on .*: bind\(\): Address already in use$/);
  fleet.child.kill('SIGQUIT');
  assert.equal(await fleet.ended(), 0);
  await assertGone(fleet, pids);
});

test('a log file is opened anew on SIGHUP, by the launcher and by its workers alike', async (t) => {
  const folder = newFolder(t);
  const logfile = join(folder, 'stderr.log');
  const fleet = await startedEchoFleet(t, { folder, settings: { logfile }, fleet: { size: 1 } });
  const file = join(folder, 'pgfleet.ini');
  writeFileSync(file, `[pgbouncer]\nlogfile = ${logfile}\n`);
  renameSync(logfile, `${logfile}.1`);
  fleet.child.kill('SIGHUP');
  await until(
    () => existsSync(logfile),
    () => 'a new log file',
  );
  // What the load says is in the old file, what follows in the new one.
  assert.match(
    readFileSync(`${logfile}.1`, 'utf8'),
    / LOG got SIGHUP, re-reading config\n.* WARNING changed in the file but kept until a restart/,
  );
  fleet.child.kill('SIGUSR1');
  await fleet.waitFor(/ LOG got SIGUSR1/);
  assert.match(readFileSync(logfile, 'utf8'), /^[^\n]* LOG got SIGUSR1[^\n]*\n$/);
  const client = connect(t, { host: '127.0.0.1', port: fleet.port });
  await until(
    async () => (await client.ask('reopened')) === '1',
    () => 'a reopened log',
  );
});

test('the averages of all workers are one line of the launcher, each stats_period', async (t) => {
  const fleet = await startedEchoFleet(t, { settings: { stats_period: 1 }, fleet: { size: 3 } });
  const pattern = new RegExp(`\\[${fleet.child.pid}\\] LOG stats: \\d+ xacts/s, 0 queries/s, `);
  await until(
    () => fleet.lines().filter((line) => pattern.test(line)).length >= 2,
    () => 'two lines',
  );
  // Three workers with ten a second each, if the periods were exact.
  const [, second] = fleet.lines().flatMap((line) => /stats: (\d+) xacts/.exec(line)?.[1] ?? []);
  assert.ok(Number(second) > 15 && Number(second) <= 30, second);
});
