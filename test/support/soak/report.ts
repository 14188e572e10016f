/** What random traffic has seen: counts of what went as it should, and everything that did not. */
import assert from 'node:assert/strict';
import { WireError } from '../wire-client.ts';

/** SQLSTATEs that a client may get when its server is terminated or cannot be reached. */
const OUTAGES = new Set(['57P01', '57P02', '57P03', '08P01', '08006', '58000']);
/** PgBouncer's texts of SQLSTATE 08P01 that an outage explains; all others are about the client. */
const OUTAGE_TEXTS =
  /server conn crashed|server closed|login failed|login has been failing|not connected/;
/** What drivers say when the connection ends under them. */
const CUTS =
  /^(?:CONNECTION_CLOSED|CONNECTION_ENDED|CONNECTION_DESTROYED|ECONNRESET|EPIPE)$|Connection terminated|connection was closed|has encountered a connection error|not queryable|Client was closed/;

/** Counts and problems of one run. */
export class SoakReport {
  /** How often each kind of step ended as it should. */
  readonly done = new Map<string, number>();
  /** How often an outage ended a visit, by what the client was told. */
  readonly outages = new Map<string, number>();
  /** How often each thing has happened that should not. */
  readonly problems = new Map<string, number>();
  /** Rows whose commit was confirmed. */
  readonly kept = new Set<number>();
  /** Rows whose transaction was rolled back, or refused before its commit. */
  readonly undone = new Set<number>();

  count(step: string): void {
    this.done.set(step, (this.done.get(step) ?? 0) + 1);
  }

  /** Sorts the end of a visit into an outage or a problem. */
  ended(step: string, error: unknown): void {
    const told = outageOf(error);
    if (told === null) this.problem(step, error);
    else this.outages.set(told, (this.outages.get(told) ?? 0) + 1);
  }

  problem(step: string, error: unknown): void {
    const text = `${step}: ${describeError(error)}`;
    this.problems.set(text, (this.problems.get(text) ?? 0) + 1);
  }

  /** Every step named has been done at least once. */
  hasAll(steps: readonly string[]): boolean {
    return steps.every((step) => this.done.has(step));
  }

  /** Every step named has been done at least once, and nothing went wrong. */
  check(steps: readonly string[]): void {
    assert.deepEqual(Object.fromEntries(this.problems), {});
    assert.deepEqual(
      steps.filter((step) => !this.done.has(step)),
      [],
      'steps that never went well',
    );
  }
}

/** How an outage shows to a client; null when `error` is no such thing. */
function outageOf(error: unknown): string | null {
  if (error instanceof assert.AssertionError || !(error instanceof Error)) return null;
  const code = error instanceof WireError ? error.sqlstate : (error as { code?: unknown }).code;
  if (typeof code === 'string' && OUTAGES.has(code)) {
    return code !== '08P01' || OUTAGE_TEXTS.test(error.message) ? `${code} ${error.message}` : null;
  }
  if (CUTS.test(String(code)) || CUTS.test(error.message)) return 'the connection ended';
  return null;
}

function describeError(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const code = (error as { code?: unknown }).code;
  return `${code === undefined ? '' : `${code} `}${error.message}`;
}
