/** What a service manager passes in and is told: sockets, readiness, reloads and the end. */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { hasPgbouncer } from '../support/pgbouncer.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { preparePooler, sectionText, TestPooler } from '../support/pooler.ts';
import { freePort } from '../support/ports.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { reload } from '../support/reload.ts';
import { pgfleetFiles } from '../support/repository.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

const ACTIVATE = '/usr/bin/systemd-socket-activate';
/** Debian's is built with systemd, others may not be. */
const DEBIANS = '/usr/sbin/pgbouncer';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

/** Starts a pooler as systemd does at the first connect, with a TCP and a Unix socket of its own. */
async function activated(
  t: TestContext,
  program: string,
  args: readonly string[],
  isFleet: boolean,
) {
  const port = await freePort();
  const folder = await makeFolder('passed');
  const socket = join(folder, 'passed.sock');
  const passing = ['-E', 'PGFLEET_TEST_POOLER', '-l', `127.0.0.1:${port}`, '-l', socket];
  const command = {
    name: isFleet ? 'pgfleet' : 'PgBouncer',
    program: ACTIVATE,
    args: [...passing, program, ...args],
  };
  const pooler = await preparePooler(
    'passed',
    { postgres, folder, settings: { listen_port: port, listen_addr: '192.0.2.1' } },
    (own, where) => new TestPooler(own, where, command),
    (where) => (isFleet ? sectionText('fleet', { size: 2, runtime_dir: join(where, 'run') }) : ''),
  );
  t.after(() => pooler.stop());
  pooler.allowLog(/./);
  const start = pooler.start();
  const first = await until('somebody listens', () => WireClient.connect(pooler).catch(() => null));
  await start;
  return { pooler, socket, first };
}

async function serves({ pooler, socket, first }: Awaited<ReturnType<typeof activated>>) {
  await first.login();
  await first.query('SELECT 1');
  first.destroy();
  for (const address of [pooler, { path: socket }]) {
    const client = await WireClient.login(address);
    await client.query('SELECT 1');
    client.destroy();
  }
  const log = pooler.log();
  for (const fd of [3, 4]) assert.ok(log.includes(`socket passed from service manager (fd ${fd})`));
  assert.match(log, / WARNING sockets passed from service manager, cf_listen_addr ignored\n/);
  assert.match(log, / WARNING sockets passed from service manager, cf_unix_socket_dir ignored\n/);
  assert.doesNotMatch(log, /listening on/);
  assert.ok(!existsSync(pooler.unixPath));
}

test('sockets that systemd passes are used, by all workers, and the addresses are not', async (t) => {
  if (!requirePackage(t, 'systemd', existsSync(ACTIVATE))) return;
  const { node, program } = await pgfleetFiles();
  await serves(await activated(t, node, [program], true));
});

test('PgBouncer: sockets that systemd passes are used, and the addresses are not', async (t) => {
  if (!requirePackage(t, 'systemd', existsSync(ACTIVATE))) return;
  if (!requirePackage(t, 'pgbouncer', hasPgbouncer() && existsSync(DEBIANS))) return;
  await serves(await activated(t, DEBIANS, [], false));
});

test('systemd is told of the start, of each reload and its end, of statistics and of the stop', async (t) => {
  const folder = await makeFolder('notify');
  t.after(() => removeFolder(folder));
  const program = join(folder, 'systemd-notify');
  const file = join(folder, 'told');
  writeFileSync(program, `#!/bin/sh\necho "$@" >>${file}\n`);
  chmodSync(program, 0o755);
  writeFileSync(file, '');
  chmodSync(file, 0o666);
  const fleet = await startPgfleet({
    postgres,
    size: 2,
    settings: { stats_period: 1 },
    env: { NOTIFY_SOCKET: '/nowhere', PATH: `${folder}:${process.env['PATH']}` },
  });
  t.after(() => fleet.stop());
  const told = () => readFileSync(file, 'utf8').split('\n').slice(0, -1);
  const pid = `--pid=${fleet.pid}`;
  await until('it is ready', () => told()[0] === `${pid} READY=1`);
  const status = new RegExp(`^${pid} STATUS=stats: \\d+ xacts/s, .* wait \\d+ μs$`);
  await until('there is a status', () => told().some((line) => status.test(line)));
  await reload(fleet);
  const states = () => told().filter((line) => !line.includes('STATUS='));
  await until('it is ready again', () => states().length === 3);
  assert.match(states()[1]!, new RegExp(`^${pid} RELOADING=1 MONOTONIC_USEC=\\d+$`));
  assert.equal(states()[2], `${pid} READY=1`);
  fleet.signal('SIGINT');
  await fleet.ended();
  await until('it is told', () => states().length === 4);
  assert.equal(states()[3], `${pid} STOPPING=1`);
});

test('the server before which all this ran ends', () => postgres.dispose());
