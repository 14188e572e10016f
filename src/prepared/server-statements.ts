import type { PreparedStatement, StatementRegistry } from './statement.ts';

/**
 * The statements that stand on one server, least recently used first (a `Map` keeps the order of
 * insertion), at most `max_prepared_statements` of them.
 */
export class ServerStatements {
  readonly #registry: StatementRegistry;
  readonly #statements = new Map<PreparedStatement, true>();

  constructor(registry: StatementRegistry) {
    this.#registry = registry;
  }

  get size(): number {
    return this.#statements.size;
  }

  has(statement: PreparedStatement): boolean {
    return this.#statements.has(statement);
  }

  /** Marks a statement as the most recently used. */
  touch(statement: PreparedStatement): void {
    if (this.#statements.delete(statement)) this.#statements.set(statement, true);
  }

  /** Adds a statement that is being prepared. */
  add(statement: PreparedStatement): void {
    if (this.#statements.has(statement)) return;
    this.#registry.retain(statement);
    this.#statements.set(statement, true);
  }

  /** Takes off the least recently used statement while more than `limit` stand; else null. */
  evict(limit: number): PreparedStatement | null {
    if (this.#statements.size <= limit) return null;
    const oldest = this.#statements.keys().next().value!;
    this.delete(oldest);
    return oldest;
  }

  /** The server does not have it (any more). */
  delete(statement: PreparedStatement): void {
    if (this.#statements.delete(statement)) this.#registry.release(statement);
  }

  clear(): void {
    for (const statement of this.#statements.keys()) this.#registry.release(statement);
    this.#statements.clear();
  }
}
