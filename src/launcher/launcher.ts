import type { Config } from '../config/config.ts';
import type { FileReads } from '../config/file-reads.ts';
import { smallBudgets } from '../config/small-budgets.ts';
import { ConfigError } from '../errors.ts';
import type { StopMode } from '../ipc/control.ts';
import { type LogOutputs, log } from '../log/logger.ts';
import { PRODUCT, RUNTIME } from '../log/version.ts';
import { Control } from './control.ts';
import { Fleet } from './fleet.ts';
import { answerInquiry, type Changes } from './inquiries.ts';
import type { Listener } from './listener.ts';
import { Notify } from './notify.ts';
import { passedListeners } from './passed-sockets.ts';
import { checkPidfile, removePidfile, writePidfile } from './pidfile.ts';
import { descriptorLimits, expectedFds, fleetSize } from './plan.ts';
import { Reloader, type ReloadResult, type SetResult } from './reload.ts';
import { RuntimeClaim, runtimeDirOf } from './runtime-dir.ts';
import { StatsLine } from './stats-line.ts';
import { bindTcpListeners } from './tcp-listeners.ts';
import { bindUnixListener, checkUnixSocket } from './unix-listener.ts';
import { workerMainPath } from './worker-command.ts';

/** Of the fleet that this launcher starts. */
const GENERATION = 1;

export interface LauncherOptions {
  readonly config: Config;
  /** What its load has read; default: SET reads it again. */
  readonly reads?: FileReads;
  /** Path of the configuration file without links, which names the fleet's runtime folder. */
  readonly realFile: string;
  /** Where the workers log; the launcher's own log is set up by its caller. */
  readonly log: LogOutputs;
  /** The same for a configuration that is loaded later; default: `log` with that one's `logfile`. */
  readonly outputsOf?: (config: Config) => LogOutputs;
  /** Sockets that the service manager has passed; default: none. */
  readonly passed?: readonly number[];
  /** The worker's program; default: pgfleet's own. */
  readonly workerMain?: string;
}

/**
 * The parent process of a fleet: binds the addresses, starts the workers, keeps them running and ends
 * them. It never accepts, reads or writes for a client. `start` and then `finished` are its life:
 *
 *   starting ──> up ──(stop)──> stopping ──> finished
 *
 * What it makes on the way (sockets, folder, pidfile) is undone in reverse order when it ends.
 */
export class Launcher {
  readonly #options: LauncherOptions;
  readonly #runtimeDir: string;
  readonly #undo: (() => void)[] = [];
  #listeners: Listener[] = [];
  #fleet: Fleet | null = null;
  #reloader: Reloader | null = null;
  #stopMode: StopMode | null = null;
  #hasStarted = false;
  /** Signals that have asked for a reload since the last one. */
  #reloadsAsked = 0;
  /** Exit status of the program when the fleet has ended. */
  exitStatus = 0;
  readonly #control = new Control({
    config: () => this.#config,
    broadcast: (message) => this.#fleet?.broadcast(message) ?? [],
    sendTo: (worker, message) => this.#fleet?.sendTo(worker, message),
    reload: () => this.reload(),
    set: (key, value) => this.#set(key, value),
    stop: (mode) => this.stop(mode),
  });
  readonly #notify = new Notify();
  readonly #stats = new StatsLine({
    period: () => this.#config.settings.stats_period,
    isLogged: () => this.#config.settings.log_stats,
    broadcast: (message) => this.#fleet?.broadcast(message) ?? [],
    onAverages: (text) => this.#notify.status(text.replaceAll(' us', ' μs')),
  });
  #onStarted: () => void = () => {};
  /** Settled when `start` is over, whatever came of it. */
  readonly #started = new Promise<void>((resolve) => {
    this.#onStarted = resolve;
  });
  #onFinished: () => void = () => {};
  /** Settled when the fleet has been stopped and nothing of it is left. */
  readonly finished = new Promise<void>((resolve) => {
    this.#onFinished = resolve;
  });

  constructor(options: LauncherOptions) {
    this.#options = options;
    this.#runtimeDir = runtimeDirOf(options.config.fleet.runtime_dir, options.realFile);
  }

  /** The configuration in force. */
  get #config(): Config {
    return this.#reloader?.config ?? this.#options.config;
  }

  get isStopping(): boolean {
    return this.#stopMode !== null;
  }

  /** All of it is paused or suspended. */
  get isPaused(): boolean {
    return this.#control.state.mode !== 'active';
  }

  get isSuspended(): boolean {
    return this.#control.state.mode === 'suspended';
  }

  /** Process ids of the workers by number; 0 for one that is down. */
  get workerPids(): number[] {
    return this.#fleet?.pids ?? [];
  }

  /**
   * Brings the fleet up. False when `stop` came first. Throws ConfigError with PgBouncer's text when
   * it cannot, after undoing what had been done.
   */
  async start(): Promise<boolean> {
    try {
      await this.#listen();
      const isUp = !this.isStopping && (await this.#startWorkers());
      if (isUp) this.#announce();
      else await this.#finish();
      this.#hasStarted = isUp;
      return isUp;
    } catch (error) {
      await this.#fleet?.stop('now');
      this.#cleanUp();
      throw error;
    } finally {
      this.#onStarted();
    }
  }

  /**
   * Ends the fleet: at once, or when its clients have left or its servers are free. A later call may
   * say otherwise. During the start every mode ends it at once.
   */
  stop(mode: StopMode): void {
    const isFirst = this.#stopMode === null;
    if (isFirst) this.#notify.stopping();
    if (this.#stopMode !== 'now') this.#stopMode = this.#hasStarted ? mode : 'now';
    this.#control.onStop(this.#stopMode);
    const stopped = this.#fleet?.stop(this.#stopMode);
    // The kernel would go on completing connects on a socket that nobody accepts from.
    for (const listener of this.#listeners) if (listener.kind === 'tcp') listener.close();
    this.#listeners = this.#listeners.filter((listener) => listener.kind !== 'tcp');
    if (isFirst && this.#hasStarted) void stopped?.then(() => this.#finish());
  }

  pause(): void {
    this.#control.run({ name: 'pause', database: null });
  }

  resume(): void {
    this.#control.run({ name: 'resume', database: null, isInUse: false });
  }

  /** A signal asks for a reload; it comes after the commands that are being carried out. */
  requestReload(): void {
    this.#notify.reloading();
    this.#reloadsAsked++;
    this.#control.run({ name: 'reload' });
  }

  /**
   * Reads the configuration anew and puts it in force in all workers, or in none when there is an
   * error in it, which is in the log then. Opens log files anew, so that they can be rotated. A call
   * during the start waits for its end.
   */
  async reload(): Promise<ReloadResult> {
    await this.#started;
    if (this.#reloader === null) return { ok: false, text: 'the fleet does not run' };
    const result = await this.#reloader.reload();
    // Whatever came of it, systemd waits for the end of the reload that it has asked for.
    if (this.#reloadsAsked > 0 && !this.isStopping) this.#notify.ready();
    this.#reloadsAsked = 0;
    return result;
  }

  #changes(): Changes {
    return this.#reloader?.preview() ?? { changes: null, problems: ['the fleet does not run'] };
  }

  async #set(key: string, value: string): Promise<SetResult> {
    await this.#started;
    if (this.#reloader === null) return { ok: false, text: 'the fleet does not run' };
    return await this.#reloader.set(key, value);
  }

  /** Checks that nobody else is in this place, then binds. Order and texts are PgBouncer's. */
  async #listen(): Promise<void> {
    const { settings, fleet } = this.#options.config;
    const { passed = [] } = this.#options;
    const isPassed = passed.length > 0;
    if (!isPassed) await checkUnixSocket(settings);
    if (settings.pidfile !== '') checkPidfile(settings.pidfile);
    this.#logLimits();
    this.#undo.push(() => {
      for (const listener of this.#listeners) listener.close();
    });
    this.#listeners = isPassed
      ? passedListeners(passed, settings)
      : await bindTcpListeners(settings, fleetSize(fleet.size));
    const claim = await RuntimeClaim.take(this.#runtimeDir, fleet.runtime_dir !== null, (socket) =>
      answerInquiry(socket, () => this.#changes()),
    );
    this.#undo.push(() => claim.release());
    const unix = isPassed ? null : bindUnixListener(settings);
    if (unix !== null) this.#listeners.push(unix);
    if (this.#listeners.length === 0) throw new ConfigError('nowhere to listen on');
  }

  async #startWorkers(): Promise<boolean> {
    const { config, reads, log: outputs, workerMain = workerMainPath() } = this.#options;
    this.#fleet = new Fleet({
      config,
      size: fleetSize(config.fleet.size),
      generation: GENERATION,
      listeners: this.#listeners,
      runtimeDir: this.#runtimeDir,
      workerMain,
      log: outputs,
      state: () => this.#control.state,
      onStats: (worker, answer) => this.#stats.onAnswer(worker, answer),
      onControl: (worker, message) => this.#control.onMessage(worker, message),
      onWorkerGone: (worker) => this.#control.onWorkerGone(worker),
    });
    const fleet = this.#fleet;
    this.#reloader = new Reloader({
      config,
      ...(reads === undefined ? {} : { reads }),
      size: fleetSize(config.fleet.size),
      outputsOf:
        this.#options.outputsOf ?? ((next) => ({ ...outputs, logfile: next.settings.logfile })),
      spread: (next, nextOutputs, onDecided) => fleet.reload(next, nextOutputs, onDecided),
      reopenLogs: () => fleet.reopenLogs(),
    });
    return await fleet.start();
  }

  #logLimits(): void {
    const { config } = this.#options;
    const limits = descriptorLimits();
    if (limits === null) return;
    log.info(
      `kernel file descriptor limit: ${limits.soft} (hard: ${limits.hard}); ` +
        `max_client_conn: ${config.settings.max_client_conn}, ` +
        `max expected fd use: ${expectedFds(config)}`,
    );
  }

  /** The lines that scripts wait for, written when every worker accepts clients. */
  #announce(): void {
    const { settings, fleet } = this.#options.config;
    const size = fleetSize(fleet.size);
    for (const { label, isPassed } of this.#listeners) {
      if (isPassed !== true) log.info(`listening on ${label}`);
    }
    if (size > 1) {
      log.info(
        `each of ${size} workers has its share of every limit; a client whose worker is full is ` +
          'passed on, and refused when no worker has room; ' +
          `listen_backlog ${settings.listen_backlog} holds for each worker's socket`,
      );
    }
    for (const text of smallBudgets(this.#options.config, size)) log.warning(text);
    log.info(`fleet up: ${size} workers, generation ${GENERATION}`);
    if (settings.pidfile !== '') {
      writePidfile(settings.pidfile);
      this.#undo.push(() => removePidfile(settings.pidfile));
    }
    log.info(`process up: ${PRODUCT}, ${RUNTIME}`);
    this.#notify.ready();
    this.#stats.start();
    this.#undo.push(() => this.#stats.stop());
  }

  async #finish(): Promise<void> {
    await this.#fleet?.stop('now');
    if (this.#stopMode === 'wait_for_clients') log.info('client connections dropped, exiting');
    if (this.#stopMode === 'wait_for_servers') log.info('server connections dropped, exiting');
    this.#cleanUp();
    this.#onFinished();
  }

  #cleanUp(): void {
    for (const undo of this.#undo.splice(0).reverse()) undo();
  }
}
