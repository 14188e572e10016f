import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readStartup } from '../../../src/client/startup-parameters.ts';
import { TrackedNames } from '../../../src/server/parameters.ts';

const tracked = new TrackedNames(['IntervalStyle', 'search_path']);

const OPTIONS_FORM =
  "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed";

/** Reads pairs written as `name=value`; user `u` is always there. */
function read(pairs: readonly string[], ignored: readonly string[] = []) {
  const parameters = ['user=u', ...pairs].map((pair): [string, string] => {
    const at = pair.indexOf('=');
    return [pair.slice(0, at), pair.slice(at + 1)];
  });
  return readStartup(parameters, tracked, new Set(ignored));
}

/** The tracked values that an `options` text sets, or the refusal. */
function options(text: string, ignored: readonly string[] = []): Record<string, string> | string {
  const result = read([`options=${text}`], ignored);
  if ('refusal' in result) return result.refusal;
  const set = result.tracked.flatMap((value, i) =>
    value === null ? [] : [[tracked.names[i]!, value]],
  );
  return Object.fromEntries(set) as Record<string, string>;
}

test('user and database are taken, the last of each when they repeat', () => {
  const result = read(['database=one', 'database=two', 'user=v']);
  assert.ok(!('refusal' in result));
  assert.deepEqual([result.user, result.database, result.applicationName], ['v', 'two', null]);
});

test('tracked parameters are remembered whatever their case', () => {
  const result = read([
    'TIMEZONE=UTC',
    'datestyle=ISO',
    'application_name=psql',
    'INTERVALstyle=x',
  ]);
  assert.ok(!('refusal' in result));
  assert.equal(result.applicationName, 'psql');
  assert.equal(result.tracked[tracked.indexOf('TimeZone')], 'UTC');
  assert.equal(result.tracked[tracked.indexOf('DateStyle')], 'ISO');
  assert.equal(result.tracked[tracked.indexOf('IntervalStyle')], 'x');
  assert.equal(result.tracked[tracked.indexOf('client_encoding')], null);
});

test('names that are ignored are dropped, in their exact case; others are refused, the first named', () => {
  assert.ok(!('refusal' in read(['extra_float_digits=3'], ['extra_float_digits'])));
  assert.deepEqual(read(['Extra_float_digits=3'], ['extra_float_digits']), {
    refusal: 'unsupported startup parameter: Extra_float_digits',
    warning: 'unsupported startup parameter: Extra_float_digits=3',
  });
  const first = 'unsupported startup parameter: a';
  assert.deepEqual(read(['a=1', 'b=2']), { refusal: first, warning: `${first}=1` });
});

test('_pq_ options are never an error and are listed as not known', () => {
  const result = read(['_pq_.one=1', '_pq_.two=']);
  assert.ok(!('refusal' in result));
  assert.deepEqual(result.unknownOptions, ['_pq_.one', '_pq_.two']);
});

test('replication is read as PostgreSQL reads a boolean, and database means logical', () => {
  for (const [value, expected] of [
    ['database', 'logical'],
    ['true', 'physical'],
    ['TRUE', 'physical'],
    ['t', 'physical'],
    ['tr', 'physical'],
    ['yes', 'physical'],
    ['y', 'physical'],
    ['on', 'physical'],
    ['1', 'physical'],
    ['o', 'none'],
    ['', 'none'],
    ['off', 'none'],
    ['no', 'none'],
    ['0', 'none'],
    ['false', 'none'],
    ['Database', 'none'],
    ['11', 'none'],
    ['trueish', 'none'],
  ] as const) {
    const result = read([`replication=${value}`]);
    assert.ok(!('refusal' in result));
    assert.equal(result.replication, expected, value);
  }
});

test('options: both ways of writing a setting, with escapes, in any number', () => {
  for (const [text, expected] of [
    ['', {}],
    ['   ', {}],
    ['-c timezone=UTC', { TimeZone: 'UTC' }],
    ['-ctimezone=UTC', { TimeZone: 'UTC' }],
    ['--timezone=UTC', { TimeZone: 'UTC' }],
    ['  -c   timezone=UTC   --datestyle=ISO', { TimeZone: 'UTC', DateStyle: 'ISO' }],
    ['-c search_path=a,b', { search_path: 'a,b' }],
    ['-c search_path=a\\ b', { search_path: 'a b' }],
    ['-c search_path=a\\\\b', { search_path: 'a\\b' }],
    ['-c search_path=a=b', { search_path: 'a=b' }],
    ['-c search_path=', { search_path: '' }],
    ['-c timezone=UTC -c timezone=CET', { TimeZone: 'CET' }],
    ['-c search_path=\\-c', { search_path: '-c' }],
    ['-c search_\\path=x', { search_path: 'x' }],
  ] as const) {
    assert.deepEqual(options(text), expected, text);
  }
});

test('options: anything but a setting is refused with the forms that are taken', () => {
  for (const text of [
    '-d 5',
    'timezone=UTC',
    '-c timezone',
    '-c',
    '--',
    '--timezone UTC',
    '-c timezone=UTC x',
    '\t-c timezone=UTC',
    '-c timezone=UTC\t',
    '-C timezone=UTC',
    '-',
  ]) {
    assert.equal(options(text), OPTIONS_FORM, JSON.stringify(text));
  }
});

test('options: a setting that is not tracked is refused by name, unless ignored', () => {
  const refusal = 'unsupported startup parameter in options: geqo';
  assert.equal(options('-c geqo=off'), refusal);
  assert.equal(options('-c timezone=UTC --geqo=off'), refusal);
  assert.deepEqual(options('--geqo=off', ['geqo']), {});
  assert.equal(options('--GEQO=off', ['geqo']), 'unsupported startup parameter in options: GEQO');
  assert.deepEqual(options('--geqo=off --timezone=UTC', ['options']), { TimeZone: 'UTC' });
  // Dashes in a name stay what they are.
  assert.equal(options('--search-path=x'), 'unsupported startup parameter in options: search-path');
});

test('options of a replication connection are not looked at', () => {
  const result = read(['replication=database', 'options=-d nonsense']);
  assert.ok(!('refusal' in result));
  assert.equal(result.replication, 'logical');
});

test('options are read where they stand, each of them, and what comes later counts', () => {
  const unreadable = { refusal: OPTIONS_FORM, warning: null };
  assert.deepEqual(read(['options=-d', 'nonsense=1']), unreadable);
  assert.deepEqual(read(['nonsense=1', 'options=-d']), {
    refusal: 'unsupported startup parameter: nonsense',
    warning: 'unsupported startup parameter: nonsense=1',
  });
  assert.deepEqual(read(['options=-d', 'options=']), unreadable);
  for (const [parameters, zone] of [
    [['options=-c timezone=UTC', 'TimeZone=CET'], 'CET'],
    [['TimeZone=CET', 'options=-c timezone=UTC'], 'UTC'],
  ] as const) {
    const result = read(parameters);
    assert.ok(!('refusal' in result));
    assert.equal(result.tracked[tracked.indexOf('TimeZone')], zone);
  }
});
