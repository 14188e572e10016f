import type { PreparedStatement, StatementRegistry } from './statement.ts';

/** The names that one client has given to statements. Their number is the client's own affair. */
export class ClientStatements {
  readonly #registry: StatementRegistry;
  #byName: Map<string, PreparedStatement> | null = null;

  constructor(registry: StatementRegistry) {
    this.#registry = registry;
  }

  get size(): number {
    return this.#byName?.size ?? 0;
  }

  get(name: string): PreparedStatement | undefined {
    return this.#byName?.get(name);
  }

  /** Names a statement that was acquired for this client. */
  set(name: string, statement: PreparedStatement): void {
    this.#byName ??= new Map();
    this.#byName.set(name, statement);
  }

  delete(name: string): void {
    const statement = this.#byName?.get(name);
    if (statement === undefined) return;
    this.#byName!.delete(name);
    this.#registry.release(statement);
  }

  clear(): void {
    if (this.#byName === null) return;
    for (const statement of this.#byName.values()) this.#registry.release(statement);
    this.#byName = null;
  }
}
