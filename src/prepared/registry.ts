import { PreparedStatement } from './statement.ts';

/**
 * All prepared statements of this process, each text and list of parameter types once. A statement
 * lives while some client or server knows it; made again later it gets a new id, as in PgBouncer.
 */
export class StatementRegistry {
  readonly #byKey = new Map<string, PreparedStatement>();
  #lastId = 0;

  get size(): number {
    return this.#byKey.size;
  }

  /** The statement for `key`, if any client or server knows it. */
  find(key: string): PreparedStatement | undefined {
    return this.#byKey.get(key);
  }

  /**
   * The statement for `key` (see `PreparedStatement.key`), made if need be. The caller retains it.
   */
  intern(key: string): PreparedStatement {
    let statement = this.#byKey.get(key);
    if (statement === undefined) {
      statement = new PreparedStatement(++this.#lastId, key);
      this.#byKey.set(key, statement);
    }
    return statement;
  }

  retain(statement: PreparedStatement): void {
    // A statement given up may come back when the Close that gave it up was never run.
    if (statement.refs++ === 0 && !this.#byKey.has(statement.key)) {
      this.#byKey.set(statement.key, statement);
    }
  }

  release(statement: PreparedStatement): void {
    // Another may have taken the key while this one was given up.
    if (--statement.refs === 0 && this.#byKey.get(statement.key) === statement) {
      this.#byKey.delete(statement.key);
    }
  }
}
