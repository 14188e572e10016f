import { ClientMessage, HEADER_BYTES } from '../wire/codes.ts';
import { endOfString } from '../wire/decode.ts';

/**
 * Readers and rewriters of the extended-protocol messages that name a statement. Names are kept as
 * strings of bytes (latin1), since they are never text to the pooler.
 */

/** Not enough bytes are there to tell. */
export const INCOMPLETE = -1;
/** The message cannot be what it says. */
export const BROKEN = -2;

/**
 * Offset of the NUL that ends the string at `start` of a message that ends at `messageEnd`, of which
 * `end` marks the bytes that are there; INCOMPLETE or BROKEN.
 */
export function findNul(bytes: Buffer, start: number, messageEnd: number, end: number): number {
  const known = Math.min(messageEnd, end);
  const at = endOfString(bytes, start, known);
  if (at !== -1) return at;
  return known === messageEnd ? BROKEN : INCOMPLETE;
}

/** Parse with another statement name; `tail` is what follows the name. */
export function parseMessage(name: string, tail: Buffer): Buffer {
  const nameBytes = Buffer.byteLength(name, 'latin1');
  const message = Buffer.allocUnsafe(HEADER_BYTES + nameBytes + 1 + tail.length);
  message[0] = ClientMessage.Parse;
  message.writeInt32BE(message.length - 1, 1);
  message.write(name, HEADER_BYTES, 'latin1');
  message[HEADER_BYTES + nameBytes] = 0;
  tail.copy(message, HEADER_BYTES + nameBytes + 1);
  return message;
}

/**
 * The head of a Bind with another statement name: type, length, portal and name. What follows the
 * old name is sent on as it is.
 * @param at offset of the type byte; `portalEnd` and `nameEnd` the offsets of the two NULs
 */
export function bindHead(
  bytes: Buffer,
  at: number,
  total: number,
  portalEnd: number,
  nameEnd: number,
  name: string,
): Buffer {
  const portalBytes = portalEnd + 1 - (at + HEADER_BYTES);
  const oldNameBytes = nameEnd - portalEnd - 1;
  const head = Buffer.allocUnsafe(HEADER_BYTES + portalBytes + name.length + 1);
  head[0] = ClientMessage.Bind;
  head.writeInt32BE(total - 1 - oldNameBytes + name.length, 1);
  bytes.copy(head, HEADER_BYTES, at + HEADER_BYTES, portalEnd + 1);
  head.write(name, HEADER_BYTES + portalBytes, 'latin1');
  head[head.length - 1] = 0;
  return head;
}

/** Describe or Close (`type`) of the statement `name`. */
export function namedMessage(type: number, name: string): Buffer {
  const message = Buffer.allocUnsafe(HEADER_BYTES + 2 + name.length);
  message[0] = type;
  message.writeInt32BE(message.length - 1, 1);
  message[HEADER_BYTES] = 0x53;
  message.write(name, HEADER_BYTES + 1, 'latin1');
  message[message.length - 1] = 0;
  return message;
}
