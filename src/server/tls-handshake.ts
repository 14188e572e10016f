import type { TLSSocket } from 'node:tls';
import { log } from '../log/logger.ts';
import type { Link, LinkHandler } from '../net/link.ts';
import { secureLink } from '../net/sockets.ts';
import { inTurn } from '../net/turn.ts';
import { handshakeErrorText } from '../tls/handshake-error.ts';
import { ALPN, type ServerTls } from '../tls/server-tls.ts';
import { SSL_REQUEST } from '../wire/encode.ts';

const YES = 0x53;
const NO = 0x4e;
/** Why an attempt fails whose TLS cannot be begun or agreed on. */
const NOT_BEGUN = 'sslreq processing failed';
const DIRECT_HINT = ' (server_tls_negotiation = direct needs PostgreSQL 17 or later with ssl = on)';

/** What comes of it; by then the link's own handler is back. */
export interface HandshakeEvents {
  /** Whether anybody wants the connection still. */
  isWanted(): boolean;
  /** The connection is as safe as it is to be; `isSecure` is false after a `N` that may be. */
  onSafe(isSecure: boolean): void;
  /** It is not to be used: `reason` in PgBouncer's words. */
  onUnsafe(reason: string): void;
}

/** How a connection is made safe. */
export type TlsChoice = Pick<ServerTls, 'isOptional' | 'isDirect' | 'options'>;

const HandshakeState = { asked: 0, preparing: 1, securing: 2, over: 3 } as const;
type HandshakeState = (typeof HandshakeState)[keyof typeof HandshakeState];
const { asked, preparing, securing, over } = HandshakeState;

/**
 * Makes a connection to a server safe, and handles its link meanwhile: SSLRequest and its answer of
 * one byte, or none with direct TLS, then the handshake (PostgreSQL documentation, "SSL Session
 * Encryption"). Bytes behind the answer could only have been put there by somebody in between, so
 * they end the connection.
 *
 *   asked --S--> preparing (files are looked at) --> securing --> over
 *   asked --N, which may be--> over
 *   any --the link ends--> over
 */
export class TlsHandshake implements LinkHandler {
  #state: HandshakeState = asked;
  readonly #link: Link;
  readonly #tls: TlsChoice;
  readonly #host: string;
  /** The link's own handler. */
  readonly #owner: LinkHandler;
  readonly #events: HandshakeEvents;

  /**
   * Begins on a connected link.
   * @param host as the configuration names it, which `verify-full` looks for in the certificate
   */
  constructor(link: Link, tls: TlsChoice, host: string, events: HandshakeEvents) {
    this.#link = link;
    this.#owner = link.handler;
    this.#events = events;
    this.#tls = tls;
    this.#host = host;
    link.handler = this;
    if (tls.isDirect) void this.#secure();
    else link.write(SSL_REQUEST);
  }

  onBytes(bytes: Buffer, start: number, end: number): number {
    const state = this.#state;
    if (state === securing || state === over) return end;
    const answer = bytes[start];
    if (end - start > 1 || state === preparing) {
      this.#refuse('received unencrypted data after SSL response');
    } else if (answer === YES) {
      void this.#secure();
    } else if (answer === NO && this.#tls.isOptional) {
      this.#give(() => this.#events.onSafe(false));
    } else {
      this.#refuse(answer === NO ? 'server refused SSL' : 'bad sslreq answer');
    }
    return end;
  }

  onFull(): void {}
  onDrain(): void {}

  onPeerEnd(): void {
    this.#warn(null);
    this.#give(() => this.#owner.onPeerEnd());
  }

  onClose(error: Error | null): void {
    this.#warn(error);
    this.#give(() => this.#owner.onClose(error));
  }

  async #secure(): Promise<void> {
    this.#state = preparing;
    const options = await this.#tls.options(this.#host);
    if (this.#state !== preparing || !this.#events.isWanted()) return;
    this.#state = securing;
    try {
      secureLink(this.#link, options, () => inTurn(() => this.#onSecure()));
    } catch (error) {
      log.warning(`TLS connect error: ${handshakeErrorText(error as Error)}`);
      inTurn(() => this.#refuse(NOT_BEGUN));
    }
  }

  #onSecure(): void {
    if (this.#state !== securing) return;
    if (this.#tls.isDirect && (this.#link.socket as TLSSocket).alpnProtocol !== ALPN) {
      // Whoever it is, it does not say that it speaks PostgreSQL's protocol (ALPACA attacks).
      log.warning(`TLS handshake error: server did not agree on ALPN${DIRECT_HINT}`);
      this.#refuse(NOT_BEGUN);
      return;
    }
    this.#give(() => this.#events.onSafe(true));
  }

  #refuse(reason: string): void {
    this.#give(() => this.#events.onUnsafe(reason));
  }

  /** The owner has its link back. */
  #give(tell: () => void): void {
    if (this.#state === over) return;
    this.#state = over;
    this.#link.handler = this.#owner;
    tell();
  }

  #warn(error: Error | null): void {
    if (this.#state !== securing || !this.#events.isWanted()) return;
    const hint = this.#tls.isDirect ? DIRECT_HINT : '';
    log.warning(`TLS handshake error: ${handshakeErrorText(error)}${hint}`);
  }
}
