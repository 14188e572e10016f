import { zoneAbbreviation } from '../log/zone.ts';
import type { Column } from '../wire/encode.ts';
import { int4, type Row, text } from './result.ts';
import type { ClientRow, ServerRow, SocketRow } from './snapshot.ts';
import { compareNames, type Topic } from './topic.ts';

/** SHOW CLIENTS and SHOW SERVERS: one shape; the rows of all workers, sorted as one pooler does. */

export const LINK_COLUMNS: readonly Column[] = [
  text('type'),
  text('user'),
  text('database'),
  text('replication'),
  text('state'),
  text('addr'),
  int4('port'),
  text('local_addr'),
  int4('local_port'),
  text('connect_time'),
  text('request_time'),
  int4('wait'),
  int4('wait_us'),
  int4('close_needed'),
  text('ptr'),
  text('link'),
  int4('remote_pid'),
  text('tls'),
  text('application_name'),
  int4('prepared_statements'),
  int4('id'),
];

/** Places of the states within a pool. */
const CLIENT_ORDER: Record<ClientRow['state'], number> = {
  active: 0,
  idle: 0,
  waiting: 1,
  active_cancel_req: 2,
  waiting_cancel_req: 3,
};
const SERVER_ORDER: Record<ServerRow['state'], number> = {
  active: 0,
  idle: 1,
  used: 2,
  tested: 3,
  new: 4,
  active_cancel: 5,
  being_canceled: 6,
  closing: 7,
};

export const showClients: Topic = {
  columns: LINK_COLUMNS,
  parts: ['clients'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) =>
    snapshots
      .flatMap((snapshot) => snapshot.clients)
      .sort((a, b) => comparePools(a, b) || CLIENT_ORDER[a.state] - CLIENT_ORDER[b.state])
      .map((client) => linkRow('C', client, client.waitUs)),
};

export const showServers: Topic = {
  columns: LINK_COLUMNS,
  parts: ['servers'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) =>
    snapshots
      .flatMap((snapshot) => snapshot.servers)
      .sort((a, b) => comparePools(a, b) || SERVER_ORDER[a.state] - SERVER_ORDER[b.state])
      .map((server) => linkRow('S', server, 0)),
};

/** By database, then user; those that have none of it (cancel requests) come behind the others. */
function comparePools(a: ClientRow | ServerRow, b: ClientRow | ServerRow): number {
  if (a.database === null || b.database === null) {
    return Number(a.database === null) - Number(b.database === null);
  }
  const byDatabase = compareNames(a.database, b.database);
  if (byDatabase !== 0 || (a.user !== null && b.user !== null)) {
    return byDatabase || compareNames(a.user!, b.user!);
  }
  return Number(a.user === null) - Number(b.user === null);
}

/** The values of `LINK_COLUMNS`. */
export function linkRow(
  type: string,
  link: ClientRow | ServerRow | SocketRow,
  waitUs: number,
): Row {
  return [
    type,
    link.user ?? '(nouser)',
    link.database ?? '(nodb)',
    link.replication,
    link.state,
    link.addr,
    link.port,
    link.local_addr,
    link.local_port,
    formatMoment(link.connectTimeMs),
    formatMoment(link.requestTimeMs),
    Math.floor(waitUs / 1_000_000),
    waitUs % 1_000_000,
    link.close_needed,
    link.ptr,
    link.link,
    link.remote_pid,
    link.tls,
    link.application_name,
    link.prepared_statements,
    link.id,
  ];
}

/** Local time to the second, with the zone's abbreviation. */
function formatMoment(atMs: number): string {
  const at = new Date(atMs);
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${date} ${time} ${zoneAbbreviation(at)}`;
}

function two(value: number): string {
  return value < 10 ? `0${value}` : String(value);
}
