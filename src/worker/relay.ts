import type { Link, LinkHandler } from '../net/link.ts';
import { errorResponse } from '../wire/encode.ts';

/**
 * A client whose TLS this worker has, while another worker has its session: what the client sends is
 * passed on in clear text over a socket between the two, and the answers come back the same way. Each
 * link that is full stops the other one, so that a relay holds no more than any session does.
 *
 *   client <==TLS==> `client` link | `far` link <--Unix socket--> the other worker
 */
export class Relay {
  readonly #client: Link;
  #far: Link | null = null;
  /** For the link to the other worker, which `connect` gets. */
  readonly farHandler: LinkHandler = {
    onBytes: (bytes, start, end) => {
      this.#client.write(bytes, start, end);
      return end;
    },
    onFull: () => this.#client.pause(),
    onDrain: () => this.#client.resume(),
    // The session is over: the client gets what is left for it, and no more is read from it.
    onPeerEnd: () => this.#client.close(),
    onClose: () => this.#client.close(),
  };

  /** Takes the client's link from its session; nothing is read from it until `connect`. */
  constructor(client: Link) {
    this.#client = client;
    client.pause();
    client.handler = {
      onBytes: (bytes, start, end) => {
        this.#far?.write(bytes, start, end);
        return end;
      },
      onFull: () => this.#far?.pause(),
      onDrain: () => this.#far?.resume(),
      onPeerEnd: () => this.#far?.finish(),
      onClose: () => this.#far?.close(),
    };
  }

  /** Begins to pass bytes on. */
  connect(far: Link): void {
    this.#far = far;
    if (this.#client.isClosed) far.close();
    else this.#client.resume();
  }

  /** Nobody takes the client: it is told so. */
  refuse(text: string): void {
    this.#client.write(errorResponse('FATAL', '08P01', text));
    this.#client.close();
    this.#far?.destroy();
  }
}
