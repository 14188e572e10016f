/** How the console reads what it is sent: statements, comments, cuts, and who may say what. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { ConsoleClient } from '../support/console.ts';
import { bind, describe, execute, parse, query, SYNC, textRows } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { WireClient } from '../support/wire-client.ts';
import { lines, linesUntilClose, login } from './support.ts';

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
  });

const ADMIN = { user: 'postgres', database: 'pgbouncer' };
const STATS = { user: 'app', database: 'pgbouncer' };
const NEEDED = 'ERROR 08P01 admin access needed';
const LATEST = { since: '1.26.0' };
const invalid = (sql: string): string => `ERROR 08P01 invalid command '${sql}', use SHOW HELP; Z:I`;

rule(
  'what no driver sends and PgBouncer refuses is refused in the same words',
  options(),
  async (pooler, t) => {
    const client = await login(t, pooler, ADMIN);
    for (const sql of [
      ...['nonsense', 'SHOW', 'SHOW POOL', 'SHOW ALL', 'SHOW HELP extra', 'SHOW max_client_conn'],
      ...["SHOW 'VERSION'", 'SELECT version()', 'SET x', 'SET x = 0.5', 'RELOAD now', ' SHOW\n x '],
    ]) {
      assert.equal(lines(await client.query(sql)), invalid(sql));
    }
    assert.equal(
      lines(await client.query(`SHOW ${'x'.repeat(64)}`)),
      'ERROR 08P01 bad arguments Z:I',
    );
    for (const sql of ['show "version"', ' SELECT\tVersion ; ', '"show" VERSION']) {
      assert.equal(lines(await client.query(sql)), 'T D C Z:I', sql);
    }
  },
);

rule(
  'several statements of one query are answered one after the other, until one fails',
  options(),
  async (pooler, t) => {
    const client = await login(t, pooler, ADMIN);
    const two = await client.query('SHOW VERSION; -- and then\nSHOW PEERS;;');
    assert.equal(lines(two), 'T D C T C Z:I');
    const failed = await client.query("SHOW PEERS; nonsense '; '; SHOW PEERS");
    assert.equal(lines(failed), `T C ${invalid(" nonsense '; '")}`);
  },
  {
    differs: {
      because: 'PgBouncer’s grammar has one statement without comments',
      check: async (pooler, t) => {
        const client = await login(t, pooler, ADMIN);
        for (const sql of ['SHOW VERSION; SHOW PEERS', 'SHOW VERSION;;', '-- x\nSHOW VERSION']) {
          assert.equal(lines(await client.query(sql)), invalid(sql));
        }
      },
    },
  },
);

rule(
  'a query with nothing in it, by which drivers see whether a connection lives, is answered',
  options(),
  async (pooler, t) => {
    const client = await login(t, pooler, STATS);
    for (const sql of ['', ';', '-- ping']) assert.equal(lines(await client.query(sql)), 'I Z:I');
    assert.equal(lines(await client.query('SELECT 1')), 'T D C Z:I');
    for (const sql of ['BEGIN', 'COMMIT', 'ROLLBACK', 'DISCARD ALL']) {
      assert.equal(lines(await client.query(sql)), 'C Z:I', sql);
    }
  },
  {
    differs: {
      because: 'PgBouncer takes them for wrong commands',
      check: async (pooler, t) => {
        const client = await login(t, pooler, STATS);
        for (const sql of ['', ';', '-- ping', 'SELECT 1', 'BEGIN', 'DISCARD ALL']) {
          assert.equal(lines(await client.query(sql)), invalid(sql));
        }
      },
    },
  },
);

rule(
  'settings that drivers ask for are told',
  options(),
  async (pooler, t) => {
    const client = await login(t, pooler, STATS);
    for (const [name, value] of [
      ['client_encoding', 'UTF-8'],
      ['default_transaction_isolation', 'read committed'],
      ['standard_conforming_strings', 'on'],
      ['datestyle', 'ISO'],
      ['timezone', 'GMT'],
      ['extra_float_digits', '2'],
    ] as const) {
      assert.deepEqual(textRows(await client.query(`SHOW ${name.toUpperCase()}`)), [[value]]);
    }
  },
  LATEST,
);

rule(
  'extra_float_digits in the startup packet is no reason to refuse a monitor at the console',
  options(),
  async (pooler, t) => {
    const parameters = { extra_float_digits: '2', client_encoding: 'UTF8', datestyle: 'ISO, MDY' };
    const client = await login(t, pooler, { ...STATS, parameters });
    assert.equal(lines(await client.query('SHOW VERSION;')), 'T D C Z:I');
    await assert.rejects(
      WireClient.login(pooler, { parameters }),
      /FATAL 08P01: unsupported startup parameter: extra_float_digits/,
    );
  },
  {
    differs: {
      because: 'PgBouncer wants it in ignore_startup_parameters, for every database',
      check: async (pooler) => {
        const parameters = { extra_float_digits: '2' };
        await assert.rejects(
          WireClient.login(pooler, { ...STATS, parameters }),
          /FATAL 08P01: unsupported startup parameter: extra_float_digits/,
        );
      },
    },
  },
);

rule(
  'a query may be cut at any byte and be longer than a packet buffer',
  options(),
  async (pooler, t) => {
    const client = await login(t, pooler, STATS);
    const bytes = query('SHOW VERSION');
    for (let at = 1; at < bytes.length; at++) {
      client.send(bytes.subarray(0, at));
      // The next look of the pooler is behind this round trip of another client.
      assert.equal(lines(await (await login(t, pooler, STATS)).query('SHOW PEERS')), 'T C Z:I');
      client.send(bytes.subarray(at));
      assert.equal(lines(await client.untilReady()), 'T D C Z:I', `cut at ${at}`);
    }
    const long = `SHOW VERSION${' '.repeat(100_000)}`;
    assert.equal(lines(await client.query(long)), 'T D C Z:I');
  },
  {
    differs: {
      because: 'PgBouncer closes the session when a query does not come whole',
      check: async (pooler, t) => {
        const client = await login(t, pooler, STATS);
        client.send(query(`SHOW VERSION${' '.repeat(100_000)}`));
        assert.match(await linesUntilClose(client), /^(?:FATAL 08P01 incomplete pkt )?closed$/);
      },
    },
  },
);

rule(
  'the extended protocol reads the console too',
  options(),
  async (pooler, t) => {
    const client = await login(t, pooler, STATS);
    client.send(parse('', 'SHOW LISTS'), bind(), describe('P'), execute(), SYNC);
    assert.match(lines(await client.untilReady()), /^1 2 T (?:D ){14}C Z:I$/);
  },
  {
    differs: {
      because: 'PgBouncer knows only the simple one',
      check: async (pooler, t) => {
        const client = await login(t, pooler, STATS);
        client.send(parse('', 'SHOW LISTS'));
        assert.match(
          await linesUntilClose(client),
          /^ERROR 08P01 extended query protocol not supported by admin console/,
        );
      },
    },
  },
);

/** One of every command that changes something. */
const COMMANDS = [
  ...['KILL_CLIENT 1', 'KILL', 'KILL app', 'PAUSE', 'PAUSE app', 'RESUME', 'RESUME app'],
  ...['DISABLE app', 'ENABLE app', 'RECONNECT', 'WAIT_CLOSE', 'RELOAD'],
  ...['SHUTDOWN', 'SHUTDOWN WAIT_FOR_CLIENTS', 'SHUTDOWN WAIT_FOR_SERVERS'],
  ...['SET max_client_conn = 1', 'SET admin_users = app'],
];
const DROPPED = ['SUSPEND', 'SHOW FDS', 'SHOW FDS BY PROCESS'];

rule(
  'a stats user is refused whatever is not only a look, KILL_CLIENT too (CVE-2026-6667)',
  options(),
  async (pooler, t) => {
    const victim = await login(t, pooler);
    const admin = await ConsoleClient.open(t, pooler);
    const clients = await admin.rows('SHOW CLIENTS');
    const id = clients.find(({ database }) => database === 'app')!['id'];
    const stats = await ConsoleClient.open(t, pooler, 'app');
    // PgBouncer 1.26 has dropped two commands.
    const isComplete = (await admin.run('SHOW FDS')) === 'SHOW';
    for (const sql of [`KILL_CLIENT ${id}`, ...COMMANDS, ...(isComplete ? DROPPED : [])]) {
      assert.equal(await stats.run(sql), NEEDED, sql);
    }
    assert.equal(lines(await victim.query('SELECT 1')), 'T D C Z:I');
    assert.equal(await admin.isActive(), true);
  },
  LATEST,
);

test('neither the extended protocol nor other statements beside it let a stats user command', async (t) => {
  const pooler = await startPgfleet(options()());
  t.after(() => pooler.stop());
  const stats = await login(t, pooler, STATS);
  for (const sql of [...COMMANDS, ...DROPPED]) {
    const beside = await stats.query(`SHOW PEERS; ${sql}; SHOW PEERS`);
    assert.equal(lines(beside), `T C ${NEEDED} Z:I`, sql);
    stats.send(parse('', sql), bind(), execute(), SYNC);
    assert.equal(lines(await stats.untilReady()), `${NEEDED} Z:I`, sql);
  }
});

test('stop', () => postgres.dispose());
