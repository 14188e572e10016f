import { isUtf8 } from 'node:buffer';
import {
  contains,
  LEFT_TO_RIGHT,
  MAPPED_TO_NOTHING,
  NON_ASCII_SPACE,
  PROHIBITED,
  RIGHT_TO_LEFT,
  UNASSIGNED,
} from './saslprep-tables.ts';

/**
 * The bytes of a password that SCRAM hashes: SASLprep (RFC 4013) as PostgreSQL applies it. ASCII
 * passes unchanged, control characters included, and a password that SASLprep refuses (not UTF-8,
 * prohibited or unassigned characters, mixed directions, nothing left) is used raw.
 */
export function preparePassword(password: Buffer): Buffer {
  if (password.every((byte) => byte < 0x80) || !isUtf8(password)) return password;

  const mapped: number[] = [];
  for (const character of password.toString('utf8')) {
    const code = character.codePointAt(0)!;
    if (contains(NON_ASCII_SPACE, code)) mapped.push(0x20);
    else if (!contains(MAPPED_TO_NOTHING, code)) mapped.push(code);
  }
  if (mapped.length === 0) return password;

  // RFC 4013 checks the normalised text. PostgreSQL checks what went into the normalisation, and
  // the verifiers that it stores depend on that.
  if (mapped.some((code) => contains(PROHIBITED, code) || contains(UNASSIGNED, code))) {
    return password;
  }
  if (!hasOneDirection(mapped)) return password;
  return Buffer.from(
    mapped
      .map((code) => String.fromCodePoint(code))
      .join('')
      .normalize('NFKC'),
  );
}

/** RFC 3454 section 6: right-to-left text has no left-to-right letters and is so at both ends. */
function hasOneDirection(codes: readonly number[]): boolean {
  if (!codes.some((code) => contains(RIGHT_TO_LEFT, code))) return true;
  if (codes.some((code) => contains(LEFT_TO_RIGHT, code))) return false;
  return contains(RIGHT_TO_LEFT, codes[0]!) && contains(RIGHT_TO_LEFT, codes.at(-1)!);
}
