import { join } from 'node:path';
import type { TestContext } from 'node:test';
import type { Keep } from './folders.ts';
import {
  type PoolerOptions,
  preparePooler,
  type Section,
  sectionText,
  startOrRemove,
  TestPooler,
} from './pooler.ts';
import { childrenOf } from './processes.ts';
import { type PgfleetFiles, pgfleetFiles } from './repository.ts';
import { until } from './until.ts';
import { type LoginOptions, WireClient } from './wire-client.ts';

/** What a test says about its fleet. */
export interface PgfleetOptions extends PoolerOptions {
  /** Number of workers; default 1. */
  readonly size?: number | 'auto';
  /** `[fleet]`, added to `size`. */
  readonly fleet?: Section;
  /** Where a copy goes when the servers' account cannot enter the repository; default: the cache. */
  readonly keep?: Keep;
  /** What to run; default: the repository's own. */
  readonly files?: PgfleetFiles;
}

/** A real pgfleet: a launcher and its workers on one port. */
export class TestPgfleet extends TestPooler {
  /** Pids of the workers, the launcher's children. */
  workers(): number[] {
    return childrenOf(this.pid);
  }

  /** Pid of the worker that has number `id` now. */
  workerPid(id: number): number {
    const started = [...this.log().matchAll(/ worker (\d+) (?:re)?started \(pid (\d+)/g)];
    const pid = Number(started.findLast(([, number]) => Number(number) === id)?.[2]);
    if (!this.workers().includes(pid))
      throw new Error(`worker ${id} is ${pid}, which does not run`);
    return pid;
  }

  /** Waits until the fleet has `count` workers, none of them among `others`. */
  async workersAre(
    count: number,
    others: readonly number[] = [],
    deadlineMs = 5_000,
  ): Promise<number[]> {
    return until(
      `${count} workers run`,
      () => {
        const pids = this.workers();
        return pids.length === count && !pids.some((pid) => others.includes(pid)) && pids;
      },
      { deadlineMs },
    );
  }
}

/** The number of the worker that has a client, as its cancel key tells. */
export function workerOf(client: WireClient): number {
  return client.key[3]!;
}

/** A client in a worker that is `wanted`; it is closed with the test. */
export async function loginInWorker(
  t: TestContext,
  fleet: TestPgfleet,
  wanted: (worker: number) => boolean,
  who: LoginOptions = {},
): Promise<WireClient> {
  return await until('a client is in such a worker', async () => {
    const client = await WireClient.login(fleet, who);
    if (wanted(workerOf(client))) {
      t.after(() => client.destroy());
      return client;
    }
    await client.end();
    return null;
  });
}

/** Starts a fleet for a test; end it with `t.after(() => fleet.stop())`. */
export async function startPgfleet(options: PgfleetOptions = {}): Promise<TestPgfleet> {
  const fleet = await preparePgfleet(options);
  await startOrRemove(fleet, options);
  return fleet;
}

/** Writes a fleet's files without starting it: for tests of a start that should fail. */
export async function preparePgfleet(options: PgfleetOptions = {}): Promise<TestPgfleet> {
  const { node, program } = options.files ?? (await pgfleetFiles(options.keep));
  const args = [program, ...(options.args ?? [])];
  const command = { name: 'pgfleet', program: node, args };
  const make = (port: number, folder: string): TestPgfleet =>
    new TestPgfleet(port, folder, command);
  return preparePooler('fleet', options, make, (folder) =>
    sectionText('fleet', {
      size: options.size ?? 1,
      runtime_dir: join(folder, 'run'),
      http_listen: '',
      ...options.fleet,
    }),
  );
}
