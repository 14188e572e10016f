import { clock } from '../util/clock.ts';

/**
 * An event-loop turn: everything that one socket event, timer or message makes the process do.
 * What is written in a turn leaves at its end, one write a socket. Code that runs outside of a turn
 * (a promise's continuation, a message from the launcher) gets one made for it by `flushSoon`.
 */

/** Something with bytes to send when the turn ends. */
export interface Flushable {
  flush(): void;
}

const dirty: Flushable[] = [];
let depth = 0;
let isScheduled = false;

/** Starts a turn and reads the clock. */
export function beginTurn(): void {
  if (depth++ === 0) clock.tick();
}

/** Ends a turn: all that was written in it is handed to the sockets. */
export function endTurn(): void {
  if (--depth > 0) return;
  flushAll();
}

/** Runs `work` as one turn; for timers and messages, whose handlers are not sockets' own. */
export function inTurn(work: () => void): void {
  beginTurn();
  try {
    work();
  } finally {
    endTurn();
  }
}

/** Notes that `link` has bytes to send. Called once a turn by each link that writes. */
export function flushLater(link: Flushable): void {
  dirty.push(link);
  if (depth === 0 && !isScheduled) {
    isScheduled = true;
    queueMicrotask(flushScheduled);
  }
}

function flushScheduled(): void {
  isScheduled = false;
  flushAll();
}

function flushAll(): void {
  // Flushing may dirty further links (a full one pauses its source); the array only grows meanwhile.
  for (let i = 0; i < dirty.length; i++) dirty[i]!.flush();
  dirty.length = 0;
}
