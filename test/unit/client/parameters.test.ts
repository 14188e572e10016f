import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  onSettingsApplied,
  onUnreportedReset,
  reportedValue,
  settingStatements,
  TrackedNames,
} from '../../../src/server/parameters.ts';

const names = new TrackedNames(['some.setting', 'Timezone']);

/** Values by name, others not known. */
function values(given: Record<string, string>) {
  const all = names.none();
  for (const [name, value] of Object.entries(given)) all[names.indexOf(name)] = value;
  return all;
}

/** A server whose login reported `own`, and what has become of it since. */
function server(own: Record<string, string>, now: Record<string, string> = {}, byQuery = ['']) {
  return {
    own: values(own),
    tracked: values({ ...own, ...now }),
    setByQuery: new Set(byQuery.map((name) => names.indexOf(name))),
  };
}

const set = (client: Record<string, string>, given: ReturnType<typeof server>): string =>
  settingStatements(names, values(client), given);

test('what PostgreSQL reports and lets change is tracked, in the order of the welcome, then the extra ones, none twice', () => {
  assert.deepEqual(names.names, [
    'DateStyle',
    'client_encoding',
    'TimeZone',
    'standard_conforming_strings',
    'application_name',
    'default_transaction_read_only',
    'IntervalStyle',
    'search_path',
    'scram_iterations',
    'session_authorization',
    'some.setting',
  ]);
  assert.equal(names.names[names.applicationName], 'application_name');
  assert.equal(names.indexOf('TIMEZONE'), 2);
  assert.equal(names.indexOf('server_version'), -1);
});

test('only values that differ by more than case are set, all in one text', () => {
  const fixed = server({ TimeZone: 'UTC', DateStyle: 'ISO', application_name: 'x' });
  assert.equal(
    set({ TimeZone: 'CET', DateStyle: 'iso', application_name: 'psql' }, fixed),
    "SET TimeZone='CET';SET application_name='psql';",
  );
  assert.equal(set({ TimeZone: 'UTC' }, fixed), '');
  assert.equal(set({}, fixed), '');
});

test('names of schemas and roles that differ in case alone are others', () => {
  const given = server({ search_path: '"Tenant"', session_authorization: 'Bob' });
  assert.equal(
    set({ search_path: 'tenant', session_authorization: 'bob' }, given),
    "SET search_path='tenant';SET session_authorization='bob';",
  );
});

test('a client without a value of its own has what the server began with, by RESET', () => {
  const changed = server({ search_path: 'a' }, { search_path: 'b' });
  assert.equal(set({}, changed), 'RESET search_path;');
  const byQuery = server({ search_path: 'a' }, { search_path: 'b' }, ['search_path']);
  assert.equal(set({}, byQuery), "SET search_path='a';");
  assert.equal(set({}, server({ search_path: 'a' })), '');
});

test('a parameter that the server does not report is set once, and reset for the next client', () => {
  const silent = server({});
  const client = values({ search_path: 'a' });
  assert.equal(settingStatements(names, client, silent), "SET search_path='a';");
  onSettingsApplied(client, silent);
  assert.equal(settingStatements(names, client, silent), '');
  const other = names.none();
  assert.equal(settingStatements(names, other, silent), 'RESET search_path;');
  onSettingsApplied(other, silent);
  assert.equal(settingStatements(names, other, silent), '');
});

test('after a reset of unknown extent a parameter that is not reported is set again', () => {
  const silent = server({});
  const client = values({ search_path: 'a' });
  onSettingsApplied(client, silent);
  onUnreportedReset(silent);
  assert.equal(settingStatements(names, client, silent), "SET search_path='a';");
  assert.equal(settingStatements(names, names.none(), silent), 'RESET search_path;');
});

test("the server's own spelling replaces the client's, and what RESET brings is its own value", () => {
  const given = server({ DateStyle: 'ISO, MDY', search_path: 'old' }, { search_path: 'new' });
  const client = values({ DateStyle: 'iso' });
  onSettingsApplied(client, given);
  assert.equal(client[names.indexOf('DateStyle')], 'ISO, MDY');
  assert.equal(given.own[names.indexOf('search_path')], 'new');
  assert.equal(client[names.indexOf('search_path')], null);
});

test("a client whose value is the server's own again has none, unless it keeps what it was told", () => {
  const given = server({ search_path: 'a', TimeZone: 'UTC' });
  const after = (name: string, value: string) =>
    reportedValue(names, names.indexOf(name), value, given);
  assert.equal(after('search_path', 'b'), 'b');
  assert.equal(after('search_path', 'a'), null);
  assert.equal(after('TimeZone', 'UTC'), 'UTC');
});

test('equal values are one string until the table is full', () => {
  const first = names.shared('one');
  for (let i = 0; i < 5000; i++) names.shared(String(i));
  assert.equal(names.shared('one'), first);
});
