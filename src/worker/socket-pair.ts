import { rmSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import type { Link, LinkHandler } from '../net/link.ts';
import { connectLink, type SocketOptions, takeHandle } from '../net/sockets.ts';

/** The two ends of one connection inside of this machine. */
export interface SocketPair {
  /** The end that stays here. */
  readonly near: Link;
  /** Raw handle of the end that is to travel to another process. */
  readonly far: object;
}

/**
 * Makes pairs of connected Unix sockets, for which Node has no call: one listens for a moment in the
 * fleet's private folder, and the other connects to it. One pair at a time, so that none can be
 * mistaken for another.
 */
export class SocketPairs {
  readonly #path: string;
  #last: Promise<unknown> = Promise.resolve();

  /** @param path of a socket that nobody else uses; it exists while a pair is being made only */
  constructor(path: string) {
    this.#path = path;
  }

  /** @throws Error of the system, when there are no descriptors left for instance */
  make(handler: LinkHandler, options: SocketOptions): Promise<SocketPair> {
    const made = this.#last.then(() => makePair(this.#path, handler, options));
    this.#last = made.catch(() => undefined);
    return made;
  }
}

function makePair(path: string, handler: LinkHandler, options: SocketOptions): Promise<SocketPair> {
  return new Promise((resolve, reject) => {
    let near: Link | null = null;
    let accepted: Socket | null = null;
    let isConnected = false;
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: true });
    const fail = (error: Error): void => {
      server.close();
      near?.destroy();
      accepted?.destroy();
      reject(error);
    };
    const finish = (): void => {
      if (!isConnected || accepted === null || near === null) return;
      server.close();
      const far = takeHandle(accepted);
      if (far === null) return fail(new Error('the handle of a socket cannot be had'));
      near.handler = handler;
      resolve({ near, far });
    };
    const connecting: LinkHandler = {
      onBytes: (_bytes, _start, end) => end,
      onFull: () => undefined,
      onDrain: () => undefined,
      onPeerEnd: () => fail(new Error('the other end of a socket pair was closed')),
      onClose: (error) => fail(error ?? new Error('a socket pair was closed')),
    };
    server.once('error', fail);
    server.once('connection', (socket) => {
      accepted = socket;
      finish();
    });
    // A process that was killed may have left it behind.
    rmSync(path, { force: true });
    const mask = process.umask(0o077);
    try {
      server.listen({ path, backlog: 1 }, () => {
        near = connectLink({ path }, connecting, options, () => {
          isConnected = true;
          finish();
        });
      });
    } finally {
      process.umask(mask);
    }
  });
}
