import { clock } from '../util/clock.ts';

/**
 * Cancel requests for one destination, a pool's servers or one peer: some are on their way, each on
 * a connection of its own, the others wait their turn.
 *
 *   waiting -> connecting -> sent -> over (the far end has closed)
 *      |  ^--------'  `----------------> over (given up, too late, broken)
 *      `-------------------------------> over (given up, too late, no longer wanted)
 */

/** A far end that takes a request and does not close for so long is waited for no more, milliseconds. */
const STUCK_MS = 60_000;
const NOW_IDLE = 'not sending cancel request for client that is now idle';

export const Outcome = {
  /** The far end has closed: it has delivered the signal, or dropped the request. */
  delivered: 0,
  /** It was never sent. */
  unsent: 1,
  /** It was sent, and what became of it is not known: the signal may still come. */
  unsure: 2,
} as const;
export type Outcome = (typeof Outcome)[keyof typeof Outcome];

/** A connection that carries one request. */
export interface Carrier {
  /** Ends it at once; nothing is called any more. */
  destroy(): void;
}

export interface CarrierEvents {
  /** Asked when the connection stands; false: the request need not be sent any more. */
  isWanted(): boolean;
  onSent(): void;
  /** Called once, never before `carry` has returned. */
  onEnd(outcome: Outcome): void;
}

/** One request. */
export interface CancelJob {
  /** Its time has come; asked again and again while it waits. */
  isDue(): boolean;
  /** There is still something to cancel. */
  isWanted(): boolean;
  carry(events: CarrierEvents): Carrier;
  /** Called once, when it is over; `reason` is for the log. */
  settle(outcome: Outcome, reason: string): void;
}

export interface CancelQueueOptions {
  /** Most connections at one time. */
  readonly maxOpen: () => number;
  /**
   * Milliseconds before another attempt after one that failed, for which the request waits; null: it
   * has failed then. With it there is one attempt at a time.
   */
  readonly retryMs: () => number | null;
}

interface OnItsWay {
  readonly since: number;
  carrier: Carrier | null;
  /** Coarse clock, milliseconds; 0: not sent. */
  sentAt: number;
}

export class CancelQueue {
  readonly #options: CancelQueueOptions;
  /** When each came by the coarse clock, the oldest first. */
  readonly #waiting = new Map<CancelJob, number>();
  readonly #open = new Map<CancelJob, OnItsWay>();
  #failedAt = Number.NEGATIVE_INFINITY;

  constructor(options: CancelQueueOptions) {
    this.#options = options;
  }

  /** Requests that have a connection. */
  get active(): number {
    return this.#open.size;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Requests that have been sent and whose end is awaited. */
  get sent(): number {
    let count = 0;
    for (const { sentAt } of this.#open.values()) if (sentAt > 0) count++;
    return count;
  }

  /** The connections of those that have one. */
  get carriers(): Carrier[] {
    return [...this.#open.values()].flatMap(({ carrier }) => (carrier === null ? [] : [carrier]));
  }

  isSent(job: CancelJob): boolean {
    return (this.#open.get(job)?.sentAt ?? 0) > 0;
  }

  push(job: CancelJob): void {
    this.#waiting.set(job, clock.now);
    this.#next();
  }

  /**
   * The requester has left. What was not sent yet never will be; the end of what was sent is awaited,
   * because its signal may still come.
   */
  giveUp(job: CancelJob): void {
    const onItsWay = this.#open.get(job);
    if (onItsWay === undefined ? !this.#waiting.has(job) : onItsWay.sentAt > 0) return;
    this.#end(job, Outcome.unsent, 'client unexpected eof');
    this.#next();
  }

  /** Ends all that was not sent yet. */
  clear(reason: string): void {
    for (const job of [...this.#waiting.keys()]) this.#end(job, Outcome.unsent, reason);
    for (const [job, { sentAt }] of [...this.#open]) {
      if (sentAt === 0) this.#end(job, Outcome.unsent, reason);
    }
  }

  /**
   * What time alone brings about.
   * @param waitMs how long a request may be unsent (PgBouncer's `cancel_wait_timeout`); 0: for ever
   */
  tick(now: number, waitMs: number): void {
    const isLate = (since: number): boolean => waitMs > 0 && now - since > waitMs;
    for (const [job, since] of [...this.#waiting]) {
      if (isLate(since)) this.#end(job, Outcome.unsent, 'cancel_wait_timeout');
    }
    for (const [job, { since, sentAt }] of [...this.#open]) {
      if (sentAt === 0 && isLate(since)) this.#end(job, Outcome.unsent, 'cancel_wait_timeout');
      else if (sentAt > 0 && now - sentAt > STUCK_MS) {
        this.#end(job, Outcome.unsure, 'cancel_wait_timeout');
      }
    }
    this.#next();
  }

  /** Starts what may start, the oldest first. */
  #next(): void {
    for (const [job, since] of [...this.#waiting]) {
      if (!this.#mayStart()) return;
      if (!this.#waiting.has(job)) continue;
      if (!job.isWanted()) this.#end(job, Outcome.unsent, NOW_IDLE);
      else if (job.isDue()) this.#start(job, since);
    }
  }

  #mayStart(): boolean {
    if (this.#open.size >= this.#options.maxOpen()) return false;
    const retryMs = this.#options.retryMs();
    if (retryMs === null) return true;
    if (clock.now - this.#failedAt < retryMs) return false;
    for (const { sentAt } of this.#open.values()) if (sentAt === 0) return false;
    return true;
  }

  #start(job: CancelJob, since: number): void {
    this.#waiting.delete(job);
    const onItsWay: OnItsWay = { since, carrier: null, sentAt: 0 };
    this.#open.set(job, onItsWay);
    const isMine = (): boolean => this.#open.get(job) === onItsWay;
    onItsWay.carrier = job.carry({
      isWanted: () => isMine() && job.isWanted(),
      onSent: () => {
        if (!isMine()) return;
        onItsWay.sentAt = clock.now;
        this.#next();
      },
      onEnd: (outcome) => {
        if (isMine()) this.#onEnd(job, since, outcome);
      },
    });
  }

  #onEnd(job: CancelJob, since: number, outcome: Outcome): void {
    if (outcome === Outcome.delivered) {
      this.#end(job, outcome, 'successfully sent cancel request');
    } else if (outcome === Outcome.unsent && !job.isWanted()) {
      this.#end(job, outcome, NOW_IDLE);
    } else if (outcome === Outcome.unsure || this.#options.retryMs() === null) {
      this.#end(job, outcome, 'failed to send cancel request');
    } else {
      this.#failedAt = clock.now;
      this.#open.delete(job);
      this.#waiting.set(job, since);
    }
    this.#next();
  }

  #end(job: CancelJob, outcome: Outcome, reason: string): void {
    this.#open.get(job)?.carrier?.destroy();
    this.#open.delete(job);
    this.#waiting.delete(job);
    job.settle(outcome, reason);
  }
}
