import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { type BackendWatch, type Peaks, watchBackends } from '../support/backend-watch.ts';
import { query, startup, typesOf } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { requirePackage } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { WireClient, WireError } from '../support/wire-client.ts';

/** Who comes to which pool; every pool has users of its own, by which PostgreSQL tells them apart. */
interface Who {
  readonly database: string;
  readonly user: string;
}

const DATABASES = {
  one: 'pool_size=1',
  twenty: 'pool_size=20',
  narrow: 'pool_size=2 max_db_connections=1',
  capped: 'pool_size=4 max_db_connections=5',
  left: '',
  right: '',
  reserved: 'pool_size=2 reserve_pool_size=2',
  minimum: 'pool_size=6 min_pool_size=3 user=minimum',
  few: 'max_db_client_connections=5',
} as const;

const USERS = {
  lonely: 'max_user_connections=1',
  trio: 'max_user_connections=3',
  guest: 'max_user_client_connections=3',
} as const;

/** Server connections that are written for each user, or for several users together. */
const WRITTEN: Readonly<Record<string, number>> = {
  one: 1,
  twenty: 20,
  narrow: 1,
  capped: 5,
  lonely: 1,
  trio: 3,
  reserved: 4,
  minimum: 6,
};

const GROUPS = {
  narrow: ['narrow_a', 'narrow_b'],
  capped: ['capped_a', 'capped_b'],
} as const;

const ROLES = [
  'one',
  'twenty',
  ...Object.values(GROUPS).flat(),
  'lonely',
  'trio',
  'reserved',
  'guest',
];

const one: Who = { database: 'one', user: 'one' };
const twenty: Who = { database: 'twenty', user: 'twenty' };
const narrow: readonly Who[] = GROUPS.narrow.map((user) => ({ database: 'narrow', user }));
const capped: readonly Who[] = GROUPS.capped.map((user) => ({ database: 'capped', user }));
const lonely: readonly Who[] = ['left', 'right'].map((database) => ({ database, user: 'lonely' }));
const trio: readonly Who[] = ['left', 'right'].map((database) => ({ database, user: 'trio' }));
const reserved: Who = { database: 'reserved', user: 'reserved' };

for (const [version, size] of [
  [15, 2],
  [18, 4],
] as const) {
  test(`a fleet of ${size} keeps the limits on server connections of PostgreSQL ${version}`, async (t) => {
    if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const { postgres, fleet } = await startLimited(t, version, size);

    await t.test('min_pool_size of a forced user is there before any client', async () => {
      await until('three servers', async () => (await countOf(postgres, 'minimum')) === 3);
      await postgres.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'minimum'",
      );
      await until('three new servers', async () => (await countOf(postgres, 'minimum')) === 3);
    });

    await t.test('a pool of 1 beside one of 20: all clients of both are served', async () => {
      const peaks = await watched(postgres, (watch) =>
        Promise.all([
          crowd(fleet, watch, 'one', [one], 20),
          crowd(fleet, watch, 'twenty', [twenty], 80),
        ]),
      );
      assert.equal(peaks.byUser.get('one'), 1);
      assert.equal(peaks.byUser.get('twenty'), 20);
    });

    await t.test('one connection for the database, two users and pools of 2', async () => {
      const peaks = await watched(postgres, (watch) => crowd(fleet, watch, 'narrow', narrow, 20));
      assert.equal(peaks.byGroup.get('narrow'), 1);
    });

    await t.test('five connections for the database, two users and pools of 4', async () => {
      const peaks = await watched(postgres, (watch) => crowd(fleet, watch, 'capped', capped, 60));
      assert.equal(peaks.byGroup.get('capped'), 5);
    });

    await t.test('one connection and three connections for a user of two databases', async () => {
      const peaks = await watched(postgres, (watch) =>
        Promise.all([
          crowd(fleet, watch, 'lonely', lonely, 20),
          crowd(fleet, watch, 'trio', trio, 40),
        ]),
      );
      assert.equal(peaks.byUser.get('lonely'), 1);
      assert.equal(peaks.byUser.get('trio'), 3);
    });

    await t.test('the reserve opens for clients that have waited long enough', async () => {
      const peaks = await watched(postgres, async (watch) => {
        const early = watched(postgres, () => sleep(500));
        const served = crowd(fleet, watch, 'reserved', [reserved], 24);
        assert.ok(((await early).byUser.get('reserved') ?? 0) <= 2);
        await served;
      });
      assert.equal(peaks.byUser.get('reserved'), 4);
      assert.match(fleet.log(), / WARNING .*taking connection from reserve_pool/);
    });

    await t.test(
      'no limit is exceeded while clients leave in the middle of everything',
      async () => {
        const pools = [one, twenty, ...narrow, ...capped, ...lonely, ...trio, reserved];
        const end = performance.now() + 3_000;
        const peaks = await watched(postgres, (watch) => {
          // A busy machine takes longer for so many looks.
          const isOver = (): boolean =>
            performance.now() >= end && (watch.looks() > 30 || performance.now() >= end + 30_000);
          return Promise.all(
            pools.flatMap((who) => [0, 1, 2, 3].map((turn) => churn(fleet, who, turn, isOver))),
          );
        });
        assertWithin(peaks);
        assert.ok(peaks.looks > 30, `PostgreSQL was asked ${peaks.looks} times`);
      },
    );

    await t.test('no slot is lost by clients that left', async () => {
      const peaks = await watched(postgres, (watch) =>
        Promise.all([
          crowd(fleet, watch, 'one', [one], 4),
          crowd(fleet, watch, 'twenty', [twenty], 80),
          crowd(fleet, watch, 'narrow', narrow, 8),
          crowd(fleet, watch, 'capped', capped, 60),
          crowd(fleet, watch, 'lonely', lonely, 8),
          crowd(fleet, watch, 'trio', trio, 40),
        ]),
      );
      assertWithin(peaks);
    });

    await t.test('max_db_client_connections admits exactly what is written', async () => {
      const few: Who = { database: 'few', user: 'one' };
      const { clients, refusals } = await stormed(fleet, [few], 9);
      assert.deepEqual(new Set(refusals), new Set([tooMany('max_db_client_connections')]));
      assert.equal(clients.length, 5);
      await clients.pop()!.end();
      clients.push(await admittedSoon(fleet, few));
      await assertRefused(fleet, few, tooMany('max_db_client_connections'));
      await answersAll(clients);
      await endAll(clients);
    });

    await t.test('max_user_client_connections counts the clients of all databases', async () => {
      const guest: readonly Who[] = ['left', 'right'].map((database) => ({
        database,
        user: 'guest',
      }));
      const { clients, refusals } = await stormed(fleet, guest, 9);
      assert.deepEqual(new Set(refusals), new Set([tooMany('max_user_client_connections')]));
      assert.equal(clients.length, 3);
      await answersAll(clients);
      await endAll(clients);
    });
  });
}

async function startLimited(
  t: TestContext,
  version: 15 | 18,
  size: number,
): Promise<{ postgres: TestPostgres; fleet: TestPgfleet }> {
  const postgres = await startPostgres({ version });
  t.after(() => postgres.dispose());
  const roles = [...ROLES, 'minimum'];
  await postgres.query(
    roles.map((role) => `CREATE ROLE ${role} LOGIN PASSWORD '${role}'`).join(';'),
  );
  const lines = Object.entries(DATABASES).map(([name, line]) => [name, `dbname=app ${line}`]);
  const fleet = await startPgfleet({
    postgres,
    size,
    databases: Object.fromEntries(lines),
    users: USERS,
    authFile: Object.fromEntries(roles.map((role) => [role, role])),
    settings: { max_client_conn: 1000, reserve_pool_timeout: 1 },
  });
  t.after(() => fleet.stop());
  return { postgres, fleet };
}

async function countOf(postgres: TestPostgres, user: string): Promise<number> {
  return (await postgres.backends({ user })).length;
}

/** The most connections that PostgreSQL sees while `action` runs. */
async function watched(
  postgres: TestPostgres,
  action: (watch: BackendWatch) => Promise<unknown>,
): Promise<Peaks> {
  const watch = await watchBackends(postgres, GROUPS);
  const running = action(watch);
  await running.catch(() => undefined);
  const peaks = await watch.stop();
  await running;
  return peaks;
}

function assertWithin({ byUser, byGroup }: Peaks): void {
  for (const [name, written] of Object.entries(WRITTEN)) {
    const count = byGroup.get(name) ?? byUser.get(name) ?? 0;
    assert.ok(
      count <= written,
      `${count} connections at once of ${name}, which may have ${written}`,
    );
  }
}

/**
 * `count` clients at once, spread over the pools. They keep their transactions open until all the
 * connections that are written for `name` are open; then every one of them is served.
 */
async function crowd(
  fleet: TestPgfleet,
  watch: BackendWatch,
  name: string,
  pools: readonly Who[],
  count: number,
): Promise<void> {
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const visit = async (who: Who): Promise<void> => {
    const client = await WireClient.login(fleet, who);
    assert.equal(typesOf(await client.query('BEGIN', 20_000)), 'C Z:T');
    await released;
    assert.equal(typesOf(await client.query('COMMIT')), 'C Z:I');
    assert.equal(typesOf(await client.query('SELECT pg_sleep(0.01)', 20_000)), 'T D C Z:I');
    await client.end();
  };
  const fill = async (): Promise<void> => {
    const isFull = () => watch.now(name) === WRITTEN[name];
    await until(`${name} has ${WRITTEN[name]} connections`, isFull).finally(release);
  };
  const visits = Array.from({ length: count }, (_, i) => visit(pools[i % pools.length]!));
  await Promise.all([...visits, fill()]);
}

/** Comes and goes until `end`, each time in another way. */
async function churn(
  fleet: TestPgfleet,
  who: Who,
  turn: number,
  isOver: () => boolean,
): Promise<void> {
  for (let i = turn; !isOver(); i++) {
    const client = await WireClient.login(fleet, who);
    switch (i % 6) {
      case 0:
        await client.query('SELECT 1');
        await client.end();
        break;
      case 1: // while its query runs, which PostgreSQL brings to its end
        client.send(query('SELECT pg_sleep(0.05)'));
        await sleep(i % 20);
        client.destroy();
        break;
      case 2: // in a transaction
        await client.query('BEGIN; SELECT 1');
        client.reset();
        break;
      case 3: // in the middle of a message
        client.send(query('SELECT 1').subarray(0, 9));
        await sleep(1);
        client.destroy();
        break;
      case 4: // before the answer
        client.send(query('SELECT 1'));
        await client.end();
        break;
      default: // between two queries, with one in flight
        await client.query('SELECT 1');
        client.send(query('SELECT pg_sleep(0.01)'), query('SELECT pg_sleep(0.01)'));
        await client.next();
        client.reset();
    }
  }
}

for (const size of [2, 4]) {
  test(`a fleet of ${size} admits exactly as many clients as are written`, async (t) => {
    const postgres = await startPostgres();
    t.after(() => postgres.dispose());
    const fleet = await startPgfleet({
      postgres,
      size,
      settings: { max_client_conn: 10 },
    });
    t.after(() => fleet.stop());
    const app: Who = { database: 'app', user: 'app' };

    await t.test('max_client_conn, by one client after the other', async () => {
      const clients = await admitted(fleet, app, 10);
      await assertRefused(fleet, app, 'no more connections allowed (max_client_conn)');
      await answersAll(clients);
      await clients.pop()!.end();
      clients.push(await admittedSoon(fleet, app));
      await assertRefused(fleet, app, 'no more connections allowed (max_client_conn)');
      await endAll(clients);
    });

    await t.test('max_client_conn, by all clients at once', async () => {
      await noClients(fleet);
      const { clients, refusals } = await stormed(fleet, [app], 40);
      assert.equal(clients.length, 10);
      assert.deepEqual(
        new Set(refusals),
        new Set(['no more connections allowed (max_client_conn)']),
      );
      assert.equal((await fleet.console('SHOW VERSION')).length, 1, 'the console is exempt');
      await answersAll(clients);
      await endAll(clients);
    });

    await t.test(
      'max_client_conn, by clients that log in long after they have connected',
      async () => {
        await noClients(fleet);
        const clients = await Promise.all(
          Array.from({ length: 10 }, () => WireClient.connect(fleet)),
        );
        for (const client of clients) client.send(startup({ user: 'app', database: 'app' }));
        for (const client of clients) assert.match(typesOf(await client.untilReady()), / Z:I$/);
        await assertRefused(fleet, app, 'no more connections allowed (max_client_conn)');
        await answersAll(clients);
        await endAll(clients);
      },
    );
  });
}

function tooMany(setting: string): string {
  return `client connections exceeded (${setting})`;
}

/** Logs `count` clients in, one after the other. */
async function admitted(fleet: TestPgfleet, who: Who, count: number): Promise<WireClient[]> {
  const clients: WireClient[] = [];
  for (let i = 0; i < count; i++) clients.push(await WireClient.login(fleet, who));
  return clients;
}

/** Logs a client in as soon as the fleet has noticed that another has left. */
function admittedSoon(fleet: TestPgfleet, who: Who): Promise<WireClient> {
  return until('a client is admitted', () => WireClient.login(fleet, who));
}

/** Logs `count` clients in at once, spread over the pools; those that got in, and what the others were told. */
async function stormed(
  fleet: TestPgfleet,
  pools: readonly Who[],
  count: number,
): Promise<{ clients: WireClient[]; refusals: string[] }> {
  const logins = Array.from({ length: count }, (_, i) =>
    WireClient.login(fleet, pools[i % pools.length]!),
  );
  const clients: WireClient[] = [];
  const refusals: string[] = [];
  for (const outcome of await Promise.allSettled(logins)) {
    if (outcome.status === 'fulfilled') clients.push(outcome.value);
    else if (outcome.reason instanceof WireError) refusals.push(outcome.reason.text);
    else throw outcome.reason;
  }
  return { clients, refusals };
}

async function assertRefused(fleet: TestPgfleet, who: Who, text: string): Promise<void> {
  await assert.rejects(WireClient.login(fleet, who), (error: unknown) => {
    assert.ok(error instanceof WireError);
    assert.deepEqual([error.severity, error.sqlstate, error.text], ['FATAL', '08P01', text]);
    return true;
  });
}

/** Waits until the fleet has noticed that all clients have left. */
async function noClients(fleet: TestPgfleet): Promise<void> {
  await until('the fleet has no clients but the one that asks', async () => {
    const lists = await fleet.console('SHOW LISTS');
    const row = lists.find(({ list }) => list === 'used_clients');
    return Number(row?.['items']) === 1;
  });
}

async function answersAll(clients: readonly WireClient[]): Promise<void> {
  for (const client of clients) {
    assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
  }
}

async function endAll(clients: readonly WireClient[]): Promise<void> {
  await Promise.all(clients.map((client) => client.end()));
}
