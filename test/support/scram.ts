import { createHash, createHmac, pbkdf2Sync, randomBytes } from 'node:crypto';

/** Derived keys by password, salt and rounds: a client that logs in often derives once. */
const derived = new Map<string, Buffer>();

/** A client's side of SCRAM-SHA-256 without channel binding (RFC 5802, RFC 7677). */
export class ScramClient {
  readonly #password: string;
  readonly #nonce = randomBytes(18).toString('base64');
  #serverSignature = '';

  constructor(password: string) {
    this.#password = password;
  }

  /** client-first-message; PostgreSQL takes the name from the startup packet instead. */
  first(): string {
    return `n,,${this.#firstBare()}`;
  }

  /** client-final-message, the answer to server-first-message. */
  final(serverFirst: string): string {
    const { r: nonce = '', s: salt = '', i: rounds = '' } = attributes(serverFirst);
    if (!nonce.startsWith(this.#nonce)) throw new Error('the server changed the nonce');
    const salted = derive(this.#password, salt, Number(rounds));
    const clientKey = hmac(salted, 'Client Key');
    const storedKey = createHash('sha256').update(clientKey).digest();
    const bare = `c=biws,r=${nonce}`;
    const text = `${this.#firstBare()},${serverFirst},${bare}`;
    const signature = hmac(storedKey, text);
    const proof = Buffer.from(clientKey.map((byte, index) => byte ^ signature[index]!));
    this.#serverSignature = hmac(hmac(salted, 'Server Key'), text).toString('base64');
    return `${bare},p=${proof.toString('base64')}`;
  }

  /** Throws unless server-final-message proves that the server knows the password. */
  verify(serverFinal: string): void {
    if (attributes(serverFinal)['v'] !== this.#serverSignature) {
      throw new Error('the server does not know the password');
    }
  }

  #firstBare(): string {
    return `n=,r=${this.#nonce}`;
  }
}

function derive(password: string, salt: string, rounds: number): Buffer {
  const name = JSON.stringify([password, salt, rounds]);
  let key = derived.get(name);
  if (key === undefined) {
    const bytes = Buffer.from(salt, 'base64');
    key = pbkdf2Sync(password.normalize('NFKC'), bytes, rounds, 32, 'sha256');
    derived.set(name, key);
  }
  return key;
}

function hmac(key: Buffer, text: string): Buffer {
  return createHmac('sha256', key).update(text).digest();
}

function attributes(text: string): Record<string, string> {
  return Object.fromEntries(text.split(',').map((part) => [part[0]!, part.slice(2)]));
}
