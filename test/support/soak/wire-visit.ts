import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  bind,
  COPY_DONE,
  copyData,
  execute,
  parse,
  query,
  SYNC,
  startup,
  textRows,
  typesOf,
  type WireMessage,
} from '../messages.ts';
import { sendCancel, WireClient, WireError } from '../wire-client.ts';
import { answered, keepRow, type Visit } from './visit.ts';

type Step = (client: WireClient, visit: Visit) => Promise<void>;

/** What a client does that no driver does: it vanishes at the worst moments. By name. */
const STEPS: Readonly<Record<string, Step>> = {
  'wire pipelines with an error': async (client, visit) => {
    const ask = (sql: string): Buffer => Buffer.concat([parse('', sql), bind(), execute(), SYNC]);
    client.send(ask(`SELECT '${visit.token}'`), ask('SELECT 1/0'), ask(`SELECT '${visit.token}'`));
    const groups = [await group(client), await group(client), await group(client)];
    assert.deepEqual(textRows(groups[0]!), [[visit.token]]);
    assert.ok(typesOf(groups[1]!).includes('E'));
    assert.deepEqual(textRows(groups[2]!), [[visit.token]]);
  },
  'wire keeps a row': (client, visit) => keepRow(visit, (sql) => ask(client, sql)),
  'wire copies in': async (client, visit) => {
    client.send(query('BEGIN; CREATE TEMP TABLE t (a text) ON COMMIT DROP; COPY t FROM STDIN'));
    await answered('COPY', untilOrError(client, 'G'));
    const lines = `${visit.token}\n`.repeat(100);
    for (let n = visit.random.below(10); n >= 0; n--) client.send(copyData(Buffer.from(lines)));
    client.send(COPY_DONE);
    assert.equal(typesOf(await group(client)), 'C Z:T');
    await ask(client, 'COMMIT');
  },
  'wire cancels its own query': async (client, visit) => {
    client.send(query('SELECT pg_sleep(1)'));
    await sleep(visit.random.below(100));
    await answered('a cancel', sendCancel(visit, client.key));
    const received = await answered('a cancelled query', client.untilReady());
    const error = received.find(({ type }) => type === 'E');
    if (error === undefined) return; // It came before the query ran.
    const { sqlstate } = new WireError(error.body);
    if (sqlstate !== '57014') throw new WireError(error.body);
    visit.report.count('wire is cancelled');
  },
};

/** Ways to leave, the last thing a client does. */
const LEAVINGS: Readonly<Record<string, Step>> = {
  'wire leaves politely': (client) => client.end(),
  'wire leaves in a query': async (client, visit) => {
    client.send(query('SELECT pg_sleep(0.05)'));
    await sleep(visit.random.below(20));
  },
  'wire leaves in a transaction': async (client, visit) => {
    const row = visit.newRow();
    await ask(client, 'BEGIN');
    await ask(client, `INSERT INTO ledger VALUES (${row})`);
    visit.report.undone.add(row);
  },
  'wire leaves in a message': async (client, visit) => {
    const bytes = query(
      `INSERT INTO ledger VALUES (0) /* ${'x'.repeat(visit.random.below(9000))} */`,
    );
    client.send(bytes.subarray(0, bytes.length - 1 - visit.random.below(bytes.length - 2)));
    await sleep(visit.random.below(20));
  },
  'wire leaves in a COPY': async (client) => {
    client.send(query('COPY ledger FROM STDIN'));
    await answered('COPY', untilOrError(client, 'G'));
    client.send(copyData(Buffer.from('0\n')));
  },
  'wire leaves without reading': async (client) => {
    client.socket.pause();
    client.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 5000)"));
    await sleep(20);
  },
  'wire is reset in a pipeline': async (client) => {
    const one = Buffer.concat([parse('', 'SELECT pg_sleep(0.01)'), bind(), execute(), SYNC]);
    client.send(one, one, one, one.subarray(0, -2));
    await sleep(10);
    client.reset();
  },
};

export const WIRE_STEPS = [...Object.keys(STEPS), ...Object.keys(LEAVINGS), 'wire is cancelled'];

/** Connects, does a few steps, and leaves in one of many ways. */
export async function wireVisit(visit: Visit): Promise<void> {
  const { random, report, database, token } = visit;
  let step = 'wire connects';
  let client: WireClient | null = null;
  try {
    client = await WireClient.connect(visit);
    if (random.below(8) === 0) {
      const bytes = startup({ user: 'app', database });
      client.send(bytes.subarray(0, random.below(bytes.length)));
      return;
    }
    await client.login({ database, parameters: { application_name: token } });
    report.count(step);
    for (let left = random.below(6); left > 0; left--) {
      step = random.pick(Object.keys(STEPS));
      await STEPS[step]!(client, visit);
      report.count(step);
    }
    step = random.pick(Object.keys(LEAVINGS));
    await LEAVINGS[step]!(client, visit);
    report.count(step);
  } catch (error) {
    report.ended(step, error);
  } finally {
    client?.destroy();
  }
}

/** One simple query; throws its error. */
async function ask(client: WireClient, sql: string): Promise<void> {
  const error = (await answered(sql, client.query(sql, 30_000))).find(({ type }) => type === 'E');
  if (error !== undefined) throw new WireError(error.body);
}

/** Everything up to ReadyForQuery. */
function group(client: WireClient): Promise<WireMessage[]> {
  return answered('a group', client.untilReady(30_000));
}

async function untilOrError(client: WireClient, type: string): Promise<void> {
  for (;;) {
    const next = await client.next(30_000);
    if (next.type === type) return;
    if (next.type === 'E') throw new WireError(next.body);
  }
}
