import type { LookupFunction } from 'node:net';
import { log } from '../log/logger.ts';
import { clock } from '../util/clock.ts';
import type { Names } from './names.ts';

/**
 * Addresses of hosts that connections are opened to, with PgBouncer's rules: an answer is kept for
 * `dns_max_ttl` whatever lifetime its records have, a failure for `dns_nxdomain_ttl`; one question is
 * under way for a name; an answer that is old is asked for anew when the next connection needs it;
 * the addresses of a name are used in turn. Where `dns_zone_check_period` is set, a zone whose serial
 * number has grown has its names asked for at once.
 */

/** PgBouncer's reason for a connection attempt that ends at the name. */
export class DnsError extends Error {
  override readonly name = 'DnsError';

  constructor() {
    super('server DNS lookup failed');
  }
}

/** In milliseconds. */
interface DnsTimes {
  readonly maxTtlMs: number;
  readonly nxdomainTtlMs: number;
  /** 0: zones are not watched. */
  readonly zoneCheckMs: number;
}

export interface DnsCacheOptions {
  readonly names: Names;
  /** Asked at each use, so that a reload takes effect. */
  readonly times: () => DnsTimes;
  /** Place in the first answer of a name to begin at, so that workers do not all begin at one. */
  readonly first: number;
  /** A name has lost addresses that it had; told before any connection uses those that it has now. */
  readonly onMoved: (host: string, addresses: readonly string[]) => void;
}

/** A name as SHOW DNS_HOSTS shows it. */
export interface KnownHost {
  readonly hostname: string;
  /** What stands behind its first dot; null: nothing. */
  readonly zone: string | null;
  /** Until it may be asked for again; 0 when it is old. */
  readonly ttlMs: number;
  /** Empty: the last question failed, or none has been answered. */
  readonly addresses: readonly string[];
}

/** A zone as SHOW DNS_ZONES shows it. */
export interface KnownZone {
  readonly zonename: string;
  /** 0 until it has been asked for. */
  readonly serial: number;
}

type Callback = Parameters<LookupFunction>[2];

interface Host {
  readonly name: string;
  readonly zone: string | null;
  /** Of the last answer; empty when it was a failure. */
  addresses: readonly string[];
  /** Of the last answer that was no failure. */
  lastGood: readonly string[];
  /** Counts connections, each of which takes the next address. */
  uses: number;
  expiresAt: number;
  /** Addresses of this answer that refused the last connection to them. */
  readonly refusing: Set<string>;
  isAsking: boolean;
  readonly waiting: Callback[];
}

export class DnsCache {
  readonly #options: DnsCacheOptions;
  readonly #hosts = new Map<string, Host>();
  readonly #serials = new Map<string, number>();
  #zonesCheckedAt = clock.now;
  #questions = 0;

  constructor(options: DnsCacheOptions) {
    this.#options = options;
  }

  /** Questions under way. */
  get questions(): number {
    return this.#questions;
  }

  get hosts(): KnownHost[] {
    return [...this.#hosts.values()].map(({ name, zone, addresses, expiresAt }) => ({
      hostname: name,
      zone,
      ttlMs: Math.max(0, expiresAt - clock.now),
      addresses,
    }));
  }

  get zones(): KnownZone[] {
    return [...this.#zones.keys()].map((zonename) => ({
      zonename,
      serial: this.#serials.get(zonename) ?? 0,
    }));
  }

  /** What `net.connect` asks for the address of one connection; fails with a `DnsError`. */
  readonly lookup: LookupFunction = (name, _options, callback) => {
    const host = this.#host(name);
    if (!host.isAsking && clock.now < host.expiresAt) {
      // Never before the caller has its socket.
      process.nextTick(() => this.#answer(host, callback));
      return;
    }
    host.waiting.push(callback);
    this.#ask(host);
  };

  /**
   * No connection could be made to an address of a name. Returns whether another address is left to
   * try: until the next answer this one is passed over, unless all of them refuse. PgBouncer takes the
   * address again when its turn comes, so that `localhost` with a server on 127.0.0.1 alone fails
   * every second time.
   */
  refused(name: string, address: string): boolean {
    const host = this.#hosts.get(name);
    if (host?.addresses.includes(address) !== true) return false;
    host.refusing.add(address);
    if (host.addresses.some((other) => !host.refusing.has(other))) return true;
    host.refusing.clear();
    return false;
  }

  /** Another worker has learnt that the addresses of a name changed. */
  learn(name: string, addresses: readonly string[]): void {
    const host = this.#hosts.get(name);
    if (host !== undefined) this.#take(host, addresses);
  }

  /** Asks for the serial numbers of zones when it is time. `now` is the coarse clock's. */
  tick(now: number): void {
    const { zoneCheckMs } = this.#options.times();
    if (zoneCheckMs === 0 || now - this.#zonesCheckedAt < zoneCheckMs) return;
    this.#zonesCheckedAt = now;
    for (const [zone, hosts] of this.#zones) void this.#checkZone(zone, hosts);
  }

  #host(name: string): Host {
    let host = this.#hosts.get(name);
    if (host === undefined) {
      const expiresAt = Number.NEGATIVE_INFINITY;
      const state = { addresses: [], lastGood: [], uses: this.#options.first, expiresAt };
      const zone = zoneOf(name);
      host = { name, zone, ...state, refusing: new Set(), isAsking: false, waiting: [] };
      this.#hosts.set(name, host);
    }
    return host;
  }

  /** Zones, each with its hosts. */
  get #zones(): Map<string, Host[]> {
    const zones = new Map<string, Host[]>();
    for (const host of this.#hosts.values()) {
      if (host.zone === null) continue;
      const hosts = zones.get(host.zone);
      if (hosts === undefined) zones.set(host.zone, [host]);
      else hosts.push(host);
    }
    return zones;
  }

  #ask(host: Host): void {
    if (host.isAsking) return;
    host.isAsking = true;
    this.#questions++;
    this.#options.names.addresses(host.name).then(
      (addresses) => this.#settle(host, addresses),
      (error: unknown) => {
        log.debug(`DNS lookup failed: ${host.name} - ${(error as Error).message}`);
        this.#settle(host, []);
      },
    );
  }

  #settle(host: Host, addresses: readonly string[]): void {
    host.isAsking = false;
    this.#questions--;
    if (addresses.length === 0) {
      // PgBouncer's number for "no address came".
      log.warning(`DNS lookup failed: ${host.name}: result=0`);
      host.addresses = [];
      host.expiresAt = clock.tick() + this.#options.times().nxdomainTtlMs;
    } else if (this.#take(host, addresses)) {
      this.#options.onMoved(host.name, addresses);
    }
    for (const callback of host.waiting.splice(0)) this.#answer(host, callback);
  }

  /** Puts an answer in force. Returns whether it lacks an address of the one before. */
  #take(host: Host, addresses: readonly string[]): boolean {
    const hasMoved = host.lastGood.some((address) => !addresses.includes(address));
    host.addresses = addresses;
    host.lastGood = addresses;
    host.refusing.clear();
    host.expiresAt = clock.tick() + this.#options.times().maxTtlMs;
    return hasMoved;
  }

  #answer(host: Host, callback: Callback): void {
    const { addresses } = host;
    if (addresses.length === 0) {
      callback(new DnsError(), '', 4);
      return;
    }
    let address: string;
    do address = addresses[host.uses++ % addresses.length]!;
    while (host.refusing.has(address));
    callback(null, address, address.includes(':') ? 6 : 4);
  }

  async #checkZone(zone: string, hosts: readonly Host[]): Promise<void> {
    this.#questions++;
    try {
      const serial = await this.#options.names.serial(zone);
      const old = this.#serials.get(zone);
      // Serial numbers go round (RFC 1982).
      if (old !== undefined && (serial - old) >> 0 <= 0) return;
      this.#serials.set(zone, serial);
      log.info(`zone '${zone}' serial changed: old=${old ?? 0} new=${serial}`);
      for (const host of hosts) this.#ask(host);
    } catch (error) {
      log.debug(`SOA lookup failed: ${zone} - ${(error as Error).message}`);
    } finally {
      this.#questions--;
    }
  }
}

function zoneOf(name: string): string | null {
  return /^[^.]*\.(.+)$/.exec(name)?.[1] ?? null;
}
