import { List, type Listed } from '../util/list.ts';
import type { StatementRegistry } from './registry.ts';
import type { PreparedStatement } from './statement.ts';

/** How far a server is with its Syncs, both counted from its first; see `ServerStatements`. */
export interface SyncProgress {
  /** Syncs sent, which is also the number of the segment that what is sent next belongs to. */
  readonly syncsSent: number;
  /** Syncs whose ReadyForQuery has come. */
  readonly syncsAnswered: number;
}

export const Presence = { absent: 0, present: 1, unsure: 2 } as const;
export type Presence = (typeof Presence)[keyof typeof Presence];

/**
 * The statements on one server connection, least recently used first. A statement counts as present
 * from when its Parse is *sent*, so whether it is there hangs on that Parse until the Sync behind it
 * is answered:
 *
 *   in the same segment (up to that Sync)   present: if its Parse fails, this request is skipped too
 *   in a later segment                      unsure: the Parse may yet fail, while this one would run
 *   after the answer                        present, or forgotten because it failed
 *
 * The same goes for its absence after the Close of an eviction.
 * A statement of an older revision is unsure too, and so is each that was there before a DEALLOCATE
 * ALL in flight.
 * An unsure statement is closed and parsed anew, which is right either way: closing a statement that
 * does not exist is no error. `clear` when the connection ends.
 */
export class ServerStatements {
  readonly #registry: StatementRegistry;
  readonly #progress: SyncProgress;
  readonly #entries = new Map<PreparedStatement, Entry>();
  readonly #byUse = new List<Entry>();
  /** Statements that were evicted, with the segment of their Close; some that were long answered. */
  readonly #closed = new Map<PreparedStatement, number>();

  constructor(registry: StatementRegistry, progress: SyncProgress) {
    this.#registry = registry;
    this.#progress = progress;
  }

  get size(): number {
    return this.#entries.size;
  }

  /** From the least to the most recently used. */
  *[Symbol.iterator](): Generator<PreparedStatement> {
    for (const entry of this.#byUse) yield entry.statement;
  }

  /** The statement that goes by `serverName` here, if it is thought to be there. */
  named(serverName: string): PreparedStatement | undefined {
    for (const statement of this.#entries.keys()) {
      if (statement.serverName === serverName) return statement;
    }
    return undefined;
  }

  /** Whether it is there for what is sent now; its place in the order stays. */
  presence(statement: PreparedStatement): Presence {
    const entry = this.#entries.get(statement);
    return entry === undefined ? this.#absence(statement) : this.#presenceOf(entry);
  }

  /** Like `presence`, and makes it the most recently used. */
  use(statement: PreparedStatement): Presence {
    const entry = this.#entries.get(statement);
    if (entry === undefined) return this.#absence(statement);
    if (this.#byUse.last !== entry) {
      this.#byUse.remove(entry);
      this.#byUse.append(entry);
    }
    return this.#presenceOf(entry);
  }

  /** True when the server itself has said so: whoever uses it depends on no Parse in flight. */
  isConfirmed(statement: PreparedStatement): boolean {
    const entry = this.#entries.get(statement);
    return entry !== undefined && !entry.isUnsure && entry.segment < this.#progress.syncsAnswered;
  }

  /** A Parse of it is being sent: it becomes, or is again, the most recently used. */
  add(statement: PreparedStatement): void {
    let entry = this.#entries.get(statement);
    if (entry === undefined) {
      this.#registry.retain(statement);
      entry = new Entry(statement);
      this.#entries.set(statement, entry);
    }
    entry.segment = this.#progress.syncsSent;
    entry.revision = statement.revision;
    entry.isUnsure = false;
    this.#byUse.append(entry);
  }

  /**
   * Takes out the least recently used one when there are more than `limit`, else gives null. The
   * caller sends its Close now.
   */
  evictOver(limit: number): PreparedStatement | null {
    if (this.#entries.size <= limit) return null;
    const { statement } = this.#byUse.first!;
    this.#remove(statement);
    for (const [closed, segment] of this.#closed) {
      if (segment >= this.#progress.syncsAnswered) break;
      this.#closed.delete(closed);
    }
    this.#closed.delete(statement);
    this.#closed.set(statement, this.#progress.syncsSent);
    return statement;
  }

  /** The Parse sent in `segment` was rejected or skipped. */
  onParseFailed(statement: PreparedStatement, segment: number): void {
    // Otherwise a later segment closes it and parses it again, or it was evicted since.
    if (this.#entries.get(statement)?.segment === segment) this.#remove(statement);
  }

  /**
   * A Close of it was skipped, so it may still be there: put back as the least recently used, unless
   * a later segment has parsed it again.
   */
  onCloseFailed(statement: PreparedStatement): void {
    if (this.#entries.has(statement)) return;
    this.#registry.retain(statement);
    const entry = new Entry(statement);
    entry.isUnsure = true;
    this.#entries.set(statement, entry);
    this.#byUse.prepend(entry);
  }

  /** DEALLOCATE ALL or DISCARD ALL is being sent: whether it runs is known when it is answered. */
  onDeallocateAllSent(): void {
    for (const entry of this.#byUse) entry.isUnsure = true;
  }

  /**
   * The server has executed DEALLOCATE ALL or DISCARD ALL. What was sent behind it in the same
   * pipeline is still to come, so that one is unsure now; everything else is gone.
   */
  onDeallocateAll(): void {
    for (const [statement, entry] of this.#entries) {
      if (entry.segment < this.#progress.syncsAnswered) this.#remove(statement);
      else entry.isUnsure = true;
    }
  }

  clear(): void {
    for (const statement of this.#entries.keys()) this.#remove(statement);
    this.#closed.clear();
  }

  #remove(statement: PreparedStatement): void {
    this.#byUse.remove(this.#entries.get(statement)!);
    this.#entries.delete(statement);
    this.#registry.release(statement);
  }

  #absence(statement: PreparedStatement): Presence {
    const segment = this.#closed.get(statement);
    return segment === undefined || this.#isCertain(segment) ? Presence.absent : Presence.unsure;
  }

  #presenceOf(entry: Entry): Presence {
    const isDoubtful = entry.isUnsure || entry.revision !== entry.statement.revision;
    return isDoubtful || !this.#isCertain(entry.segment) ? Presence.unsure : Presence.present;
  }

  /** Whether what is sent now runs only if what was sent in `segment` ran. */
  #isCertain(segment: number): boolean {
    return segment < this.#progress.syncsAnswered || segment === this.#progress.syncsSent;
  }
}

class Entry implements Listed<Entry> {
  readonly statement: PreparedStatement;
  /** Segment that its Parse was sent in. */
  segment = -1;
  /** Of the statement, when that Parse was sent. */
  revision = -1;
  isUnsure = false;
  listPrev: Entry | null = null;
  listNext: Entry | null = null;
  list: List<Entry> | null = null;

  constructor(statement: PreparedStatement) {
    this.statement = statement;
  }
}
