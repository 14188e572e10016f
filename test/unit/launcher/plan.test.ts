import assert from 'node:assert/strict';
import { availableParallelism } from 'node:os';
import { test } from 'node:test';
import type { Config, DatabaseEntry } from '../../../src/config/config.ts';
import { defaultFleetSettings, defaultSettings } from '../../../src/config/schema.ts';
import { expectedFds, fleetSize } from '../../../src/launcher/plan.ts';

test('the fleet is as large as written, or as the machine runs at once', () => {
  assert.equal(fleetSize(3), 3);
  assert.equal(fleetSize('auto'), Math.min(availableParallelism(), 256));
});

function config(databases: Partial<DatabaseEntry>[], users: readonly string[] | null): Config {
  return {
    version: 1,
    file: '/etc/pgfleet.ini',
    settings: { ...defaultSettings(), max_client_conn: 100, default_pool_size: 20 },
    fleet: defaultFleetSettings(),
    databases: databases.map((entry) => ({
      pool_size: null,
      user: null,
      ...entry,
    })) as DatabaseEntry[],
    autoDatabase: null,
    users: [],
    peers: [],
    authUsers: users?.map((name) => ({ name, secret: 'x' })) ?? null,
    hba: null,
    clientTls: null,
    given: [],
  };
}

test('descriptors are counted for clients, the program and every pool of known users', () => {
  assert.equal(expectedFds(config([], null)), 110);
  assert.equal(expectedFds(config([{}, { pool_size: 5 }], ['a', 'b'])), 110 + 2 * 20 + 2 * 5);
});

test('a database with a forced user counts one pool', () => {
  assert.equal(expectedFds(config([{ user: 'app' }], ['a', 'b'])), 110 + 20);
});
