import { randomBytes } from 'node:crypto';
import { type AuthStep, type ClientAuth, startClientAuth } from '../auth/client-auth.ts';
import type { LoginMethod } from '../auth/login-method.ts';
import type { ScramKeys } from '../auth/scram.ts';
import type { StoredSecret } from '../auth/secret.ts';
import type { DatabaseEntry } from '../config/config.ts';
import type { Settings } from '../config/schema.ts';
import { log } from '../log/logger.ts';
import type { Secret } from '../util/secret.ts';
import type { ClientSession } from './client-session.ts';
import type { ClientContext, UserLookup } from './context.ts';
import { after } from './login-wait.ts';
import type { StartupRequest } from './startup-parameters.ts';
import { tlsText } from './tls-start.ts';

/** How the log names what a client asks for by `replication`. */
const REPLICATION_WORD = { none: 'no', logical: 'database', physical: 'yes' } as const;

/** Who asks to come in, and for what. */
export interface LoginRequest {
  readonly user: string;
  /** As the client has sent it, as far as names go; the console is `pgbouncer`. */
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
    this.#after(this.#context.findUser(user, entry, this.#session), (lookup) =>
      this.#onLookup(lookup),
    );
  }

  /** Lets the pooler's own account in without a question. */
  acceptOwner(): void {
    const session = this.#session;
    if (this.#context.index.settings.log_connections) {
      session.showAs('', session.userName);
      session.info('pgbouncer access from unix socket');
      session.showAs(session.databaseName, session.userName);
    }
    this.#logAttempt();
    this.#request.onAccepted();
  }

  /** Takes the body of a PasswordMessage, whatever its kind. */
  onPassword(body: Buffer): void {
    // Only a held link can be before its question, and it brings no message.
    this.#after(this.#exchange!.onMessage(body), (step) => this.#onStep(step));
  }

  #onLookup(lookup: UserLookup): void {
    const session = this.#session;
    session.giveUpLookup = null;
    if (lookup.kind === 'refused') return session.refuse(lookup.sqlstate, lookup.text);
    this.#secret = lookup.secret;
    const method = this.#method();
    if (lookup.secret === null) this.#noteUnknown(method);
    this.#logAttempt();
    const refusal = this.#request.onFound(lookup.secret);
    if (refusal !== null) return session.fatal(refusal);
    if (method === null) return session.fatal('no authentication method is found');
    if (method.kind === 'ldap' && (this.#request.entry?.auth_user ?? null) !== null) {
      log.error(session.prefixed("LDAP can't be used together with database authentication"));
      return session.fatal('bouncer config error');
    }
    const asksSystem = method.kind === 'peer' && session.isUnix;
    const osUser = asksSystem ? this.#context.unixOwner.name() : null;
    this.#after(osUser, (name) => this.#ask(method, name));
  }

  /** Nobody has the name, which is in the log only: the client must not hear of it. */
  #noteUnknown(method: LoginMethod | null): void {
    // Such names need not stand in a file.
    if (method?.kind === 'ldap' || method?.kind === 'any') return;
    const session = this.#session;
    session.showAs('', '');
    session.info(`no such user: ${this.#request.user}`);
    session.showAs('', session.userName);
  }

  /** How the client is to prove its name; null: the HBA file has no rule for it. */
  #method(): LoginMethod | null {
    const { hba, index } = this.#context;
    if (hba === null) return methodOf(index.settings);
    const { database, user, replication } = this.#request;
    const isPhysicalReplication = replication === 'physical';
    return hba.methodFor({ connection: this.#session, database, user, isPhysicalReplication });
  }

  /** Sends the first question. */
  #ask(method: LoginMethod, osUser: string | null): void {
    const session = this.#session;
    const { isUnix, address, tls } = session;
    const { index, fleetSecret, secretProfile } = this.#context;
    this.#exchange = startClientAuth({
      method,
      user: this.#request.user,
      secret: this.#secret,
      connection: { isUnix, address, tls, osUser },
      scramIterations: index.settings.scram_iterations,
      fleetSecret,
      profile: secretProfile(),
      isGone: () => session.isClosed,
      random: randomBytes,
      checkLdap: (options, name, password) => this.#checkLdap(options, name, password),
    });
    this.#after(this.#exchange.begin(), (step) => this.#onStep(step));
  }

  #logAttempt(): void {
    const session = this.#session;
    if (!this.#context.index.settings.log_connections) return;
    const { user, database } = this.#request;
    const replication = REPLICATION_WORD[this.#request.replication];
    const tls = session.tls === null ? 'no' : tlsText(session.tls);
    session.info(
      `login attempt: db=${database} user=${user} tls=${tls} replication=${replication}`,
    );
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
      if (step.password !== null) this.#rememberPassword(step.password);
      this.#request.onAccepted();
    }
  }

  #rememberKeys(keys: ScramKeys): void {
    if (this.#secret === null) return;
    this.#context.passThrough.remember(this.#session.userName, this.#secret, keys);
  }

  /** The pool of a forced user is opened by that user's own password. */
  #rememberPassword(password: Secret): void {
    const { entry, user } = this.#request;
    if (entry === null || entry.user !== null) return;
    this.#context.provedPasswords.remember(entry.name, user, password);
  }

  /** A client that leaves meanwhile gives its place up. */
  #checkLdap(options: string, user: string, password: Secret): Promise<boolean> {
    const session = this.#session;
    const aborter = new AbortController();
    session.giveUpLogin = () => aborter.abort();
    return this.#context.checkLdap(options, { user, password }, aborter.signal).finally(() => {
      session.giveUpLogin = null;
    });
  }

  #after<T>(value: T | Promise<T>, goOn: (value: T) => void): void {
    after(this.#session, value, goOn);
  }
}

function methodOf({ auth_type, auth_ldap_options }: Settings): LoginMethod {
  switch (auth_type) {
    case 'trust':
    case 'any':
    case 'plain':
    case 'md5':
    case 'scram-sha-256':
      return { kind: auth_type };
    case 'cert':
      return { kind: auth_type, map: null, clientname: 'any' };
    case 'ldap':
      return { kind: auth_type, options: auth_ldap_options ?? '' };
    default:
      throw new Error(`auth_type ${auth_type} passed the configuration's checks`);
  }
}
