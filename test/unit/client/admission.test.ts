import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Admission } from '../../../src/client/admission.ts';
import type { DatabaseEntry } from '../../../src/config/config.ts';
import { ConfigIndex } from '../../../src/config/effective.ts';
import { loadConfig } from '../../../src/config/load.ts';

function setUp(settings: string, database = 'host=h', user = '', worker = 0, size = 1) {
  const text = `[pgbouncer]\n${settings}\n[databases]\nd = ${database}\ne = host=h\n[users]\nu = ${user}\n`;
  const { config } = loadConfig('f', { readFile: () => text });
  const index = new ConfigIndex(config!);
  return { index, admission: new Admission(index, worker, size), d: index.database('d')! };
}

/** Lets a client in below its limits, as a login does; or tells which one it would exceed. */
function tryEnter(
  admission: Admission,
  entry: DatabaseEntry | null,
  database: string,
  user: string,
): string | null {
  const exceeded = admission.exceeded(entry, database, user);
  if (exceeded === null) admission.enter(database, user);
  return exceeded;
}

test('max_client_conn counts every connection, and is exceeded by the one above it', () => {
  const { admission } = setUp('max_client_conn = 2');
  admission.total = 2;
  assert.equal(admission.isOverTotal, false);
  admission.total = 3;
  assert.equal(admission.isOverTotal, true);
});

test('a max_client_conn of 0 lets nobody in', () => {
  const { admission } = setUp('max_client_conn = 0');
  admission.total = 1;
  assert.equal(admission.isOverTotal, true);
});

test('clients of a database are counted, and those above its limit refused', () => {
  const { admission, d } = setUp(
    'max_db_client_connections = 5',
    'host=h max_db_client_connections=2',
  );
  assert.equal(tryEnter(admission, d, 'd', 'a'), null);
  assert.equal(tryEnter(admission, d, 'd', 'b'), null);
  assert.equal(tryEnter(admission, d, 'd', 'c'), 'max_db_client_connections');
  assert.deepEqual([admission.ofDatabase('d'), admission.ofUser('c')], [2, 0]);
  admission.leave('d', 'a');
  assert.equal(tryEnter(admission, d, 'd', 'c'), null);
});

test('clients of a user are counted over all databases', () => {
  const { admission, d, index } = setUp('', 'host=h', 'max_user_client_connections=2');
  const e = index.database('e')!;
  assert.equal(tryEnter(admission, d, 'd', 'u'), null);
  assert.equal(tryEnter(admission, e, 'e', 'u'), null);
  assert.equal(tryEnter(admission, d, 'd', 'u'), 'max_user_client_connections');
  assert.equal(tryEnter(admission, d, 'd', 'v'), null);
  assert.deepEqual([admission.ofDatabase('d'), admission.ofUser('u')], [2, 2]);
});

test('a refused client is counted nowhere, so that nothing is to be undone', () => {
  const { admission, d } = setUp('max_db_client_connections = 1\nmax_user_client_connections = 1');
  tryEnter(admission, d, 'd', 'u');
  assert.equal(tryEnter(admission, d, 'd', 'v'), 'max_db_client_connections');
  assert.equal(tryEnter(admission, null, '', 'u'), 'max_user_client_connections');
  assert.deepEqual(
    ['u', 'v'].map((user) => admission.ofUser(user)),
    [1, 0],
  );
  assert.deepEqual([admission.ofDatabase('d'), admission.ofDatabase('')], [1, 0]);
});

test('a database that does not exist has no limit of its own', () => {
  const { admission } = setUp('max_db_client_connections = 1');
  assert.equal(tryEnter(admission, null, '', 'a'), null);
  assert.equal(tryEnter(admission, null, '', 'b'), null);
});

test('leaving as often as entering brings every count back to nothing', () => {
  const { admission, d } = setUp('');
  for (let i = 0; i < 3; i++) tryEnter(admission, d, 'd', 'u');
  for (let i = 0; i < 3; i++) admission.leave('d', 'u');
  admission.leave('d', 'u');
  assert.deepEqual([admission.ofDatabase('d'), admission.ofUser('u')], [0, 0]);
  tryEnter(admission, d, 'd', 'u');
  assert.equal(admission.ofUser('u'), 1);
});

test('the workers together let in as many as was written, and not one more', () => {
  const size = 3;
  let entered = 0;
  let overTotal = 0;
  for (let worker = 0; worker < size; worker++) {
    const { admission, d } = setUp(
      'max_client_conn = 8\nmax_db_client_connections = 7\nmax_user_client_connections = 5',
      'host=h',
      '',
      worker,
      size,
    );
    for (let i = 0; i < 9; i++) {
      if (tryEnter(admission, d, 'd', 'u') === null) entered++;
      admission.total = i + 1;
      if (!admission.isOverTotal) overTotal++;
    }
  }
  assert.equal(entered, 5);
  assert.equal(overTotal, 8);
});

test('of two configurations the lower limits hold until a reload is released', () => {
  const before = 'max_client_conn = 2\nmax_user_client_connections = 1';
  const after = 'max_client_conn = 4\nmax_user_client_connections = 3';
  const { admission, d } = setUp(before, 'host=h max_db_client_connections=3');
  const next = setUp(after, 'host=h max_db_client_connections=2');
  admission.enter('d', 'u');
  admission.total = 3;
  admission.reconfigure(next.index);
  const told = () => [
    admission.isOverTotal,
    admission.exceeded(d, 'd', 'u'),
    admission.exceeded(d, 'd', 'other'),
  ];
  assert.deepEqual(told(), [true, 'max_user_client_connections', null]);
  admission.release();
  assert.deepEqual(told(), [false, null, null]);
  admission.enter('d', 'other');
  assert.equal(admission.exceeded(next.d, 'd', 'u'), 'max_db_client_connections');
});

test('a worker that starts during a reload keeps to both configurations from the beginning', () => {
  const { index: old } = setUp('max_client_conn = 1');
  const { index: next } = setUp('max_client_conn = 5');
  const admission = new Admission(next, 0, 1, old);
  admission.total = 2;
  assert.equal(admission.isOverTotal, true);
  admission.release();
  assert.equal(admission.isOverTotal, false);
});
