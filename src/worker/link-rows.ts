import type { ClientRow, ServerRow, SocketRow } from '../admin/snapshot.ts';
import type { ServerErrand } from '../cancel/cancel-errand.ts';
import type { Canceller, CancelProgress } from '../cancel/canceller.ts';
import { type ClientSession, ClientState } from '../client/client-session.ts';
import { tlsText } from '../client/tls-start.ts';
import { Pool } from '../pool/pool.ts';
import type { ServerConnection } from '../server/server-connection.ts';
import { clock } from '../util/clock.ts';
import { pointerOf } from '../util/ids.ts';

/** Clients and servers as SHOW CLIENTS, SERVERS and SOCKETS list them. */

/** Rows of the clients that have logged in or cancel something. */
export function clientRows(
  sessions: Iterable<ClientSession>,
  canceller: Canceller,
  listenPort: number,
): ClientRow[] {
  const rows: ClientRow[] = [];
  for (const session of sessions) {
    if (session.state >= ClientState.newcomer) {
      rows.push({ ...linkOfClient(session, listenPort), state: stateOf(session) });
    } else if (session.giveUpCancel !== null) {
      rows.push(cancelRow(session, canceller.progressOf(session.giveUpCancel), listenPort));
    }
  }
  return rows;
}

/** Rows of a pool's servers, those too that carry its cancel requests. */
export function serverRows(pool: Pool, canceller: Canceller): ServerRow[] {
  const rows: ServerRow[] = [];
  const add = (servers: Iterable<ServerConnection>, state: ServerRow['state']): void => {
    for (const server of servers) rows.push({ ...linkOfServer(pool, server), state });
  };
  add(pool.linked, 'active');
  add(pool.idle, 'idle');
  add(pool.used, 'used');
  add(pool.tested, 'tested');
  add(pool.opening, 'new');
  for (const errand of canceller.errandsOf(pool)) rows.push(errandRow(pool, errand));
  add(pool.held, 'being_canceled');
  add(pool.closing, 'closing');
  return rows;
}

/** Sockets of all clients but those that cancel something. */
export function clientSockets(sessions: Iterable<ClientSession>, listenPort: number): SocketRow[] {
  const rows: SocketRow[] = [];
  for (const session of sessions) {
    if (session.giveUpCancel !== null) continue;
    rows.push({
      ...linkOfClient(session, listenPort),
      type: 'C',
      state: socketStateOf(session),
      ...buffersOf(session),
    });
  }
  return rows;
}

/** Sockets of a pool's servers, in the order of PgBouncer's lists. */
export function serverSockets(pool: Pool): SocketRow[] {
  const rows: SocketRow[] = [];
  for (const [servers, state] of [
    [pool.linked, 'sv_active'],
    [pool.idle, 'sv_idle'],
    [pool.used, 'sv_used'],
    [pool.tested, 'sv_tested'],
    [pool.opening, 'sv_login'],
  ] as const) {
    for (const server of servers) {
      const link = linkOfServer(pool, server);
      rows.push({ ...link, type: 'S', state, waitUs: 0, ...buffersOf(server) });
    }
  }
  return rows;
}

/** Whether it waits for a server, be it before its welcome. */
export function isQueued(session: ClientSession): boolean {
  return session.isWaiting || session.state === ClientState.newcomer;
}

function stateOf(session: ClientSession): ClientRow['state'] {
  if (isQueued(session)) return 'waiting';
  return session.server === null ? 'idle' : 'active';
}

function socketStateOf(session: ClientSession): SocketRow['state'] {
  if (isQueued(session)) return 'cl_waiting';
  return session.state === ClientState.login ? 'cl_login' : 'cl_active';
}

function buffersOf({ link, messageLeft }: ClientSession | ServerConnection) {
  return { unreadBytes: link.stashBytes, messageLeft, unsentBytes: link.unsentBytes };
}

function cancelRow(
  session: ClientSession,
  { isSent, owner }: CancelProgress,
  listenPort: number,
): ClientRow {
  return {
    ...linkOfClient(session, listenPort),
    user: null,
    database: owner instanceof Pool ? owner.database.name : null,
    state: isSent ? 'active_cancel_req' : 'waiting_cancel_req',
  };
}

function linkOfClient(session: ClientSession, listenPort: number): Omit<ClientRow, 'state'> {
  const { localAddress, localPort } = session.origin ?? session.link.socket;
  const { tls } = session;
  return {
    user: session.userName || null,
    database: session.databaseName || null,
    replication: session.replication?.kind ?? 'none',
    addr: session.address,
    port: session.port,
    local_addr: session.isUnix ? 'unix' : (localAddress ?? 'unix'),
    local_port: session.isUnix ? listenPort : (localPort ?? 0),
    connectTimeMs: clock.wallTime(session.connectedAt),
    requestTimeMs: clock.wallTime(session.lastActivity),
    close_needed: false,
    ptr: session.ptr,
    link: session.server?.ptr ?? '',
    remote_pid: 0,
    tls: tls === null ? '' : tlsText(tls),
    application_name: session.applicationName,
    prepared_statements: session.statements.size,
    id: session.id,
    waitUs: session.queryStart > 0 ? Math.round((clock.now - session.queryStart) * 1000) : 0,
  };
}

function linkOfServer(pool: Pool, server: ServerConnection): Omit<ServerRow, 'state'> {
  const { socket } = server.link;
  const isUnix = server.address === 'unix';
  return {
    user: pool.user,
    database: pool.database.name,
    replication: server.owner.replicationKind,
    addr: isUnix ? 'unix' : (socket.remoteAddress ?? server.address),
    port: server.port,
    local_addr: isUnix ? 'unix' : (socket.localAddress ?? ''),
    local_port: isUnix ? server.port : (socket.localPort ?? 0),
    connectTimeMs: clock.wallTime(server.connectedAt),
    requestTimeMs: clock.wallTime(server.lastActivity),
    close_needed: server.isCloseNeeded,
    ptr: server.ptr,
    link: server.client?.ptr ?? '',
    remote_pid: server.cancelKey.length >= 4 ? server.cancelKey.readInt32BE(0) : 0,
    tls: server.tls,
    application_name: server.tracked[pool.tracked.applicationName] ?? '',
    prepared_statements: server.statements.size,
    id: server.id,
  };
}

/** A connection that carries a cancel request to the same place as its server. */
function errandRow(pool: Pool, { id, connectedAt, server, socket }: ServerErrand): ServerRow {
  const isUnix = server.address === 'unix';
  return {
    user: pool.user,
    database: pool.database.name,
    replication: 'none',
    state: 'active_cancel',
    addr: server.address,
    port: server.port,
    local_addr: isUnix ? 'unix' : (socket?.localAddress ?? ''),
    local_port: isUnix ? server.port : (socket?.localPort ?? 0),
    connectTimeMs: clock.wallTime(connectedAt),
    requestTimeMs: clock.wallTime(connectedAt),
    close_needed: false,
    ptr: pointerOf(id),
    link: '',
    remote_pid: 0,
    tls: '',
    application_name: '',
    prepared_statements: 0,
    id,
  };
}
