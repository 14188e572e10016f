import type { StatementRegistry } from './registry.ts';
import type { PreparedStatement } from './statement.ts';

/**
 * The statement names of one client, in latin1 (one character a byte). Their number is not limited,
 * as in PgBouncer. `clear` when the client leaves, or the statements live for ever.
 */
export class ClientStatements {
  readonly #registry: StatementRegistry;
  readonly #byName = new Map<string, PreparedStatement>();

  constructor(registry: StatementRegistry) {
    this.#registry = registry;
  }

  get size(): number {
    return this.#byName.size;
  }

  get(name: string): PreparedStatement | undefined {
    return this.#byName.get(name);
  }

  has(name: string): boolean {
    return this.#byName.has(name);
  }

  /** `name` must be free. */
  set(name: string, statement: PreparedStatement): void {
    this.#registry.retain(statement);
    this.#byName.set(name, statement);
  }

  /** The statement that had the name, or null. */
  delete(name: string): PreparedStatement | null {
    const statement = this.#byName.get(name);
    if (statement === undefined) return null;
    this.#byName.delete(name);
    this.#registry.release(statement);
    return statement;
  }

  /** All are gone but those in `kept`, whose Parse was sent behind the DEALLOCATE ALL or DISCARD ALL. */
  onDeallocateAll(kept: ReadonlySet<string>): void {
    for (const name of this.#byName.keys()) if (!kept.has(name)) this.delete(name);
  }

  clear(): void {
    for (const statement of this.#byName.values()) this.#registry.release(statement);
    this.#byName.clear();
  }
}
