import { createServer, type Server, type Socket } from 'node:net';
import type { ListenerGrant } from '../ipc/messages.ts';
import { log } from '../log/logger.ts';

/**
 * The sockets on which a worker accepts. The launcher has bound them and they live on in it when
 * this process ends, so that connects that the kernel has queued are not lost.
 */
export class Listeners {
  readonly #servers: { grant: ListenerGrant; server: Server }[] = [];
  readonly #backlog: number;

  /** @param onSocket an accepted socket, which has not been read from */
  constructor(
    grants: readonly ListenerGrant[],
    backlog: number,
    onSocket: (socket: Socket, kind: ListenerGrant['kind']) => void,
  ) {
    this.#backlog = backlog;
    for (const grant of grants) {
      const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) =>
        onSocket(socket, grant.kind),
      );
      this.#servers.push({ grant, server });
    }
  }

  /** @throws the system's error when a socket cannot be listened on */
  async listen(): Promise<void> {
    for (const { grant, server } of this.#servers) {
      const where =
        grant.fd === null
          ? { host: grant.host, port: grant.port, reusePort: true, ipv6Only: true }
          : { fd: grant.fd };
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject);
        server.listen({ ...where, backlog: this.#backlog }, () => {
          server.off('error', reject);
          server.on('error', (error) => log.error(`${grant.label}: ${error.message}`));
          resolve();
        });
      });
    }
  }

  /** The sockets that are listened on, with their descriptors' numbers in this process. */
  get descriptors(): { readonly fd: number; readonly grant: ListenerGrant }[] {
    return this.#servers.flatMap(({ grant, server }) => {
      const { _handle: handle } = server as unknown as { _handle: { readonly fd?: number } | null };
      return server.listening ? [{ fd: handle?.fd ?? 0, grant }] : [];
    });
  }

  /** Stops accepting on TCP; the Unix socket stays, for the console. */
  closeTcp(): void {
    for (const { grant, server } of this.#servers) if (grant.kind === 'tcp') server.close();
  }

  close(): void {
    for (const { server } of this.#servers) server.close();
  }
}
