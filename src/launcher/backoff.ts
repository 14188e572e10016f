const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 10_000;
/** A process that ran so long is taken to have been healthy. */
const HEALTHY_MS = 30_000;

/** How long a worker's place stays empty: not at all at first, then doubling up to ten seconds. */
export class Backoff {
  /** Restarts since the last healthy run. */
  attempt = 0;

  /** Milliseconds to wait after a process has ended that ran for `ranMs`. */
  next(ranMs: number): number {
    if (ranMs >= HEALTHY_MS) this.attempt = 0;
    this.attempt++;
    if (this.attempt === 1) return 0;
    return Math.min(FIRST_PAUSE_MS * 2 ** (this.attempt - 2), MAX_PAUSE_MS);
  }

  get isAtLimit(): boolean {
    return FIRST_PAUSE_MS * 2 ** (this.attempt - 2) >= MAX_PAUSE_MS;
  }
}
