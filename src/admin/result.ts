import { ServerMessage } from '../wire/codes.ts';
import { type Column, MessageWriter, rowDescription } from '../wire/encode.ts';

/** Columns and rows of the console, with the type OIDs that PgBouncer sends. */

const INT4 = 23;
const INT8 = 20;
const NUMERIC = 1700;
const TEXT = 25;
const BYTEA = 17;

const RUN_BYTES = 1 << 16;

export const text = (name: string): Column => ({ name, typeOid: TEXT, typeBytes: -1 });
export const int4 = (name: string): Column => ({ name, typeOid: INT4, typeBytes: 4 });
export const int8 = (name: string): Column => ({ name, typeOid: INT8, typeBytes: 8 });
export const bytea = (name: string): Column => ({ name, typeOid: BYTEA, typeBytes: -1 });
/** PgBouncer's counters: whole numbers, sent as numeric. */
export const numeric = (name: string): Column => ({ name, typeOid: NUMERIC, typeBytes: -1 });

type Value = string | number | bigint | boolean | null;
export type Row = readonly Value[];

/** Format code of each column: 0 text, 1 binary (PostgreSQL documentation, "Formats and Format Codes"). */
export type Formats = readonly number[];

const writer = new MessageWriter();

/** RowDescription; without `formats` all columns are text. */
export function describeRows(columns: readonly Column[], formats: Formats | null): Buffer {
  if (formats === null) return rowDescription(columns);
  writer.begin(ServerMessage.RowDescription).int16(columns.length);
  for (const [i, column] of columns.entries()) {
    writer.cstring(column.name).int32(0).int16(0).int32(column.typeOid);
    writer.int16(column.typeBytes).int32(-1).int16(formats[i]!);
  }
  return writer.end();
}

/**
 * Makes DataRows and hands them over in runs of about 64 KB, each in memory of its own; without
 * `formats` all values are text. Values are written in place, because a listing of many thousand
 * clients is made between two turns of the data path.
 */
export function encodeRows(
  columns: readonly Column[],
  rows: readonly Row[],
  formats: Formats | null,
  onRun: (bytes: Buffer) => void,
): void {
  let run = Buffer.allocUnsafe(RUN_BYTES);
  let at = 0;
  for (const row of rows) {
    const values = columns.map((column, i) => toText(column, row[i]!));
    const most = longestRow(values);
    if (at > 0 && at + most > run.length) {
      onRun(run.subarray(0, at));
      run = Buffer.allocUnsafe(RUN_BYTES);
      at = 0;
    }
    if (most > run.length) run = Buffer.allocUnsafe(most);
    at = writeRow(run, at, columns, values, formats);
  }
  if (at > 0) onRun(run.subarray(0, at));
}

/**
 * Upper bound of a DataRow's size in bytes: a UTF-16 unit takes at most three in UTF-8, and the
 * binary form of a short number at most 16.
 */
function longestRow(values: readonly (string | null)[]): number {
  let most = 7;
  for (const value of values) most += 4 + Math.max(16, 3 * (value?.length ?? 0));
  return most;
}

/** Returns where the row ends. */
function writeRow(
  run: Buffer,
  start: number,
  columns: readonly Column[],
  values: readonly (string | null)[],
  formats: Formats | null,
): number {
  run[start] = ServerMessage.DataRow;
  let at = run.writeInt16BE(values.length, start + 5);
  for (const [i, value] of values.entries()) {
    let bytes = -1;
    if (value !== null) {
      bytes =
        formats?.[i] === 1
          ? toBinary(columns[i]!, value).copy(run, at + 4)
          : run.write(value, at + 4);
    }
    run.writeInt32BE(bytes, at);
    at += 4 + Math.max(bytes, 0);
  }
  run.writeInt32BE(at - start - 1, start + 1);
  return at;
}

function toText(column: Column, value: Value): string | null {
  if (value === null || typeof value === 'string') return value;
  if (typeof value === 'bigint') return value.toString();
  const number = Math.trunc(Number(value));
  if (column.typeOid !== INT4) return BigInt(number).toString();
  return String(Math.max(-(2 ** 31), Math.min(2 ** 31 - 1, number)));
}

/** Binary format of a value whose text is known. */
function toBinary(column: Column, value: string): Buffer {
  if (column.typeOid === INT4) {
    const bytes = Buffer.alloc(4);
    bytes.writeInt32BE(Number(value));
    return bytes;
  }
  if (column.typeOid === INT8) {
    const bytes = Buffer.alloc(8);
    // A cancel key may be above what the type has room for.
    bytes.writeBigInt64BE(BigInt.asIntN(64, BigInt(value)));
    return bytes;
  }
  return column.typeOid === NUMERIC ? numericBinary(value) : Buffer.from(value);
}

/**
 * A numeric without sign and fraction as `numeric_send` writes it: number of digits, weight of the
 * first one, sign, scale, digits to the base of 10,000 without zeros at the end.
 */
function numericBinary(value: string): Buffer {
  const padded = value.padStart(Math.ceil(value.length / 4) * 4, '0');
  const digits: number[] = [];
  for (let at = 0; at < padded.length; at += 4) digits.push(Number(padded.slice(at, at + 4)));
  while (digits[0] === 0) digits.shift();
  const weight = Math.max(digits.length - 1, 0);
  while (digits.at(-1) === 0) digits.pop();
  const bytes = Buffer.alloc(8 + 2 * digits.length);
  bytes.writeInt16BE(digits.length, 0);
  bytes.writeInt16BE(weight, 2);
  for (const [i, digit] of digits.entries()) bytes.writeInt16BE(digit, 8 + 2 * i);
  return bytes;
}
