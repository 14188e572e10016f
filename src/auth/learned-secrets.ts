import { Secret } from '../util/secret.ts';
import { classifySecret, type StoredSecret } from './secret.ts';

/** Most secrets kept, over all databases; the one used longest ago goes first. */
const MAX_SECRETS = 10_000;

interface Learned {
  readonly user: string;
  readonly text: Secret;
  readonly secret: StoredSecret;
}

/**
 * What `auth_query` has said of names, by database: asked anew at every login and kept for the
 * logins to servers that follow, as in PgBouncer. In memory only.
 */
export class LearnedSecrets {
  /** The one used longest ago first. */
  readonly #secrets = new Map<string, Learned>();
  /** Databases in which a name is kept. */
  readonly #names = new Map<string, number>();
  readonly #most: number;

  constructor(most = MAX_SECRETS) {
    this.#most = most;
  }

  get size(): number {
    return this.#secrets.size;
  }

  /** Keeps an answer. One object as long as the text is the same: derived keys are cached with it. */
  learn(database: string, user: string, text: string): StoredSecret {
    const key = keyOf(database, user);
    const known = this.#secrets.get(key);
    const isSame = known !== undefined && known.text.reveal() === text;
    const secret = isSame ? known.secret : classifySecret(text);
    this.#secrets.delete(key);
    this.#secrets.set(key, { user, text: new Secret(text), secret });
    if (known === undefined) this.#names.set(user, (this.#names.get(user) ?? 0) + 1);
    if (this.#secrets.size > this.#most) this.#drop(this.#secrets.keys().next().value!);
    return secret;
  }

  /** What was learnt last; null: nothing. */
  find(database: string, user: string): StoredSecret | null {
    const key = keyOf(database, user);
    const known = this.#secrets.get(key);
    if (known === undefined) return null;
    this.#secrets.delete(key);
    this.#secrets.set(key, known);
    return known.secret;
  }

  /** Whether the query has known the name before, whatever the database. */
  knows(user: string): boolean {
    return this.#names.has(user);
  }

  /** After a reload: drops what is not asked for any more. */
  retain(isAsked: (database: string, user: string) => boolean): void {
    for (const [key, { user }] of this.#secrets) {
      if (!isAsked(key.slice(0, key.indexOf('\0')), user)) this.#drop(key);
    }
  }

  #drop(key: string): void {
    const { user } = this.#secrets.get(key)!;
    this.#secrets.delete(key);
    const left = this.#names.get(user)! - 1;
    if (left === 0) this.#names.delete(user);
    else this.#names.set(user, left);
  }
}

function keyOf(database: string, user: string): string {
  return `${database}\0${user}`;
}
