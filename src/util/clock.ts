/**
 * The coarse clock of a process: read once when an event-loop turn begins, so that the data path
 * never asks the system for the time. Tests set `now` themselves.
 */
export class Clock {
  /** Milliseconds of a clock that never goes back; fractions are microseconds. */
  now = performance.now();

  /** Called when a turn begins. Returns the new time. */
  tick(): number {
    this.now = performance.now();
    return this.now;
  }

  /** Wall-clock time, in milliseconds since 1970, of a moment `at` of this clock. */
  wallTime(at: number): number {
    return performance.timeOrigin + at;
  }
}

export const clock = new Clock();
