import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatJson } from '../../../src/log/json-line.ts';

const AT = new Date('2026-11-29T18:41:09.004Z');

function parsed(text: string, worker: number | null = 3): Record<string, unknown> {
  const line = formatJson({ at: AT, level: 'LOG', pid: 21793, worker }, text);
  assert.ok(line.endsWith('}\n'));
  assert.equal(line.indexOf('\n'), line.length - 1, 'one line');
  return JSON.parse(line);
}

test('a client line becomes its parts, and its text stays as it is without the prefix', () => {
  const { time, ...rest } = parsed(
    'C-0x030000001a2f: shop/app@10.0.0.7:33198 closing because: client close request (age=6s)',
  );
  assert.equal(new Date(String(time)).getTime(), AT.getTime());
  assert.match(String(time), /^2026-11-\d\dT\d\d:\d\d:09\.004[+-]\d\d:\d\d$/);
  assert.deepEqual(rest, {
    level: 'LOG',
    pid: 21793,
    worker: 3,
    kind: 'C',
    id: '0x030000001a2f',
    db: 'shop',
    user: 'app',
    host: '10.0.0.7',
    port: 33198,
    event: 'closing',
    reason: 'client close request',
    age: 6,
    message: 'closing because: client close request (age=6s)',
  });
});

for (const [text, fields] of [
  [
    'S-0x1: a/b@[::1]:5432 new connection to server (from [::1]:9)',
    { kind: 'S', host: '::1', port: 5432, event: 'server_connected', from: '[::1]:9' },
  ],
  [
    'S-0x2: a/b@unix:5432 new connection to server',
    { kind: 'S', host: 'unix', event: 'server_connected' },
  ],
  ['C-0x2: a\\x20b/c\\xc2\\xa0@1.2.3.4:5 x', { db: 'a b', user: 'c\u00a0', message: 'x' }],
  ['C-0x2: (nodb)/a@b@1.2.3.4:5 x', { db: '(nodb)', user: 'a@b', host: '1.2.3.4' }],
  ['C-0x3: peer-7@1.2.3.4:6432 x', { peer: 7, host: '1.2.3.4', port: 6432, message: 'x' }],
  [
    'C-0x2: a/b@1.2.3.4:5 login attempt: db=a user=b tls=no replication=no',
    { event: 'login_attempt', tls: 'no', replication: 'no' },
  ],
  ["KILL 'a' command issued", { event: 'command', command: 'KILL', database: 'a' }],
  ['got SIGUSR1, pausing all activity', { event: 'signal', signal: 'SIGUSR1' }],
  ['worker 2 restarted (pid 44, attempt 1, after 3ms)', { event: 'worker_started', of: 2 }],
  [
    'stats: 1 xacts/s, 2 queries/s, 3 client parses/s, 4 server parses/s, 5 binds/s, ' +
      '6 client logins/s, in 7 B/s, out 8 B/s, xact 9 us, query 10 us, wait 11 us',
    { event: 'stats', xacts_per_s: 1, client_logins_per_s: 6, out_bytes_per_s: 8, wait_us: 11 },
  ],
] as const) {
  test(`fields of: ${text.slice(0, 60)}`, () => {
    const line = parsed(text);
    for (const [name, value] of Object.entries(fields)) assert.equal(line[name], value, name);
  });
}

test('an unknown text has no event, line breaks and quotes stay within one line', () => {
  const line = parsed('he said "no"\nand left\u001b[0m', null);
  assert.equal(line['message'], 'he said "no"\nand left\u001b[0m');
  assert.ok(!('event' in line) && !('worker' in line) && !('kind' in line));
});

test('a message is cut where a text line is', () => {
  assert.equal(String(parsed('x'.repeat(5000))['message']).length, 2047);
});
