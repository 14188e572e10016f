import { readFileSync } from 'node:fs';
import { until } from './until.ts';

/** An established connection as the kernel sees one end of it (proc(5), /proc/net/tcp). */
export interface TcpRow {
  /** Bytes sent that the peer has not taken. */
  readonly unsent: number;
  /** Bytes received that this end has not read. */
  readonly unread: number;
  /** Kind of the timer that runs: 0 none, 1 retransmission, 2 keepalive, 4 window probe. */
  readonly timer: number;
  /** When it fires, in seconds. */
  readonly seconds: number;
}

/** Ports of the end that is looked at; without `local` the first with that peer. */
export interface TcpPorts {
  readonly local?: number;
  readonly remote: number;
}

const ESTABLISHED = '01';
/** USER_HZ, the unit of the timer. */
const TICKS_PER_SECOND = 100;

/** The end of a connection with these ports, on IPv4; throws when there is none. */
export function tcpRow({ local, remote }: TcpPorts): TcpRow {
  for (const row of readFileSync('/proc/net/tcp', 'utf8').split('\n').slice(1)) {
    const [, here = '', there = '', state, queues = '', timer = ''] = row.trim().split(/\s+/);
    const isLocal = local === undefined || portOf(here) === local;
    if (!isLocal || portOf(there) !== remote || state !== ESTABLISHED) continue;
    const [kind = '', when = ''] = timer.split(':');
    return {
      unsent: Number.parseInt(queues.split(':')[0] ?? '', 16),
      unread: Number.parseInt(queues.split(':')[1] ?? '', 16),
      timer: Number.parseInt(kind, 16),
      seconds: Number.parseInt(when, 16) / TICKS_PER_SECOND,
    };
  }
  throw new Error('there is no such connection');
}

/**
 * Waits until nothing moves any more: this end's peer takes nothing, and this end reads nothing either
 * unless only what it `sends` is asked for.
 */
export async function isStuck(ports: TcpPorts, way: 'sends' | 'both' = 'both'): Promise<void> {
  let before = { unsent: 0, unread: 0 };
  const isSame = (): boolean => {
    const row = tcpRow(ports);
    const isStill = row.unsent === before.unsent && row.unread === before.unread;
    before = row;
    return isStill && row.unsent > 0 && (way === 'sends' || row.unread > 0);
  };
  await until('nothing moves', isSame, { everyMs: 300 });
}

function portOf(address: string): number {
  return Number.parseInt(address.split(':')[1] ?? '', 16);
}
