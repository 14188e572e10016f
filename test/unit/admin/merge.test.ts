import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type LiveSnapshot, zeroCounters } from '../../../src/admin/snapshot.ts';
import {
  ask,
  client,
  config,
  counters,
  database,
  fleet,
  pool,
  records,
  server,
  type Table,
  user,
  worker,
} from './support.ts';

const SECOND = 1_000_000;

/** Three workers that have different things to say of everything. */
const WORKERS: readonly LiveSnapshot[] = [0, 1, 2].map((id) =>
  worker(id, {
    pools: [
      pool({
        cl_active: 10 + id,
        cl_waiting: id,
        cl_active_cancel_req: 1,
        sv_active: 2 + id,
        sv_idle: 3,
        sv_login: 1,
        maxWaitUs: [0, 2_500_001, 1_700_000][id]!,
      }),
      ...(id === 2 ? [pool({ database: 'aaa', user: 'zoe', sv_used: 4 })] : []),
    ],
    clients: [
      client({ id: id * 10 + 1, state: 'waiting', waitUs: 3_000_004 }),
      client({ id: id * 10 + 2, state: 'idle' }),
      client({ id: id * 10 + 3, database: 'aaa' }),
      client({ id: id * 10 + 4, database: null, user: null, state: 'waiting_cancel_req' }),
    ],
    servers: [
      server({ id: id * 10 + 5, state: 'being_canceled' }),
      server({ id: id * 10 + 6, state: 'active', close_needed: true, link: '0x9' }),
    ],
    databases: [
      {
        name: 'app',
        current_connections: 5 + id,
        current_client_connections: 10 + id,
        paused: id === 1,
        disabled: false,
      },
    ],
    users: [
      { name: 'alice', current_connections: id, current_client_connections: 2 * id },
      { name: `only-${id}`, current_connections: 1, current_client_connections: 0 },
    ],
    sessions: [
      { database: 'app', leaks: [1, 0, id, 0, 0, 0, 0, 5], stalePlans: 2, stalePlansHidden: 1 },
      ...(id === 1
        ? [{ database: 'aaa', leaks: [0, 3, 0, 0, 0, 0, 0, 0], stalePlans: 0, stalePlansHidden: 0 }]
        : []),
    ],
    stats: [
      { database: 'app', current: counters(1000 * (id + 1)), older: counters(100 * (id + 1)) },
      ...(id === 0 ? [{ database: 'aaa', current: counters(7), older: zeroCounters() }] : []),
    ],
    statsWindowUs: [60 * SECOND, 90 * SECOND, 7 * SECOND][id]!,
    lists: {
      peerPoolIds: id === 0 ? [3] : [3, 4],
      free_clients: 1,
      used_clients: 20 + id,
      login_clients: id,
      free_servers: 2,
      used_servers: 5,
      dns_queries: id,
    },
    dns_hosts: [
      // The longer an answer holds, the newer it is.
      { hostname: 'b.test', zone: 'test', ttlMs: 5500 + id, addresses: ['127.0.0.1', `::${id}`] },
      { hostname: `a${id}`, zone: null, ttlMs: 0, addresses: [] },
    ],
    dns_zones: [{ zonename: 'test', serial: id }],
  }),
);

const CONFIG = config({
  databases: [
    database({ name: 'app', hosts: ['a', 'b'], pool_size: 30, server_lifetime: 0 }),
    database({ name: 'other', dbname: 'real', user: 'forced', pool_mode: 'session' }),
  ],
  users: [user({ name: 'alice', pool_size: 3, max_user_connections: 9 })],
  peers: [
    { id: 9, host: 'h9', port: 6432, pool_size: null },
    { id: 4, host: '/sock', port: 7000, pool_size: 2 },
  ],
});

function show(topic: string): Promise<Table> {
  return ask(fleet(WORKERS, { config: CONFIG }).open('stats'), `SHOW ${topic}`);
}

/** Adds up the numbers of all rows of BY PROCESS that stand for the same thing. */
function addedUp(table: Table, keyColumns: number): Map<string, (bigint | null)[]> {
  const sums = new Map<string, (bigint | null)[]>();
  for (const [, ...row] of table.rows) {
    const key = row.slice(0, keyColumns).join('/');
    const before = sums.get(key);
    sums.set(
      key,
      row
        .slice(keyColumns)
        .map((value, i) =>
          /^\d+$/.test(value ?? '') ? BigInt(value!) + (before?.[i] ?? 0n) : null,
        ),
    );
  }
  return sums;
}

test('a pool is one row: gauges are sums and maxwait is the longest wait', async () => {
  const [aaa, app, console] = records(await show('POOLS'));
  assert.equal(aaa!['database'], 'aaa');
  assert.equal(aaa!['sv_used'], '4');
  assert.deepEqual(
    { ...app },
    {
      database: 'app',
      user: 'alice',
      cl_active: '33',
      cl_waiting: '3',
      cl_active_cancel_req: '3',
      cl_waiting_cancel_req: '0',
      sv_active: '9',
      sv_active_cancel: '0',
      sv_being_canceled: '0',
      sv_idle: '9',
      sv_used: '0',
      sv_tested: '0',
      sv_login: '3',
      maxwait: '2',
      maxwait_us: '500001',
      pool_mode: 'transaction',
      load_balance_hosts: null,
    },
  );
  assert.equal(console!['database'], 'pgbouncer');
  assert.equal(console!['cl_active'], '1', 'the session that asks');
  assert.equal(console!['pool_mode'], 'statement');
});

test('what the fleet says is the sum of what BY PROCESS says', async () => {
  for (const [topic, keyColumns, summed] of [
    ['POOLS', 2, (column: string) => column.startsWith('cl_') || column.startsWith('sv_')],
    ['STATS', 1, (column: string) => column.startsWith('total_')],
    ['STATS_TOTALS', 1, () => true],
    ['DATABASES', 1, (column: string) => column.startsWith('current_')],
    ['USERS', 1, (column: string) => column.startsWith('current_')],
    ['SESSION_LEAKS', 2, () => true],
    ['STALE_PLANS', 1, () => true],
  ] as const) {
    const merged = await show(topic);
    const sums = addedUp(await show(`${topic} BY PROCESS`), keyColumns);
    assert.equal(merged.rows.length, sums.size, topic);
    for (const row of merged.rows) {
      const sum = sums.get(row.slice(0, keyColumns).join('/'))!;
      for (const [i, { name }] of merged.columns.slice(keyColumns).entries()) {
        if (summed(name)) assert.equal(row[i + keyColumns], String(sum[i]), `${topic} ${name}`);
      }
    }
  }
  const totals = new Map((await show('TOTALS')).rows.map(([name, value]) => [name, value]));
  const perProcess = addedUp(await show('TOTALS BY PROCESS'), 1);
  for (const [name, [sum]] of perProcess) {
    if (name.startsWith('total_')) assert.equal(totals.get(name), String(sum), name);
  }
});

test('rates are added over each worker’s own window and cut to an integer once', async () => {
  const rows = records(await show('STATS'));
  const app = rows.find((row) => row['database'] === 'app')!;
  // Growth of the second counter is 1800, 3600 and 5400 in 60, 90 and 7 seconds.
  assert.equal(app['avg_xact_count'], String(Math.floor(1800 / 60 + 3600 / 90 + 5400 / 7)));
  const each = records(await show('STATS BY PROCESS')).filter((row) => row['database'] === 'app');
  assert.deepEqual(
    each.map((row) => row['avg_xact_count']),
    ['30', '40', '771'],
  );
});

test('slow rates of many workers do not vanish', async () => {
  const workers = [0, 1, 2].map((id) =>
    worker(id, {
      stats: [
        {
          database: 'app',
          current: { ...zeroCounters(), xact_count: 20 },
          older: zeroCounters(),
        },
      ],
      statsWindowUs: 60 * SECOND,
    }),
  );
  const session = fleet(workers).open();
  const [app] = records(await ask(session, 'SHOW STATS_AVERAGES'));
  assert.equal(app!['xact_count'], '1', 'three times a third');
  const alone = records(await ask(session, 'SHOW STATS_AVERAGES BY PROCESS'));
  assert.deepEqual(
    alone.filter((row) => row['database'] === 'app').map((row) => row['xact_count']),
    ['0', '0', '0'],
  );
});

test('average times are all time by all events, not an average of averages', async () => {
  const stats = (count: number, time: number): LiveSnapshot['stats'] => [
    {
      database: 'app',
      current: {
        ...zeroCounters(),
        xact_count: count,
        xact_time: time,
        query_count: 2 * count,
        query_time: time,
        server_assignment_count: count,
        wait_time: 10 * time,
      },
      older: zeroCounters(),
    },
  ];
  const workers = [
    worker(0, { stats: stats(1, 900), statsWindowUs: SECOND }),
    worker(1, { stats: stats(99, 9900), statsWindowUs: SECOND }),
    worker(2, { stats: stats(0, 0), statsWindowUs: SECOND }),
  ];
  const [app] = records(await ask(fleet(workers).open(), 'SHOW STATS_AVERAGES'));
  assert.equal(app!['xact_time'], '108');
  assert.equal(app!['query_time'], '54');
  assert.equal(app!['wait_time'], '1080');
  const totals = new Map(
    (await ask(fleet(workers).open(), 'SHOW TOTALS')).rows.map(([name, value]) => [name, value]),
  );
  assert.equal(totals.get('avg_xact_time'), '108');
  assert.equal(totals.get('total_xact_count'), '100');
});

test('a worker without a window has totals and no averages', async () => {
  const stats = [{ database: 'app', current: counters(5.9), older: zeroCounters() }];
  const [app] = records(await ask(fleet([worker(0, { stats })]).open(), 'SHOW STATS'));
  assert.equal(app!['total_server_assignment_count'], '5', 'a fraction is cut off');
  assert.equal(app!['avg_server_assignment_count'], '0');
  assert.equal(app!['avg_xact_time'], '0');
});

test('SHOW TOTALS has 24 rows with PgBouncer’s inner names', async () => {
  const names = (await show('TOTALS')).rows.map(([name]) => name);
  assert.deepEqual(names.slice(0, 12), [
    'total_server_assignment_count',
    'total_xact_count',
    'total_query_count',
    'total_client_bytes',
    'total_server_bytes',
    'total_xact_time',
    'total_query_time',
    'total_wait_time',
    'total_ps_client_parse_count',
    'total_ps_server_parse_count',
    'total_ps_bind_count',
    'total_client_login_count',
  ]);
  assert.deepEqual(
    names.slice(12),
    names.slice(0, 12).map((name) => name!.replace('total_', 'avg_')),
  );
});

test('clients and servers of all workers are listed pool by pool and state by state', async () => {
  const clients = records(await show('CLIENTS'));
  assert.deepEqual(
    clients.map((row) => Number(row['id'])),
    [3, 13, 23, 2, 12, 22, 1, 11, 21, 4, 14, 24],
  );
  const waiting = clients.find((row) => row['id'] === '11')!;
  assert.equal(waiting['wait'], '3');
  assert.equal(waiting['wait_us'], '4');
  assert.equal(waiting['type'], 'C');
  assert.equal(clients.at(-1)!['user'], '(nouser)');
  assert.equal(clients.at(-1)!['database'], '(nodb)');
  assert.match(waiting['connect_time']!, /^19(?:69|70)-\d\d-\d\d \d\d:\d\d:\d\d \S+$/);

  const servers = records(await show('SERVERS'));
  assert.deepEqual(
    servers.map((row) => Number(row['id'])),
    [6, 16, 26, 5, 15, 25],
  );
  assert.deepEqual(
    [servers[0]!['type'], servers[0]!['close_needed'], servers[0]!['link'], servers[0]!['wait']],
    ['S', '1', '0x9', '0'],
  );
});

test('SHOW CLIENTS BY PROCESS keeps the workers apart, in the order of their numbers', async () => {
  const rows = records(await show('CLIENTS BY PROCESS'));
  assert.deepEqual(
    rows.map((row) => [Number(row['process']), Number(row['id'])]),
    [0, 1, 2].flatMap((id) => [3, 2, 1, 4].map((n) => [id, 10 * id + n])),
  );
});

test('databases show what is configured for the fleet and what all workers hold', async () => {
  const [app, other, console] = (await show('DATABASES')).rows;
  assert.deepEqual(app!.join(' '), 'app a,b 5432 app  30 0 0 3600  round-robin 0 18 0 33 1 0');
  assert.deepEqual(other, [
    ...['other', null, '5432', 'real', 'forced', '20', '0', '0', '3600', 'session', null],
    ...['0', '0', '0', '0', '0', '0'],
  ]);
  assert.deepEqual(console, [
    ...['pgbouncer', null, '6432', 'pgbouncer', 'pgbouncer', '2', '0', '0', '3600', 'statement'],
    ...[null, '0', '0', '0', '1', '0', '0'],
  ]);
});

test('an automatic database shows the * entry under its own name', async () => {
  const databases = [
    {
      name: 'auto1',
      current_connections: 1,
      current_client_connections: 1,
      paused: false,
      disabled: false,
    },
  ];
  const names = async (autoDatabase: ReturnType<typeof database> | null) =>
    (
      await ask(
        fleet([worker(0, { databases })], { config: config({ autoDatabase }) }).open(),
        'SHOW DATABASES',
      )
    ).rows.map((row) => row.slice(0, 6).join(' '));
  assert.deepEqual(await names(database({ name: '*', hosts: ['h'], pool_size: 7 })), [
    'auto1 h 5432 auto1  7',
    'pgbouncer  6432 pgbouncer pgbouncer 2',
  ]);
  assert.deepEqual(await names(null), ['pgbouncer  6432 pgbouncer pgbouncer 2']);
});

test('users are listed once, with their own limits or the global ones', async () => {
  assert.deepEqual((await show('USERS')).rows, [
    ['alice', '        3', '', null, '9', '3', '0', '6'],
    ['forced', '', '', null, '0', '0', '0', '0'],
    ['only-0', '', '', null, '0', '1', '0', '0'],
    ['only-1', '', '', null, '0', '1', '0', '0'],
    ['only-2', '', '', null, '0', '1', '0', '0'],
    ['pgbouncer', '', '', null, '0', '0', '0', '0'],
  ]);
});

test('SHOW LISTS adds up what each worker has and counts once what they share', async () => {
  assert.deepEqual((await show('LISTS')).rows, [
    ['databases', '3'],
    ['users', '6'],
    ['peers', '2'],
    ['pools', '3'],
    ['peer_pools', '2'],
    ['free_clients', '3'],
    ['used_clients', '63'],
    ['login_clients', '3'],
    ['free_servers', '6'],
    ['used_servers', '15'],
    ['dns_names', '4'],
    ['dns_zones', '1'],
    ['dns_queries', '3'],
    ['dns_pending', '0'],
  ]);
});

test('names and zones are listed once, as the worker with the newest answer knows them', async () => {
  assert.deepEqual((await show('DNS_HOSTS')).rows, [
    ['a0', '0', ''],
    ['a1', '0', ''],
    ['a2', '0', ''],
    ['b.test', '5', '127.0.0.1:0,[::2]:0'],
  ]);
  assert.deepEqual((await show('DNS_ZONES')).rows, [['test', '2', '1']]);
});

test('exactly one state is in force, and paused wins over active', async () => {
  for (const [states, expected] of [
    [['active', 'active'], 'active'],
    [['active', 'paused'], 'paused'],
    [['suspended', 'paused'], 'suspended'],
  ] as const) {
    const workers = states.map((state, id) => worker(id, { state }));
    const { rows } = await ask(fleet(workers).open('stats'), 'SHOW STATE');
    assert.deepEqual(
      rows,
      ['active', 'paused', 'suspended'].map((name) => [name, name === expected ? 'yes' : 'no']),
    );
  }
});

test('SHOW VERSION begins like PgBouncer’s and SHOW PEERS is sorted by id', async () => {
  assert.deepEqual((await show('VERSION')).rows, [['PgBouncer 1.25.2 (pgfleet 0.1.0)']]);
  assert.deepEqual((await show('PEERS')).rows, [
    ['4', '/sock', '7000', '2'],
    ['9', 'h9', '6432', '20'],
  ]);
});

test('workers that do not answer, or not sensibly, are named beside what is there', async () => {
  const strange = { ...worker(5), config: [], pools: [{ database: 1 }] };
  const impostor = { ...worker(0), config: [] };
  const others = new Map<number, { value: unknown } | { error: string }>([
    [6, { value: impostor }],
    [5, { value: strange }],
    [3, { error: 'worker 3 did not answer in 1000 ms' }],
    [4, { value: null }],
  ]);
  const session = fleet(WORKERS.slice(0, 2), { others }).open('stats');
  const table = await ask(session, 'SHOW POOLS');
  assert.equal(records(table)[0]!['cl_active'], '21');
  assert.deepEqual(table.notices, [
    'no answer from workers 3, 4, 5, 6, whose part is missing|' +
      'worker 6 sent a snapshot that cannot be read\n' +
      'worker 5 sent a snapshot that cannot be read\n' +
      'worker 3 did not answer in 1000 ms\n' +
      'worker 4 sent a snapshot that cannot be read',
  ]);
  assert.equal(table.tag, 'SHOW');
});

test('other workers are asked only for what the answer needs', async () => {
  const console = fleet(WORKERS);
  const session = console.open();
  for (const topic of ['CONFIG', 'VERSION', 'PEERS', 'HELP']) await ask(session, `SHOW ${topic}`);
  assert.deepEqual(console.requests, []);
  await ask(session, 'SHOW POOLS');
  assert.deepEqual(console.requests, [{ kind: 'snapshot', parts: ['pools'] }]);
  const answer = console.factory.answer({ kind: 'snapshot', parts: ['pools'] });
  assert.equal(answer.pools.length, 2);
  assert.deepEqual([answer.clients, answer.stats, answer.config], [[], [], []]);
  for (const request of [null, {}, { kind: 'snapshot' }, { kind: 'snapshot', parts: ['x'] }]) {
    assert.throws(() => console.factory.answer(request));
  }
});
