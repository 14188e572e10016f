import { createHash } from 'node:crypto';
import { createConnection, type NetConnectOpts, type Socket } from 'node:net';
import {
  cancelRequest,
  message,
  PROTOCOL_3_0,
  query,
  reportFields,
  splitMessages,
  startup,
  TERMINATE,
  type WireMessage,
} from './messages.ts';
import { ScramClient } from './scram.ts';
import { until, within } from './until.ts';

/** Where to connect: a TCP port, or the path of a Unix socket. */
export type Address = { readonly port: number; readonly host?: string } | { readonly path: string };

/** `address` as `createConnection` wants it; the fields may be getters, which a spread would lose. */
export function endpoint(address: Address): NetConnectOpts {
  if ('path' in address) return { path: address.path };
  return { host: address.host ?? '127.0.0.1', port: address.port };
}

/** How `login` introduces itself. */
export interface LoginOptions {
  readonly user?: string;
  readonly database?: string;
  /** Default: the user's name. */
  readonly password?: string;
  readonly parameters?: Readonly<Record<string, string>>;
  readonly version?: number;
  /** Told the code of each Authentication message. */
  readonly onAsked?: (code: number) => void;
}

/** An ErrorResponse that ended a login, or came where none was expected. */
export class WireError extends Error {
  override readonly name = 'WireError';
  readonly sqlstate: string;
  readonly severity: string;
  /** The text alone; `message` has the severity and SQLSTATE before it. */
  readonly text: string;

  constructor(body: Buffer) {
    const { S: severity = '', C: sqlstate = '', M: text = '' } = reportFields(body);
    super(`${severity} ${sqlstate}: ${text}`);
    this.severity = severity;
    this.sqlstate = sqlstate;
    this.text = text;
  }
}

/** One connection that says exactly the bytes it is told to, and collects what comes back. */
export class WireClient {
  readonly socket: Socket;
  /** ParameterStatus values seen so far. */
  readonly parameters = new Map<string, string>();
  /** Body of BackendKeyData; empty before the login. */
  key: Buffer = Buffer.alloc(0);
  /** True once the other side has closed, or the connection has broken. */
  isClosed = false;
  /** Why the connection broke, if it did. */
  error: Error | null = null;
  /** Everything that was received, in bytes. */
  receivedBytes = 0;
  #pending = Buffer.alloc(0);
  readonly #chunks: Buffer[] = [];
  #chunkBytes = 0;
  /** Below so many bytes there is no whole message, so that a long one is joined only once. */
  #neededBytes = 5;
  readonly #messages: WireMessage[] = [];
  #wake: () => void = () => undefined;
  #isAwaited = false;

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on('data', (chunk) => {
      this.receivedBytes += chunk.length;
      this.#chunks.push(chunk);
      this.#chunkBytes += chunk.length;
      this.#wake();
    });
    socket.on('error', (error) => {
      this.error = error;
    });
    socket.once('close', () => {
      this.isClosed = true;
      this.#wake();
    });
    socket.once('end', () => {
      this.isClosed = true;
      this.#wake();
    });
  }

  /** Connects and says nothing. */
  static async connect(address: Address): Promise<WireClient> {
    const socket = createConnection(endpoint(address));
    const connected = new Promise<void>((resolve, reject) => {
      socket.once('connect', resolve);
      socket.once('error', reject);
    });
    await within('connection', connected);
    socket.setNoDelay(true);
    return new WireClient(socket);
  }

  /** Speaks through a socket that is connected already. */
  static over(socket: Socket): WireClient {
    return new WireClient(socket);
  }

  /** Connects and logs in. */
  static async login(address: Address, options: LoginOptions = {}): Promise<WireClient> {
    const client = await WireClient.connect(address);
    try {
      await client.login(options);
    } catch (error) {
      client.destroy();
      throw error;
    }
    return client;
  }

  /**
   * Sends the StartupMessage and answers requests for a password until ReadyForQuery; returns all
   * that was received. Throws WireError when the login is refused.
   */
  async login(options: LoginOptions = {}): Promise<WireMessage[]> {
    const user = options.user ?? 'app';
    const database = options.database ?? 'app';
    const password = options.password ?? user;
    const version = options.version ?? PROTOCOL_3_0;
    this.send(startup({ user, database, ...options.parameters }, version));
    const scram = new ScramClient(password);
    const received: WireMessage[] = [];
    for (;;) {
      const next = await this.next();
      received.push(next);
      if (next.type === 'E') throw new WireError(next.body);
      if (next.type === 'R') options.onAsked?.(next.body.readInt32BE(0));
      if (next.type === 'R') this.#authenticate(next.body, user, password, scram);
      if (next.type === 'Z') return received;
    }
  }

  /** Writes bytes as they are, in one write. */
  send(...parts: readonly Uint8Array[]): void {
    this.socket.write(Buffer.concat(parts));
  }

  /** The next message of any type; throws when the connection closes first. */
  async next(deadlineMs = 10_000): Promise<WireMessage> {
    const found = await this.#nextOrNull(deadlineMs);
    if (found === null) throw new Error('the connection was closed', { cause: this.error });
    return found;
  }

  /** Messages up to and with the next of `type`. */
  async until(type: string, deadlineMs = 10_000): Promise<WireMessage[]> {
    const received: WireMessage[] = [];
    do received.push(await this.next(deadlineMs));
    while (received.at(-1)!.type !== type);
    return received;
  }

  /** Messages up to and with the next ReadyForQuery. */
  untilReady(deadlineMs?: number): Promise<WireMessage[]> {
    return this.until('Z', deadlineMs);
  }

  /** Messages until the other side closes; throws when it does not. */
  async untilClose(deadlineMs = 10_000): Promise<WireMessage[]> {
    const received: WireMessage[] = [];
    for (;;) {
      const found = await this.#nextOrNull(deadlineMs);
      if (found === null) return received;
      received.push(found);
    }
  }

  /** Untyped bytes, such as the answer to SSLRequest; null when the connection closes first. */
  async rawBytes(count: number, deadlineMs = 10_000): Promise<Buffer | null> {
    await until(
      `${count} bytes are received`,
      () => {
        this.#collect();
        return this.#pending.length >= count || this.isClosed;
      },
      { deadlineMs, everyMs: 5 },
    );
    if (this.#pending.length < count) return null;
    const bytes = this.#pending.subarray(0, count);
    this.#pending = this.#pending.subarray(count);
    return bytes;
  }

  /** Simple query; everything up to ReadyForQuery. */
  async query(sql: string, deadlineMs?: number): Promise<WireMessage[]> {
    this.send(query(sql));
    return this.untilReady(deadlineMs);
  }

  /** Says Terminate and closes. */
  async end(): Promise<void> {
    if (!this.socket.destroyed) this.socket.end(TERMINATE);
    this.socket.resume();
    await until('the connection is closed', () => this.socket.closed || this.isClosed);
    this.socket.destroy();
  }

  /** Closes without a word. */
  destroy(): void {
    this.socket.destroy();
  }

  /** Closes with a TCP reset. */
  reset(): void {
    this.socket.resetAndDestroy();
  }

  async #nextOrNull(deadlineMs: number): Promise<WireMessage | null> {
    for (;;) {
      const found = this.#take();
      if (found !== null) return found;
      if (this.isClosed) return null;
      if (this.#isAwaited) throw new Error('two readers of one connection');
      this.#isAwaited = true;
      const woken = new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      await within('message', woken, deadlineMs).finally(() => {
        this.#isAwaited = false;
      });
    }
  }

  #take(): WireMessage | null {
    const isEnough = this.#pending.length + this.#chunkBytes >= this.#neededBytes;
    if (this.#messages.length === 0 && isEnough) {
      this.#collect();
      const { messages, rest } = splitMessages(this.#pending);
      this.#pending = Buffer.from(rest);
      this.#neededBytes = rest.length < 5 ? 5 : 1 + rest.readInt32BE(1);
      this.#messages.push(...messages);
    }
    const found = this.#messages.shift() ?? null;
    if (found?.type === 'K') this.key = found.body;
    if (found?.type === 'S') {
      const [name = '', value = ''] = found.body.toString('utf8').split('\0');
      this.parameters.set(name, value);
    }
    return found;
  }

  #collect(): void {
    if (this.#chunks.length === 0) return;
    this.#pending = Buffer.concat([this.#pending, ...this.#chunks]);
    this.#chunks.length = 0;
    this.#chunkBytes = 0;
  }

  #authenticate(body: Buffer, user: string, password: string, scram: ScramClient): void {
    const code = body.readInt32BE(0);
    const rest = body.subarray(4);
    if (code === 3) this.send(message('p', [password]));
    if (code === 5) this.send(message('p', [md5Answer(user, password, rest)]));
    if (code === 10) {
      const first = Buffer.from(scram.first());
      const size = Buffer.alloc(4);
      size.writeInt32BE(first.length);
      this.send(message('p', ['SCRAM-SHA-256', size, first]));
    }
    if (code === 11) this.send(message('p', [Buffer.from(scram.final(rest.toString()))]));
    if (code === 12) scram.verify(rest.toString());
  }
}

/** Sends a CancelRequest on a connection of its own and waits until the other side closes it. */
export async function sendCancel(address: Address, key: Uint8Array): Promise<void> {
  const client = await WireClient.connect(address);
  client.send(cancelRequest(key));
  await client.untilClose();
  client.destroy();
}

function md5Answer(user: string, password: string, salt: Uint8Array): string {
  const md5 = (...parts: readonly (string | Uint8Array)[]): string => {
    const hash = createHash('md5');
    for (const part of parts) hash.update(part);
    return hash.digest('hex');
  };
  return `md5${md5(md5(password, user), salt)}`;
}
