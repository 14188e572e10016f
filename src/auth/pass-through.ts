import { areKeysOf, type ScramKeys } from './scram.ts';
import type { StoredSecret } from './secret.ts';

/**
 * The SCRAM keys that clients have proved, by login name, so that the pooler can log in to servers
 * as the same name without knowing a password (PgBouncer's SCRAM pass-through).
 *
 * PgBouncer keeps them with the pool's user, so that a client of a database with a forced user
 * overwrites that user's keys. Here they belong to the name that proved them and serve no other.
 * They live in memory only.
 */
export class PassThroughKeys {
  readonly #keys = new Map<string, ScramKeys>();

  /** Number of names with keys. */
  get size(): number {
    return this.#keys.size;
  }

  /**
   * Keeps what a client logged in as `user` proved against `secret`, or what another worker learned
   * so. Keys that are not of that secret are left out. True when they are news to this worker.
   */
  remember(user: string, secret: StoredSecret | null, keys: ScramKeys): boolean {
    if (secret?.kind !== 'scram' || !areKeysOf(keys, secret.verifier)) return false;
    const known = this.#keys.get(user);
    if (known !== undefined && areKeysOf(known, secret.verifier)) return false;
    this.#keys.set(user, keys);
    return true;
  }

  /**
   * Keys for a server login as `user` with `secret`. Null with a plain password, which always wins,
   * and with any other secret than the one that the keys were proved against.
   */
  find(user: string, secret: StoredSecret | null): ScramKeys | null {
    const keys = this.#keys.get(user);
    if (keys === undefined || secret?.kind !== 'scram') return null;
    // Kept all the same: a connection string may hold another secret than the one under this name.
    return areKeysOf(keys, secret.verifier) ? keys : null;
  }

  /** After a reload: drops the keys of names that are gone or whose stored secret is another. */
  retain(secretOf: (user: string) => StoredSecret | null): void {
    for (const [user, keys] of this.#keys) {
      const secret = secretOf(user);
      if (secret?.kind !== 'scram' || !areKeysOf(keys, secret.verifier)) this.#keys.delete(user);
    }
  }
}
