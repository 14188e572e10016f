import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Config } from '../../../src/config/config.ts';
import { databaseFate, droppedLines, type Fate } from '../../../src/config/diff.ts';
import { ConfigIndex } from '../../../src/config/effective.ts';
import { loadConfig } from '../../../src/config/load.ts';

function config(databases: string, settings = '', peers = ''): Config {
  const text = `[pgbouncer]\n${settings}\n[databases]\n${databases}\n[peers]\n${peers}\n`;
  const { config: read, problems } = loadConfig('f', { readFile: () => text });
  assert.ok(read, JSON.stringify(problems));
  return read;
}

function fate(before: string, after: string, name = 'd'): Fate {
  return databaseFate(new ConfigIndex(config(before)), new ConfigIndex(config(after)), name);
}

const cases: [string, string, Fate][] = [
  ['host=h', 'host=h', 'kept'],
  ['host=h', 'host=i', 'recycled'],
  ['host=h,i', 'host=h,i', 'kept'],
  ['host=h,i', 'host=i,h', 'recycled'],
  ['host=h', 'host=h port=1', 'recycled'],
  ['host=h', 'host=h user=u', 'recycled'],
  ['host=h user=u', 'host=h', 'recycled'],
  // What it would be by default: nothing to replace a connection for.
  ['host=h', 'host=h dbname=d', 'replanned'],
  ['host=h', 'host=h dbname=e', 'recycled'],
  ["host=h connect_query='SELECT 1'", "host=h connect_query='SELECT 2'", 'recycled'],
  ['host=h', "host=h auth_query='SELECT $1, $1'", 'recycled'],
  ['host=h', 'host=h auth_dbname=e', 'recycled'],
  ['host=h,i', 'host=h,i load_balance_hosts=disable', 'recycled'],
  ['host=h user=u password=p', 'host=h user=u password=q', 'replanned'],
  ['host=h', 'host=h pool_size=1', 'replanned'],
  ['host=h', 'host=h pool_mode=session', 'replanned'],
  ['host=h', 'host=h application_name=a timezone=UTC', 'replanned'],
];

for (const [before, after, expected] of cases) {
  test(`a database is ${expected} when "${before}" becomes "${after}"`, () => {
    assert.equal(fate(`d = ${before}`, `d = ${after}`), expected);
  });
}

test('a database whose line is gone is removed, even when * would make it anew', () => {
  assert.equal(fate('d = host=h', 'e = host=h'), 'removed');
  assert.equal(fate('d = host=h\n* = host=h', '* = host=h'), 'removed');
});

test('what * has made follows it, and goes with it', () => {
  assert.equal(fate('* = host=h', '* = host=h'), 'kept');
  assert.equal(fate('* = host=h', '* = host=i'), 'recycled');
  assert.equal(fate('* = host=h', '* = host=h pool_size=1'), 'replanned');
  assert.equal(fate('* = host=h', 'e = host=h'), 'removed');
});

test('what * has made goes on with a line of its own', () => {
  assert.equal(fate('* = host=h', 'd = host=h\n* = host=h'), 'kept');
  assert.equal(fate('* = host=h', 'd = host=i\n* = host=h'), 'recycled');
});

test('changed server TLS settings recycle every database, client TLS settings none', () => {
  const with_ = (settings: string) => new ConfigIndex(config('d = host=h', settings));
  const plain = with_('server_tls_sslmode = disable');
  assert.equal(databaseFate(plain, with_('server_tls_sslmode = require'), 'd'), 'recycled');
  assert.equal(databaseFate(plain, with_('server_tls_sslmode = disable'), 'd'), 'kept');
});

test('lines that are gone are listed, changed and new ones are not', () => {
  const old = config('a = host=h\nb = host=h\n* = host=h', '', '1 = host=h\n2 = host=h');
  const next = config('b = host=i\nc = host=h', '', '2 = host=i\n3 = host=h');
  assert.deepEqual(droppedLines(old, next), { databases: ['a'], peers: [1] });
});
