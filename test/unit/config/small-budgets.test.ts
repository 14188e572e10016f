import assert from 'node:assert/strict';
import { test } from 'node:test';
import { loadConfig } from '../../../src/config/load.ts';
import { smallBudgets } from '../../../src/config/small-budgets.ts';

function names(text: string, size: number): string[] {
  const { config } = loadConfig('f', { readFile: () => text });
  assert.ok(config);
  return smallBudgets(config, size).map((line) => line.slice(0, line.indexOf(',')));
}

test('each limit below the fleet size is named once, with its value', () => {
  const text =
    '[databases]\nsmall = pool_size=1\nbig = pool_size=20\ncapped = max_db_connections=3\n' +
    '[users]\nu = max_user_connections=2 pool_size=2\n[pgbouncer]\nmax_client_conn = 100\n';
  assert.deepEqual(names(text, 4), [
    'pool_size of database small is 1',
    'max_db_connections of database capped is 3',
    'max_user_connections of user u is 2',
    'pool_size of user u is 2',
  ]);
  assert.deepEqual(names(text, 1), []);
});

test('an unlimited limit is never small, and max_client_conn may be', () => {
  assert.deepEqual(names('[databases]\na = pool_size=0\n[pgbouncer]\nmax_client_conn = 2\n', 4), [
    'max_client_conn is 2',
  ]);
});
