import { createHmac, hash, pbkdf2, randomBytes, timingSafeEqual } from 'node:crypto';
import { promisify } from 'node:util';
import { Secret } from '../util/secret.ts';
import { TaskQueue } from '../util/task-queue.ts';
import { preparePassword } from './saslprep.ts';
import { decodeBase64 } from './scram-messages.ts';

/**
 * The arithmetic of SCRAM-SHA-256 (RFC 5802 section 3, RFC 7677), without messages or states. All
 * keys stay inside `Secret`; PBKDF2 runs on the thread pool only, never on the event loop.
 */

const KEY_BYTES = 32;
/** Bytes of a salt made here, PostgreSQL's SCRAM_DEFAULT_SALT_LEN. */
const SALT_BYTES = 16;
/** Derivations kept per password: one for the clients, the rest for servers with salts of their own. */
const CACHED_PER_PASSWORD = 4;
/** Most iterations that PBKDF2 here can do. */
const MAX_ITERATIONS = 2 ** 31 - 1;
const LABEL = 'SCRAM-SHA-256$';

/**
 * Derivations at a time. The thread pool has four threads, so that files and names never wait for a
 * burst of logins, and the event loops of the fleet keep a core to run on.
 */
const DERIVATIONS_AT_A_TIME = 2;

const pbkdf2Async = promisify(pbkdf2);

/** All derivations of this process: of clients, and of logins to servers. */
export const derivationQueue = new TaskQueue(DERIVATIONS_AT_A_TIME);

/** What a server keeps of a password (RFC 5802 section 5.1, `pg_authid.rolpassword`). */
export interface ScramVerifier {
  readonly iterations: number;
  readonly salt: Buffer;
  readonly storedKey: Secret<Buffer>;
  readonly serverKey: Secret<Buffer>;
}

/** What it takes to log in by SCRAM without the password, where the server keeps the same verifier. */
export interface ScramKeys {
  readonly clientKey: Secret<Buffer>;
  readonly serverKey: Secret<Buffer>;
}

/** Verifier and keys, as only the password itself gives them. */
export interface DerivedVerifier extends ScramVerifier, ScramKeys {}

interface Derivation {
  readonly iterations: number;
  readonly salt: Buffer;
  readonly result: Promise<DerivedVerifier>;
}

/** By the `Secret` that holds the password, so that the keys go when a reload drops the password. */
const derivations = new WeakMap<Secret, Derivation[]>();

/**
 * Derives all keys of `password`. The result is remembered with the `Secret` object, and callers who
 * ask meanwhile share one derivation: a thousand clients of one user cost one PBKDF2.
 * Rejects when `iterations` is not 1 to 2^31 - 1.
 */
export function deriveVerifier(
  password: Secret,
  salt: Buffer,
  iterations: number,
): Promise<DerivedVerifier> {
  const known = derivations.get(password) ?? [];
  const found = known.find((one) => one.iterations === iterations && one.salt.equals(salt));
  const used = found ?? {
    iterations,
    salt,
    result: derive(Buffer.from(password.reveal()), salt, iterations),
  };
  if (found === undefined) used.result.catch(() => derivations.delete(password));
  // Most recently used first: a server that shows a new salt each time cannot make this grow.
  const others = known.filter((one) => one !== used);
  derivations.set(password, [used, ...others].slice(0, CACHED_PER_PASSWORD));
  return used.result;
}

/** The keys of `password` have been derived, or are about to be, so that asking costs next to nothing. */
export function isDerived(password: Secret, salt: Buffer, iterations: number): boolean {
  const known = derivations.get(password) ?? [];
  return known.some((one) => one.iterations === iterations && one.salt.equals(salt));
}

/**
 * True when `password`, as sent by a client, is the one that `verifier` was made from. A client that
 * has gone when its turn comes is not worth the work: false.
 */
export async function verifyPassword(
  password: Buffer,
  verifier: ScramVerifier,
  isGone: () => boolean,
): Promise<boolean> {
  const { salt, iterations, storedKey } = verifier;
  const work = () => saltPassword(password, salt, iterations);
  const salted = await derivationQueue.runIfWanted(work, () => !isGone());
  return salted !== null && isSameKey(keysOf(salted, salt, iterations).storedKey, storedKey);
}

/**
 * Takes as long as a derivation, for a login whose end would otherwise tell that it needs none.
 * @param password what the client has sent, if it did: how long its preparation takes is its choice
 */
export async function spendDerivation(
  iterations: number,
  isGone: () => boolean,
  password: Buffer = randomBytes(SALT_BYTES),
): Promise<void> {
  const work = () => saltPassword(password, randomBytes(SALT_BYTES), iterations);
  await derivationQueue.runIfWanted(work, () => !isGone());
}

async function derive(
  password: Buffer,
  salt: Buffer,
  iterations: number,
): Promise<DerivedVerifier> {
  const salted = await derivationQueue.run(() => saltPassword(password, salt, iterations));
  return keysOf(salted, salt, iterations);
}

/** SaltedPassword of RFC 5802 section 3, on the thread pool. */
async function saltPassword(password: Buffer, salt: Buffer, iterations: number): Promise<Buffer> {
  return pbkdf2Async(preparePassword(password), salt, iterations, KEY_BYTES, 'sha256');
}

function keysOf(salted: Buffer, salt: Buffer, iterations: number): DerivedVerifier {
  const clientKey = hmac(salted, 'Client Key');
  return {
    iterations,
    salt,
    clientKey: new Secret(clientKey),
    storedKey: new Secret(sha256(clientKey)),
    serverKey: new Secret(hmac(salted, 'Server Key')),
  };
}

/**
 * Reads `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`, all but the number in base64.
 * Returns null for everything else.
 */
export function parseVerifier(text: string): ScramVerifier | null {
  if (!text.startsWith(LABEL)) return null;
  const parts = /^(\d{1,10}):([^$:]+)\$([^$:]+):([^$:]+)$/.exec(text.slice(LABEL.length));
  if (parts === null) return null;
  const iterations = Number(parts[1]);
  if (iterations < 1 || iterations > MAX_ITERATIONS) return null;
  const salt = decodeBase64(parts[2]!);
  const storedKey = decodeBase64(parts[3]!);
  const serverKey = decodeBase64(parts[4]!);
  if (salt === null || storedKey?.length !== KEY_BYTES || serverKey?.length !== KEY_BYTES)
    return null;
  return { iterations, salt, storedKey: new Secret(storedKey), serverKey: new Secret(serverKey) };
}

/**
 * Salt shown for users that have none of their own: stored as plain text, or unknown. It depends on
 * the name alone, so that asking twice, or asking another worker, does not tell the two apart.
 */
export function stableSalt(fleetSecret: Buffer, user: string): Buffer {
  return createHmac('sha256', fleetSecret)
    .update(`scram salt ${user}`)
    .digest()
    .subarray(0, SALT_BYTES);
}

/** AuthMessage of RFC 5802 section 3; the parts are latin1 strings, one character a byte. */
export function authMessage(
  clientFirstBare: string,
  serverFirst: string,
  clientFinalWithoutProof: string,
): Buffer {
  return Buffer.from(`${clientFirstBare},${serverFirst},${clientFinalWithoutProof}`, 'latin1');
}

/** ClientProof: what a client shows instead of its key. */
export function clientProof(clientKey: Secret<Buffer>, message: Buffer): Buffer {
  const key = clientKey.reveal();
  return xor(key, hmac(sha256(key), message));
}

/** The ClientKey that `proof` reveals, or null when it does not belong to `verifier`. */
export function recoverClientKey(
  verifier: ScramVerifier,
  message: Buffer,
  proof: Buffer,
): Secret<Buffer> | null {
  const storedKey = verifier.storedKey.reveal();
  const clientKey = xor(proof, hmac(storedKey, message));
  return timingSafeEqual(sha256(clientKey), storedKey) ? new Secret(clientKey) : null;
}

/** ServerSignature: the server's own proof that it knows the verifier. */
export function serverSignature(serverKey: Secret<Buffer>, message: Buffer): Buffer {
  return hmac(serverKey.reveal(), message);
}

/** True when `signature` is the ServerSignature under `serverKey`. */
export function isServerSignature(
  serverKey: Secret<Buffer>,
  message: Buffer,
  signature: Buffer,
): boolean {
  const expected = serverSignature(serverKey, message);
  return signature.length === expected.length && timingSafeEqual(signature, expected);
}

/** True when `keys` were proved against this very verifier. */
export function areKeysOf(keys: ScramKeys, verifier: ScramVerifier): boolean {
  return (
    timingSafeEqual(sha256(keys.clientKey.reveal()), verifier.storedKey.reveal()) &&
    isSameKey(keys.serverKey, verifier.serverKey)
  );
}

function isSameKey(left: Secret<Buffer>, right: Secret<Buffer>): boolean {
  return timingSafeEqual(left.reveal(), right.reveal());
}

function hmac(key: Buffer, message: string | Buffer): Buffer {
  return createHmac('sha256', key).update(message).digest();
}

function sha256(bytes: Buffer): Buffer {
  return hash('sha256', bytes, 'buffer');
}

/** Both operands are SHA-256 sized: proofs are checked for that when they are read. */
function xor(left: Buffer, right: Buffer): Buffer {
  return Buffer.from(left.map((byte, index) => byte ^ right[index]!));
}
