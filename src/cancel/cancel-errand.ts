import type { Socket } from 'node:net';
import { log } from '../log/logger.ts';
import type { Link, LinkHandler } from '../net/link.ts';
import type { ServerConnection } from '../server/server-connection.ts';
import { clock } from '../util/clock.ts';
import { nextId } from '../util/ids.ts';
import { cancelRequest } from '../wire/encode.ts';
import { type Carrier, type CarrierEvents, Outcome } from './cancel-queue.ts';

/** Pause before the next try when the listener's queue is full, in milliseconds. */
const RETRY_MS = 10;

type ErrandLink = Pick<Link, 'write' | 'destroy'> & Partial<Pick<Link, 'socket'>>;

/** Makes a link to where the request goes; `onSafe` is called when it may be sent there. */
export type Connect = (handler: LinkHandler, onSafe: () => void) => ErrandLink;

/** One connection that carries one CancelRequest and ends when the far end closes it. */
export class CancelErrand implements LinkHandler, Carrier {
  readonly #connect: Connect;
  readonly #packet: Buffer;
  #link: ErrandLink;
  #events: CarrierEvents | null;
  #isSent = false;
  #deadline: NodeJS.Timeout | null = null;

  /**
   * @param packet the CancelRequest; the errand keeps it
   * @param connectMs how long it may take until it is sent, milliseconds; 0: for ever
   */
  constructor(connect: Connect, packet: Buffer, connectMs: number, events: CarrierEvents) {
    this.#connect = connect;
    this.#packet = packet;
    this.#events = events;
    this.#link = this.#begin();
    if (connectMs > 0) this.#deadline = setTimeout(() => this.#giveUp(), connectMs).unref();
  }

  get socket(): Socket | undefined {
    return this.#link.socket;
  }

  destroy(): void {
    this.#over();
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

  onClose(error: NodeJS.ErrnoException | null): void {
    // A Unix socket whose accept queue is full refuses instead of letting us wait.
    if (error?.code === 'EAGAIN' && error.syscall === 'connect') {
      setTimeout(() => {
        if (this.#events !== null) this.#link = this.#begin();
      }, RETRY_MS).unref();
      return;
    }
    if (error !== null && this.#events !== null) {
      log.warning(`cancel request could not be sent: ${error.message.trimEnd()}`);
    }
    if (!this.#isSent) this.#end(Outcome.unsent);
    else this.#end(error === null ? Outcome.delivered : Outcome.unsure);
  }

  #begin(): ErrandLink {
    return this.#connect(this, () => this.#send());
  }

  #send(): void {
    const events = this.#events;
    if (events === null || !events.isWanted()) {
      this.#giveUp();
      return;
    }
    if (this.#deadline !== null) clearTimeout(this.#deadline);
    this.#link.write(this.#packet);
    this.#isSent = true;
    events.onSent();
  }

  #giveUp(): void {
    this.#link.destroy();
    this.#end(Outcome.unsent);
  }

  #end(outcome: Outcome): void {
    const events = this.#events;
    this.#over();
    events?.onEnd(outcome);
  }

  #over(): void {
    this.#events = null;
    if (this.#deadline !== null) clearTimeout(this.#deadline);
  }
}

/** The errand to a server, which counts as one of its pool's connections while it lasts. */
export class ServerErrand extends CancelErrand {
  readonly id = nextId();
  readonly connectedAt = clock.now;
  readonly server: ServerConnection;

  constructor(server: ServerConnection, connect: Connect, events: CarrierEvents) {
    super(connect, cancelRequest(server.cancelKey), 0, events);
    this.server = server;
  }
}
