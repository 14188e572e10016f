import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  ConfigIndex,
  effectiveMaxDbConnections,
  effectiveMaxUserConnections,
  effectiveMinPoolSize,
  effectivePoolSize,
  effectiveReservePoolSize,
  type Limit,
} from '../../../src/config/effective.ts';
import { loadConfig } from '../../../src/config/load.ts';
import {
  poolShares,
  share,
  splitLimit,
  splitOffset,
  stableHash,
} from '../../../src/config/split.ts';

function indexOf(text: string): ConfigIndex {
  const { config, problems } = loadConfig('f', { readFile: () => text });
  assert.deepEqual(problems, [], text);
  return new ConfigIndex(config!);
}

const parts = (total: number, n: number, offset = 0) =>
  Array.from({ length: n }, (_, index) => share(total, n, index, offset));
const sum = (numbers: readonly number[]) => numbers.reduce((a, b) => a + b, 0);
const slots = (limit: Limit) =>
  limit.kind === 'unlimited' ? Number.POSITIVE_INFINITY : limit.value;

test('parts differ by one at most and start at the offset', () => {
  assert.deepEqual(parts(10, 4), [3, 3, 2, 2]);
  assert.deepEqual(parts(10, 4, 3), [3, 2, 2, 3]);
  assert.deepEqual(parts(3, 4), [1, 1, 1, 0]);
  assert.deepEqual(parts(2, 4), [1, 1, 0, 0]);
  assert.deepEqual(parts(0, 4), [0, 0, 0, 0]);
  assert.deepEqual(parts(5, 1), [5]);
});

test('parts add up to the total for every fleet size and offset', () => {
  for (let n = 1; n <= 20; n++) {
    for (let total = 0; total <= 45; total++) {
      for (let offset = 0; offset < n; offset++) {
        const all = parts(total, n, offset);
        assert.equal(sum(all), total);
        assert.ok(Math.max(...all) - Math.min(...all) <= 1);
      }
    }
  }
});

test('a part of 0 stays a limit of none, and unlimited stays unlimited', () => {
  assert.deepEqual(splitLimit({ kind: 'max', value: 1 }, 4, 1), { kind: 'max', value: 0 });
  assert.deepEqual(splitLimit({ kind: 'max', value: 0 }, 4, 0), { kind: 'max', value: 0 });
  assert.deepEqual(splitLimit({ kind: 'unlimited' }, 4, 1), { kind: 'unlimited' });
});

test('the hash is FNV-1a, so that every version and worker finds the same one', () => {
  assert.equal(stableHash(''), 0x811c9dc5);
  assert.equal(stableHash('a'), 0xe40c292c);
  assert.equal(stableHash('foobar'), 0xbf9cf968);
  assert.equal(splitOffset('foobar', 16), 8);
});

test('offsets of many databases spread over the fleet', () => {
  const hits = [0, 0, 0, 0];
  for (let i = 0; i < 400; i++) hits[splitOffset(`db${i}`, 4)]!++;
  for (const hit of hits) assert.ok(hit > 60, String(hits));
});

test('pool sizes 1 and 20 on four workers', () => {
  const index = indexOf('[pgbouncer]\n[databases]\nsmall = pool_size=1\nlarge = pool_size=20\n');
  const small = poolShares(index, index.database('small')!, 'u', 4);
  assert.equal(small.holders.length, 1);
  assert.deepEqual(
    small.perWorker.map((part) => slots(part.pool)),
    [0, 1, 2, 3].map((worker) => (worker === small.holders[0] ? 1 : 0)),
  );
  const large = poolShares(index, index.database('large')!, 'u', 4);
  assert.equal(large.holders.length, 4);
  assert.ok(large.perWorker.every((part) => slots(part.pool) === 5));
  assert.ok(
    large.perWorker.every((part) => part.db.kind === 'unlimited' && part.user.kind === 'unlimited'),
  );
});

test('an unlimited pool is open on every worker', () => {
  const index = indexOf(
    '[pgbouncer]\ndefault_pool_size = 0\nmin_pool_size = 5\n[databases]\nd =\n',
  );
  const { perWorker, holders } = poolShares(index, index.database('d')!, 'u', 4);
  assert.equal(holders.length, 4);
  assert.ok(perWorker.every((part) => part.pool.kind === 'unlimited'));
  assert.equal(sum(perWorker.map((part) => part.min)), 5);
});

test('small limits that meet in a pool leave worker 0 with a slot of each', () => {
  const index = indexOf(
    '[pgbouncer]\nmax_user_connections = 1\n[databases]\nd = pool_size=2 max_db_connections=3\n',
  );
  const { perWorker, holders } = poolShares(index, index.database('d')!, 'someone', 8);
  assert.deepEqual(holders, [0]);
  assert.deepEqual(
    perWorker.map((part) => [slots(part.pool), slots(part.db), slots(part.user)]),
    [
      [1, 1, 1],
      [1, 1, 0],
      [0, 1, 0],
      [0, 0, 0],
      [0, 0, 0],
      [0, 0, 0],
      [0, 0, 0],
      [0, 0, 0],
    ],
  );
});

test('the reserve goes to holders only, most to those with fewest slots', () => {
  const index = indexOf('[pgbouncer]\nreserve_pool_size = 2\n[databases]\nd = pool_size=6\n');
  const { perWorker } = poolShares(index, index.database('d')!, 'u', 4);
  assert.ok(perWorker.every((part) => slots(part.pool) + part.reserve === 2));
  const one = indexOf('[pgbouncer]\nreserve_pool_size = 3\n[databases]\nd = pool_size=1\n');
  const small = poolShares(one, one.database('d')!, 'u', 4);
  assert.equal(small.perWorker[small.holders[0]!]?.reserve, 3);
});

/** Park–Miller; the seed is printed when an expectation fails. */
function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 48271) % 2147483647;
    return state % below;
  };
}

function randomConfig(random: (below: number) => number): string {
  const sometimes = (text: string) => (random(2) === 0 ? text : '');
  const number = () => (random(3) === 0 ? random(60) : random(9));
  const lines = [
    '[pgbouncer]',
    sometimes(`default_pool_size = ${number()}`),
    sometimes(`max_db_connections = ${number()}`),
    sometimes(`max_user_connections = ${number()}`),
    sometimes(`min_pool_size = ${number()}`),
    sometimes(`reserve_pool_size = ${number()}`),
    '[databases]',
  ];
  for (let db = 0; db < 3; db++) {
    const own = [sometimes(`pool_size=${number()}`), sometimes(`max_db_connections=${number()}`)];
    lines.push(`d${db}_${random(1000)} = ${own.join(' ')}`);
  }
  lines.push('[users]');
  for (let user = 0; user < 3; user++) {
    const own = [sometimes(`pool_size=${number()}`), sometimes(`max_user_connections=${number()}`)];
    lines.push(`u${user}_${random(1000)} = ${own.join(' ')}`);
  }
  return lines.join('\n');
}

test('for any configuration the parts add up, pools agree on shared limits and somebody holds a slot', () => {
  for (let seed = 1; seed <= 1500; seed++) {
    const random = randomFrom(seed);
    const text = randomConfig(random);
    const index = indexOf(text);
    const n = 1 + random(random(4) === 0 ? 64 : 8);
    const label = `seed ${seed}, n ${n}\n${text}`;
    const byDb = new Map<string, Limit[]>();
    const byUser = new Map<string, Limit[]>();
    for (const db of index.config.databases) {
      for (const { name: user } of index.config.users) {
        const { perWorker, holders } = poolShares(index, db, user, n);
        assert.equal(perWorker.length, n, label);
        const expected = [
          [effectivePoolSize(index, db, user), perWorker.map((part) => part.pool)],
          [effectiveMaxDbConnections(index, db), perWorker.map((part) => part.db)],
          [effectiveMaxUserConnections(index, user), perWorker.map((part) => part.user)],
        ] as const;
        for (const [limit, split] of expected) {
          assert.ok(
            split.every((part) => part.kind === limit.kind),
            label,
          );
          if (limit.kind === 'max') assert.equal(sum(split.map(slots)), limit.value, label);
        }
        const dbParts = perWorker.map((part) => part.db);
        const userParts = perWorker.map((part) => part.user);
        assert.deepEqual(byDb.get(db.name) ?? dbParts, dbParts, label);
        assert.deepEqual(byUser.get(user) ?? userParts, userParts, label);
        byDb.set(db.name, dbParts);
        byUser.set(user, userParts);

        const room = perWorker.map((part) =>
          Math.min(slots(part.pool), slots(part.db), slots(part.user)),
        );
        assert.ok(holders.length > 0, label);
        assert.deepEqual(
          [...holders].sort((a, b) => a - b),
          room.flatMap((own, worker) => (own > 0 ? [worker] : [])),
          label,
        );
        for (let i = 1; i < holders.length; i++) {
          assert.ok(room[holders[i - 1]!]! >= room[holders[i]!]!, label);
        }
        const min = perWorker.map((part) => part.min);
        assert.ok(
          min.every((own, worker) => own <= room[worker]!),
          label,
        );
        assert.equal(sum(min), Math.min(effectiveMinPoolSize(index, db, user), sum(room)), label);
        const reserve = perWorker.map((part) => part.reserve);
        assert.equal(sum(reserve), effectiveReservePoolSize(index, db, user), label);
        assert.ok(
          reserve.every((own, worker) => own === 0 || room[worker]! > 0),
          label,
        );
      }
    }
  }
});
