import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inTurn } from '../../../src/net/turn.ts';
import type { Pool } from '../../../src/pool/pool.ts';
import { FakeClient, withIdle, world } from './support.ts';

const sizes = (pool: Pool) => [pool.plan.size, pool.database.budget.max, pool.userBudget.max];

// Limits

test('a lower limit holds at once, a higher one when every worker has switched', (t) => {
  const given = world(t, 'default_pool_size = 4\nmax_db_connections = 5\nmax_user_connections = 6');
  const pool = given.pool();
  given.reconfigure('default_pool_size = 8\nmax_db_connections = 3\nmax_user_connections = 9');
  assert.deepEqual(sizes(pool), [4, 3, 6]);
  inTurn(() => given.pools.release());
  assert.deepEqual(sizes(pool), [8, 3, 9]);
});

test('a limit that is taken away holds until every worker has switched, one that is added at once', (t) => {
  const given = world(t, 'max_db_connections = 5');
  const pool = given.pool();
  given.reconfigure('max_user_connections = 7');
  assert.deepEqual(sizes(pool), [20, 5, 7]);
  inTurn(() => given.pools.release());
  assert.deepEqual(sizes(pool), [20, Number.POSITIVE_INFINITY, 7]);
});

test('a pool that is made between the two halves has the smaller limits as well', (t) => {
  const given = world(t, 'default_pool_size = 4');
  given.reconfigure('default_pool_size = 8');
  const pool = given.pool();
  assert.equal(pool.plan.size, 4);
  inTurn(() => given.pools.release());
  assert.equal(pool.plan.size, 8);
});

test('the sum over the workers never exceeds the smaller limit before the release', (t) => {
  const size = 4;
  const limits: [number, number][] = [
    [5, 11],
    [11, 5],
    [2, 3],
  ];
  for (const [before, after] of limits) {
    // Any worker may be in either state, or have switched and not yet be released.
    const most = [0, 1, 2, 3].map((worker) => {
      const databases = (count: number) => `d = host=h pool_size=${count}`;
      const given = world(t, '', databases(before), '', { worker, size });
      const pool = given.pool();
      const old = pool.plan.size;
      given.reconfigure('', databases(after));
      const between = pool.plan.size;
      inTurn(() => given.pools.release());
      t.mock.restoreAll();
      return { old, between, released: pool.plan.size };
    });
    const sum = (counts: number[]) => counts.reduce((a, b) => a + b, 0);
    assert.equal(sum(most.map(({ old }) => old)), before);
    assert.equal(sum(most.map(({ released }) => released)), after);
    assert.ok(sum(most.map(({ old, between }) => Math.max(old, between))) <= before);
    assert.ok(sum(most.map(({ between, released }) => Math.max(between, released))) <= after);
  }
});

test('surplus servers close when a pool becomes smaller: free ones now, busy ones when given back', (t) => {
  const given = world(t);
  const backends = withIdle(given, 4);
  const pool = given.pool();
  const clients = [new FakeClient(pool), new FakeClient(pool)];
  for (const client of clients) client.run();
  given.reconfigure('default_pool_size = 1');
  assert.deepEqual([pool.idle.size, pool.linked.size, pool.closing.size], [0, 2, 2]);
  for (const backend of backends) if (!backend.isTold) backend.ready();
  assert.deepEqual([pool.idle.size, pool.linked.size], [1, 0]);
  for (const backend of backends) if (backend.isTold) backend.end();
  assert.equal(pool.total, 1);
});

test('pools that share a lowered limit give up the surplus, the one with most connections first', (t) => {
  const given = world(t);
  const [one, other] = [given.pool('d', 'u'), given.pool('d', 'v')];
  withIdle(given, 4, one);
  withIdle(given, 2, other);
  given.reconfigure('max_db_connections = 3');
  assert.equal(one.idle.size + other.idle.size, 3);
  assert.deepEqual([one.idle.size, other.idle.size], [1, 2]);
});

test('clients that wait get the room that a reload gives, when it is released', (t) => {
  const given = world(t, 'default_pool_size = 1');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  new FakeClient(pool).run();
  const waiting = new FakeClient(pool);
  waiting.act = () => waiting.send();
  assert.equal(waiting.ask(), false);
  given.reconfigure('default_pool_size = 2');
  assert.equal(pool.opening.size, 0);
  inTurn(() => given.pools.release());
  assert.equal(pool.opening.size, 1);
  given.opener().last.logIn();
  assert.deepEqual(waiting.events, ['server']);
  assert.notEqual(waiting.server, backend!.server);
});

test('a limit that leaves this worker nothing turns away who waits, once its servers are gone', (t) => {
  const place = { worker: 0, size: 2 };
  const withSize = (count: number) =>
    `d = host=h pool_size=${count}\ne = host=h pool_size=${count}`;
  const given = world(t, '', withSize(2), '', place);
  const database = ['d', 'e'].find((name) => {
    const other = world(t, '', withSize(1), '', place);
    return other.pool(name).plan.size === 0;
  });
  if (database === undefined) throw new Error('worker 0 has a share of both');
  const pool = given.pool(database);
  const [backend] = withIdle(given, 1, pool);
  new FakeClient(pool).run();
  const waiting = new FakeClient(pool);
  waiting.ask();
  given.reconfigure('', withSize(1));
  inTurn(() => given.pools.release());
  inTurn(() => given.pools.tick(given.time.now));
  assert.deepEqual(waiting.events, []);
  backend!.ready();
  backend!.end();
  inTurn(() => given.pools.tick(given.time.now));
  assert.deepEqual(waiting.events, ['refused: 57P01 database configuration changed']);
});

// Databases

test('a database that is gone serves nobody, and its connections close when the caller says', (t) => {
  const given = world(t, '', 'd = host=h\ne = host=h');
  const [busy, free] = withIdle(given, 2);
  const [other] = withIdle(given, 1, given.pool('e'));
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.run();
  given.reconfigure('', 'e = host=h');
  assert.equal(pool.database.isGone, true);
  assert.equal(given.pools.hasDatabase('d'), false);
  inTurn(() => {
    client.leave();
    given.pools.closeGone();
  });
  for (const backend of [busy!, free!]) {
    assert.equal(backend.isTold, true);
    backend.end();
  }
  assert.equal(other!.isTold, false);
  assert.equal(pool.total, 0);
  inTurn(() => given.pools.tick(given.time.now));
  assert.deepEqual([...given.pools.all], [given.pool('e')]);
});

test('a database that comes back counts what it still has from before', (t) => {
  const given = world(t, 'max_db_connections = 1');
  const [old] = withIdle(given, 1);
  given.reconfigure('max_db_connections = 1', 'e = host=h');
  inTurn(() => given.pools.closeGone());
  inTurn(() => given.pools.release());
  given.reconfigure('max_db_connections = 1');
  inTurn(() => given.pools.release());
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.act = () => client.send();
  client.ask();
  assert.equal(pool.opening.size, 0);
  old!.end();
  assert.equal(pool.opening.size, 1);
});

test('another forced user takes over who waits, and the clients when they next need a server', (t) => {
  const given = world(t, 'default_pool_size = 1', 'd = host=h user=a');
  const old = given.pool('d', 'a');
  const [backend] = withIdle(given, 1, old);
  const [busy, waiting, idle] = [new FakeClient(old), new FakeClient(old), new FakeClient(old)];
  busy.run();
  waiting.act = () => waiting.send();
  waiting.ask();
  given.reconfigure('default_pool_size = 1', 'd = host=h user=b');
  inTurn(() => given.pools.release());
  const next = given.pool('d', 'b');
  assert.notEqual(next, old);
  assert.deepEqual([waiting.pool, busy.pool, idle.pool], [next, old, old]);
  // The pool of the new user has limits of its own, so it does not wait for the old one.
  given.opener().last.logIn();
  assert.equal(given.opener().last.credentials.user, 'b');
  assert.deepEqual(waiting.events, ['server']);
  backend!.ready();
  assert.equal(backend!.isTold, true);
  for (const client of [busy, idle]) {
    client.ask();
    assert.equal(client.pool, next);
  }
  assert.equal(old.clients, 0);
  assert.equal(next.clients, 3);
});

test('a user who is forced again does not get more connections than the pool may have', (t) => {
  const sizes_ = 'default_pool_size = 1\nreserve_pool_size = 1\nreserve_pool_timeout = 1';
  const given = world(t, sizes_, 'd = host=h user=a');
  const first = given.pool('d', 'a');
  const backends = withIdle(given, 1, first);
  new FakeClient(first).run();
  for (const user of ['b', 'a']) {
    given.reconfigure(sizes_, `d = host=h user=${user}`);
    inTurn(() => given.pools.release());
  }
  const again = given.pool('d', 'a');
  assert.notEqual(again, first);
  const client = new FakeClient(again);
  client.ask();
  assert.equal(again.opening.size, 0, 'the connection of the first pool is there still');
  given.time.pass(2_000);
  inTurn(() => given.pools.tick(given.time.now));
  assert.equal(again.opening.size, 1, 'the reserve is for who waits for long');
  assert.equal(first.total + again.total, 2);
  given.opener().last.logIn();
  client.send();
  const late = new FakeClient(again);
  late.ask();
  given.time.pass(2_000);
  inTurn(() => given.pools.tick(given.time.now));
  assert.equal(first.total + again.total, 2);
  backends[0]!.ready();
  backends[0]!.end();
  assert.equal(again.opening.size, 1);
});

test('servers of a session pool that becomes another are not kept with what a session left', (t) => {
  const given = world(t, 'server_reset_query =', 'd = host=h pool_mode=session');
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  given.reconfigure('server_reset_query =', 'd = host=h pool_mode=transaction');
  backend!.ready();
  assert.equal(backend!.isTold, true);
});

test('with server_fast_close a session’s server that is to be replaced goes between two transactions', (t) => {
  const fast = 'server_fast_close = 1\nserver_reset_query =';
  const given = world(t, fast, 'd = host=h pool_mode=session');
  const backends = withIdle(given, 3);
  const pool = given.pool();
  const [idle, inBlock, running] = [0, 1, 2].map(() => new FakeClient(pool));
  const of = (client: FakeClient) => backends.find(({ server }) => server === client.server)!;
  for (const client of [idle!, inBlock!, running!]) client.run();
  const [first, second, third] = [of(idle!), of(inBlock!), of(running!)];
  first.ready();
  second.ready('T');
  given.reconfigure(fast, 'd = host=i pool_mode=session');
  inTurn(() => given.pools.tick(given.time.now));
  assert.deepEqual(idle!.events, ['lost: database configuration changed']);
  assert.deepEqual([second.isTold, third.isTold], [false, false]);
  third.ready();
  assert.deepEqual(running!.events, ['lost: database configuration changed']);
  inBlock!.send();
  second.ready();
  assert.deepEqual(inBlock!.events, ['lost: database configuration changed']);
});

// What is not used

test('a pool is dropped when it has been empty for pool_idle_timeout', (t) => {
  const given = world(t, 'pool_idle_timeout = 60\nserver_idle_timeout = 10');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const tick = (ms: number): void => {
    given.time.pass(ms);
    inTurn(() => given.pools.tick(given.time.now));
  };
  tick(11_000);
  backend!.end();
  tick(60_000);
  assert.equal(given.pools.size, 1);
  tick(1_000);
  assert.equal(given.pools.size, 0);
  assert.match(
    given.lines.join('\n'),
    /cleaning up idle pool for user u on db d because: pool idle timeout \(age= \d+s\)/,
  );
  assert.notEqual(given.pool(), pool);
});

test('a client keeps its pool, and a paused database made from * is kept', (t) => {
  const given = world(t, 'pool_idle_timeout = 5\nautodb_idle_timeout = 5', '* = host=h');
  const client = new FakeClient(given.pool('used'));
  given.pool('paused').database.isPaused = true;
  given.pool('unused');
  for (let i = 0; i < 4; i++) {
    given.time.pass(3_000);
    inTurn(() => given.pools.tick(given.time.now));
  }
  const names = [...given.pools.databases].map(({ name }) => name);
  assert.deepEqual(names.sort(), ['paused', 'used']);
  assert.equal(client.pool, given.pool('used'));
});
