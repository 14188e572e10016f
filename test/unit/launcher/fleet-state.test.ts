import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { FleetState, StopMode } from '../../../src/ipc/control.ts';
import {
  ACTIVE,
  decide,
  type WorkerCommand,
  withoutGone,
} from '../../../src/launcher/fleet-state.ts';
import { config, database } from '../admin/support.ts';

const CONFIG = config({ databases: [database({ name: 'app' }), database({ name: 'b' })] });
const AUTO = config({ ...CONFIG, autoDatabase: database({ name: '*' }) });

const PAUSED: FleetState = { ...ACTIVE, mode: 'paused' };
const SUSPENDED: FleetState = { ...ACTIVE, mode: 'suspended' };
const B_PAUSED: FleetState = { ...ACTIVE, paused: ['b'] };

const BUSY = 'already suspended/paused';
const IDLE = 'pooler is not paused/suspended';
const DOWN = 'pooler is shutting down';

const pause = (name: string | null = null): WorkerCommand => ({ name: 'pause', database: name });
const resume = (name: string | null = null, isInUse = false): WorkerCommand => ({
  name: 'resume',
  database: name,
  isInUse,
});
const kill = (name: string | null = null, inUse: string[] = []): WorkerCommand => ({
  name: 'kill',
  database: name,
  inUse,
});
const suspend: WorkerCommand = { name: 'suspend' };

interface Case {
  readonly command: WorkerCommand;
  readonly state?: FleetState;
  readonly shutdown?: StopMode;
  readonly isAuto?: boolean;
  /** Why it is refused, or the state that follows. */
  readonly ends: string | FleetState;
}

const CASES: readonly Case[] = [
  { command: pause(), ends: PAUSED },
  { command: pause(), state: PAUSED, ends: BUSY },
  { command: pause(), state: SUSPENDED, ends: BUSY },
  { command: pause(), shutdown: 'wait_for_clients', ends: PAUSED },
  { command: pause('b'), ends: B_PAUSED },
  { command: pause('b'), state: B_PAUSED, ends: B_PAUSED },
  { command: pause('b'), state: PAUSED, ends: BUSY },
  { command: pause('none'), ends: 'no such database: none' },
  { command: pause('none'), state: PAUSED, ends: BUSY },
  { command: pause('none'), isAuto: true, ends: { ...ACTIVE, paused: ['none'] } },
  { command: pause('pgbouncer'), ends: 'cannot pause admin db: pgbouncer' },

  { command: resume(), ends: IDLE },
  { command: resume(), state: PAUSED, ends: ACTIVE },
  { command: resume(), state: SUSPENDED, ends: ACTIVE },
  { command: resume(), state: { ...B_PAUSED, mode: 'paused' }, ends: B_PAUSED },
  { command: resume(), state: B_PAUSED, ends: IDLE },
  { command: resume(), state: PAUSED, shutdown: 'wait_for_servers', ends: DOWN },
  { command: resume(), shutdown: 'wait_for_clients', ends: DOWN },
  { command: resume('b'), state: B_PAUSED, ends: ACTIVE },
  { command: resume('b'), state: B_PAUSED, shutdown: 'wait_for_clients', ends: ACTIVE },
  { command: resume('b'), ends: 'database b is not paused' },
  { command: resume('none'), isAuto: true, ends: 'no such database: none' },
  { command: resume('none', true), isAuto: true, ends: 'database none is not paused' },
  { command: resume('pgbouncer'), ends: 'database pgbouncer is not paused' },

  { command: suspend, ends: SUSPENDED },
  { command: suspend, state: PAUSED, ends: BUSY },
  { command: suspend, state: SUSPENDED, ends: BUSY },
  { command: suspend, state: B_PAUSED, ends: 'cannot suspend with paused databases' },

  { command: kill('b'), ends: B_PAUSED },
  { command: kill('b'), state: PAUSED, ends: BUSY },
  { command: kill(null, ['b', 'pgbouncer', 'b']), ends: B_PAUSED },
  { command: kill('none'), ends: 'no such database: none' },
  { command: kill('pgbouncer'), ends: 'cannot kill admin db: pgbouncer' },

  { command: { name: 'disable', database: 'b' }, ends: { ...ACTIVE, disabled: ['b'] } },
  { command: { name: 'disable', database: 'none' }, ends: 'no such database: none' },
  {
    command: { name: 'disable', database: 'pgbouncer' },
    ends: 'cannot disable admin db: pgbouncer',
  },
  {
    command: { name: 'enable', database: 'b', isInUse: true },
    state: { ...B_PAUSED, disabled: ['b', 'app'] },
    ends: { ...B_PAUSED, disabled: ['app'] },
  },
  {
    command: { name: 'enable', database: 'none', isInUse: false },
    isAuto: true,
    ends: 'no such database: none',
  },
  {
    command: { name: 'enable', database: 'pgbouncer', isInUse: false },
    ends: 'cannot enable admin db: pgbouncer',
  },
  { command: { name: 'reconnect', database: null }, state: PAUSED, ends: PAUSED },
  {
    command: { name: 'reconnect', database: 'pgbouncer' },
    ends: 'cannot reconnect admin db: pgbouncer',
  },
  { command: { name: 'wait_close', database: 'none' }, ends: 'no such database: none' },
  {
    command: { name: 'wait_close', database: 'pgbouncer' },
    ends: 'cannot wait in admin db: pgbouncer',
  },
  { command: { name: 'kill_client', id: 1 }, ends: ACTIVE },
];

for (const { command, state = ACTIVE, shutdown = null, isAuto = false, ends } of CASES) {
  const what = JSON.stringify(command).replaceAll('"', '');
  const when = `${JSON.stringify(state).replaceAll('"', '')}${shutdown === null ? '' : `, ${shutdown}`}`;
  test(`${what} while ${when}${isAuto ? ' with *' : ''}`, () => {
    const decision = decide(command, { state, shutdown, config: isAuto ? AUTO : CONFIG });
    assert.deepEqual('refusal' in decision ? decision.refusal : decision.state, ends);
  });
}

test('KILL without a name kills every database in use but the console', () => {
  const decision = decide(kill(null, ['b', 'pgbouncer']), {
    state: ACTIVE,
    shutdown: null,
    config: CONFIG,
  });
  assert.ok('action' in decision);
  assert.deepEqual(decision.action, { name: 'kill', databases: ['b'] });
});

test('flags of databases that a reload has removed go, and those of names that * serves stay', () => {
  const state: FleetState = { mode: 'active', paused: ['b', 'auto'], disabled: ['auto', 'app'] };
  const lineGone = config({ databases: [database({ name: 'app' })] });
  assert.deepEqual(withoutGone(state, AUTO, AUTO), state);
  assert.deepEqual(withoutGone(state, AUTO, CONFIG), { ...B_PAUSED, disabled: ['app'] });
  assert.deepEqual(withoutGone(B_PAUSED, CONFIG, lineGone), ACTIVE);
  // A line that goes takes its database along, even when `*` would make one of that name.
  const autoLineGone = config({ ...AUTO, databases: lineGone.databases });
  assert.deepEqual(withoutGone(state, AUTO, autoLineGone).paused, ['auto']);
});
