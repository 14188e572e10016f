import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Pool } from '../../../src/pool/pool.ts';
import * as says from '../../support/server-messages.ts';
import { FakeClient, withIdle, world } from './support.ts';

const eventsOf = (clients: readonly FakeClient[]) => clients.map(({ events }) => events.join(', '));

// Opening

/** Clients that ask one after the other and send something as soon as they have a server. */
function asking(pool: Pool, count: number): FakeClient[] {
  return Array.from({ length: count }, () => {
    const client = new FakeClient(pool);
    client.act = () => client.send();
    client.ask();
    return client;
  });
}

test('until a login has succeeded there is one at a time, however many clients wait', (t) => {
  const given = world(t, 'default_pool_size = 5');
  const pool = given.pool();
  const clients = asking(pool, 8);
  assert.equal(pool.opening.size, 1);
  given.opener().last.logIn();
  assert.deepEqual(eventsOf(clients), ['server', ...Array(7).fill('')]);
});

test('several logins of a pool go on at a time, never above its size, for the longest waiting first', (t) => {
  const given = world(t, 'default_pool_size = 7');
  const pool = given.pool();
  const clients = asking(pool, 9);
  given.opener().last.logIn();
  assert.equal(pool.opening.size, 4);
  // Whichever comes first is for the client that has waited longest.
  given.opener().backends[3]!.logIn();
  assert.deepEqual(eventsOf(clients), ['server', 'server', ...Array(7).fill('')]);
  assert.equal(pool.opening.size, 4);
  given.opener().backends[1]!.logIn();
  assert.equal(pool.opening.size, 4);
  assert.equal(pool.total, 7);
  for (const backend of given.opener().backends) if (!backend.server.hasLoggedIn) backend.logIn();
  assert.equal(pool.opening.size, 0);
  assert.deepEqual(eventsOf(clients), [...Array(7).fill('server'), '', '']);
});

test('no more logins are begun than clients wait for', (t) => {
  const given = world(t, 'default_pool_size = 7');
  const pool = given.pool();
  const clients = asking(pool, 3);
  given.opener().last.logIn();
  assert.equal(pool.opening.size, 2);
  clients[2]!.leave();
  asking(pool, 1);
  assert.equal(pool.opening.size, 2);
});

test('as of a failed login they are tried one by one again, each after server_login_retry', (t) => {
  const given = world(t, 'default_pool_size = 7\nserver_login_retry = 5');
  const pool = given.pool();
  asking(pool, 6);
  const { backends } = given.opener();
  backends[0]!.logIn();
  assert.equal(pool.opening.size, 4);
  for (const backend of backends.slice(1)) backend.refuse('53300', 'too many connections');
  assert.equal(pool.opening.size, 0);
  given.time.pass(4000);
  given.pools.tick(given.time.now);
  assert.equal(pool.opening.size, 0);
  given.time.pass(1001);
  given.pools.tick(given.time.now);
  assert.equal(pool.opening.size, 1);
  backends.at(-1)!.logIn();
  assert.equal(pool.opening.size, 4);
});

test('connections of the reserve are opened one after the other', (t) => {
  const given = world(t, 'default_pool_size = 1\nreserve_pool_size = 3\nreserve_pool_timeout = 2');
  const pool = given.pool();
  asking(pool, 5);
  given.opener().last.logIn();
  given.time.pass(2001);
  given.pools.tick(given.time.now);
  assert.equal(pool.opening.size, 1);
});

test('the first login of a pool brings the welcome parameters, which later logins do not change', (t) => {
  const given = world(t);
  const pool = given.pool();
  const newcomers = [new FakeClient(pool), new FakeClient(pool)];
  for (const client of newcomers) {
    client.isWelcomed = false;
    pool.enqueue(client);
  }
  given.opener().last.logIn({ server_version: '18.0', TimeZone: 'UTC' });
  assert.deepEqual(eventsOf(newcomers), ['pool ready', 'pool ready']);
  assert.equal(pool.waiting.size, 0);
  assert.equal(pool.idle.size, 1);
  const [one, other] = newcomers;
  one!.run();
  other!.ask();
  given.opener().last.logIn({ server_version: '17.0', TimeZone: 'CET' });
  assert.deepEqual(
    [...pool.welcome!],
    [
      ['server_version', '18.0'],
      ['TimeZone', 'UTC'],
    ],
  );
  assert.equal(pool.welcomeTracked![pool.tracked.indexOf('TimeZone')], 'UTC');
});

test('newcomers get their welcome and the one that already wants a server gets the new server', (t) => {
  const given = world(t);
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.isWelcomed = false;
  // Sends its first query as soon as it is welcome.
  client.onPoolReady = () => {
    client.isWelcomed = true;
    client.events.push(client.ask() ? 'at once' : 'queued');
  };
  pool.enqueue(client);
  given.opener().last.logIn();
  assert.deepEqual(client.events, ['queued', 'server']);
});

// Failures

test('a refusal reaches every client in the queue, with the server’s SQLSTATE and words', (t) => {
  const given = world(t);
  const pool = given.pool();
  const clients = Array.from({ length: 4 }, () => new FakeClient(pool));
  for (const client of clients) {
    client.isWelcomed = false;
    pool.enqueue(client);
  }
  given.opener().last.refuse('3D000', 'database "x" does not exist');
  for (const { events } of clients) {
    assert.deepEqual(events, ['refused: 3D000 database "x" does not exist']);
  }
  assert.equal(pool.waiting.size, 0);
  assert.equal(given.opener().failures, 1);
  assert.equal(pool.total, 0);
});

test('a refusal tells nobody while the pool has another server', (t) => {
  const given = world(t, 'default_pool_size = 2');
  const [backend] = withIdle(given, 1);
  const [holder, waiter] = [new FakeClient(given.pool()), new FakeClient(given.pool())];
  holder.run();
  waiter.ask();
  given.opener().last.refuse('53300', 'too many connections');
  assert.deepEqual(waiter.events, []);
  backend!.ready();
  assert.deepEqual(waiter.events, ['server']);
});

test('clients stay in the queue while the server starts up, and get in when it has', (t) => {
  const given = world(t, 'server_login_retry = 15');
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.isWelcomed = false;
  pool.enqueue(client);
  given.opener().last.refuse('57P03', 'the database system is starting up');
  assert.deepEqual(client.events, []);
  given.time.pass(15_000);
  pool.tick(given.time.now);
  given.opener().last.logIn();
  assert.deepEqual(client.events, ['pool ready']);
});

test('after a failed attempt the next one starts server_login_retry after that attempt’s start', (t) => {
  const given = world(t, 'server_login_retry = 15');
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.isWelcomed = false;
  pool.enqueue(client);
  given.time.pass(4000);
  given.opener().last.break('ECONNREFUSED');
  assert.deepEqual(client.events, []);
  given.time.pass(10_999);
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 1);
  given.time.pass(1);
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 2);
});

test('a client that comes while every login fails is refused at once, with the reason', (t) => {
  const given = world(t, 'server_login_retry = 15');
  const pool = given.pool();
  withIdle(given, 1)[0]!.break();
  const first = new FakeClient(pool);
  first.ask();
  given.opener().last.break();
  assert.deepEqual(first.events, []);
  const second = new FakeClient(pool);
  assert.equal(second.ask(), false);
  assert.deepEqual(second.events, [
    'refused: 08P01 server login has been failing, cached error: connect failed (server_login_retry)',
  ]);
  // A newcomer waits through the outage.
  const newcomer = new FakeClient(pool);
  newcomer.isWelcomed = false;
  pool.acquire(newcomer);
  assert.deepEqual(newcomer.events, []);
});

test('a client that was refused still has the next attempt started, once the delay is over', (t) => {
  const given = world(t, 'server_login_retry = 15');
  const pool = given.pool();
  withIdle(given, 1)[0]!.break();
  const first = new FakeClient(pool);
  first.ask();
  given.opener().last.break();
  first.leave();
  given.time.pass(15_000);
  const second = new FakeClient(pool);
  second.ask();
  assert.match(second.events[0]!, /^refused: .*login has been failing/);
  assert.equal(pool.opening.size, 1);
  given.opener().last.logIn();
  assert.equal(new FakeClient(pool).ask(), true);
});

test('a reason that is remembered for later clients is cut to 99 bytes', (t) => {
  const given = world(t);
  const pool = given.pool();
  withIdle(given, 1)[0]!.break();
  const first = new FakeClient(pool);
  first.ask();
  given.opener().last.refuse('XX000', 'é'.repeat(80));
  const second = new FakeClient(pool);
  second.ask();
  const reason = /cached error: (.*) \(server_login_retry\)$/.exec(second.events[0]!)![1]!;
  assert.ok(Buffer.byteLength(reason) <= 101, reason);
  assert.ok(reason.startsWith('é'.repeat(49)));
});

test('an attempt that takes longer than server_connect_timeout is given up', (t) => {
  const given = world(
    t,
    'server_connect_timeout = 15\nserver_login_retry = 20\nquery_wait_notify = 0',
  );
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.ask();
  given.time.pass(15_000);
  pool.tick(given.time.now);
  assert.equal(pool.opening.size, 1);
  given.time.pass(1);
  pool.tick(given.time.now);
  // It never was connected, so nothing stands on the server's side.
  assert.equal(pool.total, 0);
  assert.deepEqual(client.events, []);
  given.time.pass(5_000);
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 2);
});

test('a login that the server never finishes gives its slot back, although no end of file comes', (t) => {
  const given = world(t, 'server_connect_timeout = 15\ndefault_pool_size = 1');
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.ask();
  given.opener().last.connect();
  given.time.pass(15_001);
  pool.tick(given.time.now);
  assert.equal(pool.closing.size, 0);
  assert.equal(given.opener().backends.length, 2);
});

// Slots

test('a closed connection holds its slot until the server’s own end of file', (t) => {
  const given = world(t, 'default_pool_size = 1\nmax_db_connections = 1\nmax_user_connections = 1');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const [client, next] = [new FakeClient(pool), new FakeClient(pool)];
  client.run();
  client.leave();
  next.ask();
  for (let i = 0; i < 3; i++) pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 1);
  assert.equal(pool.database.budget.held, 1);
  assert.equal(pool.userBudget.held, 1);
  backend!.end();
  assert.equal(given.opener().backends.length, 2);
  assert.equal(pool.database.budget.held, 1);
  assert.equal(pool.userBudget.held, 1);
});

test('a slot is given back once, whatever else a dead connection does', (t) => {
  const given = world(t);
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  backend!.server.close('test');
  backend!.end();
  backend!.break();
  backend!.server.abandon();
  assert.equal(pool.database.budget.held, 0);
  assert.equal(pool.userBudget.held, 0);
  assert.equal(pool.total, 0);
});

test('a free connection that was closed and gets no answer is given up after ten seconds', (t) => {
  const given = world(t);
  const [backend, busy] = withIdle(given, 2);
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.run();
  assert.equal(client.server, busy!.server);
  client.leave();
  backend!.server.close('test');
  given.time.pass(10_001);
  pool.tick(given.time.now);
  // The one that was running a query may run it still.
  assert.deepEqual([...pool.closing], [busy!.server]);
});

test('a share of no slots opens nothing', (t) => {
  const given = world(t, 'default_pool_size = 1', 'd = host=h', '', { worker: 0, size: 2 });
  const other = world(t, 'default_pool_size = 1', 'd = host=h', '', { worker: 1, size: 2 });
  const opened = [given, other].map((one) => {
    const client = new FakeClient(one.pool());
    client.ask();
    return one.opener().backends.length;
  });
  assert.deepEqual(
    opened.toSorted((a, b) => a - b),
    [0, 1],
  );
});

// Reserve

test('clients that wait reserve_pool_timeout get connections above the pool size, up to the reserve', (t) => {
  const given = world(t, 'default_pool_size = 1\nreserve_pool_size = 2\nreserve_pool_timeout = 5');
  withIdle(given, 1);
  const pool = given.pool();
  new FakeClient(pool).run();
  const clients = Array.from({ length: 4 }, () => new FakeClient(pool));
  for (const client of clients) {
    client.act = () => client.send();
    client.ask();
  }
  given.time.pass(4999);
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 1);
  given.time.pass(1);
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 2);
  for (let i = 0; i < 4; i++) {
    if (pool.opening.size > 0) given.opener().last.logIn();
    pool.tick(given.time.now);
  }
  assert.deepEqual(eventsOf(clients), ['server', 'server', '', '']);
  assert.equal(pool.total, 3);
  assert.ok(
    given.lines.some((line) => /^C-0x\d+: taking connection from reserve_pool$/.test(line)),
  );
});

// Eviction

const TWO = 'd = host=h\ne = host=h';

test('a client below its pool’s size makes another pool of the database give up a free server', (t) => {
  const given = world(t, 'max_db_connections = 2');
  const [first] = withIdle(given, 1, given.pool('d', 'a'));
  given.time.pass(10);
  const [second] = withIdle(given, 1, given.pool('d', 'b'));
  const client = new FakeClient(given.pool('d', 'c'));
  client.ask();
  // The one that has been free for longest.
  assert.deepEqual([first!.isTold, second!.isTold], [true, false]);
  assert.equal(given.opener().backends.length, 2);
  first!.end();
  assert.equal(given.opener().backends.length, 3);
  given.opener().last.logIn();
  assert.deepEqual(client.events, ['server']);
});

test('one slot that is on its way is enough: a queue of clients evicts no further servers', (t) => {
  const given = world(t, 'max_db_connections = 5');
  withIdle(given, 5, given.pool('d', 'a'));
  const asking = given.pool('d', 'b');
  for (let i = 0; i < 5; i++) new FakeClient(asking).ask();
  for (let i = 0; i < 5; i++) given.pools.tick(given.time.now);
  assert.equal(given.pool('d', 'a').closing.size, 1);
  assert.equal(given.pool('d', 'a').idle.size, 4);
});

test('a server is evicted as soon as it is free, for a client of another pool that found none', (t) => {
  const given = world(t, 'max_db_connections = 1');
  const [backend] = withIdle(given, 1, given.pool('d', 'a'));
  const busy = new FakeClient(given.pool('d', 'a'));
  busy.run();
  const client = new FakeClient(given.pool('d', 'b'));
  client.ask();
  assert.equal(backend!.isTold, false);
  backend!.ready();
  assert.equal(backend!.isTold, true);
  backend!.end();
  given.opener().last.logIn();
  assert.deepEqual(client.events, ['server']);
});

test('the limit of a user makes room across databases', (t) => {
  const given = world(t, 'max_user_connections = 1', TWO);
  const [backend] = withIdle(given, 1, given.pool('d', 'u'));
  const client = new FakeClient(given.pool('e', 'u'));
  client.ask();
  assert.equal(backend!.isTold, true);
  backend!.end();
  given.opener('e').last.logIn();
  assert.deepEqual(client.events, ['server']);
});

test('a server in use is not evicted, nor a free one that counts against no full limit', (t) => {
  const given = world(t, 'max_db_connections = 1', TWO);
  const [elsewhere] = withIdle(given, 1, given.pool('e', 'a'));
  withIdle(given, 1, given.pool('d', 'a'));
  new FakeClient(given.pool('d', 'a')).run();
  const client = new FakeClient(given.pool('d', 'b'));
  client.ask();
  assert.equal(given.pool('d', 'a').closing.size, 0);
  assert.equal(elsewhere!.isTold, false);
});

test('two pools whose minimum does not fit below the limit do not evict one another', (t) => {
  const given = world(t, 'max_db_connections = 1\nmin_pool_size = 1');
  const [one, other] = [given.pool('d', 'a'), given.pool('d', 'b')];
  one.clients = 1;
  other.clients = 1;
  given.pools.tick(given.time.now);
  given.opener().last.logIn();
  for (let i = 0; i < 5; i++) given.pools.tick(given.time.now);
  assert.equal(one.closing.size + other.closing.size, 0);
});

// End of life

test('a free server is closed when its lifetime is over, each only after a part of it has passed', (t) => {
  const given = world(t, 'default_pool_size = 4\nserver_lifetime = 100');
  const backends = withIdle(given, 4);
  const pool = given.pool();
  const told = () => backends.filter(({ isTold }) => isTold).length;
  given.time.pass(99_999);
  pool.tick(given.time.now);
  assert.equal(told(), 0);
  given.time.pass(1);
  for (let expected = 1; expected <= 4; expected++) {
    pool.tick(given.time.now);
    assert.equal(told(), expected);
    given.time.pass(24_999);
    pool.tick(given.time.now);
    assert.equal(told(), expected);
    given.time.pass(1);
  }
});

test('a server in use is closed for its lifetime when it is released', (t) => {
  const given = world(t, 'server_lifetime = 100');
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  given.time.pass(200_000);
  given.pool().tick(given.time.now);
  assert.equal(backend!.isTold, false);
  backend!.ready();
  assert.equal(backend!.isTold, true);
  assert.deepEqual(client.events, ['free']);
});

test('with server_lifetime = 0 a server serves once', (t) => {
  const given = world(t, 'server_lifetime = 0');
  const client = new FakeClient(given.pool());
  client.act = () => client.send();
  client.ask();
  const backend = given.opener().last;
  backend.logIn();
  backend.ready();
  assert.equal(backend.isTold, true);
});

test('a free server is closed after server_idle_timeout, but never below min_pool_size', (t) => {
  const given = world(t, 'server_idle_timeout = 600\nmin_pool_size = 1');
  withIdle(given, 3);
  const pool = given.pool();
  given.time.pass(600_000);
  pool.tick(given.time.now);
  assert.equal(pool.idle.size, 3);
  given.time.pass(1);
  pool.tick(given.time.now);
  assert.equal(pool.idle.size, 1);
  assert.equal(pool.closing.size, 2);
});

test('a pool that has become smaller closes free servers above its size', (t) => {
  const given = world(t, 'default_pool_size = 5');
  withIdle(given, 5);
  const pool = given.pool();
  new FakeClient(pool).run();
  pool.plan = { ...pool.plan, size: 2 };
  pool.tick(given.time.now);
  assert.equal(pool.closing.size, 3);
  assert.equal(pool.connected, 2);
  pool.tick(given.time.now);
  assert.equal(pool.connected, 2);
});

// Minimum

test('min_pool_size is filled one connection at a time while the pool has clients', (t) => {
  const given = world(t, 'min_pool_size = 3\ndefault_pool_size = 3');
  const pool = given.pool();
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 0);
  pool.clients = 1;
  for (let count = 1; count <= 3; count++) {
    pool.tick(given.time.now);
    pool.tick(given.time.now);
    assert.equal(given.opener().backends.length, count);
    given.opener().last.logIn();
  }
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 3);
  assert.equal(pool.idle.size, 3);
});

test('a database with a forced user has its minimum opened before any client comes', (t) => {
  const given = world(t, 'min_pool_size = 2', 'd = host=h user=forced\ne = host=h');
  given.pools.prepare();
  assert.equal(given.pools.size, 1);
  given.pools.tick(given.time.now);
  given.opener().last.logIn();
  given.pools.tick(given.time.now);
  given.opener().last.logIn();
  const pool = given.pool('d', 'forced');
  assert.equal(pool.idle.size, 2);
  assert.equal(given.opener().last.credentials.user, 'forced');
});

// Pause, resume, shutdown

test('pause closes free servers at once and the others at their release; resume opens again', (t) => {
  const given = world(t, 'default_pool_size = 3');
  const [idle, busy] = withIdle(given, 2);
  const pool = given.pool();
  const [client, waiter] = [new FakeClient(pool), new FakeClient(pool)];
  client.run();
  const held = client.server === busy!.server ? busy! : idle!;
  given.pools.pause();
  assert.equal(pool.closing.size, 1);
  assert.equal(waiter.ask(), false);
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 2);
  held.ready();
  assert.equal(held.isTold, true);
  assert.deepEqual(eventsOf([client, waiter]), ['free', '']);
  idle!.end();
  busy!.end();
  assert.equal(given.pools.connections, 0);
  given.pools.resume();
  given.opener().last.logIn();
  assert.deepEqual(waiter.events, ['server']);
});

test('pause gives up a login in progress, and a pool made meanwhile is paused too', (t) => {
  const given = world(t, '', TWO);
  const client = new FakeClient(given.pool());
  client.ask();
  given.pools.pause();
  assert.equal(given.pool().opening.size, 0);
  const other = new FakeClient(given.pool('e'));
  other.ask();
  assert.equal(given.opener('e').backends.length, 0);
  given.pools.resume();
  assert.equal(given.opener('e').backends.length, 1);
});

test('a login that completes after the pause is not used', (t) => {
  const given = world(t);
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.ask();
  const backend = given.opener().last;
  backend.connect();
  pool.isPaused = true;
  backend.logIn();
  assert.equal(backend.isTold, true);
  assert.deepEqual(client.events, []);
});

test('a shutdown that waits for servers refuses those who wait and those who come', (t) => {
  const given = world(t, 'default_pool_size = 1');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const [holder, waiter] = [new FakeClient(pool), new FakeClient(pool)];
  holder.run();
  waiter.ask();
  given.pools.shutDown();
  const late = new FakeClient(pool);
  late.ask();
  const later = new FakeClient(given.pool('d', 'new'));
  later.ask();
  for (const client of [waiter, late, later]) {
    assert.deepEqual(client.events, ['refused: 08P01 server shutting down']);
  }
  assert.equal(given.pools.connections, 1);
  backend!.ready();
  backend!.end();
  assert.equal(given.pools.connections, 0);
  assert.deepEqual(holder.events, ['free']);
});

// Time-outs in the queue and on servers

test('a client waits no longer than query_wait_timeout', (t) => {
  const given = world(t, 'default_pool_size = 1\nquery_wait_notify = 0');
  withIdle(given, 1);
  const pool = given.pool();
  new FakeClient(pool).run();
  const [patient, other] = [new FakeClient(pool), new FakeClient(pool)];
  patient.queryWaitTimeout = 0;
  other.queryWaitTimeout = 7;
  patient.ask();
  other.ask();
  given.time.pass(7000);
  pool.tick(given.time.now);
  assert.deepEqual(other.events, []);
  given.time.pass(1);
  pool.tick(given.time.now);
  assert.deepEqual(eventsOf([patient, other]), ['', 'refused: 08P01 query_wait_timeout']);
});

test('query_timeout also ends a query that waits, under PgBouncer’s other spelling', (t) => {
  const given = world(t, 'default_pool_size = 1\nquery_timeout = 5');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const [running, waiting] = [new FakeClient(pool), new FakeClient(pool)];
  running.run();
  waiting.ask();
  given.time.pass(5001);
  pool.tick(given.time.now);
  assert.deepEqual(eventsOf([running, waiting]), [
    'lost: query timeout',
    'refused: 08P01 query_timeout',
  ]);
  assert.equal(backend!.isTold, true);
});

test('the notice of query_wait_notify comes once a wait, and only to welcome clients', (t) => {
  const given = world(t, 'default_pool_size = 1\nquery_wait_notify = 5');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  new FakeClient(pool).run();
  const [client, newcomer] = [new FakeClient(pool), new FakeClient(pool)];
  newcomer.isWelcomed = false;
  client.ask();
  pool.enqueue(newcomer);
  given.time.pass(5999);
  pool.tick(given.time.now);
  assert.deepEqual(client.events, []);
  given.time.pass(1);
  for (let i = 0; i < 3; i++) pool.tick(given.time.now);
  assert.deepEqual(eventsOf([client, newcomer]), ['notice', '']);
  client.act = () => client.send();
  newcomer.leave();
  backend!.ready();
  backend!.ready();
  new FakeClient(pool).run();
  client.ask();
  given.time.pass(6000);
  pool.tick(given.time.now);
  assert.deepEqual(client.events, ['notice', 'server', 'free', 'notice']);
});

test('each query of a pipeline has its own query_timeout', (t) => {
  const given = world(t, 'query_timeout = 5');
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  client.send();
  client.send();
  for (const later of [4000, 4000]) {
    given.time.pass(later);
    given.pool().tick(given.time.now);
    backend!.ready();
  }
  given.time.pass(5000);
  given.pool().tick(given.time.now);
  assert.deepEqual(client.events, []);
  given.time.pass(1);
  given.pool().tick(given.time.now);
  assert.deepEqual(client.events, ['lost: query timeout']);
});

test('a transaction that idles, or lasts, too long is ended with its server', (t) => {
  for (const [setting, reason] of [
    ['idle_transaction_timeout = 3', 'idle transaction timeout'],
    ['transaction_timeout = 3', 'transaction timeout'],
  ]) {
    const given = world(t, setting);
    const [backend] = withIdle(given, 1);
    const pool = given.pool();
    const client = new FakeClient(pool);
    client.run();
    backend!.ready('T');
    given.time.pass(3000);
    pool.tick(given.time.now);
    assert.deepEqual(client.events, [], setting);
    given.time.pass(1);
    pool.tick(given.time.now);
    assert.deepEqual(client.events, [`lost: ${reason}`]);
    assert.equal(backend!.isTold, true);
    t.mock.restoreAll();
  }
});

test('a pipelined query that runs long in a transaction is not idle', (t) => {
  const given = world(t, 'idle_transaction_timeout = 3');
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  client.send();
  backend!.ready('T');
  given.time.pass(10_000);
  given.pool().tick(given.time.now);
  assert.deepEqual(client.events, []);
  backend!.say(says.ready('I'));
  assert.deepEqual(client.events, ['free']);
});
