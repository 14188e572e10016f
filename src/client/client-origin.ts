import type { TlsFacts } from '../auth/client-connection.ts';

/**
 * Where a client has come from that reaches this worker through another one: that one has ended its
 * TLS and passes its bytes on, so the socket tells nothing of it.
 */
export interface ClientOrigin {
  /** IP address in its usual text form. */
  readonly address: string;
  readonly port: number;
  readonly localAddress: string;
  readonly localPort: number;
  readonly tls: TlsFacts;
}
