import { type CancelLinkOptions, connectLike, type ServerPlace } from '../server/cancel-link.ts';
import { cancelRequest } from '../wire/encode.ts';
import { CancelErrand } from './cancel-errand.ts';

/** A connection of a worker that has died. */
export interface Orphan extends ServerPlace {
  /** BackendKeyData. */
  readonly key: Buffer;
}

/** Time for a server to take the request, in milliseconds. */
const WAIT_MS = 1000;

/**
 * What a dead worker leaves behind in PostgreSQL: a backend that runs a statement goes on to its end
 * although its client has vanished, and holds one of the connections that the limits count. So each
 * is sent a CancelRequest (PostgreSQL documentation, "Canceling Requests in Progress") before the
 * worker's successor opens connections of its own; idle ones end by themselves.
 *
 * Resolves when all requests were dealt with, or after a second.
 */
export async function cancelOrphans(
  orphans: readonly Orphan[],
  options: CancelLinkOptions,
): Promise<void> {
  await Promise.all(orphans.map((orphan) => cancel(orphan, options)));
}

function cancel(orphan: Orphan, options: CancelLinkOptions): Promise<void> {
  return new Promise((resolve) => {
    const over = (): void => {
      clearTimeout(timer);
      errand.destroy();
      resolve();
    };
    const timer = setTimeout(over, WAIT_MS);
    const errand = new CancelErrand(
      (handler, onSafe) => connectLike(orphan, options, handler, onSafe),
      cancelRequest(orphan.key),
      0,
      { isWanted: () => true, onSent: () => {}, onEnd: over },
    );
  });
}
