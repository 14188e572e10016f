import type {
  HbaConfig,
  HbaMethod,
  HbaNames,
  HbaNetwork,
  HbaRule,
  HbaType,
} from '../config/hba-rules.ts';
import type { IdentMap } from '../config/ident-file.ts';
import { ipBytes } from '../util/ip-address.ts';
import type { ClientConnection } from './client-connection.ts';
import type { LoginMethod } from './login-method.ts';

/** A login, as HBA rules look at it. */
export interface HbaRequest {
  readonly connection: Pick<ClientConnection, 'isUnix' | 'address' | 'tls'>;
  /** As the client has sent it; the console is `pgbouncer`. */
  readonly database: string;
  readonly user: string;
  /** It asks for physical replication, which belongs to no database. */
  readonly isPhysicalReplication: boolean;
}

/** The kinds of connection that a rule is for, one bit each. */
const Kind = { unix: 1, plain: 2, tls: 4, plain6: 8, tls6: 16 } as const;
const TCP4 = Kind.plain | Kind.tls;
const TCP6 = Kind.plain6 | Kind.tls6;
const KINDS: Readonly<Record<HbaType, number>> = {
  local: Kind.unix,
  host: TCP4 | TCP6,
  hostssl: Kind.tls | Kind.tls6,
  hostnossl: Kind.plain | Kind.plain6,
};
/** In place of the number of a name: more than one name, or none, so that all of the rule is asked. */
const OTHER = -1;
/** The number of a name that no rule has alone. */
const UNKNOWN = -2;

interface Names extends Omit<HbaNames, 'names'> {
  readonly names: ReadonlySet<string>;
}

/** What the columns do not tell of a rule. */
interface Rule {
  readonly network: HbaNetwork | null;
  readonly databases: Names;
  readonly users: Names;
  readonly method: LoginMethod;
}

/**
 * The rules of an HBA file. The first that matches connection type, address, database and user
 * decides; later ones are not tried (PostgreSQL's page "The pg_hba.conf File").
 *
 * What most rules say is kept in columns of numbers, one element a rule, so that ten thousand rules
 * are passed over in a tenth of a millisecond. Names that stand alone in a rule have numbers.
 */
export class HbaRules {
  readonly #rules: readonly Rule[];
  readonly #kinds: Uint8Array;
  /** IPv4 networks; all zero where there is none. */
  readonly #addresses: Int32Array;
  readonly #masks: Int32Array;
  readonly #databases: Int32Array;
  readonly #users: Int32Array;
  readonly #numbers = new Map<string, number>();

  constructor({ rules, maps }: HbaConfig) {
    const byName = new Map(maps.map((map) => [map.name, map]));
    this.#rules = rules.map((rule) => prepare(rule, byName));
    this.#kinds = Uint8Array.from(rules, kindsOf);
    this.#addresses = Int32Array.from(rules, ({ network }) => wordOf(network?.address ?? null));
    this.#masks = Int32Array.from(rules, ({ network }) => wordOf(network?.mask ?? null));
    this.#databases = Int32Array.from(rules, ({ databases }) => this.#numberOf(databases));
    this.#users = Int32Array.from(rules, ({ users }) => this.#numberOf(users));
  }

  /** How the client is to prove its name; null: no rule is for it. */
  methodFor(request: HbaRequest): LoginMethod | null {
    const { isUnix, address, tls } = request.connection;
    // A zone says by which interface the client came, not who it is.
    const bytes = isUnix ? null : ipBytes(address.replace(/%.*$/s, ''));
    const isIp6 = bytes?.length === 16;
    let kind: number = isUnix ? Kind.unix : tls === null ? Kind.plain : Kind.tls;
    if (isIp6) kind = tls === null ? Kind.plain6 : Kind.tls6;
    const ip4 = wordOf(bytes);
    const database = this.#numbers.get(request.database) ?? UNKNOWN;
    const user = this.#numbers.get(request.user) ?? UNKNOWN;
    for (let at = 0; at < this.#rules.length; at++) {
      if ((this.#kinds[at]! & kind) === 0) continue;
      if ((ip4 & this.#masks[at]!) !== this.#addresses[at]!) continue;
      if (this.#users[at]! !== OTHER && this.#users[at]! !== user) continue;
      if (this.#databases[at]! !== OTHER && this.#databases[at]! !== database) continue;
      const rule = this.#rules[at]!;
      if (rule.network !== null && !isWithin(bytes, rule.network)) continue;
      if (isDatabaseIn(rule.databases, request) && isUserIn(rule.users, request)) {
        return rule.method;
      }
    }
    return null;
  }

  #numberOf({ all, sameUser, replication, names }: HbaNames): number {
    if (all || sameUser || replication || names.length !== 1) return OTHER;
    const name = names[0]!;
    const number = this.#numbers.get(name) ?? this.#numbers.size;
    this.#numbers.set(name, number);
    return number;
  }
}

function prepare(rule: HbaRule, maps: ReadonlyMap<string, IdentMap>): Rule {
  return {
    network: rule.network,
    databases: { ...rule.databases, names: new Set(rule.databases.names) },
    users: { ...rule.users, names: new Set(rule.users.names) },
    method: methodOf(rule.method, maps),
  };
}

function kindsOf({ type, network }: HbaRule): number {
  if (network === null) return KINDS[type];
  return KINDS[type] & (network.address.length === 4 ? TCP4 : TCP6);
}

/** An IPv4 address as one number; 0 for anything else, which no mask of that rule looks at. */
function wordOf(bytes: readonly number[] | null): number {
  if (bytes === null || bytes.length !== 4) return 0;
  return (bytes[0]! << 24) | (bytes[1]! << 16) | (bytes[2]! << 8) | bytes[3]!;
}

function methodOf(method: HbaMethod, maps: ReadonlyMap<string, IdentMap>): LoginMethod {
  if (method.kind !== 'cert' && method.kind !== 'peer') return method;
  // A map that is not there lets nobody in.
  const map = method.map === null ? null : (maps.get(method.map)?.pairs ?? []);
  return { ...method, map };
}

function isWithin(bytes: readonly number[] | null, { address, mask }: HbaNetwork): boolean {
  if (bytes === null || bytes.length !== address.length) return false;
  for (let at = 0; at < bytes.length; at++) {
    if ((bytes[at]! & mask[at]!) !== address[at]) return false;
  }
  return true;
}

function isDatabaseIn(list: Names, { database, user, isPhysicalReplication }: HbaRequest): boolean {
  if (isPhysicalReplication) return list.replication;
  return list.all || (list.sameUser && database === user) || list.names.has(database);
}

/** PgBouncer takes `sameuser` in this column too. */
function isUserIn(list: Names, { database, user }: HbaRequest): boolean {
  return list.all || (list.sameUser && database === user) || list.names.has(user);
}
