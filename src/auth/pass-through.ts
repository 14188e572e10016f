import { areKeysOf, type ScramKeys } from './scram.ts';
import type { StoredSecret } from './secret.ts';

/** Most names with keys; the one used longest ago goes first. */
const MAX_NAMES = 10_000;
/** Keys of one name: a name may have another secret in each of the databases that are asked for it. */
const MAX_KEYS_PER_NAME = 4;

/** Keys as one worker tells them to another. */
export interface ProvedKeys {
  readonly user: string;
  readonly keys: ScramKeys;
}

/**
 * The SCRAM keys that clients have proved, by login name, so that the pooler can log in to servers
 * as the same name without knowing a password (PgBouncer's SCRAM pass-through).
 *
 * PgBouncer keeps them with the pool's user, so that a client of a database with a forced user
 * overwrites that user's keys. Here they belong to the name that proved them and serve no other.
 * They live in memory only.
 */
export class PassThroughKeys {
  /** The name used longest ago first; of one name the newest keys first. */
  readonly #keys = new Map<string, readonly ScramKeys[]>();
  readonly #onNews: (proved: ProvedKeys) => void;
  readonly #mostNames: number;

  /** @param onNews told of keys that a client of this worker has proved, for the other workers */
  constructor(onNews: (proved: ProvedKeys) => void = () => {}, mostNames = MAX_NAMES) {
    this.#onNews = onNews;
    this.#mostNames = mostNames;
  }

  /** Number of names with keys. */
  get size(): number {
    return this.#keys.size;
  }

  /** Everything that is known, for a worker that has just started. */
  get all(): readonly ProvedKeys[] {
    return [...this.#keys].flatMap(([user, list]) => list.map((keys) => ({ user, keys })));
  }

  /**
   * Keeps what a client logged in as `user` proved against `secret`. Keys that are not of that secret
   * are left out. True when they are news to this worker.
   */
  remember(user: string, secret: StoredSecret | null, keys: ScramKeys): boolean {
    if (secret?.kind !== 'scram' || !areKeysOf(keys, secret.verifier)) return false;
    if (this.find(user, secret) !== null) return false;
    this.accept({ user, keys });
    this.#onNews({ user, keys });
    return true;
  }

  /** Keeps what another worker has learnt. Whether the keys fit a secret is looked at in `find`. */
  accept({ user, keys }: ProvedKeys): void {
    const others = (this.#keys.get(user) ?? []).filter((one) => !isSame(one, keys));
    this.#keys.delete(user);
    this.#keys.set(user, [keys, ...others].slice(0, MAX_KEYS_PER_NAME));
    if (this.#keys.size > this.#mostNames) this.#keys.delete(this.#keys.keys().next().value!);
  }

  /**
   * Keys for a server login as `user` with `secret`. Null with a plain password, which always wins,
   * and with any other secret than the one that the keys were proved against.
   */
  find(user: string, secret: StoredSecret | null): ScramKeys | null {
    const list = this.#keys.get(user);
    if (list === undefined || secret?.kind !== 'scram') return null;
    this.#keys.delete(user);
    this.#keys.set(user, list);
    return list.find((keys) => areKeysOf(keys, secret.verifier)) ?? null;
  }

  /** After a reload: drops the keys of names that are gone or whose stored secret is another. */
  retain(isOf: (proved: ProvedKeys) => boolean): void {
    for (const [user, list] of this.#keys) {
      const kept = list.filter((keys) => isOf({ user, keys }));
      if (kept.length === 0) this.#keys.delete(user);
      else this.#keys.set(user, kept);
    }
  }
}

function isSame(one: ScramKeys, other: ScramKeys): boolean {
  return one.clientKey.reveal().equals(other.clientKey.reveal());
}
