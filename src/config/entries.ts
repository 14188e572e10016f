/**
 * Turns lines of `[databases]`, `[users]` and `[peers]` into entries. All that is wrong with a line is
 * reported, in PgBouncer's words where it has some. Texts may name a key but never show a password.
 */

import type { z } from 'zod';
import type { DatabaseEntry, PeerEntry, UserEntry } from './config.ts';
import { type Pair, parseConnectionString } from './connection-string.ts';
import { text, value, whyInvalid } from './fields.ts';
import { parseDecimal, parsePort, parseWord } from './values.ts';

/** Names of the console's database; no entry may take them. */
export const CONSOLE_NAMES: readonly string[] = ['pgbouncer', 'pgfleet'];

/** Longest database name in bytes: PgBouncer and PostgreSQL (NAMEDATALEN) keep 64 with the NUL. */
const MAX_DATABASE_BYTES = 63;
/** Longest user name in bytes that PgBouncer takes: its MAX_USERNAME is 128 with the NUL. */
const MAX_USER_BYTES = 127;
const MAX_PEER_ID = 65535;
const DEFAULT_SERVER_PORT = 5432;
const DEFAULT_PEER_PORT = 6432;

/** What became of a line: its entry unless there are errors, and the keys that it sets. */
export interface Parsed<E> {
  readonly entry: E | null;
  readonly keys: readonly string[];
  readonly errors: readonly string[];
  readonly warnings: readonly string[];
}

const wholeNumber = value(parseDecimal, (given) => `not a whole number: ${given}`);
/** Negative means "not set here". */
const zeroOrMore = wholeNumber.transform((number) => (number >= 0 ? number : null));
/** Zero and negative mean "not set here". */
const aboveZero = wholeNumber.transform((number) => (number > 0 ? number : null));
const port = value(parsePort, (given) => `invalid port: ${given}`);
const poolMode = value(
  (given) => parseWord(['session', 'transaction', 'statement'], given),
  (given) => `invalid pool mode: ${given}`,
);
const loadBalance = value(
  (given) => parseWord(['disable', 'round-robin'], given),
  (given) => `invalid load_balance_hosts: ${given}`,
);
const sessionLeak = value(
  (given) => parseWord(['allow', 'warn', 'reject'], given),
  (given) => `invalid session_leak: ${given}`,
);
// PgBouncer's counter and splitter disagree about empty items, and some attempts end on its socket.
const hosts = text()
  .transform((given) => given.split(','))
  .refine((items) => items.every((item) => item !== ''), 'empty item in the list of hosts');
const userName = text().refine(
  (name) => Buffer.byteLength(name) <= MAX_USER_BYTES,
  'username too long',
);
const authDbname = text().refine(
  (name) => !CONSOLE_NAMES.includes(name),
  'cannot use the reserved "pgbouncer" database as an auth_dbname',
);

const databaseShape = {
  dbname: text(),
  host: hosts,
  port,
  load_balance_hosts: loadBalance,
  user: userName,
  password: text(),
  auth_user: userName,
  auth_query: text(),
  auth_dbname: authDbname,
  pool_size: zeroOrMore,
  min_pool_size: zeroOrMore,
  reserve_pool_size: zeroOrMore,
  reserve_pool: zeroOrMore,
  max_db_connections: aboveZero,
  max_db_client_connections: aboveZero,
  server_lifetime: aboveZero,
  query_wait_timeout: zeroOrMore,
  pool_mode: poolMode,
  connect_query: text(),
  client_encoding: text(),
  datestyle: text(),
  timezone: text(),
  application_name: text(),
  session_leak: sessionLeak,
};

const userShape = {
  pool_mode: poolMode,
  pool_size: zeroOrMore,
  reserve_pool_size: zeroOrMore,
  max_user_connections: aboveZero,
  max_user_client_connections: aboveZero,
  query_timeout: aboveZero,
  query_wait_timeout: zeroOrMore,
  idle_transaction_timeout: aboveZero,
  transaction_timeout: aboveZero,
  client_idle_timeout: aboveZero,
};

const peerShape = { host: text(), port, pool_size: zeroOrMore };

/** One line of `[databases]`; `*` is read like any other, so that its mistakes show at the load. */
export function parseDatabase(name: string, line: string): Parsed<DatabaseEntry> {
  const found = readPairs(databaseShape, line, 'connection');
  const errors = [...checkDatabaseName(name), ...found.errors];
  const given = found.values;
  const entry: DatabaseEntry = {
    name,
    dbname: given.dbname ?? null,
    hosts: given.host ?? [],
    port: given.port ?? DEFAULT_SERVER_PORT,
    load_balance_hosts: given.load_balance_hosts ?? 'round-robin',
    user: given.user ?? null,
    password: given.password ?? null,
    auth_user: given.auth_user ?? null,
    auth_query: given.auth_query ?? null,
    auth_dbname: given.auth_dbname ?? null,
    pool_size: given.pool_size ?? null,
    min_pool_size: given.min_pool_size ?? null,
    reserve_pool_size: given.reserve_pool_size ?? null,
    max_db_connections: given.max_db_connections ?? null,
    max_db_client_connections: given.max_db_client_connections ?? null,
    server_lifetime: given.server_lifetime ?? null,
    query_wait_timeout: given.query_wait_timeout ?? null,
    pool_mode: given.pool_mode ?? null,
    connect_query: given.connect_query ?? null,
    client_encoding: given.client_encoding ?? null,
    datestyle: given.datestyle ?? null,
    timezone: given.timezone ?? null,
    application_name: given.application_name ?? null,
    session_leak: given.session_leak ?? null,
  };
  return parsed(entry, errors, found);
}

/** One line of `[users]`. */
export function parseUser(name: string, line: string): Parsed<UserEntry> {
  const found = readPairs(userShape, line, 'user');
  const tooLong = Buffer.byteLength(name) > MAX_USER_BYTES ? ['username too long'] : [];
  const errors = [...tooLong, ...found.errors];
  const given = found.values;
  const entry: UserEntry = {
    name,
    pool_mode: given.pool_mode ?? null,
    pool_size: given.pool_size ?? null,
    reserve_pool_size: given.reserve_pool_size ?? null,
    max_user_connections: given.max_user_connections ?? null,
    max_user_client_connections: given.max_user_client_connections ?? null,
    query_timeout: given.query_timeout ?? null,
    query_wait_timeout: given.query_wait_timeout ?? null,
    idle_transaction_timeout: given.idle_transaction_timeout ?? null,
    transaction_timeout: given.transaction_timeout ?? null,
    client_idle_timeout: given.client_idle_timeout ?? null,
  };
  return parsed(entry, errors, found);
}

/** One line of `[peers]`, whose name is the peer's id. */
export function parsePeer(name: string, line: string): Parsed<PeerEntry> {
  const found = readPairs(peerShape, line, 'connection');
  const errors = [...found.errors];
  const id = /^[0-9]{1,9}$/.test(name) ? Number(name) : 0;
  if (id < 1 || id > MAX_PEER_ID) {
    errors.unshift('ids of peers must be a number larger than 0 and at most 65536');
  }
  const given = found.values;
  if (!found.isBroken && given.host === undefined) {
    errors.push(`host was not provided for peer ${name}`);
  }
  const entry: PeerEntry = {
    id,
    host: given.host ?? '',
    port: given.port ?? DEFAULT_PEER_PORT,
    pool_size: given.pool_size ?? null,
  };
  return parsed(entry, errors, found);
}

function parsed<E>(entry: E, errors: string[], found: Found<Shape>): Parsed<E> {
  const { keys, warnings } = found;
  return { entry: errors.length === 0 ? entry : null, keys, errors, warnings };
}

function checkDatabaseName(name: string): string[] {
  if (CONSOLE_NAMES.includes(name)) return [`database name "${name}" is reserved`];
  return Buffer.byteLength(name) > MAX_DATABASE_BYTES ? [`too long db name: ${name}`] : [];
}

type Shape = Record<string, z.ZodType<unknown, string>>;
type Values<S extends Shape> = { [K in keyof S]?: z.output<S[K]> };

interface Found<S extends Shape> {
  readonly values: Values<S>;
  readonly keys: string[];
  readonly errors: string[];
  readonly warnings: string[];
  /** The string could not be cut into pairs at all. */
  readonly isBroken: boolean;
}

function readPairs<S extends Shape>(shape: S, line: string, kind: 'connection' | 'user'): Found<S> {
  const cut = parseConnectionString(line);
  if (!cut.ok) {
    const what =
      kind === 'user' ? 'syntax error in user settings' : 'syntax error in connection string';
    return { values: {}, keys: [], errors: [`${what}: ${cut.why}`], warnings: [], isBroken: true };
  }
  const errors: string[] = [];
  const values: Values<S> = {};
  const keys = new Set<string>();
  for (const pair of cut.pairs) {
    keys.add(pair.key);
    const complaint = readPair(shape, values, pair, kind);
    if (complaint !== null) errors.push(complaint);
  }
  return { values, keys: [...keys], errors, warnings: [...cut.warnings], isBroken: false };
}

/** Puts the pair's value in its place, where a later one of the same key replaces it. */
function readPair<S extends Shape>(
  shape: S,
  values: Values<S>,
  pair: Pair,
  kind: 'connection' | 'user',
): string | null {
  if (!Object.hasOwn(shape, pair.key)) {
    const what =
      kind === 'user' ? 'unrecognized user parameter' : 'unrecognized connection parameter';
    return `${what}: ${pair.key}`;
  }
  const result = shape[pair.key]!.safeParse(pair.value);
  if (!result.success) return `${pair.key}: ${whyInvalid(result.error)}`;
  // PgBouncer's old name of the key writes to the same place, so the later of the two wins.
  const place = pair.key === 'reserve_pool' ? 'reserve_pool_size' : pair.key;
  values[place as keyof S] = result.data as z.output<S[keyof S]>;
  return null;
}
