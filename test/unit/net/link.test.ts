import assert from 'node:assert/strict';
import { test } from 'node:test';
import { READ_BYTES, readBuffer } from '../../../src/net/link.ts';
import { inTurn } from '../../../src/net/turn.ts';
import { fakeLink, logged } from './support.ts';

const bytes = (text: string) => Buffer.from(text, 'latin1');

// Writing

test('all writes of one turn leave as one write, in order', () => {
  const { link, socket } = fakeLink();
  inTurn(() => {
    for (const text of ['one ', 'two ', 'three']) link.write(bytes(text));
    link.write(bytes('..four..'), 2, 6);
    assert.deepEqual(socket.written, []);
  });
  assert.deepEqual(socket.written.map(String), ['one two threefour']);
  assert.equal(link.bytesOut, 17);
});

test('what is written after a turn, by a promise, leaves as one write as well', async () => {
  const { link, socket } = fakeLink();
  link.write(bytes('a'));
  link.write(bytes('b'));
  await Promise.resolve();
  assert.deepEqual(socket.written.map(String), ['ab']);
});

test('written bytes are copied: their memory may be used again at once', () => {
  const { link, socket } = fakeLink();
  const shared = bytes('mine');
  inTurn(() => {
    link.write(shared);
    shared.fill('x');
  });
  assert.equal(String(socket.written[0]), 'mine');
});

test('a run that the socket could not take whole is never written to again', () => {
  const { link, socket } = fakeLink();
  socket.takes = false;
  const kept: Buffer[] = [];
  const { write } = socket;
  socket.write = (run: Buffer, callback?: () => void) => {
    if (run.length > 0) kept.push(run);
    return write.call(socket, run, callback);
  };
  for (const letter of 'abcdef') inTurn(() => link.write(Buffer.alloc(1000, letter)));
  assert.deepEqual(
    kept.map((run) => String(run)),
    [...'abcdef'].map((letter) => letter.repeat(1000)),
  );
});

test('small writes to a TLS socket are its own, and are no reason to stop their source', () => {
  const { link, socket, handler } = fakeLink(true);
  socket.takes = false;
  const kept: Buffer[] = [];
  const { write } = socket;
  socket.write = (run: Buffer, callback?: () => void) => {
    if (run.length > 0) kept.push(run);
    return write.call(socket, run, callback);
  };
  for (const letter of 'abcdef') inTurn(() => link.write(Buffer.alloc(1000, letter)));
  assert.deepEqual(
    kept.map((run) => String(run)),
    [...'abcdef'].map((letter) => letter.repeat(1000)),
  );
  assert.deepEqual(handler.events, []);
  assert.equal(link.isFull, false);
});

test('a TLS socket that holds more than a read brings is full until all has been taken', () => {
  const { link, socket, handler } = fakeLink(true);
  socket.takes = false;
  inTurn(() => link.write(Buffer.alloc(READ_BYTES)));
  assert.equal(link.isFull, false);
  inTurn(() => link.write(bytes('more')));
  assert.equal(link.isFull, true);
  assert.deepEqual(handler.events, ['full']);
  socket.take();
  assert.equal(link.isFull, false);
  assert.deepEqual(handler.events, ['full', 'drain']);
});

test('more than a run holds leaves in order, in runs', () => {
  const { link, socket } = fakeLink();
  const big = Buffer.alloc(200_000, 'abcdefg');
  inTurn(() => {
    link.write(bytes('<'));
    link.write(big);
    link.write(bytes('>'));
  });
  assert.equal(Buffer.concat(socket.written).toString(), `<${big}>`);
  assert.ok(socket.written.length <= 4, `${socket.written.length} writes`);
});

// Back-pressure

test('a link whose socket holds bytes after the turn is full until the peer has taken all', () => {
  const { link, socket, handler } = fakeLink();
  socket.takes = false;
  inTurn(() => link.write(bytes('a')));
  assert.equal(link.isFull, true);
  inTurn(() => link.write(bytes('b')));
  assert.deepEqual(handler.events, ['full']);
  assert.equal(handler.fullCalls, 2);
  socket.takes = true;
  socket.take();
  assert.equal(link.isFull, false);
  assert.deepEqual(handler.events, ['full', 'drain']);
  assert.equal(Buffer.concat(socket.written).toString(), 'ab');
  socket.takes = false;
  inTurn(() => link.write(bytes('c')));
  assert.deepEqual(handler.events, ['full', 'drain', 'full']);
});

test('what is written by the handler when the link has drained leaves in that turn', () => {
  const { link, socket, handler } = fakeLink();
  socket.takes = false;
  inTurn(() => link.write(bytes('a')));
  socket.takes = true;
  handler.act = (event) => event === 'drain' && link.write(bytes('more'));
  socket.take();
  assert.deepEqual(socket.written.map(String), ['a', 'more']);
});

// Reading

test('bytes that a handler does not use come again in front of what follows', () => {
  const { link, handler } = fakeLink();
  const offered: string[] = [];
  // Uses pairs of bytes only.
  handler.use = (given, start, end) => {
    offered.push(given.toString('latin1', start, end));
    return end - ((end - start) % 2);
  };
  link.read(3, bytes('abc'));
  assert.equal(link.stashBytes, 1);
  link.read(1, bytes('d'));
  link.read(5, bytes('efghi'));
  link.read(2, bytes('jk'));
  assert.deepEqual(offered, ['abc', 'cd', 'efghi', 'ijk']);
  assert.equal(link.bytesIn, 11);
});

test('a handler is not asked again before as many bytes are there as it needs', () => {
  const { link, handler } = fakeLink();
  const offered: string[] = [];
  handler.use = (given, start, end) => {
    offered.push(given.toString('latin1', start, end));
    link.needBytes = 5;
    return end - start < 5 ? start : end;
  };
  for (const letter of 'abcde') link.read(1, bytes(letter));
  assert.deepEqual(offered, ['a', 'abcde']);
  assert.equal(link.stashBytes, 0);
});

test('messages that arrive in any pieces come to the handler whole and once', () => {
  const stream = bytes(['3abc', '1d', '9efghijklm', '0', '5nopqr'].join(''));
  for (let cut = 1; cut < stream.length; cut++) {
    for (let second = cut; second < stream.length; second += 3) {
      const { link, handler } = fakeLink();
      const seen: string[] = [];
      handler.use = (given, start, end) => {
        let at = start;
        while (at < end) {
          const size = 1 + Number(String.fromCharCode(given[at]!));
          if (end - at < size) {
            link.needBytes = size;
            return at;
          }
          seen.push(given.toString('latin1', at + 1, at + size));
          at += size;
        }
        return at;
      };
      for (const part of [
        stream.subarray(0, cut),
        stream.subarray(cut, second),
        stream.subarray(second),
      ]) {
        if (part.length > 0) link.read(part.length, part);
      }
      assert.deepEqual(seen, ['abc', 'd', 'efghijklm', '', 'nopqr'], `cut at ${cut}, ${second}`);
    }
  }
});

test('what a link keeps is its own: the shared buffer may be filled by the next connection', () => {
  const one = fakeLink();
  const other = fakeLink();
  one.handler.use = (_given, start) => start;
  one.link.needBytes = 100;
  readBuffer.write('first');
  one.link.read(5, readBuffer);
  readBuffer.write('OTHER');
  other.link.read(5, readBuffer);
  assert.equal(other.handler.text, 'OTHER');
  one.link.needBytes = 0;
  let seen = '';
  one.handler.use = (given, start, end) => {
    seen = given.toString('latin1', start, end);
    return end;
  };
  readBuffer.write('!!!!!');
  one.link.read(1, readBuffer);
  assert.equal(seen, 'first!');
});

test('a read inside another read of the shared buffer is refused', () => {
  const one = fakeLink();
  const other = fakeLink();
  let error: unknown;
  one.handler.act = () => {
    try {
      other.link.read(1, bytes('x'));
    } catch (caught) {
      error = caught;
    }
  };
  one.link.read(1, bytes('y'));
  assert.match(String(error), /inside another read/);
  assert.deepEqual(other.handler.chunks, []);
});

// Hold and replay

test('a held link keeps what arrives and gives all of it at the replay', () => {
  const { link, handler } = fakeLink();
  link.read(1, bytes('a'));
  link.hold();
  link.read(2, bytes('bc'));
  link.read(1, bytes('d'));
  assert.equal(handler.text, 'a');
  link.replay();
  assert.equal(handler.text, 'abcd');
  assert.equal(handler.chunks.length, 2);
  link.read(1, bytes('e'));
  assert.equal(handler.text, 'abcde');
});

test('a handler that holds its link has the unused rest of that read replayed', () => {
  const { link, handler } = fakeLink();
  let isFirst = true;
  handler.use = (given, start, end) => {
    const stop = isFirst ? start + 2 : end;
    if (isFirst) link.hold();
    isFirst = false;
    handler.chunks.push(Buffer.from(given.subarray(start, stop)));
    return stop;
  };
  link.read(5, bytes('abcde'));
  link.read(1, bytes('f'));
  assert.equal(handler.text, 'ab');
  link.replay();
  assert.equal(handler.text, 'abcdef');
  assert.deepEqual(handler.chunks.map(String), ['ab', 'cdef']);
});

test('a handler may hold its link again during the replay, and lose nothing', () => {
  const { link, handler } = fakeLink();
  handler.use = (given, start) => {
    handler.chunks.push(Buffer.from(given.subarray(start, start + 1)));
    link.hold();
    return start + 1;
  };
  link.read(3, bytes('abc'));
  link.replay();
  link.replay();
  assert.equal(handler.text, 'abc');
  assert.equal(link.isHeld, true);
});

test('replay of a link that is not held gives nothing twice', () => {
  const { link, handler } = fakeLink();
  handler.use = (given, start, end) => {
    handler.chunks.push(Buffer.from(given.subarray(start, end)));
    return start;
  };
  link.needBytes = 10;
  link.read(1, bytes('a'));
  link.replay();
  assert.deepEqual(handler.chunks.map(String), ['a']);
});

test('a held link stops reading once it keeps 16 KiB, and reads again after the replay', () => {
  const { link, socket, handler } = fakeLink();
  link.hold();
  assert.equal(link.read(16_383, Buffer.alloc(READ_BYTES)), true);
  assert.equal(socket.isReading, true);
  assert.equal(link.read(1, Buffer.alloc(READ_BYTES)), false);
  assert.equal(socket.isReading, false);
  link.replay();
  assert.equal(socket.isReading, true);
  assert.equal(handler.text.length, 16_384);
});

test('what is written during a replay leaves as one write', () => {
  const { link, socket, handler } = fakeLink();
  link.hold();
  link.read(2, bytes('ab'));
  handler.use = (_given, _start, end) => {
    link.write(bytes('x'));
    link.write(bytes('y'));
    return end;
  };
  link.replay();
  assert.deepEqual(socket.written.map(String), ['xy']);
});

// Pausing

test('a paused link does not ask for more; resume reads on', () => {
  const { link, socket, handler } = fakeLink();
  handler.act = () => link.pause();
  assert.equal(link.read(1, bytes('a')), false);
  assert.equal(link.isPaused, true);
  assert.equal(socket.isReading, false);
  link.resume();
  assert.equal(link.isPaused, false);
  assert.equal(socket.isReading, true);
});

// Ending

test('close sends what waits and takes nothing more', () => {
  const { link, socket, handler } = fakeLink();
  inTurn(() => {
    link.write(bytes('bye'));
    link.close();
    link.write(bytes('late'));
  });
  assert.deepEqual(socket.written.map(String), ['bye']);
  assert.deepEqual(handler.events, ['close']);
  assert.equal(link.isClosed, true);
  link.read(1, bytes('x'));
  assert.equal(handler.text, '');
});

test('close in a turn whose bytes the socket could not take writes nothing behind the end', () => {
  const { link, socket, handler } = fakeLink();
  socket.takes = false;
  inTurn(() => {
    link.write(bytes('bye'));
    link.close();
  });
  assert.equal(socket.ended, true);
  assert.equal(socket.destroyed, false);
  assert.deepEqual(handler.events, []);
});

test('finish says that no more will come, sends what waits, and goes on reading', () => {
  const { link, socket, handler } = fakeLink();
  socket.takes = false;
  link.pause();
  inTurn(() => {
    link.write(bytes('bye'));
    link.finish();
    link.write(bytes('late'));
  });
  assert.deepEqual(socket.written.map(String), ['bye']);
  assert.equal(socket.ended, true);
  assert.equal(socket.isReading, true);
  link.read(1, bytes('x'));
  assert.equal(handler.text, 'x');
  link.finish();
  socket.destroy();
  assert.deepEqual(handler.events, ['close']);
});

test('destroy drops what waits and tells of the close once', () => {
  const { link, socket, handler } = fakeLink();
  inTurn(() => {
    link.write(bytes('lost'));
    link.destroy();
    link.destroy();
  });
  assert.deepEqual(socket.written, []);
  assert.deepEqual(handler.events, ['close']);
});

test('the error of a socket is told with its close', () => {
  const { link, socket, handler } = fakeLink();
  socket.emit('error', new Error('reset'));
  socket.destroy();
  assert.equal(handler.error?.message, 'reset');
  assert.equal(link.isClosed, true);
});

test('a detached link tells of nothing and leaves the socket open', () => {
  const { link, socket, handler } = fakeLink();
  link.detach();
  socket.emit('end');
  socket.emit('close');
  link.destroy();
  assert.deepEqual(handler.events, []);
  assert.equal(socket.destroyed, false);
});

// Bugs in handlers

test('a handler that throws costs its own link, and no other', (t) => {
  for (const event of ['bytes', 'end', 'full', 'drain', 'close', 'replay']) {
    const lines = logged(t);
    const bad = fakeLink();
    const good = fakeLink();
    bad.handler.act = (name) => {
      if (name === (event === 'replay' ? 'bytes' : event)) throw new Error(`bug in ${event}`);
    };
    switch (event) {
      case 'bytes':
        bad.link.read(1, bytes('x'));
        break;
      case 'end':
        bad.socket.emit('end');
        break;
      case 'full':
      case 'drain':
        bad.socket.takes = false;
        inTurn(() => {
          bad.link.write(bytes('x'));
          good.link.write(bytes('good'));
        });
        bad.socket.take();
        break;
      case 'replay':
        bad.link.hold();
        bad.link.read(1, bytes('x'));
        bad.link.replay();
        break;
      default:
        bad.link.destroy();
    }
    assert.equal(bad.socket.destroyed, true, event);
    assert.ok(
      lines.some((line) => line.includes(`InvariantError`) && line.includes(`bug in ${event}`)),
      event,
    );
    inTurn(() => good.link.write(bytes('!')));
    good.link.read(2, bytes('ok'));
    assert.equal(good.handler.text, 'ok', event);
    assert.equal(Buffer.concat(good.socket.written).toString().at(-1), '!', event);
    assert.equal(bad.handler.events.filter((name) => name === 'close').length, 1, event);
    t.mock.restoreAll();
  }
});

// Suspending

test('a suspended link is not read, whatever else is said, until the suspension ends', () => {
  const { link, socket } = fakeLink();
  link.suspend();
  assert.deepEqual([link.isSuspended, socket.isReading], [true, false]);
  link.pause();
  link.resume();
  assert.equal(socket.isReading, false);
  link.unsuspend();
  assert.deepEqual([link.isSuspended, socket.isReading], [false, true]);
});

test('the end of a suspension leaves a pause that was there before, or came meanwhile', () => {
  const { link, socket } = fakeLink();
  link.pause();
  link.suspend();
  link.unsuspend();
  assert.equal(socket.isReading, false);
  link.resume();
  assert.equal(socket.isReading, true);
});

test('a suspended link that is told to finish reads on for the end of the peer', () => {
  const { link, socket } = fakeLink();
  link.suspend();
  link.finish();
  assert.deepEqual([socket.ended, socket.isReading], [true, true]);
});
