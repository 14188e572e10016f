import { generateKeyPairSync } from 'node:crypto';

/**
 * Certificates with any names in them, also such as no CA would sign. They can be read, and their
 * signatures are nothing.
 */

const OIDS: Readonly<Record<string, readonly number[]>> = {
  CN: [0x55, 4, 3],
  O: [0x55, 4, 10],
  UID: [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1],
  /** 1.2.3.4, which has no name. */
  '1.2.3.4': [0x2a, 3, 4],
};
const UTF8_STRING = 0x0c;
const ECDSA_SHA256 = sequence(tagged(6, Buffer.of(0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2)));

/** Type and value; several in one list belong together (`CN=a+UID=1`). */
type NamePart = readonly [type: keyof typeof OIDS, value: string];

/** An alternative name. */
type AltName = { readonly dns: string } | { readonly ip: readonly number[] };

/** A certificate (DER) whose subject has these names in this order. */
export function madeCertificate(
  subject: readonly (NamePart | readonly NamePart[])[],
  altNames: readonly AltName[] = [],
): Buffer {
  const { publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const times = ['250101000000Z', '491231000000Z'].map((time) => tagged(0x17, Buffer.from(time)));
  const names = sequence(...subject.map((part) => nameSet(isOne(part) ? [part] : part)));
  const body = sequence(
    tagged(0xa0, tagged(2, Buffer.of(2))),
    tagged(2, Buffer.of(1)),
    ECDSA_SHA256,
    sequence(),
    sequence(...times),
    names,
    publicKey.export({ type: 'spki', format: 'der' }),
    ...(altNames.length === 0 ? [] : [tagged(0xa3, sequence(altNameExtension(altNames)))]),
  );
  return sequence(body, ECDSA_SHA256, tagged(3, Buffer.of(0, 0)));
}

function isOne(part: NamePart | readonly NamePart[]): part is NamePart {
  return typeof part[0] === 'string';
}

function nameSet(parts: readonly NamePart[]): Buffer {
  const one = ([type, value]: NamePart): Buffer =>
    sequence(tagged(6, Buffer.from(OIDS[type]!)), tagged(UTF8_STRING, Buffer.from(value)));
  return tagged(0x31, Buffer.concat(parts.map(one)));
}

function altNameExtension(names: readonly AltName[]): Buffer {
  const list = names.map((name) =>
    'dns' in name ? tagged(0x82, Buffer.from(name.dns)) : tagged(0x87, Buffer.from(name.ip)),
  );
  return sequence(tagged(6, Buffer.of(0x55, 0x1d, 0x11)), tagged(4, sequence(...list)));
}

function sequence(...parts: readonly Buffer[]): Buffer {
  return tagged(0x30, Buffer.concat(parts));
}

function tagged(tag: number, content: Buffer): Buffer {
  const { length } = content;
  const size = length < 128 ? [length] : [0x82, length >> 8, length & 0xff];
  return Buffer.concat([Buffer.of(tag, ...size), content]);
}
