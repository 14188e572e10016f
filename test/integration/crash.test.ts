import assert from 'node:assert/strict';
import { test } from 'node:test';
import { watchBackends } from '../support/backend-watch.ts';
import { query } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

const WHO = { user: 'app_trust', database: 'app' };

test('a killed worker leaves no statement running, and its successor keeps the limit', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({
    size: 1,
    postgres,
    settings: { pool_mode: 'transaction', auth_type: 'trust', default_pool_size: 4 },
    authFile: { app_trust: '' },
  });
  t.after(() => fleet.stop());
  fleet.allowLog(/worker 0 died/);
  const watch = await watchBackends(postgres);
  const busy = await Promise.all([0, 1, 2, 3].map(() => WireClient.login(fleet, WHO)));
  for (const client of busy) client.send(query('SELECT pg_sleep(60)'));
  const running = "SELECT count(*)::int AS n FROM pg_stat_activity WHERE query ~ 'sleep.60'";
  const countOf = async () =>
    (await postgres.query(`${running} AND pid <> pg_backend_pid()`))[0]!.n;
  await until('four running statements', async () => (await countOf()) === 4);

  process.kill((await fleet.workers())[0]!, 'SIGKILL');
  await Promise.all(busy.map((client) => client.untilClose()));
  const next = await Promise.all([0, 1, 2, 3].map(() => WireClient.login(fleet, WHO)));
  await Promise.all(next.map((client) => client.query('SELECT pg_sleep(0.1)')));
  assert.equal(await countOf(), 0);
  const peaks = await watch.stop();
  assert.ok(peaks.byUser.get('app_trust')! <= 4, `${peaks.byUser.get('app_trust')} connections`);
  for (const client of next) await client.end();
});
