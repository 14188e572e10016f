import { ClientMessage, HEADER_BYTES } from '../wire/codes.ts';
import { endOfShortString } from '../wire/decode.ts';

/**
 * The messages of one group (what is sent between two Syncs), as the server got them, kept for the
 * case that the server refuses a statement whose result has changed since it was prepared: PostgreSQL
 * raises "cached plan must not change result type" at its Bind or Describe. Kept are only groups that
 * begin with a named statement which the server has, so nothing of it is lost when the same bytes are
 * sent once more behind a fresh Parse.
 *
 * What a group may hold is looked at only then; until then the bytes are copied and that is all.
 */

/** Longest group that is kept. */
const MAX_GROUP_BYTES = 8192;
const FIRST_BYTES = 512;
/** Byte of Describe and Close that says that a statement, not a portal, is meant. */
const STATEMENT = 0x53;
const NOTHING = Buffer.alloc(0);

/** Answers that are the same each time the request is run. */
type SteadyRequest =
  | typeof ClientMessage.Parse
  | typeof ClientMessage.Bind
  | typeof ClientMessage.Close;

/** How a group is run again; the bytes are valid until another one is kept. */
export interface Rerun {
  readonly bytes: Buffer;
  /** Requests whose replies the client has had already, in order. */
  readonly answered: readonly SteadyRequest[];
  /** Names, on the server, of the statements that it uses. */
  readonly statements: ReadonlySet<string>;
}

export class KeptGroup {
  /** What is sent now belongs to the group. */
  isKept = false;
  /** Number of the group among those that end in Sync, from 0. */
  segment = -1;
  #bytes: Buffer = NOTHING;
  #size = 0;

  /** A new group begins; the last one is forgotten. */
  begin(segment: number): void {
    this.isKept = true;
    this.segment = segment;
    this.#size = 0;
  }

  /** Copies bytes[start..end) behind what is there; a group that grows too long is given up. */
  add(bytes: Uint8Array, start: number, end: number): void {
    const size = this.#size + end - start;
    if (size > MAX_GROUP_BYTES) {
      this.isKept = false;
      return;
    }
    if (size > this.#bytes.length) this.#grow(size);
    (bytes as Buffer).copy(this.#bytes, this.#size, start, end);
    this.#size = size;
  }

  /** Nothing of it can fail any more. */
  stop(): void {
    this.isKept = false;
  }

  /**
   * How to run the group again when the server, with `left` of its requests (Sync being the last) to
   * answer, has failed at the first of these; null when the client could tell, or be misled:
   *
   * - something was executed before, or an answer was given that may be another now (of a Describe);
   * - the group makes or closes named statements;
   * - it executes without asking for a description, and the client, which `mayRemember` an earlier
   *   one, would read the new rows by it. Drivers that do so prepare anew themselves at this error;
   * - it has a value in binary form, which is read as another when its parameter has another type now.
   */
  rerun(left: number, mayRemember: boolean): Rerun | null {
    const types: number[] = [];
    const bytes = this.#bytes.subarray(0, this.#size);
    const contents = new GroupContents();
    for (let at = 0; at < bytes.length; ) {
      if (bytes.length - at < HEADER_BYTES) return null;
      const type = bytes[at]!;
      const end = at + 1 + bytes.readInt32BE(at + 1);
      if (end > bytes.length || types.at(-1) === ClientMessage.Sync) return null;
      if (!contents.add(type, bytes, at + HEADER_BYTES, end)) return null;
      if (type !== ClientMessage.Flush) types.push(type);
      at = end;
    }
    if (types.at(-1) !== ClientMessage.Sync || left > types.length) return null;
    if (mayRemember && !contents.isDescribed) return null;
    const answered = types.slice(0, types.length - left);
    return answered.every(isSteady) ? { bytes, answered, statements: contents.statements } : null;
  }

  #grow(size: number): void {
    const bigger = Buffer.allocUnsafeSlow(
      Math.min(MAX_GROUP_BYTES, Math.max(FIRST_BYTES, size * 2)),
    );
    this.#bytes.copy(bigger, 0, 0, this.#size);
    this.#bytes = bigger;
  }
}

function isSteady(type: number): type is SteadyRequest {
  return (
    type === ClientMessage.Parse || type === ClientMessage.Bind || type === ClientMessage.Close
  );
}

/** What the messages of a group are about. */
class GroupContents {
  /** Names of the statements that are used, without the unnamed one. */
  readonly statements = new Set<string>();
  /** Each portal that is run of a named statement was described before, or the statement was. */
  isDescribed = true;
  readonly #statementOf = new Map<string, string>();
  readonly #described = new Set<string>();

  /** Takes in the message whose body is `bytes[body..end)`; false: it must not be sent twice. */
  add(type: number, bytes: Buffer, body: number, end: number): boolean {
    switch (type) {
      case ClientMessage.Bind:
        return this.#addBind(bytes, body, end);
      case ClientMessage.Describe: {
        const name = stringAt(bytes, body + 1, end);
        const isStatement = bytes[body] === STATEMENT;
        if (isStatement && name !== '') this.statements.add(name);
        this.#described.add(`${isStatement ? 'S' : 'P'}${name}`);
        return true;
      }
      case ClientMessage.Execute: {
        const portal = stringAt(bytes, body, end);
        const statement = this.#statementOf.get(portal) ?? '';
        if (statement === '') return true;
        this.isDescribed &&=
          this.#described.has(`P${portal}`) || this.#described.has(`S${statement}`);
        return true;
      }
      case ClientMessage.Parse:
        return bytes[body] === 0;
      case ClientMessage.Close:
        return bytes[body] !== STATEMENT || bytes[body + 1] === 0;
      case ClientMessage.Flush:
      case ClientMessage.Sync:
        return true;
      default:
        return false;
    }
  }

  #addBind(bytes: Buffer, body: number, end: number): boolean {
    const portalEnd = endOfShortString(bytes, body, end);
    const nameEnd = endOfShortString(bytes, portalEnd + 1, end);
    const portal = bytes.toString('latin1', body, portalEnd);
    const statement = bytes.toString('latin1', portalEnd + 1, nameEnd);
    this.#statementOf.set(portal, statement);
    this.#described.delete(`P${portal}`);
    if (statement === '') return true;
    this.statements.add(statement);
    const formats = nameEnd + 3;
    if (formats > end) return false;
    const formatsEnd = formats + 2 * bytes.readUInt16BE(nameEnd + 1);
    if (formatsEnd > end) return false;
    for (let at = formats; at < formatsEnd; at += 2) if (bytes[at + 1] !== 0) return false;
    return true;
  }
}

function stringAt(bytes: Buffer, start: number, end: number): string {
  return bytes.toString('latin1', start, endOfShortString(bytes, start, end));
}
