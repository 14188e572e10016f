import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import {
  COPY_DONE,
  close,
  parse,
  query,
  SYNC,
  textRows,
  typesOf,
  type WireMessage,
} from '../support/messages.ts';
import type { TestPostgres } from '../support/postgres.ts';
import {
  errors,
  ordinary,
  replica,
  shown,
  standbyStatus,
  startSource,
  value,
  walSenders,
} from '../support/replication.ts';
import { type RuleCheck, type RuleNotes, type RuleOptions, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient, WireError } from '../support/wire-client.ts';

/**
 * Replication connections (`replication=` in the startup packet) to a real PostgreSQL: each has a
 * server connection of its own, whatever the pool mode is.
 */

let postgres: TestPostgres;
before(async () => {
  postgres = await startSource();
});

/** PgBouncer has replication connections since 1.23. */
function replicationRule(
  name: string,
  options: Omit<RuleOptions, 'postgres'>,
  check: RuleCheck,
  notes: RuleNotes = {},
): void {
  rule(name, () => ({ postgres, ...options }), check, { since: '1.23', ...notes });
}

for (const kind of ['true', 'database'] as const) {
  replicationRule(`replication=${kind} reaches a WAL sender of that kind`, {}, async (pooler) => {
    const client = await replica(pooler, kind);
    const [row] = textRows(await client.query('IDENTIFY_SYSTEM'));
    assert.equal(row?.[3], kind === 'database' ? 'postgres' : null);
    await client.end();
  });
}

for (const mode of ['transaction', 'statement', 'session'] as const) {
  replicationRule(
    `a logical connection runs SQL on one server whatever the pool mode: ${mode}`,
    { settings: { pool_mode: mode } },
    async (pooler) => {
      const client = await replica(pooler);
      const pid = await value(client, 'SELECT pg_backend_pid()');
      await client.query("SET work_mem = '123kB'");
      assert.equal(typesOf(await client.query('BEGIN')), 'C Z:T');
      assert.equal(typesOf(await client.query('COMMIT')), 'C Z:I');
      assert.equal(await value(client, 'SHOW work_mem'), '123kB');
      assert.equal(await value(client, 'SELECT pg_backend_pid()'), pid);
      assert.deepEqual(await shown(pooler, 'SHOW POOLS', 'pool_mode'), [mode]);
      await client.end();
    },
  );
}

replicationRule('named statements reach the server as they are', {}, async (pooler) => {
  const client = await replica(pooler);
  client.send(parse('mine', 'SELECT 1'), SYNC);
  const refused = ['extended query protocol not supported in a replication connection'];
  const texts = (messages: WireMessage[]) => errors(messages).map((text) => text.slice(12));
  assert.deepEqual(texts(await client.untilReady()), refused);
  // Were names translated, the pooler would answer this one itself.
  client.send(close('S', 'mine'), SYNC);
  assert.deepEqual(texts(await client.untilReady()), refused);
  await client.end();
});

replicationRule(
  'logical changes stream, and the connection can be used after them',
  {},
  async (pooler) => {
    const client = await replica(pooler);
    await client.query('CREATE_REPLICATION_SLOT stream TEMPORARY LOGICAL test_decoding');
    await postgres.query('TRUNCATE changes');
    client.send(query('START_REPLICATION SLOT stream LOGICAL 0/0'));
    assert.equal((await client.next()).type, 'W');
    await postgres.query('INSERT INTO changes SELECT generate_series(1, 100)');
    const seen: string[] = [];
    let end: Buffer = Buffer.alloc(8);
    while (!seen.some((text) => text.includes('[integer]:100'))) {
      const { type, body } = await client.next();
      assert.equal(type, 'd');
      if (body[0] !== 0x77) continue;
      end = body.subarray(9, 17);
      seen.push(body.toString('utf8', 25));
    }
    assert.equal(seen.filter((text) => text.includes('INSERT')).length, 100);
    client.send(standbyStatus(end));
    await until('the server has heard how far the client is', async () => {
      const rows = await postgres.query(
        'SELECT 1 FROM pg_replication_slots WHERE confirmed_flush_lsn = $1::pg_lsn',
        [`${end.readUInt32BE(0).toString(16)}/${end.readUInt32BE(4).toString(16)}`],
      );
      return rows.length === 1;
    });
    client.send(COPY_DONE);
    const last = (await client.untilReady()).filter(({ type }) => type !== 'd');
    assert.match(typesOf(last), /^c C C Z:I$/);
    assert.equal(await value(client, 'SELECT 42'), '42');
    await client.end();
  },
);

replicationRule('physical WAL streams both ways until the client ends it', {}, async (pooler) => {
  const client = await replica(pooler, 'true');
  const [row] = textRows(await client.query('IDENTIFY_SYSTEM'));
  client.send(query(`START_REPLICATION PHYSICAL ${row![2]} TIMELINE ${row![1]}`));
  assert.equal((await client.next()).type, 'W');
  await postgres.query("SELECT pg_logical_emit_message(false, 'test', repeat('x', 100000))");
  let bytes = 0;
  while (bytes < 100_000) {
    const { type, body } = await client.next();
    assert.equal(type, 'd');
    if (body[0] === 0x77) bytes += body.length - 25;
  }
  client.send(standbyStatus(Buffer.alloc(8)), COPY_DONE);
  const last = (await client.untilReady()).filter(({ type }) => type !== 'd');
  assert.match(typesOf(last), /^c C( C)? Z:I$/);
  assert.equal(typesOf(await client.query('IDENTIFY_SYSTEM')), 'T D C Z:I');
  await client.end();
});

replicationRule(
  'a query and a stream can be cancelled with the key of the welcome',
  {},
  async (pooler) => {
    const client = await replica(pooler);
    client.send(query('SELECT pg_sleep(60)'));
    await until(
      'it sleeps',
      async () => (await walSenders(postgres)) === 1 && (await sleeping()) === 1,
    );
    await sendCancel(pooler, client.key);
    const canceled = 'ERROR 57014 canceling statement due to user request';
    assert.deepEqual(errors(await client.untilReady()), [canceled]);
    await client.query('CREATE_REPLICATION_SLOT canceled TEMPORARY LOGICAL test_decoding');
    client.send(query('START_REPLICATION SLOT canceled LOGICAL 0/0'));
    assert.equal((await client.next()).type, 'W');
    await sendCancel(pooler, client.key);
    assert.deepEqual(errors(await client.untilReady()), [canceled]);
    await client.end();
  },
);

async function sleeping(): Promise<number> {
  return (await postgres.query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))
    .length;
}

replicationRule(
  'it takes no server before its first request when the pool knows the parameters',
  {},
  async (pooler) => {
    const first = await ordinary(pooler);
    await first.query('SELECT 1');
    const client = await replica(pooler);
    assert.equal(await walSenders(postgres), 0);
    await client.query('SELECT 1');
    assert.equal(await walSenders(postgres), 1);
    await client.end();
    await first.end();
  },
);

replicationRule('SHOW names the kind of clients and servers', {}, async (pooler) => {
  const first = await ordinary(pooler);
  await first.query('SELECT 1');
  const clients = [await replica(pooler, 'true'), await replica(pooler)];
  for (const client of clients) await client.query('IDENTIFY_SYSTEM');
  const kinds = ['logical', 'none', 'physical'];
  assert.deepEqual(await shown(pooler, 'SHOW CLIENTS', 'replication'), kinds);
  assert.deepEqual(await shown(pooler, 'SHOW SERVERS', 'replication'), kinds);
  const pool = (await pooler.console('SHOW POOLS')).find((row) => row['database'] === 'postgres');
  assert.deepEqual(
    [pool?.['cl_active'], pool?.['cl_waiting'], pool?.['sv_active'], pool?.['sv_idle']].map(Number),
    [3, 0, 2, 1],
  );
  assert.equal(pool?.['pool_mode'], 'transaction');
  for (const client of [first, ...clients]) await client.end();
});

replicationRule(
  'its welcome speaks of session mode, and is that of others in all else',
  { settings: { pool_mode: 'statement' } },
  async (pooler) => {
    const first = await ordinary(pooler);
    const client = await replica(pooler);
    const welcome = new Map([...first.parameters, ['pgbouncer.pool_mode', 'session']]);
    assert.deepEqual(client.parameters, welcome);
    assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
    for (const one of [client, first]) await one.end();
  },
  // It tells the pool mode since 1.26.
  { since: '1.26' },
);

replicationRule('SHOW tells which server is whose', {}, async (pooler) => {
  const client = await replica(pooler);
  await client.query('SELECT 1');
  const of = async (command: string) =>
    (await pooler.console(command)).find((row) => row['database'] === 'postgres');
  const [session, server] = [await of('SHOW CLIENTS'), await of('SHOW SERVERS')];
  assert.equal(session?.['state'], 'active');
  assert.equal(server?.['state'], 'active');
  assert.equal(session?.['link'], server?.['ptr']);
  assert.equal(server?.['link'], session?.['ptr']);
  assert.equal(server?.['application_name'], session?.['application_name']);
  await client.end();
});

replicationRule('its queries count, but not as assignments of a server', {}, async (pooler) => {
  const client = await replica(pooler);
  for (const sql of ['SELECT 1', 'BEGIN', 'SELECT 2', 'COMMIT']) await client.query(sql);
  await client.end();
  const rows = await pooler.console('SHOW STATS_TOTALS');
  const totals = rows.find((row) => row['database'] === 'postgres');
  const columns = ['server_assignment_count', 'xact_count', 'query_count'];
  assert.deepEqual(
    columns.map((column) => Number(totals?.[column])),
    [0, 2, 4],
  );
});

replicationRule(
  'the server hears its name, with the address when that is to be added',
  { settings: { application_name_add_host: 1 } },
  async (pooler) => {
    const client = await replica(pooler, 'database', { application_name: 'subscriber' });
    const name = await value(client, 'SHOW application_name');
    assert.match(name ?? '', /^subscriber - 127\.0\.0\.1:\d+$/);
    await client.end();
  },
);

replicationRule(
  'the user that the database line names is the one that replicates',
  { databases: { replicated: 'dbname=postgres user=postgres password=postgres' } },
  async (pooler) => {
    const parameters = { replication: 'database' };
    const client = await WireClient.login(pooler, { database: 'replicated', parameters });
    assert.equal(await value(client, 'SELECT current_user'), 'postgres');
    await client.end();
  },
);

replicationRule(
  'a database that no line names cannot be replicated either',
  { databases: { app: '' } },
  async (pooler) => {
    await assert.rejects(
      replica(pooler, 'true'),
      /^WireError: FATAL 08P01: no such database: postgres$/,
    );
  },
);

replicationRule(
  'connect_query runs on logical connections, and its failure on physical ones is ignored',
  {
    databases: { postgres: `connect_query='SET work_mem = 321'` },
    logs: [/error while executing exec_on_query/],
  },
  async (pooler) => {
    const logical = await replica(pooler);
    assert.equal(await value(logical, 'SHOW work_mem'), '321kB');
    await logical.end();
    const physical = await replica(pooler, 'true');
    assert.equal(typesOf(await physical.query('IDENTIFY_SYSTEM')), 'T D C Z:I');
    assert.match(pooler.log(), /exec_on_query: .*cannot execute SQL commands in WAL sender/);
    await physical.end();
  },
);

replicationRule('the log says how a client wants to replicate', {}, async (pooler) => {
  const clients = [await replica(pooler, 'true'), await replica(pooler), await ordinary(pooler)];
  for (const word of ['yes', 'database', 'no']) {
    const line = `login attempt: db=postgres user=postgres tls=no replication=${word}\n`;
    assert.ok(pooler.log().includes(line), line);
  }
  for (const client of clients) await client.end();
});

replicationRule(
  'a role that may not replicate is told that the login failed',
  { logs: [/S: login failed: FATAL: /] },
  async (pooler) => {
    const login = { parameters: { replication: 'database' } };
    await assert.rejects(WireClient.login(pooler, login), (error: WireError) => {
      assert.equal(error.message, 'FATAL 08P01: login failed');
      return true;
    });
    assert.match(
      pooler.log(),
      /ERROR S: login failed: FATAL: permission denied to start WAL sender/,
    );
    assert.match(pooler.log(), /S-\S+: .* closing because: login failed/);
  },
);

replicationRule(
  'a refused replication client does not hold up the others of its pool',
  { logs: [/S: login failed: FATAL: /], settings: { server_login_retry: 1000 } },
  async (pooler) => {
    const login = { parameters: { replication: 'database' } };
    await assert.rejects(WireClient.login(pooler, login), WireError);
    const other = await WireClient.login(pooler);
    assert.equal(typesOf(await other.query('SELECT 1')), 'T D C Z:I');
    await other.end();
  },
  { differs: { because: 'everybody waits for server_login_retry when one may not replicate' } },
);

const SQL_STYLE = { options: '-c DateStyle=SQL,DMY -c intervalstyle=iso_8601' };

replicationRule(
  'options reach the server, and the welcome tells what they did',
  {},
  async (pooler) => {
    const client = await replica(pooler, 'database', SQL_STYLE);
    assert.equal(client.parameters.get('DateStyle'), 'SQL, DMY');
    assert.equal(await value(client, 'SHOW IntervalStyle'), 'iso_8601');
    await client.end();
  },
);

replicationRule(
  'options count in a pool that knows its parameters too',
  {},
  async (pooler) => {
    const other = await ordinary(pooler);
    const client = await replica(pooler, 'database', SQL_STYLE);
    assert.equal(await value(client, 'SHOW DateStyle'), 'SQL, DMY');
    assert.equal(client.parameters.get('DateStyle'), 'SQL, DMY');
    await client.end();
    await other.end();
  },
  {
    differs: {
      because: 'it also names the values of the welcome, which win over the options',
      check: async (pooler) => {
        const other = await ordinary(pooler);
        const client = await replica(pooler, 'database', SQL_STYLE);
        assert.equal(await value(client, 'SHOW DateStyle'), 'ISO, MDY');
        await client.end();
        await other.end();
      },
    },
  },
);

const AS_SUBSCRIBER = { application_name: 'subscriber', DateStyle: 'German' };

replicationRule(
  'what it asks for is not told to other clients of the pool',
  {},
  async (pooler) => {
    const client = await replica(pooler, 'database', AS_SUBSCRIBER);
    assert.equal(client.parameters.get('DateStyle'), 'German, DMY');
    const other = await ordinary(pooler);
    assert.equal(other.parameters.get('DateStyle'), 'ISO, MDY');
    assert.equal(await value(other, 'SHOW application_name'), '');
    await client.end();
    await other.end();
  },
  {
    differs: {
      because: 'the parameters of a replication client become those of everybody',
      check: async (pooler) => {
        const client = await replica(pooler, 'database', AS_SUBSCRIBER);
        const other = await ordinary(pooler);
        assert.equal(await value(other, 'SHOW DateStyle'), 'German, DMY');
        assert.equal(await value(other, 'SHOW application_name'), 'subscriber');
        await client.end();
        await other.end();
      },
    },
  },
);

replicationRule('words for true ask for physical replication', {}, async (pooler) => {
  for (const word of ['true', 'tru', 't', 'yes', 'y', 'on', '1', 'TRUE']) {
    const client = await replica(pooler, word);
    const [row] = textRows(await client.query('IDENTIFY_SYSTEM'));
    assert.equal(row?.[3], null, word);
    assert.deepEqual(await shown(pooler, 'SHOW CLIENTS', 'replication'), ['physical'], word);
    await client.end();
  }
});

replicationRule('words for false, and nonsense, are an ordinary connection', {}, async (pooler) => {
  for (const word of ['false', 'off', 'of', 'no', '0', 'f', 'o', '2', 'nonsense', '']) {
    const client = await replica(pooler, word);
    assert.match(errors(await client.query('IDENTIFY_SYSTEM'))[0] ?? '', /syntax error/, word);
    assert.deepEqual(await shown(pooler, 'SHOW CLIENTS', 'replication'), ['none'], word);
    await client.end();
  }
});

replicationRule('the console takes replication and makes nothing of it', {}, async (pooler) => {
  const login = { user: 'postgres', database: 'pgbouncer' };
  const client = await WireClient.login(pooler, { ...login, parameters: { replication: 'true' } });
  assert.match(typesOf(await client.query('SHOW VERSION')), /^T D C Z:I$/);
  await client.end();
});

test('the server of this file ends', async () => {
  await postgres.dispose();
});
