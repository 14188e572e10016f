import { type LiveSnapshot, zeroCounters } from './snapshot.ts';

/** Name of the console's database, pool and user, reserved as in PgBouncer. */
export const CONSOLE_DATABASE = 'pgbouncer';

/**
 * Adds the console itself to what the live rooms tell, where they do not: PgBouncer lists its
 * virtual database like any other. Commands of the console are not counted in the statistics.
 *
 * @param sessions console sessions that are open in this worker
 */
export function withConsole(live: LiveSnapshot, sessions: number): LiveSnapshot {
  const name = CONSOLE_DATABASE;
  const pool = {
    database: name,
    user: name,
    cl_active: sessions,
    cl_waiting: 0,
    cl_active_cancel_req: 0,
    cl_waiting_cancel_req: 0,
    sv_active: 0,
    sv_active_cancel: 0,
    sv_being_canceled: 0,
    sv_idle: 0,
    sv_used: 0,
    sv_tested: 0,
    sv_login: 0,
    maxWaitUs: 0,
    pool_mode: 'statement' as const,
    load_balance_hosts: null,
  };
  const database = {
    name,
    current_connections: 0,
    current_client_connections: sessions,
    paused: false,
    disabled: false,
  };
  const user = { name, current_connections: 0, current_client_connections: 0 };
  const stats = { database: name, current: zeroCounters(), older: zeroCounters() };
  return {
    ...live,
    pools: added(live.pools, pool, (row) => row.database === name),
    databases: added(live.databases, database, (row) => row.name === name),
    users: added(live.users, user, (row) => row.name === name),
    stats: added(live.stats, stats, (row) => row.database === name),
  };
}

function added<T>(rows: T[], row: T, isIt: (row: T) => boolean): T[] {
  return rows.some(isIt) ? rows : [...rows, row];
}
