import assert from 'node:assert/strict';
import pg from 'pg';
import { answered, keepRow, type Visit } from './visit.ts';

type Step = (client: pg.Client, visit: Visit) => Promise<void>;

/** What a client of the npm package `pg` does, by name. */
const STEPS: Readonly<Record<string, Step>> = {
  'pg asks for itself': async (client, visit) => {
    const text = "SELECT $1::text AS token, current_setting('application_name') AS name";
    const { rows } = await answered(text, client.query(text, [visit.token]));
    assert.deepEqual(rows, [{ token: visit.token, name: visit.token }]);
  },
  'pg runs a named statement': async (client, visit) => {
    const n = visit.random.below(20);
    const text = `SELECT ${n} AS n, $1::text AS token`;
    const named = { name: `mine${n}`, text, values: [visit.token] };
    const { rows } = await answered(text, client.query(named));
    assert.deepEqual(rows, [{ n, token: visit.token }]);
  },
  'pg keeps a row': (client, visit) => keepRow(visit, (sql) => client.query(sql)),
  'pg fails': async (client, visit) => {
    const outcome = await Promise.allSettled([
      answered('an error', client.query('SELECT 1/$1::int', [0])),
    ]);
    const reason: unknown = outcome[0].status === 'rejected' ? outcome[0].reason : null;
    if ((reason as { code?: string } | null)?.code !== '22012') throw reason;
    visit.report.count('pg sees its error');
  },
  'pg reads many rows': async (client, visit) => {
    const text = "SELECT $1 || repeat('x', n % 300) AS t FROM generate_series(1, 2000) n";
    const { rows } = await answered(text, client.query<{ t: string }>(text, [visit.token]));
    assert.equal(rows.length, 2000);
    assert.ok(rows.every(({ t }) => t.startsWith(visit.token)));
  },
  'pg changes a setting for one transaction': async (client, visit) => {
    await answered('BEGIN', client.query("BEGIN; SET LOCAL work_mem = '5MB'"));
    const { rows } = await answered('SHOW', client.query('SHOW work_mem'));
    assert.deepEqual(rows, [{ work_mem: '5MB' }]);
    await answered('COMMIT', client.query('COMMIT'));
    visit.report.count('pg ends its transaction');
  },
};

export const PG_STEPS = Object.keys(STEPS);

/** Connects, does a few steps, and leaves politely or not. */
export async function pgVisit(visit: Visit): Promise<void> {
  const { host, port, database, random, report } = visit;
  const login = { host, port, database, user: 'app', password: 'app' };
  const client = new pg.Client({ ...login, application_name: visit.token });
  client.on('error', () => undefined);
  let step = 'pg connects';
  try {
    await answered(step, client.connect());
    report.count(step);
    for (let left = 1 + random.below(12); left > 0; left--) {
      step = random.pick(PG_STEPS);
      await STEPS[step]!(client, visit);
      report.count(step);
    }
    step = 'pg leaves';
    if (random.below(3) === 0) {
      // In the middle of something, without a word.
      const lost = client.query('SELECT pg_sleep(0.05)').catch(() => undefined);
      await new Promise((resolve) => setTimeout(resolve, random.below(20)));
      client.connection.stream.destroy();
      await answered('the driver', lost);
    } else {
      await answered('Terminate', client.end());
    }
  } catch (error) {
    report.ended(step, error);
  } finally {
    client.connection.stream.destroy();
  }
}
