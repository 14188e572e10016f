import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InvariantError } from '../../../src/errors.ts';
import { Action, type FrameSink, FrameWalker } from '../../../src/wire/frame-walker.ts';

/** Greatest length word; it does not count the type byte. */
const MAX = 1000;

/** A message whose type letter says what the recording sink does with it. */
function message(letter: string, bodyBytes = 0, fill = 0x2e): Buffer {
  const bytes = Buffer.alloc(5 + bodyBytes, fill);
  bytes[0] = letter.charCodeAt(0);
  bytes.writeInt32BE(4 + bodyBytes, 1);
  return bytes;
}

/** Bytes of a `rewrite` message that its head stands for, once that many are there. */
const HEAD_BYTES = 8;

/**
 * Acts on letters: f forward, e forwardEnd, x forwardEnd that stops behind itself, s skip, t take,
 * w wait for the whole message and then forward it, h rewrite, q stop. Joins adjacent runs, since
 * where a run is cut depends on how the bytes arrive.
 */
class Recorder implements FrameSink {
  readonly events: string[] = [];
  /** Runs as they came, unjoined. */
  runs = 0;
  walker!: FrameWalker;
  /** Called first in every callback with its name, to misbehave. */
  trap: (name: string) => void = () => {};

  onHeader(type: number, _bytes: Buffer, at: number, total: number, end: number): Action {
    this.trap('header');
    switch (String.fromCharCode(type)) {
      case 'e':
      case 'x':
        return Action.forwardEnd;
      case 's':
        return Action.skip;
      case 't':
        return Action.take;
      case 'w':
        return end - at < total ? Action.wait : Action.forward;
      case 'h':
        return end - at < HEAD_BYTES ? this.walker.waitFor(HEAD_BYTES) : Action.rewrite;
      case 'q':
        return Action.stop;
      default:
        return Action.forward;
    }
  }

  onRun(bytes: Buffer, start: number, end: number): void {
    assert.ok(start < end, 'an empty run');
    this.runs++;
    const run = bytes.toString('latin1', start, end);
    if (this.events.at(-1)?.startsWith('run ')) this.events[this.events.length - 1] += run;
    else this.events.push(`run ${run}`);
    this.trap('run');
  }

  onTake(type: number, bytes: Buffer, start: number, end: number): void {
    assert.equal(type, bytes[start]);
    this.events.push(`take ${bytes.toString('latin1', start, end)}`);
    this.trap('take');
  }

  onEnd(type: number): boolean {
    this.events.push(`end ${String.fromCharCode(type)}`);
    this.trap('end');
    return type !== 0x78;
  }

  onBadHeader(bytes: Buffer, at: number, _end: number): void {
    this.events.push(`bad ${bytes.toString('latin1', at, at + 5)}`);
    this.trap('bad');
  }

  onHead(_type: number, bytes: Buffer, at: number, end: number): number {
    assert.ok(end - at >= HEAD_BYTES);
    this.events.push(`head ${bytes.toString('latin1', at, at + HEAD_BYTES)}`);
    this.trap('head');
    return HEAD_BYTES;
  }
}

function recorder(max = MAX): Recorder {
  const sink = new Recorder();
  sink.walker = new FrameWalker(sink, max + 1);
  return sink;
}

/** What the events of `stream` must be: messages looked at one by one, whole. */
function reference(stream: Buffer): string[] {
  const events: string[] = [];
  const addRun = (bytes: Buffer) => {
    if (bytes.length === 0) return;
    if (events.at(-1)?.startsWith('run ')) events[events.length - 1] += bytes.toString('latin1');
    else events.push(`run ${bytes.toString('latin1')}`);
  };
  for (let at = 0; stream.length - at >= 5; ) {
    const length = stream.readInt32BE(at + 1);
    if (length < 4 || length > MAX) {
      events.push(`bad ${stream.toString('latin1', at, at + 5)}`);
      break;
    }
    const bytes = stream.subarray(at, at + 1 + length);
    const isWhole = bytes.length === 1 + length;
    const letter = String.fromCharCode(stream[at]!);
    at += bytes.length;
    if (letter === 's') continue;
    if (letter === 't' || letter === 'w') {
      if (!isWhole) break;
      if (letter === 't') events.push(`take ${bytes.toString('latin1')}`);
      else addRun(bytes);
    } else if (letter === 'h') {
      if (bytes.length < HEAD_BYTES) break;
      events.push(`head ${bytes.toString('latin1', 0, HEAD_BYTES)}`);
      addRun(bytes.subarray(HEAD_BYTES));
    } else if (letter === 'q') {
      break;
    } else {
      addRun(bytes);
      if (isWhole && (letter === 'e' || letter === 'x')) events.push(`end ${letter}`);
      if (isWhole && letter === 'x') break;
    }
  }
  return events;
}

/** Feeds `pieces` as a caller does, keeping what was not used; stops for good at a stop. */
function feed(sink: Recorder, pieces: readonly Buffer[]): void {
  let kept = Buffer.alloc(0);
  for (const piece of pieces) {
    // In front of and behind the valid bytes stands rubbish, as in a shared read buffer.
    const bytes = Buffer.concat([Buffer.from('~~'), kept, piece, Buffer.from([0x66, 0, 0, 0, 4])]);
    const end = bytes.length - 5;
    if (end - 2 < sink.walker.needBytes) {
      kept = Buffer.concat([kept, piece]);
      continue;
    }
    const used = sink.walker.walk(bytes, 2, end);
    assert.ok(used >= 2 && used <= end);
    kept = Buffer.from(bytes.subarray(used, end));
    if (sink.events.at(-1) === 'end x' || (kept[0] === 0x71 && kept.length >= 5)) return;
    const need = sink.walker.needBytes;
    assert.ok(need === 0 || need > kept.length, 'needs bytes that it has');
    assert.ok(kept.length === 0 || need > 0 || sink.walker.isBroken, 'bytes left without a reason');
  }
}

const MIXED = Buffer.concat([
  message('f', 3),
  message('f'),
  message('t', 4),
  message('t'),
  message('s', 6),
  message('s'),
  message('e', 2),
  message('e'),
  message('w', 5),
  message('w'),
  message('h', 9),
  message('h', 3),
  message('f', 1),
  message('s', 1),
  message('h', 4),
  message('t', 2),
  message('f', 7),
]);

test('messages of one action in a row leave as one run', () => {
  const sink = recorder();
  const stream = Buffer.concat([message('f', 3), message('f'), message('f', 9)]);
  assert.equal(sink.walker.walk(stream, 0, stream.length), stream.length);
  assert.equal(sink.runs, 1);
  assert.deepEqual(sink.events, [`run ${stream.toString('latin1')}`]);
  assert.equal(sink.walker.isMidMessage, false);
});

test('any cut of the stream in two gives what the whole gives', () => {
  const expected = reference(MIXED);
  for (let cut = 0; cut <= MIXED.length; cut++) {
    const sink = recorder();
    feed(sink, [MIXED.subarray(0, cut), MIXED.subarray(cut)]);
    assert.deepEqual(sink.events, expected, `cut at ${cut}`);
  }
});

test('one byte at a time gives what the whole gives', () => {
  const sink = recorder();
  feed(
    sink,
    Array.from(MIXED, (_byte, at) => MIXED.subarray(at, at + 1)),
  );
  assert.deepEqual(sink.events, reference(MIXED));
});

test('random streams in random pieces give what a naive reader of whole messages gives', () => {
  const firstSeed = Math.floor(Math.random() * 1e9);
  for (let round = 0; round < 3000; round++) {
    const seed = firstSeed + round;
    const random = seededRandom(seed);
    const messages: Buffer[] = [];
    const count = 1 + random(12);
    for (let i = 0; i < count; i++) {
      const letter = 'fffesthwfesthwfesthwxq'[random(round % 3 === 0 ? 22 : 20)]!;
      const bodyBytes = random(4) === 0 ? 0 : random(random(8) === 0 ? 300 : 20);
      const bytes = message(letter, letter === 'h' ? bodyBytes + 3 : bodyBytes, random(256));
      if (random(60) === 0) bytes.writeInt32BE([0, 3, -1, MAX + 1, 0x7fffffff][random(5)]!, 1);
      messages.push(bytes);
    }
    let stream = Buffer.concat(messages);
    if (random(3) === 0) stream = stream.subarray(0, random(stream.length + 1));
    const pieces: Buffer[] = [];
    for (let at = 0; at < stream.length; ) {
      const size = 1 + random(random(2) === 0 ? 6 : 60);
      pieces.push(stream.subarray(at, at + size));
      at += size;
    }
    const sink = recorder();
    feed(sink, pieces);
    assert.deepEqual(sink.events, reference(stream), `seed ${seed}`);
  }
});

test('a huge message streams through many reads and only its size is remembered', () => {
  const sink = recorder(0x7fffffff);
  const header = Buffer.from([0x65, 0x7f, 0xff, 0xff, 0xff]);
  let forwarded = 0;
  sink.onRun = (_bytes, start, end) => {
    forwarded += end - start;
  };
  assert.equal(sink.walker.walk(header, 0, 5), 5);
  const piece = Buffer.alloc(1 << 20);
  for (let i = 0; i < 2047; i++) sink.walker.walk(piece, 0, piece.length);
  assert.equal(sink.walker.messageLeft, piece.length - 5);
  assert.deepEqual(sink.events, []);
  assert.equal(sink.walker.walk(piece, 0, piece.length - 5), piece.length - 5);
  assert.equal(forwarded, 0x80000000);
  assert.deepEqual(sink.events, ['end e']);
  assert.equal(sink.walker.isMidMessage, false);
});

test('a whole message is asked for by its full size', () => {
  for (const letter of ['t', 'w']) {
    const sink = recorder();
    const stream = Buffer.concat([message('f', 2), message(letter, 50)]);
    assert.equal(sink.walker.walk(stream, 0, 20), 7);
    assert.equal(sink.walker.needBytes, 55);
    assert.deepEqual(sink.events, [`run ${message('f', 2).toString('latin1')}`]);
    assert.equal(sink.walker.walk(stream, 7, stream.length), stream.length);
    assert.equal(sink.walker.needBytes, 0);
  }
});

test('a partial header is asked for by the size of a header', () => {
  const sink = recorder();
  assert.equal(sink.walker.walk(message('f', 2), 0, 4), 0);
  assert.equal(sink.walker.needBytes, 5);
});

test('a stop leaves its message to the next walk and asks for nothing', () => {
  const sink = recorder();
  const stream = Buffer.concat([message('f', 2), message('q', 2), message('f')]);
  assert.equal(sink.walker.walk(stream, 0, stream.length), 7);
  assert.equal(sink.walker.needBytes, 0);
  assert.equal(sink.events.length, 1);
  sink.onHeader = () => Action.skip;
  assert.equal(sink.walker.walk(stream, 7, stream.length), stream.length);
  assert.equal(sink.events.length, 1);
});

test('an end that says so stops the walk right behind its message', () => {
  const sink = recorder();
  const stream = Buffer.concat([message('x', 2), message('f', 2)]);
  assert.equal(sink.walker.walk(stream, 0, stream.length), 7);
  assert.deepEqual(sink.events, [`run ${message('x', 2).toString('latin1')}`, 'end x']);
  assert.equal(sink.walker.walk(stream, 7, stream.length), stream.length);
});

test('an impossible length is told once, and later walks do nothing until a reset', () => {
  for (const length of [0, 3, -1, -0x80000000, MAX + 1, 0x7fffffff]) {
    const sink = recorder();
    const bad = message('f', 2);
    bad.writeInt32BE(length, 1);
    const stream = Buffer.concat([message('f', 1), bad]);
    assert.equal(sink.walker.walk(stream, 0, stream.length), 6);
    assert.deepEqual(sink.events, [
      `run ${message('f', 1).toString('latin1')}`,
      `bad ${bad.toString('latin1', 0, 5)}`,
    ]);
    assert.equal(sink.walker.isBroken, true);
    assert.equal(sink.walker.walk(stream, 0, stream.length), 0);
    assert.equal(sink.events.length, 2);
    sink.walker.reset();
    assert.equal(sink.walker.walk(stream, 0, 6), 6);
    assert.equal(sink.events.length, 3);
  }
});

test('the greatest and the smallest length allowed pass', () => {
  const sink = recorder();
  const stream = Buffer.concat([message('f', MAX - 4), message('f')]);
  assert.equal(sink.walker.walk(stream, 0, stream.length), stream.length);
  assert.equal(sink.walker.isBroken, false);
});

test('abort and reset in any callback end the walk at once', () => {
  const streams: Record<string, Buffer> = {
    header: Buffer.concat([message('f'), message('f')]),
    run: Buffer.concat([message('e'), message('f')]),
    take: Buffer.concat([message('t'), message('t'), message('f')]),
    end: Buffer.concat([message('e'), message('e'), message('f')]),
    head: Buffer.concat([message('h', 3), message('h', 3), message('f')]),
  };
  for (const [name, stream] of Object.entries(streams)) {
    for (const how of ['abort', 'reset'] as const) {
      const sink = recorder();
      let calls = 0;
      sink.trap = (callback) => {
        if (calls > 0) calls++;
        if (callback !== name || calls > 0) return;
        calls = 1;
        sink.walker[how]();
      };
      sink.walker.walk(stream, 0, stream.length);
      assert.equal(calls, 1, `${how} in ${name} was followed by another callback`);
      assert.equal(sink.walker.isMidMessage, false);
      assert.equal(sink.walker.isBroken, how === 'abort');
    }
  }
});

test('a run delivered before a bad header, a take, a skip or a head may abort the walk', () => {
  const bad = message('f');
  bad.writeInt32BE(1, 1);
  for (const second of [bad, message('t'), message('s'), message('h', 9)]) {
    const sink = recorder();
    const stream = Buffer.concat([message('f', 2), second]);
    sink.trap = (name) => {
      if (name === 'run') sink.walker.abort();
    };
    sink.walker.walk(stream, 0, stream.length);
    assert.equal(sink.events.length, 1);
    assert.equal(sink.walker.isMidMessage, false);
  }
});

test('a reset in the middle of a message forgets the rest of it', () => {
  const sink = recorder();
  sink.walker.walk(message('s', 50), 0, 20);
  assert.equal(sink.walker.messageLeft, 35);
  sink.walker.reset();
  sink.walker.walk(message('f'), 0, 5);
  assert.equal(sink.events.length, 1);
});

test('a sink that waits for bytes that are there is a bug that shows', () => {
  const sink = recorder();
  sink.onHeader = () => Action.wait;
  assert.throws(() => sink.walker.walk(message('f', 2), 0, 7), InvariantError);
});

/** Mulberry32: whole numbers below `limit`, the same for the same seed. */
function seededRandom(seed: number): (limit: number) => number {
  let state = seed | 0;
  return (limit) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % limit;
  };
}
