import assert from 'node:assert/strict';
import { test } from 'node:test';
import { loadZone, nameAt, numericZone, readZone } from '../../../src/log/zone.ts';

const HOUR = 3600;

/** A TZif file of version 2 with the given transitions, times in seconds. */
function tzif(
  from: number[],
  kinds: { offset: number; name: string }[],
  index: number[],
  rule: string,
) {
  const chars = kinds.map((kind) => `${kind.name}\0`).join('');
  const block = (timeBytes: number, isEmpty: boolean) => {
    const times = isEmpty ? [] : from;
    const used = isEmpty ? kinds.slice(0, 1) : kinds;
    const names = isEmpty ? `${kinds[0]!.name}\0` : chars;
    const header = Buffer.alloc(44);
    header.write('TZif2', 'latin1');
    header.writeUInt32BE(times.length, 32);
    header.writeUInt32BE(used.length, 36);
    header.writeUInt32BE(names.length, 40);
    const moments = Buffer.alloc(times.length * timeBytes);
    times.forEach((at, i) => {
      if (timeBytes === 8) moments.writeBigInt64BE(BigInt(at), i * 8);
      else moments.writeInt32BE(at, i * 4);
    });
    const types = Buffer.alloc(used.length * 6);
    let nameAt = 0;
    used.forEach((kind, i) => {
      types.writeInt32BE(kind.offset, i * 6);
      types.writeUInt8(nameAt, i * 6 + 5);
      nameAt += kind.name.length + 1;
    });
    const places = Buffer.from(isEmpty ? [] : index);
    return Buffer.concat([header, moments, places, types, Buffer.from(names, 'latin1')]);
  };
  return Buffer.concat([block(4, true), block(8, false), Buffer.from(`\n${rule}\n`)]);
}

test('a name between two transitions comes from the table', () => {
  const kinds = [
    { offset: 0, name: 'LMT' },
    { offset: HOUR, name: 'OLD' },
    { offset: HOUR, name: 'CET' },
  ];
  const zone = readZone(tzif([100, 200, 300], kinds, [1, 2, 2], 'CET-1CEST,M3.5.0,M10.5.0/3'));
  assert.equal(nameAt(zone, new Date(150_000), HOUR), 'OLD');
  assert.equal(nameAt(zone, new Date(250_000), HOUR), 'CET');
});

test('after the last transition the rule of the future names summer and winter', () => {
  const zone = readZone(
    tzif([100], [{ offset: 0, name: 'LMT' }], [0], 'CET-1CEST,M3.5.0,M10.5.0/3'),
  );
  const now = new Date('2026-07-01T00:00:00Z');
  assert.equal(nameAt(zone, now, HOUR), 'CET');
  assert.equal(nameAt(zone, now, 2 * HOUR), 'CEST');
  assert.equal(nameAt(zone, now, 3 * HOUR), undefined);
});

test('a numeric name and an offset with minutes are read from a rule', () => {
  assert.equal(nameAt(loadZone('<-03>3'), new Date(), -3 * HOUR), '-03');
  assert.equal(nameAt(loadZone('<+0545>-5:45'), new Date(), 5.75 * HOUR), '+0545');
  assert.equal(nameAt(loadZone('EST5EDT'), new Date(), -4 * HOUR), 'EDT');
});

test('a value of TZ that names no zone gives none', () => {
  assert.equal(loadZone('No/Such_Zone'), null);
  assert.equal(loadZone(''), null);
});

test('a file that is no TZif gives no zone', () => {
  assert.equal(readZone(Buffer.from('#!/bin/sh\n')), null);
});

test('without a name the offset is written, with minutes only where there are some', () => {
  assert.deepEqual([0, 60, -210, 345].map(numericZone), ['UTC', '+01', '-0330', '+0545']);
});
