import { log } from '../log/logger.ts';
import type { Link, LinkHandler } from '../net/link.ts';
import type { ServerConnection } from '../server/server-connection.ts';
import { cancelRequest } from '../wire/encode.ts';
import { type Carrier, type CarrierEvents, Outcome } from './cancel-queue.ts';

/** Makes a link to where a server listens; `onSafe` is called when it is as safe as the server's own. */
export type Connect = (
  server: ServerConnection,
  handler: LinkHandler,
  onSafe: () => void,
) => Pick<Link, 'write' | 'destroy'>;

/** One connection that carries one CancelRequest to a server and ends when the server closes it. */
export class CancelErrand implements LinkHandler, Carrier {
  readonly #link;
  #events: CarrierEvents | null;
  #isSent = false;

  constructor(server: ServerConnection, connect: Connect, events: CarrierEvents) {
    this.#events = events;
    this.#link = connect(server, this, () => {
      if (!events.isWanted()) {
        this.#link.destroy();
        this.#end(Outcome.unsent);
        return;
      }
      this.#link.write(cancelRequest(server.cancelKey));
      this.#isSent = true;
      events.onSent();
    });
  }

  destroy(): void {
    this.#events = null;
    this.#link.destroy();
  }

  onBytes(_bytes: Buffer, _start: number, end: number): number {
    return end;
  }

  onFull(): void {}
  onDrain(): void {}

  onPeerEnd(): void {
    this.#link.destroy();
    this.#end(this.#isSent ? Outcome.delivered : Outcome.unsent);
  }

  onClose(error: Error | null): void {
    if (error !== null && this.#events !== null) {
      log.warning(`cancel request could not be sent: ${error.message}`);
    }
    if (!this.#isSent) this.#end(Outcome.unsent);
    else this.#end(error === null ? Outcome.delivered : Outcome.unsure);
  }

  #end(outcome: Outcome): void {
    const events = this.#events;
    this.#events = null;
    events?.onEnd(outcome);
  }
}
