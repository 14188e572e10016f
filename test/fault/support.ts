/** Shared by the tests of faults: what a client was told, and whether a pool is whole again. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { reportFields, type WireMessage } from '../support/messages.ts';
import type { TestPgfleet } from '../support/pgfleet.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

export const isLong = process.env['PGFLEET_LONG'] === '1';

/** Everything until the other side closes, one line a message; the last line is `closed`. */
export async function linesUntilClose(client: WireClient, deadlineMs?: number): Promise<string[]> {
  return [...(await client.untilClose(deadlineMs)).map(line), 'closed'];
}

/** One message as a line: errors and notices as `FATAL 08P01 text`, ReadyForQuery as `Z:I`. */
export function line({ type, body }: WireMessage): string {
  if (type === 'Z') return `Z:${body.toString('latin1')}`;
  if (type !== 'E' && type !== 'N') return type;
  const { S, C, M } = reportFields(body);
  return `${S} ${C} ${M}`;
}

/** The lines of a FATAL of the pooler's own and the end of the connection. */
export function fatal(text: string): string[] {
  return [`FATAL 08P01 ${text}`, 'closed'];
}

/** Whether the gauges of SHOW POOLS of `database`, summed over its pools, are these. */
export async function poolIs(
  fleet: TestPgfleet,
  gauges: Readonly<Record<string, number>>,
  database = 'app',
): Promise<boolean> {
  const pools = (await fleet.console('SHOW POOLS')).filter((pool) => pool['database'] === database);
  const sum = (gauge: string): number =>
    pools.reduce((total, pool) => total + Number(pool[gauge] ?? Number.NaN), 0);
  return pools.length > 0 && Object.entries(gauges).every(([name, value]) => sum(name) === value);
}

/** Waits until no client waits and no server is in use, being tested or logging in. */
export async function poolsAreIdle(fleet: TestPgfleet, deadlineMs = 10_000): Promise<void> {
  const idle = { cl_waiting: 0, sv_active: 0, sv_tested: 0, sv_login: 0 };
  await until('the pools are idle', () => poolIs(fleet, idle), { deadlineMs });
}

/** Runs one query on a fresh connection and fails unless the answer is right. */
export async function isServed(fleet: TestPgfleet, deadlineMs?: number): Promise<void> {
  const client = await WireClient.login(fleet);
  try {
    const received = await client.query("SELECT 'served'", deadlineMs);
    // It may have waited, and been told so.
    const answer = received.filter(({ type }) => type !== 'N');
    assert.deepEqual(answer.map(line), ['T', 'D', 'C', 'Z:I']);
  } finally {
    client.destroy();
  }
}

/** Resident memory of a process in bytes. */
export function memoryOf(pid: number): number {
  const [, kb] = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return Number(kb) * 1024;
}

/** Sockets that a process holds open. */
export function descriptorsOf(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length;
}

/** Runs `work` for every item, `lanes` at a time. */
export async function inLanes<T>(
  items: Iterable<T>,
  lanes: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const queue = items[Symbol.iterator]();
  const lane = async (): Promise<void> => {
    for (let next = queue.next(); next.done !== true; next = queue.next()) await work(next.value);
  };
  await Promise.all(Array.from({ length: lanes }, lane));
}
