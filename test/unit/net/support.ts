import { EventEmitter, once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { log } from '../../../src/log/logger.ts';
import { Link, type LinkHandler } from '../../../src/net/link.ts';
import { acceptLink, connectLink } from '../../../src/net/sockets.ts';

export const SOCKET_OPTIONS = { keepAlive: false, keepAliveIdle: 0 };
export type SocketKind = 'tcp' | 'unix';
export type Place = { host: string; port: number } | { path: string };

/** A promise with its two ends at hand. */
export function deferred<T>(): {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (error: unknown) => void;
} {
  let resolve!: (value: T) => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}

/** What is logged while the test runs; nothing reaches the output. */
export function logged(t: TestContext): string[] {
  const lines: string[] = [];
  t.mock.method(log, 'write', (_level: number, text: string) => void lines.push(text));
  return lines;
}

/** Notes all that a link tells, and acts as a test says. */
export class Recorder implements LinkHandler {
  fullCalls = 0;
  readonly events: string[] = [];
  readonly chunks: Buffer[] = [];
  error: Error | null = null;
  readonly emitter = new EventEmitter();
  /** Uses bytes and returns the offset of the first one not used. */
  use: (bytes: Buffer, start: number, end: number) => number = (bytes, start, end) => {
    this.chunks.push(Buffer.from(bytes.subarray(start, end)));
    return end;
  };
  /** Called first in every event with its name, to misbehave or to act. */
  act: (event: string) => void = () => {};

  get text(): string {
    return Buffer.concat(this.chunks).toString('latin1');
  }

  /** Resolves at the next event of that name, or at once if it has been. */
  async seen(event: string): Promise<void> {
    if (!this.events.includes(event)) await once(this.emitter, event);
  }

  onBytes(bytes: Buffer, start: number, end: number): number {
    this.act('bytes');
    const used = this.use(bytes, start, end);
    this.emitter.emit('bytes');
    return used;
  }

  onFull(): void {
    // Told at each flush, for a source may have come meanwhile; noted once in a row.
    this.fullCalls++;
    if (this.events.at(-1) !== 'full') this.#note('full');
  }

  onDrain(): void {
    this.#note('drain');
  }

  onPeerEnd(): void {
    this.#note('end');
  }

  onClose(error: Error | null): void {
    this.error = error;
    this.#note('close');
  }

  #note(event: string): void {
    this.events.push(event);
    this.act(event);
    this.emitter.emit(event);
  }
}

/** A socket without a kernel: notes writes, and takes them at once or only when told. */
export class FakeSocket extends EventEmitter {
  readonly written: Buffer[] = [];
  /** Bytes that the "kernel" has not taken. */
  writableLength = 0;
  /** While false, what is written stays in `writableLength`. */
  takes = true;
  isReading = true;
  ended = false;
  destroyed = false;
  connecting = false;
  /** A TLS socket. */
  readonly encrypted: boolean;
  remoteAddress: string | undefined = undefined;
  remotePort: number | undefined = undefined;
  #callbacks: (() => void)[] = [];

  constructor(encrypted = false) {
    super();
    this.encrypted = encrypted;
  }

  write(bytes: Buffer, callback?: () => void): boolean {
    if (this.ended || this.destroyed) throw new Error('write after end');
    if (bytes.length > 0) this.written.push(Buffer.from(bytes));
    if (!this.takes) this.writableLength += bytes.length;
    if (callback !== undefined) this.#callbacks.push(callback);
    return true;
  }

  /** The peer takes all that waits. */
  take(): void {
    this.writableLength = 0;
    for (const callback of this.#callbacks.splice(0)) callback();
  }

  pause(): void {
    this.isReading = false;
  }

  resume(): void {
    this.isReading = true;
  }

  end(): void {
    this.ended = true;
  }

  destroySoon(): void {
    this.ended = true;
    if (this.writableLength === 0) this.destroy();
  }

  destroy(): void {
    if (this.destroyed) return;
    this.destroyed = true;
    this.emit('close');
  }
}

/** A link over a `FakeSocket`. */
export function fakeLink(encrypted = false): { link: Link; socket: FakeSocket; handler: Recorder } {
  const socket = new FakeSocket(encrypted);
  const handler = new Recorder();
  return { link: new Link(socket as unknown as Socket, handler), socket, handler };
}

/** A listening socket that hands over what it accepts unread. */
export async function listen(
  t: TestContext,
  kind: SocketKind,
  onSocket: (socket: Socket) => void,
): Promise<Place> {
  const server: Server = createServer({ pauseOnConnect: true, allowHalfOpen: true }, onSocket);
  let place: Place;
  if (kind === 'tcp') {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    place = { host: '127.0.0.1', port: (server.address() as AddressInfo).port };
  } else {
    const folder = await mkdtemp(join(tmpdir(), 'pgfleet-net-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    place = { path: join(folder, 's') };
    server.listen(place);
    await once(server, 'listening');
  }
  t.after(() => server.close());
  return place;
}

/** A link on an accepted connection, and the plain socket at its other end. */
export async function acceptedPair(
  t: TestContext,
  kind: SocketKind = 'tcp',
  handler = new Recorder(),
): Promise<{ link: Link; handler: Recorder; peer: Socket }> {
  const accepted = deferred<Link>();
  const place = await listen(t, kind, (socket) =>
    accepted.resolve(acceptLink(socket, handler, SOCKET_OPTIONS)),
  );
  const peer = connect({ ...place, allowHalfOpen: true });
  peer.on('error', () => {});
  t.after(() => peer.destroy());
  const link = await accepted.promise;
  t.after(() => link.destroy());
  return { link, handler, peer };
}

/** Two links at the ends of one connection: `near` has connected, `far` was accepted. */
export async function linkedPair(
  t: TestContext,
  kind: SocketKind,
  nearHandler: LinkHandler,
  farHandler: LinkHandler,
): Promise<{ near: Link; far: Link }> {
  const accepted = deferred<Link>();
  const connected = deferred<void>();
  const place = await listen(t, kind, (socket) =>
    accepted.resolve(acceptLink(socket, farHandler, SOCKET_OPTIONS)),
  );
  const near = connectLink(place, nearHandler, SOCKET_OPTIONS, connected.resolve);
  t.after(() => near.destroy());
  const far = await accepted.promise;
  t.after(() => far.destroy());
  await connected.promise;
  return { near, far };
}

/** All bytes that a plain socket gets until the other end says that no more will come. */
export async function readToEnd(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of socket) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}
