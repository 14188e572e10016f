import { randomBytes } from 'node:crypto';
import type { TLSSocket } from 'node:tls';
import { InvariantError } from '../errors.ts';
import { cutReason } from '../log/line.ts';
import { log } from '../log/logger.ts';
import type { StalePlans } from '../metrics/stale-plans.ts';
import type { Traffic } from '../metrics/traffic.ts';
import { DnsError } from '../net/dns-cache.ts';
import { isWriteError, type Link, type LinkHandler } from '../net/link.ts';
import type { ClientStatements } from '../prepared/client-statements.ts';
import { KeptGroup, type Rerun } from '../prepared/kept-group.ts';
import { isDeallocateAll } from '../prepared/messages.ts';
import type { StatementRegistry } from '../prepared/registry.ts';
import { ServerStatements } from '../prepared/server-statements.ts';
import type { StatementTranslator } from '../prepared/translator.ts';
import { describeTls } from '../tls/describe.ts';
import { isTlsError } from '../tls/handshake-error.ts';
import { clock } from '../util/clock.ts';
import { nextId, pointerOf } from '../util/ids.ts';
import type { List, Listed } from '../util/list.ts';
import { opensslText } from '../util/openssl-error.ts';
import { HEADER_BYTES, ServerMessage, TransactionStatus } from '../wire/codes.ts';
import { decodeParameterStatus, decodeReport } from '../wire/decode.ts';
import { CLOSE_COMPLETE, PARSE_COMPLETE, query, TERMINATE } from '../wire/encode.ts';
import { Action, type FrameSink, FrameWalker } from '../wire/frame-walker.ts';
import {
  onUnreportedReset,
  reportedValue,
  type ServerParameters,
  type TrackedNames,
  type TrackedValues,
} from './parameters.ts';
import type { SocketPlace } from './place.ts';
import { ReplyAction, RequestAction, RequestKind, RequestsInFlight } from './requests-in-flight.ts';
import type { LoginStep, Refusal, ServerLogin } from './server-login.ts';

/**
 * One connection to PostgreSQL. It owns the socket to the server, the requests in flight and what is
 * known of the session there (parameters, prepared statements, transaction status). Its pool decides
 * who uses it; while a client is linked, the server's messages go to that client as they come.
 *
 *   login -> idle <-> active -> (tested | held) -> idle | active
 *            idle <-> used -> tested -> idle
 *   any -> closing -> closed
 *
 *   tested   running a query of the pooler's own (reset, check)
 *   held     free, but a cancel request for it is still on its way
 *   closing  told to end; its slot is in use until the server's own end of file, because PostgreSQL
 *            counts a backend until then
 */
export const ServerState = {
  login: 0,
  idle: 1,
  active: 2,
  tested: 3,
  used: 4,
  held: 5,
  closing: 6,
  closed: 7,
} as const;
export type ServerState = (typeof ServerState)[keyof typeof ServerState];
const { login, idle, active, tested, used, held, closing, closed } = ServerState;

/** For each state, a bit mask of the states it may turn into. */
const NEXT: Record<ServerState, number> = {
  [login]:
    (1 << idle) | (1 << used) | (1 << active) | (1 << tested) | (1 << closing) | (1 << closed),
  [idle]: (1 << active) | (1 << used) | (1 << closing) | (1 << closed),
  [active]:
    (1 << active) |
    (1 << idle) |
    (1 << tested) |
    (1 << used) |
    (1 << held) |
    (1 << closing) |
    (1 << closed),
  [tested]: (1 << idle) | (1 << active) | (1 << used) | (1 << closing) | (1 << closed),
  [used]: (1 << tested) | (1 << closing) | (1 << closed),
  [held]:
    (1 << idle) | (1 << active) | (1 << tested) | (1 << used) | (1 << closing) | (1 << closed),
  [closing]: 1 << closed,
  [closed]: 0,
};

/** A ParameterStatus longer than this cannot be a parameter's. */
const MAX_PARAMETER_BYTES = 1 << 20;
/** A CommandComplete up to this size is looked at: DEALLOCATE ALL and DISCARD ALL fit. */
const MAX_TAG_BYTES = 20;
/** A login message longer than this is refused; PostgreSQL's own are far smaller. */
const MAX_LOGIN_MESSAGE_BYTES = 1 << 20;
/** The same for an answer to a request of the pooler's own, which asks for a row or two. */
const MAX_OWN_REPLY_BYTES = 1 << 20;
const BARRIER_NAME_BYTES = 32;
/** Header of a RowDescription, its count and the name of a barrier's column. */
const BARRIER_KNOWN_BYTES = HEADER_BYTES + 2 + BARRIER_NAME_BYTES;
/** An ErrorResponse up to this size is looked at; those that the pooler knows are far smaller. */
const MAX_REPORT_BYTES = 16_384;
/** SQLSTATE of what the pooler sends to make the server fail in place of a refused statement. */
const SYNTAX_ERROR = '42601';
const BROKEN_PARAMETER = 'broken ParameterStatus packet';
const OLDER_VERSION = 'server refuses protocol version 3.2, 3.0 is tried';
const NO_NAMES: ReadonlySet<number> = new Set();
const NO_TRANSACTIONS = 'transaction blocks not allowed in statement pooling mode';

/** The pool, as its servers see it. */
export interface ServerOwner {
  readonly tracked: TrackedNames;
  readonly registry: StatementRegistry;
  readonly translator: StatementTranslator;
  readonly traffic: Traffic;
  readonly stalePlans: StalePlans;
  readonly maxPacketBytes: number;
  /** Statement mode: a ReadyForQuery inside a transaction block ends server and client. */
  readonly forbidsTransactions: boolean;
  readonly logsConnections: boolean;
  readonly logsDisconnections: boolean;
  /** What its connections are for. */
  readonly replicationKind: 'none' | 'logical' | 'physical';
  /** The startup packet is about to be sent; returns parameters that it carries besides. */
  onLoginBegin(server: ServerConnection): readonly (readonly [string, string])[];
  onLogin(server: ServerConnection): void;
  onLoginFailed(server: ServerConnection, reason: string, refusal: Refusal | null): void;
  /** This attempt came to nothing, but another one has what it takes: `why` says what. */
  onRetry(server: ServerConnection, why: string): void;
  /** ReadyForQuery with nothing outstanding while a client is linked. */
  onReady(server: ServerConnection): void;
  /** What was read together with the ReadyForQuery of a client that gave it back was no harm. */
  onFree(server: ServerConnection): void;
  /** No cancel request for it is on its way any more. */
  onCancelsGone(server: ServerConnection): void;
  /** It was told to end; nobody may use it, but its slot is still taken. */
  onClosing(server: ServerConnection): void;
  /** It is gone: its end of file was read, or it never got that far. Its slot is free. */
  onGone(server: ServerConnection): void;
}

/** Takes one whole message, type byte at `start`; the bytes are not its own. */
export type OwnReplyHandler = (type: number, bytes: Buffer, start: number, end: number) => void;

/** What a server does with the link of its client. */
export type ClientLink = Pick<
  Link,
  'write' | 'hold' | 'replay' | 'isHeld' | 'pause' | 'resume' | 'isFull'
>;

/** A linked client, as its server sees it. */
export interface LinkedClient {
  readonly link: ClientLink;
  readonly tracked: TrackedValues;
  readonly statements: ClientStatements;
  readonly ptr: string;
  /** The first bytes of a message of it have been sent on, and the rest has not come. */
  readonly isMidMessage: boolean;
  /** It has asked for a description at some time, by which it may read rows that come without one. */
  readonly hasDescribed: boolean;
  /**
   * The server is lost; `text` is the FATAL for the client, which can be told nothing when a message
   * to it was cut off: its bytes would be taken for the rest of that message.
   */
  onServerLost(text: string, isMidReply: boolean): void;
  /** The server has failed at what stood for a statement that the client was refused. */
  onRefused(refusal: number): void;
}

export class ServerConnection
  implements LinkHandler, FrameSink, Listed<ServerConnection>, ServerParameters
{
  listPrev: ServerConnection | null = null;
  listNext: ServerConnection | null = null;
  list: List<ServerConnection> | null = null;

  readonly id = nextId();
  readonly ptr: string;
  readonly owner: ServerOwner;
  /** `db/user@address:port`, for the log. */
  label: string;
  /** The address as SHOW SERVERS names it: an IP address, the host while that is sought, or `unix`. */
  address: string;
  readonly port: number;
  readonly connectedAt = clock.now;
  readonly requests = new RequestsInFlight();
  readonly statements: ServerStatements;
  /** What the client has sent since its last Sync, when it may have to be sent again. */
  readonly group = new KeptGroup();
  state: ServerState = login;
  client: LinkedClient | null = null;
  /** BackendKeyData of the server, with which its queries are cancelled. */
  cancelKey: Buffer = Buffer.alloc(0);
  readonly tracked: TrackedValues;
  readonly own: TrackedValues;
  setByQuery: ReadonlySet<number> = NO_NAMES;
  /** Status byte of the last ReadyForQuery. */
  transactionStatus: number = TransactionStatus.idle;
  /**
   * True from a ReadyForQuery until the next request sent to the server, or until an error, notice or
   * parameter that answers none: such words between requests are most likely a backend's last.
   */
  isReady = false;
  /** Its host has an address that has not refused a connection. */
  hasOtherAddress = false;
  /** To be closed as soon as it is free. */
  isCloseNeeded = false;
  /** Cancel requests on their way to this server. */
  cancelsInFlight = 0;
  lastActivity = clock.now;
  /** When it became free. */
  freeSince = clock.now;
  closingSince = 0;
  /** Version and cipher of its TLS; empty: it is in clear text. */
  tls = '';
  #link: Link | null = null;
  readonly #place: SocketPlace;
  readonly #walker: FrameWalker;
  #login: ServerLogin | null;
  /** Called at the ReadyForQuery that ends a query of the pooler's own. */
  #onOwnQueryDone: ((failed: boolean) => void) | null = null;
  #hasOwnQueryFailed = false;
  /** Told each of the answers to requests of the pooler's own, but for the ReadyForQuery. */
  #onOwnReply: OwnReplyHandler | null = null;
  #isConnected = false;
  /** The column of the barrier on its way. */
  #barrierName: Buffer | null = null;
  /** Why the message at hand ends the connection. */
  #fault = '';
  /** The group at hand has failed and is run again when its ReadyForQuery has come. */
  #rerun: Rerun | null = null;
  /** Bytes that were read together with the last ReadyForQuery have not been looked at yet. */
  hasUnread = false;
  /** Its client gave it back while `hasUnread`. */
  isReleaseDue = false;

  constructor(
    owner: ServerOwner,
    about: { label: string; address: string; port: number },
    place: SocketPlace,
    serverLogin: ServerLogin,
  ) {
    this.owner = owner;
    this.ptr = pointerOf(this.id);
    this.label = about.label;
    this.address = about.address;
    this.port = about.port;
    this.#place = place;
    this.tracked = owner.tracked.none();
    this.own = owner.tracked.none();
    this.statements = new ServerStatements(owner.registry, this.requests);
    this.#walker = new FrameWalker(this, owner.maxPacketBytes);
    this.#login = serverLogin;
  }

  get link(): Link {
    return this.#link!;
  }

  /** Where the very same server listens, for its cancel requests. */
  get place(): SocketPlace {
    const { remoteAddress, remotePort } = this.link.socket;
    if (remoteAddress === undefined || remotePort === undefined) return this.#place;
    return { host: remoteAddress, port: remotePort };
  }

  /** The host as the configuration names it; null: a Unix socket. */
  get host(): string | null {
    return 'host' in this.#place ? this.#place.host : null;
  }

  /** The host was a name, and its address is known now. */
  onAddress(address: string, label: string): void {
    this.address = address;
    this.label = label;
  }

  /** The socket has been connected. */
  get isConnected(): boolean {
    return this.#isConnected;
  }

  get hasLoggedIn(): boolean {
    return this.#login === null;
  }

  /** Gives the connection its socket; called once. */
  attach(link: Link): void {
    this.#link = link;
  }

  /** Parameters in the order the server reported them at login. */
  get loginParameters(): ReadonlyMap<string, string> {
    return this.#login?.parameters ?? new Map();
  }

  /** The only writer of `state`. */
  changeState(next: ServerState): void {
    if ((NEXT[this.state] & (1 << next)) === 0) {
      throw new InvariantError(`server state ${this.state} cannot become ${next}`);
    }
    this.state = next;
  }

  info(text: string): void {
    log.info(this.#prefixed(text));
  }

  debug(text: string): void {
    if (log.isDebug) log.debug(this.#prefixed(text));
  }

  #prefixed(text: string): string {
    return `S-${this.ptr}: ${this.label} ${text}`;
  }

  /** A message to the client has begun and is not complete. */
  get isMidReply(): boolean {
    return this.#walker.isForwarding;
  }

  /** Bytes owed of a message of which some have gone on. */
  get messageLeft(): number {
    return this.#walker.messageLeft;
  }

  /** Nothing that was read of it waits, and no message of it is half through. */
  get isAtBoundary(): boolean {
    return this.link.stashBytes === 0 && !this.#walker.isMidMessage;
  }

  /** The socket is connected. */
  onConnected(): void {
    this.#isConnected = true;
    if (this.owner.logsConnections) {
      const { localAddress, localPort } = this.link.socket;
      const own = localAddress?.includes(':') ? `[${localAddress}]` : localAddress;
      const from = own === undefined ? '' : ` (from ${own}:${localPort})`;
      this.info(`new connection to server${from}`);
    }
  }

  /** TLS is up. */
  onSecured(): void {
    this.tls = describeTls(this.link.socket as TLSSocket);
    if (this.owner.logsConnections) this.info(`SSL established: ${this.tls}`);
  }

  /** Sends the StartupMessage; the socket is connected and, if it is to be, secure. */
  beginLogin(): void {
    if (this.state !== login) return;
    this.link.write(this.#login!.begin(this.owner.onLoginBegin(this)));
  }

  /** Copies client bytes to the server. */
  send(bytes: Uint8Array, start = 0, end = bytes.length): void {
    if (this.group.isKept) this.group.add(bytes, start, end);
    this.link.write(bytes, start, end);
  }

  /**
   * A message is about to be sent that uses a named statement as it is on this server. If a group
   * begins with it, and outside a transaction, the group is kept.
   */
  keepGroup(): void {
    const { requests } = this;
    const isFirst =
      requests.size === 0 ? this.isReady && !this.isInTransaction : requests.endsInSync;
    if (isFirst) this.group.begin(requests.syncsSent);
  }

  /**
   * Sends a simple query of the pooler's own and swallows all that it brings.
   * @param done called at its ReadyForQuery, told whether an error was raised
   */
  runOwn(sql: string, done: (failed: boolean) => void): void {
    if (this.#onOwnQueryDone !== null) throw new InvariantError('two own queries on one server');
    this.#onOwnQueryDone = done;
    this.#hasOwnQueryFailed = false;
    this.isReady = false;
    this.send(query(sql));
  }

  /**
   * Sends requests of the pooler's own whose answers end in one ReadyForQuery.
   * @param onReply told each answer but that one; it may close the connection, and is told no more
   * @param done called at the ReadyForQuery
   */
  runOwnRequests(requests: Buffer, onReply: OwnReplyHandler, done: () => void): void {
    if (this.#onOwnQueryDone !== null) throw new InvariantError('two own queries on one server');
    this.#onOwnReply = onReply;
    this.#onOwnQueryDone = () => {
      this.#onOwnReply = null;
      done();
    };
    this.isReady = false;
    this.send(requests);
  }

  /** Inside a transaction block, failed or not, as of the last ReadyForQuery. */
  get isInTransaction(): boolean {
    return this.transactionStatus !== TransactionStatus.idle;
  }

  /** ReadyForQuery has come and no request is left without its answer. */
  get isAtRest(): boolean {
    return this.isReady && this.requests.size === 0;
  }

  /**
   * Sends a query whose answer cannot be taken for any other, since its column has a secret name:
   * behind it nothing of what was sent before can come. Ends in `onReady` of the owner.
   */
  sendBarrier(): void {
    const name = randomBytes(BARRIER_NAME_BYTES / 2).toString('hex');
    this.#barrierName = Buffer.from(name);
    this.isReady = false;
    this.send(query(`SELECT 1 AS "${name}"`));
    // What comes before its answer is the client's.
    this.requests.push(RequestKind.barrier, RequestAction.forward);
  }

  /** Whether this RowDescription is the barrier's; what follows until ReadyForQuery is its too. */
  #passesBarrier(bytes: Buffer, at: number, end: number): boolean {
    if (this.#barrierName?.compare(bytes, at + HEADER_BYTES + 2, end) !== 0) return false;
    this.#barrierName = null;
    this.requests.passBarrier();
    this.#onOwnQueryDone = () => this.owner.onReady(this);
    return true;
  }

  get isRunningOwn(): boolean {
    return this.#onOwnQueryDone !== null;
  }

  /**
   * Ends the connection in an orderly way. A linked client is told `text`, by default the reason.
   * @param isRequestCut the client's last message is not complete: a Terminate would become its end
   */
  close(
    reason: string,
    text: string = reason,
    isRequestCut: boolean = this.client?.isMidMessage ?? false,
  ): void {
    if (this.state === closing || this.state === closed) return;
    this.#logClosing(reason);
    const { client, isMidReply } = this;
    this.#walker.abort();
    this.client = null;
    const wasLogin = this.state === login;
    this.changeState(closing);
    this.closingSince = clock.now;
    this.owner.onClosing(this);
    const link = this.#link;
    if (link === null || link.socket.connecting) {
      this.#end();
    } else {
      if (!wasLogin && !isRequestCut) link.write(TERMINATE);
      link.finish();
    }
    client?.onServerLost(cutReason(text), isMidReply);
  }

  /** Gives up waiting for the end of file of a connection that was told to end. */
  abandon(): void {
    if (this.state === closing) this.#end();
  }

  #end(): void {
    this.changeState(closed);
    this.statements.clear();
    this.requests.clear();
    this.#link?.destroy();
    this.owner.onGone(this);
  }

  // LinkHandler

  onBytes(bytes: Buffer, start: number, end: number): number {
    this.lastActivity = clock.now;
    if (this.state === closing || this.state === closed) return end;
    const client = this.client;
    if (client !== null) this.owner.traffic.bytesSent += end - start;
    const used = this.#walker.walk(bytes, start, end);
    this.link.needBytes = this.#walker.needBytes;
    this.hasUnread = false;
    if (this.isReleaseDue) this.#releaseNow(used === end);
    return this.#walker.isBroken ? end : used;
  }

  /** All that came with the last client's ReadyForQuery has been looked at. */
  #releaseNow(isAllUsed: boolean): void {
    this.isReleaseDue = false;
    if (this.state !== active) return;
    // Part of a header: whatever it begins, nobody has asked for it.
    if (isAllUsed) this.owner.onFree(this);
    else this.close('idle server got dirty');
  }

  onFull(): void {
    this.client?.link.pause();
  }

  onDrain(): void {
    const link = this.client?.link;
    if (link !== undefined && !link.isFull && !link.isHeld) link.resume();
  }

  onPeerEnd(): void {
    this.#lose(null);
  }

  onClose(error: Error | null): void {
    this.#lose(error);
  }

  /** The connection has ended by itself, or the end that we asked for has come. */
  #lose(error: Error | null): void {
    if (this.state === closed) return;
    if (this.state === closing) {
      this.#end();
      return;
    }
    const { client, isMidReply } = this;
    this.#walker.abort();
    this.client = null;
    const wasLogin = this.state === login;
    const reason = !this.#isConnected
      ? whyNotConnected(error)
      : isWriteError(error)
        ? 'server connection closed'
        : 'server conn crashed?';
    if (error !== null) this.debug(error.message);
    // Such as a server's alert that it does not take our certificate, which comes after the handshake.
    const isTls = this.tls !== '' && isTlsError(error);
    if (isTls) log.warning(`tls_sbufio_recv: read failed: ${opensslText(error)}`);
    this.#logClosing(reason);
    if (wasLogin) {
      if (!isTls && this.#login?.onClosed() === true) this.owner.onRetry(this, OLDER_VERSION);
      else if (this.hasOtherAddress)
        this.owner.onRetry(this, 'the next address of its host is tried');
      else this.owner.onLoginFailed(this, reason, null);
    }
    this.#end();
    client?.onServerLost(reason, isMidReply);
  }

  // FrameSink

  onHeader(type: number, bytes: Buffer, at: number, total: number, end: number): Action {
    if (this.state === login) return this.#onLoginHeader(total);
    if (this.#onOwnQueryDone !== null) return this.#onOwnHeader(type, total, end - at);
    if (this.client === null) return this.#onUnlinkedHeader(type, total);
    switch (type) {
      case ServerMessage.DataRow:
      case ServerMessage.CopyData:
      case ServerMessage.CopyDone:
      case ServerMessage.CopyFail:
      case ServerMessage.CopyOutResponse:
      case ServerMessage.FunctionCallResponse:
      case ServerMessage.NotificationResponse:
        return Action.forward;
      case ServerMessage.NoticeResponse:
        this.isReady = false;
        return Action.forward;
      case ServerMessage.ReadyForQuery:
        if (end - at < Math.min(total, 6)) return this.#walker.waitFor(Math.min(total, 6));
        if (total !== 6) return this.#unknown(type);
        if (this.#rerun !== null) return Action.take;
        this.hasUnread = end - at > total;
        this.transactionStatus = bytes[at + 5]!;
        if (this.isInTransaction && this.owner.forbidsTransactions) {
          return this.#broken(NO_TRANSACTIONS);
        }
        this.requests.onReply(type);
        this.isReady = true;
        return Action.forwardEnd;
      case ServerMessage.CommandComplete:
        if (end - at < total && total <= MAX_TAG_BYTES) return Action.wait;
        if (end - at >= total && isDeallocateAll(bytes, at, total)) {
          this.statements.onDeallocateAll();
          // It may have been DISCARD ALL.
          onUnreportedReset(this);
          this.client.statements.onDeallocateAll(this.requests.namesInFlight());
        }
        return this.#reply(type);
      case ServerMessage.ParameterStatus:
        if (total > MAX_PARAMETER_BYTES) return this.#broken(BROKEN_PARAMETER);
        if (end - at < total) return Action.wait;
        if (!this.#onParameter(bytes, at + 5, at + total)) return this.#broken(BROKEN_PARAMETER);
        this.isReady = false;
        return Action.forward;
      case ServerMessage.RowDescription:
        if (this.requests.isBarrierNext) {
          const known = Math.min(total, BARRIER_KNOWN_BYTES);
          if (end - at < known) return this.#walker.waitFor(known);
          if (this.#passesBarrier(bytes, at, at + known)) return Action.skip;
        }
        return this.#reply(type);
      case ServerMessage.ErrorResponse:
        this.isReady = false;
        return this.#onError(bytes, at, total, end);
      case ServerMessage.ParameterDescription:
        return this.#onParameterTypes(bytes, at, total, end);
      case ServerMessage.CopyInResponse:
      case ServerMessage.CopyBothResponse:
      case ServerMessage.ParseComplete:
      case ServerMessage.BindComplete:
      case ServerMessage.CloseComplete:
      case ServerMessage.NoData:
      case ServerMessage.EmptyQueryResponse:
      case ServerMessage.PortalSuspended:
        return this.#reply(type);
      default:
        return this.#unknown(type);
    }
  }

  /** In front of a message that ends the connection; what came before it has been passed on. */
  onHead(): number {
    if (this.state === login) this.#failLogin(this.#fault, null);
    else this.close(this.#fault);
    return 0;
  }

  onRun(bytes: Buffer, start: number, end: number): void {
    this.client?.link.write(bytes, start, end);
  }

  onTake(type: number, bytes: Buffer, start: number, end: number): void {
    if (this.#login !== null && this.state === login) {
      this.#onLoginMessage(Buffer.from(bytes.subarray(start, end)));
    } else if (this.#onOwnQueryDone !== null) {
      this.#onOwnMessage(type, bytes, start, end);
    } else if (type === ServerMessage.ErrorResponse) {
      this.client?.onRefused(this.requests.refusalNext);
    } else if (type === ServerMessage.ReadyForQuery) {
      this.#runAgain();
    } else {
      this.sendFakes();
    }
  }

  /** An error of two that the client may be spared, or any other. */
  #onError(bytes: Buffer, at: number, total: number, end: number): Action {
    const { usedNext, refusalNext } = this.requests;
    if ((usedNext === null && refusalNext < 0) || total > MAX_REPORT_BYTES) {
      return this.#reply(ServerMessage.ErrorResponse);
    }
    if (end - at < total) return Action.wait;
    const report = decodeReport(bytes, at + HEADER_BYTES, at + total);
    if (refusalNext >= 0) {
      const action = this.#reply(ServerMessage.ErrorResponse);
      return report.get('C') === SYNTAX_ERROR ? Action.take : action;
    }
    const isStale = isStalePlan(report);
    if (usedNext !== null && (isStale || isMissing(report))) {
      usedNext.revision++;
      this.#rerun = this.#findRerun();
      if (isStale) this.#noteStalePlan(usedNext.serverName);
      else this.#tellRerun(`${usedNext.serverName} was deallocated behind the pooler's back`);
      if (this.#rerun !== null) {
        // What it sends now would overtake the group.
        this.client!.link.hold();
        return Action.skip;
      }
    }
    return this.#reply(ServerMessage.ErrorResponse);
  }

  #noteStalePlan(name: string): void {
    const isHidden = this.#rerun !== null;
    const { stalePlans } = this.owner;
    stalePlans.refused++;
    if (isHidden) stalePlans.hidden++;
    this.#tellRerun(`the result of ${name} has changed since it was prepared`);
  }

  #tellRerun(why: string): void {
    const isHidden = this.#rerun !== null;
    const outcome = isHidden ? 'it is prepared anew and run again' : 'the error is passed on';
    this.info(`${why}: ${outcome}`);
  }

  /**
   * The first half of the answer to Describe of a statement, with which PostgreSQL begins even if the
   * other half is an error. The client must not have it when the statement will be prepared anew,
   * for the parameters may have other types then.
   */
  #onParameterTypes(bytes: Buffer, at: number, total: number, end: number): Action {
    if (!this.group.isKept || this.requests.usedNext === null) return Action.forward;
    const next = at + total;
    if (end - next < HEADER_BYTES) return this.#walker.waitFor(total + HEADER_BYTES);
    if (bytes[next] !== ServerMessage.ErrorResponse) return Action.forward;
    const errorTotal = 1 + bytes.readInt32BE(next + 1);
    if (errorTotal > MAX_REPORT_BYTES || errorTotal < HEADER_BYTES) return Action.forward;
    if (end - next < errorTotal) return this.#walker.waitFor(total + errorTotal);
    const isStale = isStalePlan(decodeReport(bytes, next + HEADER_BYTES, next + errorTotal));
    return isStale && this.#findRerun() !== null ? Action.skip : Action.forward;
  }

  /** How the group at hand, which has failed at its oldest request, can be run again unseen. */
  #findRerun(): Rerun | null {
    const { group, requests, client } = this;
    if (!group.isKept || group.segment !== requests.syncsAnswered) return null;
    if (this.isInTransaction || client === null || client.isMidMessage) return null;
    const left = requests.groupLeft;
    return left === -1 ? null : group.rerun(left, client.hasDescribed);
  }

  /** The server is ready after the failed group: it gets the group again, behind new Parses. */
  #runAgain(): void {
    const { bytes, answered, statements: names } = this.#rerun!;
    this.#rerun = null;
    this.group.stop();
    const stale = [...names].flatMap((name) => this.statements.named(name) ?? []);
    const renewal = this.owner.translator.prepareAnew(stale, this.statements);
    this.requests.runAgain([
      ...renewal.requests.map(({ type, statement }) => ({ kind: type, statement })),
      ...answered.map((kind) => ({ kind, statement: null })),
    ]);
    this.owner.traffic.serverParses += stale.length;
    this.send(renewal.bytes);
    this.send(bytes);
    this.client!.link.replay();
  }

  /** One message that a query of the pooler's own brought. */
  #onOwnMessage(type: number, bytes: Buffer, start: number, end: number): void {
    if (type === ServerMessage.ParameterStatus && !this.#onParameter(bytes, start + 5, end)) {
      this.close(BROKEN_PARAMETER);
      return;
    }
    if (this.#onOwnReply !== null && type !== ServerMessage.ReadyForQuery) {
      this.#onOwnReply(type, bytes, start, end);
      return;
    }
    if (type === ServerMessage.CommandComplete && isDeallocateAll(bytes, start, end - start)) {
      this.statements.clear();
      onUnreportedReset(this);
    }
    if (type === ServerMessage.ErrorResponse) {
      this.#hasOwnQueryFailed = true;
      const text = decodeReport(bytes, start + 5, end).get('M') ?? '';
      log.warning(this.#prefixed(`error in a query of the pooler: ${text}`));
    }
    if (type === ServerMessage.ReadyForQuery) {
      this.transactionStatus = bytes[start + 5] ?? TransactionStatus.idle;
      this.isReady = true;
      const done = this.#onOwnQueryDone;
      this.#onOwnQueryDone = null;
      done?.(this.#hasOwnQueryFailed);
    }
  }

  onBadHeader(): void {
    if (this.state === login) this.#failLogin('bad pkt header', null);
    else this.close('bad pkt header');
  }

  /** Behind a ReadyForQuery, or a reply that answers of our own making follow. */
  onEnd(type: number): boolean {
    if (type !== ServerMessage.ReadyForQuery) {
      this.sendFakes();
      return true;
    }
    const failed = this.requests.takeFailed();
    if (failed.length > 0) {
      const names = this.client?.statements ?? null;
      this.owner.translator.undo(failed, names, this.statements);
    }
    this.sendFakes();
    if (this.requests.size === 0) this.group.stop();
    this.owner.onReady(this);
    return true;
  }

  /** Answers what the pooler answers itself, as far as it is due. Called after a push too. */
  sendFakes(): void {
    for (let kind = this.requests.nextFake(); kind !== 0; kind = this.requests.nextFake()) {
      this.client?.link.write(kind === RequestKind.parse ? PARSE_COMPLETE : CLOSE_COMPLETE);
    }
  }

  #reply(type: number): Action {
    const isForwarded = this.requests.onReply(type) === ReplyAction.forward;
    // A swallowed reply (ParseComplete, CloseComplete) is nothing but a header, so all of it is there.
    if (!isForwarded) return Action.take;
    return this.requests.hasFakeDue ? Action.forwardEnd : Action.forward;
  }

  #broken(text: string): Action {
    this.#fault = text;
    return Action.rewrite;
  }

  #unknown(type: number): Action {
    log.error(this.#prefixed(`unknown pkt: '${printable(type)}'`));
    return this.#broken('unknown pkt');
  }

  #onLoginHeader(total: number): Action {
    // A step of the login is being worked out: what follows waits for it.
    if (this.link.isHeld) return Action.stop;
    return total > MAX_LOGIN_MESSAGE_BYTES ? this.#broken('unknown pkt') : Action.take;
  }

  #onOwnHeader(type: number, total: number, available: number): Action {
    if (this.#onOwnReply !== null) {
      // What is read with the ReadyForQuery is no answer, and not for whoever gets the server next.
      if (type === ServerMessage.ReadyForQuery) this.hasUnread = available > total;
      else return total > MAX_OWN_REPLY_BYTES ? this.#broken('bad packet') : Action.take;
    }
    switch (type) {
      case ServerMessage.ParameterStatus:
      case ServerMessage.ErrorResponse:
        return total > MAX_PARAMETER_BYTES ? this.#broken('unknown pkt') : Action.take;
      case ServerMessage.ReadyForQuery:
        return total === 6 ? Action.take : this.#broken('unknown pkt');
      case ServerMessage.CommandComplete:
        return total > MAX_TAG_BYTES ? Action.skip : Action.take;
      default:
        return Action.skip;
    }
  }

  #onUnlinkedHeader(type: number, total: number): Action {
    const what = `got packet '${printable(type)}' from server when not linked`;
    log.warning(this.#prefixed(what));
    if (type === ServerMessage.NotificationResponse) return Action.skip;
    if (type === ServerMessage.ReadyForQuery && total === 6) return Action.skip;
    // A notice, an error or a parameter that nobody asked for: most likely a backend that is dying.
    // Its end of file says more to the log than we could, so there is time for that to come.
    this.isReady = false;
    return Action.skip;
  }

  /** Notes a tracked parameter's value; false when the message is broken. */
  #onParameter(bytes: Buffer, start: number, end: number): boolean {
    const pair = decodeParameterStatus(bytes, start, end);
    if (pair === null) return false;
    const names = this.owner.tracked;
    const index = names.indexOf(pair[0]);
    if (index === -1) return true;
    const value = names.shared(pair[1]);
    this.tracked[index] = value;
    if (this.client !== null && this.#onOwnQueryDone === null) {
      this.client.tracked[index] = reportedValue(names, index, value, this);
    }
    return true;
  }

  #onLoginMessage(message: Buffer): void {
    const step = this.#login!.onMessage(message);
    if (!(step instanceof Promise)) {
      this.#onLoginStep(step);
      return;
    }
    // What arrives meanwhile waits behind this step.
    this.link.hold();
    step.then(
      (result) => {
        if (this.state !== login) return;
        this.#onLoginStep(result);
        this.link.replay();
      },
      (error: unknown) => {
        log.error(`InvariantError: ${String((error as Error).stack ?? error)}`);
        this.#failLogin('failed to answer authreq', null);
      },
    );
  }

  #onLoginStep(step: LoginStep): void {
    if (step.kind === 'send') {
      this.link.write(step.message);
    } else if (step.kind === 'too_new') {
      this.owner.onRetry(this, OLDER_VERSION);
      this.close(step.reason);
    } else if (step.kind === 'failed') {
      this.#failLogin(step.reason, step.refusal);
    } else if (step.kind === 'done') {
      const done = this.#login!;
      this.cancelKey = done.key;
      this.#takeParameters(done);
      if (done.connectQueryError !== null) {
        log.warning(
          `S-${this.ptr}: ${this.label} error while executing exec_on_query: ${done.connectQueryError}`,
        );
      }
      this.isReady = true;
      this.owner.onLogin(this);
      this.#login = null;
    }
  }

  #takeParameters({ parameters, changedByQuery }: ServerLogin): void {
    const names = this.owner.tracked;
    for (const [name, value] of parameters) {
      const index = names.indexOf(name);
      if (index === -1) continue;
      this.tracked[index] = names.shared(value);
      this.own[index] = this.tracked[index]!;
    }
    if (changedByQuery.size === 0) return;
    this.setByQuery = new Set([...changedByQuery].map((name) => names.indexOf(name)));
  }

  #failLogin(reason: string, refusal: Refusal | null): void {
    if (this.state !== login) return;
    this.owner.onLoginFailed(this, reason, refusal);
    this.close(reason);
  }

  /** Gives up a login for a reason of the pooler's own (time-out, TLS). */
  abandonLogin(reason: string): void {
    this.#failLogin(reason, null);
  }

  #logClosing(reason: string): void {
    if (!this.owner.logsDisconnections) return;
    const age = Math.floor((clock.now - this.connectedAt) / 1000);
    this.info(`closing because: ${cutReason(reason)} (age=${age}s)`);
  }
}

/**
 * "cached plan must not change result type": a table has changed under a prepared statement. The
 * text is in the server's language, the name of the routine that raises it is not.
 */
function isStalePlan(report: ReadonlyMap<string, string>): boolean {
  if (report.get('C') !== '0A000') return false;
  return (
    report.get('R') === 'RevalidateCachedQuery' ||
    report.get('M') === 'cached plan must not change result type'
  );
}

/**
 * "prepared statement … does not exist": a client has deallocated it where no tag tells of that (by
 * the server's name, or in a DO block), or by a DEALLOCATE ALL that was still under way.
 */
function isMissing(report: ReadonlyMap<string, string>): boolean {
  return report.get('C') === '26000' && report.get('R') === 'FetchPreparedStatement';
}

function whyNotConnected(error: Error | null): string {
  return error instanceof DnsError ? error.message : 'connect failed';
}

/** A type byte as the log shows it. */
function printable(type: number): string {
  return type > 0x20 && type < 0x7f
    ? String.fromCharCode(type)
    : `\\x${type.toString(16).padStart(2, '0')}`;
}
