import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bytes, fit, short, time } from '../../../src/cli/top/cells.ts';
import { type Answers, ratesBetween, readingOf } from '../../../src/cli/top/readings.ts';
import { draw, type Size, type View } from '../../../src/cli/top/screen.ts';

/** What the console of a fleet of two says, `turn` seconds after its start. */
function answers(turn: number, pools = 2): Answers {
  const poolRow = (n: number) => ({
    database: `db${n}`,
    user: 'app',
    cl_active: `${n}`,
    cl_waiting: n === 1 ? '5' : '0',
    maxwait: n === 1 ? '1' : '0',
    maxwait_us: '500000',
    sv_active: '3',
    sv_idle: '1',
    sv_used: '1',
    sv_tested: '0',
    sv_login: '1',
    sv_active_cancel: '0',
    sv_being_canceled: '0',
    pool_mode: 'transaction',
  });
  const statsRow = (n: number) => ({
    database: `db${n}`,
    xact_count: `${turn * 100}`,
    query_count: `${turn * 200}`,
    bytes_received: `${turn * 1024}`,
    bytes_sent: `${turn * 2048}`,
    query_time: `${turn * 200 * 1500}`,
    wait_time: `${turn * 100 * 90}`,
  });
  const numbers = Array.from({ length: pools }, (_, n) => n);
  return {
    STATE: [
      { key: 'active', value: 'yes' },
      { key: 'paused', value: 'no' },
    ],
    POOLS: [...numbers.map(poolRow), { ...poolRow(0), database: 'pgbouncer' }],
    STATS_TOTALS: [...numbers.map(statsRow), { ...statsRow(0), database: 'pgbouncer' }],
    FLEET: ['0', '1'].map((process) => ({
      process,
      pid: `10${process}`,
      state: 'active',
      clients: '7',
      servers: '3',
      cpu_user_us: `${turn * 400_000}`,
      cpu_system_us: `${turn * 100_000}`,
      memory: `${50 * 1024 * 1024}`,
      event_loop_delay_us: '1200',
    })),
  };
}

function view(pools = 2, more: Partial<View> = {}): View {
  const before = readingOf(answers(1, pools), 1000);
  const reading = readingOf(answers(3, pools), 3000);
  return {
    place: '127.0.0.1:6432',
    version: 'pgfleet 0.1.0',
    now: '12:00:00',
    interval: 2,
    sort: 'waiting',
    scroll: 0,
    isFrozen: false,
    showsHelp: false,
    trouble: null,
    reading,
    rates: ratesBetween(before, reading),
    ...more,
  };
}

const texts = (shown: View, size: Size): string[] => draw(shown, size).map(({ text }) => text);

test('80 columns hold everything that matters', () => {
  assert.deepEqual(texts(view(), { columns: 80, rows: 24 }), [
    'pgfleet 0.1.0  12:00:00  every 2s  127.0.0.1:6432',
    'active  clients 6, waiting 5  servers 12, active 6',
    'tx/s 200  queries/s 400  query 1.5ms  wait 90us  in 2.0K/s  out 4.0K/s',
    '',
    'database        user           mode clients waiting longest active  idle db tx/s',
    'db1             app              tx       6       5    1.5s      3     1     100',
    'db0             app              tx       0       0   500ms      3     1     100',
    '',
    'worker     pid clients servers  cpu % memory loop delay  state',
    '     0     100       7       3   50.0  50.0M      1.2ms  active',
    '     1     101       7       3   50.0  50.0M      1.2ms  active',
  ]);
});

test('no screen gets more lines or wider ones than it has', () => {
  for (const [columns, rows] of [
    [20, 1],
    [20, 5],
    [40, 10],
    [60, 24],
    [80, 24],
    [133, 40],
    [300, 100],
  ] as const) {
    for (const pools of [0, 1, 3, 200]) {
      const lines = texts(view(pools, { showsHelp: true, trouble: 'x'.repeat(500) }), {
        columns,
        rows,
      });
      assert.ok(lines.length <= rows, `${columns}×${rows}: ${lines.length} lines`);
      for (const line of lines) assert.ok(line.length <= columns, `${columns}×${rows}: ${line}`);
    }
  }
  assert.deepEqual(texts(view(), { columns: 10, rows: 24 }), []);
});

test('pools that do not fit are scrolled to, never past the last', () => {
  const size = { columns: 80, rows: 24 };
  const names = (shown: View): string[] =>
    texts(shown, size)
      .filter((line) => /^db\d/.test(line))
      .map((line) => line.split(' ')[0]!);
  const sort = 'name';
  const first = names(view(50, { sort }));
  assert.equal(first[0], 'db0');
  assert.ok(first.length >= 8 && first.length < 50);
  assert.notEqual(names(view(50, { sort, scroll: 3 }))[0], 'db0');
  assert.equal(names(view(50, { sort, scroll: 1000 })).length, first.length);
  assert.ok(texts(view(50), size).some((line) => /^1–\d+ of 50 pools$/.test(line)));
});

test('the pool with most of what is sorted by comes first', () => {
  const firstOf = (sort: View['sort']): string =>
    texts(view(4, { sort }), { columns: 80, rows: 40 })
      .find((line) => line.startsWith('db'))!
      .slice(0, 3);
  assert.equal(firstOf('waiting'), 'db1');
  assert.equal(firstOf('clients'), 'db1');
  assert.equal(firstOf('name'), 'db0');
});

test('a console without SHOW FLEET has no panel of processes', () => {
  const reading = readingOf({ ...answers(1), FLEET: [] }, 0);
  const lines = texts(view(2, { reading, rates: null }), { columns: 80, rows: 24 });
  assert.ok(!lines.some((line) => line.startsWith('worker')));
});

test('names cannot move the cursor or turn the line', () => {
  assert.equal(fit('a\x1b[2Jb\nc\u202ed', 12), 'a?[2Jb?c?d  ');
  assert.equal(fit('表表表', 5), '表表…');
  assert.equal(fit('表表', 5), '表表 ');
  assert.equal(fit('e\u0301', 3), 'e\u0301  ');
  assert.equal(fit('long name', 5), 'long…');
  assert.equal(fit('7', 3, true), '  7');
});

test('numbers are short, and say their unit', () => {
  assert.deepEqual([0, 950, 12_345, 999_960, 4_500_000].map(short), [
    '0',
    '950',
    '12.3k',
    '1.0M',
    '4.5M',
  ]);
  assert.deepEqual([512, 1536, 31_457_280].map(bytes), ['512B', '1.5K', '30.0M']);
  assert.deepEqual([90, 1500, 999_600, 12_340_000].map(time), ['90us', '1.5ms', '1.0s', '12.3s']);
});

test('after a restart of the fleet there are no rates', () => {
  const [late, early] = [readingOf(answers(9), 1000), readingOf(answers(1), 3000)];
  assert.equal(ratesBetween(late, early), null);
  assert.equal(ratesBetween(early, early), null);
});
