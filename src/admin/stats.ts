import { type CounterName, type Counters, counterNames, type WorkerSnapshot } from './snapshot.ts';

/** Statistics of one database, or of all, over several workers. */
export interface Stats {
  readonly totals: Counters;
  readonly averages: Record<CounterName, bigint>;
}

/** What one worker has counted of it. */
interface Share {
  readonly windowUs: number;
  readonly current: Counters;
  readonly older: Counters;
}

/** Averages that are microseconds for each of another counter; the others are a second's. */
const TIME_FOR_EACH: Partial<Record<CounterName, CounterName>> = {
  xact_time: 'xact_count',
  query_time: 'query_count',
  wait_time: 'server_assignment_count',
};

/** One entry a database that a worker has a pool of. */
export function statsByDatabase(snapshots: readonly WorkerSnapshot[]): Map<string, Stats> {
  const shares = new Map<string, Share[]>();
  for (const { stats, statsWindowUs } of snapshots) {
    for (const { database, current, older } of stats) {
      const ofDatabase = shares.get(database) ?? [];
      ofDatabase.push({ windowUs: statsWindowUs, current, older });
      shares.set(database, ofDatabase);
    }
  }
  return new Map([...shares].map(([database, ofDatabase]) => [database, addUp(ofDatabase)]));
}

/** All pools of all workers together. */
export function statsOfAll(snapshots: readonly WorkerSnapshot[]): Stats {
  return addUp(
    snapshots.flatMap(({ stats, statsWindowUs }) =>
      stats.map(({ current, older }) => ({ windowUs: statsWindowUs, current, older })),
    ),
  );
}

function addUp(shares: readonly Share[]): Stats {
  const totals = {} as Counters;
  const averages = {} as Record<CounterName, bigint>;
  for (const name of counterNames) {
    totals[name] = shares.reduce((sum, { current }) => sum + Math.trunc(current[name]), 0);
    const each = TIME_FOR_EACH[name];
    averages[name] = each === undefined ? perSecond(shares, name) : perEach(shares, name, each);
  }
  return { totals, averages };
}

/**
 * Sum of the workers' rates, each over its own window, since a worker that has just been replaced
 * looks back less far. Cut to an integer once, at the end: of three workers with 0.5 a second each,
 * none would be left if each were cut.
 */
function perSecond(shares: readonly Share[], name: CounterName): bigint {
  let above = 0n;
  let below = 1n;
  for (const share of shares) {
    const windowUs = whole(share.windowUs);
    if (windowUs === 0n) continue;
    above = above * windowUs + grown(share, name) * below;
    below *= windowUs;
  }
  return (1_000_000n * above) / below;
}

function perEach(shares: readonly Share[], name: CounterName, each: CounterName): bigint {
  let time = 0n;
  let times = 0n;
  for (const share of shares) {
    if (share.windowUs === 0) continue;
    time += grown(share, name);
    times += grown(share, each);
  }
  return times === 0n ? 0n : time / times;
}

/** Growth within the window. */
function grown(share: Share, name: CounterName): bigint {
  const growth = whole(share.current[name]) - whole(share.older[name]);
  return growth > 0n ? growth : 0n;
}

function whole(value: number): bigint {
  return BigInt(Math.trunc(value));
}
