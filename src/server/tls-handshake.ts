import type { LinkHandler } from '../net/link.ts';
import { SSL_REQUEST } from '../wire/encode.ts';
import type { ServerConnection } from './server-connection.ts';

const YES = 0x53;
const NO = 0x4e;

/**
 * SSLRequest to a server and its answer of one byte (PostgreSQL documentation, "SSL Session
 * Encryption"). Handles the link until the answer has come; bytes behind the answer could only have
 * been put there by somebody in between, so they end the connection.
 */
export class TlsHandshake implements LinkHandler {
  readonly #server: ServerConnection;
  readonly #isOptional: boolean;
  readonly #onYes: () => void;
  #isDone = false;

  constructor(server: ServerConnection, isOptional: boolean, onYes: () => void) {
    this.#server = server;
    this.#isOptional = isOptional;
    this.#onYes = onYes;
    server.link.write(SSL_REQUEST);
  }

  onBytes(bytes: Buffer, start: number, end: number): number {
    if (this.#isDone) return end;
    this.#isDone = true;
    const answer = bytes[start];
    if (end - start > 1) {
      this.#server.abandonLogin('received unencrypted data after SSL response');
    } else if (answer === YES) {
      this.#onYes();
    } else if (answer === NO && this.#isOptional) {
      this.#server.link.handler = this.#server;
      this.#server.beginLogin();
    } else {
      this.#server.abandonLogin(answer === NO ? 'server refused SSL' : 'bad sslreq answer');
    }
    return end;
  }

  onFull(): void {}
  onDrain(): void {}

  onPeerEnd(): void {
    this.#server.onPeerEnd();
  }

  onClose(error: Error | null): void {
    this.#server.onClose(error);
  }
}
