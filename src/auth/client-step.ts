import type { Secret } from '../util/secret.ts';
import type { ClientConnection } from './client-connection.ts';
import type { LoginMethod } from './login-method.ts';
import type { ScramKeys } from './scram.ts';
import type { StoredSecret } from './secret.ts';
import type { SecretProfile } from './secret-profile.ts';

/** A login to the pooler, as the session asks for it. */
export interface ClientAuthRequest {
  readonly method: LoginMethod;
  /** Name from the startup packet. */
  readonly user: string;
  /** What is stored for that name; null: nobody has it. */
  readonly secret: StoredSecret | null;
  readonly connection: ClientConnection;
  /** `scram_iterations`: for users stored as plain text and unknown ones. */
  readonly scramIterations: number;
  /** Random secret that all workers of the fleet share: salts of users that have none. */
  readonly fleetSecret: Buffer;
  /** What most users' secrets are like, for the imitation of a login. */
  readonly profile: SecretProfile;
  /** The client has left: work that is still queued for it need not be done. */
  readonly isGone: () => boolean;
  /** Source of `n` unpredictable bytes. */
  readonly random: (n: number) => Buffer;
  /** Finds out from an LDAP server whether a password is right; never rejects for what one says. */
  readonly checkLdap: (options: string, user: string, password: Secret) => Promise<boolean>;
}

/** What the session does next. */
export type AuthStep =
  /** Send the whole message, wait for the client's next `p`. */
  | { readonly kind: 'send'; readonly message: Buffer }
  | {
      readonly kind: 'accepted';
      /** AuthenticationSASLFinal to send ahead of AuthenticationOk. */
      readonly message: Buffer | null;
      /** Keys that the client proved, for SCRAM pass-through. */
      readonly clientKeys: ScramKeys | null;
      /** Password that another service has found right, for logins to servers (`ldap`). */
      readonly password: Secret | null;
    }
  | {
      readonly kind: 'refused';
      /** Text for the client, PgBouncer's. */
      readonly text: string;
      /** PgBouncer's ERROR line that explains it in the log; holds no secret. */
      readonly detail: string | null;
    };

/** One login in progress. A step other than `send` is the last one. */
export interface ClientAuth {
  /** The first step; called once, before any message. */
  begin(): AuthStep;
  /**
   * Takes the body of a `p` message (the bytes behind its header), which may be reused as soon as
   * this returns. Never rejects for what a client sends.
   */
  onMessage(body: Buffer): AuthStep | Promise<AuthStep>;
}
