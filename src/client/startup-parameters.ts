/**
 * Reading what a client asks for in its StartupMessage, by PgBouncer's rules: which parameters are
 * taken, remembered, dropped or refused.
 */

import type { TrackedNames, TrackedValues } from '../server/parameters.ts';

/** What a startup packet comes to. */
export interface StartupRequest {
  readonly user: string;
  /** Empty: the user's name. */
  readonly database: string;
  readonly applicationName: string | null;
  /** Values of tracked parameters that the client gave. */
  readonly tracked: TrackedValues;
  /** `_pq_.` options, all of them unknown. */
  readonly unknownOptions: readonly string[];
  readonly replication: 'none' | 'logical' | 'physical';
  /** The parameter `options` as it came, which only replication connections pass on; null: none. */
  readonly options: string | null;
}

/** A startup packet that is refused. */
export interface StartupRefusal {
  /** The text of its FATAL. */
  readonly refusal: string;
  /** What the log says before that; null: nothing. */
  readonly warning: string | null;
}

const OPTIONS_FORM: StartupRefusal = {
  refusal:
    "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed",
  warning: null,
};

/** The database that is asked for: the user's name unless it is given. */
export function databaseIn(parameters: readonly (readonly [string, string])[]): string {
  const valueOfLast = (wanted: string): string =>
    parameters.findLast(([name]) => name === wanted)?.[1] ?? '';
  return valueOfLast('database') || valueOfLast('user');
}

/**
 * Scans the parameters in order; the first fault wins.
 * @param ignored names of `ignore_startup_parameters`
 */
export function readStartup(
  parameters: readonly (readonly [string, string])[],
  tracked: TrackedNames,
  ignored: ReadonlySet<string>,
): StartupRequest | StartupRefusal {
  let user = '';
  let database = '';
  const replication = replicationIn(parameters);
  const values = tracked.none();
  const unknownOptions: string[] = [];
  let options: string | null = null;
  for (const [name, value] of parameters) {
    const index = tracked.indexOf(name);
    if (name === 'user') user = value;
    else if (name === 'database') database = value;
    else if (name === 'options') {
      options = value;
      const isRead = replication === 'none';
      const refusal = isRead ? readOptions(value, tracked, ignored, values) : null;
      if (refusal !== null) return refusal;
    } else if (name === 'replication') continue;
    else if (name.startsWith('_pq_.')) unknownOptions.push(name);
    else if (ignored.has(name)) continue;
    else if (index !== -1) values[index] = value;
    else return unsupported(`unsupported startup parameter: ${name}`, value);
  }
  const applicationName = values[tracked.applicationName] ?? null;
  return { user, database, applicationName, tracked: values, unknownOptions, replication, options };
}

/** The client is told the name of the parameter only, the log its value too. */
function unsupported(refusal: string, value: string): StartupRefusal {
  return { refusal, warning: `${refusal}=${value}` };
}

/** Reads `-c name=value` and `--name=value`; fills `values`. Returns a refusal or null. */
function readOptions(
  text: string,
  tracked: TrackedNames,
  ignored: ReadonlySet<string>,
  values: TrackedValues,
): StartupRefusal | null {
  let at = 0;
  for (;;) {
    while (text[at] === ' ') at++;
    if (at >= text.length) return null;
    if (text.startsWith('-c', at)) {
      at += 2;
      while (text[at] === ' ') at++;
    } else if (text.startsWith('--', at)) {
      at += 2;
    } else {
      return OPTIONS_FORM;
    }
    let token = '';
    while (at < text.length && !/\s/.test(text[at]!)) {
      if (text[at] === '\\' && at + 1 < text.length) at++;
      token += text[at++];
    }
    const equals = token.indexOf('=');
    if (equals === -1) return OPTIONS_FORM;
    const name = token.slice(0, equals);
    const value = token.slice(equals + 1);
    const index = tracked.indexOf(name);
    if (ignored.has(name)) continue;
    if (index !== -1) values[index] = value;
    else if (!ignored.has('options')) {
      return unsupported(`unsupported startup parameter in options: ${name}`, value);
    }
  }
}

/** Looked for first, since it says whether `options` is read here; the last one counts. */
function replicationIn(
  parameters: readonly (readonly [string, string])[],
): StartupRequest['replication'] {
  const value = parameters.findLast(([name]) => name === 'replication')?.[1];
  return value === undefined ? 'none' : replicationOf(value);
}

/** `database` is logical; a word that PostgreSQL reads as true is physical; all else is none. */
function replicationOf(value: string): StartupRequest['replication'] {
  if (value === 'database') return 'logical';
  const word = value.toLowerCase();
  if (word === '1' || word === 'on') return 'physical';
  if (word.length > 0 && ('true'.startsWith(word) || 'yes'.startsWith(word))) return 'physical';
  return 'none';
}
