import type { Socket } from 'node:net';
import { BindRequest, ExtendedRequest, type Filter, SearchRequest, UnbindRequest } from 'ldapts';
import type { LdapScope } from '../config/ldap-url.ts';
import type { Secret } from '../util/secret.ts';
import { NoAnswer, type Patience } from './connect.ts';
import {
  messageSize,
  Op,
  type Reply,
  type Result,
  readEntryName,
  readReply,
  readResult,
} from './reply.ts';

/**
 * One connection to an LDAP server, on which one request at a time is asked (RFC 4511). Whatever the
 * server says that is not the answer ends it: a server that can be pushed out of step could be made
 * to say yes to another question.
 */

/** StartTLS (RFC 4511, section 4.14). */
const START_TLS = '1.3.6.1.4.1.1466.20037';
/** Attribute list that asks for none (RFC 4511, section 4.5.1.8): only the name counts. */
const NO_ATTRIBUTES = ['1.1'];
/** All that a server may send in one conversation: some entries and their names. */
const MAX_BYTES = 1 << 20;
const NOTHING = Buffer.alloc(0);

/** A request of the library's. */
interface Request {
  readonly messageId: number;
  write(): Buffer;
}

interface Question {
  readonly id: number;
  /** Operation that ends the answer. */
  readonly end: number;
  readonly names: string[];
  readonly resolve: (result: Result) => void;
  readonly reject: (error: Error) => void;
}

/** What a search has found. */
interface Found {
  readonly result: Result;
  /** Names of the entries, in the server's order. */
  readonly names: readonly string[];
}

export class Conversation {
  readonly #socket: Socket;
  readonly #patience: Patience;
  #received: Buffer = NOTHING;
  #total = 0;
  #lastId: number;
  #question: Question | null = null;
  #failure: Error | null = null;
  readonly #onAbort = (): void => this.#fail(new NoAnswer('the client has left'));
  readonly #onData = (bytes: Buffer): void => this.#take(bytes);
  readonly #onClose = (): void => this.#fail(new NoAnswer('the server closed the connection'));

  /** @param lastId number of the last request that was asked on the connection */
  constructor(socket: Socket, patience: Patience, lastId = 0) {
    this.#socket = socket;
    this.#patience = patience;
    this.#lastId = lastId;
    socket.on('data', this.#onData).once('close', this.#onClose);
    // Stays when the conversation is over, for a socket that is being closed may still fail.
    socket.on('error', (error) => this.#fail(new NoAnswer(error.message, { cause: error })));
    patience.signal.addEventListener('abort', this.#onAbort, { once: true });
    if (patience.signal.aborted) this.#onAbort();
    else if (socket.destroyed) this.#onClose();
  }

  /** Number of the last request. */
  get lastId(): number {
    return this.#lastId;
  }

  /** Binds by a name and its password (RFC 4511, section 4.2). @throws NoAnswer */
  async bind(dn: string, password: Secret): Promise<Result> {
    const messageId = ++this.#lastId;
    // The library's own client would take some names for those of SASL mechanisms.
    const request = new BindRequest({ messageId, dn, password: password.reveal() });
    return this.#ask(request, Op.bindResponse, []);
  }

  /** Searches for names of entries. @throws NoAnswer */
  async search(baseDn: string, scope: LdapScope, filter: Filter): Promise<Found> {
    const messageId = ++this.#lastId;
    const timeLimit = Math.ceil(this.#patience.timeoutMs / 1000);
    const attributes = NO_ATTRIBUTES;
    // Without a size limit of ours, a server that has cut its answer says so by its result.
    const request = new SearchRequest({
      messageId,
      baseDN: baseDn,
      scope,
      filter,
      attributes,
      timeLimit,
    });
    const names: string[] = [];
    const result = await this.#ask(request, Op.searchDone, names);
    return { result, names };
  }

  /** Asks for TLS; after success the connection is handed over by `release`. @throws NoAnswer */
  async startTls(): Promise<Result> {
    const messageId = ++this.#lastId;
    return this.#ask(new ExtendedRequest({ messageId, oid: START_TLS }), Op.extendedResponse, []);
  }

  /**
   * Gives up the socket, for TLS. Bytes that came behind the answer were sent by somebody who
   * cannot know yet what will be asked under TLS; kept, they would be read as its answer.
   * @throws NoAnswer when there are such bytes
   */
  release(): Socket {
    const extra = this.#received.length;
    if (extra > 0) this.#fail(new NoAnswer('unencrypted data after StartTLS'));
    if (this.#failure !== null) throw this.#failure;
    this.#socket.off('data', this.#onData).off('close', this.#onClose);
    this.#patience.signal.removeEventListener('abort', this.#onAbort);
    return this.#socket;
  }

  /** Says goodbye and closes the connection. */
  close(): void {
    this.#patience.signal.removeEventListener('abort', this.#onAbort);
    if (this.#failure !== null) return;
    this.#failure = new NoAnswer('the conversation is over');
    this.#socket.off('data', this.#onData).resume();
    this.#socket.write(new UnbindRequest({ messageId: ++this.#lastId }).write());
    this.#socket.destroySoon();
  }

  #ask(request: Request, end: number, names: string[]): Promise<Result> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    const { timeoutMs } = this.#patience;
    const timer = setTimeout(() => this.#fail(new NoAnswer('timeout')), timeoutMs);
    const answer = new Promise<Result>((resolve, reject) => {
      this.#question = { id: request.messageId, end, names, resolve, reject };
    });
    this.#socket.write(request.write());
    return answer.finally(() => clearTimeout(timer));
  }

  #take(bytes: Buffer): void {
    this.#total += bytes.length;
    if (this.#total > MAX_BYTES) return this.#fail(new NoAnswer('the server says too much'));
    this.#received = this.#received.length === 0 ? bytes : Buffer.concat([this.#received, bytes]);
    try {
      for (;;) {
        const size = messageSize(this.#received);
        if (size === null || size > this.#received.length) return;
        const reply = readReply(this.#received.subarray(0, size));
        this.#received = this.#received.subarray(size);
        this.#onReply(reply);
      }
    } catch (error) {
      this.#fail(new NoAnswer((error as Error).message, { cause: error }));
    }
  }

  #onReply(reply: Reply): void {
    const question = this.#question;
    // Unasked, servers say that they are about to close (RFC 4511, section 4.4).
    if (reply.id === 0) return this.#fail(new NoAnswer('the server is closing the connection'));
    if (question === null || reply.id !== question.id) {
      return this.#fail(new NoAnswer('the server answers what was not asked'));
    }
    if (reply.op === question.end) {
      const result = readResult(reply);
      this.#question = null;
      question.resolve(result);
    } else if (question.end === Op.searchDone && reply.op === Op.searchEntry) {
      question.names.push(readEntryName(reply));
    } else if (question.end !== Op.searchDone || reply.op !== Op.searchReference) {
      // References to other servers are passed over: no password of a client goes there.
      this.#fail(new NoAnswer(`the server answers with operation ${reply.op}`));
    }
  }

  /** Entered once. */
  #fail(error: Error): void {
    if (this.#failure !== null) return;
    this.#failure = error;
    this.#patience.signal.removeEventListener('abort', this.#onAbort);
    this.#socket.destroy();
    const question = this.#question;
    this.#question = null;
    question?.reject(error);
  }
}
