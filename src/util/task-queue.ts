import { Ring } from './ring.ts';

interface Turn {
  readonly isWanted: () => boolean;
  /** Told whether the turn is taken. */
  readonly settle: (isTaken: boolean) => void;
}

/** Runs at most `atATime` tasks at a time; the others wait, first come first served. */
export class TaskQueue {
  readonly #atATime: number;
  readonly #waiting = new Ring<Turn>();
  #running = 0;
  /** Tasks begun so far. */
  started = 0;

  constructor(atATime: number) {
    this.#atATime = atATime;
  }

  /** Runs `work` when its turn comes. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    await this.#turn(() => true);
    return this.#do(work);
  }

  /** The same, or null, without the work, when nobody wants it any more by then. */
  async runIfWanted<T>(work: () => Promise<T>, isWanted: () => boolean): Promise<T | null> {
    return (await this.#turn(isWanted)) ? this.#do(work) : null;
  }

  /** False: it was not wanted, and takes no turn. */
  #turn(isWanted: () => boolean): Promise<boolean> {
    return new Promise((resolve) => {
      this.#waiting.push({ isWanted, settle: resolve });
      this.#beginNext();
    });
  }

  async #do<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } finally {
      this.#running--;
      this.#beginNext();
    }
  }

  #beginNext(): void {
    while (this.#running < this.#atATime) {
      const turn = this.#waiting.shift();
      if (turn === undefined) return;
      const isTaken = turn.isWanted();
      if (isTaken) {
        this.#running++;
        this.started++;
      }
      turn.settle(isTaken);
    }
  }
}
