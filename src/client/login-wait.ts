import { log } from '../log/logger.ts';
import type { ClientSession } from './client-session.ts';

/** How many promises a client's login waits for: one may begin where another ends. */
const waits = new WeakMap<ClientSession, number>();

/**
 * Goes on with a value at once, or with a promised one when it is there and the client still is. The
 * client's link is held meanwhile.
 */
export function after<T>(
  session: ClientSession,
  value: T | Promise<T>,
  goOn: (value: T) => void,
): void {
  if (!(value instanceof Promise)) {
    goOn(value);
    return;
  }
  session.link.hold();
  addWait(session, 1);
  value.then(
    (result) => {
      if (session.isClosed) return;
      goOn(result);
      if (addWait(session, -1) === 0 && !session.isClosed) session.link.replay();
    },
    (error: unknown) => {
      log.error(`InvariantError: ${String((error as Error).stack ?? error)}`);
      session.fatal('bouncer config error');
    },
  );
}

function addWait(session: ClientSession, step: number): number {
  const count = (waits.get(session) ?? 0) + step;
  waits.set(session, count);
  return count;
}
