import { Budget } from '../budget/budget.ts';
import type { DatabaseEntry } from '../config/config.ts';
import type { Limit } from '../config/effective.ts';
import { SessionLeaks } from '../metrics/session-leaks.ts';
import { StalePlans } from '../metrics/stale-plans.ts';
import { Traffic } from '../metrics/traffic.ts';
import { clock } from '../util/clock.ts';

/** A database as clients name it, with what all of its pools share. */
export class Database {
  readonly name: string;
  /** Its line of the configuration in force. */
  entry: DatabaseEntry;
  /** Counted since its pools were made; KILL begins anew. */
  traffic = new Traffic();
  readonly sessionLeaks = new SessionLeaks();
  readonly stalePlans = new StalePlans();
  /** The worker's share of `max_db_connections`. */
  readonly budget: Budget;
  /** Clients that passed the limits of the login, until they leave. */
  clients = 0;
  isPaused = false;
  isDisabled = false;
  /** The configuration has it no more, or it was made from `*` and not used for long. */
  isGone = false;
  /** Last moment, in milliseconds of the coarse clock, at which somebody used it. */
  lastUsed = clock.now;

  /** @param budget the limit, or what a database of that name that is gone still holds */
  constructor(name: string, entry: DatabaseEntry, budget: Limit | Budget) {
    this.name = name;
    this.entry = entry;
    this.budget = budget instanceof Budget ? budget : new Budget(budget);
  }
}
