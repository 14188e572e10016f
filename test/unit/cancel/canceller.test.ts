import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { CancelKeys } from '../../../src/cancel/cancel-keys.ts';
import { Canceller, type CancelPeer, type CancelTarget } from '../../../src/cancel/canceller.ts';
import { Link, type LinkHandler } from '../../../src/net/link.ts';
import { inTurn } from '../../../src/net/turn.ts';
import type { Pool } from '../../../src/pool/pool.ts';
import type { ServerConnection } from '../../../src/server/server-connection.ts';
import { cancelRequest } from '../../support/messages.ts';
import * as says from '../../support/server-messages.ts';
import { FakeSocket } from '../net/support.ts';
import { FakeClient, type World, withIdle, world } from '../pool/support.ts';

const NOW_IDLE = 'not sending cancel request for client that is now idle';
const PEER_ID = 9;
const CONNECT_MS = 15_000;
const PEER: CancelPeer = { host: '10.0.0.9', port: 6432, limit: 2, holder: 1 };

/** A pool's client that can be cancelled, as a session can. */
class Target extends FakeClient implements CancelTarget {
  isConsole = false;
  isBeingPrepared = false;

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
  /** The connection stands, and is safe. */
  readonly connect: () => void;

  constructor(place: ServerConnection['place'], handler: LinkHandler, connect: () => void) {
    this.place = place;
    this.connect = () => inTurn(connect);
    this.link = new Link(this.socket as unknown as Socket, handler);
  }

  get sent(): string {
    return Buffer.concat(this.socket.written).toString('hex');
  }

  /** The server has sent its signal and closes. */
  end(): void {
    this.socket.emit('end');
  }

  fail(error: object = new Error('connect ECONNREFUSED')): void {
    this.socket.emit('error', error);
    this.socket.destroy();
  }
}

/** A request handed to a sibling, whose end the test plays. */
interface Forwarded {
  readonly text: string;
  readonly onEnd: () => void;
  isGivenUp: boolean;
}

function setUp(
  t: TestContext,
  options: { peerId?: number; waitMs?: number; peer?: Partial<CancelPeer> } = {},
) {
  const given = world(t, 'default_pool_size = 30');
  const { peerId = 0 } = options;
  const keys = new CancelKeys<CancelTarget>(1, peerId);
  const errands: Errand[] = [];
  const toPeer: Errand[] = [];
  const forwarded: Forwarded[] = [];
  const told: string[] = [];
  let peer: CancelPeer | null = { ...PEER, ...options.peer };
  const canceller = new Canceller({
    keys,
    mesh: {
      forwardCancel: (worker, packet, waitMs, done) => {
        const one: Forwarded = {
          text: `worker ${worker}, ${waitMs} ms: ${packet.toString('hex')}`,
          onEnd: () => done('said the sibling'),
          isGivenUp: false,
        };
        forwarded.push(one);
        return () => {
          one.isGivenUp = true;
        };
      },
    },
    worker: 1,
    size: 4,
    peerId,
    peer: (id) => (id === PEER_ID ? peer : null),
    connect: (server, handler, onSafe) => {
      const errand = new Errand(server.place, handler, onSafe);
      errands.push(errand);
      return errand.link;
    },
    connectPeer: ({ host, port }, handler, onSafe) => {
      const errand = new Errand({ host, port }, handler, onSafe);
      toPeer.push(errand);
      return errand.link;
    },
    timeouts: () => ({
      waitMs: options.waitMs ?? 10_000,
      peerConnectMs: CONNECT_MS,
      peerRetryMs: 5_000,
    }),
    onConsoleCancel: () => told.push('console'),
  });
  const ask = (key: Uint8Array) => {
    const reasons: string[] = [];
    const leave = canceller.handle(cancelRequest(key), (reason) => reasons.push(reason));
    return {
      reasons,
      leave,
      get done() {
        return reasons.length;
      },
    };
  };
  const removePeer = () => {
    peer = null;
  };
  return { given, keys, errands, toPeer, forwarded, canceller, ask, removePeer, told };
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
  assert.deepEqual(asked.reasons, ['successfully sent cancel request']);
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
  assert.deepEqual(asked.reasons, [NOW_IDLE]);
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
  assert.deepEqual(asked.reasons, [NOW_IDLE]);
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
  assert.deepEqual(asked.reasons, [NOW_IDLE]);
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
  for (const [client, reason] of [
    [idle, 'cancel request for idle client'],
    [inTransaction, 'cancel request for idle client'],
    [console, 'cancel request for console client'],
  ] as const) {
    assert.deepEqual(ask(keys.add(client)).reasons, [reason]);
  }
  const unknown = ask(Buffer.from('0000000100000000', 'hex'));
  assert.deepEqual(unknown.reasons, ['failed cancel request']);
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
  assert.deepEqual(ask(key).reasons, ['cancel request for idle client']);
  assert.deepEqual(errands, []);
});

test('a request that comes while parameters are set waits until the query has been sent', (t) => {
  const { given, keys, errands, ask, canceller } = setUp(t);
  const { backend, client, key } = running(given, keys);
  client.isBeingPrepared = true;
  client.server!.runOwn('SET x = 1', () => {});
  const asked = ask(key);
  const other = running(given, keys);
  assert.equal(ask(other.key).done, 0);
  assert.equal(errands.length, 1, 'it stands in nobody’s way');
  canceller.tick(given.time.now);
  assert.equal(errands.length, 1);
  backend.say(says.commandComplete('SET'), says.ready());
  client.isBeingPrepared = false;
  client.send();
  canceller.tick(given.time.now);
  errands[1]!.connect();
  errands[1]!.link.flush();
  assert.equal(errands[1]!.sent, cancelRequest(backend.key).toString('hex'));
  errands[1]!.end();
  assert.deepEqual(asked.reasons, ['successfully sent cancel request']);
});

test('a request that waits for parameters to be set ends with its client', (t) => {
  const { given, keys, errands, ask, canceller } = setUp(t);
  const { client, key } = running(given, keys);
  client.isBeingPrepared = true;
  client.server!.runOwn('SET x = 1', () => {});
  const asked = ask(key);
  client.leave();
  canceller.tick(given.time.now);
  assert.deepEqual(asked.reasons, [NOW_IDLE]);
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
  const { forwarded, ask } = setUp(t);
  for (const bytes of [8, 36]) {
    const key = new CancelKeys(3, 0).add({ id: 1 }, bytes);
    const asked = ask(key);
    const { text, onEnd } = forwarded.pop()!;
    assert.equal(text, `worker 3, 10000 ms: ${cancelRequest(key).toString('hex')}`);
    assert.equal(asked.done, 0);
    onEnd();
    assert.deepEqual(asked.reasons, ['said the sibling']);
  }
});

test('a requester that leaves ends what its worker has asked of another', (t) => {
  const { forwarded, ask } = setUp(t);
  ask(new CancelKeys(3, 0).add({ id: 1 })).leave();
  assert.equal(forwarded[0]!.isGivenUp, true);
});

test('a key of a worker that the fleet does not have is dropped', (t) => {
  const { forwarded, ask } = setUp(t);
  const asked = ask(new CancelKeys(4, 0).add({ id: 1 }));
  assert.deepEqual(asked.reasons, ['failed cancel request']);
  assert.deepEqual(forwarded, []);
});

test('a worker of the same fleet gets the key with all of its hops', (t) => {
  const { forwarded, ask } = setUp(t, { peerId: 7 });
  const key = new CancelKeys(2, 7).add({ id: 1 });
  ask(key);
  assert.equal(forwarded[0]!.text, `worker 2, 10000 ms: ${cancelRequest(key).toString('hex')}`);
});

/** A key of the peer; its worker number is of no interest here. */
const peerKey = (bytes = 8): Buffer =>
  new CancelKeys(1, PEER_ID, (size) => Buffer.alloc(size, 0xf0)).add({ id: 1 }, bytes);

test('a key of another peer goes to that peer with one hop less, until none is left', (t) => {
  for (const bytes of [8, 36]) {
    const { toPeer, ask } = setUp(t, { peerId: 7 });
    const key = peerKey(bytes);
    for (const [hops, next] of [
      [3, 0xf2],
      [2, 0xf1],
      [1, 0xf0],
    ] as const) {
      key[7] = 0xf0 | hops;
      const asked = ask(key);
      const sent = Buffer.from(key);
      sent[7] = next;
      const errand = toPeer.pop()!;
      assert.deepEqual(errand.place, { host: '10.0.0.9', port: 6432 });
      errand.connect();
      assert.equal(errand.sent, cancelRequest(sent).toString('hex'));
      assert.equal(asked.done, 0);
      errand.end();
      assert.deepEqual(asked.reasons, ['successfully sent cancel request']);
    }
    key[7] = 0xf0;
    assert.deepEqual(ask(key).reasons, [
      'failed to forward cancel request because its TTL was exhausted',
    ]);
    assert.deepEqual(toPeer, []);
    t.mock.restoreAll();
  }
});

test('a key of a peer that is not configured is dropped', (t) => {
  const { toPeer, ask } = setUp(t, { peerId: 7 });
  const asked = ask(new CancelKeys(1, 12).add({ id: 1 }));
  assert.deepEqual(asked.reasons, ['could not find peer to forward request to']);
  assert.deepEqual(toPeer, []);
});

test('a peer is given as many requests at one time as its pool_size, one attempt after another', (t) => {
  const { toPeer, ask } = setUp(t, { peerId: 7 });
  const asked = [ask(peerKey()), ask(peerKey()), ask(peerKey())];
  assert.equal(toPeer.length, 1, 'the second waits for the first connection');
  toPeer[0]!.connect();
  assert.equal(toPeer.length, 2);
  toPeer[1]!.connect();
  assert.equal(toPeer.length, 2, 'the limit');
  toPeer[0]!.end();
  assert.equal(toPeer.length, 3);
  assert.deepEqual(
    asked.map(({ done }) => done),
    [1, 0, 0],
  );
});

test('a peer that cannot be reached is tried again after server_login_retry', (t) => {
  const { given, toPeer, ask, canceller } = setUp(t, { peerId: 7 });
  const asked = ask(peerKey());
  toPeer[0]!.fail();
  const other = ask(peerKey());
  given.time.pass(4_999);
  canceller.tick(given.time.now);
  assert.equal(toPeer.length, 1);
  given.time.pass(1);
  canceller.tick(given.time.now);
  assert.equal(toPeer.length, 2);
  toPeer[1]!.fail();
  given.time.pass(5_001);
  canceller.tick(given.time.now);
  assert.deepEqual(asked.reasons, ['cancel_wait_timeout']);
  assert.deepEqual(other.reasons, ['cancel_wait_timeout']);
});

test('a peer with a pool_size of 0 is sent nothing, and a peer that is removed no more', (t) => {
  const { given, toPeer, ask, canceller, removePeer } = setUp(t, {
    peerId: 7,
    peer: { limit: 0 },
  });
  const late = ask(peerKey());
  given.time.pass(10_001);
  canceller.tick(given.time.now);
  assert.deepEqual(late.reasons, ['cancel_wait_timeout']);
  const removed = ask(peerKey());
  removePeer();
  canceller.tick(given.time.now);
  assert.deepEqual(removed.reasons, ['peer removed']);
  assert.deepEqual(toPeer, []);
});

test('a peer that does not let itself be connected to counts as out of reach in the end', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { given, toPeer, ask, canceller } = setUp(t, { peerId: 7, waitMs: 60_000 });
  const asked = ask(peerKey());
  t.mock.timers.tick(CONNECT_MS - 1);
  assert.equal(toPeer[0]!.socket.destroyed, false);
  t.mock.timers.tick(1);
  assert.equal(toPeer[0]!.socket.destroyed, true);
  given.time.pass(5_000);
  canceller.tick(given.time.now);
  toPeer[1]!.connect();
  t.mock.timers.tick(CONNECT_MS);
  assert.equal(asked.done, 0, 'what was sent has other limits');
  toPeer[1]!.end();
  assert.deepEqual(asked.reasons, ['successfully sent cancel request']);
});

test('a Unix socket whose queue is full is tried again at once', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { keys, given, errands, ask } = setUp(t);
  const asked = ask(running(given, keys).key);
  const full = Object.assign(new Error('connect EAGAIN'), { code: 'EAGAIN', syscall: 'connect' });
  errands[0]!.fail(full);
  assert.equal(asked.done, 0);
  t.mock.timers.tick(10);
  errands[1]!.connect();
  errands[1]!.end();
  assert.deepEqual(asked.reasons, ['successfully sent cancel request']);
});

test('a worker without a part of a peer’s limit hands requests to the one that has most', (t) => {
  const { forwarded, ask } = setUp(t, { peerId: 7, peer: { limit: 0, holder: 3 } });
  const key = peerKey();
  const asked = ask(key);
  assert.equal(forwarded[0]!.text, `worker 3, 10000 ms: ${cancelRequest(key).toString('hex')}`);
  forwarded[0]!.onEnd();
  assert.equal(asked.done, 1);
});

test('a client is found by a key that came back from a peer with fewer hops', (t) => {
  const { given, keys, errands, ask } = setUp(t, { peerId: 7 });
  const { key } = running(given, keys);
  key[7] = key[7]! - 2;
  ask(key);
  assert.equal(errands.length, 1);
});

test('a key that is not right in all of its bytes, or has another length, is unknown', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  for (const bytes of [8, 36]) {
    const { client } = running(given, keys);
    const key = keys.add(client, bytes);
    const last = Buffer.from(key);
    last[bytes - 1] = last[bytes - 1]! ^ 1;
    const wrong = [
      Buffer.alloc(0),
      key.subarray(0, 4),
      key.subarray(0, bytes - 1),
      Buffer.concat([key, Buffer.of(0)]),
      last,
    ];
    for (const other of [...wrong, key.subarray(0, bytes === 36 ? 8 : 7)]) {
      assert.deepEqual(ask(other).reasons, ['failed cancel request'], other.toString('hex'));
    }
    assert.deepEqual(errands, []);
    assert.equal(ask(key).done, 0);
    assert.equal(errands.splice(0).length, 1);
  }
});

test('a requester that leaves before its request was sent gives it up', (t) => {
  const { given, keys, errands, ask, canceller } = setUp(t);
  const { backend, key } = running(given, keys);
  const asked = ask(key);
  asked.leave();
  assert.equal(errands[0]!.socket.destroyed, true);
  assert.equal(backend.server.cancelsInFlight, 0);
  assert.deepEqual([canceller.active, canceller.waiting], [0, 0]);
  assert.equal(asked.done, 1);
  asked.leave();
  errands[0]!.connect();
  assert.equal(errands[0]!.sent, '');
  assert.equal(asked.done, 1);
});

test('what was sent for a requester that has left is awaited all the same', (t) => {
  const { given, keys, errands, ask } = setUp(t);
  const { backend, key } = running(given, keys);
  const asked = ask(key);
  errands[0]!.connect();
  asked.leave();
  backend.ready();
  assert.equal(given.pool().held.size, 1);
  errands[0]!.end();
  assert.equal(given.pool().idle.size, 1);
});

test('a server for which a signal may still be on its way is never lent again', (t) => {
  for (const isReset of [true, false]) {
    const { given, keys, errands, ask, canceller } = setUp(t);
    const { backend, key } = running(given, keys);
    const asked = ask(key);
    errands[0]!.connect();
    if (isReset) {
      errands[0]!.socket.emit('error', new Error('ETIMEDOUT'));
      errands[0]!.socket.destroy();
    } else {
      given.time.pass(60_001);
      canceller.tick(given.time.now);
    }
    assert.equal(asked.done, 1);
    backend.ready();
    assert.equal(given.pool().idle.size, 0);
    assert.equal(backend.isTold, true);
    t.mock.restoreAll();
  }
});

test('a connection that fails or breaks frees the server and lets the requester go', (t) => {
  const { given, keys, errands, ask, canceller } = setUp(t);
  const { backend, key } = running(given, keys);
  const asked = ask(key);
  errands[0]!.socket.emit('error', new Error('ECONNREFUSED'));
  errands[0]!.socket.destroy();
  assert.deepEqual(asked.reasons, ['failed to send cancel request']);
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
  assert.deepEqual(asked.reasons, [NOW_IDLE]);
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

test('requests that are unsent after cancel_wait_timeout are given up, waiting or connecting', (t) => {
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
  for (const { reasons } of asked) assert.deepEqual(reasons, ['cancel_wait_timeout']);
  assert.deepEqual([canceller.active, canceller.waiting, errands.length], [0, 0, 16]);
  assert.ok(errands.every(({ socket }) => socket.destroyed));
  assert.ok(clients.every(({ client }) => client.server!.cancelsInFlight === 0));
});

test('a cancel_wait_timeout of 0 waits for ever', (t) => {
  const { given, keys, ask, canceller } = setUp(t, { waitMs: 0 });
  const { key } = running(given, keys);
  const asked = ask(key);
  given.time.pass(1e9);
  canceller.tick(given.time.now);
  assert.equal(asked.done, 0);
  assert.equal(canceller.active, 1);
});
