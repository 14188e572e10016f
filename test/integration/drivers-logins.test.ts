import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { startPgfleet } from '../support/pgfleet.ts';
import { ROLES, startPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { requirePackage } from '../support/skip.ts';
import { WireClient, WireError } from '../support/wire-client.ts';

/** Every way in at the pooler, times every way in at the server. */

const CLIENT_METHODS = ['trust', 'plain', 'md5', 'scram-sha-256'] as const;

/** Login roles of the test servers; each has its name as its password. */
const USERS = Object.keys(ROLES).filter((role) => role !== 'postgres');

/** What the pooler asks of its client: the codes of the Authentication messages. */
const ASKS: Readonly<Record<(typeof CLIENT_METHODS)[number], readonly number[]>> = {
  trust: [0],
  plain: [3, 0],
  md5: [5, 0],
  'scram-sha-256': [10, 11, 12, 0],
};

for (const version of [15, 18] as const) {
  test(`every client method against servers that want scram, md5, a clear password or none: PostgreSQL ${version}`, async (t) => {
    if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
    const postgres = await startPostgres({ version });
    t.after(() => postgres.dispose());
    for (const method of CLIENT_METHODS) {
      await t.test(`auth_type = ${method}`, async (inner) => {
        const fleet = await startPgfleet({
          postgres,
          size: 2,
          settings: { auth_type: method, default_pool_size: 4 },
        });
        inner.after(() => fleet.stop());
        for (const user of USERS) {
          const client = await WireClient.connect(fleet);
          inner.after(() => client.destroy());
          const asked = (await client.login({ user }))
            .filter(({ type }) => type === 'R')
            .map(({ body }) => body.readInt32BE(0));
          assert.deepEqual(asked, ASKS[method]);
          await client.end();
          const driver = await fleet.client({ user, password: user });
          const { rows } = await driver.query('SELECT current_user AS me');
          assert.deepEqual(rows, [{ me: user }]);
          await driver.end();
          if (method !== 'trust') await refuses(fleet, user, 'wrong');
        }
        await refuses(fleet, 'nobody_knows', 'nobody_knows');
      });
    }
  });
}

test('a password kept as md5 lets clients in, and the pooler into md5 servers', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const hash = createHash('md5').update('app_md5app_md5').digest('hex');
  for (const method of ['plain', 'md5'] as const) {
    const fleet = await startPgfleet({
      postgres,
      size: 2,
      authFile: { app_md5: `md5${hash}` },
      settings: { auth_type: method, admin_users: '' },
    });
    t.after(() => fleet.stop());
    await letsIn(fleet, 'app_md5');
    await refuses(fleet, 'app_md5', 'wrong');
  }
});

test('a password kept as a SCRAM secret lets clients in, and the pooler into the server', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const [row] = await postgres.query<{ secret: string }>(
    "SELECT rolpassword AS secret FROM pg_authid WHERE rolname = 'app'",
  );
  for (const size of [1, 4]) {
    const fleet = await startPgfleet({
      postgres,
      size,
      authFile: { app: row!.secret },
      settings: { auth_type: 'scram-sha-256', admin_users: '', default_pool_size: 8 },
    });
    t.after(() => fleet.stop());
    await Promise.all(Array.from({ length: 12 }, () => letsIn(fleet, 'app')));
    await refuses(fleet, 'app', 'wrong');
  }
});

test("a database line's own user and password log in at the server, whoever the client is", async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({
    postgres,
    size: 2,
    databases: { shop: 'dbname=app user=app_plain password=app_plain' },
    settings: { auth_type: 'md5' },
  });
  t.after(() => fleet.stop());
  const client = await fleet.client({ database: 'shop', user: 'app_md5', password: 'app_md5' });
  const { rows } = await client.query('SELECT current_user AS me, current_database() AS at');
  assert.deepEqual(rows, [{ me: 'app_plain', at: 'app' }]);
  await client.end();
});

test('a server that refuses the login ends the client with the words of the server', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({ postgres, size: 2, authFile: { app: 'not its password' } });
  t.after(() => fleet.stop());
  await assert.rejects(WireClient.login(fleet), (error: unknown) => {
    assert.ok(error instanceof WireError);
    assert.equal(error.sqlstate, '28P01');
    assert.match(error.text, /password authentication failed for user "app"/);
    return true;
  });
});

test('a pool grows as fast as its servers log in', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({ postgres, settings: { default_pool_size: 24 } });
  t.after(() => fleet.stop());
  const clients = await Promise.all(Array.from({ length: 24 }, () => fleet.client()));
  const startedAt = performance.now();
  await Promise.all(clients.map((client) => client.query('BEGIN')));
  const seconds = (performance.now() - startedAt) / 1000;
  await Promise.all(clients.map((client) => client.end()));
  // One more each time that the timer looks, three times a second, would take eight.
  assert.ok(seconds < 5, `24 servers took ${seconds} s`);
});

type Fleet = Awaited<ReturnType<typeof startPgfleet>>;

async function letsIn(fleet: Fleet, user: string): Promise<void> {
  const client = await fleet.client({ user, password: user });
  assert.deepEqual((await client.query('SELECT current_user AS me')).rows, [{ me: user }]);
  await client.end();
}

async function refuses(fleet: Fleet, user: string, password: string): Promise<void> {
  fleet.allowLog(/ERROR .* password authentication failed$/);
  await assert.rejects(WireClient.login(fleet, { user, password }), (error: unknown) => {
    assert.ok(error instanceof WireError);
    // PgBouncer's SQLSTATE, where PostgreSQL has 28P01.
    assert.equal(error.sqlstate, '08P01');
    assert.match(error.text, /^(?:password|SASL|"trust") authentication failed$/);
    return true;
  });
}
