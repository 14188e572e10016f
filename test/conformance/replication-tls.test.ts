/** Replication through a pool whose connections to the server are encrypted. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { makeCerts, missingOpenssl } from '../support/certs.ts';
import { COPY_DONE, query, textRows } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { beginStream, errors, replica, value } from '../support/replication.ts';
import { type RuleCheck, type RuleNotes, rule } from '../support/rule.ts';
import { requireOf } from '../support/skip.ts';

let postgres: TestPostgres | null = null;
let missing: string | null;

before(async () => {
  missing = await missingOpenssl();
  if (missing !== null) return;
  const certs = await makeCerts();
  postgres = await startPostgres({
    settings: {
      wal_level: 'logical',
      wal_sender_timeout: '60s',
      ssl: 'on',
      ssl_cert_file: certs.file('server.crt'),
      ssl_key_file: certs.file('server.key'),
    },
    hba: ['hostssl replication postgres samehost scram-sha-256'],
  });
  await postgres.query('CREATE TABLE changes (n int PRIMARY KEY, filler text)');
});

/** PgBouncer has replication connections since 1.23. */
const NOTES: RuleNotes = { since: '1.23' };

function secureRule(name: string, check: (source: TestPostgres) => RuleCheck): void {
  rule(
    name,
    () => ({
      ...(postgres === null ? {} : { postgres }),
      settings: { server_tls_sslmode: 'require' },
    }),
    async (pooler: TestPooler, t: TestContext) => {
      if (requireOf(t, missing ?? '', missing === null)) await check(postgres!)(pooler, t);
    },
    NOTES,
  );
}

const IS_SECURE = `SELECT version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
  WHERE ssl AND backend_type = 'walsender'`;

secureRule(
  'logical changes stream over TLS, bigger than any buffer',
  (source) => async (pooler) => {
    const client = await replica(pooler);
    assert.match(
      (await value(client, 'SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()')) ?? '',
      /^TLSv1\.[23]$/,
    );
    await source.query('TRUNCATE changes');
    await beginStream(client, 'secure');
    await source.query(
      'INSERT INTO changes SELECT n, repeat(chr(97 + n % 26), 20000) FROM generate_series(1, 100) n',
    );
    for (let next = 1; next <= 100; ) {
      const { type, body } = await client.next();
      assert.equal(type, 'd');
      const found = /INSERT: n\[integer\]:(\d+) filler\[text\]:'(.)\2{19999}'$/.exec(
        body.toString('latin1'),
      );
      if (found === null) continue;
      assert.equal(Number(found[1]), next);
      next++;
    }
    client.send(COPY_DONE);
    await client.untilReady();
    assert.equal(await value(client, 'SELECT 42'), '42');
    await client.end();
  },
);

secureRule('a base backup comes over TLS', (source) => async (pooler) => {
  const client = await replica(pooler, 'true');
  const before = client.receivedBytes;
  client.send(query("BASE_BACKUP (CHECKPOINT 'fast', WAL false)"));
  const messages = await client.untilReady(60_000);
  assert.deepEqual(errors(messages), []);
  assert.ok(client.receivedBytes - before > 10_000_000);
  assert.equal((await source.query(IS_SECURE)).length, 1);
  const [row] = textRows(await client.query('IDENTIFY_SYSTEM'));
  assert.equal(row?.length, 4);
  await client.end();
});

test('the server of this file ends', () => postgres?.dispose());
