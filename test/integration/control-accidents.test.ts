/** Workers and launchers that die, and consoles that leave, in the middle of a command. */
import assert from 'node:assert/strict';
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { beginLogins, ConsoleClient, loginUntilEnd, resultOf } from '../support/console.ts';
import { query, reportFields } from '../support/messages.ts';
import {
  loginInWorker,
  type PgfleetOptions,
  type TestPgfleet,
  workerOf,
} from '../support/pgfleet.ts';
import { signalIfRunning } from '../support/processes.ts';
import { line, rewrite } from '../support/reload.ts';
import { startTwoDatabases, type TwoDatabases } from '../support/two-databases.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

const SIZE = 4;
const PATIENT = { deadlineMs: 30_000 };

function start(t: TestContext, more: PgfleetOptions = {}): Promise<TwoDatabases> {
  return startTwoDatabases(t, SIZE, more);
}

/** Waits until every worker has the same state, `state`. */
async function allAre(console: ConsoleClient, state: string): Promise<void> {
  let seen: string[] = [];
  await until(
    `all are ${state}`,
    async () => {
      seen = await console.workerStates();
      return seen.join() === Array.from({ length: SIZE }, () => state).join();
    },
    PATIENT,
  ).catch((error: Error) => {
    throw new Error(`${error.message}, but ${seen.join(', ')}`);
  });
}

/** A command that a worker dies of, so to speak. */
interface Accident {
  readonly sql: string;
  /** Said and answered before. */
  readonly before?: readonly string[];
  /** The state of every worker afterwards, the new one included. */
  readonly after: string;
  /** Said and answered to be back where it began. */
  readonly undo?: readonly string[];
  /** The error, in which `W` stands for the worker. */
  readonly says?: string;
  /** The command has no line in the log by which it is seen to be under way. */
  readonly isSilent?: boolean;
}

const ACTIVE = 'active app:00 other:00';
const ACCIDENTS: readonly Accident[] = [
  { sql: 'PAUSE', after: 'paused app:00 other:00', undo: ['RESUME'] },
  { sql: 'PAUSE other', after: 'active app:00 other:10', undo: ['RESUME other'] },
  { sql: 'RESUME', before: ['PAUSE'], after: ACTIVE },
  { sql: 'RESUME other', before: ['PAUSE other'], after: ACTIVE },
  { sql: 'SUSPEND', after: 'suspended app:00 other:00', undo: ['RESUME'] },
  { sql: 'KILL other', after: 'active app:00 other:10', undo: ['RESUME other'] },
  { sql: 'DISABLE app', after: 'active app:01 other:00', undo: ['ENABLE app'] },
  { sql: 'ENABLE app', before: ['DISABLE app'], after: ACTIVE },
  { sql: 'RECONNECT', after: ACTIVE },
  { sql: 'WAIT_CLOSE app', after: ACTIVE },
  { sql: 'KILL_CLIENT 77777777', after: ACTIVE, isSilent: true },
  {
    sql: 'RELOAD',
    after: ACTIVE,
    says: 'ERROR F0000 RELOAD failed, see logs for additional details; worker (pid P) ended meanwhile',
  },
  {
    sql: 'SET query_wait_timeout = 44',
    after: ACTIVE,
    isSilent: true,
    says: 'ERROR 08P01 SET failed; worker (pid P) ended meanwhile',
  },
];

test('a worker killed in the middle of any command is named, and all others are in a known state', async (t) => {
  const { fleet } = await start(t, { settings: { query_wait_timeout: 33 } });
  fleet.allowLog(/worker \d died/, /ERROR worker \(pid \d+\) ended meanwhile/, /pooler error/);
  const console = await ConsoleClient.open(t, fleet);
  const own = workerOf(console.wire);
  const admin = { user: 'postgres', database: 'pgbouncer' };
  const second = new ConsoleClient(
    await loginInWorker(t, fleet, (worker) => worker === own, admin),
  );
  for (const [i, accident] of ACCIDENTS.entries()) {
    const { sql, before = [], undo = [], after, says, isSilent = false } = accident;
    await t.test(sql, async () => {
      for (const one of before) assert.equal(await console.run(one), one.split(' ')[0]);
      const victim = (own + 1 + (i % (SIZE - 1))) % SIZE;
      const pid = fleet.workerPid(victim);
      await rewrite(fleet, line('pgbouncer', 'query_wait_timeout', 44));
      process.kill(pid, 'SIGSTOP');
      const logged = fleet.log().length;
      console.wire.send(query(sql));
      if (isSilent) await launcherHasRead(fleet, second);
      else await until('it is under way', () => fleet.log().includes('command issued', logged));
      process.kill(pid, 'SIGKILL');
      const answer = await console.wire.untilReady(PATIENT.deadlineMs);
      const { S, C, M, D } = reportFields(answer.find(({ type }) => type === 'E')!.body);
      const word = sql.split(' ')[0];
      const expected =
        says?.replace('P)', `${pid})`) ??
        `ERROR 08P01 worker ${victim} died before ${word} was done there; all others have done it`;
      assert.equal([`${S} ${C} ${M}`, ...(D === undefined ? [] : [D])].join('; '), expected);
      await allAre(console, after);
      const settings = await console.rows('SHOW CONFIG BY PROCESS');
      const values = settings.filter(({ key }) => key === 'query_wait_timeout');
      assert.deepEqual(new Set(values.map(({ value }) => value)), new Set(['33']));
      for (const one of undo) assert.equal(await console.run(one), one.split(' ')[0]);
      await allAre(console, ACTIVE);
    });
  }
});

/**
 * Waits until the launcher has read what the console's worker had to say before: that worker answers
 * another session first, and then the launcher two signals, each with a line of its log.
 */
async function launcherHasRead(fleet: TestPgfleet, sameWorker: ConsoleClient): Promise<void> {
  await sameWorker.run('SHOW VERSION');
  const count = (): number => fleet.log().split('got SIGUSR2, but not paused/suspended').length;
  for (let turn = 0; turn < 2; turn++) {
    const before = count();
    fleet.signal('SIGUSR2');
    await until('the signal is heard', () => count() > before);
  }
}

test('KILL that cannot ask every worker what is in use names the silent one and does nothing', async (t) => {
  const { fleet } = await start(t);
  const console = await ConsoleClient.open(t, fleet);
  const silent = (workerOf(console.wire) + 1) % SIZE;
  const pid = fleet.workerPid(silent);
  process.kill(pid, 'SIGSTOP');
  const answer = await console.run('KILL');
  process.kill(pid, 'SIGCONT');
  assert.match(answer, new RegExp(`^ERROR 08P01 no answer from worker ${silent} `));
  await allAre(console, ACTIVE);
});

test('what a console asked for is done in the whole fleet although its own worker dies', async (t) => {
  const { fleet } = await start(t);
  fleet.allowLog(/worker \d died/);
  const console = await ConsoleClient.open(t, fleet);
  const own = workerOf(console.wire);
  const admin = { user: 'postgres', database: 'pgbouncer' };
  const asker = new ConsoleClient(await loginInWorker(t, fleet, (id) => id !== own, admin));
  const client = await loginInWorker(t, fleet, (id) => id === own);
  await client.query('BEGIN');
  asker.begin('PAUSE');
  await asker.isPending();
  process.kill(fleet.workerPid(workerOf(asker.wire)), 'SIGKILL');
  await asker.wire.untilClose();
  await allAre(console, 'paused app:00 other:00');
  assert.equal(await resultOf(client, 'SELECT 1'), '1');
  assert.equal(await console.run('RESUME'), 'RESUME');
  await client.query('COMMIT');
  await allAre(console, ACTIVE);
});

test('a worker that is being started when RESUME comes is not left paused', async (t) => {
  const { fleet } = await start(t);
  fleet.allowLog(/worker \d died/);
  const console = await ConsoleClient.open(t, fleet);
  const own = workerOf(console.wire);
  const [victim, silent] = [(own + 1) % SIZE, (own + 2) % SIZE];
  assert.equal(await console.run('PAUSE'), 'PAUSE');
  // The new one asks all others for what they know before it accepts clients, and waits for this one.
  const pid = fleet.workerPid(silent);
  process.kill(pid, 'SIGSTOP');
  const socket = join(fleet.folder, 'run', `worker-${victim}.sock`);
  const { ino } = statSync(socket);
  process.kill(fleet.workerPid(victim), 'SIGKILL');
  await until('the new one has its start', () => statSync(socket).ino !== ino, { everyMs: 1 });
  console.begin('RESUME');
  await until('it is under way', () => fleet.log().includes('RESUME command issued'));
  process.kill(pid, 'SIGCONT');
  assert.equal(await console.answer(), 'RESUME');
  await allAre(console, ACTIVE);
});

test('a worker that dies during a PAUSE is named, and the one in its place is paused too', async (t) => {
  const { fleet } = await start(t);
  fleet.allowLog(/worker \d died/);
  const console = await ConsoleClient.open(t, fleet);
  const own = workerOf(console.wire);
  const client = await loginInWorker(t, fleet, (worker) => worker !== own);
  const victim = workerOf(client);
  await client.query('BEGIN');
  console.begin('PAUSE');
  await console.isPending();
  process.kill(fleet.workerPid(victim), 'SIGKILL');
  assert.equal(
    await console.answer(),
    `ERROR 08P01 worker ${victim} died before PAUSE was done there; all others have done it`,
  );
  await allAre(console, 'paused app:00 other:00');
  const waiting = await beginLogins(t, fleet, 8);
  await until('all wait', async () => (await console.poolSum('app', 'cl_waiting')) === 8);
  assert.equal(await console.run('RESUME'), 'RESUME');
  for (const one of waiting) await one.until('D');
});

test('a worker that starts anew takes on what is paused and what is disabled', async (t) => {
  const { fleet } = await start(t, { databases: { app: '', other: '', '*': 'dbname=app' } });
  fleet.allowLog(/worker \d died/);
  const console = await ConsoleClient.open(t, fleet);
  for (const sql of ['PAUSE other', 'DISABLE app', 'DISABLE auto', 'KILL made']) {
    assert.equal(await console.run(sql), sql.split(' ')[0]);
  }
  process.kill(fleet.workerPid((workerOf(console.wire) + 1) % 4), 'SIGKILL');
  await until('all four tell the same', async () => {
    const rows = await console.rows('SHOW DATABASES BY PROCESS');
    const flags = (name: string) =>
      rows
        .filter((row) => row['name'] === name)
        .map(({ paused, disabled }) => `${paused}${disabled}`)
        .join(' ');
    return (
      flags('other') === '10 10 10 10' &&
      flags('app') === '01 01 01 01' &&
      flags('auto') === '01 01 01 01' &&
      flags('made') === '10 10 10 10'
    );
  });
  assert.equal(await console.run('RESUME other'), 'RESUME');
  assert.equal(await console.run('RESUME made'), 'RESUME');
  assert.equal(await console.run('ENABLE app'), 'ENABLE');
  const clients = Array.from({ length: 8 }, () => loginUntilEnd(t, fleet, { database: 'made' }));
  for (const client of await Promise.all(clients)) await client.end();
});

test('the console of a worker that outlives a suspended one is enough to stay suspended', async (t) => {
  const { fleet } = await start(t);
  const first = await ConsoleClient.open(t, fleet);
  const second = await ConsoleClient.open(t, fleet);
  assert.equal(await first.run('SUSPEND'), 'SUSPEND');
  await first.wire.end();
  await second.isPending();
  assert.equal(await second.state(), 'suspended');
  const login = WireClient.login(fleet);
  await second.wire.end();
  await (await login).end();
});

test('without a launcher control is refused by name, and SHOW goes on', async (t) => {
  const { fleet } = await start(t, { size: 2 });
  const console = await ConsoleClient.open(t, fleet);
  const client = await loginUntilEnd(t, fleet);
  const workers = fleet.workers();
  process.kill(fleet.pid, 'SIGKILL');
  await fleet.ended();
  await until('the worker knows', async () => {
    const answer = await console.run('DISABLE app');
    return /^ERROR 08P01 DISABLE is not possible now: the fleet's launcher does not run/.test(
      answer,
    );
  });
  assert.equal(await console.ofDatabase('app', 'disabled'), '0');
  assert.equal(await resultOf(client, 'SELECT 1'), '1');
  for (const pid of workers) signalIfRunning(pid, 'SIGKILL');
  // Another one in its place ends well.
  await fleet.start();
});
