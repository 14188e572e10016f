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
 * Longest password that is prepared, PostgreSQL's own bound until version 13. Anybody may send one of
 * 65,535 bytes before they are known, and to bring a long run of combining characters in order takes
 * time that grows with its square: most of a second, in which the worker does nothing else.
 */
const MAX_PREPARED_BYTES = 1024;

/**
 * The bytes of a password that SCRAM hashes: SASLprep (RFC 4013) as PostgreSQL applies it. ASCII
 * passes unchanged, control characters included, and a password that SASLprep refuses (not UTF-8,
 * prohibited or unassigned characters, mixed directions, nothing left) is used raw, as is one of more
 * than `MAX_PREPARED_BYTES`.
 */
export function preparePassword(password: Buffer): Buffer {
  if (password.every((byte) => byte < 0x80)) return password;
  if (password.length > MAX_PREPARED_BYTES || !isUtf8(password)) return password;

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
