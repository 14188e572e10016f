import { createConnection, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Address, endpoint } from './wire-client.ts';

/**
 * Where a stream is cut: not at all, after every byte, or at these offsets from its start. The
 * pieces are sent one by one, with a pause between, so that the reader sees each by itself.
 */
export type Cut = 'nowhere' | 'every byte' | readonly number[];

export type Direction = 'toServer' | 'toClient';

export interface CutProxyOptions {
  readonly target: Address;
  readonly toServer?: Cut;
  readonly toClient?: Cut;
  /** Between two pieces; default 1 ms. */
  readonly pauseMs?: number;
}

/** A TCP proxy that re-cuts, stalls or breaks the connections that go through it. */
export class CutProxy {
  readonly host = '127.0.0.1';
  /** Connections that it has taken so far. */
  connections = 0;
  readonly #options: CutProxyOptions;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #stalled: Record<Direction, boolean> = { toServer: false, toClient: false };
  readonly #sources: Record<Direction, Set<Socket>> = { toServer: new Set(), toClient: new Set() };

  constructor(options: CutProxyOptions) {
    this.#options = options;
    this.#server = createServer({ noDelay: true, allowHalfOpen: true }, (client) => {
      this.#onClient(client);
    });
  }

  get port(): number {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('not listening');
    return address.port;
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(0, this.host, resolve);
    });
  }

  /** Reads no more in this direction until `resume`: the sender's buffers fill up. */
  stall(direction: Direction): void {
    this.#stalled[direction] = true;
    for (const source of this.#sources[direction]) source.pause();
  }

  resume(direction: Direction): void {
    this.#stalled[direction] = false;
    for (const source of this.#sources[direction]) source.resume();
  }

  /** Breaks all connections with a TCP reset on both sides. */
  reset(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  async stop(): Promise<void> {
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
    });
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  #onClient(client: Socket): void {
    this.connections++;
    const { target, toServer = 'nowhere', toClient = 'nowhere' } = this.#options;
    const server = createConnection({ ...endpoint(target), allowHalfOpen: true });
    server.setNoDelay(true);
    for (const socket of [client, server]) {
      this.#sockets.add(socket);
      socket.on('error', () => undefined);
      socket.once('close', () => this.#sockets.delete(socket));
    }
    client.once('close', () => server.destroy());
    server.once('close', () => client.destroy());
    this.#relay('toServer', client, server, toServer);
    this.#relay('toClient', server, client, toClient);
  }

  #relay(direction: Direction, source: Socket, target: Socket, cut: Cut): void {
    const sources = this.#sources[direction];
    sources.add(source);
    let offset = 0;
    source.on('data', (chunk: Buffer) => {
      source.pause();
      const start = offset;
      offset += chunk.length;
      void this.#write(target, cutUp(chunk, start, cut)).then(() => {
        if (!this.#stalled[direction]) source.resume();
      });
    });
    // A paused source says no 'end', so all of its bytes have been written by then.
    source.once('end', () => target.end());
    source.once('close', () => sources.delete(source));
    if (this.#stalled[direction]) source.pause();
  }

  async #write(target: Socket, pieces: readonly Buffer[]): Promise<void> {
    for (const [index, piece] of pieces.entries()) {
      if (index > 0) await sleep(this.#options.pauseMs ?? 1);
      if (target.destroyed) return;
      await new Promise<void>((resolve) => {
        target.write(piece, () => resolve());
      });
    }
  }
}

/** Starts a proxy before `target`; end it with `stop`. */
export async function startCutProxy(options: CutProxyOptions): Promise<CutProxy> {
  const proxy = new CutProxy(options);
  await proxy.listen();
  return proxy;
}

/** Pieces of `chunk`, whose first byte is the stream's byte number `start`. */
export function cutUp(chunk: Buffer, start: number, cut: Cut): Buffer[] {
  if (cut === 'nowhere') return [chunk];
  const inside =
    cut === 'every byte'
      ? Array.from(chunk.keys()).slice(1)
      : cut.map((at) => at - start).filter((at) => at > 0 && at < chunk.length);
  const edges = [0, ...inside.toSorted((left, right) => left - right), chunk.length];
  return edges.slice(1).map((end, index) => chunk.subarray(edges[index], end));
}
