/**
 * Messages of LDAP servers (RFC 4511, section 4), as far as a login needs them. They are read with
 * the library's reader, by calls that check what is there: the library's own parsers of whole
 * messages go round forever on a list whose length is wrong.
 */

import { BerReader } from 'ldapts';

/** Tags of the operations. */
export const Op = {
  bindResponse: 0x61,
  searchEntry: 0x64,
  searchDone: 0x65,
  searchReference: 0x73,
  extendedResponse: 0x78,
} as const;

/** Result codes that a login goes by. */
export const ResultCode = { success: 0, busy: 51, unavailable: 52 } as const;

/** One message. */
export interface Reply {
  /** Number of the request that it answers; 0: none. */
  readonly id: number;
  readonly op: number;
  /** Reads what the operation carries. */
  readonly body: BerReader;
}

/** The end of an operation. */
export interface Result {
  readonly code: number;
  /** For the log: what the code means and what the server adds. */
  readonly text: string;
}

/** What the server has said is no LDAP. */
class BrokenReply extends Error {
  override readonly name = 'BrokenReply';
}

const SEQUENCE = 0x30;
/** Longest part of a server's own words that goes to the log. */
const MAX_SHOWN = 200;

/** OpenLDAP's words. */
const MEANINGS: ReadonlyMap<number, string> = new Map([
  [0, 'Success'],
  [1, 'Operations error'],
  [2, 'Protocol error'],
  [3, 'Time limit exceeded'],
  [4, 'Size limit exceeded'],
  [7, 'Authentication method not supported'],
  [8, 'Strong(er) authentication required'],
  [10, 'Referral'],
  [11, 'Administrative limit exceeded'],
  [13, 'Confidentiality required'],
  [32, 'No such object'],
  [34, 'Invalid DN syntax'],
  [48, 'Inappropriate authentication'],
  [49, 'Invalid credentials'],
  [50, 'Insufficient access'],
  [51, 'Server is busy'],
  [52, 'Server is unavailable'],
  [53, 'Server is unwilling to perform'],
]);

/**
 * Bytes of the message that `bytes` begins with; null: its header is not all there.
 * @throws BrokenReply when it cannot be a message
 */
export function messageSize(bytes: Buffer): number | null {
  if (bytes.length < 2) return null;
  if (bytes[0] !== SEQUENCE) throw new BrokenReply('a message begins with the wrong byte');
  const first = bytes[1]!;
  if (first < 0x80) return 2 + first;
  const count = first & 0x7f;
  if (count === 0 || count > 4) throw new BrokenReply('a message has no length');
  return bytes.length < 2 + count ? null : 2 + count + bytes.readUIntBE(2, count);
}

/** Reads a whole message. @throws BrokenReply */
export function readReply(message: Buffer): Reply {
  return checked(() => {
    const body = new BerReader(message);
    body.readSequence(SEQUENCE);
    const id = present(body.readInt());
    return { id, op: present(body.readSequence()), body };
  });
}

/** Reads an LDAPResult. @throws BrokenReply */
export function readResult({ body }: Reply): Result {
  return checked(() => {
    const code = present(body.readEnumeration());
    present(body.readString());
    const words = present(body.readString());
    const meaning = MEANINGS.get(code) ?? `result code ${code}`;
    return { code, text: words === '' ? meaning : `${meaning} (${words.slice(0, MAX_SHOWN)})` };
  });
}

/** Reads the name of an entry that a search has found. @throws BrokenReply */
export function readEntryName({ body }: Reply): string {
  return checked(() => present(body.readString()));
}

function checked<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof BrokenReply) throw error;
    throw new BrokenReply('a message cannot be read', { cause: error });
  }
}

function present<T>(value: T | null): T {
  if (value === null) throw new BrokenReply('a message is too short');
  return value;
}
