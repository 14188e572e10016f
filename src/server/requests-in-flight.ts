import type { PreparedStatement } from '../prepared/statement.ts';
import { ServerMessage } from '../wire/codes.ts';

/**
 * The requests that a server has been sent and has not answered, oldest first. For each reply it
 * says whether the client gets it; it knows which replies are still owed after an error, when COPY
 * data swallows a Sync, and when an answer of the pooler's own making is due between real ones.
 *
 * A reply removes the oldest request only when it is an answer to its kind, so a RowDescription
 * inside a simple query removes nothing. PostgreSQL answers nothing between an extended-protocol
 * error and the next Sync (PostgreSQL documentation, "Extended Query"), so at the ReadyForQuery that
 * follows, everything through that Sync is struck out. A simple query's error is different: its
 * ReadyForQuery still answers the query itself.
 *
 * One thing cannot be known: when COPY from the client fails, which of the Syncs among its data the
 * server had ignored by then, as it does while it reads data, and which it will answer. From then on
 * the list `isUncertain`, and only a barrier, a query of the pooler's own whose answer nobody else
 * can have asked for, tells when the last answer of the client's has come.
 */

/** What was sent; `query`, `functionCall` and `sync` are answered by ReadyForQuery. */
export const RequestKind = {
  query: 1,
  functionCall: 2,
  sync: 3,
  parse: 4,
  bind: 5,
  describe: 6,
  execute: 7,
  close: 8,
  copyDone: 9,
  copyFail: 10,
  /** A query of the pooler's own that tells where the client's answers end. */
  barrier: 11,
} as const;
export type RequestKind = (typeof RequestKind)[keyof typeof RequestKind];
const { query, functionCall, sync, parse, bind, describe, execute, close, copyDone, copyFail } =
  RequestKind;
const { barrier } = RequestKind;

/** Whose the request is: the client's; the pooler's; the client's, but answered by the pooler. */
export const RequestAction = { forward: 0, swallow: 1, fake: 2 } as const;
export type RequestAction = (typeof RequestAction)[keyof typeof RequestAction];

/** What becomes of a reply. */
export const ReplyAction = { forward: 0, swallow: 1 } as const;
export type ReplyAction = (typeof ReplyAction)[keyof typeof ReplyAction];

/** The statement that a Parse or an evicting Close is about. */
export interface StatementRequest {
  readonly statement: PreparedStatement;
  /** The client's name for it; null: the request is the pooler's own. */
  readonly name: string | null;
}

/** A Parse or an evicting Close that an error kept from having its effect. */
export interface FailedRequest extends StatementRequest {
  readonly kind: typeof parse | typeof close;
  readonly action: RequestAction;
}

const FIRST_CAPACITY = 16;
const ACTION_SHIFT = 4;
const KIND_MASK = 0x0f;
const NONE: readonly FailedRequest[] = [];

export class RequestsInFlight {
  #entries = new Uint8Array(FIRST_CAPACITY);
  #about: (StatementRequest | null)[] = new Array(FIRST_CAPACITY).fill(null);
  #head = 0;
  #size = 0;
  /** An error was answered and its ReadyForQuery has not come yet. */
  #hasFailed = false;
  #isCopyIn = false;
  /** More ReadyForQuery may come than are awaited. */
  #isUncertain = false;
  #failed: FailedRequest[] | null = null;

  get size(): number {
    return this.#size;
  }

  /** The server reads COPY data: between CopyInResponse or CopyBothResponse and the command's end. */
  get isCopyIn(): boolean {
    return this.#isCopyIn;
  }

  /** There may be answers to come although none is awaited. */
  get isUncertain(): boolean {
    return this.#isUncertain;
  }

  /** Notes a barrier, sent because of `isUncertain`; nothing is awaited. */
  pushBarrier(): void {
    this.#isUncertain = false;
    this.push(barrier, RequestAction.swallow);
  }

  /** The next answer may be the barrier's. */
  get isBarrierNext(): boolean {
    return this.#size > 0 && this.#headKind() === barrier;
  }

  /** The barrier's answer has begun to come. */
  popBarrier(): void {
    if (this.isBarrierNext) this.#pop();
  }

  /** An answer of the pooler's own making is next. */
  get hasFakeDue(): boolean {
    return this.#size > 0 && this.#entries[this.#head]! >> ACTION_SHIFT === RequestAction.fake;
  }

  push(kind: RequestKind, action: RequestAction, about: StatementRequest | null = null): void {
    // The end of a COPY that is over (or never was) answers to nothing.
    if ((kind === copyDone || kind === copyFail) && this.#size === 0 && !this.#isCopyIn) return;
    if (this.#size === this.#entries.length) this.#grow();
    const at = (this.#head + this.#size) & (this.#entries.length - 1);
    this.#entries[at] = kind | (action << ACTION_SHIFT);
    this.#about[at] = about;
    this.#size++;
  }

  /** One message of the server, in order. Returns what becomes of it. */
  onReply(type: number): ReplyAction {
    switch (type) {
      case ServerMessage.ReadyForQuery:
        return this.#onReady();
      case ServerMessage.ErrorResponse:
        this.#hasFailed = true;
        if (this.#isCopyIn && this.#endCopy()) this.#isUncertain = true;
        return ReplyAction.forward;
      case ServerMessage.CommandComplete:
        if (this.#isCopyIn) {
          const action = this.#answer(execute);
          this.#endCopy();
          return action;
        }
        return this.#answer(execute);
      case ServerMessage.EmptyQueryResponse:
      case ServerMessage.PortalSuspended:
        return this.#answer(execute);
      case ServerMessage.ParseComplete:
        return this.#answer(parse);
      case ServerMessage.BindComplete:
        return this.#answer(bind);
      case ServerMessage.CloseComplete:
        return this.#answer(close);
      case ServerMessage.RowDescription:
      case ServerMessage.NoData:
        return this.#answer(describe);
      case ServerMessage.CopyInResponse:
      case ServerMessage.CopyBothResponse:
        this.#isCopyIn = true;
        return ReplyAction.forward;
      default:
        return ReplyAction.forward;
    }
  }

  /**
   * Takes off the answer of the pooler's own making that is due: `parse` (ParseComplete), `close`
   * (CloseComplete), or 0 when none is. To be asked after a reply, and after a push, until 0.
   */
  nextFake(): RequestKind | 0 {
    if (!this.hasFakeDue) return 0;
    const kind = (this.#entries[this.#head]! & KIND_MASK) as RequestKind;
    this.#pop();
    return kind;
  }

  /**
   * Parses that the server did not carry out and Closes that it never saw, since the last call.
   * Only an error fills it.
   */
  takeFailed(): readonly FailedRequest[] {
    if (this.#failed === null) return NONE;
    const failed = this.#failed;
    this.#failed = null;
    return failed;
  }

  clear(): void {
    while (this.#size > 0) this.#pop();
    this.#hasFailed = false;
    this.#isCopyIn = false;
    this.#isUncertain = false;
    this.#failed = null;
  }

  #onReady(): ReplyAction {
    this.#isCopyIn = false;
    this.#dropStrayCopyEnds();
    let action: ReplyAction = ReplyAction.forward;
    if (this.#size > 0) {
      if (isAnsweredByReady(this.#headKind())) {
        action = this.#headReplyAction();
        this.#pop();
      } else if (this.#hasFailed && !this.isBarrierNext) {
        while (this.#size > 0) {
          const kind = this.#headKind();
          this.#noteFailed();
          this.#pop();
          if (kind === sync) break;
        }
      }
    }
    this.#hasFailed = false;
    this.#dropStrayCopyEnds();
    return action;
  }

  #answer(kind: RequestKind): ReplyAction {
    if (this.#size === 0 || this.#headKind() !== kind) return ReplyAction.forward;
    const action = this.#headReplyAction();
    this.#pop();
    if (!this.#isCopyIn) this.#dropStrayCopyEnds();
    return action;
  }

  /**
   * The COPY is over: strikes out the client's CopyDone or CopyFail, and the Syncs before it that
   * the server ignored while it read data. A simple query stays, for its ReadyForQuery is to come.
   * Returns whether a Sync was struck out.
   */
  #endCopy(): boolean {
    this.#isCopyIn = false;
    let hasSync = false;
    const isSimple = this.#size > 0 && this.#headKind() === query;
    const first = isSimple ? 1 : 0;
    let end = first;
    while (end < this.#size) {
      const kind = this.#kindAt(end++);
      if (kind === copyDone || kind === copyFail) break;
      if (kind === sync) hasSync = true;
      if (kind === sync || kind === execute) continue;
      end--;
      break;
    }
    if (isSimple) {
      // The query moves over what is struck out.
      const from = this.#head;
      const to = (this.#head + end - 1) & (this.#entries.length - 1);
      this.#entries[to] = this.#entries[from]!;
      end--;
    }
    for (; end > 0; end--) this.#pop();
    return hasSync;
  }

  /** A CopyDone or CopyFail that is next while no COPY runs: the server ignores it. */
  #dropStrayCopyEnds(): void {
    while (this.#size > 0) {
      const kind = this.#headKind();
      if (kind !== copyDone && kind !== copyFail) return;
      this.#pop();
    }
  }

  #noteFailed(): void {
    const about = this.#about[this.#head]!;
    const entry = this.#entries[this.#head]!;
    const kind = entry & KIND_MASK;
    if (about === null || (kind !== parse && kind !== close)) return;
    this.#failed ??= [];
    const action = (entry >> ACTION_SHIFT) as RequestAction;
    this.#failed.push({ kind, action, statement: about.statement, name: about.name });
  }

  #headKind(): RequestKind {
    return (this.#entries[this.#head]! & KIND_MASK) as RequestKind;
  }

  #kindAt(index: number): RequestKind {
    const at = (this.#head + index) & (this.#entries.length - 1);
    return (this.#entries[at]! & KIND_MASK) as RequestKind;
  }

  #headReplyAction(): ReplyAction {
    return this.#entries[this.#head]! >> ACTION_SHIFT === RequestAction.swallow
      ? ReplyAction.swallow
      : ReplyAction.forward;
  }

  #pop(): void {
    this.#about[this.#head] = null;
    this.#head = (this.#head + 1) & (this.#entries.length - 1);
    this.#size--;
  }

  #grow(): void {
    const size = this.#entries.length;
    const entries = new Uint8Array(size * 2);
    const about = new Array<StatementRequest | null>(size * 2).fill(null);
    for (let i = 0; i < this.#size; i++) {
      const at = (this.#head + i) & (size - 1);
      entries[i] = this.#entries[at]!;
      about[i] = this.#about[at]!;
    }
    this.#entries = entries;
    this.#about = about;
    this.#head = 0;
  }
}

function isAnsweredByReady(kind: RequestKind): boolean {
  return kind === query || kind === sync || kind === functionCall;
}
