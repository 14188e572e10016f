/**
 * Messages of the PostgreSQL protocol, built and read by the tests' own code, so that a mistake in
 * the pooler's encoders cannot hide itself. Layouts: PostgreSQL documentation, "Message Formats".
 */

/** One message with a type: `type` is its letter, `body` what follows the length word. */
export interface WireMessage {
  readonly type: string;
  readonly body: Buffer;
}

/** Part of a message: raw bytes, or a string, which is sent with its NUL. */
export type Part = Uint8Array | string;

export const PROTOCOL_3_0 = 0x0003_0000;
export const PROTOCOL_3_2 = 0x0003_0002;
const SSL_CODE = 80_877_103;
const CANCEL_CODE = 80_877_102;

export function int16(value: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeInt16BE(value);
  return bytes;
}

export function int32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value);
  return bytes;
}

/** A message; `length` replaces the right length word, to build a broken one. */
export function message(type: string, parts: readonly Part[] = [], length?: number): Buffer {
  const body = join(parts);
  return Buffer.concat([Buffer.from(type, 'latin1'), int32(length ?? body.length + 4), body]);
}

/** A packet without a type byte: startup, SSLRequest, CancelRequest. */
export function packet(parts: readonly Part[], length?: number): Buffer {
  const body = join(parts);
  return Buffer.concat([int32(length ?? body.length + 4), body]);
}

export function startup(
  parameters: Readonly<Record<string, string>>,
  version: number = PROTOCOL_3_0,
): Buffer {
  return packet([int32(version), ...Object.entries(parameters).flat(), Buffer.of(0)]);
}

export function sslRequest(): Buffer {
  return packet([int32(SSL_CODE)]);
}

/** CancelRequest with the bytes of a BackendKeyData body. */
export function cancelRequest(key: Uint8Array): Buffer {
  return packet([int32(CANCEL_CODE), key]);
}

export function query(sql: string): Buffer {
  return message('Q', [sql]);
}

export function parse(name: string, sql: string, types: readonly number[] = []): Buffer {
  return message('P', [name, sql, int16(types.length), ...types.map(int32)]);
}

/** What a Bind carries; formats are 0 for text and 1 for binary. */
export interface BindOptions {
  readonly portal?: string;
  readonly statement?: string;
  readonly values?: readonly (string | Uint8Array | null)[];
  readonly formats?: readonly number[];
  readonly resultFormats?: readonly number[];
}

export function bind(options: BindOptions = {}): Buffer {
  const { values = [], formats = [], resultFormats = [] } = options;
  const parameters = values.flatMap((value) => {
    if (value === null) return [int32(-1)];
    const bytes = Buffer.from(value as string);
    return [int32(bytes.length), bytes];
  });
  return message('B', [
    options.portal ?? '',
    options.statement ?? '',
    int16(formats.length),
    ...formats.map(int16),
    int16(values.length),
    ...parameters,
    int16(resultFormats.length),
    ...resultFormats.map(int16),
  ]);
}

/** Describe or Close of a statement ('S') or portal ('P'). */
export function describe(kind: 'S' | 'P', name = ''): Buffer {
  return message('D', [Buffer.from(kind), name]);
}

export function close(kind: 'S' | 'P', name = ''): Buffer {
  return message('C', [Buffer.from(kind), name]);
}

export function execute(portal = '', maxRows = 0): Buffer {
  return message('E', [portal, int32(maxRows)]);
}

export const SYNC = message('S');
export const FLUSH = message('H');
export const TERMINATE = message('X');
export const COPY_DONE = message('c');

export function copyData(bytes: Uint8Array): Buffer {
  return message('d', [bytes]);
}

export function copyFail(reason: string): Buffer {
  return message('f', [reason]);
}

/** Fields of an ErrorResponse or NoticeResponse by their letter: S, V, C (SQLSTATE), M… */
export function reportFields(body: Buffer): Record<string, string> {
  const fields: Record<string, string> = {};
  let at = 0;
  while (at < body.length && body[at] !== 0) {
    const end = body.indexOf(0, at + 1);
    fields[String.fromCharCode(body[at]!)] = body.toString('utf8', at + 1, end);
    at = end + 1;
  }
  return fields;
}

/** Values of a DataRow; null is SQL NULL. */
export function rowValues(body: Buffer): (Buffer | null)[] {
  const values: (Buffer | null)[] = [];
  let at = 2;
  for (let left = body.readInt16BE(0); left > 0; left--) {
    const size = body.readInt32BE(at);
    at += 4;
    values.push(size === -1 ? null : body.subarray(at, at + size));
    if (size > 0) at += size;
  }
  return values;
}

/** Rows of `messages` as text. */
export function textRows(messages: readonly WireMessage[]): (string | null)[][] {
  return messages
    .filter(({ type }) => type === 'D')
    .map(({ body }) => rowValues(body).map((value) => value?.toString('utf8') ?? null));
}

/** Type letters in order, ReadyForQuery with its status: `1 2 D C Z:I`. */
export function typesOf(messages: readonly WireMessage[]): string {
  return messages
    .map(({ type, body }) => (type === 'Z' ? `Z:${String.fromCharCode(body[0]!)}` : type))
    .join(' ');
}

/** Takes whole messages off the front of `bytes`; `rest` is what remains. */
export function splitMessages(bytes: Buffer): { messages: WireMessage[]; rest: Buffer } {
  const messages: WireMessage[] = [];
  let at = 0;
  while (bytes.length - at >= 5) {
    const end = at + 1 + bytes.readInt32BE(at + 1);
    if (end < at + 5) throw new Error(`a message of length ${bytes.readInt32BE(at + 1)}`);
    if (end > bytes.length) break;
    messages.push({
      type: String.fromCharCode(bytes[at]!),
      body: Buffer.from(bytes.subarray(at + 5, end)),
    });
    at = end;
  }
  return { messages, rest: bytes.subarray(at) };
}

function join(parts: readonly Part[]): Buffer {
  return Buffer.concat(
    parts.map((part) => (typeof part === 'string' ? Buffer.from(`${part}\0`) : part)),
  );
}
