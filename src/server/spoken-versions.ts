import { NEWEST_PROTOCOL, RequestCode } from '../wire/codes.ts';

/**
 * Which version of the protocol each host of a pool is asked for. PostgreSQL gives long cancel keys
 * only to those that ask for 3.2. One that knows less negotiates (since 2017, PostgreSQL 9.3); older
 * ones, and programs in between, refuse the version in words or close without any. Those are asked
 * for 3.0 at once and from then on.
 *
 *   newest -> refused in words -> 3.0 for good
 *      |  `-> closed in silence -> 3.0 tried -> answered: 3.0 for good
 *      |                                    `-> silence too: newest again, it was something else
 *      `-> answered: newest for good, whatever later connections come to
 */
const Spoken = { newest: 0, perhapsOld: 1, old: 2 } as const;
type Spoken = (typeof Spoken)[keyof typeof Spoken];

export class SpokenVersions {
  readonly #hosts = new Map<string, Spoken>();

  /** Int32 of the StartupMessage for this host. */
  toAsk(host: string): number {
    const known = this.#hosts.get(host) ?? Spoken.newest;
    return known === Spoken.newest ? NEWEST_PROTOCOL : RequestCode.protocol3;
  }

  /** The host has answered a StartupMessage of version `asked` with anything but a refusal of it. */
  onAnswer(host: string, asked: number): void {
    if (asked === NEWEST_PROTOCOL) this.#hosts.set(host, Spoken.newest);
    else if (this.#hosts.get(host) === Spoken.perhapsOld) this.#hosts.set(host, Spoken.old);
  }

  /** The host has refused the newest version in words. */
  onRefusal(host: string): void {
    this.#hosts.set(host, Spoken.old);
  }

  /** The host has closed without a word. True: an older version should be tried at once. */
  onSilence(host: string, asked: number): boolean {
    if (asked !== NEWEST_PROTOCOL) {
      if (this.#hosts.get(host) === Spoken.perhapsOld) this.#hosts.delete(host);
      return false;
    }
    if (this.#hosts.get(host) === Spoken.newest) return false;
    this.#hosts.set(host, Spoken.perhapsOld);
    return true;
  }
}

/** SQLSTATE with which PostgreSQL refuses a version (feature_not_supported). */
const NOT_SUPPORTED = '0A000';
/** SQLSTATE of PgBouncer's errors (protocol_violation), whose text must tell. */
const PROTOCOL_VIOLATION = '08P01';

/** Whether an error that is the first answer to a StartupMessage is about its version. */
export function isAboutVersion(sqlstate: string, text: string): boolean {
  if (sqlstate === NOT_SUPPORTED) return true;
  return sqlstate === PROTOCOL_VIOLATION && /protocol|packet header|version/i.test(text);
}
