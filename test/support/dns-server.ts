import { createSocket, type RemoteInfo, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { join } from 'node:path';
import { makeFolder, removeFolder } from './folders.ts';

/**
 * A small name server on 127.0.0.1 (RFC 1035, UDP only) that knows what a test tells it: addresses of
 * names, serial numbers of zones, places of services. Nothing else exists.
 */

const TYPE = { A: 1, SOA: 6, AAAA: 28, SRV: 33 } as const;
const IN = 1;
const NAME_ERROR = 3;
const SERVER_FAILURE = 2;
/** Position of the question in a message, which an answer's name points to. */
const QUESTION = 12;
/** Newer versions of the library that PgBouncer asks through keep answers of their own for this time. */
const RECORD_TTL_SECONDS = 0;

/** A question that was asked: `A db.test`. */
export type Question = string;

/** Where a service is (RFC 2782). */
interface Service {
  readonly priority: number;
  readonly port: number;
  readonly target: string;
}

export class DnsServer {
  readonly #socket: Socket;
  readonly #addresses = new Map<string, readonly string[]>();
  readonly #serials = new Map<string, number>();
  readonly #services = new Map<string, readonly Service[]>();
  readonly #held: (() => void)[] = [];
  #isHolding = false;
  #isFailing = false;
  /** All that was asked, in order. */
  readonly questions: Question[] = [];
  readonly #folder: string;

  constructor(socket: Socket, folder: string) {
    this.#socket = socket;
    this.#folder = folder;
    socket.on('message', (bytes, from) => this.#onMessage(bytes, from));
  }

  get port(): number {
    return this.#socket.address().port;
  }

  /** A resolver file that names this server. */
  get resolvConf(): string {
    return join(this.#folder, 'resolv.conf');
  }

  /** The addresses that a name has from now on, of both families. None: there is no such name. */
  set(name: string, ...addresses: readonly string[]): void {
    if (addresses.length === 0) this.#addresses.delete(name);
    else this.#addresses.set(name, addresses);
  }

  setSerial(zone: string, serial: number): void {
    this.#serials.set(zone, serial);
  }

  setServices(name: string, ...services: readonly Service[]): void {
    this.#services.set(name, services);
  }

  /** Questions wait for their answers until `letGo`. */
  hold(): void {
    this.#isHolding = true;
  }

  letGo(): void {
    this.#isHolding = false;
    for (const answer of this.#held.splice(0)) answer();
  }

  /** Every question is answered by an error that is not "no such name". */
  fail(isFailing: boolean): void {
    this.#isFailing = isFailing;
  }

  /** How often something was asked for. */
  count(question: Question): number {
    return this.questions.filter((one) => one === question).length;
  }

  /** As at the start. */
  forget(): void {
    this.#addresses.clear();
    this.#serials.clear();
    this.#services.clear();
    this.#isFailing = false;
    this.letGo();
    this.questions.length = 0;
  }

  async stop(): Promise<void> {
    const closed = once(this.#socket, 'close');
    this.#socket.close();
    await closed;
    await removeFolder(this.#folder);
  }

  #onMessage(bytes: Buffer, from: RemoteInfo): void {
    const { name, type, end } = readQuestion(bytes);
    this.questions.push(`${nameOf(type)} ${name}`);
    const send = (): void => this.#socket.send(this.#answer(bytes, name, type, end), from.port);
    if (this.#isHolding) this.#held.push(send);
    else send();
  }

  #answer(question: Buffer, name: string, type: number, end: number): Buffer {
    const addresses = this.#addresses.get(name);
    const serial = this.#serials.get(name);
    const services = this.#services.get(name);
    const records: Buffer[] = [];
    if (type === TYPE.A || type === TYPE.AAAA) {
      const family = type === TYPE.A ? 4 : 6;
      for (const address of addresses ?? []) {
        if (isIP(address) === family) records.push(record(type, bytesOf(address)));
      }
    } else if (type === TYPE.SOA && serial !== undefined) {
      // Names of the zone's server and its keeper: the root, since nobody looks at them.
      const data = Buffer.alloc(22);
      data.writeUInt32BE(serial, 2);
      records.push(record(type, data));
    } else if (type === TYPE.SRV) {
      for (const service of services ?? []) records.push(record(type, serviceData(service)));
    }
    const isKnown = [addresses, serial, services].some((known) => known !== undefined);
    const code = this.#isFailing ? SERVER_FAILURE : isKnown ? 0 : NAME_ERROR;
    const header = Buffer.from(question.subarray(0, QUESTION));
    // An answer, of this zone, to a recursive question.
    header.writeUInt16BE(0x8580 | code, 2);
    header.writeUInt16BE(1, 4);
    header.writeUInt16BE(this.#isFailing ? 0 : records.length, 6);
    header.writeUInt32BE(0, 8);
    const kept = this.#isFailing ? [] : records;
    return Buffer.concat([header, question.subarray(QUESTION, end), ...kept]);
  }
}

/**
 * Starts a name server that knows nothing yet; end it with `stop`.
 * @param lines more lines for its resolver file
 */
export async function startDnsServer(...lines: readonly string[]): Promise<DnsServer> {
  const socket = createSocket('udp4');
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  const server = new DnsServer(socket, await makeFolder('dns'));
  const own = [`nameserver 127.0.0.1:${server.port}`, 'options timeout:2 attempts:1'];
  await writeFile(server.resolvConf, [...own, ...lines, ''].join('\n'));
  return server;
}

function readQuestion(bytes: Buffer): { name: string; type: number; end: number } {
  const labels: string[] = [];
  let at = QUESTION;
  while (bytes[at]! > 0) {
    const start = at + 1;
    at = start + bytes[at]!;
    labels.push(bytes.toString('latin1', start, at));
  }
  return {
    name: labels.join('.').toLowerCase(),
    type: bytes.readUInt16BE(at + 1),
    end: at + 5,
  };
}

function record(type: number, data: Buffer): Buffer {
  const head = Buffer.alloc(12);
  head.writeUInt16BE(0xc000 | QUESTION, 0);
  head.writeUInt16BE(type, 2);
  head.writeUInt16BE(IN, 4);
  head.writeUInt32BE(RECORD_TTL_SECONDS, 6);
  head.writeUInt16BE(data.length, 10);
  return Buffer.concat([head, data]);
}

function serviceData({ priority, port, target }: Service): Buffer {
  const numbers = Buffer.alloc(6);
  numbers.writeUInt16BE(priority, 0);
  numbers.writeUInt16BE(port, 4);
  const labels = target
    .split('.')
    .map((label) => Buffer.from([label.length, ...Buffer.from(label)]));
  return Buffer.concat([numbers, ...labels, Buffer.of(0)]);
}

function nameOf(type: number): string {
  return Object.entries(TYPE).find(([, code]) => code === type)?.[0] ?? String(type);
}

/** An address as it stands in a record. Of IPv6 addresses with `::` that are short, which tests use. */
function bytesOf(address: string): Buffer {
  if (isIP(address) === 4) return Buffer.from(address.split('.').map(Number));
  const [before = '', after = ''] = address.split('::');
  const words = (text: string): number[] =>
    text === '' ? [] : text.split(':').map((word) => Number.parseInt(word, 16));
  const bytes = Buffer.alloc(16);
  for (const [index, word] of words(before).entries()) bytes.writeUInt16BE(word, 2 * index);
  const tail = words(after);
  for (const [index, word] of tail.entries()) {
    bytes.writeUInt16BE(word, 16 - 2 * (tail.length - index));
  }
  return bytes;
}
