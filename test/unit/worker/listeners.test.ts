import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { test } from 'node:test';
import { Listeners } from '../../../src/worker/listeners.ts';
import { until, within } from '../../support/until.ts';

/** A port that was free a moment ago. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

test('a connection is handed over unread, with the kind of the socket it came to', async (t) => {
  const port = await freePort();
  const grant = {
    kind: 'tcp',
    host: '127.0.0.1',
    port,
    fd: null,
    label: `127.0.0.1:${port}`,
  } as const;
  const accepted: { socket: Socket; kind: string }[] = [];
  const listeners = new Listeners([grant], 128, (socket, kind) => {
    accepted.push({ socket, kind });
    t.after(() => socket.destroy());
  });
  await listeners.listen();
  t.after(() => listeners.close());
  const client = connect(port, '127.0.0.1');
  t.after(() => client.destroy());
  client.write('first bytes');
  await until('the connection was accepted', () => accepted.length === 1, { everyMs: 2 });
  const { socket, kind } = accepted[0]!;
  assert.equal(kind, grant.kind);
  assert.equal(socket.bytesRead, 0);
  const [bytes] = await within('bytes', once(socket.resume(), 'data'));
  assert.equal(String(bytes), 'first bytes');
});

test('two workers listen on one port, and one goes on when the other has stopped', async (t) => {
  const port = await freePort();
  const grant = { kind: 'tcp', host: '127.0.0.1', port, fd: null, label: 'tcp' } as const;
  const counts = [0, 0];
  const workers = counts.map(
    (_, i) =>
      new Listeners([grant], 128, (socket) => {
        counts[i]!++;
        socket.destroy();
      }),
  );
  for (const worker of workers) await worker.listen();
  t.after(() => workers[1]!.close());
  workers[0]!.closeTcp();
  for (let i = 0; i < 10; i++) {
    const client = connect(port, '127.0.0.1');
    client.on('error', () => {});
    await within('close', once(client.resume(), 'close'));
  }
  assert.deepEqual(counts, [0, 10]);
});

test('an address that cannot be listened on is an error of the start', async (t) => {
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  t.after(() => taken.close());
  const { port } = taken.address() as AddressInfo;
  const grant = { kind: 'tcp', host: '127.0.0.1', port, fd: null, label: 'tcp' } as const;
  const listeners = new Listeners([grant], 128, () => {});
  await assert.rejects(listeners.listen(), { code: 'EADDRINUSE' });
});
