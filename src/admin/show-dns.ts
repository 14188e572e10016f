import { isIP } from 'node:net';
import { int4, int8, text } from './result.ts';
import type { DnsHost, DnsZone, WorkerSnapshot } from './snapshot.ts';
import { compareNames, mergeBy, type Topic } from './topic.ts';

export const showDnsHosts: Topic = {
  columns: [text('hostname'), int8('ttl'), text('addrs')],
  parts: ['dns'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) =>
    mergeHosts(snapshots).map(({ hostname, ttlMs, addresses }) => [
      hostname,
      Math.floor(ttlMs / 1000),
      addresses.map(withPort).join(','),
    ]),
};

export const showDnsZones: Topic = {
  columns: [text('zonename'), int8('serial'), int4('count')],
  parts: ['dns'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) => {
    const hosts = mergeHosts(snapshots);
    return mergeZones(snapshots).map(({ zonename, serial }) => [
      zonename,
      serial,
      hosts.filter(({ zone }) => zone === zonename).length,
    ]);
  },
};

/** Every name that a worker knows, once, with the answer that holds for the longest time. */
export function mergeHosts(snapshots: readonly WorkerSnapshot[]): DnsHost[] {
  return mergeBy(
    snapshots.flatMap((snapshot) => snapshot.dns_hosts),
    (host) => host.hostname,
    (a, b) => (b.ttlMs > a.ttlMs ? b : a),
  ).sort((a, b) => compareNames(a.hostname, b.hostname));
}

/** Every zone that a worker knows, once, with the last serial number. */
export function mergeZones(snapshots: readonly WorkerSnapshot[]): DnsZone[] {
  return mergeBy(
    snapshots.flatMap((snapshot) => snapshot.dns_zones),
    (zone) => zone.zonename,
    (a, b) => (b.serial > a.serial ? b : a),
  ).sort((a, b) => compareNames(a.zonename, b.zonename));
}

/** PgBouncer shows an address with the port of its socket address, which is 0. */
function withPort(address: string): string {
  return isIP(address) === 6 ? `[${address}]:0` : `${address}:0`;
}
