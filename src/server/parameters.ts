/**
 * Tracked parameters: those that the pooler remembers for each client and applies to the server that
 * the client gets next (PgBouncer's `track_extra_parameters` and its fixed five).
 */

/** Always tracked, in the order of the welcome. */
const FIXED = [
  'DateStyle',
  'client_encoding',
  'TimeZone',
  'standard_conforming_strings',
  'application_name',
];

/** Values by index of `TrackedNames`; null: not known. */
export type TrackedValues = (string | null)[];

/** The tracked set, fixed at start; a parameter is its index. Names are compared without case. */
export class TrackedNames {
  readonly names: readonly string[];
  readonly applicationName: number;
  readonly #indexes = new Map<string, number>();

  constructor(extra: readonly string[]) {
    this.names = [...FIXED, ...extra.filter((name) => !isFixed(name))];
    this.names.forEach((name, index) => {
      this.#indexes.set(name.toLowerCase(), index);
    });
    this.applicationName = this.#indexes.get('application_name')!;
  }

  /** Index of a parameter, or -1 when it is not tracked. */
  indexOf(name: string): number {
    return this.#indexes.get(name.toLowerCase()) ?? -1;
  }

  /** A set of values with none known. */
  none(): TrackedValues {
    return new Array<string | null>(this.names.length).fill(null);
  }
}

function isFixed(name: string): boolean {
  return FIXED.some((fixed) => fixed.toLowerCase() === name.toLowerCase());
}

/**
 * The SET statements that give a server the client's values, or '' when there is nothing to do.
 * Only values known on both sides count; a difference in case alone is none.
 */
export function settingStatements(
  names: TrackedNames,
  client: TrackedValues,
  server: TrackedValues,
): string {
  let sql = '';
  for (let i = 0; i < client.length; i++) {
    const wanted = client[i]!;
    const present = server[i]!;
    if (wanted === present || wanted === null || present === null) continue;
    if (wanted.toLowerCase() === present.toLowerCase()) continue;
    sql += `SET ${names.names[i]}=${quoted(names.names[i]!, wanted)};`;
  }
  return sql;
}

/** `search_path` is a quoted list already; an empty list `""` must be given as an empty string. */
function quoted(name: string, value: string): string {
  if (name.toLowerCase() === 'search_path') return value === '""' ? "''" : value;
  const doubled = value.replaceAll("'", "''");
  return value.includes('\\') ? `E'${doubled.replaceAll('\\', '\\\\')}'` : `'${doubled}'`;
}
