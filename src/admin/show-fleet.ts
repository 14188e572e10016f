import { int4, int8, numeric, type Row, text } from './result.ts';
import type { WorkerSnapshot } from './snapshot.ts';
import type { Topic } from './topic.ts';

/**
 * SHOW FLEET, which PgBouncer has not: a row for each worker process. `uptime` is seconds, `memory`
 * bytes, the other times microseconds; `slots_held` are connections to PostgreSQL that count against
 * the limits, those too that are ending. A worker that does not answer is there by its number.
 */
export const showFleet: Topic = {
  columns: [
    int4('process'),
    int4('pid'),
    text('state'),
    int4('generation'),
    int4('uptime'),
    int4('clients'),
    int4('servers'),
    int4('slots_held'),
    numeric('cpu_user_us'),
    numeric('cpu_system_us'),
    int8('memory'),
    int4('event_loop_delay_us'),
  ],
  parts: ['process'],
  isSameEverywhere: false,
  hasProcesses: false,
  rows: ({ snapshots, missing }) =>
    [...snapshots.map(rowOf), ...[...missing.keys()].map(silentRow)].sort(
      (a, b) => Number(a[0]) - Number(b[0]),
    ),
};

function rowOf({ process, pid, state, running }: WorkerSnapshot): Row {
  // An answer without that part comes of no version of ours.
  if (running === null) return silentRow(process);
  return [
    process,
    pid,
    running.isStopping ? 'stopping' : state,
    running.generation,
    Math.floor(running.uptimeMs / 1000),
    running.clients,
    running.servers,
    running.slots,
    running.cpuUserUs,
    running.cpuSystemUs,
    running.rssBytes,
    running.loopDelayUs,
  ];
}

function silentRow(process: number): Row {
  return [process, null, 'silent', ...new Array<null>(9).fill(null)];
}
