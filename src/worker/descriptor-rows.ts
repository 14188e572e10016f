import type { DescriptorRow } from '../admin/snapshot.ts';
import { type ClientSession, ClientState } from '../client/client-session.ts';
import { Link } from '../net/link.ts';
import { descriptorOf } from '../net/sockets.ts';
import type { Pool } from '../pool/pool.ts';
import type { TrackedNames, TrackedValues } from '../server/parameters.ts';
import type { ServerConnection } from '../server/server-connection.ts';
import { isQueued } from './link-rows.ts';
import type { Listeners } from './listeners.ts';

/** Descriptors as SHOW FDS lists them. As in PgBouncer, the console's own and those with TLS are left out. */

const Place = { listener: 0, login: 1, activeClient: 2, waitingClient: 3, server: 4 } as const;

type Values = Pick<DescriptorRow, 'client_encoding' | 'std_strings' | 'datestyle' | 'timezone'>;
const NO_VALUES: Values = {
  client_encoding: null,
  std_strings: null,
  datestyle: null,
  timezone: null,
};

/** The sockets that the worker accepts on. */
export function listenerDescriptors(
  descriptors: Listeners['descriptors'],
  listenPort: number,
): DescriptorRow[] {
  return descriptors.map(({ fd, grant }) => ({
    fd,
    task: 'pooler',
    place: Place.listener,
    user: null,
    database: null,
    addr: grant.kind === 'unix' ? 'unix' : grant.host,
    port: grant.kind === 'unix' ? listenPort : grant.port,
    cancel: '0',
    link: 0,
    ...NO_VALUES,
  }));
}

/** Clients in whatever phase, without those that cancel something. */
export function clientDescriptors(
  sessions: Iterable<ClientSession>,
  tracked: TrackedNames,
): DescriptorRow[] {
  const rows: DescriptorRow[] = [];
  for (const session of sessions) {
    if (session.isConsole || session.tls !== null || session.giveUpCancel !== null) continue;
    const isLogin = session.state === ClientState.login;
    rows.push({
      fd: descriptorOf(session.link.socket),
      task: 'client',
      place: isLogin ? Place.login : isQueued(session) ? Place.waitingClient : Place.activeClient,
      user: session.userName || null,
      database: session.databaseName || null,
      addr: session.address,
      port: session.port,
      cancel: cancelNumber(session.cancelKey),
      link: session.server === null ? 0 : descriptorOf(session.server.link.socket),
      ...(isLogin ? NO_VALUES : valuesOf(tracked, session.tracked)),
    });
  }
  return rows;
}

/** A pool's servers. */
export function serverDescriptors(pool: Pool): DescriptorRow[] {
  const rows: DescriptorRow[] = [];
  const lists = [pool.linked, pool.idle, pool.used, pool.tested, pool.opening];
  for (const [at, servers] of lists.entries()) {
    for (const server of servers) {
      if (server.tls === '') rows.push(serverDescriptor(pool, server, Place.server + at));
    }
  }
  return rows;
}

function serverDescriptor(pool: Pool, server: ServerConnection, place: number): DescriptorRow {
  // What asks for secrets of users has none.
  const clientLink = server.client?.link;
  return {
    fd: descriptorOf(server.link.socket),
    task: 'server',
    place,
    user: pool.user,
    database: pool.database.name,
    addr: server.address,
    port: server.port,
    cancel: cancelNumber(server.cancelKey),
    link: clientLink instanceof Link ? descriptorOf(clientLink.socket) : 0,
    ...valuesOf(pool.tracked, server.tracked),
  };
}

function valuesOf(tracked: TrackedNames, values: TrackedValues): Values {
  const trackedAs = (name: string): string | null => values[tracked.indexOf(name)] ?? null;
  return {
    client_encoding: trackedAs('client_encoding'),
    std_strings: trackedAs('standard_conforming_strings'),
    datestyle: trackedAs('DateStyle'),
    timezone: trackedAs('TimeZone'),
  };
}

function cancelNumber(key: Buffer): string {
  return key.length < 8 ? '0' : key.readBigUInt64BE(0).toString();
}
