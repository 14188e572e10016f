import assert from 'node:assert/strict';
import { test } from 'node:test';
import { preparePassword } from '../../../src/auth/saslprep.ts';

/** Expectations: what PostgreSQL stores verifiers of; RFC 4013 section 3 for the first five. */
const cases: readonly (readonly [rule: string, password: string, prepared: string])[] = [
  ['a soft hyphen is dropped', 'I\u00adX', 'IX'],
  ['ASCII stays', 'user', 'user'],
  ['case is kept', 'USER', 'USER'],
  ['a compatibility character becomes its letters', '\u00aa', 'a'],
  ['a Roman numeral becomes its letters', '\u2168', 'IX'],
  ['an ASCII control character stays', '\u0007', '\u0007'],
  ['a control character beside other text makes it raw', '\u0007\u2168', '\u0007\u2168'],
  ['a no-break space becomes a space', 'a\u00a0b', 'a b'],
  ['the ideographic space becomes a space', 'a\u3000b', 'a b'],
  ['composed and decomposed are the same', 'e\u0301', '\u00e9'],
  ['a fullwidth letter becomes a plain one', '\uff21', 'A'],
  ['a password of dropped characters only is raw', '\u00ad', '\u00ad'],
  ['a private-use character makes it raw', '\ue000\u2168', '\ue000\u2168'],
  ['a character newer than Unicode 3.2 makes it raw', '\u{1f600}\u2168', '\u{1f600}\u2168'],
  ['right-to-left text is prepared', '\u0627\ufefb\u0627', '\u0627\u0644\u0627\u0627'],
  ['mixed directions make it raw', '\u0627a\u2168\u0627', '\u0627a\u2168\u0627'],
  ['right-to-left text that ends in a digit is raw', '\u0627\uff11', '\u0627\uff11'],
];

for (const [rule, password, prepared] of cases) {
  test(`SASLprep: ${rule}`, () => {
    assert.equal(preparePassword(Buffer.from(password)).toString(), prepared);
  });
}

test('SASLprep: bytes that are not UTF-8 are used raw', () => {
  const password = Buffer.from([0x61, 0xe2, 0x85, 0xff]);
  assert.deepEqual(preparePassword(password), password);
});

test('SASLprep: a password of 1,024 bytes is prepared, a longer one is used raw', () => {
  const longest = '\u00aa'.repeat(512);
  assert.equal(preparePassword(Buffer.from(longest)).toString(), 'a'.repeat(512));
  const longer = Buffer.from(`${longest}a`);
  assert.deepEqual(preparePassword(longer), longer);
});

test('SASLprep: a long run of combining characters is not put in order', () => {
  // Ordering all of it took a worker most of a second, for anybody who sent it.
  const run = Buffer.from('\u0327\u0301'.repeat(16_000));
  assert.deepEqual(preparePassword(run), run);
});
