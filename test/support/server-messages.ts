import { int16, int32, message } from './messages.ts';

/** What a PostgreSQL server says, for `FakeServer`. */

/** ReadyForQuery: I idle, T in a transaction block, E in a failed one. */
export function ready(status: 'I' | 'T' | 'E' = 'I'): Buffer {
  return message('Z', [Buffer.from(status)]);
}

export function authenticationOk(): Buffer {
  return message('R', [int32(0)]);
}

export function parameterStatus(name: string, value: string): Buffer {
  return message('S', [name, value]);
}

/** BackendKeyData; `key` is the process id and the secret, 8 bytes up to protocol 3.0. */
export function backendKey(key: Uint8Array): Buffer {
  return message('K', [key]);
}

/** RowDescription of text columns. */
export function textColumns(...names: readonly string[]): Buffer {
  const fields = names.flatMap((name) => [
    name,
    int32(0),
    int16(0),
    int32(25),
    int16(-1),
    int32(-1),
    int16(0),
  ]);
  return message('T', [int16(names.length), ...fields]);
}

export function textRow(...values: readonly (string | null)[]): Buffer {
  const fields = values.flatMap((value) => {
    if (value === null) return [int32(-1)];
    const bytes = Buffer.from(value);
    return [int32(bytes.length), bytes];
  });
  return message('D', [int16(values.length), ...fields]);
}

export function commandComplete(tag: string): Buffer {
  return message('C', [tag]);
}

/** A whole answer to a simple query: one text column, one row. */
export function textAnswer(value: string, status: 'I' | 'T' | 'E' = 'I'): Buffer {
  return Buffer.concat([
    textColumns('answer'),
    textRow(value),
    commandComplete('SELECT 1'),
    ready(status),
  ]);
}

export function errorResponse(sqlstate: string, text: string, severity = 'ERROR'): Buffer {
  const fields = { S: severity, V: severity, C: sqlstate, M: text };
  const parts = Object.entries(fields).flatMap(([letter, value]) => [Buffer.from(letter), value]);
  return message('E', [...parts, Buffer.of(0)]);
}

export function emptyQueryResponse(): Buffer {
  return message('I');
}
