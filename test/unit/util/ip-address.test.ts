import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ipBytes } from '../../../src/util/ip-address.ts';

const CASES: readonly (readonly [string, string | null])[] = [
  ['0.0.0.0', '00000000'],
  ['10.1.2.255', '0a0102ff'],
  ['::', '0'.repeat(32)],
  ['::1', `${'0'.repeat(31)}1`],
  ['1::', `0001${'0'.repeat(28)}`],
  ['2001:DB8::8:0', `20010db8${'0'.repeat(16)}00080000`],
  ['1:2:3:4:5:6:7:8', '00010002000300040005000600070008'],
  ['::ffff:1.2.3.4', `${'0'.repeat(20)}ffff01020304`],
  ['1:2:3:4:5:6:1.2.3.4', '00010002000300040005000601020304'],
  ['', null],
  ['10.1.2', null],
  ['010.1.2.3', null],
  ['10.1.2.256', null],
  [' 10.1.2.3', null],
  ['fe80::1%eth0', null],
  ['1::2::3', null],
  ['unix', null],
];

for (const [text, bytes] of CASES) {
  test(`the address '${text}' is ${bytes}`, () => {
    const found = ipBytes(text);
    assert.equal(found === null ? null : Buffer.from(found).toString('hex'), bytes);
  });
}
