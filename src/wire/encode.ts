import { AuthenticationCode, ClientMessage, RequestCode, ServerMessage } from './codes.ts';

/**
 * Encoders of the messages that the pooler itself says, to clients and to servers. Everything that
 * is only relayed never comes here. Layouts: PostgreSQL documentation, "Message Formats".
 */

/** Builds one message: `Int32` and `Int16` fields, NUL-terminated strings and raw bytes in order. */
export class MessageWriter {
  #bytes = Buffer.allocUnsafe(256);
  #at = 0;

  /** Starts a message; `type` 0 leaves the type byte out (startup-style packets). */
  begin(type: number): this {
    this.#at = 0;
    if (type !== 0) {
      this.#bytes[0] = type;
      this.#at = 1;
    }
    this.#at += 4;
    return this;
  }

  byte(value: number): this {
    this.#room(1);
    this.#bytes[this.#at++] = value;
    return this;
  }

  int16(value: number): this {
    this.#room(2);
    this.#at = this.#bytes.writeInt16BE(value, this.#at);
    return this;
  }

  int32(value: number): this {
    this.#room(4);
    this.#at = this.#bytes.writeInt32BE(value, this.#at);
    return this;
  }

  cstring(value: string): this {
    const size = Buffer.byteLength(value);
    this.#room(size + 1);
    this.#bytes.write(value, this.#at);
    this.#at += size;
    this.#bytes[this.#at++] = 0;
    return this;
  }

  raw(value: Uint8Array): this {
    this.#room(value.length);
    this.#bytes.set(value, this.#at);
    this.#at += value.length;
    return this;
  }

  /** The finished message, in memory of its own. */
  end(hasType = true): Buffer {
    const start = hasType ? 1 : 0;
    this.#bytes.writeInt32BE(this.#at - start, start);
    return Buffer.from(this.#bytes.subarray(0, this.#at));
  }

  #room(size: number): void {
    if (this.#at + size <= this.#bytes.length) return;
    const bigger = Buffer.allocUnsafe(Math.max(this.#bytes.length * 2, this.#at + size));
    this.#bytes.copy(bigger, 0, 0, this.#at);
    this.#bytes = bigger;
  }
}

const writer = new MessageWriter();

/**
 * ErrorResponse or NoticeResponse with the fields S, C and M only, as PgBouncer sends them; `detail`
 * adds the field D.
 */
function report(
  type: number,
  severity: string,
  sqlstate: string,
  text: string,
  detail?: string,
): Buffer {
  writer.begin(type).byte(0x53).cstring(severity).byte(0x43).cstring(sqlstate);
  writer.byte(0x4d).cstring(text);
  if (detail !== undefined) writer.byte(0x44).cstring(detail);
  return writer.byte(0).end();
}

export function errorResponse(
  severity: 'ERROR' | 'FATAL',
  sqlstate: string,
  text: string,
  detail?: string,
): Buffer {
  return report(ServerMessage.ErrorResponse, severity, sqlstate, text, detail);
}

/** NOTICE with SQLSTATE 00000. `detail` adds the field D. */
export function noticeResponse(text: string, detail?: string): Buffer {
  return report(ServerMessage.NoticeResponse, 'NOTICE', '00000', text, detail);
}

export const AUTHENTICATION_OK = writer
  .begin(ServerMessage.Authentication)
  .int32(AuthenticationCode.ok)
  .end();

export function parameterStatus(name: string, value: string): Buffer {
  return writer.begin(ServerMessage.ParameterStatus).cstring(name).cstring(value).end();
}

/** BackendKeyData carrying all of `key` (8 bytes before protocol 3.2). */
export function backendKeyData(key: Uint8Array): Buffer {
  return writer.begin(ServerMessage.BackendKeyData).raw(key).end();
}

export const READY_IDLE = writer.begin(ServerMessage.ReadyForQuery).byte(0x49).end();
export const PARSE_COMPLETE = writer.begin(ServerMessage.ParseComplete).end();
export const CLOSE_COMPLETE = writer.begin(ServerMessage.CloseComplete).end();

/** NegotiateProtocolVersion: the version that will be spoken and the options not recognised. */
export function negotiateProtocolVersion(version: number, unknown: readonly string[]): Buffer {
  writer.begin(ServerMessage.NegotiateProtocolVersion).int32(version).int32(unknown.length);
  for (const name of unknown) writer.cstring(name);
  return writer.end();
}

export function commandComplete(tag: string): Buffer {
  return writer.begin(ServerMessage.CommandComplete).cstring(tag).end();
}

/** One column of a RowDescription made by the pooler. */
export interface Column {
  readonly name: string;
  /** Type OID in `pg_type`. */
  readonly typeOid: number;
  /** `pg_type.typlen`. */
  readonly typeBytes: number;
}

/** RowDescription in text format, with table OID 0, attribute number 0 and typmod -1. */
export function rowDescription(columns: readonly Column[]): Buffer {
  writer.begin(ServerMessage.RowDescription).int16(columns.length);
  for (const column of columns) {
    writer
      .cstring(column.name)
      .int32(0)
      .int16(0)
      .int32(column.typeOid)
      .int16(column.typeBytes)
      .int32(-1)
      .int16(0);
  }
  return writer.end();
}

/** Simple Query. */
export function query(sql: string): Buffer {
  return writer.begin(ClientMessage.Query).cstring(sql).end();
}

/** StartupMessage of a version of protocol 3 with its parameters in the order given. */
export function startupMessage(
  version: number,
  parameters: readonly (readonly [string, string])[],
): Buffer {
  writer.begin(0).int32(version);
  for (const [name, value] of parameters) writer.cstring(name).cstring(value);
  return writer.byte(0).end(false);
}

/** CancelRequest for `key`, the bytes of BackendKeyData after its header. */
export function cancelRequest(key: Uint8Array): Buffer {
  return writer.begin(0).int32(RequestCode.cancel).raw(key).end(false);
}

export const SSL_REQUEST = writer.begin(0).int32(RequestCode.ssl).end(false);
export const TERMINATE = writer.begin(ClientMessage.Terminate).end();
export const SYNC = writer.begin(ClientMessage.Sync).end();
