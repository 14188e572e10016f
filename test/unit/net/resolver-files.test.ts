import assert from 'node:assert/strict';
import { test } from 'node:test';
import { candidates, hostsAddresses, readResolverFile } from '../../../src/net/resolver-files.ts';

const read = (...lines: readonly string[]) => readResolverFile(lines.join('\n'), 'own.test');

test('name servers are taken in order, with a port or without, and what is no address is left out', () => {
  const { servers } = read(
    '# a comment',
    'nameserver 10.0.0.1',
    '  nameserver\t10.0.0.2:5353  ',
    'nameserver fd00::1',
    'nameserver [fd00::2]:53',
    'nameserver server.test',
    'nameserver 10.0.0.3:',
    'nameserver',
    'nameservers 10.0.0.4',
    'sortlist 10.0.0.0',
  );
  assert.deepEqual(servers, ['10.0.0.1', '10.0.0.2:5353', 'fd00::1', '[fd00::2]:53']);
});

test('a file that names no server means this machine', () => {
  assert.deepEqual(read('').servers, ['127.0.0.1']);
});

test('the last of search and domain counts, and without them the domain of the machine', () => {
  assert.deepEqual(read('domain a.test', 'search b.test c.test').search, ['b.test', 'c.test']);
  assert.deepEqual(read('search b.test c.test', 'domain a.test').search, ['a.test']);
  assert.deepEqual(read('search .').search, []);
  assert.deepEqual(read('search').search, ['own.test']);
  assert.deepEqual(readResolverFile('', '').search, []);
});

test('options are kept within what resolv.conf(5) allows', () => {
  const of = (text: string) => {
    const { ndots, timeoutMs, attempts } = read(text);
    return [ndots, timeoutMs, attempts];
  };
  assert.deepEqual(of(''), [1, 5000, 2]);
  assert.deepEqual(of('options ndots:3 rotate timeout:7 attempts:4 edns0'), [3, 7000, 4]);
  assert.deepEqual(of('options ndots:99 timeout:99 attempts:99'), [15, 30_000, 5]);
  assert.deepEqual(of('options timeout:0 attempts:0 ndots:x'), [1, 1000, 1]);
});

test('a name with enough dots is tried as it is first, one that ends in a dot only so', () => {
  const file = read('search a.test b.test', 'options ndots:2');
  assert.deepEqual(candidates('db', file), ['db.a.test', 'db.b.test', 'db']);
  assert.deepEqual(candidates('x.y.z', file), ['x.y.z', 'x.y.z.a.test', 'x.y.z.b.test']);
  assert.deepEqual(candidates('db.', file), ['db']);
});

test('a hosts file knows a name by any of its spellings, each address once', () => {
  const text = [
    '127.0.0.1 localhost db # not.this',
    '::1\tlocalhost LOCALHOST6',
    '127.0.0.1 localhost',
    '#10.0.0.1 localhost',
    'nonsense localhost',
    '10.0.0.2 Db.Test',
    '',
  ].join('\n');
  assert.deepEqual(hostsAddresses(text, 'LocalHost'), ['127.0.0.1', '::1']);
  assert.deepEqual(hostsAddresses(text, 'db.test'), ['10.0.0.2']);
  assert.deepEqual(hostsAddresses(text, 'not.this'), []);
  assert.deepEqual(hostsAddresses(text, '127.0.0.1'), []);
});
