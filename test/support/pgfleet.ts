import { join } from 'node:path';
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
import { pgfleetFiles } from './repository.ts';
import { until } from './until.ts';

/** What a test says about its fleet. */
export interface PgfleetOptions extends PoolerOptions {
  /** Number of workers; default 1. */
  readonly size?: number | 'auto';
  /** `[fleet]`, added to `size`. */
  readonly fleet?: Section;
  /** Where a copy goes when the servers' account cannot enter the repository; default: the cache. */
  readonly keep?: Keep;
}

/** A real pgfleet: a launcher and its workers on one port. */
export class TestPgfleet extends TestPooler {
  /** Pids of the workers, the launcher's children. */
  workers(): number[] {
    return childrenOf(this.pid);
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

/** Starts a fleet for a test; end it with `t.after(() => fleet.stop())`. */
export async function startPgfleet(options: PgfleetOptions = {}): Promise<TestPgfleet> {
  const fleet = await preparePgfleet(options);
  await startOrRemove(fleet, options);
  return fleet;
}

/** Writes a fleet's files without starting it: for tests of a start that should fail. */
export async function preparePgfleet(options: PgfleetOptions = {}): Promise<TestPgfleet> {
  const { node, program } = await pgfleetFiles(options.keep);
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
