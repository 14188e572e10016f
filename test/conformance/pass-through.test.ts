/** SCRAM pass-through: keys that a client has proved log in to servers as the same name. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient, WireError } from '../support/wire-client.ts';

const WRONG_TYPE = 'FATAL 08P01: server login failed: wrong password type';
const VIA_QUERY =
  "auth_user=postgres auth_query='SELECT rolname, rolpassword FROM pg_authid WHERE rolname=$1'";

let postgres: TestPostgres;
/** SCRAM secrets of the roles, as the server has them. */
const secrets: Record<string, string> = {};

before(async () => {
  postgres = await startPostgres();
  await postgres.query("CREATE ROLE other LOGIN PASSWORD 'other'");
  for (const { role, secret } of await postgres.query<{ role: string; secret: string }>(
    "SELECT rolname AS role, rolpassword AS secret FROM pg_authid WHERE rolname IN ('app', 'other')",
  )) {
    secrets[role] = secret;
  }
});

const options = (authFile: Readonly<Record<string, string>> = {}): RuleOptions => ({
  postgres,
  databases: {
    app: '',
    withpassword: 'dbname=app user=app password=app',
    without: 'dbname=app user=app',
    asked: `dbname=app ${VIA_QUERY}`,
  },
  authFile: { ...secrets, plain: 'plain', postgres: 'postgres', ...authFile },
  settings: { auth_type: 'scram-sha-256', server_login_retry: 0.1 },
  logs: [/ERROR/, /FATAL/],
});

/** Who one is at the server, or the error. */
async function outcome(pooler: TestPooler, options: LoginOptions): Promise<string> {
  const client = await WireClient.connect(pooler);
  try {
    await client.login(options);
    const row = (await client.query('SELECT current_user')).find(({ type }) => type === 'D');
    await client.end();
    return `in as ${row!.body.toString('utf8', 6)}`;
  } catch (error) {
    client.destroy();
    if (!(error instanceof WireError)) throw error;
    return error.message;
  }
}

/** Has every server of the pools replaced. */
async function renew(pooler: TestPooler): Promise<void> {
  await pooler.console('RECONNECT');
  await until('the servers are gone', async () => {
    const rows = await pooler.console('SHOW SERVERS');
    return rows.every((row) => row['database'] !== 'app' || row['close_needed'] === '0');
  });
}

rule(
  'a forced user without a password is logged in with the keys that the user itself has proved',
  () => options(),
  async (pooler) => {
    const forced = { user: 'plain', database: 'without' };
    assert.equal(await outcome(pooler, forced), WRONG_TYPE);
    assert.equal(await outcome(pooler, { user: 'app', database: 'app' }), 'in as app');
    await until('the retry is over', async () => (await outcome(pooler, forced)) === 'in as app');
  },
  { since: '1.19' },
);

rule(
  'keys of another user do not serve the forced one',
  () => options(),
  async (pooler) => {
    assert.equal(await outcome(pooler, { user: 'other', database: 'without' }), WRONG_TYPE);
    assert.equal(await outcome(pooler, { user: 'other', database: 'app' }), 'in as other');
    await until('the retry is over', async () => {
      return (await outcome(pooler, { user: 'other', database: 'without' })) === WRONG_TYPE;
    });
  },
  { since: '1.19' },
);

rule(
  'a client with a SCRAM secret does not spoil the pool of a forced user with a password',
  () => options(),
  async (pooler) => {
    for (const user of ['plain', 'other', 'plain', 'other']) {
      assert.equal(await outcome(pooler, { user, database: 'withpassword' }), 'in as app');
      await renew(pooler);
    }
  },
  { since: '1.19' },
);

rule(
  'keys that were proved against what auth_query says serve its server logins',
  () => ({ ...options(), authFile: { postgres: 'postgres' } }),
  async (pooler) => {
    for (let i = 0; i < 2; i++) {
      assert.equal(await outcome(pooler, { user: 'app', database: 'asked' }), 'in as app');
      assert.equal(await outcome(pooler, { user: 'other', database: 'asked' }), 'in as other');
      await renew(pooler);
    }
  },
  { since: '1.19' },
);

rule(
  'a secret that only looks like the one of the server does not log in',
  async () => {
    // The same password, salted anew.
    await postgres.query("ALTER ROLE other PASSWORD 'other'");
    return options();
  },
  async (pooler) => {
    const said = await outcome(pooler, { user: 'other', database: 'app' });
    assert.match(said, /password authentication failed for user "other"/);
  },
  { since: '1.19' },
);

test('the server is ended', () => postgres.dispose());
