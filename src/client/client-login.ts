import { hostname } from 'node:os';
import { KEY_BYTES, LONG_KEY_BYTES } from '../cancel/cancel-keys.ts';
import type { DatabaseEntry } from '../config/config.ts';
import {
  effectiveClientIdleTimeout,
  effectiveQueryWaitTimeout,
  poolUserOf,
} from '../config/effective.ts';
import { log } from '../log/logger.ts';
import { PGBOUNCER_VERSION } from '../log/version.ts';
import type { TrackedValues } from '../server/parameters.ts';
import { cutText } from '../util/cut-text.ts';
import {
  ClientMessage,
  HEADER_BYTES,
  MAX_AUTH_BYTES,
  MAX_CANCEL_BYTES,
  MAX_STARTUP_BYTES,
  MIN_CANCEL_BYTES,
  NEWEST_PROTOCOL,
  RequestCode,
} from '../wire/codes.ts';
import { decodeStartup, isProtocol3 } from '../wire/decode.ts';
import {
  AUTHENTICATION_OK,
  backendKeyData,
  negotiateProtocolVersion,
  noticeResponse,
  parameterStatus,
  READY_IDLE,
} from '../wire/encode.ts';
import { Authentication, type LoginRequest } from './authentication.ts';
import type { ClientSession } from './client-session.ts';
import type { ClientContext } from './context.ts';
import { after } from './login-wait.ts';
import { databaseIn, readStartup, type StartupRequest } from './startup-parameters.ts';
import { HANDSHAKE_RECORD, refuseTls, startTls } from './tls-start.ts';

/**
 * A client's way in: SSLRequest, StartupMessage, authentication, welcome, with PgBouncer's order of
 * checks and texts. Nothing that comes before the password is checked can make the pooler keep more
 * than PostgreSQL's own limits for startup and authentication messages.
 */

const NO = Buffer.from('N');
const YES = Buffer.from('S');
/** Longest user name that PgBouncer takes, plus one. */
const MAX_USER_BYTES = 128;
/** Longest database name shown in an error. */
const MAX_DATABASE_BYTES = 63;
/** Login name of the pooler's own account, at the console. */
const OWN_USER = 'pgbouncer';
/** Names of the console's database. */
const CONSOLE_DATABASES: ReadonlySet<string> = new Set(['pgbouncer', 'pgfleet']);

const LoginStage = { startup: 0, authenticating: 1, awaitingPool: 2, over: 3 } as const;
type LoginStage = (typeof LoginStage)[keyof typeof LoginStage];

export class ClientLogin {
  readonly #session: ClientSession;
  readonly #context: ClientContext;
  #stage: LoginStage = LoginStage.startup;
  #request: StartupRequest | null = null;
  /** Version of the protocol that the client and we speak. */
  #version: number = RequestCode.protocol3;
  #entry: DatabaseEntry | null = null;
  #auth: Authentication | null = null;
  /** Setting whose limit this client exceeds, of its database or its user. */
  #exceeded: string | null = null;
  /** At the console; null: none. */
  #rights: 'admin' | 'stats' | null = null;
  /** There was a request for encryption. */
  #hasAsked = false;
  /** Any byte has come. */
  hasHeard = false;

  constructor(session: ClientSession, context: ClientContext) {
    this.#session = session;
    this.#context = context;
  }

  /** True while the pool's first connection is awaited. */
  get isAwaitingPool(): boolean {
    return this.#stage === LoginStage.awaitingPool;
  }

  onBytes(bytes: Buffer, start: number, end: number): number {
    this.hasHeard = true;
    let at = start;
    while (at < end && !this.#session.isClosed && !this.#session.link.isHeld) {
      // The welcome has gone out in this turn already, and queries came with the login.
      if (this.#session.isLoggedIn) return this.#session.onBytes(bytes, at, end);
      if (this.#stage >= LoginStage.awaitingPool) {
        // Queries that come before the welcome wait for it.
        this.#session.link.hold();
        return at;
      }
      const first = bytes[at];
      if (first === HANDSHAKE_RECORD && this.#canBeDirectTls) {
        this.#onDirectTls(bytes, at, end);
        return end;
      }
      const used = first === 0 ? this.#onPacket(bytes, at, end) : this.#onMessage(bytes, at, end);
      if (used === 0) return at;
      at += used;
    }
    return this.#session.isClosed ? end : at;
  }

  /** A packet without a type byte. Returns its size, or 0 when it is not all there. */
  #onPacket(bytes: Buffer, at: number, end: number): number {
    if (end - at < 8) return this.#need(8);
    const size = bytes.readInt32BE(at);
    const code = bytes.readInt32BE(at + 4);
    if (bytes[at + 1] !== 0 || size < 8 || size > MAX_STARTUP_BYTES) {
      return this.#badHeader(bytes, at, end);
    }
    if (this.#stage !== LoginStage.startup) {
      this.#session.fatal('client re-sent startup pkt');
      return end - at;
    }
    if (code === RequestCode.ssl || code === RequestCode.gssEncryption) {
      return this.#onEncryptionRequest(code, size, end - at);
    }
    if (code === RequestCode.cancel) {
      if (size < MIN_CANCEL_BYTES || size > MAX_CANCEL_BYTES) {
        this.#session.close('bad cancel request');
        return end - at;
      }
      if (end - at < size) return this.#need(size);
      this.#onCancel(bytes, at, size);
      return end - at;
    }
    if (code === RequestCode.protocol2) {
      this.#session.fatal('old V2 protocol not supported');
      return end - at;
    }
    if (!isProtocol3(code)) return this.#badHeader(bytes, at, end);
    if (end - at < size) return this.#need(size);
    this.#onStartup(bytes, at, at + size, end);
    return size;
  }

  #onEncryptionRequest(code: number, size: number, available: number): number {
    const what = code === RequestCode.ssl ? 'SSL' : 'GSSAPI encryption';
    if (size !== 8) {
      this.#session.close('bad packet');
      return available;
    }
    if (available > size) {
      this.#session.fatal(`received unencrypted data after ${what} request`);
      return available;
    }
    const session = this.#session;
    const isTls = code === RequestCode.ssl;
    this.#hasAsked = true;
    if (isTls && session.tls !== null) {
      session.close('SSL req inside SSL');
    } else if (isTls && this.#context.clientTls.isOffered && !session.isUnix) {
      session.link.write(YES);
      startTls(session, this.#context.clientTls, null);
    } else {
      session.link.write(NO);
    }
    return size;
  }

  /** TLS without an SSLRequest is known by the first byte of a connection. */
  get #canBeDirectTls(): boolean {
    const { tls, isUnix } = this.#session;
    return !this.#hasAsked && this.#stage === LoginStage.startup && tls === null && !isUnix;
  }

  #onDirectTls(bytes: Buffer, at: number, end: number): void {
    const { clientTls } = this.#context;
    if (clientTls.isOffered) {
      startTls(this.#session, clientTls, Buffer.from(bytes.subarray(at, end)));
    } else {
      refuseTls(this.#session);
    }
  }

  #onCancel(bytes: Buffer, at: number, size: number): void {
    const session = this.#session;
    this.#stage = LoginStage.over;
    const packet = Buffer.from(bytes.subarray(at, at + size));
    session.giveUpCancel = this.#context.onCancelRequest(packet, (reason) => session.close(reason));
  }

  /** A message with a type byte: only a password is expected, and only when one was asked for. */
  #onMessage(bytes: Buffer, at: number, end: number): number {
    if (end - at < HEADER_BYTES) return this.#need(HEADER_BYTES);
    const total = 1 + bytes.readInt32BE(at + 1);
    const isPassword = bytes[at] === ClientMessage.Password;
    if (total < HEADER_BYTES || total > MAX_AUTH_BYTES) return this.#badHeader(bytes, at, end);
    if (!isPassword) {
      this.#session.close('bad packet');
      return end - at;
    }
    if (this.#stage === LoginStage.startup) {
      this.#session.fatal('client password pkt before startup packet');
      return end - at;
    }
    if (end - at < total) return this.#need(total);
    this.#auth!.onPassword(bytes.subarray(at + HEADER_BYTES, at + total));
    return total;
  }

  #onStartup(bytes: Buffer, start: number, packetEnd: number, end: number): void {
    const session = this.#session;
    const context = this.#context;
    if (context.clientTls.isRequired && session.tls === null && !session.isUnix) {
      return session.fatal('SSL required');
    }
    const startup = decodeStartup(bytes, start, packetEnd);
    const isConsole = CONSOLE_DATABASES.has(databaseIn(startup.parameters));
    const ignored = isConsole ? atConsole(context.ignoredParameters) : context.ignoredParameters;
    const request = readStartup(startup.parameters, context.tracked, ignored);
    if ('refusal' in request) {
      if (request.warning !== null) log.warning(session.prefixed(request.warning));
      return session.fatal(request.refusal);
    }
    if (!startup.isTerminated) {
      return session.fatal('invalid startup packet layout: expected terminator as last byte');
    }
    if (request.user === '') return session.fatal('no username supplied');
    const database = request.database === '' ? request.user : request.database;
    const received = bytes.subarray(start, end);
    this.#request = request;
    if (!isConsole && !this.#staysHere(database, request.user, received)) return;
    this.#version = Math.min(startup.version, NEWEST_PROTOCOL);
    // PostgreSQL 18 takes 3.1, which was never released, at its word too.
    if (startup.version > NEWEST_PROTOCOL || request.unknownOptions.length > 0) {
      session.link.write(negotiateProtocolVersion(this.#version, request.unknownOptions));
    }
    if (Buffer.byteLength(request.user) >= MAX_USER_BYTES) {
      return session.fatal('username too long');
    }
    if (isConsole) this.#onConsole(request);
    else this.#onDatabase(database, request);
  }

  /**
   * Whether this worker goes on with the client: it has slots for the pool and room below the limits
   * of clients. If not, the client goes to another worker that may. When none is left it is refused,
   * for its database or user only after what comes before that in the order of checks.
   */
  #staysHere(database: string, asked: string, received: Buffer): boolean {
    const session = this.#session;
    const context = this.#context;
    const { admission } = context;
    this.#entry =
      Buffer.byteLength(database) > MAX_DATABASE_BYTES ? null : context.index.database(database);
    const entry = this.#entry;
    const user = entry?.user !== undefined && this.#isAny ? (entry.user ?? asked) : asked;
    const known = entry === null ? '' : database;
    const limit = admission.isOverTotal
      ? 'max_client_conn'
      : admission.exceeded(entry, known, user);
    const places = context.placesFor(database, user);
    if (limit === null && places.includes(context.worker)) return true;
    const next = places.find((id) => id !== context.worker && !session.visited.includes(id));
    if (next !== undefined && context.handOff(session, next, Buffer.from(received))) {
      this.#stage = LoginStage.over;
      return false;
    }
    if (limit === null) {
      session.fatal('the worker that has a slot for this pool cannot be reached');
      return false;
    }
    if (limit === 'max_client_conn') {
      session.fatal('no more connections allowed (max_client_conn)');
      return false;
    }
    this.#exceeded = limit;
    return true;
  }

  get #isAny(): boolean {
    return this.#context.index.settings.auth_type === 'any';
  }

  #onDatabase(database: string, request: StartupRequest): void {
    const session = this.#session;
    const entry = this.#entry;
    let { user } = request;
    if (this.#isAny) {
      if (entry === null || entry.user === null) return session.fatal('bouncer config error');
      user = entry.user;
    }
    if (this.#exceeded !== null) {
      session.identify('', user);
      return session.fatal(`client connections exceeded (${this.#exceeded})`);
    }
    session.identify(entry === null ? '' : database, user);
    session.admit();
    this.#authenticate(user, () => null);
  }

  /** The pooler's own account may come in as `pgbouncer` without a password, by the Unix socket. */
  #onConsole(request: StartupRequest): void {
    const session = this.#session;
    if (!session.isUnix || request.user !== OWN_USER) return this.#askForConsole(request);
    this.#stage = LoginStage.authenticating;
    after(session, this.#context.unixOwner.isKnown(), (isOwn) => {
      if (!isOwn) return this.#askForConsole(request);
      session.identify('pgbouncer', OWN_USER);
      this.#rights = 'admin';
      this.#authentication(OWN_USER, () => null).acceptOwner();
    });
  }

  #askForConsole(request: StartupRequest): void {
    const session = this.#session;
    const { adminUsers, statsUsers, admission } = this.#context;
    const { user } = request;
    const isAdmin = adminUsers.has(user);
    const isStats = this.#isAny || statsUsers.has(user);
    session.identify('pgbouncer', this.#isAny ? 'pgbouncer' : user);
    if (!isAdmin) {
      const exceeded = admission.exceeded(null, 'pgbouncer', session.userName);
      if (exceeded !== null) return session.fatal(`client connections exceeded (${exceeded})`);
      session.admit();
    }
    if (isAdmin || isStats) this.#rights = isAdmin ? 'admin' : 'stats';
    // A name that nobody has goes on, and fails like a wrong password.
    this.#authenticate(user, (secret) =>
      isAdmin || isStats || secret === null ? null : 'not allowed',
    );
  }

  #authenticate(user: string, onFound: LoginRequest['onFound']): void {
    this.#stage = LoginStage.authenticating;
    this.#auth = this.#authentication(user, onFound);
    this.#auth.begin();
  }

  #authentication(user: string, onFound: LoginRequest['onFound']): Authentication {
    const request = this.#request!;
    const isConsole = this.#session.databaseName === 'pgbouncer';
    return new Authentication(this.#session, this.#context, {
      user,
      database: isConsole ? 'pgbouncer' : cutName(request.database || request.user),
      entry: this.#entry,
      replication: request.replication,
      onFound,
      onAccepted: () => this.#onAuthenticated(),
    });
  }

  #onAuthenticated(): void {
    const session = this.#session;
    const context = this.#context;
    if (session.databaseName === 'pgbouncer') return this.#enterConsole();
    // A reload may have changed it, or removed it, while the password was awaited.
    const entry = this.#entry === null ? null : context.index.database(this.#entry.name);
    if (entry === null) {
      const name = cutName(this.#request!.database || this.#request!.user);
      if (context.index.settings.log_connections) {
        session.info(`login failed: db=${name} user=${session.userName}`);
      }
      return session.fatal(`no such database: ${name}`);
    }
    if (!context.index.hasDatabase(entry.name) && !context.pools.hasDatabase(entry.name)) {
      session.info(`registered new auto-database: ${entry.name}`);
    }
    const database = context.pools.database(entry);
    if (database.isDisabled) return session.fatal(`database "${entry.name}" is disabled`);
    if (context.isShuttingDown) return session.fatal('pooler is shutting down');
    const pool = context.pools.get(database, poolUserOf(entry, session.userName));
    database.traffic.clientLogins++;
    this.#stage = LoginStage.awaitingPool;
    const request = this.#request!;
    session.tracked = request.tracked;
    if (context.index.settings.application_name_add_host) this.#addHost();
    if (request.replication !== 'none') {
      const { replication: kind, options } = request;
      session.replication = { kind, options, given: [...session.tracked] };
    }
    session.queryWaitTimeout = effectiveQueryWaitTimeout(context.index, entry, session.userName);
    session.idleTimeoutMs = effectiveClientIdleTimeout(context.index, session.userName) * 1000;
    session.becomeNewcomer(pool);
    if (pool.welcome !== null) this.onPoolReady();
    else session.awaitParameters();
  }

  #addHost(): void {
    const session = this.#session;
    const name = session.applicationName || 'app';
    const index = this.#context.tracked.applicationName;
    session.tracked[index] = `${name} - ${hostOf(session)}:${session.port}`;
  }

  /**
   * A server's parameters are known: sends the welcome.
   * @param welcome all that a server said at its login, by default the pool's first one
   * @param original its values of tracked parameters
   */
  onPoolReady(
    welcome: ReadonlyMap<string, string> = this.#session.pool!.welcome!,
    original: TrackedValues = this.#session.pool!.welcomeTracked!,
  ): void {
    const session = this.#session;
    const { tracked, index, cancelKeys } = this.#context;
    const { settings } = index;
    const { link } = session;
    link.write(AUTHENTICATION_OK);
    link.write(parameterStatus('pgbouncer.version', PGBOUNCER_VERSION));
    for (const [name, value] of welcome) {
      // What a pooler behind this one says of itself holds for its clients, not for ours.
      const isTold = tracked.indexOf(name) === -1 && !name.startsWith('pgbouncer.');
      if (isTold) link.write(parameterStatus(name, value));
    }
    const mostPrepared = String(settings.max_prepared_statements);
    link.write(parameterStatus('pgbouncer.max_prepared_statements', mostPrepared));
    const mode = session.replication === null ? session.pool!.plan.mode : 'session';
    link.write(parameterStatus('pgbouncer.pool_mode', mode));
    for (let i = 0; i < tracked.names.length; i++) {
      const own = original[i]!;
      if (tracked.isKept[i]) session.tracked[i] ??= own;
      const value = session.tracked[i] ?? own;
      if (value !== null) link.write(parameterStatus(tracked.names[i]!, value));
    }
    session.cancelKey = cancelKeys.add(session, this.#keyBytes);
    link.write(backendKeyData(session.cancelKey));
    if (settings.login_notify_message !== '') {
      link.write(noticeResponse(settings.login_notify_message));
    }
    link.write(READY_IDLE);
    this.#stage = LoginStage.over;
    session.becomeReady();
  }

  /** PgBouncer drops a CancelRequest with a long key, so no client of its peers is given one. */
  get #keyBytes(): number {
    const isLong = this.#version === NEWEST_PROTOCOL && !this.#context.index.hasOtherPeers;
    return isLong ? LONG_KEY_BYTES : KEY_BYTES;
  }

  #enterConsole(): void {
    const session = this.#session;
    const { tracked, index, cancelKeys, console } = this.#context;
    const { link } = session;
    // Such a name needs no entry in a file to be proved (`ldap`).
    if (this.#rights === null) return session.fatal('not allowed');
    const given = this.#request!.tracked;
    const backend = console.open(
      {
        send: (bytes) => link.write(bytes),
        close: (reason) => session.close(reason),
        fatal: (text) => session.fatal(text),
        prefixed: (text) => session.prefixed(text),
      },
      this.#rights,
    );
    link.write(AUTHENTICATION_OK);
    link.write(parameterStatus('pgbouncer.version', PGBOUNCER_VERSION));
    for (const [name, value] of backend.parameters) link.write(parameterStatus(name, value));
    for (let i = 0; i < given.length; i++) {
      const value = given[i]!;
      if (value !== null) link.write(parameterStatus(tracked.names[i]!, value));
    }
    session.tracked = given;
    session.cancelKey = cancelKeys.add(session, this.#keyBytes);
    link.write(backendKeyData(session.cancelKey));
    if (index.settings.login_notify_message !== '') {
      link.write(noticeResponse(index.settings.login_notify_message));
    }
    link.write(READY_IDLE);
    this.#stage = LoginStage.over;
    session.becomeConsole(backend);
  }

  #need(bytes: number): number {
    this.#session.link.needBytes = bytes;
    return 0;
  }

  #badHeader(bytes: Buffer, at: number, end: number): number {
    const hex = bytes.toString('hex', at, Math.min(end, at + 8));
    this.#session.fatal(`bad packet header: '${hex}'`);
    return end - at;
  }
}

/** A database's name as it is shown to those who made it up. */
function cutName(name: string): string {
  return cutText(name, MAX_DATABASE_BYTES);
}

/**
 * JDBC and Go's lib/pq always send it, and a monitor has no way to make them stop; PgBouncer wants it
 * in `ignore_startup_parameters`, where it would hold for every database.
 */
function atConsole(ignored: ReadonlySet<string>): ReadonlySet<string> {
  return new Set([...ignored, 'extra_float_digits']);
}

/**
 * A client's host as `application_name_add_host` writes it. PgBouncer's `unix(pid@host)` names the
 * process behind a Unix socket, which Node cannot ask for.
 */
function hostOf(session: ClientSession): string {
  if (session.isUnix) return `unix(@${hostname()})`;
  return session.address.includes(':') ? `[${session.address}]` : session.address;
}
