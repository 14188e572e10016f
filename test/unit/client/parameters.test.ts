import assert from 'node:assert/strict';
import { test } from 'node:test';
import { settingStatements, TrackedNames } from '../../../src/server/parameters.ts';

const names = new TrackedNames(['IntervalStyle', 'search_path']);

/** Values by name, others not known. */
function values(given: Record<string, string>) {
  const all = names.none();
  for (const [name, value] of Object.entries(given)) all[names.indexOf(name)] = value;
  return all;
}

test('the fixed five are tracked in the order of the welcome, then the extra ones, none twice', () => {
  const tracked = new TrackedNames(['search_path', 'timezone', 'IntervalStyle']);
  assert.deepEqual(tracked.names, [
    'DateStyle',
    'client_encoding',
    'TimeZone',
    'standard_conforming_strings',
    'application_name',
    'search_path',
    'IntervalStyle',
  ]);
  assert.equal(tracked.names[tracked.applicationName], 'application_name');
  assert.equal(tracked.indexOf('TIMEZONE'), 2);
  assert.equal(tracked.indexOf('work_mem'), -1);
});

test('only values that are known on both sides and differ by more than case are set', () => {
  const client = values({ TimeZone: 'CET', DateStyle: 'iso', application_name: 'psql' });
  const server = values({ TimeZone: 'UTC', DateStyle: 'ISO', client_encoding: 'UTF8' });
  assert.equal(settingStatements(names, client, server), "SET TimeZone='CET';");
  assert.equal(settingStatements(names, client, client), '');
  assert.equal(settingStatements(names, names.none(), server), '');
});

test('all that differ are set in one text, in the order of the names', () => {
  const client = values({ application_name: 'a', DateStyle: 'German' });
  const server = values({ application_name: 'b', DateStyle: 'ISO' });
  assert.equal(
    settingStatements(names, client, server),
    "SET DateStyle='German';SET application_name='a';",
  );
});

test('no value can end its quotes: they are doubled, and backslashes too', () => {
  for (const [value, quoted] of [
    ["it's", "'it''s'"],
    ["'; DROP TABLE t; --", "'''; DROP TABLE t; --'"],
    ['back\\slash', "E'back\\\\slash'"],
    ["\\'", "E'\\\\'''"],
    ['', "''"],
  ]) {
    const sql = settingStatements(
      names,
      values({ application_name: value! }),
      values({ application_name: 'x' }),
    );
    assert.equal(sql, `SET application_name=${quoted};`);
  }
});

test('search_path is a quoted list already, and an empty one is given as an empty string', () => {
  const set = (path: string) =>
    settingStatements(names, values({ search_path: path }), values({ search_path: 'x' }));
  assert.equal(set('"$user", public'), 'SET search_path="$user", public;');
  assert.equal(set('""'), "SET search_path='';");
});
