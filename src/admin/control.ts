import { PROTOCOL_VIOLATION } from '../errors.ts';

/**
 * The commands that change what the fleet does. They go to the launcher, which has every worker do
 * them; here is only what they say.
 */

type Database = { readonly database: string };
/** Null: all of them. */
type DatabaseOrAll = { readonly database: string | null };
/** A worker knows a database of that name, though it may have no line of its own. */
type InUse = { readonly isInUse: boolean };

export type ControlCommand =
  | ({ readonly name: 'pause' | 'reconnect' | 'wait_close' } & DatabaseOrAll)
  | ({ readonly name: 'resume' } & DatabaseOrAll & InUse)
  | ({ readonly name: 'disable' } & Database)
  | ({ readonly name: 'enable' } & Database & InUse)
  /** `inUse`: databases that have a pool somewhere, which KILL without a name is about. */
  | ({ readonly name: 'kill'; inUse: string[] } & DatabaseOrAll)
  | { readonly name: 'kill_client'; readonly id: number }
  | { readonly name: 'suspend' | 'reload' }
  /** `value` is what would stand in the file. */
  | { readonly name: 'set'; readonly key: string; readonly value: string }
  | { readonly name: 'shutdown'; readonly mode: 'now' | 'wait_for_clients' | 'wait_for_servers' };

/** The way to the launcher. */
export interface ControlPort {
  /**
   * Settled when the whole fleet has done it. An abort of `signal` tells that the console has left.
   *
   * @returns a notice, or null
   * @throws CommandError with what the console answers
   */
  ask(command: ControlCommand, signal: AbortSignal): Promise<string | null>;
  /** So many sessions of the console are open in this worker now. */
  sessions(count: number): void;
}

/** A command that could not be carried out: the console answers with its text, and goes on. */
export class CommandError extends Error {
  override readonly name = 'CommandError';
  readonly sqlstate: string;
  readonly detail: string | undefined;

  constructor(text: string, sqlstate: string = PROTOCOL_VIOLATION, detail?: string) {
    super(text);
    this.sqlstate = sqlstate;
    this.detail = detail;
  }
}
