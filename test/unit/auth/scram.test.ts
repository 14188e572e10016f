import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  areKeysOf,
  authMessage,
  clientProof,
  deriveVerifier,
  isServerSignature,
  recoverClientKey,
  serverSignature,
  stableSalt,
  verifyPassword,
} from '../../../src/auth/scram.ts';
import { classifySecret } from '../../../src/auth/secret.ts';
import { Secret } from '../../../src/util/secret.ts';
import { FLEET_SECRET, PENCIL_SCRAM } from './exchange.ts';

const SALT = Buffer.from('W22ZaJ0SNY7soEsUEjb6gQ==', 'base64');
const NONCE = 'rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0';
/** The exchange of RFC 7677 section 3. */
const MESSAGE = authMessage(
  'n=user,r=rOprNGfwEbeRWgbNEkqO',
  `r=${NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096`,
  `c=biws,r=${NONCE}`,
);
const PROOF = 'dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=';
const SIGNATURE = '6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=';

function storedVerifier() {
  const secret = classifySecret(PENCIL_SCRAM);
  assert(secret.kind === 'scram');
  return secret.verifier;
}

test('proof and signature are those of the example in RFC 7677', async () => {
  const derived = await deriveVerifier(new Secret('pencil'), SALT, 4096);
  assert.equal(clientProof(derived.clientKey, MESSAGE).toString('base64'), PROOF);
  assert.equal(serverSignature(derived.serverKey, MESSAGE).toString('base64'), SIGNATURE);
  assert(areKeysOf(derived, storedVerifier()));
});

test('a proof reveals the client key to whoever has the verifier', async () => {
  const derived = await deriveVerifier(new Secret('pencil'), SALT, 4096);
  const key = recoverClientKey(storedVerifier(), MESSAGE, Buffer.from(PROOF, 'base64'));
  assert.deepEqual(key?.reveal(), derived.clientKey.reveal());
});

test('a proof is refused when any of its bits is wrong', () => {
  for (let bit = 0; bit < 256; bit++) {
    const proof = Buffer.from(PROOF, 'base64');
    proof[bit >> 3]! ^= 1 << (bit & 7);
    assert.equal(recoverClientKey(storedVerifier(), MESSAGE, proof), null, `bit ${bit}`);
  }
});

test('a server signature of another length or key is refused', () => {
  const { serverKey } = storedVerifier();
  const signature = Buffer.from(SIGNATURE, 'base64');
  assert(isServerSignature(serverKey, MESSAGE, signature));
  assert(!isServerSignature(serverKey, MESSAGE, signature.subarray(1)));
  assert(!isServerSignature(serverKey, MESSAGE, Buffer.alloc(0)));
  assert(!isServerSignature(new Secret(Buffer.alloc(32)), MESSAGE, signature));
});

test('a password sent in clear text is checked against a verifier', async () => {
  assert(await verifyPassword(Buffer.from('pencil'), storedVerifier(), () => false));
  assert(!(await verifyPassword(Buffer.from('Pencil'), storedVerifier(), () => false)));
});

test('one password, salt and count are derived once, also for callers at the same time', async () => {
  const password = new Secret('pencil');
  const [one, two] = await Promise.all([
    deriveVerifier(password, SALT, 4096),
    deriveVerifier(password, Buffer.from(SALT), 4096),
  ]);
  assert.equal(one, two);
  assert.equal(await deriveVerifier(password, SALT, 4096), one);
  assert.notEqual(await deriveVerifier(password, SALT, 4095), one);
  assert.notEqual(await deriveVerifier(password, Buffer.from('other'), 4096), one);
});

test('a server that shows new salts does not make the memory of derivations grow', async () => {
  const password = new Secret('pencil');
  const first = await deriveVerifier(password, SALT, 1);
  for (let n = 0; n < 3; n++) await deriveVerifier(password, Buffer.of(n), 1);
  assert.equal(await deriveVerifier(password, SALT, 1), first);
  for (let n = 0; n < 4; n++) await deriveVerifier(password, Buffer.of(n), 1);
  assert.notEqual(await deriveVerifier(password, SALT, 1), first);
});

test('an iteration count out of range rejects and is not remembered', async () => {
  const password = new Secret('pencil');
  const failed = deriveVerifier(password, SALT, 0);
  await assert.rejects(failed, RangeError);
  const again = deriveVerifier(password, SALT, 0);
  assert.notEqual(again, failed);
  await assert.rejects(again, RangeError);
  assert.equal((await deriveVerifier(password, SALT, 1)).iterations, 1);
});

test('a made-up salt depends on the fleet and the name only', () => {
  const salt = stableSalt(FLEET_SECRET, 'alice');
  assert.equal(salt.length, 16);
  assert.deepEqual(stableSalt(Buffer.from(FLEET_SECRET), 'alice'), salt);
  assert.notDeepEqual(stableSalt(FLEET_SECRET, 'bob'), salt);
  assert.notDeepEqual(stableSalt(Buffer.from('another fleet'), 'alice'), salt);
});
