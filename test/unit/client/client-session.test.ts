import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { test } from 'node:test';
import { ClientSession } from '../../../src/client/client-session.ts';
import { Link } from '../../../src/net/link.ts';
import {
  bind,
  COPY_DONE,
  close,
  copyData,
  copyFail,
  describe,
  execute,
  FLUSH,
  int16,
  int32,
  message,
  parse,
  query,
  SYNC,
  startup,
  TERMINATE,
} from '../../support/messages.ts';
import * as says from '../../support/server-messages.ts';
import { FakeSocket } from '../net/support.ts';
import { FakeClient } from '../pool/support.ts';
import { randomFrom } from '../util/random.ts';
import { type ClientWorld, clientWorld, inTurn, type TestClient } from './support.ts';

const PARSE_COMPLETE = message('1');
const BIND_COMPLETE = message('2');
const CLOSE_COMPLETE = message('3');
const NO_DATA = message('n');
const COPY_IN = message('G', [Buffer.of(0), int16(0)]);
const done = says.commandComplete('SELECT 1');
const ready = says.ready;

/** What the server was sent since its login, as bytes. */
function heardBytes(world: ClientWorld): Buffer {
  return Buffer.concat(
    world
      .backend()
      .heard()
      .map(({ type, body }) => message(type, [body])),
  );
}

interface Script {
  readonly name: string;
  readonly sends: Buffer;
  /** What the server is sent for it. */
  readonly heard: Buffer;
  /** What the server answers, once it has heard all. */
  readonly answers?: Buffer;
  /** What the client gets in the end, if that is not the same. */
  readonly gets?: Buffer;
}

const named = (name: string) => bind({ statement: name, portal: 'p', values: ['1', null] });
const SCRIPTS: readonly Script[] = [
  {
    name: 'a simple query',
    sends: query('select 1'),
    heard: query('select 1'),
    answers: says.textAnswer('1'),
  },
  {
    name: 'pipelined simple queries',
    sends: Buffer.concat([query('select 1'), query(''), query('select 3')]),
    heard: Buffer.concat([query('select 1'), query(''), query('select 3')]),
    answers: Buffer.concat([says.textAnswer('1'), message('I'), ready(), says.textAnswer('3')]),
  },
  {
    name: 'an unnamed statement',
    sends: Buffer.concat([
      parse('', 'select $1', [23]),
      bind({ values: ['x'] }),
      describe('P'),
      execute(),
      SYNC,
    ]),
    heard: Buffer.concat([
      parse('', 'select $1', [23]),
      bind({ values: ['x'] }),
      describe('P'),
      execute(),
      SYNC,
    ]),
    answers: Buffer.concat([PARSE_COMPLETE, BIND_COMPLETE, NO_DATA, done, ready()]),
  },
  {
    name: 'a named statement, which goes by the pooler’s name of it',
    sends: Buffer.concat([
      parse('mine', 'select $1', [23]),
      describe('S', 'mine'),
      named('mine'),
      execute('p'),
      SYNC,
    ]),
    heard: Buffer.concat([
      parse('PGBOUNCER_1', 'select $1', [23]),
      describe('S', 'PGBOUNCER_1'),
      named('PGBOUNCER_1'),
      execute('p'),
      SYNC,
    ]),
    answers: Buffer.concat([
      PARSE_COMPLETE,
      message('t', [int16(1), int32(23)]),
      NO_DATA,
      BIND_COMPLETE,
      done,
      ready(),
    ]),
  },
  {
    name: 'the same text under two names, which the server is told once',
    sends: Buffer.concat([parse('a', 'select 1'), parse('b', 'select 1'), named('b'), SYNC]),
    heard: Buffer.concat([parse('PGBOUNCER_1', 'select 1'), named('PGBOUNCER_1'), SYNC]),
    answers: Buffer.concat([PARSE_COMPLETE, BIND_COMPLETE, ready()]),
    gets: Buffer.concat([PARSE_COMPLETE, PARSE_COMPLETE, BIND_COMPLETE, ready()]),
  },
  {
    name: 'a closed statement, which stays on the server',
    sends: Buffer.concat([parse('a', 'select 1'), close('S', 'a'), close('P', 'p'), SYNC]),
    heard: Buffer.concat([parse('PGBOUNCER_1', 'select 1'), close('P', 'p'), SYNC]),
    answers: Buffer.concat([PARSE_COMPLETE, CLOSE_COMPLETE, ready()]),
    gets: Buffer.concat([PARSE_COMPLETE, CLOSE_COMPLETE, CLOSE_COMPLETE, ready()]),
  },
  {
    name: 'a flush within a batch',
    sends: Buffer.concat([parse('', 'select 1'), FLUSH, bind(), FLUSH, SYNC]),
    heard: Buffer.concat([parse('', 'select 1'), FLUSH, bind(), FLUSH, SYNC]),
    answers: Buffer.concat([PARSE_COMPLETE, BIND_COMPLETE, ready()]),
  },
  {
    name: 'a function call',
    sends: message('F', [int32(1), int16(0), int16(0), int16(0)]),
    heard: message('F', [int32(1), int16(0), int16(0), int16(0)]),
    answers: Buffer.concat([message('V', [int32(-1)]), ready()]),
  },
  {
    name: 'COPY data sent before the server has asked for it',
    sends: Buffer.concat([
      query('copy t from stdin'),
      copyData(Buffer.from('1\n')),
      copyData(Buffer.alloc(0)),
      copyData(Buffer.from('2\n3\n')),
      COPY_DONE,
      query('select 1'),
    ]),
    heard: Buffer.concat([
      query('copy t from stdin'),
      copyData(Buffer.from('1\n')),
      copyData(Buffer.alloc(0)),
      copyData(Buffer.from('2\n3\n')),
      COPY_DONE,
      query('select 1'),
    ]),
    answers: Buffer.concat([
      COPY_IN,
      says.commandComplete('COPY 3'),
      ready(),
      says.textAnswer('1'),
    ]),
  },
  {
    name: 'a bare Sync',
    sends: SYNC,
    heard: SYNC,
    answers: ready(),
  },
];

/** Feeds a script in pieces and checks both ends. */
function play(world: ClientWorld, client: TestClient, script: Script, pieces: Buffer[]): void {
  for (const piece of pieces) client.send(piece);
  assert.equal(heardBytes(world).toString('latin1'), script.heard.toString('latin1'));
  const backend = world.backend();
  if (script.answers !== undefined) backend.say(script.answers);
  const gets = script.gets ?? script.answers ?? Buffer.alloc(0);
  assert.equal(client.bytes().toString('latin1'), gets.toString('latin1'));
  assert.equal(client.session.server, null, 'the server was not given back');
  assert.equal(world.given.pool().idle.size, 1);
  assert.equal(client.isClosed, false);
}

for (const script of SCRIPTS) {
  test(`${script.name}: the same at every cut of the client’s bytes`, (t) => {
    for (let cut = 1; cut <= script.sends.length; cut++) {
      const world = clientWorld(t);
      const client = world.welcome();
      try {
        play(
          world,
          client,
          script,
          [script.sends.subarray(0, cut), script.sends.subarray(cut)].filter(
            ({ length }) => length > 0,
          ),
        );
      } catch (error) {
        throw new Error(`cut at ${cut}`, { cause: error });
      }
      t.mock.restoreAll();
    }
  });

  test(`${script.name}: the same byte by byte, also the server’s answer`, (t) => {
    const world = clientWorld(t);
    const client = world.welcome();
    for (const byte of script.sends) client.send(Buffer.of(byte));
    assert.equal(heardBytes(world).toString('latin1'), script.heard.toString('latin1'));
    for (const byte of script.answers ?? []) world.backend().say(Buffer.of(byte));
    const gets = script.gets ?? script.answers ?? Buffer.alloc(0);
    assert.equal(client.bytes().toString('latin1'), gets.toString('latin1'));
    assert.equal(client.session.server, null);
  });
}

test('scripts in random order and random pieces, one after the other, on one session', (t) => {
  for (const seed of [1, 2, 3]) {
    const random = randomFrom(seed);
    const world = clientWorld(t);
    const client = world.welcome();
    const scripts = SCRIPTS.filter(({ heard }) => !heard.includes('PGBOUNCER'));
    for (let round = 0; round < 100; round++) {
      const script = scripts[Math.floor(random() * scripts.length)]!;
      const pieces: Buffer[] = [];
      for (let at = 0; at < script.sends.length; ) {
        const end = Math.min(script.sends.length, at + 1 + Math.floor(random() * 40));
        pieces.push(script.sends.subarray(at, end));
        at = end;
      }
      try {
        play(world, client, script, pieces);
      } catch (error) {
        throw new Error(`seed ${seed}, round ${round}: ${script.name}`, { cause: error });
      }
    }
    t.mock.restoreAll();
  }
});

test('a message far larger than a read streams through to the server without being collected', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  const big = query('x'.repeat(300_000));
  let heard = 0;
  for (let at = 0; at < big.length; at += 65_536) {
    client.send(big.subarray(at, at + 65_536));
    const written = world.backend().socket.written.reduce((sum, { length }) => sum + length, 0);
    assert.ok(written > heard);
    heard = written;
    assert.equal(client.session.link.stashBytes, 0);
  }
  assert.equal(world.backend().heard()[0]!.body.length, 300_001);
});

// Waiting

/** A world whose only server is taken by another client. */
function taken(t: Parameters<typeof clientWorld>[0], settings = '') {
  const world = clientWorld(t, `default_pool_size = 1\n${settings}`);
  const client = world.welcome();
  const holder = new FakeClient(world.given.pool());
  holder.run();
  world.backend().heard();
  return { world, client, holder };
}

test('a client that must wait has its bytes kept, in order, until it has a server', (t) => {
  for (const script of SCRIPTS) {
    const { world, client } = taken(t);
    const half = Math.ceil(script.sends.length / 2);
    client.send(script.sends.subarray(0, half));
    client.send(script.sends.subarray(half));
    assert.equal(client.session.isWaiting, true, script.name);
    assert.equal(heardBytes(world).length, 0, script.name);
    world.backend().ready();
    assert.equal(
      heardBytes(world).toString('latin1'),
      script.heard.toString('latin1'),
      script.name,
    );
    t.mock.restoreAll();
  }
});

test('a cancelled request that waited is answered 57014 and never sent, up to its end', (t) => {
  const next = query('select 2');
  const batch = Buffer.concat([parse('', 'select 1'), bind(), execute(), SYNC]);
  for (const [name, sends] of [
    ['a query', query('select 1')],
    ['a batch', batch],
    ['a named batch', Buffer.concat([parse('n', 'select 1'), named('n'), execute('p'), SYNC])],
    ['a function call', message('F', [int32(1), int16(0), int16(0), int16(0)])],
  ] as const) {
    const all = Buffer.concat([sends, next]);
    // Cut where the client has sent at least what makes it wait.
    for (let cut = 6; cut <= all.length; cut++) {
      const { world, client } = taken(t);
      client.send(all.subarray(0, cut));
      if (!client.session.isWaiting) {
        t.mock.restoreAll();
        continue;
      }
      inTurn(() => client.session.cancelWaiting());
      if (cut < all.length) client.send(all.subarray(cut));
      const where = `${name}, cut at ${cut}`;
      assert.equal(client.got(), 'ERROR 57014 canceling statement due to user request, Z:I', where);
      // The next query is a request of its own.
      assert.equal(client.session.isWaiting, true, where);
      world.backend().ready();
      assert.equal(heardBytes(world).toString('latin1'), next.toString('latin1'), where);
      t.mock.restoreAll();
    }
  }
});

test('a query inside of a discarded batch is ignored like the rest, as PostgreSQL does up to Sync', (t) => {
  const { world, client } = taken(t);
  client.send(parse('', 'select 1'));
  inTurn(() => client.session.cancelWaiting());
  client.send(query('select 2'), bind(), SYNC);
  assert.equal(client.got(), 'ERROR 57014 canceling statement due to user request, Z:I');
  world.backend().ready();
  assert.equal(world.backend().heardText(), '');
});

test('a client that leaves in the middle of a discarded batch leaves in order', (t) => {
  const { client } = taken(t);
  client.send(parse('', 'select 1'));
  inTurn(() => client.session.cancelWaiting());
  client.send(TERMINATE);
  assert.equal(client.isClosed, true);
});

test('a client that leaves while waiting is taken out of the queue', (t) => {
  const { world, client } = taken(t);
  client.send(query('select 1'));
  client.socket.emit('end');
  assert.equal(world.given.pool().waiting.size, 0);
  assert.equal(world.given.pool().clients, 1);
  assert.equal(world.ended.length, 1);
});

test('a parked server that needs no check is used at once by the session that asks', (t) => {
  const world = clientWorld(t, 'server_check_query = select 1\nserver_check_delay = 30');
  const client = world.welcome();
  world.given.time.pass(30_001);
  world.given.pools.tick(world.given.time.now);
  assert.equal(world.given.pool().used.size, 1);
  // A notification shows that the server lives.
  world.backend().say(message('A', [int32(1), 'c', '']));
  client.send(query('select 2'));
  assert.equal(world.backend().heardText(), 'Q(select 2)');
  world.backend().say(says.textAnswer('2'));
  client.send(query('select 3'));
  assert.equal(world.backend().heardText(), 'Q(select 3)');
});

test('a Parse that the pool knows is answered without a server, and so is its Sync', (t) => {
  const { world, client, holder } = taken(t);
  // The statement stands on the server that is taken.
  const other = world.connect();
  other.send(startup({ user: 'u', database: 'd' }));
  world.backend().ready();
  holder.leave();
  other.send(parse('x', 'select 1'), SYNC);
  world.backend().say(PARSE_COMPLETE, ready());
  other.send(query('begin'));
  world.backend().heard();
  client.send(parse('y', 'select 1'), SYNC);
  assert.equal(client.got(), '1, Z:I');
  assert.equal(client.session.isWaiting, false);
  client.send(parse('z', 'select 2'), SYNC);
  assert.equal(client.session.isWaiting, true);
});

test('the server’s parameters are set before the client’s first message, which waits for it', (t) => {
  const world = clientWorld(t);
  const first = world.connect();
  first.send(startup({ user: 'u', database: 'd' }));
  world.backend().logIn({ TimeZone: 'UTC' });
  const client = world.connect();
  client.send(startup({ user: 'u', database: 'd', TimeZone: 'CET' }));
  client.bytes();
  client.send(query('select 1'));
  const backend = world.backend();
  assert.equal(backend.heardText(), "Q(SET TimeZone='CET';)");
  backend.say(says.commandComplete('SET'), says.parameterStatus('TimeZone', 'CET'), ready());
  assert.equal(client.got(), '');
  assert.equal(backend.heardText(), 'Q(select 1)');
  backend.say(says.textAnswer('1'));
  assert.equal(client.got(), 'T, D, C, Z:I');
});

// COPY

test('COPY data that comes after the server has failed the COPY goes nowhere, and the server is given back', (t) => {
  const late = Buffer.concat([
    copyData(Buffer.from('late\n')),
    copyData(Buffer.from('later\n')),
    COPY_DONE,
    query('select 1'),
  ]);
  for (let cut = 1; cut <= late.length; cut++) {
    const world = clientWorld(t);
    const client = world.welcome();
    const backend = world.backend();
    client.send(query('copy t from stdin'));
    backend.say(COPY_IN);
    client.send(copyData(Buffer.from('bad\n')));
    backend.heard();
    backend.say(says.errorResponse('22P04', 'missing data'), ready());
    assert.equal(client.session.server, null);
    client.send(late.subarray(0, cut));
    if (cut < late.length) client.send(late.subarray(cut));
    assert.equal(client.got(), 'G, ERROR 22P04 missing data, Z:I', `cut at ${cut}`);
    assert.equal(backend.heardText(), 'Q(select 1)', `cut at ${cut}`);
    backend.say(says.textAnswer('1'));
    assert.equal(client.got(), 'T, D, C, Z:I', `cut at ${cut}`);
    assert.equal(client.session.server, null, `cut at ${cut}`);
    t.mock.restoreAll();
  }
});

test('a failed COPY gives the server to the next client, and late COPY data goes nowhere', (t) => {
  const world = clientWorld(t, 'default_pool_size = 1');
  const client = world.welcome();
  const backend = world.backend();
  client.send(query('copy t from stdin'));
  const next = new FakeClient(world.given.pool());
  assert.equal(next.ask(), false);
  backend.heard();
  backend.say(COPY_IN, says.errorResponse('22P04', 'missing data'), ready());
  assert.deepEqual(next.events, ['server']);
  client.send(copyData(Buffer.from('late\n')), copyFail('gave up'));
  assert.equal(backend.heardText(), '');
});

test('COPY messages of a client without a server are dropped', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  client.send(copyData(Buffer.from('x')), COPY_DONE, copyFail('y'));
  assert.equal(world.backend().heardText(), '');
  assert.equal(client.session.isIdle, true);
});

test('a client that leaves within a COPY takes the server with it', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  client.send(query('copy t from stdin'));
  world.backend().say(COPY_IN);
  client.send(copyData(Buffer.from('1\n')));
  client.socket.emit('end');
  assert.equal(world.backend().isTold, true);
});

// Endings

test('what no client may send ends the session with PgBouncer’s text', (t) => {
  for (const [settings, bytes, expected] of [
    ['', message('z'), 'unknown pkt'],
    ['', message('p', ['x']), 'unknown pkt'],
    ['', startup({ user: 'u' }), 'unknown pkt'],
    ['', message('Q', [], 3), "bad packet header: '5100000003'"],
    ['max_packet_size = 100000', message('Q', [], 100_001), "bad packet header: '51000186a1'"],
    ['disable_pqexec = 1', query('select 1'), 'PQexec disallowed'],
    ['', bind({ statement: 'nowhere' }), 'prepared statement did not exist'],
    ['', describe('S', 'nowhere'), 'prepared statement did not exist'],
    ['', message('B', [Buffer.from('no end')]), 'failed to parse packet'],
    ['', message('P', [Buffer.from('no end')]), 'failed to parse packet'],
    ['', message('D', [Buffer.from('Sname')]), 'failed to parse packet'],
    ['', message('C', [Buffer.from('Sname')]), 'failed to parse packet'],
  ] as const) {
    const world = clientWorld(t, settings);
    const client = world.welcome();
    client.send(bytes);
    assert.ok(client.got().startsWith(`FATAL 08P01 ${expected}`), expected);
    assert.equal(client.isClosed, true, expected);
    assert.equal(world.given.pool().clients, 0, expected);
    assert.equal(world.given.pool().linked.size, 0, expected);
    t.mock.restoreAll();
  }
});

test('a statement name that is in use is refused, as in PgBouncer', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  client.send(parse('a', 'select 1'), parse('a', 'select 2'));
  assert.equal(client.got(), 'FATAL 08P01 prepared statement name is already in use');
});

test('Terminate of a client that is idle leaves the server where it is', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  const { cancelKey } = client.session;
  client.send(TERMINATE);
  assert.equal(client.isClosed, true);
  assert.equal(client.got(), '');
  assert.equal(world.given.pool().idle.size, 1);
  assert.equal(world.context.cancelKeys.find(cancelKey), undefined);
  assert.equal(world.context.admission.ofUser('u'), 0);
  assert.deepEqual(world.ended, [client.session]);
});

test('a session is closed once, whatever ends it first', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  client.send(query('select 1'));
  client.socket.emit('end');
  client.session.fatal('late');
  client.session.onServerLost('later', false);
  client.session.close('latest');
  client.socket.emit('close');
  assert.equal(world.ended.length, 1);
  assert.equal(world.given.pool().clients, 0);
  assert.equal(world.context.admission.ofUser('u'), 0);
});

test('a client whose server dies gets what the server said, and then PgBouncer’s FATAL', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  client.send(query('select pg_sleep(9)'));
  world.backend().say(says.errorResponse('57P01', 'terminating connection', 'FATAL'));
  world.backend().end();
  assert.equal(
    client.got(),
    'FATAL 57P01 terminating connection, FATAL 08P01 server conn crashed?',
  );
  assert.equal(client.isClosed, true);
});

// Back-pressure

test('a client that reads slowly stops its own server, and lets it go on when it has read', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  client.send(query('select 1'));
  client.socket.takes = false;
  const backend = world.backend();
  backend.say(says.textColumns('a'), says.textRow('1'));
  assert.equal(backend.socket.isReading, false);
  assert.equal(client.socket.isReading, false);
  client.socket.takes = true;
  client.socket.take();
  assert.equal(backend.socket.isReading, true);
  assert.equal(client.socket.isReading, true);
});

test('a server that reads slowly stops its client, and lets it go on when it has read', (t) => {
  const world = clientWorld(t);
  const client = world.welcome();
  const backend = world.backend();
  backend.socket.takes = false;
  client.send(query('copy t from stdin'));
  assert.equal(client.socket.isReading, false);
  backend.socket.takes = true;
  backend.socket.take();
  assert.equal(client.socket.isReading, true);
});

test('a server given back by a client that reads slowly serves the next one at once', (t) => {
  const world = clientWorld(t);
  const slow = world.welcome();
  const quick = world.connect();
  quick.send(startup({ user: 'u', database: 'd' }));
  quick.bytes();
  slow.send(query('select 1'));
  slow.socket.takes = false;
  world.backend().say(says.textAnswer('1'));
  assert.equal(slow.session.server, null);
  assert.equal(slow.socket.isReading, false);
  quick.send(query('select 2'));
  world.backend().say(says.textAnswer('2'));
  assert.equal(quick.got(), 'T, D, C, Z:I');
  assert.equal(slow.socket.isReading, false);
  slow.socket.takes = true;
  slow.socket.take();
  assert.equal(slow.socket.isReading, true);
});

test('a session that is full when its server comes stops that server too', (t) => {
  const { world, client } = taken(t);
  // The notice finds a client that does not read.
  client.send(query('select 1'));
  client.socket.takes = false;
  inTurn(() => client.session.onWaitNotice());
  world.backend().ready();
  assert.notEqual(client.session.server, null);
  assert.equal(world.backend().socket.isReading, false);
  client.socket.takes = true;
  client.socket.take();
  assert.equal(world.backend().socket.isReading, true);
});

test('a TCP client that is gone again, and has no address, is not taken for one of the Unix socket', (t) => {
  const session = new ClientSession(clientWorld(t).context);
  session.attach(new Link(new FakeSocket() as unknown as Socket, session), 6432, 'tcp');
  assert.equal(session.isUnix, false);
  assert.equal(session.address, '');
});
