import { ClientMessage, HEADER_BYTES } from '../wire/codes.ts';
import { endOfString } from '../wire/decode.ts';
import { LEAK_BIT, leaksIn } from './session-leak.ts';

/**
 * Built-in functions have the same OID in every release of PostgreSQL (pg_proc.dat), and a FunctionCall
 * names what it calls by its OID alone. Any other function may leave something behind too: what they
 * do is not seen, here as in a query text.
 */
const SET_CONFIG = 2078;
const ADVISORY_LOCKS: ReadonlySet<number> = new Set([
  // pg_advisory_lock, _lock_shared, pg_try_advisory_lock and _lock_shared of a bigint
  2880, 2881, 2882, 2883,
  // and of two integers
  2886, 2887, 2888, 2889,
]);

/**
 * The kinds of leaks, as bits of `LEAK_BIT`, in a Query, Parse or FunctionCall whose beginning is
 * `bytes[at..stop)`. 0 for a broken one too, which is told by whoever reads it.
 * @param isTracked see `leaksIn`
 */
export function leaksInMessage(
  bytes: Buffer,
  at: number,
  stop: number,
  hasBackslashes: boolean,
  isTracked: (parameter: string) => boolean,
): number {
  const body = at + HEADER_BYTES;
  if (bytes[at] === ClientMessage.FunctionCall) return leaksInCall(bytes, body, stop, isTracked);
  const nameEnd = bytes[at] === ClientMessage.Parse ? endOfString(bytes, body, stop) : body - 1;
  if (nameEnd === -1) return 0;
  const textEnd = endOfString(bytes, nameEnd + 1, stop);
  const end = textEnd === -1 ? stop : textEnd;
  return leaksIn(bytes, nameEnd + 1, end, hasBackslashes, isTracked);
}

function leaksInCall(
  bytes: Buffer,
  body: number,
  stop: number,
  isTracked: (parameter: string) => boolean,
): number {
  if (stop - body < 4) return 0;
  const oid = bytes.readInt32BE(body);
  if (ADVISORY_LOCKS.has(oid)) return LEAK_BIT.advisory_lock;
  if (oid !== SET_CONFIG) return 0;
  const [parameter, , isLocal] = argumentsOf(bytes.subarray(body + 4, stop));
  if (parameter === undefined || parameter === null || isLocal === undefined) return 0;
  // NULL is no, and a boolean is text or, in binary, one byte.
  const isForSession =
    isLocal === null || isLocal === '\0' || /^(?:f|n|of|0)/i.test(isLocal.trim());
  return isForSession && !isTracked(parameter.toLowerCase()) ? LEAK_BIT.set : 0;
}

/** Behind the OID: a count and as many formats; a count and as many values with their lengths. */
function argumentsOf(bytes: Buffer): (string | null)[] {
  const values: (string | null)[] = [];
  let at = 2 + (bytes.length < 2 ? 0 : bytes.readUInt16BE(0) * 2);
  let left = bytes.length < at + 2 ? 0 : bytes.readUInt16BE(at);
  at += 2;
  for (; left > 0 && at + 4 <= bytes.length; left--) {
    const size = bytes.readInt32BE(at);
    at += 4;
    if (at + size > bytes.length) break;
    values.push(size < 0 ? null : bytes.toString('latin1', at, at + size));
    at += Math.max(0, size);
  }
  return values;
}
