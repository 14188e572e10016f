import assert from 'node:assert/strict';
import { test } from 'node:test';
import type {
  DescriptorRow,
  LiveSnapshot,
  ProcessRow,
  SocketRow,
} from '../../../src/admin/snapshot.ts';
import { ask, client, fleet, records, worker } from './support.ts';

const socket = (fields: Partial<SocketRow>): SocketRow => {
  const { state: _state, ...link } = client({});
  return {
    ...link,
    type: 'C',
    state: 'cl_active',
    unreadBytes: 0,
    messageLeft: 0,
    unsentBytes: 0,
    ...fields,
  };
};

const descriptor = (fields: Partial<DescriptorRow>): DescriptorRow => ({
  fd: 9,
  task: 'client',
  place: 2,
  user: 'alice',
  database: 'app',
  addr: '10.0.0.9',
  port: 50_000,
  cancel: '0',
  link: 0,
  client_encoding: null,
  std_strings: null,
  datestyle: null,
  timezone: null,
  ...fields,
});

const running: ProcessRow = {
  isStopping: false,
  generation: 3,
  uptimeMs: 61_999,
  clients: 7,
  servers: 4,
  slots: 5,
  cpuUserUs: 1_500_000,
  cpuSystemUs: 250_000,
  rssBytes: 5_000_000_000,
  heapBytes: 8192,
  heapUsedBytes: 4097,
  externalBytes: 4096,
  loopDelayUs: 1234,
};

const pair = (first: Partial<LiveSnapshot>, second: Partial<LiveSnapshot>) =>
  fleet([worker(0, first), worker(1, second)]).open();

test('sockets are listed pool by pool, clients before servers, and logins last', async () => {
  const session = pair(
    {
      sockets: [
        socket({ id: 1, state: 'cl_login', database: null, user: null }),
        socket({ id: 2, state: 'cl_waiting' }),
        socket({ id: 3, type: 'S', state: 'sv_idle' }),
      ],
    },
    {
      sockets: [
        socket({ id: 4 }),
        socket({ id: 5, type: 'S', state: 'sv_active' }),
        socket({ id: 6, database: 'aaa' }),
      ],
    },
  );
  const rows = records(await ask(session, 'SHOW SOCKETS'));
  assert.deepEqual(
    rows.map((row) => `${row['id']} ${row['type']} ${row['state']} ${row['database']}`),
    [
      '6 C cl_active aaa',
      '4 C cl_active app',
      '2 C cl_waiting app',
      '5 S sv_active app',
      '3 S sv_idle app',
      '1 C cl_login (nodb)',
    ],
  );
});

test('active sockets are those in which bytes wait or a message is half through', async () => {
  const session = pair(
    { sockets: [socket({ id: 1, unreadBytes: 5 }), socket({ id: 2 })] },
    { sockets: [socket({ id: 3, messageLeft: 6 }), socket({ id: 4, unsentBytes: 7 })] },
  );
  const { rows } = await ask(session, 'SHOW ACTIVE_SOCKETS');
  assert.deepEqual(
    rows.map((row) => row.slice(20)),
    [
      ['1', '5', '0', '0', '0', '0', '5', '0'],
      ['3', '0', '0', '6', '0', '0', '0', '0'],
      ['4', '0', '0', '0', '0', '0', '0', '7'],
    ],
  );
});

test('descriptors tell no password and no key, and stats users are not told of them at all', async () => {
  const workers = [
    worker(0, {
      descriptors: [
        descriptor({ fd: 3, task: 'pooler', place: 0, user: null, database: null }),
        descriptor({ fd: 21, task: 'server', place: 4, link: 22, cancel: '18446744073709551615' }),
        descriptor({ fd: 22, link: 21, client_encoding: 'UTF8' }),
      ],
    }),
    worker(1, {
      descriptors: [
        descriptor({ fd: 3, task: 'pooler', place: 0, user: null, database: null }),
        descriptor({ fd: 30, place: 1 }),
        descriptor({ fd: 31, database: 'aaa', place: 3 }),
      ],
    }),
  ];
  const rows = records(await ask(fleet(workers).open(), 'SHOW FDS'));
  assert.deepEqual(
    rows.map((row) => row['fd']),
    ['3', '3', '30', '31', '22', '21'],
  );
  assert.equal(rows[5]!['cancel'], '18446744073709551615');
  for (const row of rows) {
    for (const secret of ['password', 'scram_client_key', 'scram_server_key']) {
      assert.equal(row[secret], null);
    }
  }
  for (const sql of ['SHOW FDS', 'SHOW FDS BY PROCESS', 'SHOW VERSION; SHOW FDS']) {
    const { error } = await ask(fleet(workers).open('stats'), sql);
    assert.equal(error, 'ERROR 08P01 admin access needed');
  }
});

test('memory is that of all processes, and its parts add up to it', async () => {
  const session = pair({ running: { ...running, rssBytes: 20_480 } }, { running: null });
  const { rows } = await ask(session, 'SHOW MEM');
  assert.deepEqual(rows, [
    ['heap', '4096', '2', '0', '8192'],
    ['buffers', '4096', '1', '0', '4096'],
    ['other', '4096', '2', '0', '8192'],
  ]);
});

test('cancel requests for a peer are summed over the workers', async () => {
  const row = (peer_id: number, sent: number, waiting: number) => ({
    peer_id,
    cl_active_cancel_req: sent,
    cl_waiting_cancel_req: waiting,
    sv_active_cancel: sent,
    sv_login: 0,
  });
  const session = pair({ peerPools: [row(9, 1, 2)] }, { peerPools: [row(9, 3, 4), row(2, 0, 0)] });
  const { rows } = await ask(session, 'SHOW PEER_POOLS');
  assert.deepEqual(rows, [
    ['2', '0', '0', '0', '0'],
    ['9', '4', '6', '4', '0'],
  ]);
});

test('SHOW FLEET has a row for each process, and one for a worker that does not answer', async () => {
  const session = fleet(
    [
      worker(0, { running, state: 'paused' }),
      worker(1, { running: { ...running, isStopping: true } }),
      worker(2),
    ],
    { others: new Map([[2, { error: 'worker 2 is gone' }]]) },
  ).open('stats');
  const { rows, notices } = await ask(session, 'SHOW FLEET');
  const numbers = ['3', '61', '7', '4', '5', '1500000', '250000', '5000000000', '1234'];
  assert.deepEqual(rows, [
    ['0', '4000', 'paused', ...numbers],
    ['1', '4001', 'stopping', ...numbers],
    ['2', null, 'silent', ...numbers.map(() => null)],
  ]);
  assert.equal(notices.length, 1);
});
