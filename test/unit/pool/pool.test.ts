import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ServerState } from '../../../src/server/server-connection.ts';
import * as says from '../../support/server-messages.ts';
import { FakeClient, withIdle, world } from './support.ts';

const eventsOf = (clients: readonly FakeClient[]) => clients.map(({ events }) => events.join(', '));

// Clients and servers

test('a client gets an idle server at once, and gives it back at the end of its transaction', (t) => {
  const given = world(t);
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const client = new FakeClient(pool);
  assert.equal(client.ask(), true);
  assert.equal(client.server, backend!.server);
  assert.equal(pool.linked.size, 1);
  client.send();
  backend!.ready();
  assert.equal(client.server, null);
  assert.deepEqual(client.events, ['free']);
  assert.equal(pool.idle.size, 1);
});

test('a client keeps its server inside of a transaction block, failed or not', (t) => {
  const given = world(t);
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  for (const status of ['T', 'E', 'T'] as const) {
    backend!.ready(status);
    assert.equal(client.server, backend!.server, status);
    client.send();
  }
  backend!.ready('I');
  assert.equal(client.server, null);
});

test('a client keeps its server while requests are outstanding or a message is half sent', (t) => {
  const given = world(t);
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  client.send();
  backend!.ready();
  assert.equal(client.server, backend!.server);
  client.isMidRequest = true;
  backend!.ready();
  assert.equal(client.server, backend!.server);
  client.isMidRequest = false;
  client.send();
  backend!.ready();
  assert.equal(client.server, null);
});

test('after a reconnect free servers close, busy ones when they are given back, and the welcome is learnt anew', (t) => {
  const given = world(t);
  const [busy, free] = withIdle(given, 2);
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.run();
  const [inUse, spare] = client.server === busy!.server ? [busy!, free!] : [free!, busy!];
  pool.reconnect();
  assert.equal(pool.welcome, null);
  assert.equal(spare.server.state, ServerState.closing);
  assert.equal(client.server, inUse.server);
  inUse.ready();
  assert.equal(client.server, null);
  assert.equal(inUse.server.state, ServerState.closing);
  assert.equal(pool.idle.size, 0);
});

test('waiting clients are served in the order they came, before any newcomer', (t) => {
  const given = world(t, 'default_pool_size = 1');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const order: number[] = [];
  const clients = Array.from({ length: 20 }, () => new FakeClient(pool));
  clients[0]!.run();
  for (const client of clients.slice(1)) {
    client.act = () => {
      order.push(client.id);
      client.send();
    };
    assert.equal(client.ask(), false);
  }
  assert.equal(pool.waiting.size, 19);
  for (let turn = 0; turn < 19; turn++) {
    backend!.ready();
    // Comes while others wait: the freed server is not for it.
    const late = new FakeClient(pool);
    assert.equal(late.ask(), false);
    late.leave();
  }
  assert.deepEqual(
    order,
    clients.slice(1).map(({ id }) => id),
  );
});

test('a client that leaves while waiting gives its place to the next', (t) => {
  const given = world(t, 'default_pool_size = 1');
  const [backend] = withIdle(given, 1);
  const [holder, second, third] = [1, 2, 3].map(() => new FakeClient(given.pool()));
  holder!.run();
  second!.ask();
  third!.ask();
  second!.leave();
  backend!.ready();
  assert.deepEqual(eventsOf([second!, third!]), ['', 'server']);
});

test('the time that clients waited is counted once they have a server', (t) => {
  const given = world(t, 'default_pool_size = 1');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const before = pool.traffic.waitUs;
  const [holder, waiter] = [new FakeClient(pool), new FakeClient(pool)];
  holder.run();
  waiter.ask();
  given.time.pass(250);
  backend!.ready();
  assert.equal(pool.traffic.waitUs - before, 250_000);
  given.time.pass(10);
  waiter.send();
  backend!.ready();
  assert.equal(pool.traffic.waitUs - before, 250_000);
});

test('queries and transactions are counted with their times when they end', (t) => {
  const given = world(t);
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  Object.assign(pool.traffic, { queries: 0, queryUs: 0, transactions: 0, transactionUs: 0 });
  const client = new FakeClient(pool);
  client.run();
  given.time.pass(3);
  backend!.ready('T');
  assert.deepEqual([pool.traffic.queries, pool.traffic.transactions], [1, 0]);
  given.time.pass(4);
  client.queryStart = given.time.now;
  client.send();
  given.time.pass(5);
  backend!.ready('I');
  const { queries, queryUs, transactions, transactionUs } = pool.traffic;
  assert.deepEqual(
    { queries, queryUs, transactions, transactionUs },
    { queries: 2, queryUs: 8000, transactions: 1, transactionUs: 12_000 },
  );
});

// Which server

test('the server released last is used first', (t) => {
  const given = world(t);
  const [first, second, third] = withIdle(given, 3);
  const pool = given.pool();
  assert.deepEqual([...pool.idle], [third!.server, second!.server, first!.server]);
  const client = new FakeClient(pool);
  client.ask();
  assert.equal(client.server, third!.server);
});

test('with server_round_robin the server that has rested longest is used first', (t) => {
  const given = world(t, 'server_round_robin = 1');
  const backends = withIdle(given, 3);
  const client = new FakeClient(given.pool());
  for (const backend of [...backends, ...backends]) {
    client.run();
    assert.equal(client.server, backend.server);
    backend.ready();
  }
});

test('a server marked to be closed is never given to a client', (t) => {
  const given = world(t);
  const [first, second] = withIdle(given, 2);
  const client = new FakeClient(given.pool());
  second!.server.isCloseNeeded = true;
  assert.equal(client.ask(), true);
  assert.equal(client.server, first!.server);
  assert.equal(second!.isTold, true);
  client.send();
  first!.server.isCloseNeeded = true;
  first!.ready();
  assert.equal(first!.isTold, true);
  assert.deepEqual(client.events, ['free']);
});

test('an idle server that says something is taken for one that is dying', (t) => {
  const given = world(t);
  const pool = given.pool();
  const [first, second, third, fourth] = withIdle(given, 4);
  first!.say(says.errorResponse('57P01', 'terminating connection', 'FATAL'));
  second!.say(says.parameterStatus('TimeZone', 'UTC'));
  third!.say(says.ready('I'));
  fourth!.say(Buffer.from([0x41, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0]));
  const told = () => [first, second, third, fourth].map((backend) => backend!.isTold);
  assert.deepEqual(told(), [false, false, false, false]);
  pool.tick(given.time.now);
  assert.deepEqual(told(), [true, true, false, false]);
  assert.equal(pool.idle.size, 2);
  assert.equal(given.lines.filter((line) => line.includes('SV_IDLE server got dirty')).length, 2);
});

test('a server that said something while it was idle is given to no client', (t) => {
  const given = world(t);
  const [older, newer] = withIdle(given, 2);
  const spoken = given.pool().idle.first === newer!.server ? newer! : older!;
  spoken.say(says.errorResponse('57P01', 'terminating connection', 'FATAL'));
  const client = new FakeClient(given.pool());
  client.run();
  assert.equal(spoken.isTold, true);
  assert.notEqual(client.server, spoken.server);
  assert.ok(given.lines.some((line) => line.includes('idle server got dirty')));
});

test('a parked server that said something is closed when its check is due', (t) => {
  const given = world(t, CHECKED);
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  given.time.pass(30_001);
  pool.tick(given.time.now);
  assert.equal(pool.used.size, 1);
  backend!.say(says.parameterStatus('TimeZone', 'UTC'));
  given.time.pass(30_001);
  const client = new FakeClient(pool);
  client.ask();
  assert.equal(backend!.isTold, true);
  assert.equal(given.opener().backends.length, 2);
});

// Parameters

test('a server is given the client’s parameters before its first message, in one query', (t) => {
  const given = world(t);
  const pool = given.pool();
  const opener = () => given.opener();
  const first = new FakeClient(pool);
  first.ask();
  const known = { TimeZone: 'UTC', DateStyle: 'ISO', client_encoding: 'UTF8' };
  opener().last.logIn(known);
  first.send();
  opener().last.ready();
  opener().last.heard();
  const client = new FakeClient(pool);
  client.tracked[pool.tracked.indexOf('timezone')] = 'europe/paris';
  client.tracked[pool.tracked.indexOf('datestyle')] = 'iso';
  client.tracked[pool.tracked.indexOf('application_name')] = 'not reported';
  assert.equal(client.ask(), false);
  const backend = opener().last;
  assert.equal(
    backend.heardText(),
    "Q(SET TimeZone='europe/paris';SET application_name='not reported';)",
  );
  assert.deepEqual(client.events, []);
  backend.say(says.commandComplete('SET'), says.parameterStatus('TimeZone', 'Europe/Paris'));
  backend.say(says.ready());
  assert.deepEqual(client.events, ['server']);
  assert.deepEqual(client.fake.socket.written, []);
  // The server's spelling is the client's from now on.
  assert.equal(client.tracked[pool.tracked.indexOf('TimeZone')], 'Europe/Paris');
  client.send();
  backend.ready();
  assert.equal(client.ask(), true);
});

test('a parameter that the server does not take ends both', (t) => {
  const given = world(t);
  const pool = given.pool();
  const first = new FakeClient(pool);
  first.ask();
  const backend = given.opener().last;
  backend.logIn({ TimeZone: 'UTC' });
  first.send();
  backend.ready();
  const client = new FakeClient(pool);
  client.tracked[pool.tracked.indexOf('TimeZone')] = 'nowhere';
  client.ask();
  backend.say(says.errorResponse('22023', 'invalid value'), says.ready());
  assert.deepEqual(client.events, ['lost: invalid server parameter']);
  assert.equal(backend.isTold, true);
});

test('a client that leaves while its parameters are applied takes the server with it', (t) => {
  const given = world(t);
  const pool = given.pool();
  const first = new FakeClient(pool);
  first.ask();
  const backend = given.opener().last;
  backend.logIn({ TimeZone: 'UTC' });
  first.send();
  backend.ready();
  const client = new FakeClient(pool);
  client.tracked[pool.tracked.indexOf('TimeZone')] = 'Europe/Paris';
  client.ask();
  client.leave();
  assert.equal(backend.isTold, true);
  backend.say(says.commandComplete('SET'), says.ready());
  backend.end();
  assert.equal(pool.total, 0);
});

// Leaving

test('a client that leaves with work on its server takes the server with it', (t) => {
  const cases: [string, (client: FakeClient, ready: (status: 'T' | 'I') => void) => void][] = [
    ['query in progress', () => {}],
    ['transaction block open', (_client, ready) => ready('T')],
    [
      'half a message sent',
      (client, ready) => {
        client.isMidRequest = true;
        ready('I');
      },
    ],
    [
      'pipelined requests outstanding',
      (client, ready) => {
        client.send();
        ready('I');
      },
    ],
  ];
  for (const [name, prepare] of cases) {
    const given = world(t);
    const [backend] = withIdle(given, 1);
    const client = new FakeClient(given.pool());
    client.run();
    prepare(client, (status) => backend!.ready(status));
    client.leave();
    assert.equal(backend!.isTold, true, name);
    assert.equal(backend!.heard().at(-1)?.type, 'X', name);
    assert.equal(given.pool().closing.size, 1, name);
    assert.equal(client.server, null, name);
    t.mock.restoreAll();
  }
});

test('a client that leaves a session with nothing outstanding gives its server back', (t) => {
  const given = world(t, 'pool_mode = session\nserver_reset_query =');
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  backend!.ready();
  assert.equal(client.server, backend!.server);
  client.leave();
  assert.equal(given.pool().idle.size, 1);
  assert.equal(backend!.isTold, false);
});

test('a server that a slow client had stopped reads on when it is given back', (t) => {
  const given = world(t);
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  backend!.server.link.pause();
  backend!.ready();
  assert.equal(given.pool().idle.size, 1);
  assert.equal(backend!.socket.isReading, true);
});

test('a client whose server dies is told; its slot is free at once and the next client served', (t) => {
  const given = world(t, 'default_pool_size = 1');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const [client, next] = [new FakeClient(pool), new FakeClient(pool)];
  client.run();
  next.ask();
  backend!.break();
  assert.deepEqual(client.events, ['lost: server conn crashed?']);
  assert.equal(given.opener().backends.length, 2);
  given.opener().last.logIn();
  assert.deepEqual(next.events, ['server']);
});

test('statement mode ends a client that opens a transaction block, and its server', (t) => {
  const given = world(t, 'pool_mode = statement');
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  backend!.ready('T');
  assert.deepEqual(client.events, [
    'lost: transaction blocks not allowed in statement pooling mode',
  ]);
  assert.equal(backend!.isTold, true);
});

// Reset, check, cancel

test('session mode resets a released server before anybody else gets it', (t) => {
  const given = world(t, 'pool_mode = session\ndefault_pool_size = 1');
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.ask();
  const backend = given.opener().last;
  backend.logIn();
  client.send();
  backend.ready();
  backend.heard();
  client.leave();
  assert.equal(backend.heardText(), 'Q(DISCARD ALL)');
  assert.equal(pool.tested.size, 1);
  const next = new FakeClient(pool);
  assert.equal(next.ask(), false);
  assert.equal(given.opener().backends.length, 1);
  // Its outcome does not matter, as long as the session is between transactions.
  backend.say(says.errorResponse('42501', 'not allowed'), says.ready());
  assert.deepEqual(next.events, ['server']);
  assert.deepEqual(next.fake.socket.written, []);
});

test('a reset that leaves a transaction open costs the server', (t) => {
  const given = world(t, 'pool_mode = session\nserver_reset_query = BEGIN');
  const client = new FakeClient(given.pool());
  client.ask();
  const backend = given.opener().last;
  backend.logIn();
  client.send();
  backend.ready();
  client.leave();
  backend.ready('T');
  assert.equal(backend.isTold, true);
});

test('transaction mode runs no reset query unless server_reset_query_always says so', (t) => {
  for (const [setting, sent] of [
    ['', ''],
    ['server_reset_query_always = 1', 'Q(DISCARD ALL)'],
  ]) {
    const given = world(t, setting);
    const client = new FakeClient(given.pool());
    client.ask();
    const backend = given.opener().last;
    backend.logIn();
    client.send();
    backend.ready();
    assert.equal(backend.heardText(), sent);
    t.mock.restoreAll();
  }
});

const CHECKED = 'server_check_query = select 1\nserver_check_delay = 30';

test('a server idle for server_check_delay is parked, and checked when a client needs it', (t) => {
  const given = world(t, CHECKED);
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  given.time.pass(30_000);
  pool.tick(given.time.now);
  assert.equal(pool.used.size, 0);
  given.time.pass(1);
  pool.tick(given.time.now);
  assert.equal(pool.used.size, 1);
  assert.equal(backend!.heardText(), '');
  const client = new FakeClient(pool);
  assert.equal(client.ask(), false);
  assert.equal(backend!.heardText(), 'Q(select 1)');
  assert.equal(given.opener().backends.length, 1);
  backend!.say(says.errorResponse('42601', 'syntax error'), says.ready());
  assert.deepEqual(client.events, ['server']);
});

test('a client that is given a parked server which needs no check any more goes on at once', (t) => {
  const given = world(t, CHECKED);
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  given.time.pass(30_001);
  pool.tick(given.time.now);
  // A notification shows that the server lives.
  backend!.say(Buffer.from([0x41, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0]));
  const client = new FakeClient(pool);
  assert.equal(client.ask(), true);
  assert.equal(client.server, backend!.server);
  assert.equal(backend!.heardText(), '');
});

test('a parked server that does not survive its check is replaced for the client that waits', (t) => {
  const given = world(t, CHECKED);
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  given.time.pass(30_001);
  pool.tick(given.time.now);
  const client = new FakeClient(pool);
  client.ask();
  backend!.break();
  assert.equal(given.opener().backends.length, 2);
  given.opener().last.logIn();
  assert.deepEqual(client.events, ['server']);
});

test('with server_check_delay = 0 every reuse is checked', (t) => {
  const given = world(t, 'server_check_query = <empty>\nserver_check_delay = 0');
  const pool = given.pool();
  const client = new FakeClient(pool);
  client.ask();
  const backend = given.opener().last;
  backend.logIn();
  client.send();
  backend.ready();
  assert.equal(pool.used.size, 1);
  backend.heard();
  assert.equal(client.ask(), false);
  assert.equal(backend.heardText(), 'Q()');
});

test('as many parked servers are checked as clients wait, and the pool opens one for the rest', (t) => {
  const given = world(t, CHECKED);
  const [first, second] = withIdle(given, 2);
  const pool = given.pool();
  given.time.pass(30_001);
  pool.tick(given.time.now);
  const clients = [1, 2, 3].map(() => new FakeClient(pool));
  const [one, two, three] = clients;
  for (const client of clients) client.act = () => client.send();
  one!.ask();
  assert.equal(pool.tested.size, 1);
  two!.ask();
  assert.equal(pool.tested.size, 2);
  assert.equal(given.opener().backends.length, 2);
  three!.ask();
  assert.equal(given.opener().backends.length, 3);
  assert.deepEqual(eventsOf(clients), ['', '', '']);
  first!.say(says.ready());
  second!.say(says.ready());
  assert.deepEqual(eventsOf(clients), ['server', 'server', '']);
});

test('a server whose check is not answered is closed after server_idle_timeout', (t) => {
  const given = world(t, `${CHECKED}\nserver_idle_timeout = 60`);
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  given.time.pass(30_001);
  pool.tick(given.time.now);
  const client = new FakeClient(pool);
  client.ask();
  assert.equal(pool.tested.size, 1);
  given.time.pass(30_000);
  pool.tick(given.time.now);
  assert.equal(backend!.isTold, true);
});

test('a server whose cancel request is on its way is lent to nobody until it has gone', (t) => {
  const given = world(t, 'default_pool_size = 1');
  const [backend] = withIdle(given, 1);
  const pool = given.pool();
  const [client, next] = [new FakeClient(pool), new FakeClient(pool)];
  client.run();
  next.ask();
  backend!.server.cancelsInFlight = 2;
  backend!.ready();
  assert.equal(pool.held.size, 1);
  assert.deepEqual(eventsOf([client, next]), ['free', '']);
  pool.tick(given.time.now);
  assert.equal(given.opener().backends.length, 1);
  backend!.server.cancelsInFlight--;
  pool.onCancelsGone(backend!.server);
  assert.deepEqual(next.events, []);
  backend!.server.cancelsInFlight--;
  pool.onCancelsGone(backend!.server);
  assert.deepEqual(next.events, ['server']);
  assert.equal(next.server, backend!.server);
});

test('a held server that dies gives its slot back', (t) => {
  const given = world(t);
  const [backend] = withIdle(given, 1);
  const client = new FakeClient(given.pool());
  client.run();
  backend!.server.cancelsInFlight = 1;
  backend!.ready();
  backend!.end();
  assert.equal(given.pool().total, 0);
  backend!.server.cancelsInFlight = 0;
  given.pool().onCancelsGone(backend!.server);
  assert.equal(given.pool().total, 0);
});
