import type { TlsFacts } from '../auth/client-connection.ts';
import type { CancelTarget } from '../cancel/canceller.ts';
import { cutReason, escapeName } from '../log/line.ts';
import { log } from '../log/logger.ts';
import { isWriteError, type Link, type LinkHandler } from '../net/link.ts';
import type { Pool } from '../pool/pool.ts';
import type { PoolClient, ServerSource } from '../pool/pool-client.ts';
import type { ReplicationRequest } from '../pool/replication.ts';
import { ClientStatements } from '../prepared/client-statements.ts';
import {
  mayDeallocateAll,
  parseNameEnd,
  Shape,
  saysDeallocateAll,
  shapeOf,
} from '../prepared/messages.ts';
import { Outcome, type Translation } from '../prepared/translator.ts';
import type { TrackedValues } from '../server/parameters.ts';
import { RequestAction, RequestKind } from '../server/requests-in-flight.ts';
import type { ServerConnection } from '../server/server-connection.ts';
import { clock } from '../util/clock.ts';
import { nextId, pointerOf } from '../util/ids.ts';
import type { List } from '../util/list.ts';
import { ClientMessage, HEADER_BYTES } from '../wire/codes.ts';
import {
  CLOSE_COMPLETE,
  errorResponse,
  noticeResponse,
  PARSE_COMPLETE,
  parameterStatus,
  READY_IDLE,
} from '../wire/encode.ts';
import { Action, type FrameSink, FrameWalker } from '../wire/frame-walker.ts';
import { ClientLogin } from './client-login.ts';
import type { ClientOrigin } from './client-origin.ts';
import type { ClientContext } from './context.ts';
import { FAILING_PARSE, FAILING_QUERY, LEAK_TEXTS, REFUSALS } from './leak-refusals.ts';
import { leaksInMessage } from './leaks-in-message.ts';
import type { LocalBackend } from './local-backend.ts';

/**
 * One client, from its first byte to its last. Before the welcome its bytes go to the login; after
 * it this class walks over its messages, gets a server at the first one that needs it, notes each
 * request in that server's list of requests in flight, and copies the bytes on. What the server
 * answers comes back through the server connection, which writes to this client's link.
 *
 *   login -> welcome awaited -> idle <-> (waiting ->) linked -> closed
 *                            -> console ---------------------> closed
 */
export const ClientState = { login: 0, newcomer: 1, ready: 2, console: 3, closed: 4 } as const;
export type ClientState = (typeof ClientState)[keyof typeof ClientState];

/**
 * What becomes of a request that was cancelled before it had a server; and of what follows a refused
 * Parse, whose Sync the server answers.
 */
/** Offset of the query's text in a Parse without a name. */
const UNNAMED_TEXT_AT = HEADER_BYTES + 1;

const Discard = { nothing: 0, request: 1, toSync: 2, toServersSync: 3 } as const;
type Discard = (typeof Discard)[keyof typeof Discard];

/** PostgreSQL's answer to a statement that was cancelled (SQLSTATE query_canceled). */
const CANCELED = errorResponse('ERROR', '57014', 'canceling statement due to user request');

/** Longest named Parse, which is kept as a whole. */
const MAX_PARSE_BYTES = 1 << 28;
/** So much of a statement is looked at when `session_leak` is on. */
const MAX_SCANNED_BYTES = 1 << 18;
/** Longest message to the console. */
const MAX_CONSOLE_BYTES = 1 << 20;

/** The kind of socket that a client has come in by. */
export type SocketKind = 'tcp' | 'unix';

export class ClientSession implements LinkHandler, FrameSink, PoolClient, CancelTarget {
  listPrev: PoolClient | null = null;
  listNext: PoolClient | null = null;
  list: List<PoolClient> | null = null;

  readonly id = nextId();
  readonly ptr: string;
  readonly connectedAt = clock.now;
  state: ClientState = ClientState.login;
  server: ServerConnection | null = null;
  pool: Pool | null = null;
  readonly serverUser = null;
  /** Set before it has a pool; a replication connection keeps its server to the end. */
  replication: ReplicationRequest | null = null;
  tracked: TrackedValues;
  /** What the client is told to cancel with. */
  cancelKey: Buffer = Buffer.alloc(0);
  /** Set while a cancel request that this connection brought is on its way. */
  giveUpCancel: (() => void) | null = null;
  /** Set while another service is asked whether the client may come in. */
  giveUpLogin: (() => void) | null = null;
  /** Set while its name is looked up, which has time limits of its own. */
  giveUpLookup: (() => void) | null = null;
  queryStart = 0;
  transactionStart = 0;
  waitStart = 0;
  hasBeenNotified = false;
  lastActivity = clock.now;
  queryWaitTimeout = 0;
  /** Milliseconds; 0: no limit. */
  idleTimeoutMs = 0;
  /** Workers that have had this client before. */
  visited: readonly number[] = [];
  /** Set once a TLS handshake is over. */
  tls: TlsFacts | null = null;
  /** Set when another worker has its TLS. */
  origin: ClientOrigin | null = null;
  databaseName = '';
  userName = '';
  /** `db/user` as the log names it. */
  #who = '(nodb)/(nouser)';
  readonly statements: ClientStatements;
  readonly #context: ClientContext;
  #link: Link | null = null;
  #kind: SocketKind = 'tcp';
  #address = '';
  #port = 0;
  #login: ClientLogin | null;
  #backend: LocalBackend | null = null;
  readonly #walker: FrameWalker;
  #discard: Discard = Discard.nothing;
  /** All of the messages since the last Sync were answered without a server. */
  #isAnsweredHere = false;
  hasDescribed = false;
  /** Kinds of session leaks in the statement at hand that is to be refused, one bit each. */
  #refusedLeaks = 0;
  /** Those that the log has been told of. */
  #loggedLeaks = 0;
  /** Why the message at hand ends the session. */
  #refusal: string | null = null;
  /** Set while it counts for its database and user. */
  #admitted = false;

  constructor(context: ClientContext) {
    this.#context = context;
    this.ptr = pointerOf(this.id);
    this.tracked = context.tracked.none();
    this.statements = new ClientStatements(context.registry);
    this.#walker = new FrameWalker(this, context.index.settings.max_packet_size);
    this.#login = new ClientLogin(this, context);
  }

  get link(): Link {
    return this.#link!;
  }

  /**
   * Gives the session its socket; called once. `kind` is that of the listening socket: a TCP client
   * that is gone again has no address either, and must not be taken for one of the Unix socket.
   * `listenPort` stands for the port of Unix clients.
   * @param origin where the client has come from, if that is another place than the socket's
   */
  attach(
    link: Link,
    listenPort: number,
    kind: SocketKind,
    origin: ClientOrigin | null = null,
  ): void {
    this.#link = link;
    this.#kind = kind;
    this.origin = origin;
    if (origin !== null) {
      this.#address = origin.address;
      this.#port = origin.port;
      this.tls = origin.tls;
      return;
    }
    const { remoteAddress, remotePort } = link.socket;
    this.#address = kind === 'unix' ? 'unix' : (remoteAddress ?? '').replace(/^::ffff:/, '');
    this.#port = remotePort ?? listenPort;
  }

  get address(): string {
    return this.#address;
  }

  get port(): number {
    return this.#port;
  }

  get isUnix(): boolean {
    return this.#kind === 'unix';
  }

  get isWelcomed(): boolean {
    return this.state === ClientState.ready;
  }

  get isClosed(): boolean {
    return this.state === ClientState.closed;
  }

  get isMidMessage(): boolean {
    return this.#walker.isMidMessage;
  }

  /** Bytes owed of a message of which some have gone on. */
  get messageLeft(): number {
    return this.#walker.messageLeft;
  }

  get isMidRequest(): boolean {
    return this.#walker.isMidMessage;
  }

  get isWaiting(): boolean {
    return this.list !== null;
  }

  get isBeingPrepared(): boolean {
    return this.link.isHeld && this.server?.isRunningOwn === true;
  }

  /** Logged in, without a server and not queued for one. */
  get isIdle(): boolean {
    return this.state === ClientState.ready && this.server === null && this.list === null;
  }

  /** Application name as the client last set it. */
  get applicationName(): string {
    return this.tracked[this.#context.tracked.applicationName] ?? '';
  }

  /** The login is over, and what comes are queries. */
  get isLoggedIn(): boolean {
    return this.#login === null;
  }

  get isConsole(): boolean {
    return this.state === ClientState.console;
  }

  // What the login brings about

  /** Says which database and user the session is for, once known. */
  identify(database: string, user: string): void {
    this.databaseName = database;
    this.userName = user;
    this.showAs(database, user);
  }

  /** How the log names the session from here on; empty names are not known yet. */
  showAs(database: string, user: string): void {
    this.#who = `${escapeName(database) || '(nodb)'}/${escapeName(user) || '(nouser)'}`;
  }

  /** Counts the session for its database and user until it closes. */
  admit(): void {
    this.#context.admission.enter(this.databaseName, this.userName);
    this.#admitted = true;
  }

  /** The client is who it says and waits for the pool's parameters. */
  becomeNewcomer(pool: Pool): void {
    this.state = ClientState.newcomer;
    this.pool = pool;
    pool.clients++;
  }

  get #source(): ServerSource {
    return this.pool!.sourceFor(this);
  }

  /** Waits for a server that tells the parameters of the welcome. */
  awaitParameters(): void {
    this.#source.enqueue(this);
  }

  /** The welcome has been sent. */
  becomeReady(): void {
    if (log.isDebug) log.debug(this.prefixed('logged in'));
    this.state = ClientState.ready;
    this.#login = null;
    this.lastActivity = clock.now;
    if (this.link.isHeld) this.link.replay();
  }

  becomeConsole(backend: LocalBackend): void {
    if (log.isDebug) log.debug(this.prefixed('logged in'));
    this.state = ClientState.console;
    this.#login = null;
    this.#backend = backend;
  }

  /** Lets the session go without closing its socket: another worker has taken it. */
  release(): void {
    if (this.state === ClientState.closed) return;
    this.state = ClientState.closed;
    this.#walker.abort();
    this.#context.onSessionEnd(this);
  }

  // Closing

  info(text: string): void {
    log.info(this.prefixed(text));
  }

  prefixed(text: string): string {
    const address = this.#address.includes(':') ? `[${this.#address}]` : this.#address;
    return `C-${this.ptr}: ${this.#who}@${address}:${this.#port} ${text}`;
  }

  /** Sends a FATAL and closes. */
  refuse(sqlstate: string, text: string): void {
    if (this.isClosed) return;
    // Behind half a message the FATAL would be read as the other half.
    if (!this.server?.isMidReply) this.link.write(errorResponse('FATAL', sqlstate, text));
    this.close(text);
    // Behind the line of the closing, as PgBouncer writes it.
    if (this.#context.index.settings.log_pooler_errors) {
      log.warning(this.prefixed(`pooler error: ${text}`));
    }
  }

  /** FATAL in the pooler's own words, with PgBouncer's usual SQLSTATE. */
  fatal(text: string): void {
    this.refuse('08P01', cutReason(text));
  }

  /** Closes without a line in the log: it has said already why. */
  vanish(): void {
    this.#end(null);
  }

  /** Closes; entered once. `reason` is for the log. */
  close(reason: string): void {
    this.#end(reason);
  }

  #end(reason: string | null): void {
    if (this.isClosed) return;
    if (reason !== null && this.#context.index.settings.log_disconnections) {
      this.info(this.#closing(reason));
    }
    this.state = ClientState.closed;
    const { pool } = this;
    if (pool !== null) {
      this.#source.leave(this);
      pool.clients--;
    }
    this.#walker.abort();
    this.statements.clear();
    this.#context.cancelKeys.remove(this.cancelKey);
    if (this.#admitted) this.#context.admission.leave(this.databaseName, this.userName);
    this.#backend?.onClose();
    this.giveUpCancel?.();
    this.giveUpLogin?.();
    this.giveUpLookup?.();
    this.#context.onSessionEnd(this);
    this.#link?.close();
  }

  #closing(reason: string): string {
    const age = Math.floor((clock.now - this.connectedAt) / 1000);
    return `closing because: ${reason} (age=${age}s)`;
  }

  /**
   * The client has left without a word. As in PgBouncer that is no line before it is logged in:
   * monitors look whether the port is open, and psql leaves to ask for a password.
   */
  #onLeft(reason: string): void {
    const isLogin = this.state === ClientState.login && this.giveUpCancel === null;
    if (!isLogin) return this.close(reason);
    if (log.isDebug && this.#login?.hasHeard === true)
      log.debug(this.prefixed(this.#closing(reason)));
    this.vanish();
  }

  // LinkHandler

  onBytes(bytes: Buffer, start: number, end: number): number {
    if (this.#login !== null) return this.#login.onBytes(bytes, start, end);
    if (this.isClosed) return end;
    this.lastActivity = clock.now;
    if (this.pool !== null) this.pool.traffic.bytesReceived += end - start;
    const used = this.#walker.walk(bytes, start, end);
    if (this.isClosed) return end;
    this.link.needBytes = this.#walker.needBytes;
    if (this.server !== null) this.#settleLateMessage(this.server);
    return used;
  }

  onFull(): void {
    this.server?.link.pause();
    this.link.pause();
  }

  onDrain(): void {
    const { server } = this;
    server?.link.resume();
    if (!this.link.isHeld && !server?.link.isFull) this.link.resume();
  }

  onPeerEnd(): void {
    if (this.link.isSecuring) this.vanish();
    else this.#onLeft('client unexpected eof');
  }

  onClose(error: Error | null): void {
    if (this.link.isSecuring) this.vanish();
    else this.#onLeft(isWriteError(error) ? 'unexpected eof' : 'client unexpected eof');
  }

  // FrameSink

  onHeader(type: number, bytes: Buffer, at: number, total: number, end: number): Action {
    if (this.state === ClientState.console) {
      if (type === ClientMessage.Terminate) return Action.rewrite;
      return total > MAX_CONSOLE_BYTES ? this.#broken('bad packet') : Action.take;
    }
    if (this.#discard !== Discard.nothing && type !== ClientMessage.Terminate) {
      return this.#discarded(type);
    }
    switch (type) {
      case ClientMessage.Query:
        if (this.#context.index.settings.disable_pqexec) return this.#onForbiddenQuery();
        if (this.#isWatched) {
          const action = this.#judge(bytes, at, total, end);
          if (action !== Action.forward) return action;
        }
        if (mayDeallocateAll(bytes, at, total, end)) {
          return this.#onShortMessage(RequestKind.query, bytes, at, total, end, HEADER_BYTES);
        }
        return this.#request(RequestKind.query);
      case ClientMessage.Sync:
        if (this.#isAnsweredHere && this.server === null && total === HEADER_BYTES) {
          return Action.take;
        }
        return this.#request(RequestKind.sync);
      case ClientMessage.Execute:
        return this.#request(RequestKind.execute);
      case ClientMessage.Parse:
        return this.#onStatementMessage(type, RequestKind.parse, bytes, at, total, end);
      case ClientMessage.Bind:
        return this.#onStatementMessage(type, RequestKind.bind, bytes, at, total, end);
      case ClientMessage.Describe:
        this.hasDescribed = true;
        return this.#onStatementMessage(type, RequestKind.describe, bytes, at, total, end);
      case ClientMessage.Close:
        return this.#onStatementMessage(type, RequestKind.close, bytes, at, total, end);
      case ClientMessage.FunctionCall:
        if (this.#isWatched) {
          const action = this.#judge(bytes, at, total, end);
          if (action !== Action.forward) return action;
        }
        return this.#request(RequestKind.functionCall);
      case ClientMessage.Flush:
        // Without a server nothing is owed that could be waited for.
        return this.server === null ? Action.skip : Action.forward;
      case ClientMessage.CopyData:
        return this.server === null || this.#isLate(this.server) ? Action.skip : Action.forward;
      case ClientMessage.CopyDone:
      case ClientMessage.CopyFail:
        return this.#onCopyEnd(type, total);
      case ClientMessage.Terminate:
        return Action.rewrite;
      default:
        return this.#onUnknownMessage(type);
    }
  }

  onRun(bytes: Buffer, start: number, end: number): void {
    this.server?.send(bytes, start, end);
  }

  onTake(type: number, bytes: Buffer, start: number, end: number): void {
    if (this.#backend !== null) {
      this.#backend.onMessage(type, bytes.subarray(start + HEADER_BYTES, end));
      return;
    }
    if (this.#refusedLeaks !== 0) {
      this.#refuseStatement(type);
      return;
    }
    switch (type) {
      case ClientMessage.Sync:
        this.#isAnsweredHere = false;
        this.link.write(READY_IDLE);
        break;
      case ClientMessage.Parse:
      case ClientMessage.Describe:
      case ClientMessage.Close:
        this.#takeStatementMessage(type, bytes, start, end);
        break;
      default:
        break;
    }
  }

  /** In front of a message that ends the session, or of a Bind whose translation is at hand. */
  onHead(type: number, _bytes: Buffer, at: number): number {
    if (this.#refusal !== null) {
      this.fatal(this.#refusal);
      return 0;
    }
    if (type === ClientMessage.Terminate) {
      this.close('client close request');
      return 0;
    }
    const answer = this.#context.translator.last;
    this.pool!.traffic.binds++;
    this.#carryOut(this.server!, RequestKind.bind, answer);
    return answer.restStart - at;
  }

  onEnd(): boolean {
    return true;
  }

  onBadHeader(bytes: Buffer, at: number, end: number): void {
    const hex = bytes.toString('hex', at, Math.min(end, at + 8));
    this.fatal(`bad packet header: '${hex}'`);
  }

  // LinkedClient and PoolClient

  onServerLost(text: string, isMidReply: boolean): void {
    this.server = null;
    if (isMidReply) this.close(text);
    else this.fatal(text);
  }

  onRefused(refusal: number): void {
    this.link.write(REFUSALS[refusal]!);
  }

  onServer(): void {
    this.link.replay();
    // It became full while it waited, so its new server has not been stopped yet.
    if (this.link.isFull) this.onFull();
  }

  onOwnServer(server: ServerConnection): void {
    if (this.#login !== null) {
      // The server's own spelling of what the client asked for.
      for (const [index, value] of server.tracked.entries()) {
        if (value !== null) this.tracked[index] = value;
      }
      this.#login.onPoolReady(server.loginParameters, server.tracked);
      return;
    }
    // The welcome told what other connections of the pool are like.
    for (const [name, value] of server.loginParameters) {
      const index = this.#context.tracked.indexOf(name);
      const own = index === -1 ? null : this.tracked[index];
      if ((own ?? this.pool!.welcome?.get(name)) !== value)
        this.link.write(parameterStatus(name, value));
      if (index !== -1) this.tracked[index] = value;
    }
    this.onServer();
  }

  onServerFree(): void {
    // Its server may have stopped it, and can let it go on no more.
    if (!this.link.isFull && !this.link.isHeld) this.link.resume();
  }

  /** The wait is over because the client cancelled: its request is answered and never sent. */
  cancelWaiting(): void {
    this.#source.leave(this);
    this.queryStart = 0;
    this.transactionStart = 0;
    this.#discard = Discard.request;
    this.link.replay();
  }

  onCancelGone(server: ServerConnection): void {
    server.owner.onCancelsGone(server);
  }

  onPoolReady(): void {
    this.#login?.onPoolReady();
  }

  onWaitNotice(): void {
    this.link.write(
      noticeResponse('No server connection available in postgres backend, client being queued'),
    );
  }

  // Messages

  /** A message that the server answers: gets a server, notes the request, sends it on. */
  #request(kind: RequestKind): Action {
    if (!this.#hasServer()) return Action.stop;
    const server = this.server!;
    server.isReady = false;
    server.requests.push(kind, RequestAction.forward);
    return Action.forward;
  }

  /**
   * A Query, or a Parse without a name, that may be DEALLOCATE ALL or DISCARD ALL. What is sent behind it
   * before its answer must not count on the statements that the server had.
   */
  #onShortMessage(
    kind: RequestKind,
    bytes: Buffer,
    at: number,
    total: number,
    end: number,
    textAt: number,
  ): Action {
    if (end - at < total) return this.#walker.waitFor(end - at > textAt ? total : textAt + 1);
    const action = this.#request(kind);
    if (action === Action.forward && saysDeallocateAll(bytes, at, total, textAt)) {
      this.server!.statements.onDeallocateAllSent();
    }
    return action;
  }

  /**
   * A message of a request that was cancelled while it waited for a server, or that follows a refused
   * Parse. After an error in the extended protocol everything up to Sync is ignored, simple queries too.
   */
  #discarded(type: number): Action {
    let isOver = type === ClientMessage.Sync;
    if (this.#discard === Discard.toServersSync) {
      if (!isOver) return Action.skip;
      this.#discard = Discard.nothing;
      return this.#request(RequestKind.sync);
    }
    if (this.#discard === Discard.request) {
      this.link.write(CANCELED);
      this.#discard = Discard.toSync;
      isOver ||= type === ClientMessage.Query || type === ClientMessage.FunctionCall;
    }
    if (isOver) {
      this.#discard = Discard.nothing;
      this.link.write(READY_IDLE);
    }
    return Action.skip;
  }

  /** Gets a server if there is none; false when the client must wait or has been refused. */
  #hasServer(): boolean {
    if (this.server === null) {
      this.#isAnsweredHere = false;
      this.queryStart = clock.now;
      this.transactionStart = clock.now;
      if (!this.#source.acquire(this)) {
        if (!this.isClosed) this.link.hold();
        return false;
      }
    } else {
      if (this.queryStart === 0) this.queryStart = clock.now;
      if (this.transactionStart === 0) this.transactionStart = clock.now;
    }
    return true;
  }

  /** `session_leak` is on, and its sessions are not its own. */
  get #isWatched(): boolean {
    return this.pool!.plan.sessionLeak !== 'allow' && this.replication === null;
  }

  get #translates(): boolean {
    return this.pool!.plan.maxPreparedStatements > 0 && this.replication === null;
  }

  /** Parse, Bind, Describe or Close: of named statements, the names are translated. */
  #onStatementMessage(
    type: number,
    kind: RequestKind,
    bytes: Buffer,
    at: number,
    total: number,
    end: number,
  ): Action {
    if (type === ClientMessage.Parse && this.#isWatched) {
      const action = this.#judge(bytes, at, total, end);
      if (action !== Action.forward) return action;
    }
    const shape = this.#translates ? shapeOf(type, bytes, at, total, end) : Shape.untouched;
    switch (shape) {
      case Shape.untouched: {
        const mayForget =
          type === ClientMessage.Parse &&
          this.#translates &&
          mayDeallocateAll(bytes, at, total, end, UNNAMED_TEXT_AT);
        const action = mayForget
          ? this.#onShortMessage(kind, bytes, at, total, end, UNNAMED_TEXT_AT)
          : this.#request(kind);
        if (action === Action.forward) this.#countStatement(type);
        return action;
      }
      case Shape.incomplete:
        return this.#walker.waitFor(end - at + 1);
      case Shape.broken:
        return this.#broken('failed to parse packet');
      default:
        break;
    }
    if (type === ClientMessage.Bind) {
      if (!this.#hasServer()) return Action.stop;
      return this.#translate(bytes, at, end);
    }
    if (total > MAX_PARSE_BYTES) return this.#broken('failed to parse packet');
    if (end - at < total) return Action.wait;
    // Close is answered here. A Parse needs no server either, when the client would have to queue
    // for one and the pool has prepared that statement already.
    if (type === ClientMessage.Close) return Action.take;
    if (type === ClientMessage.Parse && this.server === null && !this.pool!.hasFreeServer) {
      if (this.#isPrepared(bytes, at, at + total)) return Action.take;
    }
    return this.#hasServer() ? Action.take : Action.stop;
  }

  /**
   * Looks for session leaks in a Query, Parse or FunctionCall: `forward` says that it may go on, `take`
   * that it is refused.
   */
  #judge(bytes: Buffer, at: number, total: number, end: number): Action {
    const known = Math.min(total, MAX_SCANNED_BYTES);
    if (end - at < known) return this.#walker.waitFor(known);
    const { tracked } = this.#context;
    const leaks = leaksInMessage(
      bytes,
      at,
      at + known,
      this.tracked[tracked.standardConformingStrings] === 'off',
      (name) => this.#isCarried(name),
    );
    if (leaks === 0) return Action.forward;
    const isWarning = this.pool!.plan.sessionLeak === 'warn';
    // What follows happens once only, so the message must not be asked about again. What is refused
    // is to be had whole, and so is a Parse whose name is translated; all else is sent on as it comes.
    const isNamed = bytes[at] === ClientMessage.Parse && bytes[at + HEADER_BYTES] !== 0;
    const isStreamed = isWarning && !(isNamed && this.#translates);
    if (end - at < total && !isStreamed) {
      return total > MAX_PARSE_BYTES ? this.#broken('failed to parse packet') : Action.wait;
    }
    if (!this.#hasServer()) return Action.stop;
    this.#countLeaks(leaks);
    if (isWarning) return Action.forward;
    this.#refusedLeaks = leaks;
    return Action.take;
  }

  /** The pooler applies the parameter to every server that the client gets. */
  #isCarried(name: string): boolean {
    const index = this.#context.tracked.indexOf(name);
    // One that this server does not report is not known and so not applied.
    return index !== -1 && this.pool!.welcomeTracked?.[index] !== null;
  }

  #countLeaks(leaks: number): void {
    const { database, plan } = this.pool!;
    const isRefused = plan.sessionLeak === 'reject';
    LEAK_TEXTS.forEach((text, kind) => {
      const bit = 1 << kind;
      if ((leaks & bit) === 0) return;
      database.sessionLeaks.counts[kind]!++;
      if ((this.#loggedLeaks & bit) !== 0) return;
      this.#loggedLeaks |= bit;
      if (!isRefused) log.warning(this.prefixed(text));
      else if (this.#context.index.settings.log_pooler_errors) {
        log.warning(this.prefixed(`pooler error: ${text}`));
      }
    });
  }

  #refuseStatement(type: number): void {
    const server = this.server!;
    const refusal = 31 - Math.clz32(this.#refusedLeaks & -this.#refusedLeaks);
    this.#refusedLeaks = 0;
    const isParse = type === ClientMessage.Parse;
    server.isReady = false;
    server.requests.push(
      isParse ? RequestKind.parse : RequestKind.query,
      RequestAction.refuse + refusal,
    );
    server.send(isParse ? FAILING_PARSE : FAILING_QUERY);
    if (isParse) this.#discard = Discard.toServersSync;
  }

  /** Asks for the translation of a Bind, which `onHead` carries out. */
  #translate(bytes: Buffer, at: number, end: number): Action {
    const { translator } = this.#context;
    const answer = translator.onBind(this.statements, this.server!.statements, bytes, at, end);
    return answer.outcome === Outcome.refused ? this.#broken(answer.text) : Action.rewrite;
  }

  #countStatement(type: number): void {
    if (type === ClientMessage.Parse) this.pool!.traffic.clientParses++;
    else if (type === ClientMessage.Bind) this.pool!.traffic.binds++;
  }

  /** Whether a server of the pool has the statement of a whole Parse. */
  #isPrepared(bytes: Buffer, at: number, end: number): boolean {
    const nameEnd = parseNameEnd(bytes, at, end);
    if (nameEnd === -1) return false;
    const name = bytes.toString('latin1', at + HEADER_BYTES, nameEnd);
    if (this.statements.has(name)) return false;
    const statement = this.#context.registry.find(bytes.toString('latin1', nameEnd + 1, end));
    return statement !== undefined && this.pool!.hasStatement(statement);
  }

  /** A whole Parse or Describe of a named statement, or its Close. */
  #takeStatementMessage(type: number, bytes: Buffer, start: number, end: number): void {
    const { translator } = this.#context;
    const { server, statements } = this;
    if (type === ClientMessage.Close) {
      this.#takeClose(translator.onClose(statements, bytes, start, end));
    } else if (server === null) {
      this.#takeParseHere(bytes, start, end);
    } else if (type === ClientMessage.Parse) {
      this.#countStatement(type);
      const answer = translator.onParse(statements, server.statements, bytes, start, end);
      this.#carryOut(server, RequestKind.parse, answer);
    } else {
      const answer = translator.onDescribe(statements, server.statements, bytes, start, end);
      this.#carryOut(server, RequestKind.describe, answer);
    }
  }

  /** Sends what a translation says, and notes it. */
  #carryOut(server: ServerConnection, kind: RequestKind, answer: Translation): void {
    if (answer.outcome === Outcome.refused) {
      this.fatal(answer.text);
      return;
    }
    const { requests } = server;
    const { statement } = answer;
    const isParse = kind === RequestKind.parse;
    const name = isParse ? answer.name : null;
    const isThere = answer.inject === null && (!isParse || answer.outcome === Outcome.fake);
    if (isThere) server.keepGroup();
    server.isReady = false;
    if (answer.outcome === Outcome.fake) {
      requests.push(kind, RequestAction.fake, statement, name);
      server.sendFakes();
      return;
    }
    if (answer.inject !== null) {
      server.send(answer.inject);
      for (const { type, statement: injected } of answer.injected) {
        if (type === ClientMessage.Parse) this.pool!.traffic.serverParses++;
        requests.push(type, RequestAction.swallow, injected);
      }
    }
    if (isParse) this.pool!.traffic.serverParses++;
    server.send(answer.head, 0, answer.headBytes);
    requests.push(kind, RequestAction.forward, statement, name);
  }

  /** A Parse that is answered without a server. */
  #takeParseHere(bytes: Buffer, start: number, end: number): void {
    const nameEnd = parseNameEnd(bytes, start, end);
    const key = bytes.toString('latin1', nameEnd + 1, end);
    const name = bytes.toString('latin1', start + HEADER_BYTES, nameEnd);
    this.statements.set(name, this.#context.registry.intern(key));
    this.#countStatement(ClientMessage.Parse);
    this.#isAnsweredHere = true;
    this.link.write(PARSE_COMPLETE);
  }

  #takeClose(answer: Translation): void {
    const { server } = this;
    if (answer.outcome === Outcome.refused) {
      this.fatal(answer.text);
    } else if (server === null) {
      this.#isAnsweredHere = true;
      this.link.write(CLOSE_COMPLETE);
    } else {
      const name = answer.statement === null ? null : answer.name;
      server.requests.push(RequestKind.close, RequestAction.fake, answer.statement, name);
      server.sendFakes();
    }
  }

  #onCopyEnd(type: number, total: number): Action {
    const { server } = this;
    if (server === null || this.#isLate(server)) return Action.skip;
    const isDone = type === ClientMessage.CopyDone;
    if (isDone && total !== HEADER_BYTES) return this.#broken('failed to parse packet');
    server.requests.push(
      isDone ? RequestKind.copyDone : RequestKind.copyFail,
      RequestAction.forward,
    );
    return Action.forward;
  }

  /**
   * COPY data that comes after the server has failed the COPY and said that it is ready. A client that
   * hears of the failure in time need not send any more, so nothing waits for the end of the data.
   */
  #isLate(server: ServerConnection): boolean {
    return server.isAtRest;
  }

  /** The rest of a message that was half sent has gone by: the server, long ready, can be given back. */
  #settleLateMessage(server: ServerConnection): void {
    const isFree = server.isAtRest && !server.isRunningOwn;
    if (!isFree || this.isMidRequest || this.#keepsServer) return;
    if (!server.isInTransaction) this.pool!.giveBack(this, server);
  }

  get #keepsServer(): boolean {
    return this.replication !== null || this.pool!.plan.mode === 'session';
  }

  #onForbiddenQuery(): Action {
    log.error(this.prefixed('client used "Query" packet type'));
    return this.#broken('PQexec disallowed');
  }

  #onUnknownMessage(type: number): Action {
    log.error(this.prefixed(`unknown pkt from client: ${type}/0x${type.toString(16)}`));
    return this.#broken('unknown pkt');
  }

  /** Ends the session once the messages before this one have been sent on. */
  #broken(text: string): Action {
    this.#refusal = text;
    return Action.rewrite;
  }
}
