import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import { test } from 'node:test';
import { endPointHash } from '../../../src/tls/channel-binding.ts';

const NULL = Buffer.from([5, 0]);

/** One DER element. */
function der(tag: number, ...parts: Buffer[]): Buffer {
  const body = Buffer.concat(parts);
  const { length } = body;
  if (length < 128) return Buffer.concat([Buffer.from([tag, length]), body]);
  return Buffer.concat([Buffer.from([tag, 0x82, length >> 8, length & 255]), body]);
}

const id = (hex: string): Buffer => der(6, Buffer.from(hex, 'hex'));
const algorithm = (hex: string, parameters: Buffer = NULL): Buffer =>
  der(0x30, id(hex), parameters);

/** What a certificate signed so looks like from outside; nobody checks the signature here. */
function certificate(signature: Buffer): Buffer {
  return der(0x30, der(0x30, Buffer.alloc(300, 1)), signature, der(3, Buffer.alloc(65)));
}

/** Parameters of RSASSA-PSS with a hash of their own. */
const pss = (hex: string): Buffer => der(0x30, der(0xa0, algorithm(hex)), der(0xa2, NULL));

const rows: readonly [string, Buffer, string | null][] = [
  ['md5WithRSAEncryption', algorithm('2a864886f70d010104'), 'sha256'],
  ['sha1WithRSAEncryption', algorithm('2a864886f70d010105'), 'sha256'],
  ['sha224WithRSAEncryption', algorithm('2a864886f70d01010e'), 'sha224'],
  ['sha256WithRSAEncryption', algorithm('2a864886f70d01010b'), 'sha256'],
  ['sha384WithRSAEncryption', algorithm('2a864886f70d01010c'), 'sha384'],
  ['sha512WithRSAEncryption', algorithm('2a864886f70d01010d'), 'sha512'],
  ['sha512-256WithRSAEncryption', algorithm('2a864886f70d010110'), 'sha512-256'],
  ['ecdsa-with-SHA1', algorithm('2a8648ce3d0401'), 'sha256'],
  ['ecdsa-with-SHA256', algorithm('2a8648ce3d040302'), 'sha256'],
  ['ecdsa-with-SHA384', algorithm('2a8648ce3d040303'), 'sha384'],
  ['ecdsa-with-SHA512', algorithm('2a8648ce3d040304'), 'sha512'],
  ['dsa-with-sha256', algorithm('608648016503040302'), 'sha256'],
  ['id-ecdsa-with-sha3-256', algorithm('60864801650304030a'), 'sha3-256'],
  ['RSASSA-PSS, SHA-1 by default', algorithm('2a864886f70d01010a', der(0x30)), 'sha256'],
  ['RSASSA-PSS, SHA-1', algorithm('2a864886f70d01010a', pss('2b0e03021a')), 'sha256'],
  ['RSASSA-PSS, SHA-384', algorithm('2a864886f70d01010a', pss('608648016503040202')), 'sha384'],
  ['RSASSA-PSS, no such hash', algorithm('2a864886f70d01010a', pss('608648016503040299')), null],
  ['RSASSA-PSS without parameters', algorithm('2a864886f70d01010a'), null],
  ['Ed25519', der(0x30, id('2b6570')), null],
  ['an algorithm unknown here', algorithm('2a0304'), null],
];

for (const [name, signature, expected] of rows) {
  test(`${name} binds by ${expected ?? 'nothing'}`, () => {
    const bytes = certificate(signature);
    const found = endPointHash(bytes);
    assert.deepEqual(found, expected === null ? null : hash(expected, bytes, 'buffer'));
  });
}

test('bytes that are no certificate, or a part of one, bind by nothing', () => {
  const whole = certificate(algorithm('2a8648ce3d040302'));
  for (let end = 0; end < whole.length; end++) {
    assert.equal(endPointHash(whole.subarray(0, end)), null, `cut at ${end}`);
  }
  for (const hex of ['30', '3080', '30850000000001', '0400', '30020400', '3003020100']) {
    assert.equal(endPointHash(Buffer.from(hex, 'hex')), null, hex);
  }
});
