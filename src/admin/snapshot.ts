import { z } from 'zod';

/**
 * What one worker tells the console about itself: plain JSON, so that it reads the same whether it
 * comes from this process or over the mesh. Fields that are columns of a SHOW carry the column's
 * name; the others are camelCase with their unit.
 */

/** Parts of a snapshot; a part that was not asked for may be left empty. */
export const snapshotParts = [
  'clients',
  'servers',
  'pools',
  'databases',
  'users',
  'stats',
  'sessions',
  'lists',
  'dns',
  'config',
  'sockets',
  'descriptors',
  'peerPools',
  'process',
] as const;
export type SnapshotPart = (typeof snapshotParts)[number];

const count = z.number().nonnegative();

const linkFields = {
  /** Login user of a client, user towards PostgreSQL of a server; null: none (cancel requests). */
  user: z.string().nullable(),
  /** Name of the pool's database as clients know it; null: none. */
  database: z.string().nullable(),
  replication: z.enum(['none', 'logical', 'physical']),
  /** IP address of the other end, or `unix`. */
  addr: z.string(),
  port: z.number(),
  /** IP address of the own end, or `unix`. */
  local_addr: z.string(),
  local_port: z.number(),
  /** Milliseconds since 1970 of the accept or of the start of the connection attempt. */
  connectTimeMs: z.number(),
  /** Milliseconds since 1970 of the last packet from the other end. */
  requestTimeMs: z.number(),
  close_needed: z.boolean(),
  /** Opaque, unique in the fleet: `0x` and hexadecimal digits. */
  ptr: z.string(),
  /** `ptr` of the linked server or client, or empty. */
  link: z.string(),
  remote_pid: z.number(),
  /** `PROTOCOL/CIPHER`, or empty. */
  tls: z.string(),
  application_name: z.string(),
  prepared_statements: count,
  /** Unique in the fleet over clients and servers, growing. */
  id: z.number(),
};

const clientRow = z.object({
  ...linkFields,
  state: z.enum(['active', 'idle', 'waiting', 'active_cancel_req', 'waiting_cancel_req']),
  /** Microseconds since the current query began, waiting or running; 0 when there is none. */
  waitUs: count,
});
export type ClientRow = z.infer<typeof clientRow>;

const serverRow = z.object({
  ...linkFields,
  /** `closing`, which PgBouncer has not: told to end, but PostgreSQL still has it, and it has its slot. */
  state: z.enum([
    'active',
    'idle',
    'used',
    'tested',
    'new',
    'active_cancel',
    'being_canceled',
    'closing',
  ]),
});
export type ServerRow = z.infer<typeof serverRow>;

/** A socket of a client or server, by the list that it is in, and what waits in it. */
const socketRow = z.object({
  ...linkFields,
  type: z.enum(['C', 'S']),
  state: z.enum([
    'cl_active',
    'cl_waiting',
    'cl_login',
    'sv_active',
    'sv_idle',
    'sv_used',
    'sv_tested',
    'sv_login',
  ]),
  /** As `waitUs` of a client. */
  waitUs: count,
  /** Received bytes that have not been looked at. */
  unreadBytes: count,
  /** Bytes that are owed of a message of which some have been passed on. */
  messageLeft: count,
  /** Bytes that its reader has not taken. */
  unsentBytes: count,
});
export type SocketRow = z.infer<typeof socketRow>;

/** A descriptor of the process. */
const descriptorRow = z.object({
  fd: z.number(),
  task: z.enum(['pooler', 'client', 'server']),
  /** Where it stands among the others: listening sockets, then logins, then the pools' lists. */
  place: z.number(),
  user: z.string().nullable(),
  database: z.string().nullable(),
  addr: z.string(),
  port: z.number(),
  /** The first 8 bytes of the cancel key as an unsigned number in decimal digits; 0: none. */
  cancel: z.string(),
  /** Descriptor of the linked server or client; 0: none. */
  link: z.number(),
  client_encoding: z.string().nullable(),
  std_strings: z.string().nullable(),
  datestyle: z.string().nullable(),
  timezone: z.string().nullable(),
});
export type DescriptorRow = z.infer<typeof descriptorRow>;

/** Cancel requests for a host of `[peers]`. */
const peerPoolRow = z.object({
  peer_id: z.number(),
  cl_active_cancel_req: count,
  cl_waiting_cancel_req: count,
  sv_active_cancel: count,
  sv_login: count,
});
export type PeerPoolRow = z.infer<typeof peerPoolRow>;

/** The process itself. */
const processRow = z.object({
  /** It waits for its end. */
  isStopping: z.boolean(),
  /** Of the fleet that it belongs to. */
  generation: z.number(),
  uptimeMs: count,
  clients: count,
  /** Connections to PostgreSQL that have not been told to end. */
  servers: count,
  /** Server connections that count against the limits. */
  slots: count,
  cpuUserUs: count,
  cpuSystemUs: count,
  /** Resident memory. */
  rssBytes: count,
  heapBytes: count,
  heapUsedBytes: count,
  /** Buffers and whatever else lies outside of the heap. */
  externalBytes: count,
  /** By how much the event loop was late at most in the last ten seconds. */
  loopDelayUs: count,
});
export type ProcessRow = z.infer<typeof processRow>;

const poolMode = z.enum(['session', 'transaction', 'statement']);

const poolRow = z.object({
  database: z.string(),
  /** User that the pool logs in with. */
  user: z.string(),
  cl_active: count,
  cl_waiting: count,
  cl_active_cancel_req: count,
  cl_waiting_cancel_req: count,
  sv_active: count,
  sv_active_cancel: count,
  sv_being_canceled: count,
  sv_idle: count,
  sv_used: count,
  sv_tested: count,
  sv_login: count,
  /** Microseconds since the query of the first queued client began; 0 when none waits. */
  maxWaitUs: count,
  pool_mode: poolMode,
  /** Only of a database with several hosts. */
  load_balance_hosts: z.enum(['round-robin', 'disable']).nullable(),
});
export type PoolRow = z.infer<typeof poolRow>;

/** Live values of a database; what is configured comes from the configuration. */
const databaseRow = z.object({
  name: z.string(),
  current_connections: count,
  current_client_connections: count,
  paused: z.boolean(),
  disabled: z.boolean(),
});
export type DatabaseRow = z.infer<typeof databaseRow>;

/** A user that the worker knows (auth_file, forced, looked up), with its connections now. */
const userRow = z.object({
  name: z.string(),
  current_connections: count,
  current_client_connections: count,
});
export type UserRow = z.infer<typeof userRow>;

/** Counters of a pool in the order of SHOW STATS; times are microseconds. */
export const counterNames = [
  'server_assignment_count',
  'xact_count',
  'query_count',
  'bytes_received',
  'bytes_sent',
  'xact_time',
  'query_time',
  'wait_time',
  'client_parse_count',
  'server_parse_count',
  'bind_count',
  'client_login_count',
] as const;
export type CounterName = (typeof counterNames)[number];
export type Counters = Record<CounterName, number>;

const counters = z.object(
  Object.fromEntries(counterNames.map((name) => [name, count])) as Record<
    CounterName,
    typeof count
  >,
);

/** Counters of a database, added up over its pools. */
const statsRow = z.object({
  database: z.string(),
  /** Since the pools were made. */
  current: counters,
  /** As they stood at the `stats_period` tick before the last one; zeros when there was none. */
  older: counters,
});
export type StatsRow = z.infer<typeof statsRow>;

/** What statements meet in a session that clients share, by database, since the worker started. */
const sessionRow = z.object({
  database: z.string(),
  /** Statements that leave session state behind, by place in `LEAK_KINDS`. */
  leaks: z.array(count),
  stalePlans: count,
  stalePlansHidden: count,
});
export type SessionRow = z.infer<typeof sessionRow>;

const listCounts = z.object({
  /** Peers that a cancel request was forwarded to, by id. */
  peerPoolIds: z.array(z.number()),
  free_clients: count,
  used_clients: count,
  login_clients: count,
  free_servers: count,
  used_servers: count,
  dns_queries: count,
});
export type ListCounts = z.infer<typeof listCounts>;

/** A name of a host that the worker has asked for. */
const dnsHost = z.object({
  hostname: z.string(),
  /** What stands behind its first dot; null: nothing. */
  zone: z.string().nullable(),
  /** Milliseconds until it may be asked for again; 0: at the next use. */
  ttlMs: count,
  /** Empty: the last lookup failed, or the first one is under way. */
  addresses: z.array(z.string()).readonly(),
});
export type DnsHost = z.infer<typeof dnsHost>;

/** A zone of such names. */
const dnsZone = z.object({
  zonename: z.string(),
  /** 0: not asked for. */
  serial: count,
});
export type DnsZone = z.infer<typeof dnsZone>;

/** One setting as SHOW CONFIG prints it. */
const configRow = z.object({
  key: z.string(),
  value: z.string().nullable(),
  default: z.string().nullable(),
  changeable: z.boolean(),
});
export type ConfigRow = z.infer<typeof configRow>;

export const workerSnapshotSchema = z.object({
  /** The worker's number in the fleet. */
  process: z.number().int(),
  pid: z.number().int(),
  /** The package's version. */
  version: z.string(),
  state: z.enum(['active', 'paused', 'suspended']),
  clients: z.array(clientRow),
  servers: z.array(serverRow),
  pools: z.array(poolRow),
  databases: z.array(databaseRow),
  users: z.array(userRow),
  stats: z.array(statsRow),
  sessions: z.array(sessionRow),
  /**
   * Microseconds from the tick before the last one until now: what the difference of `current` and
   * `older` is divided by. Before the second tick it reaches to one second before the start.
   */
  statsWindowUs: count,
  lists: listCounts,
  dns_hosts: z.array(dnsHost),
  dns_zones: z.array(dnsZone),
  config: z.array(configRow),
  sockets: z.array(socketRow),
  descriptors: z.array(descriptorRow),
  peerPools: z.array(peerPoolRow),
  /** Null when it was not asked for. */
  running: processRow.nullable(),
});
export type WorkerSnapshot = z.infer<typeof workerSnapshotSchema>;

/** What the live rooms tell; the console adds the settings itself. */
export type LiveSnapshot = Omit<WorkerSnapshot, 'config'>;

/** The edge to the live rooms. */
export interface SnapshotSource {
  /** The worker as it stands now, with at least the parts asked for. */
  snapshot(parts: readonly SnapshotPart[]): LiveSnapshot;
}

/** A worker's question to another one. */
export const snapshotRequestSchema = z.object({
  kind: z.literal('snapshot'),
  parts: z.array(z.enum(snapshotParts)),
});
export type SnapshotRequest = z.infer<typeof snapshotRequestSchema>;

/** Counters that have counted nothing. */
export function zeroCounters(): Counters {
  return Object.fromEntries(counterNames.map((name) => [name, 0])) as Counters;
}

/** A worker in which nothing is: what a source starts from and fills. */
export function emptySnapshot(process: number, pid: number, version: string): LiveSnapshot {
  return {
    process,
    pid,
    version,
    state: 'active',
    clients: [],
    servers: [],
    pools: [],
    databases: [],
    users: [],
    stats: [],
    sessions: [],
    statsWindowUs: 0,
    lists: {
      peerPoolIds: [],
      free_clients: 0,
      used_clients: 0,
      login_clients: 0,
      free_servers: 0,
      used_servers: 0,
      dns_queries: 0,
    },
    dns_hosts: [],
    dns_zones: [],
    sockets: [],
    descriptors: [],
    peerPools: [],
    running: null,
  };
}
