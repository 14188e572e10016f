import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Config } from '../../../src/config/config.ts';
import { loadConfig } from '../../../src/config/load.ts';
import { keepStartOnly } from '../../../src/config/start-only.ts';

function config(settings: string, fleet = '', version = 1): Config {
  const text = `[pgbouncer]\n${settings}\n[fleet]\n${fleet}\n`;
  const { config: read, problems } = loadConfig('f', { readFile: () => text, version });
  assert.ok(read, JSON.stringify(problems));
  return read;
}

test('what is read at start only stays, with its name; the rest is new', () => {
  const old = config('listen_port = 7001\nquery_timeout = 1', 'size = 2');
  const next = config('listen_port = 7002\nquery_timeout = 2', 'size = 3', 2);
  const { config: kept, changed } = keepStartOnly(old, next);
  assert.deepEqual(changed, ['listen_port', '[fleet] size']);
  assert.equal(kept.settings.listen_port, 7001);
  assert.equal(kept.settings.query_timeout, 2);
  assert.deepEqual(kept.fleet, old.fleet);
  assert.equal(kept.version, 2);
});

test('nothing is named when nothing of that kind has changed, or when a default was written down', () => {
  const old = config('query_timeout = 1');
  assert.deepEqual(keepStartOnly(old, config('listen_port = 6432')).changed, []);
});

test('a deleted line of a start-only setting is a change, and counts as given still', () => {
  const old = config('listen_port = 7001\nverbose = 1');
  const { config: kept, changed } = keepStartOnly(old, config('query_timeout = 3'));
  assert.deepEqual(changed, ['listen_port']);
  assert.equal(kept.settings.listen_port, 7001);
  assert.deepEqual(kept.given, ['query_timeout', 'listen_port']);
});

test('a second reload names a change that is still only in the file again', () => {
  const old = config('listen_port = 7001');
  const next = config('listen_port = 7002');
  const { config: kept } = keepStartOnly(old, next);
  assert.deepEqual(keepStartOnly(kept, next).changed, ['listen_port']);
});
