import { int4 } from './result.ts';
import { LINK_COLUMNS, linkRow } from './show-clients.ts';
import type { SocketRow } from './snapshot.ts';
import { compareNames, type Topic } from './topic.ts';

/** SHOW SOCKETS and ACTIVE_SOCKETS: clients and servers with what waits in their buffers. */

const COLUMNS = [
  ...LINK_COLUMNS,
  ...[
    'recv_pos',
    'pkt_pos',
    'pkt_remain',
    'send_pos',
    'send_remain',
    'pkt_avail',
    'send_avail',
  ].map(int4),
];

const STATE_ORDER: Record<SocketRow['state'], number> = {
  cl_active: 0,
  cl_waiting: 1,
  sv_active: 2,
  sv_idle: 3,
  sv_used: 4,
  sv_tested: 5,
  sv_login: 6,
  cl_login: 7,
};

export const showSockets = listing(() => true);

/** Only those with bytes in a buffer or in the middle of a message. */
export const showActiveSockets = listing(
  ({ unreadBytes, messageLeft, unsentBytes }) => unreadBytes + messageLeft + unsentBytes > 0,
);

function listing(isShown: (socket: SocketRow) => boolean): Topic {
  return {
    columns: COLUMNS,
    parts: ['sockets'],
    isSameEverywhere: false,
    hasProcesses: true,
    rows: ({ snapshots }) =>
      snapshots
        .flatMap(({ sockets }) => sockets.filter(isShown))
        .sort(compare)
        .map((socket) => [...linkRow(socket.type, socket, socket.waitUs), ...buffers(socket)]),
  };
}

/** By pool, its clients first; those that log in have none yet and come last. */
function compare(a: SocketRow, b: SocketRow): number {
  const [first, second] = [STATE_ORDER[a.state], STATE_ORDER[b.state]];
  if (a.state === 'cl_login' || b.state === 'cl_login') return first - second;
  return (
    compareNames(a.database ?? '', b.database ?? '') ||
    compareNames(a.user ?? '', b.user ?? '') ||
    first - second
  );
}

/**
 * PgBouncer shows places in its buffer; here what has been parsed and sent is gone from the buffer,
 * so that these are 0.
 */
function buffers({ unreadBytes, messageLeft, unsentBytes }: SocketRow): number[] {
  return [unreadBytes, 0, messageLeft, 0, 0, unreadBytes, unsentBytes];
}
