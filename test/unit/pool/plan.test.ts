import assert from 'node:assert/strict';
import { test } from 'node:test';
import { planPool } from '../../../src/pool/plan.ts';
import { world } from './support.ts';

test('a plan has PgBouncer’s defaults, in milliseconds', (t) => {
  const { index } = world(t, 'pool_mode = session\nserver_check_query = <empty>');
  assert.deepEqual(planPool(index, index.database('d')!, 'u', 0, 1), {
    mode: 'session',
    size: 20,
    reserveSize: 0,
    minSize: 0,
    serverLifetimeMs: 3_600_000,
    serverIdleMs: 600_000,
    poolIdleMs: 0,
    closesFast: false,
    checkDelayMs: 30_000,
    connectTimeoutMs: 15_000,
    loginRetryMs: 15_000,
    reserveTimeoutMs: 5000,
    queryTimeoutMs: 0,
    idleTransactionMs: 0,
    transactionMs: 0,
    waitNotifyMs: 5000,
    resetQuery: 'DISCARD ALL',
    checkQuery: '',
    isRoundRobin: false,
    maxPreparedStatements: 0,
    sessionLeak: 'allow',
  });
});

test('a user’s settings win over the database’s, and those over the global ones', (t) => {
  const { index } = world(
    t,
    'default_pool_size = 9\nquery_timeout = 9\nserver_lifetime = 9',
    'd = host=h pool_size=5 pool_mode=statement server_lifetime=50\ne = host=h',
    'u = pool_size=3 query_timeout=2 pool_mode=session',
  );
  const plan = (database: string, user: string) => {
    const { size, mode, queryTimeoutMs, serverLifetimeMs } = planPool(
      index,
      index.database(database)!,
      user,
      0,
      1,
    );
    return { size, mode, queryTimeoutMs, serverLifetimeMs };
  };
  assert.deepEqual(plan('d', 'u'), {
    size: 3,
    mode: 'session',
    queryTimeoutMs: 2000,
    serverLifetimeMs: 50_000,
  });
  assert.deepEqual(plan('d', 'v'), {
    size: 5,
    mode: 'statement',
    queryTimeoutMs: 9000,
    serverLifetimeMs: 50_000,
  });
  assert.deepEqual(plan('e', 'v'), {
    size: 9,
    mode: 'transaction',
    queryTimeoutMs: 9000,
    serverLifetimeMs: 9000,
  });
});

test('a pool size of 0 is unlimited', (t) => {
  const { index } = world(t, 'default_pool_size = 0');
  assert.equal(planPool(index, index.database('d')!, 'u', 1, 4).size, Number.POSITIVE_INFINITY);
});

test('the workers’ sizes, reserves and minimums add up to what was written', (t) => {
  const { index } = world(t, 'default_pool_size = 7\nreserve_pool_size = 3\nmin_pool_size = 5');
  const plans = [0, 1, 2, 3].map((worker) => planPool(index, index.database('d')!, 'u', worker, 4));
  const sum = (key: 'size' | 'reserveSize' | 'minSize') =>
    plans.reduce((total, plan) => total + plan[key], 0);
  assert.deepEqual([sum('size'), sum('reserveSize'), sum('minSize')], [7, 3, 5]);
  assert.ok(plans.every((plan) => plan.minSize <= plan.size));
});

test('a reset query is sent in session mode, or when server_reset_query_always asks for it', (t) => {
  for (const [settings, expected] of [
    ['', null],
    ['server_reset_query_always = 1', 'DISCARD ALL'],
    ['server_reset_query_always = 1\nserver_reset_query =', null],
    ['pool_mode = session', 'DISCARD ALL'],
    ['pool_mode = session\nserver_reset_query =', null],
  ] as const) {
    const { index } = world(t, settings);
    assert.equal(planPool(index, index.database('d')!, 'u', 0, 1).resetQuery, expected, settings);
    t.mock.restoreAll();
  }
});

test('statements are translated except in session mode', (t) => {
  for (const [mode, expected] of [
    ['session', 0],
    ['transaction', 200],
    ['statement', 200],
  ] as const) {
    const { index } = world(t, `pool_mode = ${mode}`);
    assert.equal(planPool(index, index.database('d')!, 'u', 0, 1).maxPreparedStatements, expected);
    t.mock.restoreAll();
  }
});
