import type { Protocol } from './pgbench.ts';
import type { Round } from './round.ts';

/** All rounds of both poolers under one load. */
export interface Case {
  readonly protocol: Protocol;
  readonly clients: number;
  readonly pgfleet: readonly Round[];
  /** Empty where this PgBouncer cannot take the load. */
  readonly pgbouncer: readonly Round[];
}

const HEAD = [
  'protocol',
  'clients',
  'pgfleet tps',
  'PgBouncer tps',
  'ratio',
  'pgfleet CPU µs/tx',
  'PgBouncer CPU µs/tx',
  'ratio',
];

/** A Markdown table: medians with the least and greatest round, and pgfleet over PgBouncer. */
export function markdownTable(cases: readonly Case[]): string {
  const lines = cases.map(({ protocol, clients, pgfleet, pgbouncer }) => [
    protocol,
    String(clients),
    ...comparison(pgfleet, pgbouncer, ({ tps }) => tps, 0),
    ...comparison(pgfleet, pgbouncer, ({ cpuUs }) => cpuUs, 1),
  ]);
  return table(HEAD, lines);
}

/** Markdown; all columns but the first are numbers. */
export function table(head: readonly string[], lines: readonly (readonly string[])[]): string {
  const rule = head.map((_, column) => (column === 0 ? '---' : '---:'));
  return [head, rule, ...lines].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

/** The middle value, or the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  if (values.length === 0) throw new Error('no values');
  const sorted = values.toSorted((left, right) => left - right);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** The least of `values` that so many per cent of them do not exceed. */
export function percentile(values: readonly number[], percent: number): number {
  if (values.length === 0) throw new Error('no values');
  const sorted = values.toSorted((left, right) => left - right);
  return sorted[Math.max(Math.ceil((sorted.length * percent) / 100) - 1, 0)]!;
}

function comparison(
  ours: readonly Round[],
  theirs: readonly Round[],
  value: (round: Round) => number,
  digits: number,
): string[] {
  const our = ours.map(value);
  const their = theirs.map(value);
  if (their.length === 0) return [spread(our, digits), '–', '–'];
  const ratio = (median(our) / median(their)).toFixed(2);
  return [spread(our, digits), spread(their, digits), `${ratio}×`];
}

/** The median, and the extremes. */
export function spread(values: readonly number[], digits: number): string {
  const text = (value: number): string => value.toFixed(digits);
  return `${text(median(values))} (${text(Math.min(...values))}–${text(Math.max(...values))})`;
}
