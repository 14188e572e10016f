import assert from 'node:assert/strict';
import { existsSync, statSync, writeFileSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { encodeFrames, MAX_FRAME_BYTES } from '../../../src/mesh/frame.ts';
import { MeshError } from '../../../src/mesh/mesh-error.ts';
import { cancelRequest, SSL_REQUEST } from '../../../src/wire/encode.ts';
import { until, within } from '../../support/until.ts';
import { dial, readToEnd, startMesh, temporaryDir, turn } from './support.ts';

const WAIT_MS = 5_000;
const ignore = (): void => {};

const packet = cancelRequest(Buffer.from('0102030405060708', 'hex'));

/** A worker's socket that answers as the test says. */
async function fakeWorker(
  t: TestContext,
  path: string,
  onSocket: (socket: Socket) => void,
): Promise<void> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    onSocket(socket);
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
}

test('a socket is private, replaces a stale one and is gone after close', async (t) => {
  const dir = await temporaryDir(t);
  const path = join(dir, 'worker-0.sock');
  const mask = process.umask();
  const first = await startMesh(t, dir, 0, 1);
  assert.equal(statSync(path).mode & 0o777, 0o700);
  assert.equal(process.umask(), mask);
  const second = await startMesh(t, dir, 0, 1);
  await second.close();
  assert.equal(existsSync(path), false);
  await first.close();
});

test('a file in the place of the socket is left alone and reported', async (t) => {
  const dir = await temporaryDir(t);
  writeFileSync(join(dir, 'worker-0.sock'), 'precious');
  await assert.rejects(startMesh(t, dir, 0, 1), /exists and is not a socket/);
});

test('a runtime directory too deep for a Unix socket is named', async (t) => {
  await assert.rejects(startMesh(t, `/${'x'.repeat(120)}`, 0, 1), /runtime_dir is too long/);
});

test('a cancel reaches the sibling byte for byte and is done when the sibling says so', async (t) => {
  const dir = await temporaryDir(t);
  const arrived: { packet: Buffer; done: (reason: string) => void }[] = [];
  let wake = (): void => {};
  const arrival = new Promise<void>((resolve) => {
    wake = resolve;
  });
  await startMesh(t, dir, 1, 2, {
    onCancel: (received, done) => {
      arrived.push({ packet: received, done });
      wake();
      return ignore;
    },
  });
  const sender = await startMesh(t, dir, 0, 2);
  let doneCount = 0;
  const finished = new Promise<string>((resolve) => {
    sender.forwardCancel(1, packet, WAIT_MS, (reason) => {
      doneCount++;
      resolve(reason);
    });
  });
  assert.equal(doneCount, 0, 'never done within the call');
  await arrival;
  await turn();
  assert.equal(doneCount, 0, 'not done before the sibling is');
  assert.deepEqual(arrived[0]!.packet, packet);
  arrived[0]!.done('failed cancel request');
  arrived[0]!.done('too late');
  assert.equal(await finished, 'failed cancel request');
  await turn();
  assert.equal(doneCount, 1);
  assert.equal(arrived.length, 1);
});

test('a packet may be overwritten as soon as it was handed over', async (t) => {
  const dir = await temporaryDir(t);
  let received = '';
  await startMesh(t, dir, 1, 2, {
    onCancel: (bytes, done) => {
      received = bytes.toString('hex');
      done('');
      return ignore;
    },
  });
  const sender = await startMesh(t, dir, 0, 2);
  const shared = Buffer.from(packet);
  await new Promise<string>((resolve) => {
    sender.forwardCancel(1, shared, WAIT_MS, resolve);
    shared.fill(0);
  });
  assert.equal(received, packet.toString('hex'));
});

test('a cancel is understood wherever the stream is cut', async (t) => {
  const dir = await temporaryDir(t);
  const received: string[] = [];
  await startMesh(t, dir, 0, 1, {
    onCancel: (bytes, done) => {
      received.push(bytes.toString('hex'));
      done('');
      return ignore;
    },
  });
  for (const whole of [packet, cancelRequest(Buffer.alloc(36, 9))]) {
    for (let cut = 1; cut < whole.length; cut++) {
      const socket = await dial(t, dir, 0);
      socket.write(whole.subarray(0, cut));
      await turn();
      socket.write(whole.subarray(cut));
      await readToEnd(socket);
      assert.equal(received.pop(), whole.toString('hex'), `cut at ${cut}`);
      assert.equal(received.length, 0);
    }
  }
});

test('a request is answered wherever the stream is cut', async (t) => {
  const dir = await temporaryDir(t);
  await startMesh(t, dir, 0, 1);
  const frames = encodeFrames('{"a":1}', MAX_FRAME_BYTES)!;
  for (let cut = 1; cut < frames.length; cut++) {
    const socket = await dial(t, dir, 0);
    const answer = readToEnd(socket);
    socket.write(frames.subarray(0, cut));
    await turn();
    socket.write(frames.subarray(cut));
    assert.equal((await answer).subarray(10).toString(), '{"value":{"a":1}}', `cut at ${cut}`);
  }
});

for (const [what, bytes] of [
  ['HTTP', Buffer.from('GET /metrics HTTP/1.1\r\n\r\n')],
  ['an SSLRequest', SSL_REQUEST],
  ['a cancel with a short key', cancelRequest(Buffer.alloc(7))],
  ['a cancel with a key that is too long', cancelRequest(Buffer.alloc(261))],
  ['zeros', Buffer.alloc(64)],
  ['all ones', Buffer.alloc(64, 0xff)],
] as const) {
  test(`${what} is closed without a word and reaches nobody`, async (t) => {
    const dir = await temporaryDir(t);
    let calls = 0;
    const count = () => {
      calls++;
      return ignore;
    };
    const mesh = await startMesh(t, dir, 0, 1, { onCancel: count, onRequest: () => void count() });
    const socket = await dial(t, dir, 0);
    const answer = readToEnd(socket);
    socket.write(bytes);
    assert.equal((await answer).length, 0);
    assert.equal(calls, 0);
    assert.equal(await mesh.request(0, null), null, 'it still serves');
  });
}

test('an unreadable request is refused with the reason', async (t) => {
  const dir = await temporaryDir(t);
  await startMesh(t, dir, 0, 1);
  const otherVersion = encodeFrames('{}', MAX_FRAME_BYTES)!;
  otherVersion[4] = 9;
  const oversized = Buffer.from(otherVersion);
  oversized[4] = 1;
  oversized.writeUInt32BE(MAX_FRAME_BYTES + 1, 6);
  for (const [bytes, reason] of [
    [otherVersion, /speaks version 9/],
    [oversized, /1048577 bytes/],
    [encodeFrames('{"a":', MAX_FRAME_BYTES)!, /failed: .*JSON/],
  ] as const) {
    const socket = await dial(t, dir, 0);
    const answer = readToEnd(socket);
    socket.write(bytes);
    assert.match((await answer).toString(), reason);
  }
});

test('an answer of many megabytes arrives whole', async (t) => {
  const dir = await temporaryDir(t);
  const long = 'ä'.repeat(2_000_000);
  await startMesh(t, dir, 1, 2, { onRequest: () => [long] });
  const asker = await startMesh(t, dir, 0, 2);
  const answer = (await asker.request(1, {})) as string[];
  assert.ok(answer[0] === long);
});

test('asking all gives a value or an error for every other worker', async (t) => {
  const dir = await temporaryDir(t);
  const asker = await startMesh(t, dir, 0, 5);
  await startMesh(t, dir, 1, 5, { onRequest: (request) => ({ from: 1, request }) });
  await startMesh(t, dir, 2, 5, {
    onRequest: async () => {
      throw new Error('no memory');
    },
  });
  await fakeWorker(t, join(dir, 'worker-4.sock'), () => {});
  const answers = await asker.requestAll({ kind: 'x' }, 100);
  assert.deepEqual(
    [...answers],
    [
      [1, { value: { from: 1, request: { kind: 'x' } } }],
      [2, { error: 'worker 2 failed: no memory' }],
      [3, { error: 'worker 3 does not run' }],
      [4, { error: 'worker 4 did not answer in 100 ms' }],
    ],
  );
});

test('a sibling that dies or talks nonsense in the middle of an answer is named', async (t) => {
  const dir = await temporaryDir(t);
  const asker = await startMesh(t, dir, 0, 9);
  const whole = encodeFrames('{"value":1}', MAX_FRAME_BYTES)!;
  const answers: [Buffer, RegExp][] = [
    [Buffer.alloc(0), /^worker 1 ended before/],
    [whole.subarray(0, -1), /^worker 2 ended before/],
    [Buffer.from('HTTP/1.1 400 no\r\n'), /^worker 3 sent something else/],
    [encodeFrames('{"value":1,"error":"x"}', MAX_FRAME_BYTES)!, /^worker 4 .*cannot be read/],
    [encodeFrames('not json', MAX_FRAME_BYTES)!, /^worker 5 .*cannot be read/],
  ];
  for (const [i, [bytes, reason]] of answers.entries()) {
    await fakeWorker(t, join(dir, `worker-${i + 1}.sock`), (socket) => {
      socket.once('data', () => socket.end(bytes));
    });
    await assert.rejects(asker.request(i + 1, {}), (error) => {
      assert.ok(error instanceof MeshError);
      assert.equal(error.workerId, i + 1);
      assert.match(error.message, reason);
      return true;
    });
  }
});

test('a cancel to nobody, or to a sibling that has no time to accept it, has failed', async (t) => {
  const dir = await temporaryDir(t);
  const sender = await startMesh(t, dir, 0, 3);
  const failed = 'failed to send cancel request';
  assert.equal(await new Promise((resolve) => sender.forwardCancel(1, packet, 0, resolve)), failed);
  await fakeWorker(t, join(dir, 'worker-2.sock'), () => {});
  // The sibling has taken it, and knows itself when to give up; a requester that leaves ends it.
  let reason: string | null = null;
  const giveUp = sender.forwardCancel(2, packet, 20, (given) => {
    reason = given;
  });
  await assert.rejects(
    within(
      'end',
      until('it ends', () => reason !== null),
      100,
    ),
    /no end|within/,
  );
  giveUp();
  assert.equal(reason, '');
});

test('a sender that leaves tells the sibling to give the cancel up', async (t) => {
  const dir = await temporaryDir(t);
  let isGivenUp = false;
  let hasArrived = false;
  await startMesh(t, dir, 1, 2, {
    onCancel: () => {
      hasArrived = true;
      return () => {
        isGivenUp = true;
      };
    },
  });
  const sender = await startMesh(t, dir, 0, 2);
  const giveUp = sender.forwardCancel(1, packet, WAIT_MS, ignore);
  await until('it has arrived', () => hasArrived);
  assert.equal(isGivenUp, false);
  giveUp();
  await until('it is given up', () => isGivenUp);
});

test('closing answers everybody who waits, once', async (t) => {
  const dir = await temporaryDir(t);
  await startMesh(t, dir, 1, 2, { onCancel: () => ignore, onRequest: () => new Promise(() => {}) });
  const mesh = await startMesh(t, dir, 0, 2);
  let doneCount = 0;
  mesh.forwardCancel(1, packet, WAIT_MS, () => doneCount++);
  const asked = assert.rejects(mesh.request(1, {}), /worker 1 was not waited for/);
  await mesh.close();
  await asked;
  assert.equal(doneCount, 1);
  await new Promise((resolve) => mesh.forwardCancel(1, packet, WAIT_MS, resolve));
  await assert.rejects(mesh.request(1, {}), /worker 1 was not asked/);
});

test('500 cancels at once all arrive, each done once', async (t) => {
  const dir = await temporaryDir(t);
  const received = new Set<string>();
  await startMesh(t, dir, 1, 2, {
    onCancel: (bytes, done) => {
      received.add(bytes.toString('hex'));
      setImmediate(done, '');
      return ignore;
    },
  });
  const sender = await startMesh(t, dir, 0, 2);
  let doneCount = 0;
  await Promise.all(
    Array.from({ length: 500 }, (_, i) => {
      const key = Buffer.alloc(8);
      key.writeUInt32BE(i, 4);
      return new Promise<void>((resolve) =>
        sender.forwardCancel(1, cancelRequest(key), WAIT_MS, () => {
          doneCount++;
          resolve();
        }),
      );
    }),
  );
  assert.equal(received.size, 500);
  assert.equal(doneCount, 500);
});
