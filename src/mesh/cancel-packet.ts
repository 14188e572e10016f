import { RequestCode } from '../wire/codes.ts';

/** Length word and request code. */
const HEAD_BYTES = 8;
/** Key of protocol 3.0: process id and 4 bytes of secret. */
const MIN_BYTES = HEAD_BYTES + 8;
/** Key of protocol 3.2: process id and up to 256 bytes of secret. */
const MAX_BYTES = HEAD_BYTES + 4 + 256;

/**
 * Whether `bytes`, the first ones of a connection, begin a CancelRequest (PostgreSQL documentation,
 * "Message Formats"): its length once the head is there, 0 while too few bytes have come, -1 when
 * it cannot be one.
 */
export function cancelPacketBytes(bytes: Buffer): number {
  if (bytes.length < 4) return 0;
  const length = bytes.readInt32BE(0);
  if (length < MIN_BYTES || length > MAX_BYTES) return -1;
  if (bytes.length < HEAD_BYTES) return 0;
  return bytes.readInt32BE(4) === RequestCode.cancel ? length : -1;
}
