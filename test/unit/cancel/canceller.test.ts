import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { CancelKeys } from '../../../src/cancel/cancel-keys.ts';
import { Canceller, type CancelTarget } from '../../../src/cancel/canceller.ts';
import type { PeerEntry } from '../../../src/config/config.ts';
import { Link, type LinkHandler } from '../../../src/net/link.ts';
import type { Pool } from '../../../src/pool/pool.ts';
import type { ServerConnection } from '../../../src/server/server-connection.ts';
import { cancelRequest } from '../../support/messages.ts';
import { FakeSocket } from '../net/support.ts';
import { FakeClient, type World, withIdle, world } from '../pool/support.ts';

const PEER: PeerEntry = { id: 9, host: '10.0.0.9', port: 6432, pool_size: null };

/** A pool's client that can be cancelled, as a session can. */
class Target extends FakeClient implements CancelTarget {
  isConsole = false;

  cancelWaiting(): void {
    this.events.push('cancelled while waiting');
    this.leave();
  }

  onCancelGone(server: ServerConnection): void {
    (server.owner as Pool).onCancelsGone(server);
  }
}

/** One connection that carries a cancel request, its other end played by the test. */
class Errand {
  readonly place: ServerConnection['place'];
  readonly socket = new FakeSocket();
  readonly link: Link;
  readonly connect: () => void;

  constructor(place: ServerConnection['place'], handler: LinkHandler, connect: () => void) {
    this.place = place;
    this.connect = connect;
    this.link = new Link(this.socket as unknown as Socket, handler);
  }

  get sent(): string {
    return Buffer.concat(this.socket.written).toString('hex');
  }

  /** The server has sent its signal and closes. */
  end(): void {
    this.socket.emit('end');
  }
}

function setUp(t: TestContext, options: { peerId?: number; waitTimeoutMs?: number } = {}) {
  const given = world(t, 'default_pool_size = 30');
  const { peerId = 0 } = options;
  const keys = new CancelKeys<CancelTarget>(1, peerId);
  const errands: Errand[] = [];
  const forwarded: string[] = [];
  const dones: (() => void)[] = [];
  const told: string[] = [];
  const canceller = new Canceller({
    keys,
    mesh: {
      forwardCancel: (worker, packet, done) => {
        forwarded.push(`worker ${worker}: ${packet.toString('hex')}`);
        dones.push(done);
      },
      forwardCancelToPeer: (peer, packet, timeoutMs, done) => {
        forwarded.push(`peer ${peer.host}, ${timeoutMs} ms: ${packet.toString('hex')}`);
        dones.push(done);
      },
    },
    worker: 1,
    size: 4,
    peerId,
    peer: (id) => (id === PEER.id ? PEER : null),
    connect: (place, handler, onConnect) => {
      const errand = new Errand(place, handler, onConnect);
      errands.push(errand);
      return errand.link;
    },
    waitTimeoutMs: options.waitTimeoutMs ?? 10_000,
    onConsoleCancel: () => told.push('console'),
  });
  const ask = (key: Uint8Array) => {
    const asked = { done: 0 };
    canceller.handle(cancelRequest(key), () => asked.done++);
    return asked;
  };
  return { given, keys, errands, forwarded, dones, canceller, ask, told };
}

/** A client with a running query, and the other end of its server. */
function running(given: World, keys: CancelKeys<CancelTarget>) {
  const [backend] = withIdle(given, 1);
  const client = new Target(given.pool());
  client.run();
  return { backend: backend!, client, key: keys.add(client) };
}

test('the server that runs the client’s query is sent its own key, and then nobody else is', (t) => {
  const { given, keys, errands, ask, canceller } = setUp(t);
  const { backend, key } = running(given, keys);
  const asked = ask(key);
  assert.deepEqual(errands[0]!.place, { host: 'h', port: 1 });
  assert.equal(errands[0]!.sent, '');
  assert.equal(canceller.active, 1);
  assert.equal(backend.server.cancelsInFlight, 1);
  errands[0]!.connect();
  errands[0]!.link.flush();
  assert.equal(errands[0]!.sent, cancelRequest(backend.key).toString('hex'));
  // The requester is let go when the server has closed: then the signal has been sent.
  assert.equal(asked.done, 0);
  errands[0]!.end();
  assert.equal(asked.done, 1);
  assert.equal(errands[0]!.socket.destroyed, true);
  assert.equal(canceller.active, 0);
  assert.equal(backend.server.cancelsInFlight, 0);
});

test('nothing is sent when the query has ended before the connection stood', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { backend, client, key } = running(given, keys);
  const asked = ask(key);
  backend.ready();
  assert.equal(client.server, null);
  errands[0]!.connect();
  assert.equal(errands[0]!.sent, '');
  assert.equal(asked.done, 1);
  assert.equal(given.pool().idle.size, 1);
});

test('nothing is sent when the client runs its next query, on that server or another', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const [other] = withIdle(given, 2);
  const client = new Target(given.pool());
  client.run();
  const { server } = client;
  const key = keys.add(client);
  const asked = ask(key);
  given
    .opener()
    .backends.find((backend) => backend.server === server)!
    .ready();
  client.run();
  assert.equal(client.server, other!.server);
  errands[0]!.connect();
  assert.equal(errands[0]!.sent, '');
  assert.equal(asked.done, 1);
});

test('nothing is sent when the client’s next query runs on the server that it has kept', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { backend, client, key } = running(given, keys);
  const asked = ask(key);
  backend.ready('T');
  given.time.pass(1);
  client.queryStart = given.time.now;
  client.send();
  errands[0]!.connect();
  assert.equal(errands[0]!.sent, '');
  assert.equal(asked.done, 1);
  assert.equal(client.server, backend.server);
});

test('a server is lent to nobody before the cancel connection has closed', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { backend, client, key } = running(given, keys);
  ask(key);
  errands[0]!.connect();
  backend.ready();
  const pool = given.pool();
  assert.deepEqual(client.events, ['free']);
  assert.equal(pool.held.size, 1);
  const next = new FakeClient(pool);
  assert.equal(next.ask(), false);
  assert.equal(next.server, null);
  errands[0]!.end();
  assert.equal(next.server, backend.server);
  assert.deepEqual(next.events, ['server']);
});

test('of two requests for one query both must have gone before the server is free', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { backend, key } = running(given, keys);
  const asked = [ask(key), ask(key)];
  for (const errand of errands) errand.connect();
  backend.ready();
  errands[1]!.end();
  assert.equal(given.pool().held.size, 1);
  assert.deepEqual(
    asked.map(({ done }) => done),
    [0, 1],
  );
  errands[0]!.end();
  assert.equal(given.pool().idle.size, 1);
  assert.deepEqual(
    asked.map(({ done }) => done),
    [1, 1],
  );
});

test('a request for a client that runs nothing comes to nothing, and a console is told', (t) => {
  const { given, keys, errands, ask, told } = setUp(t);
  const pool = given.pool();
  const [backend] = withIdle(given, 1);
  const idle = new Target(pool);
  const inTransaction = new Target(pool);
  inTransaction.run();
  backend!.ready('T');
  const console = new Target(pool);
  console.isConsole = true;
  for (const client of [idle, inTransaction, console]) {
    assert.equal(ask(keys.add(client)).done, 1);
  }
  assert.equal(ask(Buffer.from('0000000100000000', 'hex')).done, 1);
  assert.deepEqual(errands, []);
  assert.deepEqual(told, ['console']);
});

test('a request that comes while pipelined queries are still to be answered is sent', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { backend, client, key } = running(given, keys);
  client.send();
  backend.ready('I');
  // The first query is answered, the second runs.
  const asked = ask(key);
  assert.equal(errands.length, 1);
  errands[0]!.connect();
  errands[0]!.link.flush();
  assert.equal(errands[0]!.sent, cancelRequest(backend.key).toString('hex'));
  errands[0]!.end();
  assert.equal(asked.done, 1);
});

test('a server that runs a query of the pooler’s own is not cancelled', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { client, key } = running(given, keys);
  client.server!.runOwn('SET x = 1', () => {});
  assert.equal(ask(key).done, 1);
  assert.deepEqual(errands, []);
});

test('a client that waits for a server is taken out of the queue', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const client = new Target(given.pool());
  client.ask();
  const key = keys.add(client);
  assert.equal(ask(key).done, 1);
  assert.deepEqual(client.events, ['cancelled while waiting']);
  assert.equal(given.pool().waiting.size, 0);
  assert.deepEqual(errands, []);
});

test('a key of another worker goes to that worker as it came, and its answer is awaited', (t) => {
  const { forwarded, dones, ask } = setUp(t);
  const key = new CancelKeys(3, 0).add({ id: 1 });
  const asked = ask(key);
  assert.deepEqual(forwarded, [`worker 3: ${cancelRequest(key).toString('hex')}`]);
  assert.equal(asked.done, 0);
  dones[0]!();
  assert.equal(asked.done, 1);
});

test('a key of a worker that the fleet does not have is dropped', (t) => {
  const { forwarded, ask } = setUp(t);
  assert.equal(ask(new CancelKeys(4, 0).add({ id: 1 })).done, 1);
  assert.deepEqual(forwarded, []);
});

test('a worker of the same fleet gets the key with all of its hops', (t) => {
  const { forwarded, ask } = setUp(t, { peerId: 7 });
  const key = new CancelKeys(2, 7).add({ id: 1 });
  ask(key);
  assert.deepEqual(forwarded, [`worker 2: ${cancelRequest(key).toString('hex')}`]);
});

test('a key of another peer goes to that peer with one hop less, until none is left', (t) => {
  const { forwarded, dones, ask } = setUp(t, { peerId: 7 });
  const key = new CancelKeys(1, PEER.id, () => Buffer.alloc(8, 0xf0)).add({ id: 1 });
  for (const [hops, next] of [
    [3, 0xf2],
    [2, 0xf1],
    [1, 0xf0],
  ] as const) {
    key[7] = 0xf0 | hops;
    forwarded.length = 0;
    const asked = ask(key);
    const sent = Buffer.from(key);
    sent[7] = next;
    assert.deepEqual(forwarded, [
      `peer 10.0.0.9, 10000 ms: ${cancelRequest(sent).toString('hex')}`,
    ]);
    assert.equal(asked.done, 0);
    dones.pop()!();
    assert.equal(asked.done, 1);
  }
  key[7] = 0xf0;
  forwarded.length = 0;
  assert.equal(ask(key).done, 1);
  assert.deepEqual(forwarded, []);
});

test('a key of a peer that is not configured is dropped', (t) => {
  const { forwarded, ask } = setUp(t, { peerId: 7 });
  assert.equal(ask(new CancelKeys(1, 12).add({ id: 1 })).done, 1);
  assert.deepEqual(forwarded, []);
});

test('a client is found by a key that came back from a peer with fewer hops', (t) => {
  const { given, keys, errands, ask } = setUp(t, { peerId: 7 });
  const { key } = running(given, keys);
  key[7] = key[7]! - 2;
  ask(key);
  assert.equal(errands.length, 1);
});

test('a packet whose key has another length is dropped', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { key } = running(given, keys);
  assert.equal(ask(key.subarray(0, 7)).done, 1);
  assert.equal(ask(Buffer.concat([key, Buffer.of(0)])).done, 1);
  assert.equal(ask(Buffer.alloc(0)).done, 1);
  assert.deepEqual(errands, []);
});

test('a connection that fails or breaks frees the server and lets the requester go', (t) => {
  const { given, keys, errands, ask, canceller } = setUp(t);
  const { backend, key } = running(given, keys);
  const asked = ask(key);
  errands[0]!.socket.emit('error', new Error('ECONNREFUSED'));
  errands[0]!.socket.destroy();
  assert.equal(asked.done, 1);
  assert.equal(backend.server.cancelsInFlight, 0);
  assert.equal(canceller.active, 0);
  assert.ok(given.lines.some((line) => line.includes('ECONNREFUSED')));
});

test('a server that is lost while its cancel is on its way is counted for nothing', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { backend, key } = running(given, keys);
  const asked = ask(key);
  backend.break();
  errands[0]!.connect();
  assert.equal(errands[0]!.sent, '');
  assert.equal(asked.done, 1);
  assert.equal(given.pool().total, 0);
});

test('at most 16 connections carry requests at one time; the others follow in order', (t) => {
  const { given, keys, errands, ask, canceller } = setUp(t);
  withIdle(given, 20);
  const clients = Array.from({ length: 20 }, () => {
    const client = new Target(given.pool());
    client.run();
    return { client, key: keys.add(client) };
  });
  const asked = clients.map(({ key }) => ask(key));
  assert.deepEqual([canceller.active, canceller.waiting, errands.length], [16, 4, 16]);
  // One that waits is over before its turn: its server is held back, and it is skipped.
  const over = given.opener().backends.find(({ server }) => server === clients[16]!.client.server)!;
  over.ready();
  assert.equal(given.pool().held.size, 1);
  for (const errand of errands.slice(0, 3)) errand.connect();
  errands[0]!.end();
  assert.equal(asked[16]!.done, 1);
  assert.equal(given.pool().held.size, 0);
  assert.deepEqual([canceller.active, canceller.waiting], [16, 2]);
  for (const errand of [...errands]) errand.end();
  for (const errand of [...errands]) errand.end();
  assert.ok(asked.every(({ done }) => done === 1));
  assert.equal(errands.length, 19);
});

test('requests are given up after cancel_wait_timeout, waiting or on their way', (t) => {
  const { given, keys, errands, ask, canceller } = setUp(t);
  withIdle(given, 20);
  const clients = Array.from({ length: 18 }, () => {
    const client = new Target(given.pool());
    client.run();
    return { client, key: keys.add(client) };
  });
  const asked = clients.map(({ key }) => ask(key));
  given.time.pass(10_000);
  canceller.tick(given.time.now);
  assert.ok(asked.every(({ done }) => done === 0));
  given.time.pass(1);
  canceller.tick(given.time.now);
  assert.ok(asked.every(({ done }) => done === 1));
  assert.deepEqual([canceller.active, canceller.waiting, errands.length], [0, 0, 16]);
  assert.ok(errands.every(({ socket }) => socket.destroyed));
  assert.ok(clients.every(({ client }) => client.server!.cancelsInFlight === 0));
});

test('a cancel_wait_timeout of 0 waits for ever', (t) => {
  const { given, keys, ask, canceller } = setUp(t, { waitTimeoutMs: 0 });
  const { key } = running(given, keys);
  const asked = ask(key);
  given.time.pass(1e9);
  canceller.tick(given.time.now);
  assert.equal(asked.done, 0);
  assert.equal(canceller.active, 1);
});
