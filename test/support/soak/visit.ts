import type { Random } from '../random.ts';
import { within } from '../until.ts';
import type { SoakReport } from './report.ts';

/** Any answer takes far less; a client that waits longer is stuck. */
const STUCK_MS = 30_000;

/** One client's stay: where it connects, as whom, and where it writes down what it has seen. */
export interface Visit {
  readonly host: string;
  readonly port: number;
  readonly database: string;
  /** Used by no other visit: its application_name, and part of what it asks for. */
  readonly token: string;
  readonly random: Random;
  readonly report: SoakReport;
  /** A number that no other row has. */
  readonly newRow: () => number;
}

/** Waits for an answer; one that does not come is a client that is stuck. */
export function answered<T>(what: string, answer: Promise<T>): Promise<T> {
  return within(`answer to ${what}: the client is stuck,`, answer, STUCK_MS);
}

/**
 * Inserts a row in a transaction by `run`, which gives one statement to the server, and writes down
 * whether it must be there afterwards. A row whose COMMIT had no answer may be there or not.
 */
export async function keepRow(visit: Visit, run: (sql: string) => Promise<unknown>): Promise<void> {
  const row = visit.newRow();
  const isKept = visit.random.below(3) > 0;
  let isCommitting = false;
  try {
    await answered('BEGIN', run('BEGIN'));
    await answered('INSERT', run(`INSERT INTO ledger VALUES (${row})`));
    isCommitting = isKept;
    await answered('the end', run(isKept ? 'COMMIT' : 'ROLLBACK'));
    visit.report[isKept ? 'kept' : 'undone'].add(row);
  } catch (error) {
    if (!isCommitting) visit.report.undone.add(row);
    throw error;
  }
}
