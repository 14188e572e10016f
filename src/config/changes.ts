import type { Config } from './config.ts';
import { databaseFate } from './diff.ts';
import { ConfigIndex } from './effective.ts';
import { withoutLdapPassword } from './redacted.ts';
import { type FleetSettings, SETTINGS, showValue } from './schema.ts';

/** Keys of entries whose values are never shown. */
const SECRETS: ReadonlySet<string> = new Set(['password']);
const UNSET = '(not set)';
const RESTART = ' (needs a restart)';

/**
 * What a reload would change, one line each: `[pgbouncer] default_pool_size: 20 -> 30`. Secrets are
 * not shown, only that they differ; keys that a reload leaves as they are say so.
 */
export function changeLines(old: Config, next: Config): string[] {
  return [
    ...settingLines(old, next),
    ...fleetLines(old.fleet, next.fleet),
    ...databaseLines(old, next),
    ...entryLines('users', byName(old.users), byName(next.users)),
    ...entryLines('peers', byId(old.peers), byId(next.peers)),
    ...contentLines(old, next),
  ];
}

/** Files whose content a reload reads anew; what stands in them is not shown. */
function contentLines(old: Config, next: Config): string[] {
  const files = [
    ['auth_file', old.authUsers, next.authUsers],
    ['auth_hba_file and auth_ident_file', old.hba, next.hba],
    ['client_tls files', old.clientTls, next.clientTls],
  ] as const;
  return files
    .filter(
      ([, before, after]) => after !== null && JSON.stringify(before) !== JSON.stringify(after),
    )
    .map(([what]) => `${what}: content has changed`);
}

function settingLines(old: Config, next: Config): string[] {
  return SETTINGS.flatMap((spec) => {
    const [before, after] = [old.settings[spec.key], next.settings[spec.key]];
    if (before === after) return [];
    const shown = [before, after].map((value) => {
      const text = showValue(spec, value);
      return text === null ? UNSET : quoted(withoutLdapPassword(text));
    });
    return [`[pgbouncer] ${spec.key}: ${shown.join(' -> ')}${spec.changeable ? '' : RESTART}`];
  });
}

function fleetLines(old: FleetSettings, next: FleetSettings): string[] {
  const keys = Object.keys(next) as (keyof FleetSettings)[];
  return keys
    .filter((key) => old[key] !== next[key])
    .map((key) => `[fleet] ${key}: ${show(key, old[key])} -> ${show(key, next[key])}${RESTART}`);
}

function databaseLines(old: Config, next: Config): string[] {
  const [before, after] = [new ConfigIndex(old), new ConfigIndex(next)];
  const withStar = ({ databases, autoDatabase }: Config) =>
    byName(autoDatabase === null ? databases : [...databases, { ...autoDatabase, name: '*' }]);
  return entryLines('databases', withStar(old), withStar(next), (name) =>
    name !== '*' && databaseFate(before, after, name) === 'recycled'
      ? ' (its connections are replaced as they become free)'
      : '',
  );
}

/** Entries that come, go or change; `note` tells what a change means for the entry of that name. */
function entryLines(
  section: string,
  old: ReadonlyMap<string, object>,
  next: ReadonlyMap<string, object>,
  note: (name: string) => string = () => '',
): string[] {
  const lines: string[] = [];
  for (const name of new Set([...old.keys(), ...next.keys()])) {
    const [before, after] = [old.get(name), next.get(name)];
    const what = `[${section}] ${name}`;
    if (before === undefined) lines.push(`${what}: added`);
    else if (after === undefined) lines.push(`${what}: removed`);
    else lines.push(...fieldLines(what, before, after, note(name)));
  }
  return lines;
}

function fieldLines(what: string, before: object, after: object, note: string): string[] {
  const old = new Map<string, unknown>(Object.entries(before));
  return Object.entries(after)
    .filter(([key, value]) => JSON.stringify(old.get(key)) !== JSON.stringify(value))
    .map(
      ([key, value]) => `${what}: ${key}: ${show(key, old.get(key))} -> ${show(key, value)}${note}`,
    );
}

function show(key: string, value: unknown): string {
  if (value === null || value === undefined) return UNSET;
  if (SECRETS.has(key)) return '[redacted]';
  return quoted(Array.isArray(value) ? value.join(',') : String(value));
}

/** An empty value would not be seen, and a line break would make two lines of one. */
function quoted(text: string): string {
  return text === '' || /[\p{Cc}]/u.test(text) ? JSON.stringify(text) : text;
}

function byName<Entry extends { readonly name: string }>(entries: readonly Entry[]) {
  return new Map(entries.map((entry) => [entry.name, entry]));
}

function byId<Entry extends { readonly id: number }>(entries: readonly Entry[]) {
  return new Map(entries.map((entry) => [String(entry.id), entry]));
}
