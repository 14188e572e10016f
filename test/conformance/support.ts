/** Shared by the rules: what a client was told as lines, and who has the one server of a pool. */
import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { query, reportFields, type WireMessage } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient } from '../support/wire-client.ts';

/** One message as text: errors and notices as `FATAL 08P01 text`, ReadyForQuery as `Z:I`. */
export function line({ type, body }: WireMessage): string {
  if (type === 'Z') return `Z:${body.toString('latin1')}`;
  if (type !== 'E' && type !== 'N') return type;
  const { S, C, M } = reportFields(body);
  return `${S} ${C} ${M}`;
}

/** Messages as text, one after the other. */
export function lines(messages: readonly WireMessage[]): string {
  return messages.map(line).join(' ');
}

/** Everything until the other side closes, then `closed`. */
export async function linesUntilClose(client: WireClient, deadlineMs?: number): Promise<string> {
  return [...(await client.untilClose(deadlineMs)).map(line), 'closed'].join(' ');
}

/** The lines of a FATAL of the pooler's own and the end of the connection. */
export function fatal(text: string): string {
  return `FATAL 08P01 ${text} closed`;
}

/** A client that the test closes, however it ends. */
export async function login(
  t: TestContext,
  pooler: TestPooler,
  options?: LoginOptions,
): Promise<WireClient> {
  const client = await WireClient.login(pooler, options);
  t.after(() => client.destroy());
  return client;
}

/** Whether the gauges of SHOW POOLS of `database`, summed over its pools, are these. */
export async function poolIs(
  pooler: TestPooler,
  gauges: Readonly<Record<string, number>>,
  database = 'app',
): Promise<boolean> {
  const all = await pooler.console('SHOW POOLS');
  const pools = all.filter((pool) => pool['database'] === database);
  const sum = (gauge: string): number =>
    pools.reduce((total, pool) => total + Number(pool[gauge] ?? Number.NaN), 0);
  return pools.length > 0 && Object.entries(gauges).every(([name, value]) => sum(name) === value);
}

/**
 * Shows that the only server of the pool is taken: another client's query waits. Call the answer to
 * see that the server has come free: it waits for that query's result.
 */
export async function isTaken(
  t: TestContext,
  pooler: TestPooler,
  options: LoginOptions = {},
): Promise<() => Promise<void>> {
  const other = await login(t, pooler, options);
  other.send(query("SELECT 'free'"));
  const database = options.database ?? 'app';
  await until('the other client waits', () => poolIs(pooler, { cl_waiting: 1 }, database));
  return async () => {
    assert.equal(lines(await other.untilReady()), 'T D C Z:I');
    await other.end();
  };
}

/** Shows that the only server of the pool is there for anybody: another client's query is answered. */
export async function isFree(
  t: TestContext,
  pooler: TestPooler,
  options: LoginOptions = {},
): Promise<void> {
  const other = await login(t, pooler, options);
  assert.equal(lines(await other.query("SELECT 'free'")), 'T D C Z:I');
  await other.end();
}

/** Several requests in one write. */
export const STALLS = {
  because: 'now and then PgBouncer leaves a request lying that came in one write with another',
};

/** Process id of the server that answers the client's next query. */
export async function pidOf(client: WireClient): Promise<number> {
  const row = (await client.query('SELECT pg_backend_pid()')).find(({ type }) => type === 'D');
  return Number(row?.body.toString('latin1', 6));
}

/** Log lines since a place, without their time and process id; ids and addresses are shortened. */
export function logSince(pooler: TestPooler, from: number): string[] {
  return pooler
    .log()
    .slice(from)
    .split('\n')
    .filter((text) => text !== '')
    .map((text) =>
      text
        .replace(/^.*?\[\d+\] /, '')
        .replace(/\b([CS])-0x[0-9a-f]+: (\S+?)\/(\S+?)@\S+/, '$1 $2/$3')
        .replace(/\(age=\d+s\)/, '(age)'),
    );
}
