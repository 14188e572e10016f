/**
 * Clients that send what no client sends, stop reading, or vanish: they get PgBouncer's text or the
 * end of their connection, the pool has all of its servers back afterwards, and a client beside them
 * never sees anything but its own answers.
 */
import assert from 'node:assert/strict';
import { afterEach, before, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
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
  sslRequest,
  startup,
  TERMINATE,
  textRows,
  typesOf,
  type WireMessage,
} from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { Random } from '../support/random.ts';
import { until, within } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';
import {
  descriptorsOf,
  fatal,
  inLanes,
  isLong,
  isServed,
  line,
  linesUntilClose,
  memoryOf,
  poolIs,
  poolsAreIdle,
} from './support.ts';

const APP = startup({ user: 'app', database: 'app' });
const MB = 1 << 20;

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
  await direct('CREATE TABLE kept (n int); CREATE TABLE copied (n int)');
});
let isStopped = false;
afterEach(async () => {
  if (!isStopped) await direct('TRUNCATE kept, copied');
});

/** Rows of a query on PostgreSQL itself. */
async function direct(sql: string): Promise<(string | null)[][]> {
  const client = await WireClient.login(postgres);
  const received = await client.query(sql);
  await client.end();
  return textRows(received);
}

async function fleetOf(t: TestContext, size: number, settings: Section = {}): Promise<TestPgfleet> {
  const fleet = await startPgfleet({
    postgres,
    databases: { app: '' },
    size,
    settings: {
      default_pool_size: 4,
      max_client_conn: 2000,
      log_connections: 0,
      log_disconnections: 0,
      ...settings,
    },
  });
  // Said before the session of a client ends that sent it.
  fleet.allowLog(/ERROR C-\S+ \S+ unknown pkt from client: /);
  t.after(() => fleet.stop());
  return fleet;
}

/**
 * Fails unless all of the pool's slots can be in use at once and none is in a transaction. So many
 * clients ask that each worker has more of them than slots.
 */
async function poolIsWhole(fleet: TestPgfleet, poolSize = 4): Promise<void> {
  await poolsAreIdle(fleet, 20_000);
  const clients = await Promise.all(
    Array.from({ length: poolSize * 5 }, () => WireClient.login(fleet)),
  );
  let isOver = false;
  const load = clients.map(async (client) => {
    while (!isOver) {
      const received = await client.query("SELECT 'whole' FROM pg_sleep(0.05)", 30_000);
      assert.deepEqual(textRows(received), [['whole']]);
      // Nothing of a transaction that another client left.
      assert.equal(typesOf(received), 'T D C Z:I');
    }
    await client.end();
  });
  await until('all servers are in use', () => poolIs(fleet, { sv_active: poolSize }), {
    deadlineMs: 20_000,
  }).finally(() => {
    isOver = true;
  });
  await Promise.all(load);
  await until('no backend is busy', async () => {
    const backends = await postgres.backends({ user: 'app' });
    return !backends.some(({ state }) => state !== 'idle');
  });
}

/** Queries on the same pool all the while, and fails on any answer that is not its own. */
class Neighbour {
  answers = 0;
  readonly #client: WireClient;
  #isStopped = false;
  readonly #run: Promise<void>;

  constructor(client: WireClient) {
    this.#client = client;
    this.#run = this.#ask();
    // A failure is told by `stop`.
    this.#run.catch(() => undefined);
  }

  static async beside(fleet: TestPgfleet): Promise<Neighbour> {
    return new Neighbour(await WireClient.login(fleet));
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#run;
    await this.#client.end();
  }

  async #ask(): Promise<void> {
    while (!this.#isStopped) {
      const mark = `mine ${++this.answers}`;
      let received: WireMessage[];
      if (this.answers % 2 === 0) {
        received = await this.#client.query(`SELECT '${mark}'`, 30_000);
        assert.equal(typesOf(received), 'T D C Z:I');
      } else {
        const name = `n${this.answers}`;
        this.#client.send(
          parse(name, 'SELECT $1::text'),
          bind({ statement: name, values: [mark] }),
        );
        this.#client.send(execute(), close('S', name), SYNC);
        received = await this.#client.untilReady(30_000);
        assert.equal(typesOf(received), '1 2 D C 3 Z:I');
      }
      assert.deepEqual(textRows(received), [[mark]]);
    }
  }
}

/** A session with every kind of message in it, from its first byte to its last. */
const SESSION: readonly Buffer[] = [
  sslRequest(),
  APP,
  query('BEGIN; INSERT INTO kept VALUES (1)'),
  parse('s', 'SELECT $1::text', [25]),
  bind({ portal: 'p', statement: 's', values: ['value'] }),
  describe('S', 's'),
  describe('P', 'p'),
  execute('p', 1),
  close('P', 'p'),
  close('S', 's'),
  FLUSH,
  SYNC,
  query('COPY copied FROM STDIN'),
  copyData(Buffer.from('1\n')),
  copyFail('enough'),
  message('F', [int32(1), int16(0), int16(0), int16(0)]),
];

for (const size of [1, 2]) {
  test(`a session that is cut at any byte costs the pool nothing, ${size} workers`, async (t) => {
    const fleet = await fleetOf(t, size);
    const neighbour = await Neighbour.beside(fleet);
    const bytes = Buffer.concat(SESSION.slice(1));
    const cuts = Array.from({ length: bytes.length }, (_, at) => at);
    await inLanes(cuts, 6, async (at) => {
      const client = await WireClient.connect(fleet);
      client.send(bytes.subarray(0, at));
      // Some leave when the first answer has come, some at once.
      if (at % 2 === 0 && at > APP.length) await client.next();
      if (at % 3 === 0) client.reset();
      else client.socket.end();
      client.socket.resume();
      await until('the connection has ended', () => client.socket.closed || client.isClosed);
      client.destroy();
    });
    await neighbour.stop();
    await poolIsWhole(fleet);
    assert.deepEqual(await counts(), { kept: 0, copied: 0 });
  });
}

async function counts(): Promise<{ kept: number; copied: number }> {
  const rows = await direct('SELECT (SELECT count(*) FROM kept), (SELECT count(*) FROM copied)');
  return { kept: Number(rows[0]?.[0]), copied: Number(rows[0]?.[1]) };
}

test('a message of an impossible length ends the session, whatever its type', async (t) => {
  const fleet = await fleetOf(t, 1, { max_packet_size: 100_000 });
  const cases = ['Q', 'F', 'P', 'B', 'D', 'E', 'C', 'S', 'H', 'd', 'c', 'f', 'X', '!'].flatMap(
    (type) =>
      [0, 1, 2, 3, -1, -2_147_483_648, 100_001, 2_147_483_647].map(
        (length) => [type, length] as const,
      ),
  );
  await inLanes(cases, 6, async ([type, length]) => {
    const client = await WireClient.login(fleet);
    const bytes = message(type, [], length);
    client.send(bytes);
    const text = `bad packet header: '${bytes.toString('hex')}'`;
    assert.deepEqual(await linesUntilClose(client), fatal(text), `${type} ${length}`);
    client.destroy();
  });
  await poolIsWhole(fleet);
});

test('a message of a type that no client sends ends the session', async (t) => {
  const fleet = await fleetOf(t, 1);
  fleet.allowLog(/ERROR C-.* unknown pkt from client/);
  const known = new Set(Array.from('QFPBDECSHdcfX', (letter) => letter.charCodeAt(0)));
  const types = Array.from({ length: 256 }, (_, type) => type).filter((type) => !known.has(type));
  const neighbour = await Neighbour.beside(fleet);
  await inLanes(types, 6, async (type) => {
    const client = await WireClient.login(fleet);
    const unknown = message(String.fromCharCode(type), ['what']);
    if (type % 2 === 0) {
      client.send(unknown);
      assert.deepEqual(await linesUntilClose(client), fatal('unknown pkt'), `type ${type}`);
    } else {
      // In a transaction, in one write with a query, whose answer may or may not come first.
      client.send(query('BEGIN'), unknown, query('SELECT 1'));
      const lines = await linesUntilClose(client);
      assert.deepEqual(lines.slice(-2), fatal('unknown pkt'), `type ${type}`);
    }
    client.destroy();
  });
  for (const bytes of [APP, sslRequest(), message('p', ['app'])]) {
    const client = await WireClient.login(fleet);
    client.send(bytes);
    assert.deepEqual(await linesUntilClose(client), fatal('unknown pkt'));
    client.destroy();
  }
  await neighbour.stop();
  await poolIsWhole(fleet);
});

/** `whole` cut short behind each byte of its body, its length word made to fit. */
function truncated(whole: Buffer): Buffer[] {
  const type = String.fromCharCode(whole[0]!);
  return Array.from({ length: whole.length - 5 }, (_, size) =>
    message(type, [whole.subarray(5, 5 + size)]),
  );
}

for (const maxPrepared of [200, 0]) {
  test(`a message that is shorter than it should be is refused, max_prepared_statements = ${maxPrepared}`, async (t) => {
    const fleet = await fleetOf(t, 1, { max_prepared_statements: maxPrepared });
    const neighbour = await Neighbour.beside(fleet);
    const wholes = [
      parse('name', 'SELECT $1::text', [25]),
      bind({
        portal: 'p',
        statement: 'known',
        values: ['value'],
        formats: [0],
        resultFormats: [1],
      }),
      describe('S', 'known'),
      describe('P', 'p'),
      close('S', 'known'),
      close('P', 'p'),
      execute('p', 1),
      message('F', [int32(1), int16(0), int16(0), int16(0)]),
    ];
    await inLanes(wholes.flatMap(truncated), 6, async (bytes) => {
      const client = await WireClient.login(fleet);
      // In a transaction, so that the statement stays at hand when none is tracked.
      client.send(query('BEGIN'), parse('known', 'SELECT $1::text', [25]), SYNC);
      await client.untilReady();
      assert.equal(typesOf(await client.untilReady()), '1 Z:T');
      client.send(bytes, SYNC);
      const lines: string[] = [];
      while (!client.isClosed && !(lines.at(-1) ?? '').startsWith('Z')) {
        const next = await client.next().catch(() => null);
        if (next !== null) lines.push(line(next));
      }
      const what = `${bytes.toString('latin1')}: ${lines.join(', ')}`;
      const error = lines.find((one) => /^(ERROR|FATAL)/.test(one)) ?? '';
      if (error.startsWith('FATAL 08P01')) {
        assert.match(
          error,
          /^FATAL 08P01 (broken (Parse|Bind|Describe|Close) packet|failed to parse packet|prepared statement did not exist)$/,
          what,
        );
        assert.ok(maxPrepared > 0, what);
      } else {
        assert.match(error, /^ERROR (08P01|26000|34000|42883|0A000|22P03)/, what);
        assert.equal(lines.at(-1), 'Z:E', what);
      }
      client.destroy();
    });
    await neighbour.stop();
    await poolIsWhole(fleet);
  });
}

/** Messages from which random streams are made. Nothing in them changes what a neighbour sees. */
const PIECES: readonly Buffer[] = [
  ...SESSION.slice(2),
  query('SELECT 1'),
  query(''),
  query('SELECT 1; SELECT 2'),
  query('SELECT 1/0'),
  query('ROLLBACK'),
  query('COMMIT'),
  query("SELECT repeat('x', 20000)"),
  query('COPY (SELECT generate_series(1, 500)) TO STDOUT'),
  parse('', 'SELECT $1::int', [23]),
  parse('t', 'SELECT 2'),
  parse('bad', 'SELECT FROM WHERE'),
  bind(),
  bind({ statement: 't' }),
  bind({ statement: 'unknown' }),
  execute(),
  describe('S', 't'),
  close('S', 't'),
  copyData(Buffer.from('nonsense\n')),
  COPY_DONE,
  TERMINATE,
  SYNC,
  SYNC,
];

/** A stream of whole pieces, of which some are changed, cut short, repeated or followed by noise. */
function randomStream(random: Random): Buffer {
  const parts: Buffer[] = [];
  for (let left = 1 + random.below(12); left > 0; left--) {
    const piece = Buffer.from(random.pick(PIECES));
    const change = random.below(10);
    if (change === 0) piece[random.below(piece.length)] = random.below(256);
    if (change === 1) piece.writeInt32BE(random.below(4) === 0 ? -1 : random.below(60), 1);
    if (change === 2) parts.push(piece.subarray(0, random.below(piece.length)));
    else parts.push(piece);
    if (change === 3) {
      parts.push(Buffer.from(Array.from({ length: random.below(30) }, () => random.below(256))));
    }
  }
  return Buffer.concat(parts);
}

for (const size of [1, 2]) {
  const streams = isLong ? 20_000 : 1_500;
  test(`${streams} random streams disturb no client beside them, ${size} workers`, async (t) => {
    const seed = Number(process.env['PGFLEET_SEED'] ?? Date.now() % 1_000_000_000);
    t.diagnostic(`PGFLEET_SEED=${seed}`);
    const fleet = await fleetOf(t, size, { log_pooler_errors: 0 });
    fleet.allowLog(/ERROR C-.* unknown pkt from client/);
    const workers = fleet.workers();
    const neighbours = await Promise.all([1, 2].map(() => Neighbour.beside(fleet)));
    await inLanes(
      Array.from({ length: streams }, (_, index) => index),
      8,
      async (index) => {
        const random = new Random(seed + index);
        const client = await WireClient.connect(fleet);
        const stream = randomStream(random);
        // One in ten is not even logged in.
        const login = random.below(10) === 0 ? [] : [APP];
        const bytes = Buffer.concat([...login, stream]);
        const cut = random.below(bytes.length + 1);
        client.send(bytes.subarray(0, cut));
        client.send(bytes.subarray(cut));
        client.socket.resume();
        await untilQuiet(client, 3 + random.below(10));
        if (random.below(2) === 0) client.reset();
        else client.destroy();
      },
    );
    for (const neighbour of neighbours) await neighbour.stop();
    for (const { answers } of neighbours) assert.ok(answers > 20, `${answers} answers`);
    await poolIsWhole(fleet);
    assert.deepEqual(fleet.workers(), workers);
  });
}

/** Waits until nothing has come for `quietMs`, or the connection has ended. */
async function untilQuiet(client: WireClient, quietMs: number): Promise<void> {
  for (let before = -1; before !== client.receivedBytes && !client.isClosed; ) {
    before = client.receivedBytes;
    await sleep(quietMs);
  }
}

const BIG = "SELECT repeat('x', 1000) FROM generate_series(1, 200000)";
/** The rows and the headers of their messages at the least. */
const BIG_BYTES = 200_000 * (1000 + 5);

for (const [name, bytes] of [
  ['a simple query', query(BIG)],
  ['an extended query', Buffer.concat([parse('', BIG), bind(), execute(), SYNC])],
  ['COPY', query(`COPY (${BIG}) TO STDOUT`)],
] as const) {
  test(`a client that does not read ${name} of 200 MB holds up itself alone`, async (t) => {
    const fleet = await fleetOf(t, 1, { default_pool_size: 2 });
    const [worker] = fleet.workers();
    const slow = await WireClient.login(fleet);
    slow.socket.pause();
    slow.send(bytes);
    await until('the query runs', () => poolIs(fleet, { sv_active: 1 }));
    const before = memoryOf(worker!);
    const neighbour = await Neighbour.beside(fleet);
    await until('the neighbour has been served', () => neighbour.answers > 300, {
      deadlineMs: 30_000,
    });
    await neighbour.stop();
    const grown = memoryOf(worker!) - before;
    assert.ok(grown < 60 * MB, `the worker has grown by ${grown / MB} MB`);
    assert.equal(await poolIs(fleet, { sv_active: 1 }), true);

    // It gets all of it as soon as it reads.
    const start = slow.receivedBytes;
    slow.socket.removeAllListeners('data');
    let received = 0;
    slow.socket.on('data', (chunk) => {
      received += chunk.length;
    });
    slow.socket.resume();
    await until('the rest has come', () => poolIs(fleet, { sv_active: 0 }), { deadlineMs: 60_000 });
    await until('all of it has come', () => start + received > BIG_BYTES);
    slow.destroy();
    await poolIsWhole(fleet, 2);
  });
}

test('clients that pipeline and never read cost the memory of what they were sent', async (t) => {
  const fleet = await fleetOf(t, 1, { default_pool_size: 2 });
  const [worker] = fleet.workers();
  const before = memoryOf(worker!);
  const statement = parse('s', 'SELECT 1');
  const local = Buffer.concat([close('S', 'absent'), SYNC]);
  const clients = await Promise.all(Array.from({ length: 4 }, () => WireClient.login(fleet)));
  for (const [index, client] of clients.entries()) {
    client.socket.pause();
    client.send(statement, SYNC);
    // Answers of the pooler's own, answers of the server, and both with a great one between.
    const batch = index % 2 === 0 ? local : query("SELECT repeat('y', 10000)");
    const many = Buffer.concat(Array.from({ length: 500 }, () => batch));
    client.send(many, query(BIG), many);
    for (let sent = 0; sent < 100; sent++) client.send(many);
  }
  const stats = async (): Promise<string> => {
    const rows = await fleet.console('SHOW STATS');
    const [row] = rows.filter((found) => found['database'] === 'app');
    return `${row?.['total_received']} in, ${row?.['total_sent']} out`;
  };
  await until(
    'nothing moves any more',
    async () => {
      const first = await stats();
      await sleep(500);
      return first === (await stats());
    },
    { deadlineMs: 20_000 },
  );
  const grown = memoryOf(worker!) - before;
  assert.ok(grown < 120 * MB, `the worker has grown by ${grown / MB} MB`);
  for (const client of clients) client.reset();
  await poolIsWhole(fleet, 2);
});

test('a connection that was closed is let go although its client never reads', async (t) => {
  const fleet = await fleetOf(t, 1, { default_pool_size: 2, query_timeout: 2 });
  const [worker] = fleet.workers();
  await isServed(fleet);
  const before = descriptorsOf(worker!);
  const clients = await Promise.all([1, 2].map(() => WireClient.login(fleet)));
  for (const client of clients) {
    client.socket.pause();
    client.send(query(BIG));
  }
  await until('both run', () => descriptorsOf(worker!) >= before + 2);
  await until('both are gone', () => descriptorsOf(worker!) <= before + 2, { deadlineMs: 20_000 });
  await poolIsWhole(fleet, 2);
  await until('no socket is left', () => descriptorsOf(worker!) <= before + 2, {
    deadlineMs: 20_000,
  });
  for (const client of clients) client.destroy();
});

/** Ways to be in the middle of something; each leaves a row in `kept` if it is not rolled back. */
const MIDDLES: readonly (readonly [
  name: string,
  start: (client: WireClient) => Promise<unknown>,
])[] = [
  [
    'in a query',
    async (client) =>
      client.send(query('BEGIN; INSERT INTO kept VALUES (1); SELECT pg_sleep(0.5)')),
  ],
  [
    'in a transaction',
    async (client) => {
      await client.query('BEGIN');
      await client.query('INSERT INTO kept VALUES (1)');
    },
  ],
  [
    'in a failed transaction',
    async (client) => {
      await client.query('BEGIN; INSERT INTO kept VALUES (1)');
      await client.query('SELECT 1/0');
    },
  ],
  [
    'in the middle of a message',
    async (client) => {
      await client.query('BEGIN; INSERT INTO kept VALUES (1)');
      const whole = query('COMMIT');
      client.send(whole.subarray(0, whole.length - 2));
    },
  ],
  [
    'behind a Parse',
    async (client) => {
      await client.query('BEGIN; INSERT INTO kept VALUES (1)');
      client.send(parse('', 'COMMIT'), bind());
    },
  ],
  [
    'while COPY IN runs',
    async (client) => {
      client.send(query('COPY kept FROM STDIN'));
      await client.until('G');
      client.send(copyData(Buffer.from('1\n2\n')));
    },
  ],
  [
    'in the middle of CopyData',
    async (client) => {
      client.send(query('COPY kept FROM STDIN'));
      await client.until('G');
      client.send(copyData(Buffer.from('1\n2\n')), copyData(Buffer.from('3\n')).subarray(0, 6));
    },
  ],
  [
    'while COPY OUT runs',
    async (client) => {
      client.send(query(`BEGIN; INSERT INTO kept VALUES (1); COPY (${BIG}) TO STDOUT`));
      await client.until('H');
      client.socket.pause();
    },
  ],
  [
    'while rows come',
    async (client) => {
      client.send(query(`BEGIN; INSERT INTO kept VALUES (1); ${BIG}`));
      await client.until('T');
    },
  ],
  ['with nothing but a Flush', async (client) => client.send(FLUSH)],
  [
    'with a portal open',
    async (client) => {
      await client.query('BEGIN; INSERT INTO kept VALUES (1)');
      client.send(
        parse('', 'SELECT generate_series(1, 10)'),
        bind({ portal: 'p' }),
        execute('p', 2),
        FLUSH,
      );
      await client.until('s');
    },
  ],
];

/** Ways to leave. */
const LEAVES: readonly (readonly [name: string, leave: (client: WireClient) => void])[] = [
  ['closes', (client) => client.destroy()],
  ['resets', (client) => client.reset()],
  ['ends its side only', (client) => void client.socket.end()],
  ['says Terminate', (client) => void client.socket.end(TERMINATE)],
];

for (const size of [1, 2]) {
  for (const mode of ['transaction', 'session']) {
    test(`a client that vanishes anywhere is rolled back and its server's slot is free, ${mode} mode, ${size} workers`, async (t) => {
      const fleet = await fleetOf(t, size, { pool_mode: mode });
      for (const [where, start] of MIDDLES) {
        // The end of a message that was cut is not for Terminate to make.
        const leaves = where.includes('middle of') ? LEAVES.slice(0, 3) : LEAVES;
        await Promise.all(
          leaves.map(async ([how, leave]) => {
            const client = await WireClient.login(fleet);
            await within(`${how} ${where}`, start(client));
            leave(client);
            client.socket.resume();
            if (how.startsWith('ends')) {
              await until(
                `the pooler closes: ${where}`,
                () => client.isClosed || client.socket.closed,
              );
            }
            client.destroy();
          }),
        );
        await poolIsWhole(fleet).catch((cause: unknown) => {
          throw new Error(`after clients that left ${where}`, { cause });
        });
        assert.deepEqual(await counts(), { kept: 0, copied: 0 }, where);
      }
    });
  }
}

test('a client that vanishes right after its request costs nothing but the request', async (t) => {
  const fleet = await fleetOf(t, 2);
  const neighbour = await Neighbour.beside(fleet);
  await inLanes(
    Array.from({ length: 200 }, (_, index) => index),
    8,
    async (index) => {
      const client = await WireClient.login(fleet);
      client.send(
        index % 2 === 0 ? query('SELECT 1') : Buffer.concat([parse('v', 'SELECT 2'), SYNC]),
      );
      if (index % 4 < 2) client.destroy();
      else client.reset();
    },
  );
  await neighbour.stop();
  await poolIsWhole(fleet);
});

test('a client that vanishes while it waits leaves the queue', async (t) => {
  const fleet = await fleetOf(t, 1, { default_pool_size: 1 });
  const holder = await WireClient.login(fleet);
  await holder.query('BEGIN');
  const waiting = await Promise.all(Array.from({ length: 12 }, () => WireClient.login(fleet)));
  for (const client of waiting) client.send(query('INSERT INTO kept VALUES (7)'));
  await until('all wait', () => poolIs(fleet, { cl_waiting: 12 }));
  for (const [index, client] of waiting.entries()) LEAVES[index % LEAVES.length]![1](client);
  // Those that say Terminate behind their query are still to be served: their bytes are kept.
  await until('they have left', async () => !(await poolIs(fleet, { cl_waiting: 12 })));
  await holder.query('COMMIT');
  await poolsAreIdle(fleet);
  await holder.end();
  for (const client of waiting) client.destroy();
  await poolIsWhole(fleet, 1);
});

test('a query that runs on in PostgreSQL after its client has gone keeps its slot until it ends', async (t) => {
  const fleet = await fleetOf(t, 1, { default_pool_size: 1 });
  const client = await WireClient.login(fleet);
  client.send(query('SELECT pg_sleep(2)'));
  await until('the query runs', () => poolIs(fleet, { sv_active: 1 }));
  client.destroy();
  await isServed(fleet, 20_000);
  const running = await postgres.query(
    "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(2)%' AND pid <> pg_backend_pid()",
  );
  assert.deepEqual(running, []);
});

test('1,000 connections that say nothing are closed after client_login_timeout, and others served', async (t) => {
  const fleet = await fleetOf(t, 2, { client_login_timeout: 3 });
  const neighbour = await Neighbour.beside(fleet);
  const silent: WireClient[] = [];
  await inLanes(
    Array.from({ length: 1_000 }, (_, index) => index),
    50,
    async () => {
      silent.push(await WireClient.connect(fleet));
    },
  );
  await until('all are closed', () => silent.every((client) => client.isClosed), {
    deadlineMs: 30_000,
  });
  await neighbour.stop();
  for (const client of silent.slice(0, 10)) {
    assert.deepEqual((await client.untilClose()).map(line), ['FATAL 08P01 client_login_timeout']);
  }
  for (const client of silent) client.destroy();
  await poolIsWhole(fleet);
});

test('Terminate ends the session wherever it comes, behind what was asked before', async (t) => {
  const fleet = await fleetOf(t, 1);
  const oddTerminate = message('X', [], 1 << 30);
  for (const terminate of [TERMINATE, oddTerminate]) {
    for (const bytes of [
      [],
      [query('SELECT 1')],
      [parse('', 'SELECT 1')],
      [parse('x', 'SELECT 1'), bind({ statement: 'x' })],
      [FLUSH],
      [query('COPY copied FROM STDIN'), copyData(Buffer.from('1\n'))],
      [query('BEGIN')],
    ]) {
      const client = await WireClient.login(fleet);
      client.send(...bytes, terminate, query('INSERT INTO kept VALUES (1)'));
      const lines = await linesUntilClose(client);
      assert.ok(!lines.some((one) => one.startsWith('FATAL')), lines.join(', '));
      client.destroy();
    }
  }
  await poolIsWhole(fleet);
  assert.deepEqual(await counts(), { kept: 0, copied: 0 });
  const client = await WireClient.login(fleet);
  client.send(query('CREATE TABLE made ()'), TERMINATE);
  await client.untilClose();
  await until('what came before Terminate is done', async () => {
    const rows = await direct("SELECT to_regclass('made')");
    return rows[0]?.[0] === 'made';
  });
  await direct('DROP TABLE made');
  client.destroy();
});

test('queries that are sent before the welcome are answered behind it', async (t) => {
  const many = Array.from({ length: 200 }, (_, index) => query(`SELECT ${index}`));
  for (const authType of ['trust', 'plain', 'md5']) {
    const fleet = await fleetOf(t, 2, { auth_type: authType === 'md5' ? 'trust' : authType });
    // Once while the pool learns its parameters, once when it knows them.
    for (const round of [1, 2]) {
      const client = await WireClient.connect(fleet);
      const password = authType === 'plain' ? [message('p', ['app'])] : [];
      client.send(APP, ...password, ...many, parse('', 'SELECT 1'), bind(), execute(), SYNC);
      await client.untilReady();
      for (const [index] of many.entries()) {
        assert.deepEqual(textRows(await client.untilReady()), [[String(index)]], `round ${round}`);
      }
      assert.equal(typesOf(await client.untilReady()), '1 2 D C Z:I');
      await client.end();
    }
  }
});

test('an evicted prepared statement is prepared again, and its client never notices', async (t) => {
  const fleet = await fleetOf(t, 1, { max_prepared_statements: 2, default_pool_size: 1 });
  const clients = await Promise.all([1, 2].map(() => WireClient.login(fleet)));
  const names = ['a', 'b', 'c', 'd', 'e'];
  for (const [index, client] of clients.entries()) {
    for (const name of names) {
      client.send(parse(name, `SELECT '${name}${name === 'a' ? '' : index}' || $1::text`), SYNC);
      assert.equal(typesOf(await client.untilReady()), '1 Z:I');
    }
  }
  const random = new Random(42);
  for (let round = 0; round < 100; round++) {
    const index = random.below(2);
    const client = clients[index]!;
    const picked = Array.from({ length: 1 + random.below(5) }, () => random.pick(names));
    for (const name of picked) {
      client.send(describe('S', name), bind({ statement: name, values: ['!'] }), execute());
    }
    client.send(SYNC);
    const received = await client.untilReady();
    const wanted = picked.map((name) => [`${name}${name === 'a' ? '' : index}!`]);
    assert.deepEqual(textRows(received), wanted, `round ${round}`);
    assert.equal(typesOf(received), `${picked.map(() => 't T 2 D C').join(' ')} Z:I`);
  }
  const [first] = clients;
  const prepared = await first!.query('SELECT count(*) FROM pg_prepared_statements');
  assert.ok(Number(textRows(prepared)[0]?.[0]) <= 2);
  for (const client of clients) await client.end();
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', async () => {
  isStopped = true;
  await postgres.dispose();
});
