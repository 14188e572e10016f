import { createServer, type Server, type Socket } from 'node:net';
import { BerReader, BerWriter } from 'ldapts';
import { until } from './until.ts';

/** Tags of the operations that a login is about (RFC 4511). */
export const OP = {
  bind: 0x60,
  bindResponse: 0x61,
  unbind: 0x42,
  search: 0x63,
  searchEntry: 0x64,
  searchDone: 0x65,
  searchReference: 0x73,
  extended: 0x77,
  extendedResponse: 0x78,
} as const;

/** What a request says of itself. */
export interface Asked {
  readonly id: number;
  readonly op: number;
}

/** Answers one request; what it returns is sent, null: nothing is. */
export type Answer = (asked: Asked, socket: Socket) => Buffer | null;

/** A server that says what a test has it say, as no real one would. */
export class FakeLdap {
  /** All bytes that came, in order, over all connections. */
  received: Buffer = Buffer.alloc(0);
  connections = 0;
  readonly #server: Server;
  readonly #open = new Set<Socket>();

  constructor(answer: Answer, greeting: Buffer | null = null) {
    this.#server = createServer((socket) => {
      this.connections++;
      this.#open.add(socket);
      socket.once('close', () => this.#open.delete(socket));
      socket.on('error', () => undefined);
      if (greeting !== null) socket.write(greeting);
      socket.on('data', (bytes) => {
        this.received = Buffer.concat([this.received, bytes]);
        const asked = requestIn(bytes);
        const reply = asked === null ? null : answer(asked, socket);
        if (reply !== null && !socket.destroyed) socket.write(reply);
      });
    });
  }

  /** Connections that the other side has not closed. */
  get open(): number {
    return this.#open.size;
  }

  get port(): number {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('it does not listen');
    return address.port;
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
  }

  /** Waits until every connection has been closed by the other side, and ends. */
  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.#server.close(resolve));
    await until('the LDAP connections are closed', () => this.open === 0);
    await ended;
  }
}

export async function startFakeLdap(answer: Answer, greeting?: Buffer): Promise<FakeLdap> {
  const server = new FakeLdap(answer, greeting);
  await server.listen();
  return server;
}

/** A message of any operation that ends a request. */
export function result(id: number, op: number, code: number, text = ''): Buffer {
  return message(id, op, (writer) => {
    writer.writeEnumeration(code);
    writer.writeString('');
    writer.writeString(text);
  });
}

/** An entry that a search has found. */
export function entry(id: number, name: string): Buffer {
  return message(id, OP.searchEntry, (writer) => {
    writer.writeString(name);
    writer.startSequence();
    writer.endSequence();
  });
}

export function message(id: number, op: number, body: (writer: BerWriter) => void): Buffer {
  const writer = new BerWriter();
  writer.startSequence();
  writer.writeInt(id);
  writer.startSequence(op);
  body(writer);
  writer.endSequence();
  writer.endSequence();
  return writer.buffer;
}

/** Null: it is no LDAP, but the beginning of TLS perhaps. */
function requestIn(bytes: Buffer): Asked | null {
  if (bytes[0] !== 0x30) return null;
  const reader = new BerReader(bytes);
  reader.readSequence();
  return { id: reader.readInt() ?? 0, op: reader.readSequence() ?? 0 };
}
