import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { inTurn } from '../../../src/net/turn.ts';
import type { ReplicationRequest } from '../../../src/pool/replication.ts';
import { ServerState } from '../../../src/server/server-connection.ts';
import { FakeClient, type World, withIdle, world } from './support.ts';

/** Replication clients of a pool whose servers the test plays. */

const LOGICAL: ReplicationRequest = { kind: 'logical', options: null, given: [] };
const PHYSICAL: ReplicationRequest = { kind: 'physical', options: null, given: [] };

function replicating(given: World, request: ReplicationRequest = LOGICAL, pool = given.pool()) {
  const client = new FakeClient(pool);
  client.replication = {
    ...request,
    given: request.given.length > 0 ? request.given : client.tracked,
  };
  return client;
}

function small(t: TestContext, settings = 'default_pool_size = 1'): World {
  return world(t, settings);
}

/** A reload from its begin to its end. */
function reconfigure(given: World, settings: string, databases?: string): void {
  given.reconfigure(settings, databases);
  inTurn(() => given.pools.release());
}

function parametersOf(packet: Buffer): Record<string, string> {
  const words = packet.toString('utf8', 8).split('\0');
  const found: Record<string, string> = {};
  for (let at = 0; words[at] !== undefined && words[at] !== ''; at += 2) {
    found[words[at]!] = words[at + 1]!;
  }
  return found;
}

test('a replication client gets a connection of its own although one is idle', (t) => {
  const given = world(t);
  const [idle] = withIdle(given, 1);
  const client = replicating(given);
  assert.equal(client.ask(), false);
  const { last } = given.opener();
  assert.notEqual(last, idle);
  last.logIn();
  assert.equal(client.server, last.server);
  assert.deepEqual(client.events, ['own server']);
  assert.equal(given.pool().idle.size, 1);
  assert.equal(given.pool().linked.first, last.server);
});

test('it is linked from the startup packet on, and waits until the login is over', (t) => {
  const given = world(t);
  const client = replicating(given);
  client.ask();
  assert.equal(client.server, null);
  const { last } = given.opener();
  last.connect();
  assert.equal(client.server, last.server);
  assert.equal(last.server.client, client);
  assert.equal(client.isWaiting, true);
  assert.equal(given.pool().waitingClients, 1);
  last.logIn();
  assert.equal(client.isWaiting, false);
  assert.equal(given.pool().waitingClients, 0);
});

test('the startup packet says what the client asked for', (t) => {
  const given = world(t);
  const { tracked } = given.pool();
  const known = (values: Record<string, string>) => {
    const all = tracked.none();
    for (const [name, value] of Object.entries(values)) all[tracked.indexOf(name)] = value;
    return all;
  };
  const rows: [ReplicationRequest, Record<string, string>][] = [
    [LOGICAL, { replication: 'database', DateStyle: 'German', TimeZone: 'UTC' }],
    [PHYSICAL, { replication: 'yes', DateStyle: 'German', TimeZone: 'UTC' }],
    // What was only told in the welcome (TimeZone) stays out: it might undo what `options` ask for.
    [
      { ...LOGICAL, options: ' -c a=b  --c=d' },
      { replication: 'database', DateStyle: 'German', options: ' -c a=b  --c=d' },
    ],
    [
      { ...LOGICAL, options: '' },
      { replication: 'database', DateStyle: 'German', options: '' },
    ],
  ];
  for (const [request, expected] of rows) {
    const client = replicating(given, { ...request, given: known({ DateStyle: 'German' }) });
    client.tracked = known({ DateStyle: 'German', TimeZone: 'UTC' });
    client.ask();
    const { last } = given.opener();
    last.connect();
    assert.deepEqual(parametersOf(last.startup()), { user: 'u', ...expected });
    client.leave();
    last.end();
  }
});

test('no parameters are set on it, and its query is the first that it hears', (t) => {
  const given = world(t);
  const client = replicating(given);
  client.tracked[0] = 'German';
  client.ask();
  const { last } = given.opener();
  last.logIn({ DateStyle: 'ISO, MDY' });
  assert.equal(last.heardText(), '');
});

test('what it says at its login is not told to other clients of the pool', (t) => {
  const given = world(t);
  const client = replicating(given);
  client.isWelcomed = false;
  client.ask();
  given.opener().last.logIn({ application_name: 'walreceiver' });
  assert.equal(client.isWelcomed, true);
  assert.equal(given.pool().welcome, null);
});

test('its server is kept at every ReadyForQuery, and closed when it leaves', (t) => {
  const given = world(t, 'server_reset_query_always = 1');
  const client = replicating(given);
  client.ask();
  const { last } = given.opener();
  last.logIn();
  client.send();
  last.ready();
  assert.equal(client.server, last.server);
  assert.equal(given.pool().traffic.queries, 1);
  client.leave();
  assert.equal(last.heardText(), 'X');
  assert.equal(last.isTold, true);
  assert.match(given.lines.join('\n'), /closing because: replication client was closed/);
  assert.equal(given.pool().total, 1);
  last.end();
  assert.equal(given.pool().total, 0);
});

test('a client that leaves during the login takes its connection with it', (t) => {
  const given = world(t);
  for (const isConnected of [false, true]) {
    const client = replicating(given);
    client.ask();
    const { last } = given.opener();
    if (isConnected) last.connect();
    client.leave();
    if (isConnected) last.end();
    assert.equal(last.server.state, ServerState.closed);
    assert.equal(given.pool().total, 0);
  }
});

test('a full pool closes one idle connection, and its slot is for the replication client', (t) => {
  const given = small(t, 'default_pool_size = 3');
  const [a, b, c] = withIdle(given, 3);
  const client = replicating(given);
  client.ask();
  const told = [a, b, c].filter((backend) => backend!.isTold);
  assert.equal(told.length, 1);
  assert.match(given.lines.join('\n'), /closing because: evicted for pool_size/);
  assert.equal(given.opener().backends.length, 3);
  // Time passes and others come, but no other connection is closed and the slot is not given away.
  const others = [new FakeClient(given.pool()), new FakeClient(given.pool())];
  for (const other of others) other.run();
  const late = new FakeClient(given.pool());
  late.ask();
  inTurn(() => given.pools.tick(given.time.now));
  assert.equal([a, b, c].filter((backend) => backend!.isTold).length, 1);
  told[0]!.end();
  given.opener().last.logIn();
  assert.equal(client.server, given.opener().last.server);
  assert.equal(late.isWaiting, true);
});

test('in a pool without idle connections the next one that comes free is closed for it', (t) => {
  const given = small(t);
  const [backend] = withIdle(given, 1);
  const busy = new FakeClient(given.pool());
  busy.run();
  const client = replicating(given);
  client.ask();
  given.time.pass(10);
  const late = new FakeClient(given.pool());
  late.ask();
  assert.equal(backend!.isTold, false);
  backend!.ready();
  assert.equal(backend!.isTold, true);
  backend!.end();
  given.opener().last.logIn();
  assert.equal(client.server, given.opener().last.server);
  assert.equal(late.isWaiting, true);
  client.leave();
  given.opener().last.end();
  given.opener().last.logIn();
  assert.equal(late.server, given.opener().last.server);
});

test('a client that has waited longer is served first', (t) => {
  const given = small(t);
  const [backend] = withIdle(given, 1);
  const busy = new FakeClient(given.pool());
  busy.run();
  const early = new FakeClient(given.pool());
  early.ask();
  given.time.pass(10);
  const client = replicating(given);
  client.ask();
  backend!.ready();
  assert.equal(early.server, backend!.server);
  assert.equal(client.isWaiting, true);
});

test('idle connections of its pool also make room below max_db_connections', (t) => {
  const given = small(t, 'max_db_connections = 1');
  const [backend] = withIdle(given, 1);
  const client = replicating(given);
  client.ask();
  assert.equal(backend!.isTold, true);
  backend!.end();
  given.opener().last.logIn();
  assert.equal(client.server, given.opener().last.server);
});

test('idle connections of other pools make room below max_db_connections', (t) => {
  const given = small(t, 'max_db_connections = 2');
  const [own] = withIdle(given, 1);
  const busy = new FakeClient(given.pool());
  busy.run();
  const [other] = withIdle(given, 1, given.pool('d', 'v'));
  const client = replicating(given);
  client.ask();
  assert.equal(own!.isTold, false);
  assert.equal(other!.isTold, true);
  other!.end();
  given.opener().last.logIn();
  assert.equal(client.server, given.opener().last.server);
});

test('a server that refuses the login is named in the log, and costs nobody else anything', (t) => {
  const given = world(t);
  const client = replicating(given);
  const other = new FakeClient(given.pool());
  other.isWelcomed = false;
  client.ask();
  inTurn(() => given.pool().enqueue(other));
  given.opener().last.refuse('42501', 'must be a replication role');
  assert.deepEqual(client.events, ['lost: login failed']);
  assert.match(given.lines.join('\n'), /S: login failed: FATAL: must be a replication role/);
  assert.deepEqual(other.events, []);
  // The next attempt does not wait for server_login_retry.
  given.opener().last.logIn();
  assert.deepEqual(other.events, ['pool ready']);
});

test('a connection that cannot be made leaves the client waiting for the next attempt', (t) => {
  const given = world(t, 'server_login_retry = 2');
  const client = replicating(given);
  client.isWelcomed = false;
  client.ask();
  given.opener().last.break('ECONNREFUSED');
  assert.deepEqual(client.events, []);
  assert.equal(client.isWaiting, true);
  inTurn(() => given.pools.tick(given.time.now));
  assert.equal(given.opener().backends.length, 1);
  given.time.pass(2000);
  inTurn(() => given.pools.tick(given.time.now));
  given.opener().last.logIn();
  assert.equal(client.server, given.opener().last.server);
});

test('a welcomed client is refused at once while every login fails', (t) => {
  const given = world(t);
  const first = replicating(given);
  first.ask();
  given.opener().last.break();
  const client = replicating(given);
  client.ask();
  assert.deepEqual(client.events, [
    'refused: 08P01 server login has been failing, cached error: connect failed (server_login_retry)',
  ]);
});

for (const [what, act, text] of [
  ['the server goes away', (world: World) => world.opener().last.end(), 'server conn crashed?'],
  [
    'the login takes too long',
    (world: World) => {
      world.time.pass(16_000);
      inTurn(() => world.pools.tick(world.time.now));
    },
    'connect timeout',
  ],
  [
    'where the pool connects changes',
    (world: World) => inTurn(() => world.pool().reconnect()),
    'connect string changed',
  ],
  ['the pool is paused', (world: World) => inTurn(() => world.pools.pause()), 'pause mode'],
] as const) {
  test(`during the login a client is told when ${what}`, (t) => {
    const given = world(t);
    const client = replicating(given);
    client.ask();
    given.opener().last.connect();
    act(given);
    assert.deepEqual(client.events, [`lost: ${text}`]);
  });
}

test('a connection that is not to be used any longer is closed at the next tick', (t) => {
  const given = world(t);
  const client = replicating(given);
  client.ask();
  const { last } = given.opener();
  last.logIn();
  client.send();
  given.pool().reconnect();
  assert.deepEqual(client.events, ['own server']);
  inTurn(() => given.pools.tick(given.time.now));
  assert.deepEqual(client.events, ['own server', 'lost: database configuration changed']);
});

test('clients that wait for a replication connection are refused when the servers shut down', (t) => {
  const given = small(t);
  withIdle(given, 1);
  new FakeClient(given.pool()).run();
  const client = replicating(given);
  client.ask();
  inTurn(() => given.pools.shutDown());
  assert.deepEqual(client.events, ['refused: 08P01 server shutting down']);
});

test('a replication client waits no longer than query_wait_timeout', (t) => {
  const given = small(t);
  withIdle(given, 1);
  new FakeClient(given.pool()).run();
  const client = replicating(given);
  client.queryWaitTimeout = 3;
  client.ask();
  given.time.pass(3001);
  inTurn(() => given.pools.tick(given.time.now));
  assert.deepEqual(client.events, ['refused: 08P01 query_wait_timeout']);
});

test('a paused pool opens its replication connections when it is resumed', (t) => {
  const given = world(t);
  inTurn(() => given.pools.pause());
  const client = replicating(given);
  client.ask();
  assert.equal(given.openers.get('d')?.backends.length ?? 0, 0);
  inTurn(() => given.pools.resume());
  given.opener().last.logIn();
  assert.equal(client.server, given.opener().last.server);
});

test('a walsender that streams on after it was told to end is reset', (t) => {
  const given = world(t);
  const client = replicating(given);
  client.ask();
  const { last } = given.opener();
  last.logIn();
  client.send();
  client.leave();
  assert.match(last.heardText(), /X$/);
  given.time.pass(500);
  last.say(Buffer.from('d\0\0\0\x05x', 'latin1'));
  inTurn(() => given.pools.tick(given.time.now));
  assert.equal(last.server.state, ServerState.closing);
  given.time.pass(600);
  inTurn(() => given.pools.tick(given.time.now));
  assert.equal(last.server.state, ServerState.closed);
  assert.equal(given.pool().total, 0);
});

test('it is not closed when its pool gets smaller or is no longer in session mode', (t) => {
  const given = small(t, 'default_pool_size = 2\npool_mode = session');
  const clients = [replicating(given), replicating(given)];
  for (const client of clients) {
    client.ask();
    given.opener().last.logIn();
  }
  reconfigure(given, 'default_pool_size = 1\npool_mode = transaction');
  inTurn(() => given.pools.tick(given.time.now));
  for (const client of clients) assert.deepEqual(client.events, ['own server']);
});

test('clients that wait belong to the pool of another user once the database line names one', (t) => {
  const given = small(t);
  const [backend] = withIdle(given, 1);
  new FakeClient(given.pool()).run();
  const client = replicating(given);
  client.ask();
  reconfigure(given, 'default_pool_size = 1', 'd = host=h user=w');
  assert.notEqual(client.pool, given.pool());
  backend!.ready();
  backend!.end();
  const { last } = given.opener();
  assert.equal(last.credentials.user, 'w');
  last.logIn();
  assert.deepEqual(client.events, ['own server']);
  assert.equal(client.pool, given.pool('d', 'w'));
});

test('a client whose connection is not made yet gets one of that other pool', (t) => {
  const given = small(t);
  const client = replicating(given);
  client.ask();
  const { last } = given.opener();
  reconfigure(given, 'default_pool_size = 1', 'd = host=h user=w');
  assert.equal(last.server.state, ServerState.closed);
  inTurn(() => given.pools.tick(given.time.now));
  assert.equal(given.opener().last.credentials.user, 'w');
  given.opener().last.logIn();
  assert.deepEqual(client.events, ['own server']);
});
