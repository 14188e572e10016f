/**
 * The four messages of a SCRAM exchange (RFC 5802 section 7), read with strict bounds. They are
 * handled as latin1 strings, one character a byte, since the proofs cover their exact bytes.
 * Problems are worded as in PgBouncer's log and never quote a nonce, a proof or a key.
 */

/** Longest SCRAM message taken from a client, PostgreSQL's PG_MAX_SASL_MESSAGE_LENGTH. */
const MAX_CLIENT_MESSAGE_BYTES = 1024;
/** Longest SCRAM message taken from a server: libpq's bound on authentication requests. */
const MAX_SERVER_MESSAGE_BYTES = 2000;
const PROOF_BYTES = 32;

const UNBOUND = malformed(
  'client selected SCRAM-SHA-256-PLUS, but did not send channel binding data',
);
const DOWNGRADED: Malformed = {
  problem:
    'SCRAM channel binding negotiation error: client supports it but thinks that it was not offered',
};

/** A message that was refused; `problem` is the line for the log. */
export interface Malformed {
  readonly problem: string;
}

/** Mechanism with channel binding (RFC 5802, section 6). */
export const PLUS_MECHANISM = 'SCRAM-SHA-256-PLUS';
export const PLAIN_MECHANISM = 'SCRAM-SHA-256';

/** Channel binding in a login at hand: not offered, offered but not chosen, or chosen. */
export type Binding = 'none' | 'offered' | 'chosen';

/** Flag of a client that binds to the server's certificate (RFC 5929, section 4). */
const BOUND_FLAG = 'p=tls-server-end-point';
export const BOUND_HEADER = `${BOUND_FLAG},,`;

export interface ClientFirst {
  /** `n,,`, `y,,` or `BOUND_HEADER`: channel-binding flag and (absent) authorization identity. */
  readonly gs2Header: string;
  readonly bare: string;
  readonly nonce: string;
}

export interface ClientFinal {
  readonly nonce: string;
  readonly proof: Buffer;
  readonly withoutProof: string;
}

export interface ServerFirst {
  readonly nonce: string;
  readonly salt: Buffer;
  readonly iterations: number;
}

/** Either the server's signature or the error that it reports. */
export type ServerFinal = { readonly signature: Buffer } | { readonly error: string };

/**
 * Reads client-first-message. The user name in it is ignored: the startup packet named the user.
 * An authorization identity is refused, as in PgBouncer; what the channel-binding flag may be is as
 * in RFC 5802, section 6, and PostgreSQL.
 */
export function parseClientFirst(message: Buffer, binding: Binding): ClientFirst | Malformed {
  if (message.length > MAX_CLIENT_MESSAGE_BYTES) return malformed('message too long');
  const text = message.toString('latin1');
  const flag = readFlag(text, binding);
  if (typeof flag !== 'number') return flag;
  if (text[flag] !== ',') {
    return malformed(`comma expected, but found character "${show(text[flag])}"`);
  }
  if (text[flag + 1] === 'a') {
    return { problem: 'client uses authorization identity, but it is not supported' };
  }
  if (text[flag + 1] !== ',') {
    return malformed(`unexpected attribute "${show(text[flag + 1])}" in client-first-message`);
  }
  const bare = text.slice(flag + 2);
  if (bare[0] === 'm') return { problem: 'client requires an unsupported SCRAM extension' };

  const attributes = new AttributeReader(bare);
  const name = attributes.read('n');
  const nonce = attributes.read('r');
  while (attributes.problem === null && !attributes.isAtEnd) attributes.readAny();
  if (attributes.problem !== null) return malformed(attributes.problem);
  if (name === null || nonce === null) return malformed('attribute "r" expected');
  if (!isNonce(nonce)) return { problem: 'non-printable characters in SCRAM nonce' };
  return { gs2Header: text.slice(0, flag + 2), bare, nonce };
}

/** The length of the channel-binding flag, if it is one that fits the mechanism. */
function readFlag(text: string, binding: Binding): number | Malformed {
  switch (text[0]) {
    case 'n':
      return binding === 'chosen' ? UNBOUND : 1;
    case 'y':
      if (binding === 'chosen') return UNBOUND;
      // Somebody between has taken SCRAM-SHA-256-PLUS out of the offer.
      return binding === 'offered' ? DOWNGRADED : 1;
    case 'p': {
      if (binding === 'none') {
        return { problem: 'client requires SCRAM channel binding, but it is not supported' };
      }
      if (binding === 'offered') {
        return malformed(
          'client selected SCRAM-SHA-256 without channel binding, but sent channel binding data',
        );
      }
      const length = text.indexOf(',');
      const flag = length === -1 ? text : text.slice(0, length);
      if (flag === BOUND_FLAG) return flag.length;
      return { problem: 'unsupported SCRAM channel-binding type' };
    }
    default:
      return malformed(`unexpected channel-binding flag "${show(text[0])}"`);
  }
}

/**
 * Reads client-final-message, whose `c=` has to be the gs2 header of the first message followed by
 * the channel-binding data, if the login is bound.
 * @param endPoint null: not bound
 */
export function parseClientFinal(
  message: Buffer,
  gs2Header: string,
  endPoint: Buffer | null,
): ClientFinal | Malformed {
  if (message.length > MAX_CLIENT_MESSAGE_BYTES) return malformed('message too long');
  const text = message.toString('latin1');
  const attributes = new AttributeReader(text);
  const binding = attributes.read('c');
  if (binding !== null && binding !== channelBinding(gs2Header, endPoint)) {
    const mismatch = 'SCRAM channel binding check failed';
    const unexpected = 'unexpected SCRAM channel-binding attribute in client-final-message';
    return { problem: endPoint === null ? unexpected : mismatch };
  }
  const nonce = attributes.read('r');
  let proofStart = attributes.at;
  let last: Attribute | null = null;
  while (attributes.problem === null && last?.name !== 'p' && !attributes.isAtEnd) {
    proofStart = attributes.at;
    last = attributes.readAny();
  }
  if (attributes.problem !== null) return malformed(attributes.problem);
  if (nonce === null || last?.name !== 'p') return { problem: 'could not read proof' };
  if (!attributes.isAtEnd) return malformed('garbage at the end of client-final-message');
  const proof = decodeBase64(last.value);
  if (proof === null) return { problem: 'could not decode proof' };
  if (proof.length !== PROOF_BYTES) return malformed('malformed proof in client-final-message');
  return { nonce, proof, withoutProof: text.slice(0, proofStart - 1) };
}

/** Value of `c=` in client-final-message. */
export function channelBinding(gs2Header: string, endPoint: Buffer | null): string {
  const header = Buffer.from(gs2Header, 'latin1');
  return (endPoint === null ? header : Buffer.concat([header, endPoint])).toString('base64');
}

/** Reads server-first-message; extensions are refused as libpq does. */
export function parseServerFirst(message: Buffer): ServerFirst | Malformed {
  if (message.length > MAX_SERVER_MESSAGE_BYTES) return malformed('message too long');
  const attributes = new AttributeReader(message.toString('latin1'));
  const nonce = attributes.read('r');
  const saltText = attributes.read('s');
  const iterationsText = attributes.read('i');
  if (attributes.problem !== null) return malformed(attributes.problem);
  if (nonce === null || saltText === null || iterationsText === null) {
    return malformed('attribute "i" expected');
  }
  if (!isNonce(nonce)) return { problem: 'non-printable characters in SCRAM nonce' };
  const salt = decodeBase64(saltText);
  if (salt === null || salt.length === 0) return malformed('invalid salt');
  if (!/^[1-9]\d{0,9}$/.test(iterationsText)) return malformed('invalid iteration count');
  if (!attributes.isAtEnd) return malformed('garbage at end of server-first-message');
  return { nonce, salt, iterations: Number(iterationsText) };
}

/** Reads server-final-message. */
export function parseServerFinal(message: Buffer): ServerFinal | Malformed {
  if (message.length > MAX_SERVER_MESSAGE_BYTES) return malformed('message too long');
  const text = message.toString('latin1');
  const attributes = new AttributeReader(text);
  const isError = text[0] === 'e';
  const value = attributes.read(isError ? 'e' : 'v');
  if (value === null) return malformed(attributes.problem ?? 'attribute "v" expected');
  if (!attributes.isAtEnd) return malformed('garbage at end of server-final-message');
  if (isError) return { error: value };
  const signature = decodeBase64(value);
  return signature?.length === PROOF_BYTES
    ? { signature }
    : malformed('malformed server signature');
}

/** Strict, canonical base64: no blanks, full padding, no stray bits. Null for anything else. */
export function decodeBase64(text: string): Buffer | null {
  const bytes = Buffer.from(text, 'base64');
  return bytes.toString('base64') === text ? bytes : null;
}

function malformed(detail: string): Malformed {
  return { problem: `malformed SCRAM message (${detail})` };
}

/** RFC 5802 `printable`: visible ASCII without the comma, and at least one character. */
function isNonce(text: string): boolean {
  return /^[\x21-\x2b\x2d-\x7e]+$/.test(text);
}

/** A character as PgBouncer's log shows it; the end of the message counts as NUL. */
function show(character: string | undefined): string {
  const code = character?.charCodeAt(0) ?? 0;
  if (code > 0x20 && code < 0x7f) return `'${character}'`;
  return `0x${code.toString(16).padStart(2, '0')}`;
}

interface Attribute {
  readonly name: string;
  readonly value: string;
}

/**
 * Walks the comma-separated `name=value` attributes of a message. The first problem sticks: from
 * then on every read gives null. A comma must be followed by another attribute.
 */
class AttributeReader {
  at = 0;
  problem: string | null = null;
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  get isAtEnd(): boolean {
    return this.at > this.#text.length;
  }

  /** The value of the next attribute, which must be `name`. */
  read(name: string): string | null {
    if (this.problem !== null) return null;
    if (this.#text[this.at] !== name) return this.#fail(`attribute "${name}" expected`);
    if (this.#text[this.at + 1] !== '=')
      return this.#fail(`expected "=" after attribute "${name}"`);
    return this.#value();
  }

  /** The next attribute, whichever it is. */
  readAny(): Attribute | null {
    if (this.problem !== null) return null;
    const name = this.#text[this.at];
    if (name === undefined || !/^[A-Za-z]$/.test(name)) {
      return this.#fail(`attribute expected, but found invalid character "${show(name)}"`);
    }
    if (this.#text[this.at + 1] !== '=') {
      return this.#fail(`expected character "=" after attribute "${name}"`);
    }
    const value = this.#value();
    return value === null ? null : { name, value };
  }

  /** Reads up to the comma or the end; steps behind the comma, or behind the end. */
  #value(): string | null {
    const comma = this.#text.indexOf(',', this.at + 2);
    const end = comma === -1 ? this.#text.length : comma;
    const value = this.#text.slice(this.at + 2, end);
    if (value.includes('\0')) return this.#fail('NUL byte in attribute');
    this.at = end + 1;
    return value;
  }

  #fail(problem: string): null {
    this.problem = problem;
    return null;
  }
}
