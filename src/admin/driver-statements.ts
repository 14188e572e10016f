import { type Column, noticeResponse } from '../wire/encode.ts';
import type { Plan } from './plan.ts';
import { int4, type Row, text } from './result.ts';

/**
 * What drivers and their pools say of themselves when they connect, look whether a connection lives,
 * or give it back: answered so that they can read the console. None of it has an effect. Most are
 * no commands of PgBouncer's, whose console such drivers cannot use.
 */

/** Settings that PgBouncer's console knows for the sake of drivers. */
const SETTINGS: Readonly<Record<string, string>> = {
  client_encoding: 'UTF-8',
  default_transaction_isolation: 'read committed',
  standard_conforming_strings: 'on',
  datestyle: 'ISO',
  timezone: 'GMT',
  extra_float_digits: '2',
};

/** Those that drivers set without asking for them: Npgsql and JDBC name themselves. */
const SET_ONLY: readonly string[] = ['application_name'];

/** Statements in lower case with single blanks, and the tag of each. */
const STATEMENTS: readonly (readonly [RegExp, string])[] = [
  // psycopg 3 and JDBC without autocommit begin a transaction before each statement.
  [/^(?:begin|start transaction)(?: [a-z, ]+)?$/, 'BEGIN'],
  [/^(?:commit|end)(?: work| transaction)?$/, 'COMMIT'],
  [/^rollback(?: work| transaction)?$/, 'ROLLBACK'],
  // Npgsql, and pools that clean up behind their users.
  [/^discard all$/, 'DISCARD ALL'],
  [/^reset all$/, 'RESET'],
  // JDBC's setReadOnly and setTransactionIsolation.
  [/^set session characteristics as transaction [a-z ]+$/, 'SET'],
];

/** The longest of these statements is far shorter. */
const MAX_BYTES = 200;

/** SHOW of a driver's setting; null: it is none. */
export function planDriverShow(name: string): Plan | null {
  const key = name.toLowerCase();
  if (!Object.hasOwn(SETTINGS, key)) return null;
  return rowPlan(text(key), SETTINGS[key]!, 'SHOW');
}

/** SET of a driver's setting; null: it is none. */
export function planDriverSet(name: string): Plan | null {
  const key = name.toLowerCase();
  if (!Object.hasOwn(SETTINGS, key) && !SET_ONLY.includes(key)) return null;
  const notices = [noticeResponse('SET ignored')];
  return { columns: null, run: () => ({ notices, rows: [], tag: 'SET' }) };
}

/** Any other statement of a driver's; null: it is none. */
export function planDriverStatement(statement: string): Plan | null {
  if (statement.length > MAX_BYTES) return null;
  const sql = statement.trim().replace(/\s*;$/, '').replace(/\s+/g, ' ').toLowerCase();
  if (sql === 'select 1') return rowPlan(int4('?column?'), 1, 'SELECT 1');
  if (sql === 'show transaction isolation level') {
    return rowPlan(text('transaction_isolation'), 'read committed', 'SHOW');
  }
  const tag = STATEMENTS.find(([pattern]) => pattern.test(sql))?.[1];
  return tag === undefined ? null : { columns: null, run: () => ({ notices: [], rows: [], tag }) };
}

/** A Query with nothing in it: what lib/pq, pgx and JDBC see with whether a connection lives. */
export const EMPTY_PLAN: Plan = {
  columns: null,
  run: () => ({ notices: [], rows: [], tag: null }),
};

function rowPlan(column: Column, value: Row[number], tag: string): Plan {
  return { columns: [column], run: () => ({ notices: [], rows: [[value]], tag }) };
}
