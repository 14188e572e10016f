import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ClientMessage } from '../../../src/wire/codes.ts';
import { MessageWriter, query, SYNC } from '../../../src/wire/encode.ts';
import {
  client,
  fleet,
  type Message,
  readRow,
  readTable,
  readValues,
  type Session,
  settle,
  worker,
} from './support.ts';

const writer = new MessageWriter();

const parse = (name: string, sql: string): Buffer =>
  writer.begin(ClientMessage.Parse).cstring(name).cstring(sql).int16(0).end();

const bind = (
  portal: string,
  statement: string,
  formats: number[] = [],
  parameters = 0,
): Buffer => {
  writer.begin(ClientMessage.Bind).cstring(portal).cstring(statement).int16(0).int16(parameters);
  for (let i = 0; i < parameters; i++) writer.int32(-1);
  writer.int16(formats.length);
  for (const format of formats) writer.int16(format);
  return writer.end();
};

const describe = (kind: string, name: string): Buffer =>
  writer.begin(ClientMessage.Describe).byte(kind.charCodeAt(0)).cstring(name).end();

const execute = (portal: string, maxRows = 0): Buffer =>
  writer.begin(ClientMessage.Execute).cstring(portal).int32(maxRows).end();

const close = (kind: string, name: string): Buffer =>
  writer.begin(ClientMessage.Close).byte(kind.charCodeAt(0)).cstring(name).end();

const types = (messages: readonly Message[]): string => messages.map(({ type }) => type).join('');

async function talk(session: Session, ...messages: Buffer[]): Promise<Message[]> {
  for (const message of messages) session.send(message);
  await settle();
  return session.take();
}

const open = (): Session => fleet([worker(0), worker(1)]).open('stats');

test('Parse, Bind, Describe, Execute and Sync run a SHOW', async () => {
  const messages = await talk(
    open(),
    parse('', 'SHOW VERSION'),
    bind('', ''),
    describe('P', ''),
    execute(''),
    SYNC,
  );
  assert.equal(types(messages), '12TDCZ');
  const table = readTable(messages);
  assert.deepEqual(table.rows, [['PgBouncer 1.25.2 (pgfleet 0.1.0)']]);
  assert.equal(table.tag, 'SHOW');
});

test('Describe of a statement tells its columns before it runs, and none for SET and HELP', async () => {
  const session = open();
  const described = await talk(session, parse('a', 'SHOW POOLS'), describe('S', 'a'), SYNC);
  assert.equal(types(described), '1tTZ');
  assert.equal(readTable(described).columns.length, 17);
  for (const [sql, tag] of [
    ['SET extra_float_digits = 3', 'SET'],
    ['SHOW HELP', 'SHOW'],
  ] as const) {
    const messages = await talk(
      session,
      parse('', sql),
      describe('S', ''),
      bind('', '', [1]),
      describe('P', ''),
      execute(''),
      SYNC,
    );
    assert.equal(types(messages), '1tn2nNCZ');
    assert.equal(readTable(messages).tag, tag);
  }
});

test('a named statement runs again and again, with the fleet as it is then', async () => {
  const session = open();
  await talk(session, parse('s', 'SHOW POOLS'), SYNC);
  for (let i = 0; i < 3; i++) {
    assert.equal(types(await talk(session, bind('', 's'), execute(''), SYNC)), '2DCZ');
  }
  await talk(session, close('S', 's'), SYNC);
  const gone = await talk(session, bind('', 's'), SYNC);
  assert.match(readTable(gone).error, /^ERROR 26000 prepared statement "s" does not exist/);
});

test('everything sent ahead of an awaited answer follows it in order', async () => {
  const console = fleet([worker(0), worker(1)], { isHeld: true });
  const session = console.open();
  const before = await talk(
    session,
    parse('', 'SHOW POOLS'),
    bind('', ''),
    execute(''),
    SYNC,
    query('SHOW VERSION'),
  );
  assert.equal(types(before), '12');
  console.release();
  await settle();
  assert.equal(types(session.take()), 'DCZTDCZ');
});

test('after an error everything up to Sync is skipped, simple queries too', async () => {
  const messages = await talk(
    open(),
    parse('', 'nonsense'),
    bind('', ''),
    describe('P', ''),
    execute(''),
    query('SHOW VERSION'),
    SYNC,
    query('SHOW VERSION'),
  );
  assert.equal(types(messages), 'EZTDCZ');
  assert.match(readTable(messages).error, /^ERROR 08P01 invalid command 'nonsense'/);
});

test('rows are sent in pieces of the size that is asked for', async () => {
  const session = fleet([worker(0)]).open();
  await talk(session, parse('', 'SHOW STATE'), bind('p', ''));
  assert.equal(types(await talk(session, execute('p', 2))), 'DDs');
  assert.equal(types(await talk(session, execute('p', 2))), 'DC');
  assert.equal(types(await talk(session, execute('p', 2))), 'C');
  assert.equal(types(await talk(session, SYNC, execute('p'), SYNC)), 'ZEZ', 'Sync ends portals');
});

test('results come in binary when they are asked for so', async () => {
  const stats = worker(0).stats;
  const counters = [0, 9, 10_000, 123_456_789, 20_000_000, 9_007_199_254_740_991];
  const current = Object.fromEntries(
    Object.keys((await import('../../../src/admin/snapshot.ts')).zeroCounters()).map((name, i) => [
      name,
      counters[i] ?? 0,
    ]),
  ) as (typeof stats)[number]['current'];
  const session = fleet([
    worker(0, {
      clients: [client({ id: 70_000, application_name: 'ä' })],
      stats: [{ database: 'app', current, older: current }],
    }),
  ]).open();
  const clients = await talk(
    session,
    parse('', 'SHOW CLIENTS'),
    bind('', '', [1]),
    describe('P', ''),
    execute(''),
    SYNC,
  );
  const row = readValues(clients.find(({ type }) => type === 'D')!.body);
  assert.equal(row.at(-1)!.readInt32BE(), 70_000);
  assert.equal(row[18]!.toString(), 'ä');
  const description = clients.find(({ type }) => type === 'T')!.body;
  assert.equal(description.readInt16BE(description.length - 2), 1);

  const totals = await talk(
    session,
    parse('', 'SHOW STATS_TOTALS'),
    bind('', '', [1]),
    execute(''),
    SYNC,
  );
  const values = readValues(totals.find(({ type }) => type === 'D')!.body);
  assert.deepEqual(
    values.slice(1, 7).map((value) => numericText(value!)),
    counters.map(BigInt),
  );
});

/** Value of a numeric in binary form, read as PostgreSQL's `numeric_recv` does. */
function numericText(bytes: Buffer): bigint {
  const digits = bytes.readInt16BE(0);
  const weight = bytes.readInt16BE(2);
  assert.equal(bytes.readInt32BE(4), 0, 'positive and without a fraction');
  assert.equal(bytes.length, 8 + 2 * digits);
  let value = 0n;
  for (let i = 0; i <= weight; i++) {
    value = value * 10_000n + BigInt(i < digits ? bytes.readInt16BE(8 + 2 * i) : 0);
  }
  return value;
}

test('formats may be given column by column', async () => {
  const messages = await talk(
    open(),
    parse('', 'SHOW LISTS'),
    bind('', '', [0, 1]),
    execute(''),
    SYNC,
  );
  const [list, items] = readValues(messages.find(({ type }) => type === 'D')!.body);
  assert.deepEqual([list!.toString(), items!.readInt32BE()], ['databases', 1]);
});

for (const [what, messages, error] of [
  ['a portal that is not there', [execute('x')], /^ERROR 34000 portal "x" does not exist/],
  ['a portal to describe', [describe('P', 'x')], /^ERROR 34000/],
  ['an unnamed statement that is not there', [bind('', '')], /^ERROR 26000 unnamed prepared/],
  ['a statement to describe', [describe('S', 'x')], /^ERROR 26000/],
  ['a name twice', [parse('a', 'SHOW STATE'), parse('a', 'SHOW STATE')], /^ERROR 42P05/],
  [
    'a portal twice',
    [parse('', 'SHOW STATE'), bind('p', ''), bind('p', '')],
    /^ERROR 42P03 cursor "p" already exists/,
  ],
  [
    'parameters',
    [parse('', 'SHOW STATE'), bind('', '', [], 2)],
    /^ERROR 08P01 bind message supplies 2 parameters, but .* requires 0/,
  ],
  [
    'too many formats',
    [parse('', 'SHOW STATE'), bind('', '', [0, 0, 0])],
    /^ERROR 08P01 bind message has 3 result formats but query has 2 columns/,
  ],
  ['an unknown format', [parse('', 'SHOW STATE'), bind('', '', [2])], /^ERROR 22023/],
  ['a right it lacks', [parse('', 'RELOAD')], /^ERROR 08P01 admin access needed/],
  [
    'too many statements',
    Array.from({ length: 257 }, (_, i) => parse(`s${i}`, 'SHOW STATE')),
    /^ERROR 54000 too many prepared statements/,
  ],
  [
    'too many portals',
    [parse('', 'SHOW STATE'), ...Array.from({ length: 17 }, (_, i) => bind(`p${i}`, ''))],
    /^ERROR 54000 too many portals/,
  ],
] as const) {
  test(`a session that asks for ${what} is told so and stays`, async () => {
    const session = open();
    const answer = await talk(session, ...messages, SYNC);
    assert.match(readTable(answer).error, error);
    assert.ok(types(answer).endsWith('EZ'));
    assert.equal(types(await talk(session, query('SHOW VERSION'))), 'TDCZ');
  });
}

test('a simple query and a failed Parse leave no unnamed statement behind', async () => {
  const session = open();
  for (const between of [query('SHOW VERSION'), parse('', 'nonsense')]) {
    await talk(session, parse('', 'SHOW STATE'), SYNC, between, SYNC);
    assert.match(readTable(await talk(session, bind('', ''), SYNC)).error, /^ERROR 26000/);
  }
});

test('closing what does not exist is no error', async () => {
  const messages = await talk(open(), close('S', 'x'), close('P', 'y'), SYNC);
  assert.equal(types(messages), '33Z');
});

test('a long listing is sent in several runs without losing a row', async () => {
  const clients = Array.from({ length: 3000 }, (_, i) =>
    client({ id: i, application_name: '€'.repeat(i === 7 ? 40_000 : i % 90) }),
  );
  const messages = await talk(fleet([worker(0, { clients })]).open(), query('SHOW CLIENTS'));
  const rows = messages.filter(({ type }) => type === 'D').map(({ body }) => readRow(body));
  assert.deepEqual(
    rows.map((row) => Number(row.at(-1))),
    clients.map(({ id }) => id),
  );
  assert.equal(rows[7]![18], '€'.repeat(40_000));
});
