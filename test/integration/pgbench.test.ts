import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { initialize, type Load, PROTOCOLS, pgbench } from '../../bench/load/pgbench.ts';
import { watchBackends } from '../support/backend-watch.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { clientProgram, hasPostgres15 } from '../support/postgres-files.ts';
import { requirePackage } from '../support/skip.ts';

/**
 * pgbench's own scripts by each of its protocols: 64 clients over 8 servers. The long run takes all
 * combinations, the short one twelve.
 */

const CLIENTS = 64;
const SERVERS = 8;
/** Branches of TPC-B; fewer than servers, so that transactions also wait for each other's rows. */
const SCALE = 5;
const IS_LONG = process.env['PGFLEET_LONG'] === '1';
const SECONDS = IS_LONG ? 20 : 2;

type Script = Load['script'];
type Protocol = Load['protocol'];

interface Combination {
  readonly size: number;
  readonly script: Script;
  readonly protocol: Protocol;
}

const ALL: readonly Combination[] = [1, 2, 4].flatMap((size) =>
  (['select', 'tpcb'] as const).flatMap((script) =>
    PROTOCOLS.map((protocol) => ({ size, script, protocol })),
  ),
);

/** Every script by every protocol, and every protocol and script on every server and fleet. */
const CHOSEN: Readonly<Record<15 | 18, readonly Combination[]>> = {
  15: [
    { size: 1, script: 'select', protocol: 'prepared' },
    { size: 1, script: 'tpcb', protocol: 'simple' },
    { size: 2, script: 'select', protocol: 'simple' },
    { size: 2, script: 'tpcb', protocol: 'extended' },
    { size: 4, script: 'select', protocol: 'extended' },
    { size: 4, script: 'tpcb', protocol: 'prepared' },
  ],
  18: [
    { size: 1, script: 'select', protocol: 'extended' },
    { size: 2, script: 'tpcb', protocol: 'prepared' },
    { size: 2, script: 'select', protocol: 'prepared' },
    { size: 4, script: 'tpcb', protocol: 'extended' },
    { size: 4, script: 'tpcb', protocol: 'simple' },
    { size: 4, script: 'select', protocol: 'simple' },
  ],
};

for (const version of [15, 18] as const) {
  const combinations = IS_LONG ? ALL : CHOSEN[version];
  test(`64 clients of pgbench share 8 servers of PostgreSQL ${version} without an error`, async (t) => {
    if (!requirePackage(t, 'postgresql-15', hasPostgres15() && clientProgram('pgbench') !== null)) {
      return;
    }
    const postgres = await startPostgres({ version });
    t.after(() => postgres.dispose());
    await initialize(postgres.port, SCALE);
    for (const size of [1, 2, 4]) {
      await t.test(`over ${size} workers`, (t) =>
        runFleet(
          t,
          postgres,
          size,
          combinations.filter((combination) => combination.size === size),
        ),
      );
    }
  });
}

async function runFleet(
  t: TestContext,
  postgres: TestPostgres,
  size: number,
  combinations: readonly Combination[],
): Promise<void> {
  const fleet = await startPgfleet({
    postgres,
    size,
    settings: { default_pool_size: SERVERS, max_client_conn: 500 },
  });
  t.after(() => fleet.stop());
  for (const { script, protocol } of combinations) {
    await t.test(`${script} by the ${protocol} protocol`, async () => {
      const watch = await watchBackends(postgres);
      const load = { port: fleet.port, script, protocol, clients: CLIENTS, seconds: SECONDS };
      const running = pgbench(load);
      await running.catch(() => undefined);
      const peaks = await watch.stop();
      const result = await running;
      assert.ok(peaks.all <= SERVERS, `${peaks.all} server connections at once`);
      assert.equal(peaks.byUser.get('app'), SERVERS, 'every slot was used');
      assert.ok(peaks.looks > SECONDS * 5, `PostgreSQL was asked ${peaks.looks} times`);
      assert.equal(result.failed, 0);
      assert.ok(result.transactions > CLIENTS, `only ${result.transactions} transactions`);
      if (script === 'tpcb') await assertBalanced(postgres, result.transactions);
    });
  }
}

/** TPC-B adds each delta to one account, teller and branch, and keeps it in the history. */
async function assertBalanced(postgres: TestPostgres, transactions: number): Promise<void> {
  const [accounts, tellers, branches, history, count] = (
    await postgres.psql(
      `SELECT sum(abalance) FROM pgbench_accounts;
       SELECT sum(tbalance) FROM pgbench_tellers;
       SELECT sum(bbalance) FROM pgbench_branches;
       SELECT sum(delta) FROM pgbench_history;
       SELECT count(*) FROM pgbench_history`,
      'app',
    )
  ).split('\n');
  const sums = { accounts, tellers, branches };
  assert.deepEqual(sums, { accounts: history, tellers: history, branches: history });
  assert.ok(Number(count) >= transactions, `${count} of ${transactions} transactions are there`);
  await postgres.psql(
    `TRUNCATE pgbench_history;
     UPDATE pgbench_accounts SET abalance = 0 WHERE abalance <> 0;
     UPDATE pgbench_tellers SET tbalance = 0;
     UPDATE pgbench_branches SET bbalance = 0`,
    'app',
  );
}
