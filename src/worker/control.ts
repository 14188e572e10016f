import { type ClientSession, ClientState } from '../client/client-session.ts';
import type { ConfigIndex } from '../config/effective.ts';
import type { ControlAction, FleetState } from '../ipc/control.ts';
import { log } from '../log/logger.ts';
import { inTurn } from '../net/turn.ts';
import type { Database } from '../pool/database.ts';
import type { Pool } from '../pool/pool.ts';
import type { PoolSet } from '../pool/pool-set.ts';
import { Suspension } from './suspension.ts';

/** How often it is looked whether what a command waits for has happened. */
const LOOK_MS = 20;

export interface ControlRooms {
  readonly worker: number;
  /** The configuration in force. */
  readonly index: () => ConfigIndex;
  readonly pools: PoolSet;
  readonly sessions: Iterable<ClientSession>;
}

/** What a worker tells of a command: that it is done, and that what it waits for has happened. */
type Report = (stage: 'applied' | 'settled', isFound: boolean) => void;

/** Does in this worker what the launcher has all workers do (PAUSE, KILL and the like). */
export class WorkerControl {
  readonly suspension: Suspension;
  readonly #rooms: ControlRooms;
  /** Commands that wait, by their numbers. */
  readonly #waits = new Map<number, { readonly isOver: () => boolean; readonly report: Report }>();
  #timer: NodeJS.Timeout | null = null;

  constructor(rooms: ControlRooms) {
    this.#rooms = rooms;
    this.suspension = new Suspension(rooms.sessions, rooms.pools);
  }

  /** Puts a worker that starts into the state that the fleet is in. */
  restore({ mode, paused, disabled }: FleetState): void {
    for (const name of disabled) this.#apply({ name: 'disable', database: name });
    for (const name of paused) this.#apply({ name: 'pause', database: name });
    if (mode === 'paused') this.#apply({ name: 'pause', database: null });
    if (mode === 'suspended') this.#apply({ name: 'suspend' });
  }

  /** Does `action`; `seq` is its number, by which it can be forgotten. */
  run(seq: number, action: ControlAction, report: Report): void {
    let isFound = true;
    inTurn(() => {
      isFound = this.#apply(action);
    });
    report('applied', isFound);
    const isOver = this.#waitOf(action);
    if (isOver === null) return;
    this.#waits.set(seq, { isOver, report });
    this.#look();
    if (this.#waits.size > 0) this.#timer ??= setInterval(() => this.#look(), LOOK_MS);
  }

  /** Nobody waits for that command any more. */
  forget(seq: number): void {
    this.#waits.delete(seq);
    this.#rest();
  }

  /** Ends the waits: the process is about to. */
  close(): void {
    this.#waits.clear();
    this.#rest();
  }

  /** Returns false when there is no such client. */
  #apply(action: ControlAction): boolean {
    const { pools } = this.#rooms;
    switch (action.name) {
      case 'pause':
        if (action.database === null) pools.pause();
        else this.#with(action.database, (database) => pools.pauseDatabase(database));
        break;
      case 'resume':
        if (action.database === null) {
          this.suspension.end();
          pools.resume();
        } else {
          this.#with(action.database, (database) => pools.resumeDatabase(database));
        }
        break;
      case 'suspend':
        this.suspension.begin(this.#rooms.index().settings.suspend_timeout * 1000);
        break;
      case 'disable':
      case 'enable':
        this.#with(action.database, (database) => {
          database.isDisabled = action.name === 'disable';
        });
        break;
      case 'kill':
        for (const name of action.databases) this.#with(name, (database) => this.#kill(database));
        break;
      case 'kill_client':
        return this.#killClient(action.id);
      case 'reconnect':
        for (const pool of this.#poolsOf(action.database)) pool.reconnect();
        break;
      case 'wait_close':
        if (action.database !== null) this.#database(action.database);
        break;
      default:
        action satisfies never;
    }
    return true;
  }

  /** Whether what the command waits for has happened here; null when it waits for nothing. */
  #waitOf(action: ControlAction): (() => boolean) | null {
    if (action.name === 'suspend') return () => this.suspension.advance();
    if (action.name !== 'pause' && action.name !== 'wait_close') return null;
    const isPause = action.name === 'pause';
    return () => {
      for (const pool of this.#poolsOf(action.database)) {
        if (isPause ? !pool.isDrained : pool.hasCloseNeeded) return false;
      }
      return true;
    };
  }

  /** What was connected to the database is closed, and nothing new is until RESUME. */
  #kill(database: Database): void {
    const reason = 'database removed';
    const { pools, sessions } = this.#rooms;
    pools.pauseDatabase(database);
    const ended = new Set(pools.poolsOf(database));
    pools.end(database, reason);
    for (const session of sessions) {
      if (session.pool !== null && ended.has(session.pool)) session.fatal(reason);
    }
  }

  #killClient(id: number): boolean {
    for (const session of this.#rooms.sessions) {
      if (session.id !== id || session.state === ClientState.login || session.isClosed) continue;
      session.fatal('admin forced disconnect');
      return true;
    }
    return false;
  }

  #with(name: string, work: (database: Database) => void): void {
    const database = this.#database(name);
    if (database !== null) work(database);
  }

  /** Pools of the database of that name, or all; none when there is no such database any more. */
  #poolsOf(name: string | null): Iterable<Pool> {
    if (name === null) return this.#rooms.pools.all;
    const database = this.#database(name);
    return database === null ? [] : this.#rooms.pools.poolsOf(database);
  }

  /** A database by its name, made from the `*` entry if need be. */
  #database(name: string): Database | null {
    const { worker, index, pools } = this.#rooms;
    const entry = index().database(name);
    if (entry === null) return null;
    if (worker === 0 && !index().hasDatabase(name) && !pools.hasDatabase(name)) {
      log.info(`registered new auto-database: ${name}`);
    }
    return pools.database(entry);
  }

  #look(): void {
    inTurn(() => {
      for (const [seq, { isOver, report }] of this.#waits) {
        if (!isOver()) continue;
        this.#waits.delete(seq);
        report('settled', true);
      }
    });
    this.#rest();
  }

  #rest(): void {
    if (this.#waits.size > 0 || this.#timer === null) return;
    clearInterval(this.#timer);
    this.#timer = null;
  }
}
