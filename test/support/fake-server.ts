import { createServer, type Server, type Socket } from 'node:net';
import { splitMessages, type WireMessage } from './messages.ts';
import * as say from './server-messages.ts';
import { until, within } from './until.ts';

/** Second word of the packets that have no type byte. */
const SSL_CODE = 80_877_103;
const GSS_CODE = 80_877_104;
const CANCEL_CODE = 80_877_102;

/** What one connection to the fake server does from its first byte to its end. */
export type Script = (connection: FakeConnection) => Promise<void>;

/** One connection, as the script sees it. Every expectation has a deadline of 10 s. */
export class FakeConnection {
  readonly socket: Socket;
  /** 0 for the first connection that the server took, cancel requests left out. */
  readonly index: number;
  /** Parameters of the StartupMessage, once `expectStartup` has read it. */
  parameters: Readonly<Record<string, string>> = {};
  /** Version of the protocol that its StartupMessage asks for. */
  version = 0;
  /** The key it was given by `welcome`. */
  key: Uint8Array = Buffer.alloc(0);
  isClosed = false;
  #bytes: Buffer;

  constructor(socket: Socket, index: number, bytes: Buffer) {
    this.socket = socket;
    this.index = index;
    this.#bytes = bytes;
    socket.on('data', (chunk) => {
      this.#bytes = Buffer.concat([this.#bytes, chunk]);
    });
    const onClose = (): void => {
      this.isClosed = true;
    };
    socket.once('end', onClose);
    socket.once('close', onClose);
    socket.on('error', onClose);
  }

  /** Exactly the next `count` bytes. */
  async bytes(count: number): Promise<Buffer> {
    await this.#wait(`${count} bytes`, () => this.#bytes.length >= count);
    const taken = this.#bytes.subarray(0, count);
    this.#bytes = this.#bytes.subarray(count);
    return taken;
  }

  /** Fails unless the next bytes are these. */
  async expectBytes(wanted: Buffer): Promise<void> {
    const found = await this.bytes(wanted.length);
    if (!found.equals(wanted)) {
      throw new Error(`received ${found.toString('hex')}, wanted ${wanted.toString('hex')}`);
    }
  }

  /** The next message of any type. */
  async next(): Promise<WireMessage> {
    const header = await this.bytes(5);
    const body = await this.bytes(header.readInt32BE(1) - 4);
    return { type: header.toString('latin1', 0, 1), body };
  }

  /** The next message; fails unless it is of this type. */
  async expect(type: string): Promise<WireMessage> {
    const found = await this.next();
    if (found.type !== type)
      throw new Error(`received a message '${found.type}', wanted '${type}'`);
    return found;
  }

  /** Reads the StartupMessage and keeps its parameters. */
  async expectStartup(): Promise<void> {
    const size = (await this.bytes(4)).readInt32BE(0);
    const body = await this.bytes(size - 4);
    this.version = body.readInt32BE(0);
    const words = body.toString('utf8', 4).split('\0');
    const parameters: Record<string, string> = {};
    for (let at = 0; words[at] !== undefined && words[at] !== ''; at += 2) {
      parameters[words[at]!] = words[at + 1] ?? '';
    }
    this.parameters = parameters;
  }

  /** Reads the StartupMessage and lets the client in without a password. */
  async welcome(
    key: Uint8Array = Buffer.from([0, 0, 0, this.index + 1, 9, 9, 9, 9]),
  ): Promise<void> {
    await this.expectStartup();
    this.key = key;
    this.send(
      say.authenticationOk(),
      say.parameterStatus('server_version', '18.0'),
      say.parameterStatus('server_encoding', 'UTF8'),
      say.parameterStatus('client_encoding', 'UTF8'),
      say.parameterStatus('DateStyle', 'ISO, MDY'),
      say.parameterStatus('TimeZone', 'UTC'),
      say.parameterStatus('standard_conforming_strings', 'on'),
      say.parameterStatus('integer_datetimes', 'on'),
      say.backendKey(key),
      say.ready(),
    );
  }

  /** Answers simple queries until Terminate or the end of the connection. */
  async answerQueries(answer: (sql: string) => Buffer | Promise<Buffer>): Promise<void> {
    for (;;) {
      const found = await this.nextOrEnd();
      if (found === null || found.type === 'X') return;
      if (found.type !== 'Q') throw new Error(`received a message '${found.type}', wanted 'Q'`);
      this.send(await answer(found.body.toString('utf8', 0, found.body.length - 1)));
    }
  }

  /** The next message, however long it takes to come; null when the connection ends instead. */
  async nextOrEnd(): Promise<WireMessage | null> {
    for (;;) {
      const [first] = splitMessages(this.#bytes).messages;
      if (first !== undefined) {
        const size = first.body.length + 5;
        this.#bytes = this.#bytes.subarray(size);
        return first;
      }
      if (this.isClosed) return null;
      await this.#activity();
    }
  }

  /** Writes bytes as they are, in one write. */
  send(...parts: readonly Uint8Array[]): void {
    this.socket.write(Buffer.concat(parts));
  }

  /** Stops reading, as a server that hangs; the connection stays open. */
  stall(): void {
    this.socket.pause();
  }

  /** Waits until the other side has closed. */
  async ended(): Promise<void> {
    await this.#wait('end of the connection', () => this.isClosed);
  }

  close(): void {
    this.socket.end();
  }

  /** Closes with a TCP reset. */
  reset(): void {
    this.socket.resetAndDestroy();
  }

  async #wait(what: string, isThere: () => boolean): Promise<void> {
    await until(
      `the fake server has: ${what}`,
      () => {
        if (isThere()) return true;
        if (this.isClosed) throw new Error(`the connection ended instead: ${what}`);
        return false;
      },
      { everyMs: 2 },
    );
  }

  #activity(): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        this.socket.off('data', done);
        this.socket.off('end', done);
        this.socket.off('close', done);
        resolve();
      };
      this.socket.on('data', done);
      this.socket.on('end', done);
      this.socket.on('close', done);
    });
  }
}

/** A server that speaks as much of the protocol as its script tells it to. */
export class FakeServer {
  readonly host = '127.0.0.1';
  /** Connections in the order they came, cancel requests left out. */
  readonly connections: FakeConnection[] = [];
  /** Keys of the cancel requests that came. */
  readonly cancels: Buffer[] = [];
  /** Requests for encryption that came, all refused. */
  encryptionRequests = 0;
  /** Connections of cancel requests are left open until `releaseCancels`. */
  holdsCancels = false;
  readonly #heldCancels: Socket[] = [];
  readonly #server: Server;
  readonly #script: Script;
  readonly #sockets = new Set<Socket>();
  readonly #runs: Promise<void>[] = [];
  #failure: unknown = null;

  constructor(script: Script) {
    this.#script = script;
    this.#server = createServer({ noDelay: true }, (socket) => this.#onConnection(socket));
  }

  get port(): number {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('not listening');
    return address.port;
  }

  /** @param port where to listen; 0: anywhere */
  async listen(port = 0): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(port, this.host, resolve);
    });
  }

  /** Closes the connections of the cancel requests that were held. */
  releaseCancels(): void {
    this.holdsCancels = false;
    for (const socket of this.#heldCancels.splice(0)) socket.end();
  }

  /** Cancel requests whose connections are held open, by both sides. */
  get heldCancels(): number {
    return this.#heldCancels.filter((socket) => !socket.destroyed && !socket.readableEnded).length;
  }

  /** Refuses connections while `body` runs; those that stand go on. */
  async takesNoMore(body: () => Promise<void>): Promise<void> {
    const { port } = this;
    this.#server.close();
    try {
      await body();
    } finally {
      await this.listen(port);
    }
  }

  /** Closes everything; throws what a script threw. */
  async stop(): Promise<void> {
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
    });
    for (const socket of this.#sockets) socket.destroy();
    await closed;
    const failed = this.#failure;
    // Scripts that still waited fail now, because their connections were just closed.
    await within('end of the scripts', Promise.allSettled(this.#runs));
    if (failed !== null) throw failed;
  }

  #onConnection(socket: Socket): void {
    this.#sockets.add(socket);
    socket.once('close', () => this.#sockets.delete(socket));
    socket.on('error', () => undefined);
    this.#runs.push(
      this.#run(socket).catch((error: unknown) => {
        this.#failure ??= error;
        socket.destroy();
      }),
    );
  }

  /** Takes what may come before the StartupMessage, then runs the script. */
  async #run(socket: Socket): Promise<void> {
    let rest: Buffer = Buffer.alloc(0);
    for (;;) {
      const first = await firstBytes(socket, rest);
      if (first === null) return;
      const code = first.readInt32BE(4);
      if (code === CANCEL_CODE) {
        this.cancels.push(first.subarray(8));
        if (this.holdsCancels) this.#heldCancels.push(socket);
        else socket.end();
        return;
      }
      if (code !== SSL_CODE && code !== GSS_CODE) {
        const connection = new FakeConnection(socket, this.connections.length, first);
        this.connections.push(connection);
        await this.#script(connection);
        return;
      }
      rest = first.subarray(8);
      this.encryptionRequests++;
      socket.write('N');
    }
  }
}

/** Starts a fake server whose every connection runs `script`; end it with `stop`. */
export async function startFakeServer(script: Script, port = 0): Promise<FakeServer> {
  const server = new FakeServer(script);
  await server.listen(port);
  return server;
}

/** What a connection says first, at least the two words of a packet; null when it says less. */
async function firstBytes(socket: Socket, already: Buffer): Promise<Buffer | null> {
  let bytes = already;
  if (bytes.length >= 8) return bytes;
  return new Promise((resolve) => {
    const finish = (answer: Buffer | null): void => {
      socket.off('data', onData);
      socket.off('close', onClose);
      socket.off('end', onClose);
      resolve(answer);
    };
    const onData = (chunk: Buffer): void => {
      bytes = Buffer.concat([bytes, chunk]);
      if (bytes.length < 8) return;
      finish(bytes);
    };
    const onClose = (): void => finish(null);
    socket.on('data', onData);
    socket.once('close', onClose);
    socket.once('end', onClose);
  });
}
