import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inTurn } from '../../../src/net/turn.ts';
import { Database } from '../../../src/pool/database.ts';
import { FakeClient, withIdle, world } from './support.ts';

test('a database and its pools are made once and found again', (t) => {
  const given = world(t, '', 'd = host=h\n* = host=other');
  assert.equal(given.pool('d', 'u'), given.pool('d', 'u'));
  assert.notEqual(given.pool('d', 'u'), given.pool('d', 'v'));
  // Databases made from `*` are told apart by their names.
  assert.equal(given.pool('x', 'u'), given.pool('x', 'u'));
  assert.notEqual(given.pool('x', 'u'), given.pool('y', 'u'));
  assert.equal(given.pools.size, 4);
  assert.deepEqual(
    [...given.pools.databases].map(({ name }) => name),
    ['d', 'x', 'y'],
  );
});

test('names that would run together are different pools', (t) => {
  const given = world(t, '', 'd = host=h\ndu = host=h');
  assert.notEqual(given.pool('d', 'uv'), given.pool('du', 'v'));
});

test('pools of one user share that user’s slots, pools of one database the database’s', (t) => {
  const given = world(
    t,
    'max_db_connections = 4\nmax_user_connections = 3',
    'd = host=h\ne = host=h max_db_connections=2',
  );
  const [da, db, ea] = [given.pool('d', 'a'), given.pool('d', 'b'), given.pool('e', 'a')];
  assert.equal(da.userBudget, ea.userBudget);
  assert.notEqual(da.userBudget, db.userBudget);
  assert.equal(given.pools.userBudget('a'), da.userBudget);
  assert.equal(given.pools.userBudget('nobody'), undefined);
  assert.equal(da.database.budget, db.database.budget);
  assert.deepEqual([da.database.budget.max, ea.database.budget.max, da.userBudget.max], [4, 2, 3]);
  withIdle(given, 2, da);
  withIdle(given, 1, ea);
  assert.deepEqual([given.pools.connectionsOf('d'), given.pools.connectionsOf('e')], [2, 1]);
  assert.equal(given.pools.connectionsOf('nowhere'), 0);
  assert.equal(given.pools.connections, 3);
  assert.equal(da.userBudget.held, 3);
});

test('each worker opens no more than its share, and all of them no more than the limit', (t) => {
  const size = 3;
  const opened = [0, 1, 2].map((worker) => {
    const given = world(t, 'default_pool_size = 9\nmax_db_connections = 7', 'd = host=h', '', {
      worker,
      size,
    });
    const pool = given.pool();
    for (let i = 0; i < 9; i++) {
      const client = new FakeClient(pool);
      client.act = () => client.send();
      client.ask();
    }
    while (pool.opening.size > 0) {
      const { backends } = given.opener();
      for (const backend of backends) if (!backend.server.hasLoggedIn) backend.logIn();
    }
    const { held } = pool.database.budget;
    t.mock.restoreAll();
    return held;
  });
  assert.equal(
    opened.reduce((sum, held) => sum + held, 0),
    7,
  );
});

test('an entry without a forced user, or without a minimum, is not prepared', (t) => {
  const given = world(
    t,
    '',
    [
      'a = host=h user=forced min_pool_size=1',
      'b = host=h min_pool_size=1',
      'c = host=h user=forced',
    ].join('\n'),
  );
  given.pools.prepare();
  assert.deepEqual(
    [...given.pools.all].map(({ database, user }) => `${database.name}/${user}`),
    ['a/forced'],
  );
});

test('a database begins with nothing counted and is neither paused nor disabled', (t) => {
  const { index } = world(t);
  const database = new Database('d', index.database('d')!, { kind: 'max', value: 2 });
  const { name, clients, isPaused, isDisabled, budget, traffic } = database;
  assert.deepEqual(
    { name, clients, isPaused, isDisabled, max: budget.max, held: budget.held },
    { name: 'd', clients: 0, isPaused: false, isDisabled: false, max: 2, held: 0 },
  );
  assert.equal(traffic.queries, 0);
});

test('a pause of everything and one of a database hold until each has ended', (t) => {
  const given = world(t, '', 'd = host=h\ne = host=h');
  const [d, e] = [given.pool('d'), given.pool('e')];
  const { pools } = given;
  const isPaused = () => [d.isPaused, e.isPaused];
  pools.pauseDatabase(d.database);
  assert.deepEqual(isPaused(), [true, false]);
  pools.pause();
  assert.deepEqual(isPaused(), [true, true]);
  pools.resumeDatabase(d.database);
  assert.deepEqual(isPaused(), [true, true]);
  pools.pauseDatabase(e.database);
  pools.resume();
  assert.deepEqual(isPaused(), [false, true]);
  assert.equal(given.pool('e', 'other').isPaused, true, 'one that is made meanwhile');
  pools.resumeDatabase(e.database);
  assert.deepEqual(isPaused(), [false, false]);
});

test('the end of a database closes its connections, and its name begins anew', (t) => {
  const given = world(t, '', 'd = host=h\ne = host=h');
  const pool = given.pool();
  const [idle, busy] = withIdle(given, 2);
  const client = new FakeClient(pool);
  client.run();
  const [other] = withIdle(given, 1, given.pool('e'));
  const { traffic } = pool.database;
  inTurn(() => given.pools.end(pool.database, 'database removed'));
  assert.deepEqual(client.events, ['lost: database removed']);
  assert.deepEqual([idle!.isTold, busy!.isTold, other!.isTold], [true, true, false]);
  assert.notEqual(pool.database.traffic, traffic);
  const next = given.pool();
  assert.notEqual(next, pool);
  assert.equal(next.database, pool.database);
  assert.equal(next.welcome, null);
});

test('connections that a database had before its end take room until they are gone', (t) => {
  const given = world(t, 'default_pool_size = 2', 'd = host=h');
  const ended = [0, 1].map(() => {
    const [backend] = withIdle(given, 1);
    inTurn(() => given.pools.end(given.pool().database, 'database removed'));
    return backend!;
  });
  const { backends } = given.opener();
  const pool = given.pool();
  new FakeClient(pool).ask();
  assert.deepEqual([pool.hasRoom, backends.length], [false, 2]);
  ended[0]!.end();
  assert.equal(backends.length, 3);
  backends[2]!.logIn();
  assert.equal(pool.hasRoom, false);
  ended[1]!.end();
  given.pools.tick(given.time.now);
  assert.equal(pool.hasRoom, true);
});
