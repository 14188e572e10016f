import { Budget } from '../budget/budget.ts';
import type { DatabaseEntry } from '../config/config.ts';
import type { Limit } from '../config/effective.ts';
import { Traffic } from '../metrics/traffic.ts';

/** A database as clients name it, with what all of its pools share. */
export class Database {
  readonly name: string;
  readonly entry: DatabaseEntry;
  readonly traffic = new Traffic();
  /** The worker's share of `max_db_connections`. */
  readonly budget: Budget;
  /** Clients that passed the limits of the login, until they leave. */
  clients = 0;
  isPaused = false;
  isDisabled = false;

  constructor(name: string, entry: DatabaseEntry, limit: Limit) {
    this.name = name;
    this.entry = entry;
    this.budget = new Budget(limit);
  }
}
