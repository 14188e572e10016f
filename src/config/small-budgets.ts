import type { Config } from './config.ts';
import {
  ConfigIndex,
  effectiveMaxClientConn,
  effectiveMaxDbConnections,
  effectiveMaxUserConnections,
  effectivePoolSize,
  type Limit,
} from './effective.ts';

/**
 * One sentence for each written limit that is smaller than the fleet, so that some workers have no
 * part of it and pass their clients on to those that have.
 */
export function smallBudgets(config: Config, size: number): string[] {
  const index = new ConfigIndex(config);
  const found = new Map<string, number>();
  const note = (name: string, limit: Limit) => {
    if (limit.kind === 'max' && limit.value < size) found.set(name, limit.value);
  };
  note('max_client_conn', effectiveMaxClientConn(index));
  const entries = [...config.databases];
  if (config.autoDatabase !== null) entries.push({ ...config.autoDatabase, name: '*' });
  for (const entry of entries) {
    note(`max_db_connections of database ${entry.name}`, effectiveMaxDbConnections(index, entry));
    note(`pool_size of database ${entry.name}`, effectivePoolSize(index, entry, entry.user ?? ''));
  }
  for (const { name, pool_size } of config.users) {
    note(`max_user_connections of user ${name}`, effectiveMaxUserConnections(index, name));
    if (pool_size !== null && pool_size > 0) {
      note(`pool_size of user ${name}`, { kind: 'max', value: pool_size });
    }
  }
  return [...found].map(
    ([name, value]) =>
      `${name} is ${value}, less than the ${size} workers: only ${value} of them may use it, ` +
      'and their clients wait for those',
  );
}
