import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { createServer as createTlsServer, type TlsOptions } from 'node:tls';
import { type Link, READ_BYTES } from '../../../src/net/link.ts';
import { acceptLink, connectLink, handleOf, secureLink } from '../../../src/net/sockets.ts';
import { inTurn } from '../../../src/net/turn.ts';
import { until, within } from '../../support/until.ts';
import { randomFrom } from '../util/random.ts';
import {
  acceptedPair,
  deferred,
  linkedPair,
  listen,
  logged,
  Recorder,
  readToEnd,
  SOCKET_OPTIONS,
  type SocketKind,
} from './support.ts';

const MEGABYTE = 1 << 20;
const KINDS: readonly SocketKind[] = ['tcp', 'unix'];

/** Bytes whose place in the stream can be told: the period is prime, so no power of two hides it. */
const PERIOD = 65_521;
const PATTERN = Buffer.alloc(PERIOD + 2 * READ_BYTES);
for (let i = 0; i < PATTERN.length; i++)
  PATTERN[i] = ((i % PERIOD) * 7 + ((i % PERIOD) >> 8)) & 0xff;

/** Sends a stream of the pattern, as much as the link takes, and checks the one that comes. */
class Endless extends Recorder {
  link!: Link;
  sent = 0;
  got = 0;
  mostHeld = 0;
  fulls = 0;
  drains = 0;
  readonly #total: number;
  readonly #random: () => number;

  constructor(total: number, seed: number) {
    super();
    this.#total = total;
    this.#random = randomFrom(seed);
    this.use = (bytes, start, end) => {
      const at = this.got % PERIOD;
      const isSame = bytes.compare(PATTERN, at, at + end - start, start, end) === 0;
      assert.ok(isSame, `a wrong byte between ${this.got} and ${this.got + end - start}`);
      this.got += end - start;
      // Now and then a reader that does not read, so that the other side fills up.
      if (this.#random() < 0.02) {
        this.link.pause();
        setTimeout(() => this.link.resume(), 2);
      }
      return end;
    };
    this.act = (event) => {
      if (event === 'full') this.fulls++;
      if (event !== 'drain') return;
      this.drains++;
      this.pump();
    };
  }

  /** One turn's worth of writes of odd sizes; more when the link says that it has drained. */
  pump(): void {
    if (this.link.isFull) return;
    inTurn(() => {
      for (let turn = 0; turn < 8 && this.sent < this.#total; turn++) {
        const size = Math.min(1 + Math.floor(this.#random() * READ_BYTES), this.#total - this.sent);
        const at = this.sent % PERIOD;
        this.link.write(PATTERN, at, at + size);
        this.sent += size;
      }
    });
    this.mostHeld = Math.max(this.mostHeld, this.link.socket.writableLength);
    if (this.sent < this.#total) setImmediate(() => this.pump());
  }
}

for (const kind of KINDS) {
  test(`100 MB cross a ${kind} connection both ways: whole, in order, within bounded memory`, async (t) => {
    const total = 100 * MEGABYTE;
    const [nearEnd, farEnd] = [new Endless(total, 5), new Endless(total, 6)];
    const { near, far } = await linkedPair(t, kind, nearEnd, farEnd);
    nearEnd.link = near;
    farEnd.link = far;
    // Neither reads until the other is full.
    near.pause();
    far.pause();
    nearEnd.pump();
    farEnd.pump();
    await within('both full', Promise.all([nearEnd.seen('full'), farEnd.seen('full')]));
    near.resume();
    far.resume();
    await until('all has crossed', () => nearEnd.got === total && farEnd.got === total, {
      deadlineMs: 120_000,
    });
    for (const end of [nearEnd, farEnd]) {
      assert.equal(end.link.bytesIn, total);
      assert.equal(end.link.bytesOut, total);
      assert.ok(end.fulls > 0, 'the link was never full');
      assert.ok(
        end.fulls - end.drains <= 1,
        `full ${end.fulls} times, drained ${end.drains} times`,
      );
      assert.ok(end.mostHeld <= 9 * READ_BYTES, `${end.mostHeld} bytes waited`);
    }
  });

  test(`a reader on ${kind} that stands still makes its link full, and drained once it reads`, async (t) => {
    const { link, handler, peer } = await acceptedPair(t, kind);
    const sent = Buffer.alloc(8 * MEGABYTE, 'abcdefghijk');
    inTurn(() => link.write(sent));
    assert.deepEqual(handler.events, ['full']);
    inTurn(() => link.write(Buffer.from('tail')));
    assert.deepEqual(handler.events, ['full']);
    const received = readToEnd(peer);
    await within('drain', handler.seen('drain'));
    inTurn(() => link.close());
    const all = await received;
    assert.equal(all.length, sent.length + 4);
    assert.ok(all.equals(Buffer.concat([sent, Buffer.from('tail')])));
    assert.deepEqual(handler.events.slice(0, 2), ['full', 'drain']);
  });

  test(`close on ${kind} delivers all that was written, however slow the reader`, async (t) => {
    const { link, handler, peer } = await acceptedPair(t, kind);
    const sent = Buffer.alloc(8 * MEGABYTE, 'abcdefghijk');
    inTurn(() => {
      link.write(sent);
      link.write(Buffer.from('FATAL'));
      link.close();
    });
    assert.deepEqual(handler.events, []);
    const all = await readToEnd(peer);
    assert.equal(all.length, sent.length + 5);
    assert.ok(all.subarray(0, sent.length).equals(sent));
    assert.equal(all.toString('latin1', sent.length), 'FATAL');
    peer.end();
    await within('close', handler.seen('close'));
    assert.equal(handler.error, null);
  });

  test(`close on ${kind} of a link that was full before delivers everything as well`, async (t) => {
    const { link, handler, peer } = await acceptedPair(t, kind);
    const sent = Buffer.alloc(4 * MEGABYTE, 'abcdefghijk');
    inTurn(() => link.write(sent));
    inTurn(() => link.write(sent));
    inTurn(() => {
      link.write(Buffer.from('FATAL'));
      link.close();
    });
    assert.deepEqual(handler.events, ['full']);
    const all = await readToEnd(peer);
    assert.equal(all.length, 2 * sent.length + 5);
    assert.equal(all.toString('latin1', 2 * sent.length), 'FATAL');
  });

  test(`finish on ${kind} delivers all, ends our side, and hears the peer out`, async (t) => {
    const { link, handler, peer } = await acceptedPair(t, kind);
    const sent = Buffer.alloc(4 * MEGABYTE, 'abcdefghijk');
    inTurn(() => {
      link.write(sent);
      link.finish();
    });
    assert.ok((await readToEnd(peer)).equals(sent));
    assert.ok(!handler.events.includes('close'));
    peer.end('last words');
    await within('end', handler.seen('end'));
    assert.equal(handler.text, 'last words');
  });

  test(`the end of the peer's stream on ${kind} is told once, and the link can still answer`, async (t) => {
    const { link, handler, peer } = await acceptedPair(t, kind);
    peer.end('bye');
    await within('end', handler.seen('end'));
    assert.equal(handler.text, 'bye');
    const received = readToEnd(peer);
    inTurn(() => {
      link.write(Buffer.from('answer'));
      link.close();
    });
    assert.equal(String(await received), 'answer');
    await within('close', handler.seen('close'));
    assert.deepEqual(handler.events, ['end', 'close']);
    assert.equal(handler.error, null);
  });
}

test('connections that echo at once never get a byte of one another', async (t) => {
  const size = 2 * MEGABYTE;
  const links = new Map<number, Link>();
  const place = await listen(t, 'tcp', (socket) => {
    const handler = new Recorder();
    const link = acceptLink(socket, handler, SOCKET_OPTIONS);
    links.set(links.size, link);
    t.after(() => link.destroy());
    // Relays what it reads, keeps an odd byte for later, and stops its source while it is full.
    handler.use = (bytes, start, end) => {
      const keepsByte = link.bytesIn < size && (end - start) % 3 === 1;
      const stop = keepsByte ? end - 1 : end;
      link.write(bytes, start, stop);
      return stop;
    };
    handler.act = (event) => {
      if (event === 'full') link.pause();
      if (event === 'drain') link.resume();
      if (event === 'end') link.close();
    };
  });
  const clients = Array.from({ length: 40 }, async (_, id) => {
    const socket = connect({ ...place, allowHalfOpen: true });
    t.after(() => socket.destroy());
    const random = randomFrom(id + 100);
    // A byte value of this connection's own, which differs from place to place.
    const own = Buffer.alloc(size);
    for (let i = 0; i < size; i += 2) own.writeUInt16LE((id << 10) | ((i >> 1) % 1021), i);
    let at = 0;
    socket.on('data', (chunk: Buffer) => {
      const isOwn = chunk.compare(own, at, at + chunk.length) === 0;
      if (!isOwn) socket.destroy(new Error(`connection ${id} got foreign bytes at ${at}`));
      at += chunk.length;
      if (random() < 0.3) {
        socket.pause();
        setImmediate(() => socket.resume());
      }
    });
    let sent = 0;
    while (sent < size && !socket.destroyed) {
      const part = Math.min(1 + Math.floor(random() * 90_000), size - sent);
      if (!socket.write(own.subarray(sent, sent + part))) await once(socket, 'drain');
      sent += part;
    }
    socket.end();
    await once(socket, 'end');
    assert.equal(at, size, `connection ${id}`);
  });
  await within('all echoes', Promise.all(clients), 120_000);
  assert.equal(links.size, 40);
});

test('a held link notices a peer that leaves, and what it had sent is still there', async (t) => {
  const { link, handler, peer } = await acceptedPair(t);
  link.hold();
  peer.end('query');
  await within('end', handler.seen('end'));
  assert.equal(handler.text, '');
  link.replay();
  assert.equal(handler.text, 'query');
});

test('a paused link reads nothing; resume brings all that the peer sent meanwhile', async (t) => {
  const { link, handler, peer } = await acceptedPair(t);
  link.pause();
  const sent = Buffer.alloc(MEGABYTE, 'pqrs');
  peer.write(sent);
  const other = await acceptedPair(t);
  other.peer.write('x');
  await until('another connection was read', () => other.handler.text === 'x', { everyMs: 2 });
  assert.ok(link.bytesIn <= READ_BYTES, 'more than the read under way came in');
  link.resume();
  await until('all was read', () => link.bytesIn === sent.length, { everyMs: 2 });
  assert.ok(Buffer.concat(handler.chunks).equals(sent));
});

test('a reset connection is told as an error, with one close', async (t) => {
  const { handler, peer } = await acceptedPair(t);
  peer.resetAndDestroy();
  await within('close', handler.seen('close'));
  assert.equal((handler.error as NodeJS.ErrnoException).code, 'ECONNRESET');
  assert.deepEqual(handler.events, ['close']);
});

test('a connect that is refused is told as an error, and never as connected', async (t) => {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  const handler = new Recorder();
  const link = connectLink({ host: '127.0.0.1', port }, handler, SOCKET_OPTIONS, () =>
    assert.fail('connected'),
  );
  t.after(() => link.destroy());
  await within('close', handler.seen('close'));
  assert.equal((handler.error as NodeJS.ErrnoException).code, 'ECONNREFUSED');
});

test('what is written before the connection stands leaves once it does', async (t) => {
  const received = deferred<Buffer>();
  const place = await listen(t, 'tcp', (socket) => {
    socket.on('error', () => {});
    socket.resume();
    void readToEnd(socket)
      .then(received.resolve, received.reject)
      .finally(() => socket.destroy());
  });
  const handler = new Recorder();
  const link = connectLink(place, handler, SOCKET_OPTIONS, () => {});
  t.after(() => link.destroy());
  inTurn(() => link.write(Buffer.from('early')));
  await within('drain', handler.seen('drain'));
  inTurn(() => {
    link.write(Buffer.from(' and late'));
    link.finish();
  });
  assert.equal(String(await received.promise), 'early and late');
});

test('a bug in the handler of one connection leaves its neighbours alone', async (t) => {
  const lines = logged(t);
  const bad = await acceptedPair(t);
  const good = await acceptedPair(t);
  bad.handler.use = () => {
    throw new Error('bug');
  };
  bad.peer.write('x');
  await within('close', bad.handler.seen('close'));
  assert.equal(lines.length, 1);
  good.peer.write('y');
  await until('the other was read', () => good.handler.text === 'y', { everyMs: 2 });
  assert.deepEqual(good.handler.events, []);
});

test('a link without the raw handle reads through data events, and does the same', async (t) => {
  const handler = new Recorder();
  const accepted = deferred<Link>();
  const place = await listen(t, 'tcp', (socket) => {
    // A Node without the private field.
    const shown = new Proxy(socket, {
      get(target, name) {
        if (name === '_handle') return undefined;
        const value = Reflect.get(target, name, target) as unknown;
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
    assert.equal(handleOf(shown), null);
    accepted.resolve(acceptLink(shown, handler, { keepAlive: true, keepAliveIdle: 60 }));
  });
  const peer = connect({ ...place, allowHalfOpen: true });
  t.after(() => peer.destroy());
  const link = await accepted.promise;
  t.after(() => link.destroy());
  peer.end('question');
  await within('end', handler.seen('end'));
  assert.equal(handler.text, 'question');
  inTurn(() => {
    link.write(Buffer.from('answer'));
    link.close();
  });
  assert.equal(String(await readToEnd(peer)), 'answer');
});

/** A TLS server that needs no certificate: both sides know a key (RFC 4279). */
const PSK: TlsOptions = {
  ciphers: 'PSK',
  maxVersion: 'TLSv1.2',
  pskCallback: () => Buffer.from('0123456789abcdef'),
};

async function securePair(
  t: TestContext,
): Promise<{ link: Link; handler: Recorder; peer: Socket }> {
  const secured = deferred<Socket>();
  const server = createTlsServer({ ...PSK, allowHalfOpen: true }, secured.resolve);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const { port } = server.address() as { port: number };
  const handler = new Recorder();
  const ready = deferred<void>();
  const link = connectLink({ host: '127.0.0.1', port }, handler, SOCKET_OPTIONS, () => {
    secureLink(
      link,
      {
        ciphers: 'PSK',
        maxVersion: 'TLSv1.2',
        pskCallback: () => ({ psk: Buffer.from('0123456789abcdef'), identity: 'pooler' }),
        checkServerIdentity: () => undefined,
      },
      ready.resolve,
    );
  });
  t.after(() => link.destroy());
  await within('handshake', ready.promise);
  const peer = await secured.promise;
  t.after(() => peer.destroy());
  return { link, handler, peer };
}

test('a link that was put on TLS carries megabytes both ways, and closes in order', async (t) => {
  const { link, handler, peer } = await securePair(t);
  const sent = Buffer.alloc(4 * MEGABYTE, 'abcdefghijk');
  const received: Buffer[] = [];
  peer.on('data', (chunk: Buffer) => received.push(chunk));
  inTurn(() => link.write(sent));
  peer.write(sent);
  await until('both have all', () => {
    const size = received.reduce((sum, chunk) => sum + chunk.length, 0);
    return size === sent.length && link.bytesIn === sent.length;
  });
  assert.ok(Buffer.concat(received).equals(sent));
  assert.ok(Buffer.concat(handler.chunks).equals(sent));
  assert.deepEqual(handler.events, ['full', 'drain']);
  peer.end();
  await within('end', handler.seen('end'));
  link.close();
  await within('close', handler.seen('close'));
  assert.equal(handler.error, null);
  assert.deepEqual(handler.events, ['full', 'drain', 'end', 'close']);
});

test('a handshake that fails closes the link with its error, once', async (t) => {
  const place = await listen(t, 'tcp', (socket) => {
    socket.on('error', () => {});
    socket.on('data', () => socket.end('this is no TLS'));
    socket.resume();
    t.after(() => socket.destroy());
  });
  const handler = new Recorder();
  const link = connectLink(place, handler, SOCKET_OPTIONS, () => {
    secureLink(link, { rejectUnauthorized: false }, () => assert.fail('secure'));
  });
  t.after(() => link.destroy());
  await within('close', handler.seen('close'));
  assert.ok(handler.error !== null);
  assert.deepEqual(
    handler.events.filter((event) => event === 'close'),
    ['close'],
  );
});
