import type { Secret } from '../util/secret.ts';
import type { StoredSecret } from './secret.ts';

/** Logins whose passwords are kept; beyond, those that came in longest ago are forgotten. */
const MAX_LOGINS = 10_000;

/**
 * Passwords that another service has found right at a client's login (`ldap`), for logins to the
 * servers of the same database under the same name. PgBouncer keeps one for a name, whatever the
 * database; here what one directory takes for right goes to no server behind another.
 *
 * They live in memory only, until the next login of the name.
 */
export class ProvedPasswords {
  readonly #limit: number;
  readonly #secrets = new Map<string, StoredSecret>();

  constructor(limit = MAX_LOGINS) {
    this.#limit = limit;
  }

  get size(): number {
    return this.#secrets.size;
  }

  remember(database: string, user: string, password: Secret): void {
    const key = keyOf(database, user);
    const known = this.#secrets.get(key);
    // Put behind all others, since the map is in the order of logins.
    this.#secrets.delete(key);
    this.#secrets.set(key, isSame(known, password) ? known! : { kind: 'plain', password });
    if (this.#secrets.size <= this.#limit) return;
    const [oldest] = this.#secrets.keys();
    this.#secrets.delete(oldest!);
  }

  /** The secret to log in with to a server of `database` as `user`; null: none is known. */
  find(database: string, user: string): StoredSecret | null {
    return this.#secrets.get(keyOf(database, user)) ?? null;
  }

  clear(): void {
    this.#secrets.clear();
  }
}

function keyOf(database: string, user: string): string {
  return `${database}\0${user}`;
}

/** Keys that were derived from a password are cached with its secret, so the old one is kept. */
function isSame(known: StoredSecret | undefined, password: Secret): boolean {
  return known?.kind === 'plain' && known.password.reveal() === password.reveal();
}
