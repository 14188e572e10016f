import type { Config } from '../config/config.ts';
import { databaseFate } from '../config/diff.ts';
import { ConfigIndex } from '../config/effective.ts';
import type { ControlAction, ControlCommand, FleetState, StopMode } from '../ipc/control.ts';

/**
 * What a control command does to the state of the fleet and what its workers have to do for it, or
 * why it is refused: PgBouncer's rules for what may follow what, as a function without side effects.
 */

const CONSOLE_DATABASE = 'pgbouncer';
const BUSY = 'already suspended/paused';

export const ACTIVE: FleetState = { mode: 'active', paused: [], disabled: [] };

/** Commands that workers take part in. */
export type WorkerCommand = Exclude<ControlCommand, { name: 'reload' | 'set' | 'shutdown' }>;

export type Decision =
  | { readonly refusal: string }
  | { readonly state: FleetState; readonly action: ControlAction };

interface Situation {
  readonly state: FleetState;
  /** The shutdown that is under way. */
  readonly shutdown: StopMode | null;
  readonly config: Config;
}

/** What comes of `command` in this situation. */
export function decide(command: WorkerCommand, { state, shutdown, config }: Situation): Decision {
  const refusal = refusalOf(command, state, shutdown, config);
  if (refusal !== null) return { refusal };
  switch (command.name) {
    case 'pause':
      return { state: pause(state, command.database), action: command };
    case 'resume': {
      const { name, database } = command;
      return { state: resume(state, database), action: { name, database } };
    }
    case 'suspend':
      return { state: { ...state, mode: 'suspended' }, action: command };
    case 'disable':
      return {
        state: { ...state, disabled: added(state.disabled, [command.database]) },
        action: command,
      };
    case 'enable': {
      const { name, database } = command;
      const disabled = state.disabled.filter((each) => each !== database);
      return { state: { ...state, disabled }, action: { name, database } };
    }
    case 'kill': {
      const { name, database, inUse } = command;
      const databases =
        database !== null ? [database] : inUse.filter((each) => each !== CONSOLE_DATABASE);
      return {
        state: { ...state, paused: added(state.paused, databases) },
        action: { name, databases },
      };
    }
    case 'kill_client':
    case 'reconnect':
    case 'wait_close':
      return { state, action: command };
    default:
      return command satisfies never;
  }
}

/** Whether the command is refused before it is logged: PgBouncer looks at the mode first. */
export function isBadMoment(
  command: WorkerCommand,
  state: FleetState,
  shutdown: StopMode | null,
): string | null {
  switch (command.name) {
    case 'pause':
    case 'kill':
      return state.mode === 'active' ? null : BUSY;
    case 'suspend':
      if (state.mode !== 'active') return BUSY;
      return state.paused.length > 0 ? 'cannot suspend with paused databases' : null;
    case 'resume':
      if (command.database !== null) return null;
      if (shutdown !== null) return 'pooler is shutting down';
      return state.mode === 'active' ? 'pooler is not paused/suspended' : null;
    default:
      return null;
  }
}

function refusalOf(
  command: WorkerCommand,
  state: FleetState,
  shutdown: StopMode | null,
  config: Config,
): string | null {
  const early = isBadMoment(command, state, shutdown);
  if (early !== null || command.name === 'suspend' || command.name === 'kill_client') return early;
  const { database } = command;
  if (database === null) return null;
  if (command.name === 'resume') {
    if (!exists(database, command.isInUse, state, config)) return `no such database: ${database}`;
    return state.paused.includes(database) ? null : `database ${database} is not paused`;
  }
  if (database === CONSOLE_DATABASE) {
    const verb = command.name === 'wait_close' ? 'wait in' : command.name;
    return `cannot ${verb} admin db: ${database}`;
  }
  // All but these two make a database out of the `*` entry when there is none of that name.
  const isThere =
    command.name === 'enable'
      ? exists(database, command.isInUse, state, config)
      : config.autoDatabase !== null || isConfigured(database, config);
  return isThere ? null : `no such database: ${database}`;
}

function isConfigured(database: string, config: Config): boolean {
  return config.databases.some(({ name }) => name === database);
}

function exists(database: string, isInUse: boolean, state: FleetState, config: Config): boolean {
  return (
    isInUse ||
    database === CONSOLE_DATABASE ||
    state.paused.includes(database) ||
    state.disabled.includes(database) ||
    isConfigured(database, config)
  );
}

function pause(state: FleetState, database: string | null): FleetState {
  if (database === null) return { ...state, mode: 'paused' };
  return { ...state, paused: added(state.paused, [database]) };
}

function resume(state: FleetState, database: string | null): FleetState {
  if (database === null) return { ...state, mode: 'active' };
  return { ...state, paused: state.paused.filter((each) => each !== database) };
}

/** What is left of the state after a reload: flags go with the database that they are of. */
export function withoutGone(state: FleetState, old: Config, next: Config): FleetState {
  const [before, after] = [new ConfigIndex(old), new ConfigIndex(next)];
  const stays = (database: string) => databaseFate(before, after, database) !== 'removed';
  return {
    ...state,
    paused: state.paused.filter(stays),
    disabled: state.disabled.filter(stays),
  };
}

function added(names: readonly string[], more: readonly string[]): string[] {
  return [...new Set([...names, ...more])];
}
