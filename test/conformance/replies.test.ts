/**
 * The same statements and messages are sent to PostgreSQL itself and through a pool of each mode, to
 * two servers that are copies of each other, so that even object ids are the same; every reply must be
 * the same byte for byte. Process ids in NotificationResponse are left out.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { failIfError } from '../support/compare.ts';
import { query, reportFields, type WireMessage } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { hasPostgres15, type PostgresVersion } from '../support/postgres-files.ts';
import { type Exchange, type Script, sent } from '../support/replies/script.ts';
import { SEQUENCES } from '../support/replies/sequences.ts';
import { STATEMENTS } from '../support/replies/statements.ts';
import { requirePackage } from '../support/skip.ts';
import { type Address, WireClient } from '../support/wire-client.ts';

const CLOSED = 'the connection is closed';
const DEADLINE_MS = 60_000;
const FIXTURES = `
  CREATE TABLE parent (id int PRIMARY KEY, name text UNIQUE);
  CREATE TABLE child (id int CHECK (id > 0), parent int REFERENCES parent);
  CREATE TABLE late (parent int REFERENCES parent DEFERRABLE);
  CREATE TABLE filled (a int, b text);
  INSERT INTO parent VALUES (1, 'one'), (2, 'two'), (3, 'three');
  INSERT INTO child VALUES (1, 1), (2, 2);
  CREATE FUNCTION noisy(n int) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN
      FOR i IN 1..n LOOP RAISE NOTICE 'noise %', i USING HINT = 'none'; END LOOP;
      IF n = 0 THEN RAISE EXCEPTION 'no noise' USING ERRCODE = 'XX123'; END IF;
      RETURN n;
    END $$;
`;
const SCRIPTS: readonly Script[] = [...STATEMENTS, ...SEQUENCES];

test('at least 300 statements and sequences of messages are compared', () => {
  assert.ok(SCRIPTS.reduce((count, { says }) => count + says.length, 0) >= 300);
});

/**
 * Where a pool that translates the names of statements (transaction and statement pooling) answers
 * otherwise than the server, all as PgBouncer does: PostgreSQL knows a statement by the pooler's name.
 */
const TRANSLATED: readonly string[] = [
  'the names of statements / too few values for a named statement',
  'the names of statements / SELECT name, statement FROM pg_prepared_statements',
  'the names of statements / EXECUTE n1 (1)',
  'the names of statements / DEALLOCATE n1',
  'the names of statements / Bind after DEALLOCATE',
  'a name that is in use / Parse twice',
  'a name that is not known / Bind',
];

for (const version of [15, 18] as const) {
  for (const mode of ['session', 'transaction', 'statement'] as const) {
    test(`PostgreSQL ${version}, ${mode} pooling: every reply is the server's own`, async (t) => {
      if (version === 15 && !requirePackage(t, 'postgresql-15', hasPostgres15())) return;
      const [direct, behind] = await Promise.all([copyOf(version), copyOf(version)]);
      const fleet = await startPgfleet({
        postgres: behind,
        size: 1,
        settings: { pool_mode: mode, default_pool_size: 1 },
      });
      t.after(async () => {
        await fleet.stop();
        await Promise.all([direct.dispose(), behind.dispose()]);
      });
      const differences: string[] = [];
      for (const script of SCRIPTS) {
        if (script.hasBlocks && mode === 'statement') continue;
        if (script.since !== undefined && version < script.since) continue;
        differences.push(...(await compare(script, direct, fleet)));
      }
      const listed = mode === 'session' ? [] : TRANSLATED;
      const isListed = (line: string): boolean =>
        listed.some((name) => line.startsWith(`${name}: `));
      assert.deepEqual(
        differences.filter((line) => !isListed(line)),
        [],
      );
      // A difference that is no more is taken off the list.
      assert.equal(differences.length, listed.length, differences.join('\n'));
    });
  }
}

async function copyOf(version: PostgresVersion) {
  const postgres = await startPostgres({
    version,
    settings: { autovacuum: 'off', lc_messages: 'C' },
  });
  const client = await WireClient.login(postgres);
  failIfError(await client.query(FIXTURES), 'fixtures');
  await client.end();
  return postgres;
}

/** Runs a script on both sides, and returns a line for each exchange whose replies differ. */
async function compare(script: Script, direct: Address, pooled: Address): Promise<string[]> {
  const [wanted, found] = await Promise.all([run(script, direct), run(script, pooled)]);
  return script.says.flatMap((one, index) => {
    const name = `${script.name} / ${typeof one === 'string' ? one.slice(0, 60) : one.name}`;
    const [left, right] = [wanted[index] ?? [CLOSED], found[index] ?? [CLOSED]];
    const at = left.findIndex((text, i) => text !== right[i]);
    if (at === -1 && left.length === right.length) return [];
    const place = at === -1 ? left.length : at;
    return [`${name}: ${right[place] ?? 'nothing'} instead of ${left[place] ?? 'nothing'}`];
  });
}

async function run(script: Script, address: Address): Promise<string[][]> {
  const client = await WireClient.login(address);
  const replies: string[][] = [];
  try {
    for (const one of script.says) {
      replies.push(await exchange(client, one));
      if (replies.at(-1)!.at(-1) === CLOSED) return replies;
    }
    await client.end();
  } finally {
    client.destroy();
  }
  return replies;
}

async function exchange(client: WireClient, one: string | Exchange): Promise<string[]> {
  const { send, until = { type: 'Z', count: 1 } } =
    typeof one === 'string' ? sent(one, [query(one)]) : one;
  client.send(send);
  const received: string[] = [];
  for (let left = until.count; left > 0; ) {
    const next = await client.next(DEADLINE_MS).catch((error: Error) => {
      if (client.isClosed) return null;
      throw error;
    });
    if (next === null) return [...received, CLOSED];
    received.push(shown(next));
    if (next.type === until.type) left--;
    // Behind an error the awaited answer does not come.
    if (next.type === 'Z' && until.type !== 'Z') break;
  }
  return received;
}

/** A message as a line that is equal only when its bytes are. */
function shown({ type, body }: WireMessage): string {
  if (type === 'A') return `A ${body.toString('latin1', 4)}`;
  if (type === 'E' || type === 'N') return `${type} ${JSON.stringify(reportFields(body))}`;
  return `${type} ${body.toString('latin1')}`;
}
