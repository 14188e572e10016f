import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CommandError, type ControlCommand } from '../../../src/admin/control.ts';
import { query, SYNC } from '../../../src/wire/encode.ts';
import { bind, execute, parse } from '../../support/messages.ts';
import {
  ask,
  config,
  database,
  fleet,
  type Message,
  pool,
  readTable,
  settle,
  worker,
} from './support.ts';

const types = (messages: readonly Message[]): string => messages.map(({ type }) => type).join('');

const NEEDED = 'ERROR 08P01 admin access needed';

const row = (name: string) => ({
  name,
  current_connections: 0,
  current_client_connections: 0,
  paused: false,
  disabled: false,
});

/** Two workers, the second of which knows `auto`; `app` has a line of its own. */
const twoWorkers = () =>
  fleet(
    [
      worker(0, { pools: [pool({ database: 'app' })] }),
      worker(1, { databases: [row('auto')], pools: [pool({ database: 'auto' })] }),
    ],
    { config: config({ databases: [database({ name: 'app' })] }) },
  );

const COMMANDS: readonly [string, ControlCommand, string][] = [
  ['PAUSE', { name: 'pause', database: null }, 'PAUSE'],
  ['pause "a-b"', { name: 'pause', database: 'a-b' }, 'PAUSE'],
  ['RESUME', { name: 'resume', database: null, isInUse: false }, 'RESUME'],
  ['RESUME app', { name: 'resume', database: 'app', isInUse: true }, 'RESUME'],
  ['RESUME auto', { name: 'resume', database: 'auto', isInUse: true }, 'RESUME'],
  ['RESUME none', { name: 'resume', database: 'none', isInUse: false }, 'RESUME'],
  ['SUSPEND', { name: 'suspend' }, 'SUSPEND'],
  ['DISABLE app', { name: 'disable', database: 'app' }, 'DISABLE'],
  ['ENABLE auto', { name: 'enable', database: 'auto', isInUse: true }, 'ENABLE'],
  ['KILL app', { name: 'kill', database: 'app', inUse: [] }, 'KILL'],
  ['KILL', { name: 'kill', database: null, inUse: ['app', 'pgbouncer', 'auto'] }, 'KILL'],
  ['KILL_CLIENT 12', { name: 'kill_client', id: 12 }, 'KILL_CLIENT'],
  ['KILL_CLIENT 12abc', { name: 'kill_client', id: 12 }, 'KILL_CLIENT'],
  ['RECONNECT', { name: 'reconnect', database: null }, 'RECONNECT'],
  ['RECONNECT app', { name: 'reconnect', database: 'app' }, 'RECONNECT'],
  ['WAIT_CLOSE app', { name: 'wait_close', database: 'app' }, 'WAIT_CLOSE'],
  ['RELOAD', { name: 'reload' }, 'RELOAD'],
  [
    "SET max_client_conn = '101'",
    { name: 'set', key: 'max_client_conn', value: '101' },
    'SET max_client_conn=101',
  ],
  ['set Nothing to x;', { name: 'set', key: 'Nothing', value: 'x' }, 'SET Nothing=x'],
  ['SHUTDOWN', { name: 'shutdown', mode: 'now' }, 'SHUTDOWN'],
  ['shutdown wait_for_clients', { name: 'shutdown', mode: 'wait_for_clients' }, 'SHUTDOWN'],
  ['SHUTDOWN "WAIT_FOR_SERVERS"', { name: 'shutdown', mode: 'wait_for_servers' }, 'SHUTDOWN'],
];

for (const [sql, command, tag] of COMMANDS) {
  test(`${sql} is asked of the launcher and answered when it has been done`, async () => {
    const given = twoWorkers();
    const session = given.open();
    session.send(query(sql));
    await settle();
    assert.deepEqual(
      given.control.asked.map((asked) => asked.command),
      [command],
    );
    assert.equal(types(session.take()), '');
    given.control.asked[0]!.done();
    await settle();
    const messages = session.take();
    assert.equal(types(messages), 'CZ');
    assert.equal(readTable(messages).tag, tag);
    assert.equal((await ask(given.open('stats'), sql)).error, NEEDED);
  });
}

for (const [sql, error] of [
  ['DISABLE', 'a database is required'],
  ['ENABLE', 'a database is required'],
  ['KILL_CLIENT', 'invalid client pointer supplied'],
  ['KILL_CLIENT x', 'invalid client pointer supplied'],
] as const) {
  test(`${sql} is refused without asking anybody`, async () => {
    const given = twoWorkers();
    assert.equal((await ask(given.open(), sql)).error, `ERROR 08P01 ${error}`);
    assert.equal((await ask(given.open('stats'), sql)).error, NEEDED);
    assert.equal(given.control.asked.length, 0);
  });
}

test('a refusal is an ERROR after which the session goes on', async () => {
  const given = twoWorkers();
  const session = given.open();
  session.send(query('RELOAD'));
  session.send(query('SHOW VERSION'));
  await settle();
  given.control.asked[0]!.fail(new CommandError('no', 'F0000', 'f.ini:3'));
  await settle();
  const messages = session.take();
  assert.equal(types(messages), 'EZTDCZ');
  assert.match(messages[0]!.body.toString(), /^SERROR\0CF0000\0Mno\0Df\.ini:3\0\0$/);
});

test('in the extended protocol a refusal leaves out what follows until Sync', async () => {
  const given = twoWorkers();
  const session = given.open();
  session.send(Buffer.concat([parse('', 'PAUSE'), bind({}), execute(), bind({}), execute(), SYNC]));
  await settle();
  assert.equal(types(session.take()), '12', 'the order of the protocol is kept');
  given.control.asked[0]!.fail(new CommandError('no'));
  await settle();
  assert.equal(types(session.take()), 'EZ');
  assert.equal(given.control.asked.length, 1);
});

test('what follows a PAUSE that waits is answered before it', async () => {
  const given = twoWorkers();
  const session = given.open();
  session.send(query('PAUSE'));
  session.send(query('SHOW VERSION'));
  session.send(query('WAIT_CLOSE'));
  await settle();
  assert.equal(types(session.take()), 'TDCZ');
  given.control.asked[1]!.done();
  await settle();
  assert.equal(readTable(session.take()).tag, 'WAIT_CLOSE');
  given.control.asked[0]!.done();
  await settle();
  assert.equal(readTable(session.take()).tag, 'PAUSE');
});

test('a session that asks for ever more waits is held up', async () => {
  const given = twoWorkers();
  const session = given.open();
  for (let i = 0; i < 20; i++) session.send(query('WAIT_CLOSE'));
  await settle();
  assert.equal(given.control.asked.length, 17);
  for (const { done } of given.control.asked) done();
  await settle();
  assert.equal(given.control.asked.length, 20);
});

test('a console that leaves says so to whoever works for it, and its place is free', async () => {
  const given = twoWorkers();
  const session = given.open();
  session.send(query('PAUSE'));
  await settle();
  const [asked] = given.control.asked;
  assert.equal(asked!.signal.aborted, false);
  session.backend.onClose();
  assert.equal(asked!.signal.aborted, true);
  asked!.done();
  await settle();
  assert.deepEqual(session.take(), []);
  assert.deepEqual(given.control.sessionCounts, [1, 0]);
});

test('KILL and RESUME of a name only others know fail when a worker does not answer', async () => {
  const others = new Map([[1, { error: 'worker 1: silent' }]]);
  const given = fleet([worker(0)], { others });
  for (const sql of ['KILL', 'RESUME auto', 'ENABLE auto']) {
    const { error } = await ask(given.open(), sql);
    assert.equal(error, 'ERROR 08P01 no answer from worker 1: silent');
  }
  assert.equal(given.control.asked.length, 0);
});
