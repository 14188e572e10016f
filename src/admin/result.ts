import { ServerMessage } from '../wire/codes.ts';
import { type Column, dataRow, MessageWriter, rowDescription } from '../wire/encode.ts';

/** Columns and rows of the console, with the type OIDs that PgBouncer sends. */

const INT4 = 23;
const INT8 = 20;
const NUMERIC = 1700;
const TEXT = 25;

export const text = (name: string): Column => ({ name, typeOid: TEXT, typeBytes: -1 });
export const int4 = (name: string): Column => ({ name, typeOid: INT4, typeBytes: 4 });
/** PgBouncer's counters: whole numbers, sent as numeric. */
export const numeric = (name: string): Column => ({ name, typeOid: NUMERIC, typeBytes: -1 });

export type Value = string | number | bigint | boolean | null;
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

/** DataRow; without `formats` all values are text. */
export function encodeRow(columns: readonly Column[], row: Row, formats: Formats | null): Buffer {
  if (formats === null) return dataRow(row.map((value, i) => toText(columns[i]!, value)));
  writer.begin(ServerMessage.DataRow).int16(columns.length);
  for (const [i, column] of columns.entries()) {
    const value = toText(column, row[i]!);
    if (value === null) {
      writer.int32(-1);
    } else {
      const bytes = formats[i] === 1 ? toBinary(column, value) : Buffer.from(value);
      writer.int32(bytes.length).raw(bytes);
    }
  }
  return writer.end();
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
    bytes.writeBigInt64BE(BigInt(value));
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
