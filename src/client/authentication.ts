import { randomBytes } from 'node:crypto';
import { type AuthStep, type ClientAuth, startClientAuth } from '../auth/client-auth.ts';
import type { LoginMethod } from '../auth/login-method.ts';
import type { ScramKeys } from '../auth/scram.ts';
import type { StoredSecret } from '../auth/secret.ts';
import type { DatabaseEntry } from '../config/config.ts';
import { log } from '../log/logger.ts';
import type { ClientSession } from './client-session.ts';
import type { ClientContext, UserLookup } from './context.ts';
import type { StartupRequest } from './startup-parameters.ts';

/** How the log names what a client asks for by `replication`. */
const REPLICATION_WORD = { none: 'no', logical: 'database', physical: 'yes' } as const;

/** Who asks to come in, and for what. */
export interface LoginRequest {
  readonly user: string;
  /** As the client has sent it; the console is `pgbouncer`. */
  readonly database: string;
  /** null: the console, or a database that nobody has heard of. */
  readonly entry: DatabaseEntry | null;
  readonly replication: StartupRequest['replication'];
  /** Looks at the name before its password is asked for; a text refuses it. */
  readonly onFound: (secret: StoredSecret | null) => string | null;
  /** The client is who it says. */
  readonly onAccepted: () => void;
}

/**
 * Finds out whether a client is who it says: what is stored for its name, by which method it is to
 * prove it, and the exchange of messages itself. While an answer is awaited that takes time, the
 * client's link is held.
 */
export class Authentication {
  readonly #session: ClientSession;
  readonly #context: ClientContext;
  readonly #request: LoginRequest;
  #secret: StoredSecret | null = null;
  #exchange: ClientAuth | null = null;

  constructor(session: ClientSession, context: ClientContext, request: LoginRequest) {
    this.#session = session;
    this.#context = context;
    this.#request = request;
  }

  /** Looks the name up and sends the first question. */
  begin(): void {
    const { user, entry } = this.#request;
    this.#after(this.#context.findUser(user, entry), (lookup) => this.#onLookup(lookup));
  }

  /** Takes the body of a PasswordMessage, whatever its kind. */
  onPassword(body: Buffer): void {
    // Only a held link can be before its question, and it brings no message.
    this.#after(this.#exchange!.onMessage(body), (step) => this.#onStep(step));
  }

  #onLookup(lookup: UserLookup): void {
    const session = this.#session;
    if (lookup.kind === 'refused') return session.fatal(lookup.text);
    this.#secret = lookup.secret;
    const refusal = this.#request.onFound(lookup.secret);
    if (refusal !== null) return session.fatal(refusal);
    const { index, fleetSecret } = this.#context;
    const { user } = this.#request;
    this.#logAttempt();
    this.#exchange = startClientAuth({
      method: methodOf(index.settings.auth_type),
      user,
      secret: lookup.secret,
      connection: { isUnix: session.isUnix, address: session.address, tls: session.tls },
      scramIterations: index.settings.scram_iterations,
      fleetSecret,
      random: randomBytes,
    });
    this.#after(this.#exchange.begin(), (step) => this.#onStep(step));
  }

  #logAttempt(): void {
    const session = this.#session;
    if (!this.#context.index.settings.log_connections) return;
    const { user, database } = this.#request;
    const replication = REPLICATION_WORD[this.#request.replication];
    session.info(`login attempt: db=${database} user=${user} tls=no replication=${replication}`);
  }

  #onStep(step: AuthStep): void {
    const session = this.#session;
    if (step.kind === 'send') {
      session.link.write(step.message);
    } else if (step.kind === 'refused') {
      if (step.detail !== null) log.error(session.prefixed(step.detail));
      session.fatal(step.text);
    } else {
      if (step.message !== null) session.link.write(step.message);
      if (step.clientKeys !== null) this.#rememberKeys(step.clientKeys);
      this.#request.onAccepted();
    }
  }

  #rememberKeys(keys: ScramKeys): void {
    if (this.#secret === null) return;
    this.#context.passThrough.remember(this.#session.userName, this.#secret, keys);
  }

  /** Goes on with a value at once, or with a promised one when it is there and the client still is. */
  #after<T>(value: T | Promise<T>, goOn: (value: T) => void): void {
    if (!(value instanceof Promise)) {
      goOn(value);
      return;
    }
    const session = this.#session;
    session.link.hold();
    value.then(
      (result) => {
        if (session.isClosed) return;
        goOn(result);
        if (!session.isClosed) session.link.replay();
      },
      (error: unknown) => {
        log.error(`InvariantError: ${String((error as Error).stack ?? error)}`);
        session.fatal('bouncer config error');
      },
    );
  }
}

function methodOf(authType: string): LoginMethod {
  switch (authType) {
    case 'trust':
    case 'any':
    case 'plain':
    case 'md5':
    case 'scram-sha-256':
      return { kind: authType };
    default:
      throw new Error(`auth_type ${authType} passed the configuration's checks`);
  }
}
