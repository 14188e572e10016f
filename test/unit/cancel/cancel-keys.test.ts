import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  CancelKeys,
  type Cancellable,
  hopsOf,
  LONG_KEY_BYTES,
  peerOf,
  withHopLess,
  workerOf,
} from '../../../src/cancel/cancel-keys.ts';

const client = (id: number): Cancellable => ({ id });
const bytes = (hex: string) => Buffer.from(hex, 'hex');
const always = (hex: string) => () => bytes(hex);

test('without a peer_id a key is random but for its sign and the worker’s number', () => {
  const keys = new CancelKeys(5, 0, always('ffffffffffffffff'));
  assert.equal(keys.add(client(1)).toString('hex'), '7fffff05ffffffff');
  const zero = new CancelKeys(0, 0, always('0000000000000000'));
  assert.equal(zero.add(client(1)).toString('hex'), '0000000000000000');
});

test('with a peer_id bytes 1 and 2 name it, low byte first, and three hops are left', () => {
  const keys = new CancelKeys(2, 259, always('f0a0a0a0a0a0a0a0'));
  const key = keys.add(client(1));
  assert.equal(key.toString('hex'), '70030102a0a0a0a3');
  assert.equal(peerOf(key), 259);
  assert.equal(workerOf(key), 2);
  assert.equal(hopsOf(key), 3);
});

test('peer ids and worker numbers of any size that fits come back out of a key', () => {
  for (const peerId of [1, 255, 256, 16_383, 65_535]) {
    for (const worker of [0, 1, 255]) {
      const key = new CancelKeys(worker, peerId).add(client(1));
      assert.equal(peerOf(key), peerId);
      assert.equal(workerOf(key), worker);
      assert.equal(key.length, 8);
      assert.equal(key[0]! & 0x80, 0);
    }
  }
});

test('a hop less changes the two lowest bits of the last byte only, in a copy', () => {
  const key = bytes('70030102a0a0a0ff');
  const hops: string[] = [];
  let next: Buffer = key;
  while (hopsOf(next) > 0) {
    next = withHopLess(next);
    hops.push(next.toString('hex'));
  }
  assert.deepEqual(hops, ['70030102a0a0a0fe', '70030102a0a0a0fd', '70030102a0a0a0fc']);
  assert.equal(key.toString('hex'), '70030102a0a0a0ff');
});

test('a client is found by its key, and by no other', () => {
  const keys = new CancelKeys(0, 0);
  const [one, other] = [client(1), client(2)];
  const key = keys.add(one);
  assert.notDeepEqual(keys.add(other), key);
  assert.equal(keys.find(Buffer.from(key)), one);
  for (let i = 0; i < 8; i++) {
    const wrong = Buffer.from(key);
    wrong[i] = wrong[i]! ^ 1;
    assert.equal(keys.find(wrong), undefined, `byte ${i}`);
  }
  assert.equal(keys.find(key.subarray(0, 7)), undefined);
});

test('with a peer_id the hops that are left do not matter for finding the client', () => {
  const keys = new CancelKeys(0, 7);
  const one = client(1);
  const key = keys.add(one);
  for (let hops = 0; hops <= 3; hops++) {
    const travelled = Buffer.from(key);
    travelled[7] = (travelled[7]! & ~3) | hops;
    assert.equal(keys.find(travelled), one);
    assert.equal(hopsOf(travelled), hops);
  }
});

test('a long key begins as a short one does and is random behind that', () => {
  const keys = new CancelKeys(2, 259, (size) => Buffer.alloc(size, 0xf0));
  const key = keys.add(client(1), LONG_KEY_BYTES);
  assert.equal(key.length, 36);
  assert.equal(key.toString('hex'), `70030102f0f0f0f3${'f0'.repeat(28)}`);
});

test('a long key is compared whole, whatever hops it has left', () => {
  const keys = new CancelKeys(0, 7);
  const one = client(1);
  const key = keys.add(one, LONG_KEY_BYTES);
  assert.equal(keys.find(withHopLess(key)), one);
  for (let i = 0; i < key.length; i++) {
    const wrong = Buffer.from(key);
    wrong[i] = wrong[i]! ^ 0x10;
    assert.equal(keys.find(wrong), undefined, `byte ${i}`);
    assert.equal(keys.find(key.subarray(0, i)), undefined, `cut to ${i}`);
  }
  assert.equal(keys.find(Buffer.concat([key, Buffer.of(0)])), undefined);
  keys.remove(key);
  assert.equal(keys.find(key), undefined);
});

test('a key that is taken is not given twice', () => {
  const drawn = ['0101010101010101', '0101010101010101', '0202020202020202'].map(bytes);
  const keys = new CancelKeys(0, 0, () => drawn.shift()!);
  const first = keys.add(client(1));
  const second = keys.add(client(2));
  assert.equal(first.toString('hex'), '0101010001010101');
  assert.equal(second.toString('hex'), '0202020002020202');
});

test('a removed key finds nobody, and removing what was never there does no harm', () => {
  const keys = new CancelKeys(0, 3);
  const key = keys.add(client(1));
  keys.remove(Buffer.alloc(0));
  keys.remove(Buffer.alloc(8, 1));
  assert.notEqual(keys.find(key), undefined);
  keys.remove(key);
  keys.remove(key);
  assert.equal(keys.find(key), undefined);
});

test('keys from before the peer_id changed are found still', () => {
  const keys = new CancelKeys(1, 0);
  const [one, other, third] = [client(1), client(2), client(3)];
  const plain = keys.add(one);
  keys.peerId = 5;
  const withPeer = keys.add(other);
  assert.equal(peerOf(withPeer), 5);
  keys.peerId = 0;
  const last = keys.add(third);
  assert.deepEqual([keys.find(plain), keys.find(last)], [one, third]);
  keys.peerId = 5;
  assert.equal(keys.find(withPeer), other);
  assert.equal(keys.find(withHopLess(withPeer)), other);
});
