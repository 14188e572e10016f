import { Traffic } from './traffic.ts';

const NAMES = Object.keys(new Traffic()) as (keyof Traffic)[];

/** All counters of several databases, each added up. */
export function sumTraffic(databases: Iterable<{ readonly traffic: Traffic }>): Traffic {
  const sum = new Traffic();
  for (const { traffic } of databases) for (const name of NAMES) sum[name] += traffic[name];
  return sum;
}
