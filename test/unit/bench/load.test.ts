import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseReport } from '../../../bench/load/pgbench.ts';
import { markdownTable, median } from '../../../bench/load/report.ts';
import type { Round } from '../../../bench/load/round.ts';

const REPORT = `pgbench (15.18, server 18.4)
transaction type: <builtin: select only>
number of transactions actually processed: 81234
number of failed transactions: 0 (0.000%)
latency average = 0.787 ms
initial connection time = 21.300 ms
tps = 10158.250183 (without initial connection time)
`;

test("pgbench's report gives transactions, failures, rate and latency", () => {
  assert.deepEqual(parseReport(REPORT), {
    transactions: 81_234,
    failed: 0,
    tps: 10_158.250183,
    latencyMs: 0.787,
  });
});

test('a report without a rate is an error, not a zero', () => {
  assert.throws(() => parseReport('tps = inf'), /no .* in pgbench's report/);
});

test('the median of an even count is the mean of the two in the middle', () => {
  assert.equal(median([9, 1, 5]), 5);
  assert.equal(median([10, 1, 4, 2]), 3);
  assert.throws(() => median([]));
});

test('the table shows medians, extremes and ratios, and a dash where PgBouncer took no part', () => {
  const round = (tps: number, cpuUs: number): Round => ({
    transactions: 1,
    failed: 0,
    tps,
    latencyMs: 1,
    cpuUs,
    userUs: cpuUs,
    systemUs: 0,
  });
  const ours = [round(100, 20), round(300, 30), round(200, 40)];
  const lines = markdownTable([
    { protocol: 'simple', clients: 8, pgfleet: ours, pgbouncer: [round(400, 15)] },
    { protocol: 'prepared', clients: 8, pgfleet: ours, pgbouncer: [] },
  ]).split('\n');
  assert.equal(
    lines[2],
    '| simple | 8 | 200 (100–300) | 400 (400–400) | 0.50× | 30.0 (20.0–40.0) | 15.0 (15.0–15.0) | 2.00× |',
  );
  assert.equal(lines[3], '| prepared | 8 | 200 (100–300) | – | – | 30.0 (20.0–40.0) | – | – |');
});
