import { copyData, query, reportFields, textRows, type WireMessage } from './messages.ts';
import type { TestPooler } from './pooler.ts';
import { startPostgres, type TestPostgres } from './postgres.ts';
import type { PostgresVersion } from './postgres-files.ts';
import { WireClient } from './wire-client.ts';

/** What replication connections are made of in tests: a server that allows them, clients, messages. */

/** A server to replicate from, as `postgres` and as `app` (which may not). */
export async function startSource(version: PostgresVersion = 18): Promise<TestPostgres> {
  const postgres = await startPostgres({
    version,
    settings: { wal_level: 'logical', wal_sender_timeout: '60s', max_wal_senders: 20 },
    hba: ['host replication postgres,app samehost scram-sha-256'],
  });
  await postgres.query('CREATE TABLE changes (n int PRIMARY KEY)');
  return postgres;
}

/** A replication client of the superuser; its server is there unless the pool was used before. */
export function replica(
  pooler: TestPooler,
  kind = 'database',
  parameters: Readonly<Record<string, string>> = {},
): Promise<WireClient> {
  const login = { user: 'postgres', database: 'postgres' };
  return WireClient.login(pooler, { ...login, parameters: { replication: kind, ...parameters } });
}

/** A client of the same pool that does not replicate. */
export function ordinary(pooler: TestPooler): Promise<WireClient> {
  return WireClient.login(pooler, { user: 'postgres', database: 'postgres' });
}

/** Lets a logical replication client stream from a slot of its own. */
export async function beginStream(client: WireClient, slot: string): Promise<WireClient> {
  await client.query(`CREATE_REPLICATION_SLOT ${slot} TEMPORARY LOGICAL test_decoding`);
  client.send(query(`START_REPLICATION SLOT ${slot} LOGICAL 0/0`));
  const { type } = await client.next();
  if (type !== 'W') throw new Error(`the stream began with '${type}'`);
  return client;
}

/** The first value of what a query returns. */
export async function value(client: WireClient, sql: string): Promise<string | null | undefined> {
  return textRows(await client.query(sql))[0]?.[0];
}

/** Errors of an answer, `FATAL 08P01 text`. */
export function errors(messages: readonly WireMessage[]): string[] {
  return messages
    .filter(({ type }) => type === 'E')
    .map(({ body }) => {
      const { S, C, M } = reportFields(body);
      return `${S} ${C} ${M}`;
    });
}

/** Standby status update: everything up to `lsn` has been written, flushed and applied. */
export function standbyStatus(lsn: Buffer): Buffer {
  return copyData(Buffer.concat([Buffer.from('r'), lsn, lsn, lsn, Buffer.alloc(8), Buffer.of(0)]));
}

export async function walSenders(postgres: TestPostgres): Promise<number> {
  const [row] = await postgres.query<{ n: number }>(
    "SELECT count(*)::int AS n FROM pg_stat_activity WHERE backend_type = 'walsender'",
  );
  return row!.n;
}

/** Ends all WAL senders as an administrator would. */
export async function terminateWalSenders(postgres: TestPostgres): Promise<void> {
  await postgres.query(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'",
  );
}

/** A column of the rows of a SHOW command about the database `postgres`, sorted. */
export async function shown(
  pooler: TestPooler,
  command: string,
  column: string,
): Promise<string[]> {
  const rows = await pooler.console(command);
  return rows
    .filter((row) => row['database'] === 'postgres')
    .map((row) => String(row[column]))
    .sort();
}
