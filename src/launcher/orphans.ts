import { connect } from 'node:net';
import type { ServerReport } from '../ipc/messages.ts';

/**
 * What a dead worker leaves behind in PostgreSQL: a backend that runs a statement goes on to its end
 * although its client has vanished, and holds one of the connections that the limits count. So each
 * is sent a CancelRequest (PostgreSQL documentation, "Canceling Requests in Progress") before the
 * worker's successor opens connections of its own; idle ones end by themselves.
 */

const CANCEL_CODE = 80877102;
const WAIT_MS = 1000;

/** Cancels what the connections run. Resolves when all requests were dealt with, or after a second. */
export async function cancelOrphans(servers: Iterable<ServerReport>): Promise<void> {
  await Promise.all(Array.from(servers, cancel));
}

function cancel({ place, key }: ServerReport): Promise<void> {
  const keyBytes = Buffer.from(key, 'base64');
  const packet = Buffer.alloc(8 + keyBytes.length);
  packet.writeInt32BE(packet.length, 0);
  packet.writeInt32BE(CANCEL_CODE, 4);
  keyBytes.copy(packet, 8);
  return new Promise((resolve) => {
    const socket = connect(place);
    // The server closes the connection once the signal is on its way; whatever else ends it will do.
    const timer = setTimeout(() => socket.destroy(), WAIT_MS);
    socket.on('connect', () => socket.write(packet));
    socket.on('error', () => socket.destroy());
    socket.on('end', () => socket.destroy());
    socket.resume();
    socket.on('close', () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
