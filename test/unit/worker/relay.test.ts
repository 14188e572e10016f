import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createConnection, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { Link, LinkHandler } from '../../../src/net/link.ts';
import { acceptLink, wrapHandle } from '../../../src/net/sockets.ts';
import { Relay } from '../../../src/worker/relay.ts';
import { SocketPairs } from '../../../src/worker/socket-pair.ts';
import { until } from '../../support/until.ts';

const OPTIONS = { keepAlive: false, keepAliveIdle: 0 };

/** What a session would be: notes what it is told, and sends back what it gets. */
class Echo implements LinkHandler {
  link: Link | null = null;
  bytes = 0;
  readonly events: string[] = [];
  echoes = true;
  onBytes(bytes: Buffer, start: number, end: number): number {
    this.bytes += end - start;
    if (this.echoes) this.link?.write(bytes, start, end);
    return end;
  }
  onFull(): void {
    this.link?.pause();
  }
  onDrain(): void {
    this.link?.resume();
  }
  onPeerEnd(): void {
    this.events.push('end');
    this.link?.close();
  }
  onClose(): void {
    this.events.push('close');
  }
}

const SILENT: LinkHandler = {
  onBytes: (_bytes, _start, end) => end,
  onFull: () => undefined,
  onDrain: () => undefined,
  onPeerEnd: () => undefined,
  onClose: () => undefined,
};

/** A client's socket, the relay behind it, and the far worker's session. */
async function relayed(t: TestContext) {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-relay-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const pairs = new SocketPairs(join(folder, 'pair-0.sock'));
  let accepted: Link | null = null;
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
    accepted = acceptLink(socket, SILENT, OPTIONS);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const { port } = server.address() as { port: number };
  const client = createConnection({ port, host: '127.0.0.1', allowHalfOpen: true });
  t.after(() => client.destroy());
  client.on('error', () => undefined);
  const link = await until('it is accepted', () => accepted ?? false);
  const relay = new Relay(link);
  const { near, far } = await pairs.make(relay.farHandler, OPTIONS);
  const session = new Echo();
  session.link = wrapHandle(far, session, OPTIONS);
  t.after(() => session.link?.destroy());
  relay.connect(near);
  return { client, link, near, session, folder, relay };
}

function received(socket: Socket): () => number {
  let bytes = 0;
  socket.on('data', (chunk) => {
    bytes += chunk.length;
  });
  return () => bytes;
}

test('bytes go both ways, and the socket of the pair is gone', async (t) => {
  const { client, folder } = await relayed(t);
  const got = received(client);
  client.write('hello');
  await until('the echo is there', () => got() === 5);
  assert.deepEqual(readdirSync(folder), []);
});

test('a client that does not read stops what is sent to it, and loses nothing', async (t) => {
  const { client, near, link, session } = await relayed(t);
  session.echoes = false;
  client.pause();
  const total = 64 << 20;
  const chunk = Buffer.alloc(1 << 16, 'x');
  let sent = 0;
  const pump = (): void => {
    while (sent < total && !session.link!.isFull) {
      session.link!.write(chunk);
      session.link!.flush();
      sent += chunk.length;
    }
  };
  session.onDrain = pump;
  pump();
  await until('all of the way is full', () => near.isPaused && link.isFull);
  assert.ok(sent < total / 2, `${sent} bytes were taken`);
  const got = received(client);
  client.resume();
  await until('everything has come', () => got() === total, { deadlineMs: 20_000 });
});

test('a session that does not read stops the client', async (t) => {
  const { client, link, session } = await relayed(t);
  session.echoes = false;
  session.link!.pause();
  const total = 32 << 20;
  client.write(Buffer.alloc(total, 'y'));
  await until('the client is stopped', () => link.isPaused);
  assert.ok(session.bytes < total / 2);
  session.link!.resume();
  await until('everything has come', () => session.bytes === total, { deadlineMs: 20_000 });
});

test('the end of either side is told to the other, behind what it has sent', async (t) => {
  const one = await relayed(t);
  one.client.end('last words');
  await until('the session is told', () => one.session.events.includes('close'));
  assert.equal(one.session.bytes, 10);
  one.client.resume();
  await until('the client is told', () => one.client.readableEnded);

  const two = await relayed(t);
  const got = received(two.client);
  two.session.link!.write(Buffer.from('goodbye'));
  two.session.link!.close();
  await until('the client is told', () => two.client.readableEnded);
  assert.equal(got(), 7);

  const three = await relayed(t);
  three.client.resetAndDestroy();
  await until('the session is told', () => three.session.events.includes('close'));
});

test('a client that nobody takes is told so', async (t) => {
  const { client, relay } = await relayed(t);
  let text = '';
  client.on('data', (chunk) => {
    text += chunk.toString('latin1');
  });
  relay.refuse('nobody is there');
  await until('the client is told', () => client.readableEnded);
  assert.match(text, /^E.*FATAL.*08P01.*nobody is there/s);
});

test('pairs that are asked for at once are all made', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-relay-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const pairs = new SocketPairs(join(folder, 'pair-0.sock'));
  const made = await Promise.all(Array.from({ length: 20 }, () => pairs.make(SILENT, OPTIONS)));
  const ends = made.map(({ far }) => wrapHandle(far, SILENT, OPTIONS));
  for (const [at, { near }] of made.entries()) {
    const echo = new Echo();
    ends[at]!.handler = echo;
    near.write(Buffer.from([at]));
    near.flush();
    await until('it has come through the right one', () => echo.bytes === 1);
  }
  for (const link of [...ends, ...made.map(({ near }) => near)]) link.destroy();
});

test('a pair that cannot be made is an error', async () => {
  const pairs = new SocketPairs('/nowhere/at/all/pair-0.sock');
  await assert.rejects(pairs.make(SILENT, OPTIONS), /listen|ENOENT|EACCES/);
});
