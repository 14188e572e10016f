import assert from 'node:assert/strict';
import { test } from 'node:test';
import { cancelPacketBytes } from '../../../src/mesh/cancel-packet.ts';
import {
  encodeFrames,
  FrameReader,
  MAX_ANSWER_BYTES,
  MAX_FRAME_BYTES,
} from '../../../src/mesh/frame.ts';
import { cancelRequest } from '../../../src/wire/encode.ts';

const text = JSON.stringify({ kind: 'ünïcode', list: [1, 2, 3] });

function read(reader: FrameReader, ...chunks: Buffer[]): FrameReader {
  for (const chunk of chunks) reader.push(chunk);
  return reader;
}

test('a text is read the same wherever the stream is cut', () => {
  const frames = encodeFrames(text, MAX_FRAME_BYTES)!;
  for (let cut = 0; cut <= frames.length; cut++) {
    const reader = read(
      new FrameReader(MAX_FRAME_BYTES, 1),
      frames.subarray(0, cut),
      frames.subarray(cut),
    );
    assert.equal(reader.text, text, `cut at ${cut}`);
  }
  const bytes = Array.from(frames, (byte) => Buffer.from([byte]));
  assert.equal(read(new FrameReader(MAX_FRAME_BYTES, 1), ...bytes).text, text);
});

test('nothing is complete before the last byte', () => {
  const frames = encodeFrames(text, MAX_FRAME_BYTES)!;
  const reader = read(new FrameReader(MAX_FRAME_BYTES, 1), frames.subarray(0, -1));
  assert.equal(reader.isOver, false);
});

test('a long text travels in several pieces and an empty one in one', () => {
  for (const long of ['', 'x'.repeat(MAX_FRAME_BYTES), 'é'.repeat(MAX_FRAME_BYTES + 7)]) {
    const frames = encodeFrames(long, MAX_ANSWER_BYTES)!;
    const reader = read(new FrameReader(MAX_ANSWER_BYTES), frames);
    assert.equal(reader.problem, null);
    assert.ok(reader.text === long);
  }
});

test('a text above the limit is not sent', () => {
  assert.equal(encodeFrames('x'.repeat(11), 10), null);
});

test('what follows the end of a text is ignored', () => {
  const frames = encodeFrames(text, MAX_FRAME_BYTES)!;
  const reader = read(new FrameReader(MAX_FRAME_BYTES, 1), frames, Buffer.from('garbage'));
  assert.equal(reader.text, text);
  assert.equal(reader.problem, null);
});

const header = (magic: number, version: number, more: number, bytes: number): Buffer => {
  const result = Buffer.alloc(10);
  result.writeUInt32BE(magic, 0);
  result[4] = version;
  result[5] = more;
  result.writeUInt32BE(bytes, 6);
  return result;
};

for (const [what, bytes, problem] of [
  ['another magic', header(1, 1, 0, 4), /something else/],
  ['another version', header(0x5047464d, 9, 0, 4), /speaks version 9/],
  ['an unknown kind', header(0x5047464d, 1, 2, 4), /unknown kind/],
  ['an oversized piece', header(0x5047464d, 1, 0, MAX_FRAME_BYTES + 1), /1048577 bytes/],
  ['a piece of 4 GB', header(0x5047464d, 1, 0, 0xffffffff), /4294967295 bytes/],
  ['an empty piece that promises more', header(0x5047464d, 1, 1, 0), /too many/],
] as const) {
  test(`a reader gives up at ${what}`, () => {
    const reader = read(new FrameReader(MAX_ANSWER_BYTES), bytes, Buffer.from('rest'));
    assert.match(reader.problem ?? '', problem);
    assert.equal(reader.text, null);
  });
}

test('a request may not come in several pieces, nor an answer be longer than agreed', () => {
  const long = encodeFrames('x'.repeat(MAX_FRAME_BYTES + 1), MAX_ANSWER_BYTES)!;
  assert.match(read(new FrameReader(MAX_ANSWER_BYTES, 1), long).problem ?? '', /too many/);
  assert.match(read(new FrameReader(MAX_FRAME_BYTES), long).problem ?? '', /more than is allowed/);
});

test('a CancelRequest is known by its length and code alone', () => {
  const shortest = cancelRequest(Buffer.alloc(8, 7));
  const longest = cancelRequest(Buffer.alloc(260, 7));
  assert.equal(cancelPacketBytes(shortest), 16);
  assert.equal(cancelPacketBytes(longest), 268);
  assert.equal(cancelPacketBytes(shortest.subarray(0, 3)), 0);
  assert.equal(cancelPacketBytes(shortest.subarray(0, 7)), 0);
  assert.equal(cancelPacketBytes(cancelRequest(Buffer.alloc(7))), -1);
  assert.equal(cancelPacketBytes(cancelRequest(Buffer.alloc(261))), -1);
  const ssl = Buffer.from(shortest);
  ssl.writeInt32BE(80877103, 4);
  assert.equal(cancelPacketBytes(ssl), -1);
});
