import type { FailedStatement, PreparedStatement } from '../prepared/statement.ts';
import { ClientMessage, ServerMessage } from '../wire/codes.ts';

/**
 * The requests that one server connection still owes replies to, in the order they were sent. For
 * each reply it says whether the client gets it, and when a reply of the pooler's own is due. It does
 * no I/O: the server connection pushes what it sends and feeds the type of what it reads.
 *
 * A reply takes the oldest request off only when it fits its kind, since inside a simple Query many
 * replies come before ReadyForQuery:
 *
 *   Query, FunctionCall, Sync      until ReadyForQuery
 *   Parse, Bind, Close             until ParseComplete, BindComplete, CloseComplete
 *   Describe                       until RowDescription or NoData
 *   Execute                        until CommandComplete, EmptyQueryResponse or PortalSuspended
 *   CopyDone, CopyFail             no reply of their own: they go with the COPY that they end, or
 *                                  unanswered when they are next in turn, as the server ignores them
 *                                  outside COPY
 *
 * After an error in the extended protocol the server ignores everything up to Sync, so at the
 * ReadyForQuery of that Sync all requests up to it are dropped (PostgreSQL documentation, "Message
 * Flow"). Statements that those requests would have made or closed are told by `takeFailed`.
 */

/** Requests that are owed something, by the type byte of their message. */
export const RequestKind = {
  query: ClientMessage.Query,
  functionCall: ClientMessage.FunctionCall,
  sync: ClientMessage.Sync,
  parse: ClientMessage.Parse,
  bind: ClientMessage.Bind,
  describe: ClientMessage.Describe,
  execute: ClientMessage.Execute,
  close: ClientMessage.Close,
  copyDone: ClientMessage.CopyDone,
  copyFail: ClientMessage.CopyFail,
  /** A query of the pooler's own that shows where the answers to the client end; no message type. */
  barrier: 1,
} as const;
export type RequestKind = (typeof RequestKind)[keyof typeof RequestKind];
const { query, functionCall, sync, parse, bind, describe, execute, close, copyDone, copyFail } =
  RequestKind;
const { barrier } = RequestKind;

/**
 * Whose request it is: the client's, the pooler's own, or the client's but kept from the server.
 * `refuse` and what is above it: the pooler has sent something that fails, and the client is told
 * refusal number `action - refuse` in place of the server's error.
 */
export const RequestAction = { forward: 0, swallow: 1, fake: 2, refuse: 3 } as const;
export type RequestAction = (typeof RequestAction)[keyof typeof RequestAction];

export const ReplyAction = { forward: 0, swallow: 1 } as const;
export type ReplyAction = (typeof ReplyAction)[keyof typeof ReplyAction];

/** A request that is sent although the client is not to hear of it. */
export interface Repeated {
  readonly kind: RequestKind;
  /** What a Parse makes or a Close ends. */
  readonly statement: PreparedStatement | null;
}

const NONE: readonly FailedStatement[] = [];
const FIRST_CAPACITY = 16;

export class RequestsInFlight {
  // Four rings with the same places; the capacity is a power of two. A request is two bytes and two
  // references, so nothing is allocated for it.
  #kinds = new Uint8Array(FIRST_CAPACITY);
  #actions = new Uint8Array(FIRST_CAPACITY);
  #statements = new Array<PreparedStatement | null>(FIRST_CAPACITY).fill(null);
  #names = new Array<string | null>(FIRST_CAPACITY).fill(null);
  #mask = FIRST_CAPACITY - 1;
  #head = 0;
  #size = 0;
  /** An ErrorResponse came whose ReadyForQuery is still owed. */
  #hasFailed = false;
  #isCopyIn = false;
  #syncsSent = 0;
  #syncsAnswered = 0;
  #isDoubtful = false;
  #mayOweMore = false;
  #failed: FailedStatement[] = [];

  get size(): number {
    return this.#size;
  }

  /** Syncs pushed so far; `clear` does not set it back. */
  get syncsSent(): number {
    return this.#syncsSent;
  }

  /** Syncs that are off the queue again. */
  get syncsAnswered(): number {
    return this.#syncsAnswered;
  }

  /** True from CopyInResponse or CopyBothResponse until the COPY ends on the server. */
  get isCopyIn(): boolean {
    return this.#isCopyIn;
  }

  /**
   * True when replies and requests no longer match for certain. The connection may serve its present
   * client, but must not be given to another. It happens when the server says something it was not
   * asked for, for good, and while `mayOweMore`.
   */
  get isDoubtful(): boolean {
    return this.#isDoubtful || this.#mayOweMore;
  }

  /**
   * A COPY has failed with a Sync sent before its end: the server ignores that Sync if it read it
   * during the COPY and answers it if not, which cannot be told. So when all is answered there may
   * still be more to come, until a barrier has been passed.
   */
  get mayOweMore(): boolean {
    return this.#mayOweMore;
  }

  /** The barrier is the oldest request. */
  get isBarrierNext(): boolean {
    return this.#size > 0 && this.#kinds[this.#head] === barrier;
  }

  /** The barrier's own answer has begun: nothing of what was sent before it is owed any more. */
  passBarrier(): void {
    if (!this.isBarrierNext) return;
    this.#pop();
    this.#mayOweMore = false;
  }

  /** What the oldest request uses when it is a Bind or Describe of a named statement, else null. */
  get usedNext(): PreparedStatement | null {
    if (this.#size === 0) return null;
    const kind = this.#kinds[this.#head];
    return kind === bind || kind === describe ? this.#statements[this.#head]! : null;
  }

  /** Number of the refusal that the oldest request is to be told; below 0: none. */
  get refusalNext(): number {
    return this.#size === 0 ? -1 : this.#actions[this.#head]! - RequestAction.refuse;
  }

  /** The latest request is a Sync that is not answered yet. */
  get endsInSync(): boolean {
    return this.#size > 0 && this.#kindAt(this.#size - 1) === sync;
  }

  /**
   * How many answers the server owes when all that is left is one group of the extended protocol with
   * its Sync at the end, so that nothing has been sent behind it; else -1.
   */
  get groupLeft(): number {
    let left = 0;
    for (let i = 0; i < this.#size; i++) {
      const kind = this.#kindAt(i);
      if (kind === sync) return i + 1 === this.#size ? left + 1 : -1;
      if (this.#actions[(this.#head + i) & this.#mask] !== RequestAction.fake) left++;
    }
    return -1;
  }

  /**
   * The group that is left (see `groupLeft`) has failed, its ReadyForQuery has come, and it is sent
   * once more, behind `before`. From here on it counts as a group of its own.
   */
  runAgain(before: readonly Repeated[]): void {
    this.#syncsAnswered++;
    this.#syncsSent++;
    for (const { kind, statement } of before.toReversed()) {
      if (this.#size > this.#mask) this.#grow();
      this.#head = (this.#head + this.#mask) & this.#mask;
      this.#kinds[this.#head] = kind;
      this.#actions[this.#head] = RequestAction.swallow;
      this.#statements[this.#head] = statement;
      this.#names[this.#head] = null;
      this.#size++;
    }
  }

  /** `nextFake` would give a reply now. */
  get hasFakeDue(): boolean {
    return this.#size > 0 && !this.#hasFailed && this.#actions[this.#head] === RequestAction.fake;
  }

  /**
   * Appends a request. `statement` is what a Parse makes, a Close ends, or a Bind or Describe uses;
   * `name` is the client's name for what a Parse makes or a Close ends. With `fake` see `nextFake`: it
   * may be due at once. `action` is one of `RequestAction`, or above `refuse`.
   */
  push(
    kind: RequestKind,
    action: number,
    statement: PreparedStatement | null = null,
    name: string | null = null,
  ): void {
    if (this.#size === 0 && (kind === copyDone || kind === copyFail)) return;
    if (this.#size > this.#mask) this.#grow();
    const place = (this.#head + this.#size) & this.#mask;
    this.#kinds[place] = kind;
    this.#actions[place] = action;
    this.#statements[place] = statement;
    this.#names[place] = name;
    this.#size++;
    if (kind === sync) this.#syncsSent++;
  }

  /** Takes note of a server message, each type in the order read, and says what becomes of it. */
  onReply(type: number): ReplyAction {
    switch (type) {
      case ServerMessage.NoticeResponse:
      case ServerMessage.NotificationResponse:
      case ServerMessage.ParameterStatus:
        return ReplyAction.forward;
      case ServerMessage.ReadyForQuery:
        return this.#onReadyForQuery();
      case ServerMessage.ErrorResponse:
        return this.#onError();
      case ServerMessage.CommandComplete:
        if (this.#isCopyIn) this.#endCopy(false);
        return this.#answerUnlessQuery(execute);
      case ServerMessage.EmptyQueryResponse:
        return this.#answerUnlessQuery(execute);
      case ServerMessage.RowDescription:
        return this.#answerUnlessQuery(describe);
      case ServerMessage.NoData:
        return this.#answer(describe);
      case ServerMessage.PortalSuspended:
        return this.#answer(execute);
      case ServerMessage.ParseComplete:
        return this.#answer(parse);
      case ServerMessage.BindComplete:
        return this.#answer(bind);
      case ServerMessage.CloseComplete:
        return this.#answer(close);
      case ServerMessage.CopyInResponse:
      case ServerMessage.CopyBothResponse:
        this.#isCopyIn = true;
        return this.#replyAction();
      default:
        return this.#replyAction();
    }
  }

  /**
   * The kind of the fake reply now due (`parse`: ParseComplete, `close`: CloseComplete), or 0. To be
   * asked until 0 after each reply was passed on, and after pushing a fake.
   */
  nextFake(): typeof parse | typeof close | 0 {
    // A server would ignore the request between an error and Sync; the ReadyForQuery drops it.
    if (!this.hasFakeDue) return 0;
    const kind = this.#kinds[this.#head];
    this.#pop();
    return kind === parse ? parse : close;
  }

  /**
   * The requests with a statement that came to nothing since the last call, the *latest first*: undone
   * in this order, the tables are as if these requests had never been. Empty unless there was an error.
   * To be taken at each ReadyForQuery, before `nextFake`.
   */
  takeFailed(): readonly FailedStatement[] {
    if (this.#failed.length === 0) return NONE;
    const failed = this.#failed
      .reverse()
      .map((one) => (this.#hasName(one.name) ? { ...one, name: null } : one));
    this.#failed = [];
    return failed;
  }

  /** Client's names of the statements that requests in flight make or close. */
  namesInFlight(): ReadonlySet<string> {
    const names = new Set<string>();
    for (let i = 0; i < this.#size; i++) {
      const name = this.#names[(this.#head + i) & this.#mask];
      if (typeof name === 'string') names.add(name);
    }
    return names;
  }

  /** Forgets everything, as for a new connection. */
  clear(): void {
    while (this.#size > 0) this.#pop();
    this.#hasFailed = false;
    this.#isCopyIn = false;
    this.#isDoubtful = false;
    this.#mayOweMore = false;
    this.#failed = [];
  }

  #onReadyForQuery(): ReplyAction {
    const kind = this.#size === 0 ? 0 : this.#kinds[this.#head];
    let action = this.#replyAction();
    if (kind === query || kind === functionCall || kind === sync) {
      this.#pop();
    } else {
      const at = this.#hasFailed ? this.#indexOfSync() : -1;
      if (at === -1) {
        this.#isDoubtful = true;
        action = ReplyAction.forward;
      } else {
        for (let i = 0; i < at; i++) this.#noteFailed((this.#head + i) & this.#mask);
        while (this.#kinds[this.#head] !== sync) this.#pop();
        action = this.#replyAction();
        this.#pop();
      }
    }
    this.#hasFailed = false;
    this.#isCopyIn = false;
    return action;
  }

  /**
   * The error of an injected Parse goes to the client, whose Bind or Describe it makes fail. Only a
   * Query, FunctionCall or Sync of the pooler's own keeps its error to itself.
   */
  #onError(): ReplyAction {
    const kind = this.#size === 0 ? 0 : this.#kinds[this.#head];
    const isAlone = kind === query || kind === functionCall || kind === sync;
    const action = isAlone ? this.#replyAction() : ReplyAction.forward;
    if (this.#isCopyIn) {
      this.#endCopy(true);
      // The Syncs sent after this Execute are gone, so ReadyForQuery could not drop it with them.
      if (kind === execute) this.#pop();
    }
    this.#hasFailed = true;
    return action;
  }

  /**
   * Takes out what was sent during the COPY, from behind the head through the first CopyDone or
   * CopyFail: the server ignores Sync during COPY. The head, a Query or Execute, stays.
   */
  #endCopy(isError: boolean): void {
    this.#isCopyIn = false;
    const kind = this.#size === 0 ? 0 : this.#kinds[this.#head];
    if (kind !== query && kind !== execute) {
      this.#isDoubtful = true;
      return;
    }
    // Only Syncs may stand between: at any other message during COPY the server gives up the
    // connection, so one that is here came after the failure and is answered.
    let count = 0;
    while (count + 1 < this.#size && this.#kindAt(count + 1) === sync) count++;
    if (count + 1 < this.#size && this.#isCopyEnd(count + 1)) count++;
    else if (!isError) return;
    if (count === 0) return;
    const from = this.#head;
    for (let i = 1; i <= count; i++) {
      const place = (from + i) & this.#mask;
      if (isError && this.#kinds[place] === sync) this.#mayOweMore = true;
      this.#noteFailed(place);
      this.#forget(place);
    }
    const to = (from + count) & this.#mask;
    this.#kinds[to] = this.#kinds[from]!;
    this.#actions[to] = this.#actions[from]!;
    this.#head = to;
    this.#size -= count;
  }

  /** A reply that only a request of `kind` has. */
  #answer(kind: RequestKind): ReplyAction {
    if (
      this.#size === 0 ||
      this.#kinds[this.#head] !== kind ||
      this.#actions[this.#head] === RequestAction.fake
    ) {
      this.#isDoubtful = true;
      return ReplyAction.forward;
    }
    const action = this.#replyAction();
    this.#pop();
    return action;
  }

  /** A reply that a request of `kind` has, and that may also come any number of times in a Query. */
  #answerUnlessQuery(kind: RequestKind): ReplyAction {
    if (this.#size > 0 && this.#kinds[this.#head] === query) return this.#replyAction();
    return this.#answer(kind);
  }

  #replyAction(): ReplyAction {
    if (this.#size === 0) return ReplyAction.forward;
    return this.#actions[this.#head] === RequestAction.swallow
      ? ReplyAction.swallow
      : ReplyAction.forward;
  }

  #hasName(name: string | null): boolean {
    if (name === null) return false;
    for (let i = 0; i < this.#size; i++) {
      if (this.#names[(this.#head + i) & this.#mask] === name) return true;
    }
    return false;
  }

  #indexOfSync(): number {
    for (let i = 0; i < this.#size; i++) if (this.#kindAt(i) === sync) return i;
    return -1;
  }

  #kindAt(index: number): number {
    return this.#kinds[(this.#head + index) & this.#mask]!;
  }

  #isCopyEnd(index: number): boolean {
    const kind = this.#kindAt(index);
    return kind === copyDone || kind === copyFail;
  }

  #noteFailed(place: number): void {
    const statement = this.#statements[place];
    const kind = this.#kinds[place]!;
    if (!statement || (kind !== parse && kind !== close)) return;
    this.#failed.push({
      kind,
      statement,
      name: this.#names[place]!,
      isFake: this.#actions[place] === RequestAction.fake,
      segment: this.#syncsAnswered,
    });
  }

  /** Empties the place of a request that leaves the queue. */
  #forget(place: number): void {
    if (this.#kinds[place] === sync) this.#syncsAnswered++;
    this.#statements[place] = null;
    this.#names[place] = null;
  }

  /** Takes the head off, and the ends of COPYs that are over which thereby become the head. */
  #pop(): void {
    do {
      this.#forget(this.#head);
      this.#head = (this.#head + 1) & this.#mask;
      this.#size--;
    } while (this.#size > 0 && this.#isCopyEnd(0));
  }

  #grow(): void {
    const capacity = this.#mask + 1;
    const kinds = new Uint8Array(capacity * 2);
    const actions = new Uint8Array(capacity * 2);
    const statements = new Array<PreparedStatement | null>(capacity * 2).fill(null);
    const names = new Array<string | null>(capacity * 2).fill(null);
    for (let i = 0; i < this.#size; i++) {
      const place = (this.#head + i) & this.#mask;
      kinds[i] = this.#kinds[place]!;
      actions[i] = this.#actions[place]!;
      statements[i] = this.#statements[place]!;
      names[i] = this.#names[place]!;
    }
    this.#kinds = kinds;
    this.#actions = actions;
    this.#statements = statements;
    this.#names = names;
    this.#mask = capacity * 2 - 1;
    this.#head = 0;
  }
}
