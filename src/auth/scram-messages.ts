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

/** A message that was refused; `problem` is the line for the log. */
export interface Malformed {
  readonly problem: string;
}

export interface ClientFirst {
  /** `n,,` or `y,,`: channel-binding flag and (absent) authorization identity. */
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
 * A demand for channel binding and an authorization identity are refused, as in PgBouncer.
 */
export function parseClientFirst(message: Buffer): ClientFirst | Malformed {
  if (message.length > MAX_CLIENT_MESSAGE_BYTES) return malformed('message too long');
  const text = message.toString('latin1');
  const flag = text[0];
  if (flag === 'p') {
    return { problem: 'client requires SCRAM channel binding, but it is not supported' };
  }
  if (flag !== 'n' && flag !== 'y') {
    return malformed(`unexpected channel-binding flag "${show(flag)}"`);
  }
  if (text[1] !== ',') return malformed(`comma expected, but found character "${show(text[1])}"`);
  if (text[2] === 'a') {
    return { problem: 'client uses authorization identity, but it is not supported' };
  }
  if (text[2] !== ',') {
    return malformed(`unexpected attribute "${show(text[2])}" in client-first-message`);
  }
  const bare = text.slice(3);
  if (bare[0] === 'm') return { problem: 'client requires an unsupported SCRAM extension' };

  const attributes = new AttributeReader(bare);
  const name = attributes.read('n');
  const nonce = attributes.read('r');
  while (attributes.problem === null && !attributes.isAtEnd) attributes.readAny();
  if (attributes.problem !== null) return malformed(attributes.problem);
  if (name === null || nonce === null) return malformed('attribute "r" expected');
  if (!isNonce(nonce)) return { problem: 'non-printable characters in SCRAM nonce' };
  return { gs2Header: text.slice(0, 3), bare, nonce };
}

/**
 * Reads client-final-message. `channelBinding` is what `c=` has to decode to: the gs2 header of the
 * first message, followed by the channel-binding bytes of mechanisms that have some.
 */
export function parseClientFinal(message: Buffer, channelBinding: Buffer): ClientFinal | Malformed {
  if (message.length > MAX_CLIENT_MESSAGE_BYTES) return malformed('message too long');
  const text = message.toString('latin1');
  const attributes = new AttributeReader(text);
  const binding = attributes.read('c');
  if (binding !== null && binding !== channelBinding.toString('base64')) {
    return { problem: 'unexpected SCRAM channel-binding attribute in client-final-message' };
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
