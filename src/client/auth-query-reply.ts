import { serialize } from 'pg-protocol';
import { log } from '../log/logger.ts';
import { HEADER_BYTES, ServerMessage } from '../wire/codes.ts';
import { decodeReport } from '../wire/decode.ts';

/** Longest secret that PgBouncer takes, in bytes. */
const MAX_SECRET_BYTES = 65_530;
const COLUMNS = 2;

/** One row of an `auth_query`. */
export interface AuthRow {
  readonly name: string;
  /** Empty when the column is NULL: no password fits it. */
  readonly secret: string;
}

/**
 * The messages that ask `sql` with the one parameter `name`. The unnamed statement is closed behind
 * its use, so that the connection goes back to its pool as it came.
 */
export function authQueryRequests(sql: string, name: string): Buffer {
  return Buffer.concat([
    serialize.parse({ text: sql }),
    serialize.bind({ values: [name] }),
    serialize.describe({ type: 'P' }),
    serialize.execute(),
    serialize.close({ type: 'S' }),
    serialize.sync(),
  ]);
}

/** Reads what a server answers to `authQueryRequests`, with PgBouncer's words for what is wrong. */
export class AuthQueryReply {
  /** The last row so far; null: none. */
  row: AuthRow | null = null;

  /** Takes a whole message. Returns why the connection is to be closed, or null when all is well. */
  onMessage(type: number, bytes: Buffer, start: number, end: number): string | null {
    switch (type) {
      case ServerMessage.RowDescription:
        if (end - start < HEADER_BYTES + 2) return 'bad packet';
        return wrongColumns(bytes.readUInt16BE(start + HEADER_BYTES));
      case ServerMessage.DataRow:
        return this.#onRow(bytes, start + HEADER_BYTES, end);
      case ServerMessage.ErrorResponse: {
        const report = decodeReport(bytes, start + HEADER_BYTES, end);
        log.error(`S: error in auth_query: ${report.get('S') ?? ''}: ${report.get('M') ?? ''}`);
        return 'error response from auth_query';
      }
      case ServerMessage.ParseComplete:
      case ServerMessage.BindComplete:
      case ServerMessage.CommandComplete:
      case ServerMessage.CloseComplete:
      case ServerMessage.ParameterStatus:
      case ServerMessage.NoticeResponse:
      case ServerMessage.NotificationResponse:
        return null;
      default:
        return 'unexpected response from auth_query';
    }
  }

  #onRow(bytes: Buffer, start: number, end: number): string | null {
    if (end - start < 2) return 'bad packet';
    const wrong = wrongColumns(bytes.readUInt16BE(start));
    if (wrong !== null) return wrong;
    const name = columnAt(bytes, start + 2, end);
    if (name === null) return 'bad packet';
    // What a function without a set says of a name that it has not found (PgBouncer's example is one,
    // and since 1.26 it takes that for no row).
    if (name.text === null) return null;
    const secret = columnAt(bytes, name.end, end);
    if (secret === null || secret.end !== end) return 'bad packet';
    if (secret.end - name.end - 4 > MAX_SECRET_BYTES) return 'bad packet';
    this.row = { name: name.text, secret: secret.text ?? '' };
    return null;
  }
}

function wrongColumns(columns: number): string | null {
  return columns === COLUMNS ? null : `expected 2 columns from auth_query, not ${columns}`;
}

/** A column of a DataRow, `text` null for NULL; null when it does not fit the message. */
function columnAt(
  bytes: Buffer,
  at: number,
  end: number,
): { readonly text: string | null; readonly end: number } | null {
  if (end - at < 4) return null;
  const size = bytes.readInt32BE(at);
  if (size === -1) return { text: null, end: at + 4 };
  if (size < 0 || size > end - at - 4) return null;
  return { text: bytes.toString('utf8', at + 4, at + 4 + size), end: at + 4 + size };
}
