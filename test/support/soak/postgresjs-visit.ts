import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createConnection, type Socket } from 'node:net';
import postgres from 'postgres';
import { answered, type Visit } from './visit.ts';

type Step = (sql: postgres.Sql, visit: Visit) => Promise<void>;

/** Makes postgres.js roll back. */
class Undo extends Error {}

/** What a client of the npm package `postgres` (postgres.js) does, by name; it pipelines. */
const STEPS: Readonly<Record<string, Step>> = {
  'postgres.js pipelines': async (sql, visit) => {
    const numbers = Array.from({ length: 1 + visit.random.below(20) }, (_, n) => n);
    const asked = numbers.map((n) => sql`SELECT ${visit.token}::text AS t, ${n}::int AS n`);
    const rows = (await answered('a pipeline', Promise.all(asked))).map(([row]) => row);
    assert.deepEqual(
      rows,
      numbers.map((n) => ({ t: visit.token, n })),
    );
  },
  'postgres.js keeps a row': async (sql, visit) => {
    const row = visit.newRow();
    const isKept = visit.random.below(3) > 0;
    let isCommitting = false;
    const inserting = sql.begin(async (transaction) => {
      await transaction`INSERT INTO ledger VALUES (${row})`;
      if (!isKept) throw new Undo();
      isCommitting = true;
    });
    try {
      await answered('a transaction', inserting);
      visit.report.kept.add(row);
    } catch (error) {
      if (!isCommitting) visit.report.undone.add(row);
      if (!(error instanceof Undo)) throw error;
    }
  },
  'postgres.js copies a row out and in': async (sql, visit) => {
    const text = `${visit.token}\t${visit.random.below(1000)}`;
    const copied = async (): Promise<string> => {
      const chunks: Buffer[] = [];
      const source = await sql`COPY (SELECT ${sql.unsafe(`'${text}'`)}::text) TO STDOUT`.readable();
      for await (const chunk of source) chunks.push(chunk as Buffer);
      return Buffer.concat(chunks).toString();
    };
    assert.equal(await answered('COPY', copied()), `${text.replace('\t', '\\t')}\n`);
  },
  'postgres.js reads by a cursor': async (sql, visit) => {
    let rows = 0;
    const reading = sql`SELECT ${visit.token}::text AS t FROM generate_series(1, 500)`.cursor(
      100,
      (part) => {
        rows += part.length;
        assert.ok(part.every(({ t }) => t === visit.token));
      },
    );
    await answered('a cursor', reading);
    assert.equal(rows, 500);
  },
};

export const POSTGRESJS_STEPS = Object.keys(STEPS);

/** postgres.js 3.4 writes in an Immediate even when the connection has ended in the meantime. */
export function isLateWrite(error: Error): boolean {
  return error instanceof TypeError && /\/postgres\/src\/connection\.js/.test(error.stack ?? '');
}

/** Connects, does a few steps, and leaves politely or not. */
export async function postgresjsVisit(visit: Visit): Promise<void> {
  const { random, report } = visit;
  const sockets: Socket[] = [];
  let isOver = false;
  const options: postgres.Options<Record<string, never>> & { socket: () => Promise<Socket> } = {
    // The driver may connect once more after its end, and stay.
    socket: async () => {
      if (isOver) throw new Error('the visit is over');
      const socket = createConnection(visit);
      sockets.push(socket);
      await once(socket, 'connect');
      return socket;
    },
    database: visit.database,
    user: 'app',
    password: 'app',
    max: 1,
    fetch_types: false,
    onnotice: () => undefined,
    connection: { application_name: visit.token },
  };
  const sql = postgres(options);
  let step = 'postgres.js connects';
  try {
    for (let left = 1 + random.below(8); left > 0; left--) {
      step = random.pick(POSTGRESJS_STEPS);
      await STEPS[step]!(sql, visit);
      report.count(step);
    }
    step = 'postgres.js leaves';
    if (random.below(3) === 0) sql`SELECT pg_sleep(0.05)`.catch(() => undefined);
  } catch (error) {
    report.ended(step, error);
  } finally {
    isOver = true;
    // At once: a query that runs is cut.
    await answered('the driver', sql.end({ timeout: 0 }));
    for (const socket of sockets) socket.destroy();
  }
}
