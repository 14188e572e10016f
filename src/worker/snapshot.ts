import {
  type Counters,
  emptySnapshot,
  type LiveSnapshot,
  type ProcessRow,
  type SnapshotPart,
  type SnapshotSource,
  zeroCounters,
} from '../admin/snapshot.ts';
import type { Canceller } from '../cancel/canceller.ts';
import type { Admission } from '../client/admission.ts';
import { type ClientSession, ClientState } from '../client/client-session.ts';
import type { ConfigIndex } from '../config/effective.ts';
import { PGFLEET_VERSION } from '../log/version.ts';
import { LoopDelay } from '../metrics/loop-delay.ts';
import type { Traffic } from '../metrics/traffic.ts';
import type { DnsCache } from '../net/dns-cache.ts';
import type { Pool } from '../pool/pool.ts';
import type { PoolSet } from '../pool/pool-set.ts';
import type { TrackedNames } from '../server/parameters.ts';
import { clock } from '../util/clock.ts';
import { clientDescriptors, listenerDescriptors, serverDescriptors } from './descriptor-rows.ts';
import { clientRows, clientSockets, serverRows, serverSockets } from './link-rows.ts';
import type { Listeners } from './listeners.ts';

/** The rooms that are looked at. */
export interface LiveRooms {
  readonly worker: number;
  readonly sessions: ReadonlySet<ClientSession>;
  readonly pools: PoolSet;
  readonly canceller: Canceller;
  readonly dns: DnsCache;
  readonly users: () => Iterable<string>;
  readonly admission: () => Admission;
  readonly index: ConfigIndex;
  readonly isSuspended: () => boolean;
  readonly isStopping: () => boolean;
  /** Of the fleet that the worker belongs to. */
  readonly generation: number;
  readonly tracked: TrackedNames;
  /** The sockets that are listened on. */
  readonly listeners: () => Listeners['descriptors'];
  /** How often `tick` is called, milliseconds. */
  readonly tickMs: number;
}

/** What the console shows of this worker, read off the live rooms when asked for. */
export class LiveSnapshots implements SnapshotSource {
  readonly #rooms: LiveRooms;
  readonly #startedAt = clock.now;
  /** Counters at the last `stats_period` tick and at the one before it, of each database there is. */
  #last = new Map<Traffic, Counters>();
  #older = new Map<Traffic, Counters>();
  #lastAt: number;
  #olderAt: number;
  readonly #loopDelay: LoopDelay;

  constructor(rooms: LiveRooms) {
    this.#rooms = rooms;
    this.#loopDelay = new LoopDelay(rooms.tickMs);
    this.#lastAt = this.#startedAt;
    this.#olderAt = this.#startedAt - 1000;
  }

  /** Moves the window of the averages on once `stats_period` is over; called three times a second. */
  tick(now: number): void {
    this.#loopDelay.onTick(now);
    const periodMs = this.#rooms.index.settings.stats_period * 1000;
    if (periodMs <= 0 || now - this.#lastAt < periodMs) return;
    this.#older = this.#last;
    this.#olderAt = this.#lastAt;
    this.#lastAt = now;
    this.#last = new Map();
    for (const { traffic } of this.#rooms.pools.databases) {
      this.#last.set(traffic, countersOf(traffic));
    }
  }

  snapshot(parts: readonly SnapshotPart[]): LiveSnapshot {
    const { worker, sessions, pools, canceller, dns, users, admission, index } = this.#rooms;
    const all = [...pools.all].sort(byName);
    const listenPort = index.settings.listen_port;
    const snapshot = emptySnapshot(worker, process.pid, PGFLEET_VERSION);
    if (this.#rooms.isSuspended()) snapshot.state = 'suspended';
    else if (pools.isPaused) snapshot.state = 'paused';
    snapshot.statsWindowUs = Math.round((clock.tick() - this.#olderAt) * 1000);
    if (parts.includes('clients')) {
      snapshot.clients = clientRows(sessions, canceller, listenPort);
    }
    if (parts.includes('servers')) {
      snapshot.servers = all.flatMap((pool) => serverRows(pool, canceller));
    }
    if (parts.includes('sockets')) {
      snapshot.sockets = [
        ...clientSockets(sessions, listenPort),
        ...all.flatMap((pool) => serverSockets(pool)),
      ];
    }
    if (parts.includes('descriptors')) {
      const { listeners, tracked } = this.#rooms;
      snapshot.descriptors = [
        ...listenerDescriptors(listeners(), listenPort),
        ...clientDescriptors(sessions, tracked),
        ...all.flatMap((pool) => serverDescriptors(pool)),
      ];
    }
    if (parts.includes('peerPools')) {
      snapshot.peerPools = canceller.peerRequests.map(({ id, waiting, connecting, sent }) => ({
        peer_id: id,
        cl_active_cancel_req: sent,
        cl_waiting_cancel_req: waiting + connecting,
        sv_active_cancel: sent,
        sv_login: connecting,
      }));
    }
    if (parts.includes('process')) snapshot.running = this.#running();
    if (parts.includes('pools')) snapshot.pools = all.map((pool) => poolRow(pool, canceller));
    if (parts.includes('databases')) {
      snapshot.databases = [...pools.databases].map((database) => ({
        name: database.name,
        current_connections: pools.connectionsOf(database.name),
        current_client_connections: admission().ofDatabase(database.name),
        paused: database.isPaused,
        disabled: database.isDisabled,
      }));
    }
    if (parts.includes('users')) {
      const names = new Set([...users(), ...index.config.users.map((user) => user.name)]);
      for (const pool of all) names.add(pool.user);
      snapshot.users = [...names].map((name) => ({
        name,
        current_connections: pools.userBudget(name)?.held ?? 0,
        current_client_connections: admission().ofUser(name),
      }));
    }
    if (parts.includes('stats')) {
      snapshot.stats = [...pools.databases].map(({ name, traffic }) => ({
        database: name,
        current: countersOf(traffic),
        older: this.#older.get(traffic) ?? zeroCounters(),
      }));
    }
    if (parts.includes('sessions')) {
      snapshot.sessions = [...pools.databases].map(({ name, sessionLeaks, stalePlans }) => ({
        database: name,
        leaks: [...sessionLeaks.counts],
        stalePlans: stalePlans.refused,
        stalePlansHidden: stalePlans.hidden,
      }));
    }
    if (parts.includes('lists')) {
      let loggingIn = 0;
      for (const session of sessions) {
        if (session.state === ClientState.login && session.giveUpCancel === null) loggingIn++;
      }
      snapshot.lists.used_clients = sessions.size;
      snapshot.lists.login_clients = loggingIn;
      snapshot.lists.used_servers = pools.connections + canceller.active;
      snapshot.lists.dns_queries = dns.questions;
      snapshot.lists.peerPoolIds = canceller.peerRequests.map(({ id }) => id);
    }
    if (parts.includes('dns')) {
      snapshot.dns_hosts = dns.hosts;
      snapshot.dns_zones = dns.zones;
    }
    return snapshot;
  }

  #running(): ProcessRow {
    const { sessions, pools, generation, isStopping } = this.#rooms;
    const cpu = process.cpuUsage();
    const memory = process.memoryUsage();
    let closing = 0;
    for (const pool of pools.all) closing += pool.closing.size;
    return {
      isStopping: isStopping(),
      generation,
      uptimeMs: Math.round(process.uptime() * 1000),
      clients: sessions.size,
      servers: pools.connections - closing,
      slots: pools.connections,
      cpuUserUs: cpu.user,
      cpuSystemUs: cpu.system,
      rssBytes: memory.rss,
      heapBytes: memory.heapTotal,
      heapUsedBytes: memory.heapUsed,
      externalBytes: memory.external,
      loopDelayUs: Math.round(this.#loopDelay.maxMs * 1000),
    };
  }
}

function byName(a: Pool, b: Pool): number {
  const first = `${a.database.name}\0${a.user}`;
  const second = `${b.database.name}\0${b.user}`;
  return first < second ? -1 : first > second ? 1 : 0;
}

function poolRow(pool: Pool, canceller: Canceller): LiveSnapshot['pools'][number] {
  const cancels = canceller.countsOf(pool);
  const since = pool.waitingSince;
  const { entry } = pool.database;
  return {
    database: pool.database.name,
    user: pool.user,
    cl_active: pool.clients - pool.waitingClients,
    cl_waiting: pool.waitingClients,
    cl_active_cancel_req: cancels.active,
    cl_waiting_cancel_req: cancels.waiting,
    sv_active: pool.linked.size,
    sv_active_cancel: cancels.active,
    sv_being_canceled: pool.held.size,
    sv_idle: pool.idle.size,
    sv_used: pool.used.size,
    sv_tested: pool.tested.size,
    sv_login: pool.opening.size,
    maxWaitUs: Number.isFinite(since) ? Math.round((clock.now - since) * 1000) : 0,
    pool_mode: pool.plan.mode,
    load_balance_hosts: entry.hosts.length > 1 ? entry.load_balance_hosts : null,
  };
}

function countersOf(traffic: Traffic): Counters {
  return {
    server_assignment_count: traffic.serverAssignments,
    xact_count: traffic.transactions,
    query_count: traffic.queries,
    bytes_received: traffic.bytesReceived,
    bytes_sent: traffic.bytesSent,
    xact_time: Math.round(traffic.transactionUs),
    query_time: Math.round(traffic.queryUs),
    wait_time: Math.round(traffic.waitUs),
    client_parse_count: traffic.clientParses,
    server_parse_count: traffic.serverParses,
    bind_count: traffic.binds,
    client_login_count: traffic.clientLogins,
  };
}
