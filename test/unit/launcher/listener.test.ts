import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inheritanceOf, type Listener } from '../../../src/launcher/listener.ts';
import { listenItems, tcpLabel } from '../../../src/launcher/tcp-listeners.ts';
import { unixAddress } from '../../../src/launcher/unix-listener.ts';

function listener(label: string, fds: number[], kind: 'tcp' | 'unix' = 'tcp'): Listener {
  const sockets = fds.map((fd) => ({ fd, close() {} }));
  return { kind, label, host: label, port: 6432, sockets, close() {} };
}

test('a worker inherits its own socket of each TCP address and the shared Unix socket', () => {
  const listeners = [listener('a', [20, 21]), listener('b', [30, 31]), listener('u', [40], 'unix')];
  const { descriptors, grants } = inheritanceOf(listeners, 1, 4);
  assert.deepEqual(descriptors, [21, 31, 40]);
  assert.deepEqual(
    grants.map(({ fd, kind, label }) => [fd, kind, label]),
    [
      [4, 'tcp', 'a'],
      [5, 'tcp', 'b'],
      [6, 'unix', 'u'],
    ],
  );
});

test('an address without sockets is left for the worker to bind and takes no descriptor', () => {
  const { descriptors, grants } = inheritanceOf([listener('a', []), listener('u', [40])], 0, 4);
  assert.deepEqual(descriptors, [40]);
  assert.deepEqual(
    grants.map(({ fd }) => fd),
    [null, 4],
  );
});

test('blanks and empty items in listen_addr do not count', () => {
  assert.deepEqual(listenItems(' 127.0.0.1 ,, ::1,'), ['127.0.0.1', '::1']);
  assert.deepEqual(listenItems(''), []);
});

test('an IPv6 address is named in brackets', () => {
  assert.equal(tcpLabel({ host: '::', family: 6 }, 6432), '[::]:6432');
  assert.equal(tcpLabel({ host: '0.0.0.0', family: 4 }, 6432), '0.0.0.0:6432');
});

test('a leading @ puts the Unix socket into the abstract namespace', () => {
  const abstract = unixAddress('@pg', 6432)!;
  assert.deepEqual(abstract, {
    path: '\0pg/.s.PGSQL.6432',
    isAbstract: true,
    label: 'unix:@pg/.s.PGSQL.6432',
  });
  assert.equal(unixAddress('/tmp', 6432)!.path, '/tmp/.s.PGSQL.6432');
  assert.equal(unixAddress('', 6432), null);
});
