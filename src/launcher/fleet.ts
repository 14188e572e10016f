import { randomBytes } from 'node:crypto';
import { rmSync } from 'node:fs';
import type { Config } from '../config/config.ts';
import { ConfigError } from '../errors.ts';
import type { ControlMessage, FleetState, StopMode } from '../ipc/control.ts';
import type { Cancellable, Handoff, StartMessage, ToWorker } from '../ipc/messages.ts';
import type { StatsAnswer } from '../ipc/stats.ts';
import { type LogOutputs, log } from '../log/logger.ts';
import { Backoff } from './backoff.ts';
import { pickTarget, type RawHandle } from './handoff.ts';
import { inheritanceOf, type Listener } from './listener.ts';
import { ReloadRound } from './reload-round.ts';
import { workerSocketPath } from './runtime-dir.ts';
import { workerNodeFlags } from './worker-command.ts';
import { FIRST_SOCKET_FD, WorkerProcess } from './worker-process.ts';

/*
 * The fleet's processes.
 *
 *   starting ──(all ready)──> running ──(stop)──> stopping ──(no process left)──> ended
 *      └──────(stop, or one cannot start)────────────^
 *
 * A worker that ends while the fleet is running is replaced, whatever ended it; otherwise not.
 */
const Phase = { starting: 0, running: 1, stopping: 2, ended: 3 } as const;
type Phase = (typeof Phase)[keyof typeof Phase];

const PING_MS = 1000;
/** How long a worker may take from its first instruction to accepting clients. */
const START_LIMIT_MS = 60_000;
/** How long a process may linger that was told to end or said that it would. */
const LINGER_MS = 2000;
/** How long a client waits for the worker it is meant for to be back, and how often that is looked at. */
const TARGET_WAIT_MS = 3000;
const TARGET_LOOK_MS = 50;
const SECRET_BYTES = 32;

export interface FleetOptions {
  readonly config: Config;
  readonly size: number;
  readonly generation: number;
  readonly listeners: readonly Listener[];
  readonly runtimeDir: string;
  readonly workerMain: string;
  readonly log: LogOutputs;
  /** What a worker starts in. */
  readonly state: () => FleetState;
  readonly onControl: (worker: number, message: ControlMessage) => void;
  readonly onStats: (worker: number, answer: StatsAnswer) => void;
  /** A worker's process has ended, for whatever reason. */
  readonly onWorkerGone: (worker: number) => void;
}

/** A worker's number and the process that has it now. */
interface Place {
  readonly id: number;
  readonly backoff: Backoff;
  process: WorkerProcess | null;
  incarnation: number;
  /** When the last process ended, for the line that tells of the next. */
  endedAt: number;
  restart: NodeJS.Timeout | null;
  /** Connections to PostgreSQL of processes that have died; a successor that runs has cancelled them. */
  readonly orphans: Cancellable[];
}

/** The worker processes: starts them, replaces those that die or hang, passes clients, ends them. */
export class Fleet {
  readonly #options: FleetOptions;
  readonly #places: readonly Place[];
  readonly #nodeFlags = workerNodeFlags();
  readonly #secret = randomBytes(SECRET_BYTES).toString('hex');
  #phase: Phase = Phase.starting;
  #stopMode: StopMode | null = null;
  /** The configuration in force, which new processes get. */
  #config: Config;
  /** The one before it, until a reload has ended: its limits hold as well. */
  #previous: Config | null = null;
  #log: LogOutputs;
  #round: ReloadRound | null = null;
  #startError: ConfigError | null = null;
  #onUp: () => void = () => {};
  #onEnd: () => void = () => {};
  readonly #up = new Promise<void>((resolve) => {
    this.#onUp = resolve;
  });
  readonly #ended = new Promise<void>((resolve) => {
    this.#onEnd = resolve;
  });
  #pinging: NodeJS.Timeout | undefined;

  constructor(options: FleetOptions) {
    this.#options = options;
    this.#config = options.config;
    this.#log = options.log;
    this.#places = Array.from({ length: options.size }, (_, id) => ({
      id,
      backoff: new Backoff(),
      process: null,
      incarnation: 0,
      endedAt: 0,
      restart: null,
      orphans: [],
    }));
  }

  /** Process ids by worker number; 0 for one that is down. */
  get pids(): number[] {
    return this.#places.map((place) => place.process?.pid ?? 0);
  }

  /**
   * Starts all workers and waits until they accept clients. False when `stop` came first. Throws
   * ConfigError, with no process left, when one of them cannot start.
   */
  async start(): Promise<boolean> {
    for (const place of this.#places) this.#spawn(place);
    this.#pinging = setInterval(() => this.#ping(), PING_MS);
    await Promise.race([this.#up, this.#ended]);
    if (this.#startError !== null) throw this.#startError;
    return this.#phase === Phase.running;
  }

  /** Sends to every worker that has been told its start; returns their numbers. */
  broadcast(message: ToWorker): number[] {
    return this.#places.filter((place) => place.process?.send(message)).map(({ id }) => id);
  }

  sendTo(worker: number, message: ToWorker): void {
    this.#places[worker]?.process?.send(message);
  }

  reopenLogs(): void {
    this.broadcast({ kind: 'reopen_log' });
  }

  /**
   * Puts a configuration in force in all workers or in none; one round at a time. Returns null when
   * it is in force everywhere, else why it is not.
   * @param onDecided called when all have agreed, before anything changes
   */
  async reload(config: Config, outputs: LogOutputs, onDecided: () => void): Promise<string | null> {
    const round = new ReloadRound(config, outputs, {
      members: () => this.#places.flatMap(({ process }) => (process?.hasStart ? [process] : [])),
      onDecided: () => {
        this.#previous = this.#config;
        this.#config = config;
        this.#log = outputs;
        onDecided();
      },
      onReleased: () => {
        this.#previous = null;
      },
    });
    this.#round = round;
    const refusal = await round.run();
    this.#round = null;
    return refusal;
  }

  /** Ends all workers and waits until none is left. May be called again with a faster mode. */
  async stop(mode: StopMode): Promise<void> {
    this.#phase = Math.max(this.#phase, Phase.stopping) as Phase;
    this.#stopMode = mode;
    for (const place of this.#places) {
      if (place.restart !== null) clearTimeout(place.restart);
      place.restart = null;
      const { process } = place;
      if (process === null) continue;
      if (!process.isReady) process.kill();
      process.send({ kind: 'stop', mode });
      if (mode === 'now') this.#killLater(place, process);
    }
    this.#endIfEmpty();
    await this.#ended;
  }

  /**
   * What the stop waits for is the case in every worker. Until then none ends: clients that are to be
   * let be, the console among them, may be in a worker that has nothing to wait for itself.
   */
  #stopIfAllDue(): void {
    const mode = this.#stopMode;
    if (this.#phase !== Phase.stopping || mode === null || mode === 'now') return;
    const isDue = this.#places.every(({ process }) => process === null || process.stopDue === mode);
    if (isDue) void this.stop('now');
  }

  #spawn(place: Place): void {
    const { listeners, runtimeDir, workerMain } = this.#options;
    const { descriptors, grants } = inheritanceOf(listeners, place.id, FIRST_SOCKET_FD);
    const incarnation = ++place.incarnation;
    // A process that was killed leaves its socket's file behind, in the way of its successor.
    rmSync(workerSocketPath(runtimeDir, place.id), { force: true });
    place.restart = null;
    const start = (): StartMessage => ({
      kind: 'start',
      config: this.#config,
      previous: this.#previous,
      workerId: place.id,
      size: this.#places.length,
      generation: this.#options.generation,
      incarnation,
      listeners: [...grants],
      runtimeDir,
      fleetSecret: this.#secret,
      state: this.#options.state(),
      orphans: place.orphans,
      log: this.#log,
    });
    const stallTimeout = this.#config.fleet.worker_stall_timeout;
    const spec = { workerMain, nodeFlags: this.#nodeFlags, descriptors, stallTimeout, start };
    const worker = new WorkerProcess(incarnation, spec, {
      onReady: () => this.#onReady(place, worker),
      onFailed: (text) => this.#onFailed(place, text),
      onStopDue: () => this.#stopIfAllDue(),
      onStopped: () => this.#killLater(place, worker),
      onAwake: () => log.info(`worker ${place.id} responding again`),
      onHandoff: (handoff, handle) => {
        this.#passOn({ ...handoff, visited: [...handoff.visited, place.id] }, handle);
      },
      onControl: (message) => this.#options.onControl(place.id, message),
      onStats: (answer) => this.#options.onStats(place.id, answer),
      onReload: (answer) => this.#round?.onAnswer(worker, answer),
      onExit: (how) => this.#onExit(place, worker, how),
    });
    place.process = worker;
  }

  #onReady(place: Place, worker: WorkerProcess): void {
    place.orphans.length = 0;
    if (place.incarnation === 1) {
      log.info(`worker ${place.id} started (pid ${worker.pid})`);
    } else {
      const afterMs = Math.round(performance.now() - place.endedAt);
      const attempt = place.backoff.attempt;
      log.info(
        `worker ${place.id} restarted (pid ${worker.pid}, attempt ${attempt}, after ${afterMs}ms)`,
      );
    }
    if (this.#phase !== Phase.starting) return;
    if (!this.#places.every(({ process }) => process?.isReady)) return;
    this.#phase = Phase.running;
    this.#onUp();
  }

  #onFailed(place: Place, text: string): void {
    // The last line says what has failed, those before it why.
    const lines = text.split('\n');
    const last = lines.pop()!;
    if (this.#phase === Phase.starting) {
      for (const line of lines) log.error(line);
      this.#abandonStart(last);
    } else {
      log.error(`worker ${place.id} cannot start: ${lines[0] ?? last}`);
    }
  }

  #onExit(place: Place, worker: WorkerProcess, how: string): void {
    place.process = null;
    place.endedAt = performance.now();
    this.#round?.onExit(worker);
    const { id } = place;
    if (this.#phase === Phase.starting) {
      this.#abandonStart(`worker ${id} died while starting: ${how}`);
    } else if (this.#phase === Phase.running || !(worker.isKilled || how === 'exit code 0')) {
      const lost = worker.clients === undefined ? '' : `, clients lost=${worker.clients}`;
      log.warning(`worker ${id} died: ${how} (pid ${worker.pid}, age=${worker.age}s${lost})`);
    }
    if (this.#phase === Phase.running) this.#scheduleRestart(place, worker);
    this.#options.onWorkerGone(id);
    this.#endIfEmpty();
    this.#stopIfAllDue();
  }

  #scheduleRestart(place: Place, worker: WorkerProcess): void {
    const pauseMs = place.backoff.next(performance.now() - worker.spawnedAt);
    if (place.backoff.isAtLimit) {
      log.error(`worker ${place.id} keeps dying, next attempt in ${pauseMs / 1000}s`);
    }
    place.orphans.push(...worker.servers.values());
    place.restart = setTimeout(() => this.#spawn(place), pauseMs);
  }

  #abandonStart(text: string): void {
    this.#startError = new ConfigError(text);
    this.#phase = Phase.stopping;
    for (const { process } of this.#places) process?.kill();
  }

  #endIfEmpty(): void {
    if (this.#phase !== Phase.stopping) return;
    if (this.#places.some(({ process }) => process !== null)) return;
    this.#phase = Phase.ended;
    clearInterval(this.#pinging);
    this.#onEnd();
  }

  #ping(): void {
    for (const { id, process } of this.#places) {
      if (process === null) continue;
      const verdict = process.ping();
      const isLate = !process.isReady && performance.now() - process.spawnedAt > START_LIMIT_MS;
      if (verdict !== 'well') {
        log.warning(`worker ${id} not responding for ${process.pulse.lateSeconds}s`);
      }
      if (verdict === 'stalled' || isLate) process.kill();
    }
  }

  #killLater(place: Place, worker: WorkerProcess): void {
    setTimeout(() => {
      if (place.process !== worker || worker.isKilled) return;
      log.warning(`worker ${place.id} does not end, killing it (pid ${worker.pid})`);
      worker.kill();
    }, LINGER_MS).unref();
  }

  /**
   * Gives a client's socket to a worker. It stays open here until it is on its way, and for as long
   * as the worker that it is meant for is being replaced.
   */
  #passOn(handoff: Handoff, handle: RawHandle, waitedMs = 0): void {
    const wanted = this.#places[handoff.target];
    const mayComeBack =
      wanted !== undefined && (wanted.process?.isReady === false || wanted.restart !== null);
    if (mayComeBack && !handoff.visited.includes(handoff.target) && waitedMs < TARGET_WAIT_MS) {
      setTimeout(() => this.#passOn(handoff, handle, waitedMs + TARGET_LOOK_MS), TARGET_LOOK_MS);
      return;
    }
    const live = this.#places.filter(({ process }) => process?.isReady).map(({ id }) => id);
    const target = pickTarget(handoff, live);
    if (target === null) {
      log.warning('a client is closed because no worker is left to take it');
      handle.close();
      return;
    }
    this.#places[target]!.process!.sendSocket({ ...handoff, target }, handle, (isSent) => {
      if (isSent) handle.close();
      else this.#passOn({ ...handoff, visited: [...handoff.visited, target] }, handle);
    });
  }
}
