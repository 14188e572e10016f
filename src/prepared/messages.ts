import { ClientMessage, HEADER_BYTES } from '../wire/codes.ts';
import { endOfShortString, endOfString } from '../wire/decode.ts';
import type { PreparedStatement } from './statement.ts';

/**
 * Readers and rewriters of the four messages that name prepared statements. Layouts: PostgreSQL
 * documentation, "Message Formats". A message lies at `bytes[at..at + total)`, of which what is
 * before `end` has arrived. Names are latin1 strings, one character a byte.
 */

/** What a Parse, Bind, Describe or Close is to the pooler, told from its first bytes. */
export const Shape = {
  /** Of the unnamed statement or of a portal: passed on as it is. */
  untouched: 0,
  /** Of a named statement. A Bind has both its names there; the others are to be had whole. */
  named: 1,
  /** More bytes must arrive before it can be told. */
  incomplete: 2,
  broken: 3,
} as const;
export type Shape = (typeof Shape)[keyof typeof Shape];

/**
 * Bytes in which the names of a message must end. PostgreSQL itself looks at 63 bytes of a name; the
 * limit keeps a Bind without names from being collected whole.
 */
export const MAX_NAMES_BYTES = 65_536;

/** Byte of Describe and Close that says that a statement, not a portal, is meant. */
const STATEMENT = 0x53;

export function shapeOf(
  type: number,
  bytes: Buffer,
  at: number,
  total: number,
  end: number,
): Shape {
  const limit = Math.min(at + total, end);
  let nameStart = at + HEADER_BYTES;
  switch (type) {
    case ClientMessage.Parse:
      break;
    case ClientMessage.Bind: {
      const portalEnd = endOfShortString(bytes, nameStart, limit);
      if (portalEnd === -1) return unfinished(at, total, limit);
      nameStart = portalEnd + 1;
      if (endOfShortString(bytes, nameStart, limit) === -1) return unfinished(at, total, limit);
      break;
    }
    default:
      if (nameStart >= limit) return unfinished(at, total, limit);
      if (bytes[nameStart] !== STATEMENT) return Shape.untouched;
      if (total > MAX_NAMES_BYTES) return Shape.broken;
      nameStart++;
  }
  if (nameStart >= limit) return unfinished(at, total, limit);
  return bytes[nameStart] === 0 ? Shape.untouched : Shape.named;
}

function unfinished(at: number, total: number, limit: number): Shape {
  return limit === at + total || limit - at > MAX_NAMES_BYTES ? Shape.broken : Shape.incomplete;
}

/**
 * Where the name of a whole Parse ends (the offset of its NUL), or -1 when the message is broken:
 * name, query text, Int16 count and that many Int32 OIDs must fill it exactly.
 */
export function parseNameEnd(bytes: Buffer, at: number, end: number): number {
  const nameEnd = endOfString(bytes, at + HEADER_BYTES, end);
  if (nameEnd === -1) return -1;
  const queryEnd = endOfString(bytes, nameEnd + 1, end);
  if (queryEnd === -1 || end - queryEnd < 3) return -1;
  return queryEnd + 3 + 4 * bytes.readUInt16BE(queryEnd + 1) === end ? nameEnd : -1;
}

/** Where the name of a whole Describe or Close ends, or -1 when something else follows it. */
export function describeNameEnd(bytes: Buffer, at: number, end: number): number {
  const nameEnd = endOfString(bytes, at + HEADER_BYTES + 1, end);
  return nameEnd === end - 1 ? nameEnd : -1;
}

/** Parse of `statement` under its own name. */
export function parseMessage(statement: PreparedStatement): Buffer {
  const name = statement.serverNameBytes;
  const bytes = Buffer.allocUnsafe(HEADER_BYTES + name.length + statement.key.length);
  bytes[0] = ClientMessage.Parse;
  bytes.writeInt32BE(bytes.length - 1, 1);
  bytes.set(name, HEADER_BYTES);
  bytes.write(statement.key, HEADER_BYTES + name.length, 'latin1');
  return bytes;
}

/** Close of `statement` under its own name. */
export function closeMessage(statement: PreparedStatement): Buffer {
  const bytes = Buffer.allocUnsafe(HEADER_BYTES + 1 + statement.serverNameBytes.length);
  writeNamed(ClientMessage.Close, statement, bytes);
  return bytes;
}

/** Room that the head of a rewritten Bind with names up to `nameStart`, or a Describe, may take. */
export function headRoom(at: number, nameStart: number, statement: PreparedStatement): number {
  return nameStart - at + statement.serverNameBytes.length;
}

/**
 * Writes what stands for the first bytes of a Bind, up to and with the statement name that begins at
 * `nameStart` and ends (its NUL) at `nameEnd`, into `out`, and returns its size. The rest of the
 * message, from `nameEnd + 1` on, stays as it is.
 */
export function writeBindHead(
  bytes: Buffer,
  at: number,
  nameStart: number,
  nameEnd: number,
  statement: PreparedStatement,
  out: Buffer,
): number {
  const name = statement.serverNameBytes;
  const before = nameStart - at;
  const length = bytes.readInt32BE(at + 1) + name.length - (nameEnd + 1 - nameStart);
  out[0] = ClientMessage.Bind;
  out[1] = length >>> 24;
  out[2] = length >>> 16;
  out[3] = length >>> 8;
  out[4] = length;
  // Both pieces are a few bytes long, where a loop beats a native copy.
  for (let i = HEADER_BYTES; i < before; i++) out[i] = bytes[at + i]!;
  for (let i = 0; i < name.length; i++) out[before + i] = name[i]!;
  return before + name.length;
}

/** Writes a Describe of `statement` under its own name into `out` and returns its size. */
export function writeDescribe(statement: PreparedStatement, out: Buffer): number {
  return writeNamed(ClientMessage.Describe, statement, out);
}

function writeNamed(type: number, statement: PreparedStatement, out: Buffer): number {
  const name = statement.serverNameBytes;
  out[0] = type;
  out.writeInt32BE(HEADER_BYTES + name.length, 1);
  out[HEADER_BYTES] = STATEMENT;
  out.set(name, HEADER_BYTES + 1);
  return HEADER_BYTES + 1 + name.length;
}

const DEALLOCATE_ALL = Buffer.from('C\0\0\0\x13DEALLOCATE ALL\0', 'latin1');
const DISCARD_ALL = Buffer.from('C\0\0\0\x10DISCARD ALL\0', 'latin1');

/**
 * True for the whole CommandComplete of `DEALLOCATE ALL` or `DISCARD ALL`, after which a session has
 * no prepared statements.
 */
export function isDeallocateAll(bytes: Buffer, start: number, total: number): boolean {
  if (total === DEALLOCATE_ALL.length) return isAt(bytes, start, DEALLOCATE_ALL);
  return total === DISCARD_ALL.length && isAt(bytes, start, DISCARD_ALL);
}

/** Longest Query that is looked at; `DEALLOCATE PREPARE ALL` with some blanks is shorter. */
const MAX_DEALLOCATE_BYTES = 48;
const SPACE = 0x20;
const LOWER = 0x20;
const LOWER_D = 0x64;

/**
 * Whether a Query, whose bytes up to `end` are there, needs a look by `saysDeallocateAll`: a short one
 * that begins with a blank or a D, as far as is known.
 * @param offset of the query's text in the message; another one for a Parse without a name
 */
export function mayDeallocateAll(
  bytes: Buffer,
  at: number,
  total: number,
  end: number,
  offset = HEADER_BYTES,
): boolean {
  if (total > MAX_DEALLOCATE_BYTES) return false;
  if (end - at <= offset) return true;
  const first = bytes[at + offset]!;
  return (first | LOWER) === LOWER_D || first <= SPACE;
}

/** True for the whole message whose text is nothing but DEALLOCATE ALL or DISCARD ALL. */
export function saysDeallocateAll(
  bytes: Buffer,
  at: number,
  total: number,
  offset = HEADER_BYTES,
): boolean {
  const text = bytes.toString('latin1', at + offset, at + total);
  return /^\s*(?:deallocate(?:\s+prepare)?|discard)\s+all\s*;?\s*\0/i.test(text);
}

/** From the end, where tags of equal length differ. */
function isAt(bytes: Buffer, start: number, expected: Buffer): boolean {
  for (let i = expected.length - 1; i >= 0; i--) {
    if (bytes[start + i] !== expected[i]) return false;
  }
  return true;
}
