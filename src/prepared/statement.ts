/**
 * One named statement as the pooler knows it: the same text and parameter types are one statement
 * for all clients, whatever names they give it, and carry one name on every server.
 */
export class PreparedStatement {
  /** PgBouncer's name of it on servers: `PGBOUNCER_<id>`. */
  readonly serverName: string;
  /** What follows the name in Parse: query text and NUL, count and OIDs of parameter types. */
  readonly parseTail: Buffer;
  /** The tail as a string of bytes, the registry's key. */
  readonly key: string;
  /** Clients that have named it and servers on which it stands. */
  references = 0;

  constructor(id: number, parseTail: Buffer, key: string) {
    this.serverName = `PGBOUNCER_${id}`;
    this.parseTail = parseTail;
    this.key = key;
  }
}

/** All named statements of a process, each kept while a client or a server refers to it. */
export class StatementRegistry {
  readonly #byKey = new Map<string, PreparedStatement>();
  #lastId = 0;

  get size(): number {
    return this.#byKey.size;
  }

  /** The statement whose Parse has this tail (bytes after the name); one reference more. */
  acquire(bytes: Buffer, start: number, end: number): PreparedStatement {
    const key = bytes.toString('latin1', start, end);
    let statement = this.#byKey.get(key);
    if (statement === undefined) {
      const tail = Buffer.from(bytes.subarray(start, end));
      statement = new PreparedStatement(++this.#lastId, tail, key);
      this.#byKey.set(key, statement);
    }
    statement.references++;
    return statement;
  }

  /** The statement whose Parse has this tail, if any client or server has it. */
  find(bytes: Buffer, start: number, end: number): PreparedStatement | undefined {
    return this.#byKey.get(bytes.toString('latin1', start, end));
  }

  retain(statement: PreparedStatement): void {
    statement.references++;
  }

  /** One reference less; with the last one it is forgotten. */
  release(statement: PreparedStatement): void {
    if (--statement.references > 0) return;
    if (this.#byKey.get(statement.key) === statement) this.#byKey.delete(statement.key);
  }
}
