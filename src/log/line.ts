import { cutText } from '../util/cut-text.ts';
import { zoneAbbreviation } from './zone.ts';

/** Longest message, in bytes, that PgBouncer writes; the rest is cut. */
const MAX_MESSAGE_BYTES = 2047;
/** Longest reason of PgBouncer's own for the end of a connection, in its line and in the client's error. */
const MAX_REASON_BYTES = 127;

/**
 * One log line in PgBouncer's layout: `YYYY-MM-DD HH:MM:SS.mmm ZZZ [pid] LEVEL text`, in local time.
 * Newlines inside the text become newline and tab, so that no text can pass for a line of its own;
 * other control characters are written as `\x1b`, so that none reaches a terminal.
 */
export function formatLine(at: Date, pid: number, level: string, text: string): string {
  return `${formatTime(at)} [${pid}] ${level} ${formatMessage(text)}\n`;
}

/**
 * A database, user or host name as an object prefix shows it: blanks and control characters as
 * `\x20`, because a name with a blank could forge the end of the prefix and with it an address.
 */
export function escapeName(name: string): string {
  return replaceUnsafe(name, NAME_UNSAFE);
}

/** The name that `escapeName` was given, unless that had the looks of an escape in it. */
export function unescapeName(name: string): string {
  if (!name.includes('\\x')) return name;
  return name.replace(/(?:\\x[0-9a-f]{2})+/g, (run) =>
    Buffer.from(run.replaceAll('\\x', ''), 'hex').toString(),
  );
}

const NAME_UNSAFE = unsafePattern(String.raw`\u0000-\u0020\u007f-\u00a0\u2028\u2029`);
const TEXT_UNSAFE = unsafePattern(String.raw`\u0000-\u0009\u000b-\u001f\u007f`);

function unsafePattern(characters: string): RegExp {
  return new RegExp(`[${characters}]`, 'g');
}

function replaceUnsafe(text: string, pattern: RegExp): string {
  return text.replace(pattern, (found) =>
    [...Buffer.from(found)].map((byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join(''),
  );
}

/** A text as PgBouncer's lines have it: at most 2,047 bytes, line breaks with a tab behind them. */
export function formatMessage(text: string): string {
  let message = replaceUnsafe(text, TEXT_UNSAFE);
  if (message.includes('\n')) message = message.trimEnd().replaceAll('\n', '\n\t');
  return cutText(message, MAX_MESSAGE_BYTES);
}

/** The reason for the end of a connection as PgBouncer tells it. */
export function cutReason(text: string): string {
  return cutText(text, MAX_REASON_BYTES);
}

/** Local time with milliseconds and the zone's abbreviation. */
function formatTime(at: Date): string {
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const milliseconds = String(at.getMilliseconds()).padStart(3, '0');
  return `${date} ${time}.${milliseconds} ${zoneAbbreviation(at)}`;
}

function two(value: number): string {
  return value < 10 ? `0${value}` : String(value);
}
