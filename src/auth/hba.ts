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
const Kind = { unix: 1, plain: 2, tls: 4 } as const;
const KINDS: Readonly<Record<HbaType, number>> = {
  local: Kind.unix,
  host: Kind.plain | Kind.tls,
  hostssl: Kind.tls,
  hostnossl: Kind.plain,
};

/** A rule made for quick looks. */
interface Rule {
  readonly kinds: number;
  readonly network: HbaNetwork | null;
  readonly databases: Names;
  readonly users: Names;
  readonly method: LoginMethod;
}

interface Names extends Omit<HbaNames, 'names'> {
  readonly names: ReadonlySet<string>;
}

/**
 * The rules of an HBA file. The first that matches connection type, address, database and user
 * decides; later ones are not tried (PostgreSQL's page "The pg_hba.conf File"). Cheap looks come
 * first, so that thousands of rules take well under a millisecond.
 */
export class HbaRules {
  readonly #rules: readonly Rule[];

  constructor({ rules, maps }: HbaConfig) {
    const byName = new Map(maps.map((map) => [map.name, map]));
    this.#rules = rules.map((rule) => prepare(rule, byName));
  }

  /** How the client is to prove its name; null: no rule is for it. */
  methodFor(request: HbaRequest): LoginMethod | null {
    const { isUnix, address, tls } = request.connection;
    const kind = isUnix ? Kind.unix : tls === null ? Kind.plain : Kind.tls;
    // A zone says by which interface the client came, not who it is.
    const bytes = isUnix ? null : ipBytes(address.replace(/%.*$/s, ''));
    for (const rule of this.#rules) {
      if ((rule.kinds & kind) === 0) continue;
      if (rule.network !== null && !isWithin(bytes, rule.network)) continue;
      if (isDatabaseIn(rule.databases, request) && isUserIn(rule.users, request)) {
        return rule.method;
      }
    }
    return null;
  }
}

function prepare(rule: HbaRule, maps: ReadonlyMap<string, IdentMap>): Rule {
  return {
    kinds: KINDS[rule.type],
    network: rule.network,
    databases: { ...rule.databases, names: new Set(rule.databases.names) },
    users: { ...rule.users, names: new Set(rule.users.names) },
    method: methodOf(rule.method, maps),
  };
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
