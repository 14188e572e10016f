import type { Config } from '../config/config.ts';
import type {
  ControlAction,
  ControlCommand,
  ControlMessage,
  ControlOutcome,
  FleetState,
  StopMode,
} from '../ipc/control.ts';
import type { ToWorker } from '../ipc/messages.ts';
import { log } from '../log/logger.ts';
import { ACTIVE, decide, isBadMoment, type WorkerCommand, withoutGone } from './fleet-state.ts';
import type { ReloadResult, SetResult } from './reload.ts';

/**
 * The control of the fleet: commands of consoles and signals, one after the other, each numbered.
 *
 *   queued -> applying (all workers do it) -> waiting (PAUSE, SUSPEND, WAIT_CLOSE) -> answered
 *
 * The next command begins when all workers have applied the one before. What a command waits for
 * after that (servers to be released) holds up nobody, so that RESUME can end a PAUSE that waits. A
 * worker that dies meanwhile is named in the answer; its successor starts in the state of the fleet.
 */

/** A worker that has not applied a command after so long is not waited for any more. */
const APPLY_LIMIT_MS = 10_000;

/** The launcher, as its control sees it. */
export interface ControlTarget {
  readonly config: () => Config;
  /** Sends to every worker that has been told its start, and returns their numbers. */
  broadcast(message: ToWorker): number[];
  sendTo(worker: number, message: ToWorker): void;
  reload(): Promise<ReloadResult>;
  set(key: string, value: string): Promise<SetResult>;
  stop(mode: StopMode): void;
}

/** A console session that waits for an answer: the worker it is in, and that worker's number for it. */
interface Asker {
  readonly worker: number;
  readonly id: number;
}

interface Queued {
  readonly command: ControlCommand;
  asker: Asker | null;
}

/** A command that workers are at. */
interface Running extends Queued {
  readonly command: WorkerCommand;
  readonly seq: number;
  /** Workers that have not applied it. */
  readonly applying: Set<number>;
  /** Workers in which it waits. */
  readonly settling: Set<number>;
  /** Why a worker will never be done, in words. */
  readonly lost: string[];
  isFound: boolean;
}

export class Control {
  readonly #target: ControlTarget;
  readonly #queue: Queued[] = [];
  #state: FleetState = ACTIVE;
  #shutdown: StopMode | null = null;
  #lastSeq = 0;
  #isBusy = false;
  /** The command that is being applied, and those that have been and still wait. */
  #applying: Running | null = null;
  readonly #waits = new Set<Running>();
  #limit: NodeJS.Timeout | undefined;
  /** Console sessions by worker. */
  readonly #consoles = new Map<number, number>();

  constructor(target: ControlTarget) {
    this.#target = target;
  }

  /** What is in force; a worker starts in it. */
  get state(): FleetState {
    return this.#state;
  }

  /** Does a command of the launcher's own: a signal. */
  run(command: ControlCommand): void {
    this.#queue.push({ command, asker: null });
    this.#next();
  }

  onMessage(worker: number, message: ControlMessage): void {
    switch (message.kind) {
      case 'control_ask':
        this.#queue.push({ command: message.command, asker: { worker, id: message.id } });
        this.#next();
        break;
      case 'control_leave':
        this.#forget((asker) => asker.worker === worker && asker.id === message.id);
        break;
      case 'control_done':
        this.#onDone(worker, message);
        break;
      case 'consoles':
        this.#onConsoles(worker, message.count);
        break;
      default:
        message satisfies never;
    }
  }

  /** The process of that worker has ended. */
  onWorkerGone(worker: number): void {
    this.#forget((asker) => asker.worker === worker);
    for (const running of this.#all()) {
      const hadPart = running.applying.has(worker) || running.settling.has(worker);
      // In a shutdown it is the work that ends a worker.
      if (hadPart && this.#shutdown === null) running.lost.push(`worker ${worker} died`);
      running.applying.delete(worker);
      running.settling.delete(worker);
      this.#settle(running);
    }
    this.#onConsoles(worker, 0);
  }

  /** The fleet is being stopped, by a command or a signal. */
  onStop(mode: StopMode): void {
    this.#shutdown = mode;
    if (mode === 'wait_for_servers') this.#state = { ...this.#state, mode: 'paused' };
  }

  // Queue

  #next(): void {
    while (!this.#isBusy) {
      const next = this.#queue.shift() ?? this.#resumeOfNobody();
      if (next === null) return;
      const { command } = next;
      if (command.name === 'reload') this.#reload(next);
      else if (command.name === 'set') this.#set(next, command.key, command.value);
      else if (command.name === 'shutdown') this.#stop(next, command.mode);
      else this.#begin(next, command);
    }
  }

  /**
   * As in PgBouncer what is suspended goes on when no console is left to say so, in the middle of a
   * shutdown too: its clients could never leave.
   */
  #resumeOfNobody(): Queued | null {
    if (this.#consoles.size > 0 || this.#state.mode !== 'suspended') return null;
    log.info('admin disappeared when suspended, doing RESUME');
    return { command: { name: 'resume', database: null, isInUse: false }, asker: null };
  }

  #begin({ asker }: Queued, command: WorkerCommand): void {
    // What is refused in a shutdown is what somebody asks for.
    const shutdown = asker === null ? null : this.#shutdown;
    const isLogged =
      command.name === 'resume' || isBadMoment(command, this.#state, shutdown) === null;
    if (asker !== null && isLogged) logCommand(command);
    const config = this.#target.config();
    const decision = decide(command, { state: this.#state, shutdown, config });
    if ('refusal' in decision) {
      this.#answer(asker, { ok: false, text: decision.refusal });
      return;
    }
    this.#state = decision.state;
    if (command.name === 'resume') this.#endPauses(command.database);
    const seq = ++this.#lastSeq;
    const { action } = decision;
    const workers = this.#target.broadcast({ kind: 'control', seq, action });
    const running: Running = {
      command,
      asker,
      seq,
      applying: new Set(workers),
      settling: new Set(hasWait(action) ? workers : []),
      lost: [],
      isFound: false,
    };
    this.#applying = running;
    this.#isBusy = true;
    this.#limit = setTimeout(() => this.#giveUp(running), APPLY_LIMIT_MS);
    this.#settle(running);
  }

  #reload({ asker }: Queued): void {
    if (asker !== null) log.info('RELOAD command issued');
    const before = this.#target.config();
    this.#reconfigure(
      asker,
      this.#target.reload().finally(() => {
        this.#state = withoutGone(this.#state, before, this.#target.config());
      }),
      { sqlstate: 'F0000', text: 'RELOAD failed, see logs for additional details' },
    );
  }

  #set({ asker }: Queued, key: string, value: string): void {
    this.#reconfigure(asker, this.#target.set(key, value), { text: 'SET failed' });
  }

  /** Waits for another configuration; commands that come meanwhile wait too. */
  #reconfigure(
    asker: Asker | null,
    result: Promise<ReloadResult | SetResult>,
    failure: { readonly text: string; readonly sqlstate?: string },
  ): void {
    this.#isBusy = true;
    const end = (outcome: ControlOutcome): void => {
      this.#answer(asker, outcome);
      this.#isBusy = false;
      this.#next();
    };
    const fail = (detail: string): void => end({ ok: false, ...failure, detail });
    result.then(
      (outcome) => (outcome.ok ? end(outcome) : fail(outcome.text)),
      (error: unknown) => {
        const text = String(error instanceof Error ? (error.stack ?? error) : error);
        log.error(`InvariantError: ${text}`);
        fail(text);
      },
    );
  }

  #stop({ asker }: Queued, mode: StopMode): void {
    const argument = mode === 'now' ? '' : ` ${mode.toUpperCase()}`;
    log.info(`SHUTDOWN${argument} command issued`);
    // SHUTDOWN alone has no answer: the console's connection ends with the process.
    if (mode !== 'now') this.#answer(asker, { ok: true });
    this.#target.stop(mode);
  }

  // Progress

  #onDone(worker: number, done: ControlMessage & { kind: 'control_done' }): void {
    for (const running of this.#all()) {
      if (running.seq !== done.seq) continue;
      if (done.isFound) running.isFound = true;
      running.applying.delete(worker);
      if (done.stage === 'settled') running.settling.delete(worker);
      this.#settle(running);
    }
  }

  /** Lets the next command begin, or answers this one, when the time has come. */
  #settle(running: Running): void {
    if (running.applying.size > 0) return;
    if (this.#applying === running) {
      this.#applying = null;
      this.#isBusy = false;
      clearTimeout(this.#limit);
      this.#waits.add(running);
    }
    if (running.settling.size === 0) {
      if (this.#waits.delete(running)) this.#answer(running.asker, outcomeOf(running));
    } else if (running.asker === null) {
      this.#drop(running);
    }
    this.#next();
  }

  #giveUp(running: Running): void {
    for (const worker of running.applying) {
      running.lost.push(`worker ${worker} has not answered`);
      running.settling.delete(worker);
    }
    running.applying.clear();
    this.#settle(running);
  }

  /** RESUME ends what it takes the ground from: the answer would never come. */
  #endPauses(database: string | null): void {
    for (const running of this.#waits) {
      const { command } = running;
      const isOver =
        (command.name === 'pause' && command.database === database) ||
        (command.name === 'suspend' && database === null);
      if (!isOver) continue;
      const text = `${command.name.toUpperCase()} was ended by RESUME`;
      this.#answer(running.asker, { ok: false, text });
      this.#drop(running);
    }
  }

  /** Consoles have left: what they asked for is done all the same, but not waited for. */
  #forget(hasLeft: (asker: Asker) => boolean): void {
    for (const queued of [...this.#queue, ...this.#all()]) {
      if (queued.asker !== null && hasLeft(queued.asker)) queued.asker = null;
    }
    for (const running of this.#waits) if (running.asker === null) this.#drop(running);
  }

  #drop(running: Running): void {
    this.#waits.delete(running);
    this.#target.broadcast({ kind: 'control_forget', seq: running.seq });
  }

  #onConsoles(worker: number, count: number): void {
    if (count > 0) this.#consoles.set(worker, count);
    else this.#consoles.delete(worker);
    this.#next();
  }

  #all(): Running[] {
    return this.#applying === null ? [...this.#waits] : [this.#applying, ...this.#waits];
  }

  #answer(asker: Asker | null, outcome: ControlOutcome): void {
    if (asker === null) return;
    this.#target.sendTo(asker.worker, { kind: 'control_answer', id: asker.id, outcome });
  }
}

function hasWait({ name }: ControlAction): boolean {
  return name === 'pause' || name === 'suspend' || name === 'wait_close';
}

function outcomeOf({ command, lost, isFound }: Running): ControlOutcome {
  const { name } = command;
  if (name === 'kill_client' && isFound) return { ok: true };
  if (lost.length > 0) {
    const word = name.toUpperCase();
    return {
      ok: false,
      text: `${lost.join(', ')} before ${word} was done there; all others have done it`,
    };
  }
  if (name === 'kill_client') return { ok: false, text: 'client not found' };
  return { ok: true };
}

/** PgBouncer's line for a command; KILL_CLIENT has none. */
function logCommand(command: WorkerCommand): void {
  if (command.name === 'kill_client') return;
  const database =
    'database' in command && command.database !== null ? ` '${command.database}'` : '';
  log.info(`${command.name.toUpperCase()}${database} command issued`);
}
