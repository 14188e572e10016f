import { RequestCode } from './codes.ts';

/** Decoders of the few message bodies that the pooler must read. All bounds are checked here. */

/** Offset of the NUL that ends the string at `start`, or -1 when there is none before `end`. */
export function endOfString(bytes: Buffer, start: number, end: number): number {
  const at = bytes.indexOf(0, start);
  return at === -1 || at >= end ? -1 : at;
}

/**
 * The same for strings that are a few bytes long, names above all: it reads byte by byte, which is
 * faster than a native search up to some forty bytes, and never looks past `end`.
 */
export function endOfShortString(bytes: Buffer, start: number, end: number): number {
  for (let at = start; at < end; at++) if (bytes[at] === 0) return at;
  return -1;
}

/** What a StartupMessage says. */
export interface StartupMessage {
  /** Int32: major version in the upper half, minor in the lower. */
  readonly version: number;
  /** Name and value in the order sent; names may repeat. */
  readonly parameters: readonly (readonly [string, string])[];
  /** True when the last byte is the single terminator that the protocol demands. */
  readonly isTerminated: boolean;
}

/** Reads a whole StartupMessage, `bytes[start]` being the first byte of its length word. */
export function decodeStartup(bytes: Buffer, start: number, end: number): StartupMessage {
  const version = bytes.readInt32BE(start + 4);
  const parameters: [string, string][] = [];
  let at = start + 8;
  while (at < end && bytes[at] !== 0) {
    const nameEnd = endOfString(bytes, at, end);
    if (nameEnd === -1) return { version, parameters, isTerminated: false };
    const valueEnd = endOfString(bytes, nameEnd + 1, end);
    if (valueEnd === -1) return { version, parameters, isTerminated: false };
    parameters.push([
      bytes.toString('utf8', at, nameEnd),
      bytes.toString('utf8', nameEnd + 1, valueEnd),
    ]);
    at = valueEnd + 1;
  }
  return { version, parameters, isTerminated: at === end - 1 };
}

/** True for the request code of a StartupMessage of protocol 3, any minor version. */
export function isProtocol3(code: number): boolean {
  return code >>> 16 === RequestCode.protocol3 >>> 16;
}

/** Fields of an ErrorResponse or NoticeResponse by their type letter. */
export function decodeReport(bytes: Buffer, start: number, end: number): Map<string, string> {
  const fields = new Map<string, string>();
  let at = start;
  while (at < end && bytes[at] !== 0) {
    const valueEnd = endOfString(bytes, at + 1, end);
    if (valueEnd === -1) break;
    fields.set(String.fromCharCode(bytes[at]!), bytes.toString('utf8', at + 1, valueEnd));
    at = valueEnd + 1;
  }
  return fields;
}

/** Name and value of a ParameterStatus body, or null when it is broken. */
export function decodeParameterStatus(
  bytes: Buffer,
  start: number,
  end: number,
): [name: string, value: string] | null {
  const nameEnd = endOfString(bytes, start, end);
  if (nameEnd === -1) return null;
  const valueEnd = endOfString(bytes, nameEnd + 1, end);
  if (valueEnd === -1) return null;
  return [bytes.toString('utf8', start, nameEnd), bytes.toString('utf8', nameEnd + 1, valueEnd)];
}
