import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';
import { startServerAuth } from '../../../src/auth/server-auth.ts';
import type { Config, DatabaseEntry } from '../../../src/config/config.ts';
import { ConfigIndex } from '../../../src/config/effective.ts';
import { loadConfig } from '../../../src/config/load.ts';
import { Link } from '../../../src/net/link.ts';
import { inTurn } from '../../../src/net/turn.ts';
import type { PoolPlan } from '../../../src/pool/plan.ts';
import type { Pool, PoolOptions } from '../../../src/pool/pool.ts';
import type { PoolClient, ServerSource } from '../../../src/pool/pool-client.ts';
import { PoolSet } from '../../../src/pool/pool-set.ts';
import type { ReplicationRequest } from '../../../src/pool/replication.ts';
import { ClientStatements } from '../../../src/prepared/client-statements.ts';
import { StatementRegistry } from '../../../src/prepared/registry.ts';
import { StatementTranslator } from '../../../src/prepared/translator.ts';
import { TrackedNames, type TrackedValues } from '../../../src/server/parameters.ts';
import { RequestAction, RequestKind } from '../../../src/server/requests-in-flight.ts';
import { ServerConnection, type ServerOwner } from '../../../src/server/server-connection.ts';
import { ServerLogin } from '../../../src/server/server-login.ts';
import type { Credentials, Opener } from '../../../src/server/server-opener.ts';
import { SpokenVersions } from '../../../src/server/spoken-versions.ts';
import { clock } from '../../../src/util/clock.ts';
import type { List } from '../../../src/util/list.ts';
import { splitMessages, type WireMessage } from '../../support/messages.ts';
import * as says from '../../support/server-messages.ts';
import { FakeSocket, fakeLink, logged } from '../net/support.ts';

/** Time that only the test moves, in milliseconds. Begins far from 0, which means "never". */
export class TestTime {
  constructor(t: TestContext) {
    clock.now = 1_000_000;
    t.mock.method(clock, 'tick', () => clock.now);
  }

  get now(): number {
    return clock.now;
  }

  pass(ms: number): void {
    clock.now += ms;
  }
}

/** The other end of one server connection, played by the test. */
export class Backend {
  readonly server: ServerConnection;
  readonly socket: FakeSocket;
  readonly credentials: Credentials;
  readonly key: Buffer;
  #read = 0;
  #unread: Buffer = Buffer.alloc(0);

  constructor(owner: ServerOwner, credentials: Credentials, id: number) {
    this.credentials = credentials;
    this.socket = new FakeSocket();
    this.socket.connecting = true;
    this.key = Buffer.from([0, 0, 0, id & 0xff, 9, 9, 9, id & 0xff]);
    const login = new ServerLogin({
      host: 'h',
      versions: new SpokenVersions(),
      startup: [['user', credentials.user]],
      auth: startServerAuth({ ...credentials, random: (size) => Buffer.alloc(size, 1) }),
      connectQuery: null,
    });
    const about = { label: `db/${credentials.user}@h:1`, address: 'h', port: 1 };
    this.server = new ServerConnection(owner, about, { host: 'h', port: 1 }, login);
    this.server.attach(new Link(this.socket as unknown as Socket, this.server));
  }

  /** The connection stands: the pooler sends its startup packet. */
  connect(): void {
    inTurn(() => {
      this.socket.connecting = false;
      this.server.onConnected();
      this.server.beginLogin();
    });
  }

  /** Everything up to the first ReadyForQuery. */
  logIn(parameters: Readonly<Record<string, string>> = { server_version: '18.0' }): void {
    if (this.socket.connecting) this.connect();
    this.startup();
    const statuses = Object.entries(parameters).map(([name, value]) =>
      says.parameterStatus(name, value),
    );
    this.say(says.authenticationOk(), ...statuses, says.backendKey(this.key), says.ready());
  }

  /** The server refuses the login, and closes. */
  refuse(sqlstate: string, text: string): void {
    if (this.socket.connecting) this.connect();
    this.say(says.errorResponse(sqlstate, text, 'FATAL'));
    this.end();
  }

  say(...messages: readonly Buffer[]): void {
    const bytes = Buffer.concat(messages);
    this.server.link.read(bytes.length, bytes);
  }

  /** ReadyForQuery behind an answer to nothing in particular. */
  ready(status: 'I' | 'T' | 'E' = 'I'): void {
    this.say(says.commandComplete('SELECT 1'), says.ready(status));
  }

  /** The server closes its end. */
  end(): void {
    this.socket.emit('end');
  }

  /** The connection breaks. */
  break(text = 'ECONNRESET'): void {
    this.socket.emit('error', new Error(text));
    this.socket.destroy();
  }

  /** What the pooler has sent since the last call, cut into messages. */
  heard(): WireMessage[] {
    this.#readSocket();
    const { messages, rest } = splitMessages(this.#unread);
    this.#unread = rest;
    return messages;
  }

  /** Type letters of what was heard, a Query with its text. */
  heardText(): string {
    return this.heard()
      .map(({ type, body }) =>
        type === 'Q' ? `Q(${body.toString('utf8', 0, body.length - 1)})` : type,
      )
      .join(' ');
  }

  /** Takes the startup packet off. */
  startup(): Buffer {
    this.#readSocket();
    const size = this.#unread.readInt32BE(0);
    const packet = this.#unread.subarray(0, size);
    this.#unread = this.#unread.subarray(size);
    return packet;
  }

  /** The pooler has said that no more will come (and the test has not answered with `end`). */
  get isTold(): boolean {
    return this.socket.ended;
  }

  #readSocket(): void {
    const fresh = this.socket.written.slice(this.#read);
    this.#read = this.socket.written.length;
    this.#unread = Buffer.concat([this.#unread, ...fresh]);
  }
}

/** Opens connections whose other ends the test plays. */
export class FakeOpener implements Opener {
  readonly backends: Backend[] = [];
  failures = 0;

  open(owner: ServerOwner, credentials: Credentials): ServerConnection {
    const backend = new Backend(owner, credentials, this.backends.length + 1);
    this.backends.push(backend);
    return backend.server;
  }

  onFailed(): void {
    this.failures++;
  }

  get last(): Backend {
    return this.backends.at(-1)!;
  }
}

let lastClient = 0;
const registry = new StatementRegistry();

/** A client without a protocol: the test says what it does, and it notes what it is told. */
export class FakeClient implements PoolClient {
  listPrev: PoolClient | null = null;
  listNext: PoolClient | null = null;
  list: List<PoolClient> | null = null;
  readonly id = ++lastClient;
  readonly ptr = `0x${this.id}`;
  readonly fake = fakeLink();
  server: ServerConnection | null = null;
  isWelcomed = true;
  /** Set before it asks. */
  replication: ReplicationRequest | null = null;
  queryStart = 0;
  waitStart = 0;
  hasBeenNotified = false;
  transactionStart = 0;
  lastActivity = clock.now;
  connectedAt = clock.now;
  queryWaitTimeout = 0;
  isMidRequest = false;
  isMidMessage = false;
  hasDescribed = false;
  tracked: TrackedValues;
  readonly statements: ClientStatements;
  readonly events: string[] = [];
  readonly serverUser: string | null = null;
  readonly userName = 'u';
  pool: Pool;
  /** Called when it is given a server after a wait. */
  act: () => void = () => {};

  constructor(pool: Pool) {
    this.pool = pool;
    this.tracked = pool.tracked.none();
    this.statements = new ClientStatements(pool.registry);
    pool.clients++;
  }

  get link(): Link {
    return this.fake.link;
  }

  prefixed(text: string): string {
    return `C-${this.ptr}: ${text}`;
  }

  get source(): ServerSource {
    return this.pool.sourceFor(this);
  }

  get isWaiting(): boolean {
    return this.list !== null;
  }

  /** Asks for a server. */
  ask(): boolean {
    this.queryStart = clock.now;
    this.transactionStart = clock.now;
    let hasServer = false;
    inTurn(() => {
      hasServer = this.source.acquire(this);
    });
    return hasServer;
  }

  /** Sends one request to its server. */
  send(): void {
    this.server!.isReady = false;
    this.server!.requests.push(RequestKind.query, RequestAction.forward);
  }

  /** Asks for a server that is free and sends one request. */
  run(): void {
    if (!this.ask()) throw new Error('no server was free');
    this.send();
  }

  /** Goes away. */
  leave(): void {
    inTurn(() => this.source.leave(this));
    this.pool.clients--;
  }

  onServerLost(text: string): void {
    this.server = null;
    this.events.push(`lost: ${text}`);
    this.leave();
  }

  onRefused(refusal: number): void {
    this.events.push(`refused: ${refusal}`);
  }

  onServerFree(): void {
    this.events.push('free');
  }

  onServer(): void {
    this.events.push('server');
    this.act();
  }

  onOwnServer(): void {
    this.isWelcomed = true;
    this.events.push('own server');
    this.act();
  }

  onPoolReady(): void {
    this.isWelcomed = true;
    this.events.push('pool ready');
  }

  onWaitNotice(): void {
    this.events.push('notice');
  }

  refuse(sqlstate: string, text: string): void {
    this.events.push(`refused: ${sqlstate} ${text}`);
    this.leave();
  }
}

export interface World {
  readonly time: TestTime;
  readonly config: Config;
  readonly index: ConfigIndex;
  readonly pools: PoolSet;
  /** By database; made when its first pool is. */
  readonly openers: Map<string, FakeOpener>;
  readonly lines: string[];
  pool(database?: string, user?: string): Pool;
  opener(database?: string): FakeOpener;
  /** The first half of a reload; `pools.release()` is the other. */
  reconfigure(settings?: string, databases?: string, users?: string): void;
}

/** A pool set over a configuration text, whose servers the test plays. Pool mode is transaction. */
export function world(
  t: TestContext,
  settings = '',
  databases = 'd = host=h',
  users = '',
  place = { worker: 0, size: 1 },
): World {
  const time = new TestTime(t);
  const lines = logged(t);
  let index = indexOf(settings, databases, users);
  const openers = new Map<string, FakeOpener>();
  const options: PoolOptions = {
    tracked: new TrackedNames([]),
    registry,
    translator: new StatementTranslator(registry, 200),
    maxPacketBytes: 1 << 30,
    logsConnections: false,
    logsDisconnections: true,
    onServerOpen: () => {},
    onServerEnd: () => {},
  };
  const openerOf = (entry: DatabaseEntry): FakeOpener => {
    const opener = openers.get(entry.name) ?? new FakeOpener();
    openers.set(entry.name, opener);
    return opener;
  };
  const pools = new PoolSet(index, place, options, openerOf, (_entry, user) => ({
    user,
    secret: null,
    clientKeys: null,
  }));
  return {
    time,
    config: index.config,
    get index() {
      return index;
    },
    pools,
    openers,
    lines,
    pool: (database = 'd', user = 'u') =>
      pools.get(pools.database(index.database(database)!), user),
    opener: (database = 'd') => openers.get(database)!,
    reconfigure: (newSettings = '', newDatabases = 'd = host=h', newUsers = '') => {
      index = indexOf(newSettings, newDatabases, newUsers);
      inTurn(() => pools.reconfigure(index, options));
    },
  };
}

function indexOf(settings: string, databases: string, users: string): ConfigIndex {
  const text = [
    '[pgbouncer]\npool_mode = transaction\nserver_check_query =',
    settings,
    '[databases]',
    databases,
    '[users]',
    users,
  ].join('\n');
  const { config, problems } = loadConfig('f', { readFile: () => text });
  if (config === null) throw new Error(problems.map(({ text: what }) => what).join('\n'));
  return new ConfigIndex(config);
}

/** A pool with `count` logged-in idle servers, and their other ends in the order of their login. */
export function withIdle(given: World, count: number, pool = given.pool()): Backend[] {
  const opener = given.opener(pool.database.name);
  const clients = Array.from({ length: count }, () => new FakeClient(pool));
  const backends = clients.map((client) => {
    if (client.ask()) throw new Error('a server was there already');
    opener.last.logIn();
    client.send();
    return opener.last;
  });
  for (const backend of backends) backend.ready();
  for (const client of clients) client.leave();
  for (const backend of backends) backend.heard();
  return backends;
}

/** A plan for a pool, by PgBouncer's defaults where the test says nothing. */
export function changePlan(pool: Pool, changes: Partial<PoolPlan>): void {
  pool.plan = { ...pool.plan, ...changes };
}
