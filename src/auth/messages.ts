/**
 * The few messages that this room says: Authentication requests to clients and password messages to
 * servers. Layouts: PostgreSQL documentation, "Message Formats".
 */

/** Int32 of an Authentication message. */
export const AuthCode = {
  ok: 0,
  cleartextPassword: 3,
  md5Password: 5,
  sasl: 10,
  saslContinue: 11,
  saslFinal: 12,
} as const;

/** Longest body of a password or SASL message that PostgreSQL takes (PG_MAX_AUTH_TOKEN_LENGTH). */
export const MAX_AUTH_BYTES = 65_535;

const AUTHENTICATION = 0x52;
const PASSWORD = 0x70;
const NUL = Buffer.of(0);

/** Authentication request `code` followed by its own bytes. */
export function authRequest(code: number, rest: Uint8Array = Buffer.alloc(0)): Buffer {
  return message(AUTHENTICATION, int32(code), rest);
}

/** AuthenticationSASL naming the mechanisms on offer. */
export function saslRequest(mechanisms: readonly string[]): Buffer {
  const names = mechanisms.map((name) => Buffer.from(`${name}\0`));
  return authRequest(AuthCode.sasl, Buffer.concat([...names, NUL]));
}

/** PasswordMessage: a password, or an MD5 answer. */
export function passwordMessage(password: string): Buffer {
  return message(PASSWORD, Buffer.from(password), NUL);
}

/** SASLInitialResponse. */
export function saslInitialResponse(mechanism: string, response: Uint8Array): Buffer {
  return message(PASSWORD, Buffer.from(`${mechanism}\0`), int32(response.length), response);
}

/** SASLResponse. */
export function saslResponse(response: Uint8Array): Buffer {
  return message(PASSWORD, response);
}

/** Password of a PasswordMessage body, or null unless the body is exactly one string. */
export function decodePassword(body: Buffer): Buffer | null {
  const end = body.indexOf(0);
  return end !== -1 && end === body.length - 1 ? body.subarray(0, end) : null;
}

export interface SaslInitial {
  readonly mechanism: string;
  /** Null when the client sent none (length -1) or the length is not that of the bytes behind it. */
  readonly response: Buffer | null;
}

/** Reads a SASLInitialResponse body; null when even the mechanism has no end. */
export function decodeSaslInitial(body: Buffer): SaslInitial | null {
  const end = body.indexOf(0);
  if (end === -1) return null;
  const mechanism = body.toString('latin1', 0, end);
  const at = end + 1;
  if (body.length < at + 4) return { mechanism, response: null };
  const isWhole = body.readInt32BE(at) === body.length - at - 4;
  return { mechanism, response: isWhole ? body.subarray(at + 4) : null };
}

/** Mechanism names of an AuthenticationSASL body (after the code), or null when it is broken. */
export function decodeMechanisms(body: Buffer): string[] | null {
  const names: string[] = [];
  let at = 0;
  while (at < body.length && body[at] !== 0) {
    const end = body.indexOf(0, at);
    if (end === -1) return null;
    names.push(body.toString('latin1', at, end));
    at = end + 1;
  }
  return at === body.length - 1 ? names : null;
}

function message(type: number, ...parts: Uint8Array[]): Buffer {
  const size = parts.reduce((sum, part) => sum + part.length, 4);
  return Buffer.concat([Buffer.of(type), int32(size), ...parts]);
}

function int32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value);
  return bytes;
}
