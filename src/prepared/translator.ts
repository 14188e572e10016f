import { constants } from 'node:buffer';
import { ClientMessage, HEADER_BYTES } from '../wire/codes.ts';
import { endOfShortString, endOfString } from '../wire/decode.ts';
import type { ClientStatements } from './client-statements.ts';
import {
  closeMessage,
  describeNameEnd,
  headRoom,
  parseMessage,
  parseNameEnd,
  writeBindHead,
  writeDescribe,
} from './messages.ts';
import type { StatementRegistry } from './registry.ts';
import { Presence, type ServerStatements } from './server-statements.ts';
import type { FailedStatement, PreparedStatement } from './statement.ts';

/**
 * What becomes of a client's message about a *named* prepared statement (`Shape.named`), so that a
 * statement prepared once serves on whatever server the client is given. It only decides and keeps
 * the tables; the caller sends and notes the requests in flight:
 *
 *   send     `injected` as the pooler's own requests (their bytes are `inject`), then the client's
 *            request: `head[0..headBytes)` followed by the message's bytes from `restStart` on
 *   fake     nothing is sent; ParseComplete or CloseComplete is the pooler's to give
 *   refused  the client gets FATAL 08P01 with `text`
 */

export const Outcome = { send: 0, fake: 1, refused: 2 } as const;
export type Outcome = (typeof Outcome)[keyof typeof Outcome];

/** A request of the pooler's own: type byte of Parse or Close. */
interface Injection {
  readonly type: typeof ClientMessage.Parse | typeof ClientMessage.Close;
  readonly statement: PreparedStatement;
}

/** The answer of a `StatementTranslator`, which reuses it: valid until its next call. */
export interface Translation {
  readonly outcome: Outcome;
  /** Of `refused`, else empty. */
  readonly text: string;
  /** What the message is about; null for a Close of a name that is not in use, and when refused. */
  readonly statement: PreparedStatement | null;
  /** The client's name for it. */
  readonly name: string;
  readonly injected: readonly Injection[];
  /** All messages of `injected` in order; null when there are none. */
  readonly inject: Buffer | null;
  readonly head: Buffer;
  readonly headBytes: number;
  readonly restStart: number;
}

/** Requests of the pooler's own and their bytes. */
interface Renewal {
  readonly requests: readonly Injection[];
  readonly bytes: Buffer;
}

/** PgBouncer's words for a message whose name it cannot find; what else is wrong with one is `broken`. */
const UNREADABLE = 'failed to parse packet';
const NOTHING = Buffer.alloc(0);
const NO_INJECTIONS: readonly Injection[] = [];

class MutableTranslation implements Translation {
  outcome: Outcome = Outcome.refused;
  text = '';
  statement: PreparedStatement | null = null;
  name = '';
  injected: readonly Injection[] = NO_INJECTIONS;
  inject: Buffer | null = null;
  head: Buffer = NOTHING;
  headBytes = 0;
  restStart = 0;
}

export class StatementTranslator {
  readonly #registry: StatementRegistry;
  readonly #answer = new MutableTranslation();
  /** Holds the head of a Bind or Describe until the caller has copied it. */
  #scratch = Buffer.allocUnsafe(1024);
  /** `max_prepared_statements`: how many a server keeps; takes effect at the next Parse it is sent. */
  limit: number;

  constructor(registry: StatementRegistry, limit: number) {
    this.#registry = registry;
    this.limit = limit;
  }

  /** What the latest call answered. */
  get last(): Translation {
    return this.#answer;
  }

  /** A whole Parse in `bytes[at..end)`. When sent, it is sent whole as `head`. */
  onParse(
    client: ClientStatements,
    server: ServerStatements,
    bytes: Buffer,
    at: number,
    end: number,
  ): Translation {
    const nameEnd = parseNameEnd(bytes, at, end);
    if (nameEnd === -1 || end - nameEnd > constants.MAX_STRING_LENGTH) {
      const hasName = endOfString(bytes, at + HEADER_BYTES, end) !== -1;
      return this.#refuse(hasName ? 'broken Parse packet' : UNREADABLE);
    }
    const name = bytes.toString('latin1', at + HEADER_BYTES, nameEnd);
    if (client.has(name)) return this.#refuse('prepared statement name is already in use');
    const statement = this.#registry.intern(bytes.toString('latin1', nameEnd + 1, end));
    client.set(name, statement);
    const presence = server.presence(statement);
    const answer = this.#about(statement, name);
    if (presence === Presence.present) {
      answer.outcome = Outcome.fake;
      return answer;
    }
    answer.outcome = Outcome.send;
    this.#inject(server, statement, presence, false);
    answer.head = parseMessage(statement);
    answer.headBytes = answer.head.length;
    answer.restStart = end;
    return answer;
  }

  /** A Bind in `bytes[at..end)`, of which both names are there at least. */
  onBind(
    client: ClientStatements,
    server: ServerStatements,
    bytes: Buffer,
    at: number,
    end: number,
  ): Translation {
    const portalEnd = endOfShortString(bytes, at + HEADER_BYTES, end);
    const nameStart = portalEnd + 1;
    const nameEnd = portalEnd === -1 ? -1 : endOfShortString(bytes, nameStart, end);
    if (nameEnd === -1) return this.#refuse(UNREADABLE);
    const name = bytes.toString('latin1', nameStart, nameEnd);
    const statement = client.get(name);
    if (statement === undefined) return this.#refuse('prepared statement did not exist');
    const answer = this.#about(statement, name);
    answer.outcome = Outcome.send;
    const presence = server.use(statement);
    if (presence !== Presence.present) this.#inject(server, statement, presence, true);
    answer.head = this.#room(headRoom(at, nameStart, statement));
    answer.headBytes = writeBindHead(bytes, at, nameStart, nameEnd, statement, answer.head);
    answer.restStart = nameEnd + 1;
    return answer;
  }

  /** A whole Describe in `bytes[at..end)`. */
  onDescribe(
    client: ClientStatements,
    server: ServerStatements,
    bytes: Buffer,
    at: number,
    end: number,
  ): Translation {
    const nameEnd = describeNameEnd(bytes, at, end);
    if (nameEnd === -1) return this.#refuseNamed('broken Describe packet', bytes, at, end);
    const name = bytes.toString('latin1', at + HEADER_BYTES + 1, nameEnd);
    const statement = client.get(name);
    if (statement === undefined) return this.#refuse('prepared statement did not exist');
    const answer = this.#about(statement, name);
    answer.outcome = Outcome.send;
    const presence = server.use(statement);
    if (presence !== Presence.present) this.#inject(server, statement, presence, true);
    answer.head = this.#room(headRoom(at, at + HEADER_BYTES + 1, statement));
    answer.headBytes = writeDescribe(statement, answer.head);
    answer.restStart = end;
    return answer;
  }

  /** A whole Close in `bytes[at..end)`. It needs no server: the statement stays on those that have it. */
  onClose(client: ClientStatements, bytes: Buffer, at: number, end: number): Translation {
    const nameEnd = describeNameEnd(bytes, at, end);
    if (nameEnd === -1) return this.#refuseNamed('broken Close packet', bytes, at, end);
    const name = bytes.toString('latin1', at + HEADER_BYTES + 1, nameEnd);
    const answer = this.#about(client.delete(name), name);
    answer.outcome = Outcome.fake;
    return answer;
  }

  /**
   * What is to be sent so that each of `statements`, which the server has, is prepared anew there:
   * pairs of Close and Parse, of which the client hears nothing.
   */
  prepareAnew(statements: Iterable<PreparedStatement>, server: ServerStatements): Renewal {
    const requests: Injection[] = [];
    for (const statement of statements) {
      requests.push({ type: ClientMessage.Close, statement });
      requests.push({ type: ClientMessage.Parse, statement });
      server.add(statement);
    }
    return { requests, bytes: Buffer.concat(requests.map(injectedMessage)) };
  }

  /**
   * Undoes what came to nothing, `failed` being the latest first. `client` is null when it has left.
   * A name whose Parse was rejected becomes free again.
   */
  undo(
    failed: readonly FailedStatement[],
    client: ClientStatements | null,
    server: ServerStatements,
  ): void {
    for (const { kind, statement, name, isFake, segment } of failed) {
      const isParse = kind === ClientMessage.Parse;
      if (!isFake) {
        if (isParse) server.onParseFailed(statement, segment);
        else server.onCloseFailed(statement);
      }
      if (client === null || name === null) continue;
      if (!isParse) {
        if (!client.has(name)) client.set(name, statement);
      } else if (client.get(name) === statement) {
        client.delete(name);
      }
    }
  }

  /**
   * Notes that `statement` is being sent and builds what must go in front of the client's request:
   * its Close when it may still be there, its Parse when `withParse`, and Closes of those evicted.
   */
  #inject(
    server: ServerStatements,
    statement: PreparedStatement,
    presence: Presence,
    withParse: boolean,
  ): void {
    const injected: Injection[] = [];
    if (presence === Presence.unsure) injected.push({ type: ClientMessage.Close, statement });
    if (withParse) injected.push({ type: ClientMessage.Parse, statement });
    server.add(statement);
    for (;;) {
      const victim = server.evictOver(this.limit);
      if (victim === null) break;
      injected.push({ type: ClientMessage.Close, statement: victim });
    }
    if (injected.length === 0) return;
    this.#answer.injected = injected;
    this.#answer.inject = Buffer.concat(injected.map(injectedMessage));
  }

  #room(size: number): Buffer {
    if (size > this.#scratch.length) this.#scratch = Buffer.allocUnsafe(size * 2);
    return this.#scratch;
  }

  #about(statement: PreparedStatement | null, name: string): MutableTranslation {
    const answer = this.#answer;
    answer.text = '';
    answer.statement = statement;
    answer.name = name;
    answer.injected = NO_INJECTIONS;
    answer.inject = null;
    answer.head = NOTHING;
    answer.headBytes = 0;
    answer.restStart = 0;
    return answer;
  }

  /** A Describe or Close that does not end with its name. */
  #refuseNamed(text: string, bytes: Buffer, at: number, end: number): Translation {
    const hasName = endOfString(bytes, at + HEADER_BYTES + 1, end) !== -1;
    return this.#refuse(hasName ? text : UNREADABLE);
  }

  #refuse(text: string): Translation {
    const answer = this.#about(null, '');
    answer.outcome = Outcome.refused;
    answer.text = text;
    return answer;
  }
}

function injectedMessage({ type, statement }: Injection): Buffer {
  return type === ClientMessage.Parse ? parseMessage(statement) : closeMessage(statement);
}
