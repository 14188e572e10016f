import assert from 'node:assert/strict';
import { test } from 'node:test';
import { classifySecret } from '../../../src/auth/secret.ts';
import { PENCIL_SCRAM } from './exchange.ts';

const KEY = 'WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=';
const DIGITS = '0123456789abcdef0123456789abcdef';

const kinds: readonly (readonly [text: string, kind: string])[] = [
  ['', 'empty'],
  [' ', 'plain'],
  ['pencil', 'plain'],
  [`md5${DIGITS}`, 'md5'],
  [`md5${DIGITS.toUpperCase()}`, 'plain'],
  [`MD5${DIGITS}`, 'plain'],
  [`md5${DIGITS}0`, 'plain'],
  [`md5${DIGITS.slice(1)}`, 'plain'],
  [`md5${DIGITS.slice(1)}g`, 'plain'],
  [`md5${DIGITS}\n`, 'plain'],
  [PENCIL_SCRAM, 'scram'],
  [`SCRAM-SHA-256$1:c2FsdA==$${KEY}:${KEY}`, 'scram'],
  [`scram-sha-256$1:c2FsdA==$${KEY}:${KEY}`, 'plain'],
  [`SCRAM-SHA-256$0:c2FsdA==$${KEY}:${KEY}`, 'plain'],
  [`SCRAM-SHA-256$-1:c2FsdA==$${KEY}:${KEY}`, 'plain'],
  [`SCRAM-SHA-256$2147483648:c2FsdA==$${KEY}:${KEY}`, 'plain'],
  [`SCRAM-SHA-256$4096x:c2FsdA==$${KEY}:${KEY}`, 'plain'],
  [`SCRAM-SHA-256$4096:$${KEY}:${KEY}`, 'plain'],
  [`SCRAM-SHA-256$4096:c2Fsd$${KEY}:${KEY}`, 'plain'],
  [`SCRAM-SHA-256$4096:c2FsdA==$c2FsdA==:${KEY}`, 'plain'],
  [`SCRAM-SHA-256$4096:c2FsdA==$${KEY}:c2FsdA==`, 'plain'],
  [`SCRAM-SHA-256$4096:c2FsdA==$${KEY}`, 'plain'],
  [`SCRAM-SHA-256$4096:c2FsdA==$${KEY}:${KEY}:`, 'plain'],
  [`SCRAM-SHA-256$4096:c2FsdA==$${KEY}:${KEY} `, 'plain'],
  ['SCRAM-SHA-256$', 'plain'],
];

test('the kind of a stored secret follows from its text alone', () => {
  for (const [text, kind] of kinds) assert.equal(classifySecret(text).kind, kind, text);
});

test('a SCRAM secret keeps its count, salt, keys and text', () => {
  const secret = classifySecret(PENCIL_SCRAM);
  assert(secret.kind === 'scram');
  assert.equal(secret.text.reveal(), PENCIL_SCRAM);
  assert.equal(secret.verifier.iterations, 4096);
  assert.equal(secret.verifier.salt.toString('base64'), 'W22ZaJ0SNY7soEsUEjb6gQ==');
  assert.equal(secret.verifier.storedKey.reveal().toString('base64'), KEY);
  assert.equal(
    secret.verifier.serverKey.reveal().toString('base64'),
    'wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=',
  );
});
