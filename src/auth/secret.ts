import { Secret } from '../util/secret.ts';
import { parseVerifier, type ScramVerifier } from './scram.ts';

/** What is stored for a user, by `auth_file`, a connection string or a query. */
export type StoredSecret =
  | { readonly kind: 'empty' }
  | { readonly kind: 'plain'; readonly password: Secret }
  /** `hash` is the whole stored text, `md5` and 32 hexadecimal digits. */
  | { readonly kind: 'md5'; readonly hash: Secret }
  /** `text` is the whole stored text. */
  | { readonly kind: 'scram'; readonly verifier: ScramVerifier; readonly text: Secret };

const MD5_FORM = /^md5[0-9a-f]{32}$/;

/**
 * Tells the kind of a stored secret from its text alone, as PgBouncer does: malformed forms of an
 * MD5 or SCRAM secret are plain passwords.
 */
export function classifySecret(text: string): StoredSecret {
  if (text === '') return { kind: 'empty' };
  if (MD5_FORM.test(text)) return { kind: 'md5', hash: new Secret(text) };
  const verifier = parseVerifier(text);
  if (verifier !== null) return { kind: 'scram', verifier, text: new Secret(text) };
  return { kind: 'plain', password: new Secret(text) };
}
