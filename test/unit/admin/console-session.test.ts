import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ConsoleFactory } from '../../../src/admin/console.ts';
import { log } from '../../../src/log/logger.ts';
import { ClientMessage } from '../../../src/wire/codes.ts';
import { MessageWriter, query, SYNC, TERMINATE } from '../../../src/wire/encode.ts';
import {
  ask,
  config,
  FakeControl,
  fleet,
  type Message,
  readTable,
  settle,
  worker,
} from './support.ts';

const message = (type: number, body: Buffer = Buffer.alloc(0)): Buffer =>
  new MessageWriter().begin(type).raw(body).end();

const types = (messages: readonly Message[]): string => messages.map(({ type }) => type).join('');

const INVALID = (sql: string): string => `ERROR 08P01 invalid command '${sql}', use SHOW HELP;`;
const NEEDED = 'ERROR 08P01 admin access needed';

/** Query, and what admin and stats sessions are told. */
const ERRORS: readonly [string, string][] = [
  ...[
    'nonsense',
    'SHOW',
    'SELECT version()',
    ' show  max_client_conn ',
    'SHOW ALL',
    'SHOW POOL',
    'SHOW server_version',
    'SHOW HELP extra',
    'SHOW HELP BY PROCESS',
    'SHOW PEERS BY PROCESS',
    'SHOW datestyle BY PROCESS',
    'SHOW constructor',
    'SHOW __proto__',
    'constructor',
    'RELOAD now',
    'SUSPEND app',
    'SHUTDOWN now',
    'PAUSE app BY PROCESS',
    'set x',
  ].map((sql): [string, string] => [sql, INVALID(sql)]),
  [`SHOW ${'x'.repeat(64)}`, 'ERROR 08P01 bad arguments'],
  [`${'x'.repeat(16)}`, 'ERROR 08P01 bad arguments'],
];

for (const [sql, expected] of ERRORS) {
  test(`${JSON.stringify(sql).slice(0, 40)} is refused in PgBouncer’s words`, async () => {
    for (const rights of ['admin', 'stats'] as const) {
      const session = fleet([worker(0)]).open(rights);
      session.send(query(sql));
      await settle();
      const messages = session.take();
      assert.equal(types(messages), 'EZ');
      assert.equal(readTable(messages).error, expected);
      assert.deepEqual(session.endings, []);
    }
  });
}

test('what drivers ask for and set when they connect is answered', async () => {
  const session = fleet([worker(0)]).open('stats');
  for (const [name, value] of [
    ['client_encoding', 'UTF-8'],
    ['default_transaction_isolation', 'read committed'],
    ['standard_conforming_strings', 'on'],
    ['datestyle', 'ISO'],
    ['timezone', 'GMT'],
    ['extra_float_digits', '2'],
  ] as const) {
    for (const sql of [`SHOW ${name.toUpperCase()}`, `select "${name}"`]) {
      const table = await ask(session, sql);
      assert.deepEqual(table.columns, [{ name, oid: 25, bytes: -1 }]);
      assert.deepEqual(table.rows, [[value]]);
      assert.equal(table.tag, 'SHOW');
    }
    const set = await ask(session, `SET ${name} TO 'x'`);
    assert.deepEqual([set.tag, set.notices], ['SET', ['SET ignored|']]);
  }
  assert.equal((await ask(session, "SET application_name = 'x'")).tag, 'SET');
  for (const [sql, tag] of [
    ['BEGIN', 'BEGIN'],
    ['begin read only;', 'BEGIN'],
    ['START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY', 'BEGIN'],
    ['COMMIT', 'COMMIT'],
    ['END', 'COMMIT'],
    ['Rollback', 'ROLLBACK'],
    ['DISCARD  ALL;', 'DISCARD ALL'],
    ['RESET ALL', 'RESET'],
    ['SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY', 'SET'],
  ] as const) {
    const table = await ask(session, sql);
    assert.deepEqual([table.tag, table.error, table.columns.length], [tag, '', 0], sql);
  }
  const one = await ask(session, 'SELECT 1');
  assert.deepEqual([one.rows, one.tag], [[['1']], 'SELECT 1']);
  const level = await ask(session, 'SHOW TRANSACTION ISOLATION LEVEL');
  assert.deepEqual([level.rows, level.tag], [[['read committed']], 'SHOW']);
});

test('a query with nothing in it is answered as PostgreSQL does', async () => {
  const session = fleet([worker(0)]).open('stats');
  for (const sql of ['', ';', ' ', '-- ping', ' /* a /* nested */ one */ ;; ']) {
    session.send(query(sql));
    await settle();
    const messages = session.take();
    assert.equal(types(messages), 'IZ', JSON.stringify(sql));
  }
});

test('statements of one query are answered in order, with one ReadyForQuery behind all', async () => {
  const session = fleet([worker(0), worker(1)]).open('stats');
  session.send(query('SHOW VERSION; ; /* then; */ SHOW STATE -- and\n; SHOW LISTS'));
  session.send(query('SHOW VERSION;;'));
  await settle();
  await settle();
  const messages = session.take();
  assert.equal(types(messages), 'TDCTDDDCTDDDDDDDDDDDDDDCZTDCZ');
});

test('an error ends the statements of a query, and those before it are answered', async () => {
  const test = fleet([worker(0)]);
  for (const [rights, sql, error] of [
    ['stats', "SHOW VERSION; nonsense 'a;b' ; SHOW STATE", INVALID(" nonsense 'a;b' ")],
    ['stats', 'SHOW VERSION; RELOAD; SHOW STATE', NEEDED],
    ['stats', ' -- what\nNONSENSE /* it */ ;', INVALID(' -- what\nNONSENSE /* it */ ;')],
    ['stats', 'SHOW VERSION;'.repeat(65), 'ERROR 54000 more than 64 statements in one query'],
  ] as const) {
    const session = test.open(rights);
    session.send(query(sql));
    await settle();
    await settle();
    const messages = session.take();
    assert.match(types(messages), /^(TDC)?EZ$/);
    assert.equal(readTable(messages).error, error);
  }
  assert.equal(test.control.asked.length, 0);
});

test('a PAUSE among several statements is waited for before the next one runs', async () => {
  const test = fleet([worker(0)]);
  const session = test.open();
  session.send(query('PAUSE; SHOW STATE'));
  await settle();
  assert.equal(types(session.take()), '');
  test.control.asked[0]!.done();
  await settle();
  assert.equal(types(session.take()), 'CTDDDCZ');
});

test('a result set is T, D, C and Z, whatever the query’s case and blanks', async () => {
  const session = fleet([worker(0)]).open();
  for (const sql of ['show version', ' SELECT\n"Version" ; ']) {
    session.send(query(sql));
    await settle();
    const messages = session.take();
    assert.equal(types(messages), 'TDCZ');
    assert.equal(messages[3]!.body.toString(), 'I');
  }
});

test('the welcome says what PgBouncer’s does', () => {
  const { backend } = fleet([worker(0)]).open('stats');
  assert.deepEqual(backend.parameters, [
    ['server_version', '1.25.2/bouncer'],
    ['client_encoding', 'UTF8'],
    ['server_encoding', 'UTF8'],
    ['DateStyle', 'ISO'],
    ['TimeZone', 'GMT'],
    ['standard_conforming_strings', 'on'],
    ['is_superuser', 'on'],
  ]);
});

test('queries that arrive while an answer is awaited are answered in their order', async () => {
  const console = fleet([worker(0), worker(1)], { isHeld: true });
  const session = console.open();
  session.send(query('SHOW POOLS'));
  session.send(query('SHOW VERSION'));
  session.send(query('nonsense'));
  session.send(query('SHOW LISTS'));
  await settle();
  assert.equal(types(session.take()), '');
  assert.equal(console.requests.length, 1, 'the next is asked when the first is answered');
  console.release();
  await settle();
  assert.equal(types(session.take()), 'TDCZTDCZEZ');
  console.release();
  await settle();
  assert.equal(types(session.take()), `T${'D'.repeat(14)}CZ`);
});

test('a client that leaves while its answer is awaited gets nothing and frees its place', async () => {
  const console = fleet([worker(0), worker(1)], { isHeld: true });
  const leaving = console.open();
  leaving.send(query('SHOW POOLS'));
  leaving.send(query('SHOW VERSION'));
  leaving.backend.onClose();
  leaving.backend.onClose();
  console.release();
  await settle();
  assert.deepEqual(leaving.take(), []);
  const pools = console.factory.answer({ kind: 'snapshot', parts: ['pools'] }).pools;
  assert.equal(pools[0]!.cl_active, 0);
});

test('Terminate closes silently, even behind an awaited answer', async () => {
  const console = fleet([worker(0), worker(1)], { isHeld: true });
  const session = console.open();
  session.send(query('SHOW POOLS'));
  session.send(TERMINATE);
  assert.deepEqual(session.endings, []);
  console.release();
  await settle();
  assert.equal(types(session.take()), 'TDCZ');
  assert.deepEqual(session.endings, ['close: close req']);
  session.send(query('SHOW VERSION'));
  assert.deepEqual(session.take(), []);
});

for (const [what, bytes, ending] of [
  ['a Query without its NUL', message(ClientMessage.Query, Buffer.from('x')), 'incomplete query'],
  ['an empty Query body', message(ClientMessage.Query), 'incomplete query'],
  ['a password', message(ClientMessage.Password, Buffer.from('x\0')), 'unknown pkt'],
  ['an unknown type', message(0x01), 'unknown pkt'],
  ['a Parse that ends early', message(ClientMessage.Parse, Buffer.from('x\0y')), 'bad packet'],
  ['a Bind of garbage', message(ClientMessage.Bind, Buffer.alloc(5, 0xff)), 'bad packet'],
  ['a Describe of neither', message(ClientMessage.Describe, Buffer.from('X\0')), 'bad packet'],
  ['an empty Close', message(ClientMessage.Close), 'bad packet'],
  ['an Execute that ends early', message(ClientMessage.Execute, Buffer.from('\0')), 'bad packet'],
] as const) {
  test(`${what} ends the session with "${ending}"`, () => {
    const session = fleet([worker(0)]).open();
    session.send(bytes);
    assert.deepEqual(session.endings, [`fatal: ${ending}`]);
    assert.deepEqual(session.take(), []);
  });
}

test('a function call is refused and ends the session', () => {
  const session = fleet([worker(0)]).open();
  session.send(message(ClientMessage.FunctionCall));
  const messages = session.take();
  assert.equal(types(messages), 'EZ');
  assert.match(readTable(messages).error, /unsupported packet type for admin console: 70$/);
  assert.deepEqual(session.endings, ['fatal: bad packet']);
});

test('copy messages and Flush are ignored', () => {
  const session = fleet([worker(0)]).open();
  for (const type of ['CopyData', 'CopyDone', 'CopyFail', 'Flush'] as const) {
    session.send(message(ClientMessage[type]));
  }
  assert.deepEqual([session.take(), session.endings], [[], []]);
});

test('disable_pqexec disables simple queries', () => {
  const settings = config({ settings: { ...config().settings, disable_pqexec: true } });
  const session = fleet([worker(0)], { config: settings }).open();
  session.send(query('SHOW VERSION'));
  assert.deepEqual(session.endings, ['fatal: PQexec disallowed']);
});

test('a query text ends at its first NUL', async () => {
  const session = fleet([worker(0)]).open();
  session.send(message(ClientMessage.Query, Buffer.from('SHOW VERSION\0garbage\0')));
  assert.equal(types(session.take()), 'TDCZ');
});

test('a huge query and one that is no UTF-8 are refused and the session stays', async () => {
  const session = fleet([worker(0)]).open();
  const huge = `SHOW ${'x y '.repeat(300_000)}`;
  assert.equal((await ask(session, huge)).error, INVALID(huge));
  session.send(message(ClientMessage.Query, Buffer.from('5061ff75c3280a00', 'hex')));
  await settle();
  assert.match(readTable(session.take()).error, /^ERROR 08P01 invalid command 'Pa\ufffdu/);
  session.send(message(ClientMessage.Query, Buffer.from('73686f772022ff2200', 'hex')));
  await settle();
  assert.match(readTable(session.take()).error, /^ERROR 08P01 invalid command 'show "\ufffd"'/);
  assert.equal((await ask(session, 'SHOW VERSION')).rows.length, 1);
});

test('messages sent ahead without end are cut off', () => {
  for (const [bytes, times] of [
    [SYNC, 1001],
    [query('x'.repeat(300_000)), 4],
  ] as const) {
    const session = fleet([worker(0), worker(1)], { isHeld: true }).open();
    session.send(query('SHOW POOLS'));
    for (let i = 0; i < times - 1; i++) session.send(bytes);
    assert.deepEqual(session.endings, []);
    session.send(bytes);
    assert.deepEqual(session.endings, ['fatal: too many messages sent ahead of their answers']);
  }
});

test('a failure of ours ends the session, is logged and costs no other session', async (t) => {
  const lines: string[] = [];
  t.mock.method(log, 'error', (text: string) => lines.push(text));
  let isBroken = true;
  const console = fleet([], {
    source: {
      snapshot: () => {
        if (isBroken) throw new Error('a bug');
        return worker(0);
      },
    },
  });
  const session = console.open();
  session.send(query('SHOW POOLS'));
  await settle();
  assert.deepEqual(session.endings, ['fatal: failure']);
  assert.match(lines[0]!, /^C-7: console: Error: a bug/);
  isBroken = false;
  assert.equal((await ask(console.open(), 'SHOW STATE')).rows.length, 3);
});

test('messages of any kind in any order never throw', async () => {
  let state = 20_250_101;
  const random = (below: number): number => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % below;
  };
  const kinds = [...Object.values(ClientMessage), 0, 255].filter((type) => type !== 0x58);
  const bodies = ['', '\0', 'show pools\0', '\0show version\0\0\0', '\0\0\0\0\0\0\0\0', 'S\0'];
  for (let round = 0; round < 300; round++) {
    const factory = new ConsoleFactory({
      source: { snapshot: () => worker(0) },
      config: () => config(),
      mesh: { requestAll: async () => new Map() },
      control: new FakeControl(),
    });
    let endings = 0;
    const backend = factory.open(
      {
        send: () => assert.equal(endings, 0, `round ${round}`),
        close: () => endings++,
        fatal: () => endings++,
        prefixed: (text) => text,
      },
      'stats',
    );
    for (let i = 0; i < 20; i++) {
      const body = Buffer.from(bodies[random(bodies.length)]!);
      if (body.length > 0 && random(4) === 0) body[random(body.length)] = random(256);
      backend.onMessage(kinds[random(kinds.length)]!, body);
      if (random(4) === 0) await settle();
    }
    await settle();
    assert.ok(endings <= 1, `round ${round}`);
  }
});
