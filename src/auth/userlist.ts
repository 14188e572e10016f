import type { AuthUser } from '../config/auth-file.ts';
import { classifySecret, type StoredSecret } from './secret.ts';

/** Stored secrets of `auth_file` by user name. */
export type Userlist = ReadonlyMap<string, StoredSecret>;

/** The users of `auth_file` and what a previous version of the file had made of them. */
interface KnownUsers {
  readonly users: readonly AuthUser[];
  readonly secrets: Userlist;
}

/**
 * What is stored for the users of `auth_file`. A user whose line has not changed keeps its object,
 * since keys that were derived from a secret are cached with it; one who is gone is forgotten.
 */
export function readUserlist(users: readonly AuthUser[], known: KnownUsers | null): Userlist {
  const before = new Map(known?.users.map(({ name, secret }) => [name, secret]));
  const read = users.map(({ name, secret }): [string, StoredSecret] => {
    const kept = before.get(name) === secret ? known?.secrets.get(name) : undefined;
    return [name, kept ?? classifySecret(secret)];
  });
  return new Map(read);
}
