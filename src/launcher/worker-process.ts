import { type ChildProcess, type SendHandle, spawn } from 'node:child_process';
import type { ControlMessage, StopMode } from '../ipc/control.ts';
import {
  type Cancellable,
  type FromWorker,
  fromWorkerSchema,
  type Handoff,
  type ReloadAnswer,
  type StartMessage,
  type ToWorker,
} from '../ipc/messages.ts';
import type { StatsAnswer } from '../ipc/stats.ts';
import { log } from '../log/logger.ts';
import { osErrorText } from '../log/os-error.ts';
import type { RawHandle } from './handoff.ts';
import { Pulse } from './pulse.ts';

/** Descriptor number of the first inherited socket: after stdin, stdout, stderr and the channel. */
export const FIRST_SOCKET_FD = 4;
const STDERR = 2;

export interface WorkerSpec {
  readonly workerMain: string;
  readonly nodeFlags: readonly string[];
  /** Sockets that it inherits, numbered from `FIRST_SOCKET_FD`. */
  readonly descriptors: readonly number[];
  /** Seconds without an answer after which it counts as stalled; 0 is never. */
  readonly stallTimeout: number;
  /** Asked for when the process says hello, so that it starts in the fleet's state of that moment. */
  readonly start: () => StartMessage;
}

export interface WorkerEvents {
  onReady(): void;
  /** It cannot start and will end. */
  onFailed(text: string): void;
  /** What it waited for after `stop` has happened and it will end. */
  onStopped(): void;
  /** `stopDue` may have changed. */
  onStopDue(): void;
  /** It answers again after having been called silent. */
  onAwake(): void;
  onHandoff(handoff: Handoff, handle: RawHandle): void;
  onControl(message: ControlMessage): void;
  onReload(answer: ReloadAnswer): void;
  onStats(answer: StatsAnswer): void;
  /** Called once, after every message; `how` is `signal SIGKILL`, `exit code 1` or why it never ran. */
  onExit(how: string): void;
}

/**
 * One worker process. It leads a session of its own, so that a terminal's Ctrl-C or hang-up reaches
 * only the launcher, and it holds no pipe to the launcher but the channel, so that it can go on
 * serving when the launcher dies.
 */
export class WorkerProcess {
  readonly incarnation: number;
  readonly spawnedAt = performance.now();
  readonly pulse: Pulse;
  isReady = false;
  /** It was ended by `kill`. */
  isKilled = false;
  /** What the stop of this mode waits for is the case in it. */
  stopDue: StopMode | null = null;
  /** Clients at its last answer; undefined when it does not tell. */
  clients: number | undefined;
  /** Its connections to PostgreSQL, by their ids. */
  readonly servers = new Map<number, Cancellable>();
  readonly #child: ChildProcess;
  readonly #spec: WorkerSpec;
  readonly #events: WorkerEvents;
  #hasStart = false;
  #hasExited = false;
  /** Sockets whose hand-over has not been written yet, with what to do when it never is. */
  readonly #inHand = new Map<RawHandle, (isSent: boolean) => void>();

  constructor(incarnation: number, spec: WorkerSpec, events: WorkerEvents) {
    this.incarnation = incarnation;
    this.pulse = new Pulse(spec.stallTimeout);
    this.#spec = spec;
    this.#events = events;
    this.#child = spawn(process.execPath, [...spec.nodeFlags, spec.workerMain], {
      stdio: ['ignore', STDERR, STDERR, 'ipc', ...spec.descriptors],
      detached: true,
    });
    this.#child.on('message', (message, handle) => {
      this.#onMessage(message, handle as unknown as RawHandle | undefined);
    });
    this.#child.on('error', (error) => {
      if (this.#child.pid === undefined)
        this.#onExit(`${process.execPath} cannot be run: ${osErrorText(error)}`);
      else log.debug(`worker channel (pid ${this.pid}): ${osErrorText(error)}`);
    });
    // `exit` may overtake messages that are still in the channel, `close` comes after them.
    this.#child.on('close', (code, signal) => {
      this.#onExit(signal === null ? `exit code ${code}` : `signal ${signal}`);
    });
  }

  /** It has been sent its `start`, so that further messages reach it. */
  get hasStart(): boolean {
    return this.#hasStart;
  }

  /** 0 when the process could not be made. */
  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** Whole seconds since it was spawned. */
  get age(): number {
    return Math.floor((performance.now() - this.spawnedAt) / 1000);
  }

  /**
   * Sends a message. One sent before the `start` message is dropped, and false is returned: `start`
   * tells the state.
   */
  send(message: ToWorker): boolean {
    if (!this.#hasStart || !this.#child.connected) return false;
    this.#child.send(message, (error) => {
      if (error !== null) log.debug(`worker channel (pid ${this.pid}): ${osErrorText(error)}`);
    });
    return true;
  }

  /** Sends a client's socket. `done(true)`: it is on its way, and this copy may be closed. */
  sendSocket(message: Handoff, handle: RawHandle, done: (isSent: boolean) => void): void {
    if (!this.#child.connected) {
      done(false);
      return;
    }
    this.#inHand.set(handle, done);
    const settle = (error: Error | null) => {
      if (this.#inHand.delete(handle)) done(error === null);
    };
    try {
      this.#child.send(message, handle as unknown as SendHandle, settle);
    } catch (error) {
      settle(error instanceof Error ? error : new Error(String(error)));
    }
  }

  /** Judges the answers so far and sends the next ping. To be called each second. */
  ping(): ReturnType<Pulse['check']> {
    if (!this.#hasStart) return 'well';
    const verdict = this.pulse.check();
    if (verdict !== 'stalled') this.send({ kind: 'ping', seq: this.pulse.next() });
    return verdict;
  }

  kill(): void {
    this.isKilled = true;
    this.#child.kill('SIGKILL');
  }

  #onMessage(message: unknown, handle: RawHandle | undefined): void {
    const parsed = fromWorkerSchema.safeParse(message);
    if (!parsed.success) {
      log.error(`message of a worker (pid ${this.pid}) is not understood: ${parsed.error.message}`);
      handle?.close();
      return;
    }
    if ('incarnation' in parsed.data && parsed.data.incarnation !== this.incarnation) return;
    this.#dispatch(parsed.data, handle);
  }

  #dispatch(message: FromWorker, handle: RawHandle | undefined): void {
    switch (message.kind) {
      case 'hello':
        this.#hasStart = true;
        this.send(this.#spec.start());
        break;
      case 'ready':
        this.isReady = true;
        this.#events.onReady();
        break;
      case 'failed':
        this.#events.onFailed(message.text);
        break;
      case 'pong':
        this.clients = message.clients;
        if (this.pulse.beat()) this.#events.onAwake();
        break;
      case 'stop_due':
        this.stopDue = message.isDue ? message.mode : null;
        this.#events.onStopDue();
        break;
      case 'stopped':
        this.#events.onStopped();
        break;
      case 'server_open':
        this.servers.set(message.id, message);
        break;
      case 'server_end':
        this.servers.delete(message.id);
        break;
      case 'reload_answer':
        this.#events.onReload(message);
        break;
      case 'stats':
        this.#events.onStats(message);
        break;
      case 'handoff':
        // A client that left on the way arrives without its socket.
        if (handle !== undefined) this.#events.onHandoff(message, handle);
        break;
      case 'control_ask':
      case 'control_leave':
      case 'control_done':
      case 'consoles':
        this.#events.onControl(message);
        break;
      default:
        message satisfies never;
    }
  }

  #onExit(how: string): void {
    if (this.#hasExited) return;
    this.#hasExited = true;
    this.isReady = false;
    const inHand = [...this.#inHand.values()];
    this.#inHand.clear();
    this.#events.onExit(how);
    for (const done of inHand) done(false);
  }
}
