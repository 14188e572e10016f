import type { Config } from '../config/config.ts';
import type { ReloadAnswer, ReloadStep, ToWorker } from '../ipc/messages.ts';
import { type LogOutputs, log } from '../log/logger.ts';

/**
 * One reload, agreed on by all workers:
 *
 *   prepare ──(all agree)──> commit ──(all have switched)──> release ──> over
 *      └──(one refuses, ends or is silent)──> abort: nobody switches
 *
 * After the decision there is no way back: a worker that does not follow is killed, and the one that
 * takes its place starts with the new configuration. From `commit` to `release` every worker keeps
 * to the smaller of each old and new limit, so that no raise in one meets a share that another has
 * not given up yet.
 */

/** How long workers may take to prepare, to switch and to release. */
const STEP_LIMIT_MS = 10_000;

/** A worker process that has been started. */
export interface Member {
  readonly pid: number;
  send(message: ToWorker): void;
  kill(): void;
}

/** The fleet, as a round sees it. */
export interface Crew {
  /** All processes that were sent their `start`. */
  members(): readonly Member[];
  /** All have agreed: whoever starts from now on gets the new configuration, and the old limits too. */
  onDecided(): void;
  /** All have switched: whoever starts from now on has the new limits only. */
  onReleased(): void;
}

export class ReloadRound {
  readonly #config: Config;
  readonly #log: LogOutputs;
  readonly #crew: Crew;
  #step: ReloadStep = 'prepare';
  #awaited = new Set<Member>();
  /** Ends the step: with the reason why nobody may switch, or null. */
  #onStepEnd: (refusal: string | null) => void = () => {};

  constructor(config: Config, outputs: LogOutputs, crew: Crew) {
    this.#config = config;
    this.#log = outputs;
    this.#crew = crew;
  }

  /** Returns null when the configuration is in force in every worker, else why in none. */
  async run(): Promise<string | null> {
    const { version } = this.#config;
    const voters = this.#crew.members();
    const refusal = await this.#take('prepare', voters);
    if (refusal !== null) {
      const abort: ToWorker = { kind: 'reload_step', version, step: 'abort' };
      for (const voter of voters) voter.send(abort);
      return refusal;
    }
    this.#crew.onDecided();
    const members = this.#crew.members();
    // Started meanwhile with the old configuration, and asked too late to have a say.
    for (const member of members) if (!voters.includes(member)) member.send(this.#prepare());
    await this.#take('commit', members);
    this.#crew.onReleased();
    await this.#take('release', this.#crew.members());
    return null;
  }

  onAnswer(member: Member, answer: ReloadAnswer): void {
    if (answer.version !== this.#config.version || answer.step !== this.#step) return;
    if (!this.#awaited.has(member)) return;
    if (answer.refusal === null) this.#settle(member);
    else this.#fail(member, answer.refusal);
  }

  onExit(member: Member): void {
    if (!this.#awaited.has(member)) return;
    // It may have been the new configuration that ended it.
    if (this.#step === 'prepare') this.#onStepEnd(`worker (pid ${member.pid}) ended meanwhile`);
    else this.#settle(member);
  }

  /** Asks members for one step and waits for their answers. Returns a refusal of `prepare` or null. */
  async #take(
    step: Exclude<ReloadStep, 'abort'>,
    members: readonly Member[],
  ): Promise<string | null> {
    this.#step = step;
    this.#awaited = new Set(members);
    const answered = new Promise<string | null>((resolve) => {
      this.#onStepEnd = resolve;
    });
    const limit = setTimeout(() => this.#onSilence(), STEP_LIMIT_MS);
    const { version } = this.#config;
    const message: ToWorker =
      step === 'prepare' ? this.#prepare() : { kind: 'reload_step', version, step };
    for (const member of members) member.send(message);
    if (members.length === 0) this.#onStepEnd(null);
    const refusal = await answered;
    clearTimeout(limit);
    this.#awaited.clear();
    return refusal;
  }

  #prepare(): ToWorker {
    const { version } = this.#config;
    return { kind: 'reload_prepare', version, config: this.#config, log: this.#log };
  }

  #settle(member: Member): void {
    this.#awaited.delete(member);
    if (this.#awaited.size === 0) this.#onStepEnd(null);
  }

  #onSilence(): void {
    const text = `did not answer within ${STEP_LIMIT_MS / 1000}s`;
    for (const member of [...this.#awaited]) this.#fail(member, text);
  }

  #fail(member: Member, why: string): void {
    if (this.#step === 'prepare') {
      this.#onStepEnd(`worker (pid ${member.pid}): ${why}`);
      return;
    }
    log.error(`worker (pid ${member.pid}) cannot follow a reload, replacing it: ${why}`);
    member.kill();
  }
}
