import assert from 'node:assert/strict';
import { hostname } from 'node:os';
import { test } from 'node:test';
import { PGBOUNCER_VERSION } from '../../../src/log/version.ts';
import {
  cancelRequest,
  int32,
  message,
  packet,
  query,
  splitMessages,
  sslRequest,
  startup,
} from '../../support/messages.ts';
import * as says from '../../support/server-messages.ts';
import { type ClientWorld, clientWorld, type TestClient } from './support.ts';

const LOGIN = { user: 'u', database: 'd' };

/** Sends `bytes` as the first of a connection and returns what the client got and whether it was closed. */
function first(world: ClientWorld, ...bytes: Buffer[]): { got: string; client: TestClient } {
  const client = world.connect();
  client.send(...bytes);
  return { got: client.got(), client };
}

test('the welcome waits for the pool’s first server and then comes as one write', (t) => {
  const world = clientWorld(t);
  const { got, client } = first(world, startup(LOGIN));
  assert.equal(got, '');
  assert.equal(client.session.isWelcomed, false);
  world.backend().logIn({ server_version: '18.0', TimeZone: 'UTC', is_superuser: 'on' });
  assert.equal(client.socket.written.length, 1);
  const { messages } = splitMessages(client.bytes());
  assert.deepEqual(
    messages.map(({ type, body }) => (type === 'S' ? body.toString('latin1') : type)),
    [
      'R',
      `pgbouncer.version\0${PGBOUNCER_VERSION}\0`,
      'server_version\x0018.0\0',
      'is_superuser\0on\0',
      'pgbouncer.max_prepared_statements\x00200\0',
      'pgbouncer.pool_mode\0transaction\0',
      'TimeZone\0UTC\0',
      'K',
      'Z',
    ],
  );
  assert.deepEqual(messages.at(-2)!.body, client.session.cancelKey);
  assert.equal(world.context.cancelKeys.find(client.session.cancelKey), client.session);
  assert.equal(client.session.isIdle, true);
  // The server is nobody's: a client is only linked by its first request.
  assert.equal(world.given.pool().idle.size, 1);
});

test('tracked parameters are welcomed in PgBouncer’s order, the client’s own values first', (t) => {
  const world = clientWorld(t, 'application_name_add_host = 1\nlogin_notify_message = hello');
  const { client } = first(world, startup({ ...LOGIN, TimeZone: 'CET', application_name: 'x' }));
  world.backend().logIn({
    application_name: '',
    client_encoding: 'UTF8',
    TimeZone: 'UTC',
    DateStyle: 'ISO',
    server_version: '18.0',
  });
  assert.deepEqual(
    client
      .messages()
      .filter(({ type }) => type === 'S' || type === 'N')
      .map(({ type, body }) => (type === 'N' ? 'N' : body.toString('latin1', 0, body.length - 1))),
    [
      `pgbouncer.version\0${PGBOUNCER_VERSION}`,
      'server_version\x0018.0',
      'pgbouncer.max_prepared_statements\x00200',
      'pgbouncer.pool_mode\0transaction',
      'DateStyle\0ISO',
      'client_encoding\0UTF8',
      'TimeZone\0CET',
      `application_name\0x - unix(@${hostname()}):6432`,
      'N',
    ],
  );
});

test('a query behind the startup packet is answered after the welcome, whoever was there before', (t) => {
  for (const hasPool of [false, true]) {
    const world = clientWorld(t);
    if (hasPool) world.welcome();
    const client = world.connect();
    client.send(startup(LOGIN), query('select 1'));
    if (!hasPool) world.backend().logIn();
    const backend = world.backend();
    assert.match(client.got(), /^R.*K, Z:I$/);
    assert.equal(backend.heardText(), 'Q(select 1)', `pool known: ${hasPool}`);
    backend.say(says.textAnswer('1'));
    assert.equal(client.got(), 'T, D, C, Z:I');
    t.mock.restoreAll();
  }
});

test('the startup packet is understood in any two pieces', (t) => {
  const bytes = Buffer.concat([startup(LOGIN), query('select 1')]);
  for (let cut = 1; cut < bytes.length; cut++) {
    const world = clientWorld(t);
    world.welcome();
    const client = world.connect();
    client.send(bytes.subarray(0, cut));
    client.send(bytes.subarray(cut));
    assert.match(client.got(), /^R.*K, Z:I$/, `cut at ${cut}`);
    assert.equal(world.backend().heardText(), 'Q(select 1)', `cut at ${cut}`);
    t.mock.restoreAll();
  }
});

test('requests for encryption are answered N, as often as they come', (t) => {
  const world = clientWorld(t);
  world.welcome();
  const gss = packet([int32(80_877_104)]);
  const client = world.connect();
  for (const request of [sslRequest(), gss, sslRequest()]) {
    client.send(request);
    assert.equal(String(client.bytes()), 'N');
  }
  client.send(startup(LOGIN));
  assert.match(client.got(), /Z:I$/);
});

test('bytes behind a request for encryption can only have been put there by somebody in between', (t) => {
  const world = clientWorld(t);
  assert.equal(
    first(world, sslRequest(), startup(LOGIN)).got,
    'FATAL 08P01 received unencrypted data after SSL request',
  );
  assert.equal(
    first(world, packet([int32(80_877_104)]), Buffer.of(0)).got,
    'FATAL 08P01 received unencrypted data after GSSAPI encryption request',
  );
});

test('first bytes that no client sends are refused as PgBouncer refuses them', (t) => {
  const world = clientWorld(t);
  const rows: [string, Buffer, string][] = [
    [
      'protocol 2',
      packet([int32(0x20000), Buffer.alloc(4)]),
      'FATAL 08P01 old V2 protocol not supported',
    ],
    [
      'protocol 4',
      packet([int32(0x40000), Buffer.alloc(4)]),
      "FATAL 08P01 bad packet header: '0000000c00040000'",
    ],
    [
      'too short a length',
      packet([int32(0x30000)], 7),
      "FATAL 08P01 bad packet header: '0000000700030000'",
    ],
    [
      'too long for a startup packet',
      packet([int32(0x30000)], 10_001),
      "FATAL 08P01 bad packet header: '0000271100030000'",
    ],
    [
      'a length above 64 KiB',
      packet([int32(0x30000)], 70_000),
      "FATAL 08P01 bad packet header: '0001117000030000'",
    ],
    [
      'a password first',
      message('p', ['x']),
      'FATAL 08P01 client password pkt before startup packet',
    ],
    ['a query first', query('select 1'), ''],
    [
      'HTTP',
      Buffer.from('GET / HTTP/1.1\r\n'),
      "FATAL 08P01 bad packet header: '474554202f204854'",
    ],
  ];
  for (const [name, bytes, expected] of rows) {
    const { got, client } = first(world, bytes);
    assert.equal(got, expected, name);
    assert.equal(client.isClosed, true, name);
  }
});

test('startup packets with a fault are refused, the first fault in PgBouncer’s order named', (t) => {
  const world = clientWorld(t, '', 'd = host=h');
  const rows: [string, Buffer, string][] = [
    ['unknown parameter', startup({ ...LOGIN, foo: '1' }), 'unsupported startup parameter: foo'],
    ['no user', startup({ database: 'd' }), 'no username supplied'],
    ['empty user', startup({ user: '', database: 'd' }), 'no username supplied'],
    [
      'no terminator',
      packet([int32(0x30000), 'user', 'u']),
      'invalid startup packet layout: expected terminator as last byte',
    ],
    ['long user', startup({ user: 'x'.repeat(128), database: 'd' }), 'username too long'],
    ['no such database', startup({ user: 'u', database: 'nowhere' }), 'no such database: nowhere'],
    ['no such database by the user’s name', startup({ user: 'u' }), 'no such database: u'],
    [
      'a database name longer than PostgreSQL’s',
      startup({ user: 'u', database: 'y'.repeat(70) }),
      `no such database: ${'y'.repeat(63)}`,
    ],
    ['unknown user', startup({ user: 'nobody', database: 'd' }), '"trust" authentication failed'],
  ];
  for (const [name, bytes, expected] of rows) {
    const { got, client } = first(world, bytes);
    assert.equal(got, `FATAL 08P01 ${expected}`, name);
    assert.equal(client.isClosed, true, name);
  }
  assert.equal(world.context.admission.ofDatabase('d'), 0);
  assert.equal(world.context.admission.ofUser('u'), 0);
});

test('a password that is asked for is checked, in any two pieces', (t) => {
  const good = Buffer.concat([message('p', ['secret']), query('select 1')]);
  for (let cut = 0; cut < good.length; cut++) {
    const world = clientWorld(t, 'auth_type = plain');
    const client = world.connect();
    client.send(startup(LOGIN));
    assert.equal(client.messages()[0]!.body.readInt32BE(0), 3);
    if (cut > 0) client.send(good.subarray(0, cut));
    client.send(good.subarray(cut));
    world.backend().logIn();
    assert.match(client.got(), /K, Z:I$/, `cut at ${cut}`);
    assert.equal(world.backend().heardText(), 'Q(select 1)', `cut at ${cut}`);
    t.mock.restoreAll();
  }
  const world = clientWorld(t, 'auth_type = plain');
  const client = world.connect();
  client.send(startup(LOGIN));
  client.bytes();
  client.send(message('p', ['wrong']));
  assert.equal(client.got(), 'FATAL 08P01 password authentication failed');
  assert.equal(world.given.pools.size, 0);
});

test('what is no password ends a login that waits for one', (t) => {
  for (const [bytes, expected] of [
    [query('select 1'), ''],
    [startup(LOGIN), 'FATAL 08P01 client re-sent startup pkt'],
    [message('p', [], 65_536), "FATAL 08P01 bad packet header: '7000010000'"],
    [message('p', [], 3), "FATAL 08P01 bad packet header: '7000000003'"],
  ] as const) {
    const world = clientWorld(t, 'auth_type = plain');
    const client = world.connect();
    client.send(startup(LOGIN));
    client.bytes();
    client.send(bytes);
    assert.equal(client.got(), expected);
    assert.equal(client.isClosed, true);
    t.mock.restoreAll();
  }
});

test('a cancel request is handed on whole, and its connection closed when it has gone its way', (t) => {
  for (const bytes of [5, 8, 36, 260]) {
    const world = clientWorld(t, 'max_client_conn = 0');
    const request = cancelRequest(Buffer.alloc(bytes, 7));
    const { got, client } = first(world, request.subarray(0, 12), request.subarray(12));
    assert.equal(got, '');
    assert.equal(world.cancels[0]!.packet, request.toString('hex'));
    assert.equal(client.isClosed, false);
    world.cancels[0]!.done('successfully sent cancel request');
    assert.equal(client.isClosed, true);
    assert.equal(client.got(), '');
    assert.match(world.given.lines.at(-1)!, /closing because: successfully sent cancel request/);
    t.mock.restoreAll();
  }
});

test('a cancel request whose length PostgreSQL does not take is closed at its header', (t) => {
  for (const bytes of [0, 4, 261, 9_000]) {
    const world = clientWorld(t);
    const { got, client } = first(world, cancelRequest(Buffer.alloc(bytes, 7)).subarray(0, 8));
    assert.equal(got, '');
    assert.equal(client.isClosed, true);
    assert.deepEqual(world.cancels, []);
    assert.match(world.given.lines.at(-1)!, /closing because: bad cancel request/);
    t.mock.restoreAll();
  }
});

test('a requester that leaves gives its cancel request up', (t) => {
  const world = clientWorld(t);
  const { client } = first(world, cancelRequest(Buffer.alloc(8, 7)));
  assert.equal(world.cancels[0]!.isGivenUp, false);
  client.socket.emit('end');
  assert.equal(world.cancels[0]!.isGivenUp, true);
  assert.equal(client.isClosed, true);
});

test('a client gets the version that it asks for, up to 3.2, and is told of it when that is less', (t) => {
  for (const [asked, unknown, said, keyBytes] of [
    [0x30000, '', '', 8],
    [0x30001, '', '', 8],
    [0x30002, '', '', 36],
    [0x30003, '', '0003000200000000', 36],
    [0x3ffff, '', '0003000200000000', 36],
    [0x30000, '_pq_.x', '00030000000000015f70715f2e7800', 8],
    [0x30001, '_pq_.x', '00030001000000015f70715f2e7800', 8],
    [0x30002, '_pq_.x', '00030002000000015f70715f2e7800', 36],
    [0x3270f, '_pq_.x', '00030002000000015f70715f2e7800', 36],
  ] as const) {
    for (const database of ['d', 'pgbouncer']) {
      const world = clientWorld(t);
      world.welcome();
      const client = world.connect();
      const user = database === 'd' ? 'u' : 'admin';
      const options = unknown === '' ? {} : { [unknown]: '1' };
      client.send(startup({ user, database, ...options }, asked));
      const messages = client.messages();
      const [negotiation] = messages.filter(({ type }) => type === 'v');
      assert.equal(negotiation?.body.toString('hex') ?? '', said);
      if (said !== '') assert.equal(messages[0], negotiation);
      assert.equal(messages.find(({ type }) => type === 'K')?.body.length, keyBytes);
      t.mock.restoreAll();
    }
  }
});

test('where [peers] names another host, keys are of the length that every PgBouncer takes', (t) => {
  for (const [peers, keyBytes] of [
    ['', 36],
    ['1 = host=own', 36],
    ['1 = host=own\n2 = host=other', 8],
  ] as const) {
    const world = clientWorld(t, 'peer_id = 1', 'd = host=h', `[peers]\n${peers}`);
    world.welcome();
    const client = world.connect();
    client.send(startup(LOGIN, 0x30002));
    const messages = client.messages();
    assert.equal(messages.find(({ type }) => type === 'K')?.body.length, keyBytes);
    t.mock.restoreAll();
  }
});

test('limits of clients refuse with PgBouncer’s texts, and count down when a client leaves', (t) => {
  for (const [setting, expected] of [
    ['max_client_conn = 1', 'no more connections allowed (max_client_conn)'],
    ['max_db_client_connections = 1', 'client connections exceeded (max_db_client_connections)'],
    [
      'max_user_client_connections = 1',
      'client connections exceeded (max_user_client_connections)',
    ],
  ]) {
    const world = clientWorld(t, setting);
    const client = world.welcome();
    assert.equal(first(world, startup(LOGIN)).got, `FATAL 08P01 ${expected}`);
    world.context.admission.total--;
    client.send(message('X'));
    world.context.admission.total--;
    assert.match(first(world, startup(LOGIN)).got, /Z:I$/);
    t.mock.restoreAll();
  }
});

test('a client whose pool has its slots elsewhere is handed on with every byte it has sent', (t) => {
  const world = clientWorld(t);
  world.places = [2, 3];
  world.handsOff = true;
  const bytes = Buffer.concat([startup(LOGIN), query('select 1')]);
  const { got } = first(world, bytes);
  assert.equal(got, '');
  assert.deepEqual(world.handoffs, [`2: ${bytes.toString('latin1')}`]);
  assert.equal(world.ended.length, 1);
  // One that comes back is given to the next, and refused when all have had it.
  const back = world.connect();
  back.session.visited = [2];
  back.send(startup(LOGIN));
  assert.deepEqual(world.handoffs.length, 2);
  assert.match(world.handoffs[1]!, /^3: /);
  const again = world.connect();
  again.session.visited = [2, 3];
  again.send(startup(LOGIN));
  assert.equal(
    again.got(),
    'FATAL 08P01 the worker that has a slot for this pool cannot be reached',
  );
});

test('a server’s refusal is what the waiting client is told', (t) => {
  const world = clientWorld(t);
  const { client } = first(world, startup(LOGIN));
  world.backend().refuse('28P01', 'password authentication failed for user "u"');
  assert.equal(client.got(), 'FATAL 28P01 password authentication failed for user "u"');
  assert.equal(client.isClosed, true);
  assert.equal(world.given.pool().clients, 0);
});

test('a client that leaves before its welcome is in nobody’s queue', (t) => {
  const world = clientWorld(t);
  const { client } = first(world, startup(LOGIN));
  client.socket.emit('end');
  assert.equal(world.given.pool().waiting.size, 0);
  world.backend().logIn();
  assert.equal(client.got(), '');
  assert.equal(world.context.admission.ofDatabase('d'), 0);
});

test('nobody gets in while the pooler shuts down, but into the console', (t) => {
  const world = clientWorld(t);
  world.context.isShuttingDown = true;
  assert.equal(first(world, startup(LOGIN)).got, 'FATAL 08P01 pooler is shutting down');
  const { got } = first(world, startup({ user: 'admin', database: 'pgbouncer' }));
  assert.match(got, /Z:I$/);
});

test('a disabled database is refused', (t) => {
  const world = clientWorld(t);
  world.given.pool().database.isDisabled = true;
  assert.equal(first(world, startup(LOGIN)).got, 'FATAL 08P01 database "d" is disabled');
});

test('with auth_type any the forced user is used, and a database without one is an error', (t) => {
  const world = clientWorld(t, 'auth_type = any', 'd = host=h user=forced\ne = host=h');
  const { client } = first(world, startup({ user: 'whoever', database: 'd' }));
  world.given.opener('d').last.logIn();
  assert.match(client.got(), /Z:I$/);
  assert.equal(world.given.opener('d').last.credentials.user, 'forced');
  assert.equal(
    first(world, startup({ user: 'whoever', database: 'e' })).got,
    'FATAL 08P01 bouncer config error',
  );
});

// The console

test('the console is open to its users only, with their rights, under both of its names', (t) => {
  for (const [user, database, rights] of [
    ['admin', 'pgbouncer', 'admin'],
    ['stats', 'pgfleet', 'stats'],
    ['u', 'pgbouncer', null],
  ] as const) {
    const world = clientWorld(t);
    const { got, client } = first(world, startup({ user, database }));
    if (rights === null) {
      assert.equal(got, 'FATAL 08P01 not allowed');
    } else {
      assert.match(got, /^R, S, S, K, Z:I$/);
      assert.equal(world.console.rights, rights);
      assert.equal(client.session.isConsole, true);
    }
    t.mock.restoreAll();
  }
});

test('an administrator gets into the console although the pooler is full', (t) => {
  const world = clientWorld(t, 'max_client_conn = 1\nmax_user_client_connections = 1');
  world.welcome();
  assert.match(first(world, startup({ user: 'admin', database: 'pgbouncer' })).got, /Z:I$/);
  assert.match(first(world, startup({ user: 'admin', database: 'pgbouncer' })).got, /Z:I$/);
  assert.match(first(world, startup({ user: 'stats', database: 'pgbouncer' })).got, /Z:I$/);
  assert.equal(
    first(world, startup({ user: 'stats', database: 'pgbouncer' })).got,
    'FATAL 08P01 client connections exceeded (max_user_client_connections)',
  );
});

test('the console gets whole messages, also those sent with the startup packet', (t) => {
  const bytes = Buffer.concat([
    startup({ user: 'admin', database: 'pgbouncer' }),
    query('show pools'),
    message('S'),
  ]);
  for (let cut = 1; cut < bytes.length; cut++) {
    const world = clientWorld(t);
    const client = world.connect();
    client.send(bytes.subarray(0, cut));
    client.send(bytes.subarray(cut));
    assert.deepEqual(world.console.heard, ['Q show pools\0', 'S '], `cut at ${cut}`);
    t.mock.restoreAll();
  }
});

test('a console session ends by Terminate, by a message too long, and by its own word', (t) => {
  const world = clientWorld(t);
  const open = () => first(world, startup({ user: 'admin', database: 'pgbouncer' })).client;
  const one = open();
  one.send(message('X'));
  assert.equal(one.isClosed, true);
  assert.equal(world.console.isClosed, true);
  const two = open();
  two.bytes();
  two.send(message('Q', [], (1 << 20) + 1));
  assert.equal(two.got(), 'FATAL 08P01 bad packet');
  const three = open();
  three.bytes();
  world.console.peer.fatal('console says no');
  assert.equal(three.isClosed, true);
  assert.equal(three.got(), 'FATAL 08P01 console says no');
});
