/** SET at the console: what is taken, what it says, how long it holds. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { ConsoleClient, fatalOf, loginUntilEnd } from '../support/console.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { lines } from './support.ts';

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
});

const options =
  (settings: RuleOptions['settings'] = {}) =>
  (): RuleOptions => ({
    postgres,
    databases: { app: '' },
    settings: { stats_users: 'app', ...settings },
    logs: [/unknown parameter: pgbouncer/],
    size: 2,
  });

const LATEST = { since: '1.26.0' };
const FAILED = 'ERROR 08P01 SET failed';
const NOT_APPLIED = 'NOTICE 00000 TLS settings could not be applied, still using old configuration';
const NEEDED = 'ERROR 08P01 admin access needed';

/** The value of a setting as SHOW CONFIG has it. */
async function shown(pooler: TestPooler, key: string): Promise<unknown> {
  const rows = await pooler.console('SHOW CONFIG');
  return rows.find((row) => row['key'] === key)?.['value'];
}

const TAKEN: readonly (readonly [string, string, string, string])[] = [
  ['SET max_client_conn = 101', 'max_client_conn=101', 'max_client_conn', '101'],
  ["SET max_client_conn TO '0x66';", 'max_client_conn=0x66', 'max_client_conn', '102'],
  ['set log_stats=0', 'log_stats=0', 'log_stats', '0'],
  ["SET server_lifetime = '0.5'", 'server_lifetime=0.5', 'server_lifetime', '0.5'],
  ['SET pool_mode to TRANSACTION', 'pool_mode=TRANSACTION', 'pool_mode', 'transaction'],
  ["SET server_check_query = ''", 'server_check_query=', 'server_check_query', ''],
  [
    "SET server_reset_query = 'SELECT ''it'''",
    "server_reset_query=SELECT 'it'",
    'server_reset_query',
    "SELECT 'it'",
  ],
];

rule(
  'SET takes a value as the file would, says it back as it was given, and SHOW CONFIG has it',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    for (const [sql, said, key, value] of TAKEN) {
      assert.equal(await console.run(sql), `SET ${said}`);
      assert.equal(await shown(pooler, key), value, sql);
    }
  },
  LATEST,
);

rule(
  'SET of what is no setting, or to what is no value of it, fails and changes nothing',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    for (const sql of [
      'SET nothing = 1',
      'SET MAX_CLIENT_CONN = 1',
      'SET max_client_conn = many',
      "SET max_client_conn = '1 2'",
      'SET pool_mode = fast',
      "SET server_lifetime = '1min'",
      'SET service_name = x',
    ]) {
      assert.equal(await console.run(sql), FAILED, sql);
    }
    assert.equal(await shown(pooler, 'max_client_conn'), '100');
  },
  LATEST,
);

rule(
  'SET of what only a restart can change succeeds and changes nothing',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(await console.run('SET listen_port = 7'), 'SET listen_port=7');
    assert.equal(await shown(pooler, 'listen_port'), String(pooler.port));
  },
  LATEST,
);

rule('what is set is in force at once', options(), async (pooler, t) => {
  const client = await loginUntilEnd(t, pooler);
  const console = await ConsoleClient.open(t, pooler);
  assert.equal(await console.run("SET client_idle_timeout = '0.5'"), 'SET client_idle_timeout=0.5');
  assert.equal(await fatalOf(client), '08P01 client_idle_timeout');
  assert.equal(await console.run('SET client_idle_timeout = 0'), 'SET client_idle_timeout=0');
});

rule('RELOAD brings back what the file says', options(), async (pooler, t) => {
  const console = await ConsoleClient.open(t, pooler);
  await console.run('SET max_client_conn = 77');
  await console.run('SET default_pool_size = 3');
  assert.equal(await shown(pooler, 'max_client_conn'), '77');
  assert.equal(await console.run('RELOAD'), 'RELOAD');
  assert.equal(await shown(pooler, 'max_client_conn'), '100');
  assert.equal(await shown(pooler, 'default_pool_size'), '20');
});

rule(
  'TLS towards clients that cannot be set up is taken with a notice, and goes on as it was',
  options(),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    for (const value of ['require', 'disable']) {
      const messages = await console.wire.query(`SET client_tls_sslmode = ${value}`);
      assert.equal(lines(messages), value === 'disable' ? 'C Z:I' : `${NOT_APPLIED} C Z:I`);
      assert.equal(messages.at(-2)!.body.toString(), `SET client_tls_sslmode=${value}\0`);
      const client = await loginUntilEnd(t, pooler);
      assert.equal(lines(await client.query('SELECT 1')), 'T D C Z:I');
    }
  },
  LATEST,
);

rule(
  'TLS towards servers that cannot be set up is taken with a notice, and goes on as it was',
  options({ server_tls_sslmode: 'disable' }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    assert.equal(
      await console.run("SET server_tls_ca_file = '/nowhere'"),
      'SET server_tls_ca_file=/nowhere',
    );
    const messages = await console.wire.query("SET server_tls_sslmode = 'verify-ca'");
    assert.equal(lines(messages), `${NOT_APPLIED} C Z:I`);
    assert.equal(messages[1]!.body.toString(), 'SET server_tls_sslmode=verify-ca\0');
    const client = await loginUntilEnd(t, pooler);
    assert.equal(lines(await client.query('SELECT 1')), 'T D C Z:I');
  },
  {
    ...LATEST,
    differs: {
      because: 'PgBouncer opens the files that servers are checked with at the next connection',
    },
  },
);

rule(
  'a stats user may set nothing but what drivers set, which has no effect',
  options(),
  async (pooler, t) => {
    const stats = await ConsoleClient.open(t, pooler, 'app');
    for (const sql of ['SET max_client_conn = 1', 'SET nothing = 1', 'SET listen_port = 1']) {
      assert.equal(await stats.run(sql), NEEDED, sql);
    }
    for (const name of [
      ...['client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings'],
      ...['default_transaction_isolation', 'extra_float_digits'],
    ]) {
      const messages = await stats.wire.query(`SET ${name} = x`);
      assert.equal(lines(messages), 'NOTICE 00000 SET ignored C Z:I');
      assert.equal(messages[1]!.body.toString(), 'SET\0');
    }
  },
  LATEST,
);

test('stop', () => postgres.dispose());
