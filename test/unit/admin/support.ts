import { ConsoleFactory } from '../../../src/admin/console.ts';
import type { CommandError, ControlCommand, ControlPort } from '../../../src/admin/control.ts';
import type { Rights } from '../../../src/admin/plan.ts';
import {
  type ClientRow,
  type Counters,
  counterNames,
  emptySnapshot,
  type LiveSnapshot,
  type PoolRow,
  type ServerRow,
  type SnapshotSource,
  zeroCounters,
} from '../../../src/admin/snapshot.ts';
import type { LocalBackend } from '../../../src/client/local-backend.ts';
import type { Config, DatabaseEntry, UserEntry } from '../../../src/config/config.ts';
import { defaultFleetSettings, defaultSettings } from '../../../src/config/schema.ts';
import { decodeReport } from '../../../src/wire/decode.ts';
import { query } from '../../../src/wire/encode.ts';

const NO_DATABASE: DatabaseEntry = {
  name: '',
  dbname: null,
  hosts: [],
  port: 5432,
  load_balance_hosts: 'round-robin',
  user: null,
  password: null,
  auth_user: null,
  auth_query: null,
  auth_dbname: null,
  pool_size: null,
  min_pool_size: null,
  reserve_pool_size: null,
  max_db_connections: null,
  max_db_client_connections: null,
  server_lifetime: null,
  query_wait_timeout: null,
  pool_mode: null,
  connect_query: null,
  client_encoding: null,
  datestyle: null,
  timezone: null,
  application_name: null,
  session_leak: null,
};

const NO_USER: UserEntry = {
  name: '',
  pool_mode: null,
  pool_size: null,
  reserve_pool_size: null,
  max_user_connections: null,
  max_user_client_connections: null,
  query_timeout: null,
  query_wait_timeout: null,
  idle_transaction_timeout: null,
  transaction_timeout: null,
  client_idle_timeout: null,
};

export const database = (fields: Partial<DatabaseEntry>): DatabaseEntry => ({
  ...NO_DATABASE,
  ...fields,
});

export const user = (fields: Partial<UserEntry>): UserEntry => ({ ...NO_USER, ...fields });

export function config(fields: Partial<Config> = {}): Config {
  return {
    version: 1,
    file: '/etc/pgbouncer.ini',
    settings: defaultSettings(),
    fleet: defaultFleetSettings(),
    databases: [],
    autoDatabase: null,
    users: [],
    peers: [],
    authUsers: null,
    hba: null,
    clientTls: null,
    given: [],
    ...fields,
  };
}

/** A worker's snapshot with some fields set. */
export function worker(id: number, fields: Partial<LiveSnapshot> = {}): LiveSnapshot {
  return { ...emptySnapshot(id, 4000 + id, '0.1.0'), ...fields };
}

export function pool(fields: Partial<PoolRow>): PoolRow {
  return {
    database: 'app',
    user: 'alice',
    cl_active: 0,
    cl_waiting: 0,
    cl_active_cancel_req: 0,
    cl_waiting_cancel_req: 0,
    sv_active: 0,
    sv_active_cancel: 0,
    sv_being_canceled: 0,
    sv_idle: 0,
    sv_used: 0,
    sv_tested: 0,
    sv_login: 0,
    maxWaitUs: 0,
    pool_mode: 'transaction',
    load_balance_hosts: null,
    ...fields,
  };
}

const LINK = {
  user: 'alice',
  database: 'app',
  replication: 'none' as const,
  addr: '10.0.0.9',
  port: 50_000,
  local_addr: '10.0.0.1',
  local_port: 6432,
  connectTimeMs: 0,
  requestTimeMs: 0,
  close_needed: false,
  ptr: '0x1',
  link: '',
  remote_pid: 0,
  tls: '',
  application_name: '',
  prepared_statements: 0,
  id: 1,
};

export const client = (fields: Partial<ClientRow>): ClientRow => ({
  ...LINK,
  state: 'idle',
  waitUs: 0,
  ...fields,
});

export const server = (fields: Partial<ServerRow>): ServerRow => ({
  ...LINK,
  state: 'idle',
  ...fields,
});

/** Counters of which the n-th one, counted from 1, is n times `factor`. */
export function counters(factor: number): Counters {
  const result = zeroCounters();
  for (const [i, name] of counterNames.entries()) result[name] = (i + 1) * factor;
  return result;
}

export interface Message {
  readonly type: string;
  readonly body: Buffer;
}

/** A console session and all that it sent. */
export interface Session {
  readonly backend: LocalBackend;
  /** `close: reason` or `fatal: text`, in the order they came. */
  readonly endings: string[];
  /** Messages sent since the last call. */
  take(): Message[];
  send(bytes: Buffer): void;
}

/** What the consoles of a worker have asked of the launcher, which the test plays. */
export class FakeControl implements ControlPort {
  readonly asked: {
    readonly command: ControlCommand;
    readonly signal: AbortSignal;
    readonly done: (notice?: string) => void;
    readonly fail: (error: CommandError) => void;
  }[] = [];
  readonly sessionCounts: number[] = [];

  ask(command: ControlCommand, signal: AbortSignal): Promise<string | null> {
    return new Promise((resolve, fail) => {
      const done = (notice?: string): void => resolve(notice ?? null);
      this.asked.push({ command, signal, done, fail });
    });
  }

  sessions(count: number): void {
    this.sessionCounts.push(count);
  }
}

export interface TestFleet {
  readonly control: FakeControl;
  readonly factory: ConsoleFactory;
  /** Requests the console made of the others; each waits for its `answer` when `isHeld`. */
  readonly requests: unknown[];
  open(rights?: Rights): Session;
  /** Lets held requests be answered. */
  release(): void;
}

export interface FleetOptions {
  readonly config?: Config;
  /** What the other workers answer in the place of their snapshots. */
  readonly others?: Map<number, { value: unknown } | { error: string }>;
  readonly isHeld?: boolean;
  readonly source?: SnapshotSource;
}

/** The console of the first of `workers`, which reach each other without a network. */
export function fleet(workers: readonly LiveSnapshot[], options: FleetOptions = {}): TestFleet {
  const settings = options.config ?? config();
  const requests: unknown[] = [];
  const control = new FakeControl();
  let waiting: (() => void)[] = [];
  const siblings = workers.slice(1).map((snapshot) => ({
    id: snapshot.process,
    factory: new ConsoleFactory({
      source: { snapshot: () => snapshot },
      config: () => settings,
      mesh: { requestAll: async () => new Map() },
      control: new FakeControl(),
    }),
  }));
  const requestAll = async (
    payload: unknown,
  ): Promise<Map<number, { value: unknown } | { error: string }>> => {
    requests.push(payload);
    if (options.isHeld === true) await new Promise<void>((resolve) => waiting.push(resolve));
    const travelled = (value: unknown): unknown => JSON.parse(JSON.stringify(value));
    return new Map([
      ...siblings.map(
        ({ id, factory }) =>
          [id, { value: travelled(factory.answer(travelled(payload))) }] as const,
      ),
      ...(options.others ?? []),
    ]);
  };
  const factory = new ConsoleFactory({
    source: options.source ?? { snapshot: () => workers[0]! },
    config: () => settings,
    mesh: { requestAll },
    control,
  });
  return {
    control,
    factory,
    requests,
    open: (rights = 'admin') => openSession(factory, rights),
    release: () => {
      const ready = waiting;
      waiting = [];
      for (const resolve of ready) resolve();
    },
  };
}

function openSession(factory: ConsoleFactory, rights: Rights): Session {
  let sent: Buffer[] = [];
  const endings: string[] = [];
  const backend: LocalBackend = factory.open(
    {
      send: (bytes) => {
        if (endings.length > 0) throw new Error('sent after the end');
        sent.push(bytes);
      },
      close: (reason) => {
        endings.push(`close: ${reason}`);
        backend.onClose();
      },
      fatal: (text) => {
        endings.push(`fatal: ${text}`);
        backend.onClose();
      },
      prefixed: (text) => `C-7: ${text}`,
    },
    rights,
  );
  return {
    backend,
    endings,
    take: () => {
      const messages = split(Buffer.concat(sent));
      sent = [];
      return messages;
    },
    send: (bytes) => {
      // The body is only lent for the call.
      for (const { type, body } of split(bytes)) {
        const lent = Buffer.from(body);
        backend.onMessage(type.charCodeAt(0), lent);
        lent.fill(0xee);
      }
    },
  };
}

export function split(bytes: Buffer): Message[] {
  const messages: Message[] = [];
  let at = 0;
  while (at < bytes.length) {
    const end = at + 1 + bytes.readInt32BE(at + 1);
    messages.push({ type: String.fromCharCode(bytes[at]!), body: bytes.subarray(at + 5, end) });
    at = end;
  }
  return messages;
}

export interface Table {
  readonly columns: readonly { name: string; oid: number; bytes: number }[];
  readonly rows: readonly (string | null)[][];
  readonly tag: string;
  readonly error: string;
  readonly notices: readonly string[];
}

/** Lets everything that waits for promises go on. */
export function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** Runs one simple query and reads its answer. */
export async function ask(session: Session, sql: string): Promise<Table> {
  session.send(query(sql));
  await settle();
  return readTable(session.take());
}

export function readTable(messages: readonly Message[]): Table {
  let columns: Table['columns'] = [];
  const rows: (string | null)[][] = [];
  const notices: string[] = [];
  let tag = '';
  let error = '';
  for (const { type, body } of messages) {
    if (type === 'T') columns = readColumns(body);
    if (type === 'D') rows.push(readRow(body));
    if (type === 'C') tag = body.toString('utf8', 0, body.length - 1);
    const fields = type === 'E' || type === 'N' ? decodeReport(body, 0, body.length) : null;
    if (type === 'E') error = `${fields!.get('S')} ${fields!.get('C')} ${fields!.get('M')}`;
    if (type === 'N') notices.push(`${fields!.get('M')}|${fields!.get('D') ?? ''}`);
  }
  return { columns, rows, tag, error, notices };
}

function readColumns(body: Buffer): Table['columns'] {
  const columns = [];
  let at = 2;
  while (at < body.length) {
    const end = body.indexOf(0, at);
    columns.push({
      name: body.toString('utf8', at, end),
      oid: body.readInt32BE(end + 7),
      bytes: body.readInt16BE(end + 11),
    });
    at = end + 19;
  }
  return columns;
}

export function readRow(body: Buffer): (string | null)[] {
  return readValues(body).map((value) => value?.toString() ?? null);
}

export function readValues(body: Buffer): (Buffer | null)[] {
  const values: (Buffer | null)[] = [];
  let at = 2;
  for (let left = body.readInt16BE(0); left > 0; left--) {
    const bytes = body.readInt32BE(at);
    at += 4;
    values.push(bytes === -1 ? null : body.subarray(at, at + bytes));
    at += Math.max(bytes, 0);
  }
  return values;
}

/** Rows as objects by column name. */
export function records(table: Table): Record<string, string | null>[] {
  return table.rows.map((row) =>
    Object.fromEntries(table.columns.map(({ name }, i) => [name, row[i]!])),
  );
}
