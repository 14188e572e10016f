import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { Link, type LinkHandler } from '../../src/net/link.ts';
import { connectLink } from '../../src/net/sockets.ts';
import { inTurn } from '../../src/net/turn.ts';
import { measure } from './measure.ts';

/** What a link costs: joining the writes of a turn, with and without the kernel, and its stash. */

const ignore: LinkHandler = {
  onBytes: (_bytes, _start, end) => end,
  onFull() {},
  onDrain() {},
  onPeerEnd() {},
  onClose() {},
};

/** Takes everything at once, as a kernel with room does. */
const sink = { writableLength: 0, write: () => true, on() {}, pause() {}, resume() {} };
const row = Buffer.alloc(45, 1);

const joined = new Link(sink as unknown as Socket, ignore);
for (const count of [1, 4, 100]) {
  measure(`${count} writes of 45 bytes in a turn, no kernel`, count, () => {
    inTurn(() => {
      for (let i = 0; i < count; i++) joined.write(row);
    });
  });
}
const big = Buffer.alloc(65_536, 1);
measure('a write of 64 KiB in a turn, no kernel', 1, () => {
  inTurn(() => joined.write(big));
});

const reading = new Link(sink as unknown as Socket, ignore);
measure('a read that is used whole', 1, () => {
  reading.read(45, row);
});
let isHalf = false;
const halves = new Link(sink as unknown as Socket, {
  ...ignore,
  onBytes: (_bytes, start, end) => {
    isHalf = !isHalf;
    return isHalf ? start : end;
  },
});
measure('a read that is kept and used with the next', 2, () => {
  halves.read(45, row);
  halves.read(45, row);
});

const server = createServer((socket) => {
  socket.on('error', () => {});
  socket.resume();
});
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const { port } = server.address() as AddressInfo;
const options = { keepAlive: false, keepAliveIdle: 0 };
const kernel = await new Promise<Link>((resolve) => {
  const link = connectLink({ host: '127.0.0.1', port }, ignore, options, () => resolve(link));
});
for (const count of [1, 4, 100]) {
  // Between turns the peer reads, in this very process, so only the turns themselves are timed.
  const rounds = 200;
  let spentNs = 0;
  for (let i = 0; i < rounds; i++) {
    const start = performance.now();
    inTurn(() => {
      for (let j = 0; j < count; j++) kernel.write(row);
    });
    spentNs += (performance.now() - start) * 1e6;
    await new Promise((resolve) => setImmediate(resolve));
  }
  const each = (spentNs / (rounds * count)).toFixed(1);
  const name = `${count} writes of 45 bytes in a turn, TCP`;
  console.log(`${name.padEnd(52)} mean ${each.padStart(8)} ns/message`);
}
kernel.destroy();
server.close();
