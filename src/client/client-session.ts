import type { CancelTarget } from '../cancel/canceller.ts';
import { log } from '../log/logger.ts';
import type { Link, LinkHandler } from '../net/link.ts';
import type { Pool } from '../pool/pool.ts';
import type { PoolClient } from '../pool/pool-client.ts';
import { ClientStatements } from '../prepared/client-statements.ts';
import { bindHead, findNul, INCOMPLETE, namedMessage, parseMessage } from '../prepared/messages.ts';
import type { PreparedStatement } from '../prepared/statement.ts';
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
  READY_IDLE,
} from '../wire/encode.ts';
import { Action, type FrameSink, FrameWalker } from '../wire/frame-walker.ts';
import { ClientLogin } from './client-login.ts';
import type { ClientContext } from './context.ts';
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

/** What becomes of a request that was cancelled before it had a server. */
const Discard = { nothing: 0, request: 1, toSync: 2 } as const;
type Discard = (typeof Discard)[keyof typeof Discard];

/** PostgreSQL's answer to a statement that was cancelled (SQLSTATE query_canceled). */
const CANCELED = errorResponse('ERROR', '57014', 'canceling statement due to user request');

/** Longest Describe, Close or pair of names in a Bind; PostgreSQL's names are at most 63 bytes. */
const MAX_NAMED_BYTES = 65_536;
/** Longest named Parse, which is kept as a whole. */
const MAX_PARSE_BYTES = 1 << 28;
/** Longest message to the console. */
const MAX_CONSOLE_BYTES = 1 << 20;

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
  tracked: TrackedValues;
  /** What the client is told to cancel with. */
  cancelKey: Buffer = Buffer.alloc(0);
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
  databaseName = '';
  userName = '';
  readonly statements: ClientStatements;
  readonly #context: ClientContext;
  #link: Link | null = null;
  #address = '';
  #port = 0;
  #login: ClientLogin | null;
  #backend: LocalBackend | null = null;
  readonly #walker: FrameWalker;
  #isCopyIn = false;
  #discard: Discard = Discard.nothing;
  /** CopyDone or CopyFail sent before the server said that it reads COPY data. */
  #earlyCopyEnds = 0;
  /** All of the messages since the last Sync were answered without a server. */
  #isAnsweredHere = false;
  #bindStatement: PreparedStatement | null = null;
  #bindPortalEnd = 0;
  #bindNameEnd = 0;
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

  /** Gives the session its socket; called once. `listenPort` stands for the port of Unix clients. */
  attach(link: Link, listenPort: number): void {
    this.#link = link;
    const { remoteAddress, remotePort } = link.socket;
    this.#address = remoteAddress === undefined ? 'unix' : remoteAddress.replace(/^::ffff:/, '');
    this.#port = remotePort ?? listenPort;
  }

  get address(): string {
    return this.#address;
  }

  get port(): number {
    return this.#port;
  }

  get isUnix(): boolean {
    return this.#address === 'unix';
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

  get isMidRequest(): boolean {
    return this.#isCopyIn || this.#walker.isMidMessage;
  }

  get isWaiting(): boolean {
    return this.list !== null;
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
  }

  /** Marks the session as counted by `Admission.enter`. */
  noteAdmitted(): void {
    this.#admitted = true;
  }

  /** The client is who it says and waits for the pool's parameters. */
  becomeNewcomer(pool: Pool): void {
    this.state = ClientState.newcomer;
    this.pool = pool;
    pool.clients++;
  }

  /** The welcome has been sent. */
  becomeReady(): void {
    this.state = ClientState.ready;
    this.#login = null;
    this.lastActivity = clock.now;
    if (this.link.isHeld) this.link.replay();
  }

  becomeConsole(backend: LocalBackend): void {
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
    const who = `${this.databaseName || '(nodb)'}/${this.userName || '(nouser)'}`;
    return `C-${this.ptr}: ${who}@${address}:${this.#port} ${text}`;
  }

  /** Sends a FATAL and closes. */
  refuse(sqlstate: string, text: string): void {
    if (this.isClosed) return;
    if (this.#context.index.settings.log_pooler_errors) {
      log.warning(this.prefixed(`pooler error: ${text}`));
    }
    // Behind half a message the FATAL would be read as the other half.
    if (!this.server?.isMidReply) this.link.write(errorResponse('FATAL', sqlstate, text));
    this.close(text);
  }

  /** FATAL with PgBouncer's usual SQLSTATE. */
  fatal(text: string): void {
    this.refuse('08P01', text);
  }

  /** Closes; entered once. `reason` is for the log. */
  close(reason: string): void {
    if (this.isClosed) return;
    if (this.#context.index.settings.log_disconnections) {
      const age = Math.floor((clock.now - this.connectedAt) / 1000);
      this.info(`closing because: ${reason} (age=${age}s)`);
    }
    this.state = ClientState.closed;
    const { pool } = this;
    if (pool !== null) {
      pool.leave(this);
      pool.clients--;
    }
    this.#walker.abort();
    this.statements.clear();
    this.#context.cancelKeys.remove(this.cancelKey);
    if (this.#admitted) this.#context.admission.leave(this.databaseName, this.userName);
    this.#backend?.onClose();
    this.#context.onSessionEnd(this);
    this.#link?.close();
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
    if (this.server !== null) this.#settleLateCopy(this.server);
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
    this.close('client unexpected eof');
  }

  onClose(): void {
    this.close('client unexpected eof');
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
        if (this.#context.index.settings.disable_pqexec) return this.#broken('PQexec disallowed');
        return this.#request(RequestKind.query);
      case ClientMessage.Sync:
        if (this.#isAnsweredHere && this.server === null && total === HEADER_BYTES) {
          return Action.take;
        }
        return this.#request(RequestKind.sync);
      case ClientMessage.Execute:
        return this.#request(RequestKind.execute);
      case ClientMessage.Parse:
        return this.#onParse(bytes, at, total, end);
      case ClientMessage.Bind:
        return this.#onBind(bytes, at, total, end);
      case ClientMessage.Describe:
      case ClientMessage.Close:
        return this.#onDescribeOrClose(type, bytes, at, total, end);
      case ClientMessage.FunctionCall:
        return this.#request(RequestKind.functionCall);
      case ClientMessage.Flush:
        if (!this.#hasServer()) return Action.stop;
        this.server!.isReady = false;
        return Action.forward;
      case ClientMessage.CopyData:
        return this.server === null || this.#isLate(this.server) ? Action.skip : Action.forward;
      case ClientMessage.CopyDone:
      case ClientMessage.CopyFail:
        return this.#onCopyEnd(type, total);
      case ClientMessage.Terminate:
        return Action.rewrite;
      default:
        return this.#broken('unknown pkt');
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
    switch (type) {
      case ClientMessage.Sync:
        this.#isAnsweredHere = false;
        this.link.write(READY_IDLE);
        break;
      case ClientMessage.Parse:
        this.#takeParse(bytes, start, end);
        break;
      case ClientMessage.Describe:
        this.#takeDescribe(bytes, start, end);
        break;
      case ClientMessage.Close:
        this.#takeClose(bytes, start, end);
        break;
      default:
        break;
    }
  }

  onHead(type: number, bytes: Buffer, at: number): number {
    if (this.#refusal !== null) {
      this.fatal(this.#refusal);
      return 0;
    }
    if (type === ClientMessage.Terminate) {
      this.close('client close request');
      return 0;
    }
    const server = this.server!;
    const statement = this.#bindStatement!;
    this.#prepareOn(server, statement);
    const total = 1 + bytes.readInt32BE(at + 1);
    const { serverName } = statement;
    server.send(bindHead(bytes, at, total, this.#bindPortalEnd, this.#bindNameEnd, serverName));
    server.requests.push(RequestKind.bind, RequestAction.forward);
    return this.#bindNameEnd + 1 - at;
  }

  onEnd(): boolean {
    return true;
  }

  onBadHeader(bytes: Buffer, at: number, end: number): void {
    const hex = bytes.toString('hex', at, Math.min(end, at + 8));
    this.fatal(`bad packet header: '${hex}'`);
  }

  // LinkedClient and PoolClient

  onCopyIn(): void {
    if (this.#earlyCopyEnds > 0) this.#earlyCopyEnds--;
    else this.#isCopyIn = true;
  }

  onStatementsGone(): void {
    this.statements.clear();
  }

  onStatementFailed(name: string): void {
    this.statements.delete(name);
  }

  onServerLost(text: string, isMidReply: boolean): void {
    this.server = null;
    if (isMidReply) this.close(text);
    else this.fatal(text);
  }

  onServer(): void {
    this.link.replay();
  }

  onServerFree(): void {
    this.#earlyCopyEnds = 0;
  }

  /** The wait is over because the client cancelled: its request is answered and never sent. */
  cancelWaiting(): void {
    this.pool!.leave(this);
    this.queryStart = 0;
    this.transactionStart = 0;
    this.#discard = Discard.request;
    this.link.replay();
  }

  onCancelGone(server: ServerConnection): void {
    (server.owner as Pool).onCancelsGone(server);
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

  /** A message of a request that was cancelled while it waited for a server. */
  #discarded(type: number): Action {
    const isWhole = type === ClientMessage.Query || type === ClientMessage.FunctionCall;
    if (this.#discard === Discard.request) {
      this.link.write(CANCELED);
      this.#discard = Discard.toSync;
    }
    if (isWhole || type === ClientMessage.Sync) {
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
      if (!this.pool!.acquire(this)) {
        if (!this.isClosed) this.link.hold();
        return false;
      }
    } else if (this.server.isReady) {
      if (this.queryStart === 0) this.queryStart = clock.now;
      if (this.transactionStart === 0) this.transactionStart = clock.now;
    }
    return true;
  }

  get #translates(): boolean {
    return this.pool!.plan.maxPreparedStatements > 0;
  }

  #onParse(bytes: Buffer, at: number, total: number, end: number): Action {
    if (end - at < HEADER_BYTES + 1) return this.#walker.waitFor(HEADER_BYTES + 1);
    const isNamed = bytes[at + HEADER_BYTES] !== 0;
    if (!isNamed || !this.#translates) {
      const action = this.#request(RequestKind.parse);
      if (action === Action.forward) this.pool!.traffic.clientParses++;
      return action;
    }
    if (total > MAX_PARSE_BYTES) return this.#broken('failed to parse packet');
    if (this.server === null && !this.pool!.hasFreeServer) {
      // A client that would have to queue: what the pool has prepared already needs no server.
      if (end - at < total) return Action.wait;
      if (this.#isPrepared(bytes, at, total)) return Action.take;
    }
    return this.#hasServer() ? Action.take : Action.stop;
  }

  /** Whether a server of the pool has the statement of a whole Parse. */
  #isPrepared(bytes: Buffer, at: number, total: number): boolean {
    const nameEnd = findNul(bytes, at + HEADER_BYTES, at + total, at + total);
    if (nameEnd < 0) return false;
    const statement = this.#context.registry.find(bytes, nameEnd + 1, at + total);
    return statement !== undefined && this.pool!.hasStatement(statement);
  }

  #takeParse(bytes: Buffer, start: number, end: number): void {
    const { server } = this;
    const nameEnd = findNul(bytes, start + HEADER_BYTES, end, end);
    if (nameEnd < 0 || findNul(bytes, nameEnd + 1, end, end) < 0) {
      this.fatal('broken Parse packet');
      return;
    }
    const name = bytes.toString('latin1', start + HEADER_BYTES, nameEnd);
    if (this.statements.get(name) !== undefined) {
      this.fatal('prepared statement name is already in use');
      return;
    }
    this.pool!.traffic.clientParses++;
    const statement = this.#context.registry.acquire(bytes, nameEnd + 1, end);
    this.statements.set(name, statement);
    if (server === null) {
      this.#isAnsweredHere = true;
      this.link.write(PARSE_COMPLETE);
      return;
    }
    server.isReady = false;
    if (server.statements.has(statement)) {
      server.requests.push(RequestKind.parse, RequestAction.fake, { statement, name });
      server.sendFakes();
    } else {
      this.#parseOn(server, statement, RequestAction.forward, name);
    }
  }

  /** Sees to it that the server has the statement, by a Parse whose answer is swallowed. */
  #prepareOn(server: ServerConnection, statement: PreparedStatement): void {
    if (server.statements.has(statement)) server.statements.touch(statement);
    else this.#parseOn(server, statement, RequestAction.swallow, null);
  }

  #parseOn(
    server: ServerConnection,
    statement: PreparedStatement,
    action: RequestAction,
    name: string | null,
  ): void {
    server.send(parseMessage(statement.serverName, statement.parseTail));
    server.requests.push(RequestKind.parse, action, { statement, name });
    server.statements.add(statement);
    this.pool!.traffic.serverParses++;
    const limit = this.pool!.plan.maxPreparedStatements;
    for (let victim = server.statements.evict(limit); victim !== null; ) {
      server.send(namedMessage(ClientMessage.Close, victim.serverName));
      const about = { statement: victim, name: null };
      server.requests.push(RequestKind.close, RequestAction.swallow, about);
      victim = server.statements.evict(limit);
    }
  }

  #onBind(bytes: Buffer, at: number, total: number, end: number): Action {
    if (!this.#translates) return this.#forwardBind();
    const messageEnd = at + total;
    const portalEnd = findNul(bytes, at + HEADER_BYTES, messageEnd, end);
    const nameEnd = portalEnd < 0 ? portalEnd : findNul(bytes, portalEnd + 1, messageEnd, end);
    if (nameEnd === INCOMPLETE && end - at < MAX_NAMED_BYTES) {
      return this.#walker.waitFor(end - at + 1);
    }
    if (nameEnd < 0) return this.#broken('broken Bind packet');
    if (nameEnd === portalEnd + 1) return this.#forwardBind();
    const statement = this.statements.get(bytes.toString('latin1', portalEnd + 1, nameEnd));
    if (statement === undefined) return this.#broken('prepared statement did not exist');
    if (!this.#hasServer()) return Action.stop;
    this.server!.isReady = false;
    this.pool!.traffic.binds++;
    this.#bindStatement = statement;
    this.#bindPortalEnd = portalEnd;
    this.#bindNameEnd = nameEnd;
    return Action.rewrite;
  }

  #forwardBind(): Action {
    const action = this.#request(RequestKind.bind);
    if (action === Action.forward) this.pool!.traffic.binds++;
    return action;
  }

  #onDescribeOrClose(type: number, bytes: Buffer, at: number, total: number, end: number): Action {
    const kind = type === ClientMessage.Close ? RequestKind.close : RequestKind.describe;
    if (!this.#translates) return this.#request(kind);
    if (end - at < Math.min(total, HEADER_BYTES + 2)) return Action.wait;
    const isNamed = bytes[at + HEADER_BYTES] === 0x53 && bytes[at + HEADER_BYTES + 1] !== 0;
    if (total < HEADER_BYTES + 2 || !isNamed) return this.#request(kind);
    if (total > MAX_NAMED_BYTES) return this.#broken(brokenText(type));
    // A Close is answered here, without a server.
    if (type === ClientMessage.Close || this.#hasServer()) return Action.take;
    return Action.stop;
  }

  #takeDescribe(bytes: Buffer, start: number, end: number): void {
    const server = this.server!;
    const nameEnd = findNul(bytes, start + HEADER_BYTES + 1, end, end);
    if (nameEnd !== end - 1) {
      this.fatal('broken Describe packet');
      return;
    }
    const name = bytes.toString('latin1', start + HEADER_BYTES + 1, nameEnd);
    const statement = this.statements.get(name);
    if (statement === undefined) {
      this.fatal('prepared statement did not exist');
      return;
    }
    server.isReady = false;
    this.#prepareOn(server, statement);
    server.send(namedMessage(ClientMessage.Describe, statement.serverName));
    server.requests.push(RequestKind.describe, RequestAction.forward);
  }

  #takeClose(bytes: Buffer, start: number, end: number): void {
    const nameEnd = findNul(bytes, start + HEADER_BYTES + 1, end, end);
    if (nameEnd !== end - 1) {
      this.fatal('broken Close packet');
      return;
    }
    this.statements.delete(bytes.toString('latin1', start + HEADER_BYTES + 1, nameEnd));
    const { server } = this;
    if (server === null || server.requests.size === 0) {
      this.#isAnsweredHere = server === null;
      this.link.write(CLOSE_COMPLETE);
    } else {
      server.requests.push(RequestKind.close, RequestAction.fake);
    }
  }

  #onCopyEnd(type: number, total: number): Action {
    const { server } = this;
    if (server === null) return Action.skip;
    if (this.#isLate(server)) {
      this.#isCopyIn = false;
      return Action.skip;
    }
    const isDone = type === ClientMessage.CopyDone;
    if (isDone && total !== HEADER_BYTES) return this.#broken('failed to parse packet');
    server.requests.push(
      isDone ? RequestKind.copyDone : RequestKind.copyFail,
      RequestAction.forward,
    );
    if (this.#isCopyIn) this.#isCopyIn = false;
    else this.#earlyCopyEnds++;
    return Action.forward;
  }

  /** COPY data that comes after the server has failed the COPY and said that it is ready. */
  #isLate(server: ServerConnection): boolean {
    return server.isReady && server.requests.size === 0;
  }

  /** The last of the late COPY data has gone by: the server, long ready, can be given back. */
  #settleLateCopy(server: ServerConnection): void {
    const isFree = server.isReady && server.requests.size === 0 && !server.isRunningOwn;
    if (!isFree || this.isMidRequest || this.pool!.plan.mode === 'session') return;
    if (!server.isInTransaction) this.pool!.giveBack(this, server);
  }

  /** Ends the session once the messages before this one have been sent on. */
  #broken(text: string): Action {
    this.#refusal = text;
    return Action.rewrite;
  }
}

function brokenText(type: number): string {
  return type === ClientMessage.Close ? 'broken Close packet' : 'broken Describe packet';
}
