import type { Config } from './config.ts';
import { type FleetSettings, SETTINGS, type Settings } from './schema.ts';

/** Settings that are read once, at start. Sockets, processes and accounts hang on them. */
const START_ONLY: readonly (keyof Settings)[] = SETTINGS.filter((spec) => !spec.changeable).map(
  (spec) => spec.key,
);

/** `next` with the start-only values of `old`, and the names of those that the file changes. */
export interface Reloadable {
  readonly config: Config;
  readonly changed: readonly string[];
}

/**
 * Keeps what only a restart can change: PgBouncer's settings of that kind and all of `[fleet]`.
 */
export function keepStartOnly(old: Config, next: Config): Reloadable {
  const settings = { ...next.settings };
  const changed: string[] = [];
  for (const key of START_ONLY) {
    if (settings[key] !== old.settings[key]) changed.push(key);
    assign(settings, key, old.settings);
  }
  for (const key of Object.keys(old.fleet) as (keyof FleetSettings)[]) {
    if (next.fleet[key] !== old.fleet[key]) changed.push(`[fleet] ${key}`);
  }
  const isStartOnly = (key: string) =>
    START_ONLY.includes(key as keyof Settings) || Object.hasOwn(old.fleet, key);
  const given = [
    ...next.given.filter((key) => !isStartOnly(key)),
    ...old.given.filter((key) => isStartOnly(key)),
  ];
  const config = { ...next, settings: Object.freeze(settings), fleet: old.fleet, given };
  return { config: Object.freeze(config), changed };
}

function assign<K extends keyof Settings>(
  settings: { -readonly [Key in keyof Settings]: Settings[Key] },
  key: K,
  from: Settings,
): void {
  settings[key] = from[key];
}
