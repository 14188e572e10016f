/**
 * What the right-hand side of a setting may look like: PgBouncer's number, switch, time and word
 * syntax. Each function returns null for a text that is none of its kind.
 */

import { isIP } from 'node:net';

const INT_MIN = -(2 ** 31);
const INT_MAX = 2 ** 31 - 1;
const UINT_MAX = 2 ** 32 - 1;

/** C's base detection as in `strtol(…, 0)`: 0x hex, leading 0 octal, else decimal; nothing after it. */
const C_NUMBER = /^([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))$/;
const DECIMAL = /^[+-]?[0-9]+$/;
const SECONDS = /^(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$/;

/** A signed 32-bit number with C base detection: `0x1f` is 31, `010` is 8. */
export function parseInt32(text: string): number | null {
  const value = parseCNumber(text);
  return value === null || value < INT_MIN || value > INT_MAX ? null : value;
}

/** An unsigned 32-bit number with C base detection; `-1` is 4294967295, as `strtoul` has it. */
export function parseUint32(text: string): number | null {
  const value = parseCNumber(text);
  if (value === null || value < INT_MIN || value > UINT_MAX) return null;
  return value < 0 ? value + 2 ** 32 : value;
}

/** A switch is a number: 0 is off, any other is on. Words such as `yes` are refused, as in PgBouncer. */
export function parseBool(text: string): boolean | null {
  const value = parseInt32(text);
  return value === null ? null : value !== 0;
}

/** The `[fleet]` section's switch: `on` or `off` in any case, or a number as in `[pgbouncer]`. */
export function parseOnOff(text: string): boolean | null {
  const word = text.toLowerCase();
  if (word === 'on') return true;
  return word === 'off' ? false : parseBool(text);
}

/** Non-negative decimal seconds, kept to the microsecond; no unit, no `inf`, no hexadecimal. */
export function parseSeconds(text: string): number | null {
  if (!SECONDS.test(text)) return null;
  const seconds = Math.round(Number(text) * 1e6) / 1e6;
  return Number.isFinite(seconds) ? seconds : null;
}

/** A whole decimal number inside a connection string, where `010` is ten. */
export function parseDecimal(text: string): number | null {
  if (!DECIMAL.test(text)) return null;
  const value = Number(text);
  return value < INT_MIN || value > INT_MAX ? null : value + 0;
}

/** A TCP port in a connection string: decimal, 1 to 65535. */
export function parsePort(text: string): number | null {
  const port = parseDecimal(text);
  return port === null || port < 1 || port > 65535 ? null : port;
}

/** One of the words, whatever its case; the lower-case spelling is returned. */
export function parseWord<const W extends string>(words: readonly W[], text: string): W | null {
  const wanted = text.toLowerCase();
  return words.find((word) => word === wanted) ?? null;
}

/** Items between commas, blanks around them dropped, empty items left out (`listen_addr`). */
export function splitCommas(text: string): string[] {
  return text
    .split(',')
    .map((item) => item.replace(/^[ \t\n\v\f\r]+|[ \t\n\v\f\r]+$/g, ''))
    .filter((item) => item !== '');
}

/** Whether a host is this machine and no network is between. */
export function isLoopback(host: string): boolean {
  return isIP(host) === 4 ? host.startsWith('127.') : host === '::1' || host === 'localhost';
}

/** Items between commas or blanks (`admin_users`, `stats_users`, `ignore_startup_parameters`). */
export function splitNames(text: string): string[] {
  return text.split(/[, \t\n\v\f\r]+/).filter((item) => item !== '');
}

function parseCNumber(text: string): number | null {
  const match = C_NUMBER.exec(text);
  if (match === null) return null;
  const [, sign, hex, octal, decimal] = match;
  let value: number;
  if (hex !== undefined) value = Number.parseInt(hex, 16);
  else if (octal !== undefined) value = Number.parseInt(octal, 8);
  else value = Number(decimal);
  return sign === '-' && value !== 0 ? -value : value;
}
