import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import type { TestPgfleet } from '../pgfleet.ts';
import type { TestPostgres } from '../postgres.ts';
import type { Random } from '../random.ts';

/** A few of the fleet's own servers, whatever they do. */
const TERMINATE_SOME = `SELECT count(pg_terminate_backend(pid))::int AS count FROM (
  SELECT pid FROM pg_stat_activity WHERE usename = 'app' ORDER BY random() LIMIT $1) AS chosen`;

/** Settings that a reload changes, each with values that all leave the traffic working. */
const RELOADED: Readonly<Record<string, readonly string[]>> = {
  default_pool_size: ['4', '6', '10'],
  server_lifetime: ['1', '3600'],
  server_idle_timeout: ['1', '600'],
  server_round_robin: ['0', '1'],
  max_prepared_statements: ['5', '200'],
};

/** What has happened to the fleet so far. */
export interface Outages {
  terminated: number;
  reloads: number;
  refusedReloads: number;
}

/** Terminates servers and reloads, now and then with a file that cannot be read, until told to stop. */
export async function causeOutages(
  postgres: TestPostgres,
  fleet: TestPgfleet,
  random: Random,
  isStopped: () => boolean,
): Promise<Outages> {
  const original = await readFile(fleet.configFile, 'utf8');
  const outages: Outages = { terminated: 0, reloads: 0, refusedReloads: 0 };
  const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
  const terminating = (async () => {
    while (!isStopped()) {
      await pause(100 + random.below(900));
      const [row] = await postgres.query<{ count: number }>(TERMINATE_SOME, [1 + random.below(3)]);
      outages.terminated += row!.count;
    }
  })();
  while (!isStopped() || outages.refusedReloads === 0) {
    await pause(200 + random.below(1_500));
    const isRefused = (outages.reloads + outages.refusedReloads) % 3 === 1;
    const text = isRefused ? `${original}nonsense\n` : changed(original, random);
    await writeFile(fleet.configFile, text);
    const reload = fleet.console('RELOAD');
    if (isRefused) await assert.rejects(reload, { code: 'F0000' });
    else await reload;
    outages[isRefused ? 'refusedReloads' : 'reloads']++;
  }
  await writeFile(fleet.configFile, original);
  await fleet.console('RELOAD');
  await terminating;
  return outages;
}

function changed(original: string, random: Random): string {
  const lines = Object.entries(RELOADED).map(([key, values]) => `${key} = ${random.pick(values)}`);
  return original.replace('[pgbouncer]\n', `[pgbouncer]\n${lines.join('\n')}\n`);
}
