import { HbaRules } from '../auth/hba.ts';
import type { PassThroughKeys } from '../auth/pass-through.ts';
import type { ProvedPasswords } from '../auth/proved-passwords.ts';
import type { StoredSecret } from '../auth/secret.ts';
import type { SecretProfile } from '../auth/secret-profile.ts';
import type { CancelKeys } from '../cancel/cancel-keys.ts';
import type { CancelTarget } from '../cancel/canceller.ts';
import type { DatabaseEntry } from '../config/config.ts';
import type { ConfigIndex } from '../config/effective.ts';
import { splitNames } from '../config/values.ts';
import type { PoolSet } from '../pool/pool-set.ts';
import type { StatementRegistry } from '../prepared/registry.ts';
import type { StatementTranslator } from '../prepared/translator.ts';
import type { TrackedNames } from '../server/parameters.ts';
import type { ClientTls } from '../tls/client-tls.ts';
import type { Secret } from '../util/secret.ts';
import type { Admission } from './admission.ts';
import type { ClientSession } from './client-session.ts';
import type { LocalBackendFactory } from './local-backend.ts';
import type { UnixOwner } from './unix-owner.ts';

/** What is known of a login name. */
export type UserLookup =
  | {
      readonly kind: 'found';
      /** null: nobody has that name. */
      readonly secret: StoredSecret | null;
    }
  /** It cannot be found out, or is not there; `text` is for the client. */
  | { readonly kind: 'refused'; readonly sqlstate: string; readonly text: string };

/** The part of the context that follows from the configuration. */
export interface ClientConfig {
  index: ConfigIndex;
  ignoredParameters: ReadonlySet<string>;
  adminUsers: ReadonlySet<string>;
  statsUsers: ReadonlySet<string>;
  /** Null where `auth_type` is not `hba`. */
  hba: HbaRules | null;
}

/** What a configuration says about clients. */
export function clientConfig(index: ConfigIndex): ClientConfig {
  const { ignore_startup_parameters, admin_users, stats_users } = index.settings;
  return {
    index,
    ignoredParameters: new Set(splitNames(ignore_startup_parameters)),
    adminUsers: new Set(splitNames(admin_users)),
    statsUsers: new Set(splitNames(stats_users)),
    hba: index.config.hba === null ? null : new HbaRules(index.config.hba),
  };
}

/** What all client sessions of a worker share; a reload changes its configuration in place. */
export interface ClientContext extends ClientConfig {
  /** For handshakes that begin from now on. */
  clientTls: ClientTls;
  readonly tracked: TrackedNames;
  readonly registry: StatementRegistry;
  readonly translator: StatementTranslator;
  readonly pools: PoolSet;
  readonly admission: Admission;
  readonly cancelKeys: CancelKeys<CancelTarget>;
  readonly passThrough: PassThroughKeys;
  readonly provedPasswords: ProvedPasswords;
  readonly console: LocalBackendFactory;
  readonly unixOwner: Pick<UnixOwner, 'name' | 'isKnown'>;
  /** Shared by all workers; salts of imitation logins are made from it. */
  readonly fleetSecret: Buffer;
  /** What the secrets of `auth_file` are like, for imitation logins. */
  readonly secretProfile: () => SecretProfile;
  /**
   * What is stored for the login name of `session`; `entry` is the database asked for, null at the
   * console and for one that nobody has heard of.
   */
  findUser(
    user: string,
    entry: DatabaseEntry | null,
    session: ClientSession,
  ): UserLookup | Promise<UserLookup>;
  /** Whether LDAP says that the password is right; `signal`: the client has left. Never rejects. */
  checkLdap(
    options: string,
    claim: { readonly user: string; readonly password: Secret },
    signal: AbortSignal,
  ): Promise<boolean>;
  /** New logins are refused: the fleet is shutting down. */
  isShuttingDown: boolean;
  /**
   * A CancelRequest packet; `done` closes the requester's connection, for the reason given. What it
   * returns is called when the requester leaves before that.
   */
  onCancelRequest(packet: Buffer, done: (reason: string) => void): () => void;
  /** This worker's number. */
  readonly worker: number;
  /** Workers that have slots for the pool of this database and login name, the best first. */
  placesFor(database: string, user: string): readonly number[];
  /**
   * Hands the client to another worker, with all that was read from it. False when that cannot be
   * done, and the session goes on here.
   */
  handOff(session: ClientSession, target: number, received: Buffer): boolean;
  /** The session is over. */
  onSessionEnd(session: ClientSession): void;
}
