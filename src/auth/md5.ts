import { hash, timingSafeEqual } from 'node:crypto';

/**
 * PostgreSQL's MD5 authentication (documentation, "AuthenticationMD5Password"): the stored form is
 * `md5` + hex(md5(password + name)), the answer `md5` + hex(md5(hex part of the stored form + salt)).
 */

/** Bytes of the salt that AuthenticationMD5Password carries. */
export const MD5_SALT_BYTES = 4;

/** Stored form of `password` for the user `name`, 35 characters. */
export function md5Secret(password: string | Buffer, name: string): string {
  return `md5${hash('md5', Buffer.concat([Buffer.from(password), Buffer.from(name)]))}`;
}

/** Answer to an MD5 request with `salt` of whoever owns the stored form `secret`. */
export function md5Answer(secret: string, salt: Buffer): string {
  return `md5${hash('md5', Buffer.concat([Buffer.from(secret.slice(3)), salt]))}`;
}

/** Compares two secret texts; how long it takes does not tell where they begin to differ. */
export function isSameText(left: string | Buffer, right: string | Buffer): boolean {
  return timingSafeEqual(hash('sha256', left, 'buffer'), hash('sha256', right, 'buffer'));
}
