/**
 * Tracked parameters: those that the pooler remembers for each client and gives to the server that
 * the client gets next. As in PgBouncer 1.26 they are all that PostgreSQL reports by ParameterStatus
 * and that a session may change, and those of `track_extra_parameters`.
 *
 * Those that tell a driver how to read what it gets, and those that the file lists, a client keeps
 * as its welcome told them. The others (`search_path` and the like) a client has of its own only
 * when it asked for them; else each server's own value from its login holds, so that what ALTER
 * DATABASE or ALTER ROLE says reaches the clients with the next new server.
 */

import { literal, nameList } from './quoting.ts';

/** Always tracked and kept as told, in the order of the welcome. */
const TOLD = [
  'DateStyle',
  'client_encoding',
  'TimeZone',
  'standard_conforming_strings',
  'application_name',
];
/** Always tracked, next in the order of the welcome. PostgreSQL documentation, "Asynchronous Operations". */
const REPORTED = [
  'default_transaction_read_only',
  'IntervalStyle',
  'search_path',
  'scram_iterations',
  'session_authorization',
];
/** Values are lists of names (PostgreSQL's GUC_LIST_QUOTE): each is quoted by itself. */
const NAME_LISTS: ReadonlySet<string> = new Set(['search_path', 'temp_tablespaces']);
/** Values name things of which two may differ in case alone. */
const CASE_MATTERS: ReadonlySet<string> = new Set([...NAME_LISTS, 'session_authorization']);
/** Stands for a value that is not known any more; none of PostgreSQL's can hold a NUL. */
const UNKNOWN = '\0';
/** Values that are kept once for all who have them; past it the table is begun anew. */
const MAX_KEPT_VALUES = 4096;

/** Values by index of `TrackedNames`; null: of a client, none of its own; of a server, not known. */
export type TrackedValues = (string | null)[];

/** What is known of a server's parameters. */
export interface ServerParameters {
  /** As they are now. Not reported by the server, those that the pooler has set. */
  readonly tracked: TrackedValues;
  /** As they were when the login was over; null: the server does not report it. */
  readonly own: TrackedValues;
  /** Names whose own value `connect_query` brought, which RESET would not. */
  readonly setByQuery: ReadonlySet<number>;
}

/** The tracked set, fixed at start; a parameter is its index. Names are compared without case. */
export class TrackedNames {
  readonly names: readonly string[];
  readonly applicationName: number;
  readonly clientEncoding: number;
  readonly standardConformingStrings: number;
  /** By index: a client has the value that it was told, whatever later servers begin with. */
  readonly isKept: readonly boolean[];
  readonly isNameList: readonly boolean[];
  readonly #isCaseNoted: readonly boolean[];
  readonly #indexes = new Map<string, number>();
  readonly #kept = new Map<string, string>();

  /** @param extra names of `track_extra_parameters` */
  constructor(extra: readonly string[]) {
    const names: string[] = [];
    for (const name of [...TOLD, ...REPORTED, ...extra]) {
      if (this.#indexes.has(name.toLowerCase())) continue;
      this.#indexes.set(name.toLowerCase(), names.length);
      names.push(name);
    }
    this.names = names;
    this.applicationName = this.indexOf('application_name');
    this.clientEncoding = this.indexOf('client_encoding');
    this.standardConformingStrings = this.indexOf('standard_conforming_strings');
    // IntervalStyle says how intervals are written, and was on PgBouncer's list before the others.
    const kept = new Set([...TOLD, 'IntervalStyle', ...extra].map((name) => name.toLowerCase()));
    this.isKept = names.map((name) => kept.has(name.toLowerCase()));
    this.isNameList = names.map((name) => NAME_LISTS.has(name.toLowerCase()));
    this.#isCaseNoted = names.map((name) => CASE_MATTERS.has(name.toLowerCase()));
  }

  /** Index of a parameter, or -1 when it is not tracked. */
  indexOf(name: string): number {
    return this.#indexes.get(name.toLowerCase()) ?? -1;
  }

  /** A set of values with none known. */
  none(): TrackedValues {
    return new Array<string | null>(this.names.length).fill(null);
  }

  /**
   * One string for all equal ones, so that comparing the values of a client and a server, which is
   * done at each link, seldom looks at their letters.
   */
  shared(value: string): string {
    const kept = this.#kept.get(value);
    if (kept !== undefined) return kept;
    if (this.#kept.size >= MAX_KEPT_VALUES) this.#kept.clear();
    this.#kept.set(value, value);
    return value;
  }

  /** Whether two values mean the same; as in PgBouncer a difference in case alone is none. */
  isSame(index: number, one: string, other: string): boolean {
    return !this.#isCaseNoted[index]! && one.toLowerCase() === other.toLowerCase();
  }
}

/**
 * The statements that give a server the client's values, or '' when there is nothing to do, which is
 * the usual case and costs a comparison for each parameter.
 */
export function settingStatements(
  names: TrackedNames,
  client: TrackedValues,
  server: ServerParameters,
): string {
  const { tracked, own } = server;
  let sql = '';
  for (let i = 0; i < tracked.length; i++) {
    const wanted = client[i] ?? own[i]!;
    const present = tracked[i]!;
    if (wanted === present) continue;
    if (wanted !== null && present !== null && names.isSame(i, wanted, present)) continue;
    const isReset = wanted === null || (client[i] === null && !server.setByQuery.has(i));
    sql += isReset ? `RESET ${names.names[i]};` : setStatement(names, i, wanted, server);
  }
  return sql;
}

function setStatement(
  names: TrackedNames,
  index: number,
  value: string,
  { tracked }: ServerParameters,
): string {
  const encoding = tracked[names.clientEncoding] ?? null;
  const name = names.names[index]!;
  if (!names.isNameList[index]) return `SET ${name}=${literal(value, encoding)};`;
  const list = nameList(value);
  if (list !== null) return `SET ${name}=${list.map((one) => literal(one, encoding)).join(',')};`;
  // No list of names, which is for PostgreSQL to say: it reads the text as in a startup packet.
  const text = literal(value, encoding);
  return `SELECT pg_catalog.set_config('${name}',${text},false);`;
}

/** Notes that those statements have succeeded; what the server reported has been noted already. */
export function onSettingsApplied(client: TrackedValues, server: ServerParameters): void {
  const { tracked, own } = server;
  for (let i = 0; i < tracked.length; i++) {
    // Of what it does not report, the server has what it was given.
    if (own[i] === null) tracked[i] = client[i]!;
    // RESET has brought the value that new sessions begin with now.
    else if (client[i] === null) own[i] = tracked[i]!;
    // The server's own spelling, so that equal values are not applied again.
    else client[i] = tracked[i]!;
  }
}

/** Something has put back an unknown part of the parameters that the server does not report. */
export function onUnreportedReset({ tracked, own }: ServerParameters): void {
  for (let i = 0; i < tracked.length; i++) {
    if (own[i] === null && tracked[i] !== null) tracked[i] = UNKNOWN;
  }
}

/** The client's value after its server has reported one while the two were linked. */
export function reportedValue(
  names: TrackedNames,
  index: number,
  value: string,
  { own }: ServerParameters,
): string | null {
  // It is back at the server's own value: a RESET, or the end of a transaction that had changed it.
  return !names.isKept[index] && value === own[index] ? null : value;
}
