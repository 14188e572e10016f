import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { FleetCounters } from '../../../src/ipc/stats.ts';
import { StatsLine } from '../../../src/launcher/stats-line.ts';
import { log } from '../../../src/log/logger.ts';
import { Traffic } from '../../../src/metrics/traffic.ts';

function counters(some: Partial<FleetCounters>): FleetCounters {
  return { ...new Traffic(), ...some };
}

/** A line over two workers, at a time that the test sets. */
function setUp(t: TestContext) {
  t.mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  const lines: string[] = [];
  t.mock.method(log, 'info', (text: string) => lines.push(text));
  const state = { now: 0, period: 10, isLogged: true, seq: 0 };
  const averages: string[] = [];
  const line = new StatsLine(
    {
      period: () => state.period,
      isLogged: () => state.isLogged,
      broadcast: (message) => {
        if (message.kind === 'stats_ask') state.seq = message.seq;
        return [0, 1];
      },
      onAverages: (text) => averages.push(text),
    },
    () => state.now,
  );
  const answer = (worker: number, some: Partial<FleetCounters>, incarnation = 1) =>
    line.onAnswer(worker, {
      kind: 'stats',
      seq: state.seq,
      incarnation,
      counters: counters(some),
    });
  const at = (now: number) => {
    state.now = now;
    line.look();
  };
  return { state, line, lines, averages, answer, at };
}

test('the line has the sums of all workers, times for each and the rest a second', (t) => {
  const { lines, answer, at } = setUp(t);
  at(9_999);
  assert.equal(lines.length, 0);
  at(10_000);
  answer(0, { transactions: 15, transactionUs: 300, bytesReceived: 99, waitUs: 7 });
  assert.equal(lines.length, 0, 'the other one has not answered');
  answer(1, { transactions: 5, transactionUs: 100, queries: 40, queryUs: 81, clientLogins: 20 });
  assert.deepEqual(lines, [
    'stats: 2 xacts/s, 4 queries/s, 0 client parses/s, 0 server parses/s, 0 binds/s, ' +
      '2 client logins/s, in 9 B/s, out 0 B/s, xact 20 us, query 2 us, wait 0 us',
  ]);
});

test('the next line has what came since, and a worker that was replaced begins with nothing', (t) => {
  const { lines, answer, at } = setUp(t);
  at(10_000);
  answer(0, { transactions: 100 });
  answer(1, { transactions: 100 });
  at(20_000);
  answer(0, { transactions: 110 });
  answer(1, { transactions: 40 }, 2);
  assert.match(lines[1]!, /^stats: 5 xacts\/s/);
});

test('counters that fall, as when a database is dropped, count as no growth', (t) => {
  const { lines, answer, at } = setUp(t);
  at(10_000);
  answer(0, { transactions: 100 });
  answer(1, { transactions: 100 });
  at(20_000);
  answer(0, { transactions: 3 });
  answer(1, { transactions: 120 });
  assert.match(lines[1]!, /^stats: 2 xacts\/s/);
});

test('a worker that does not answer is left out, and its late answer is not heard', (t) => {
  const { lines, answer, at } = setUp(t);
  at(10_000);
  answer(0, { transactions: 50 });
  t.mock.timers.tick(1000);
  assert.match(lines[0]!, /^stats: 5 xacts\/s/);
  answer(1, { transactions: 50 });
  assert.equal(lines.length, 1);
});

test('log_stats turns the line off but not the averages, stats_period 0 both', (t) => {
  const { state, lines, averages, answer, at } = setUp(t);
  state.isLogged = false;
  at(10_000);
  answer(0, {});
  answer(1, {});
  assert.deepEqual([lines.length, averages.length], [0, 1]);
  state.period = 0;
  at(90_000);
  assert.equal(state.seq, 1);
});
