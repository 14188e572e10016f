import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { ConfigError } from '../errors.ts';
import { osErrorText } from '../log/os-error.ts';

/**
 * Fields of an account or a group, since Node has no `getpwnam`: from the local file, else from
 * whatever else the system is set up with (LDAP, sssd).
 */
function lookUp(database: 'passwd' | 'group', name: string): string[] | null {
  const entries = readFileSync(`/etc/${database}`, 'utf8').split('\n');
  const local = entries.find((entry) => entry.startsWith(`${name}:`));
  if (local !== undefined) return local.split(':');
  try {
    const entry = execFileSync('/usr/bin/getent', ['--', database, name], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    return entry.trimEnd().split(':');
  } catch {
    return null;
  }
}

/** Number of a Unix group given by name or number; null when there is none of that name. */
export function findGroup(group: string): number | null {
  if (/^\d+$/.test(group)) return Number(group);
  const entry = lookUp('group', group);
  return entry === null ? null : Number(entry[2]);
}

/** Number of the Unix account of that name; null when there is none. */
export function findUser(user: string): number | null {
  const entry = lookUp('passwd', user);
  return entry === null ? null : Number(entry[2]);
}

/**
 * Makes this process one of a Unix account, for good, with that account's groups. Nothing happens
 * when it is that account's already. Throws ConfigError with PgBouncer's text.
 */
export function assumeIdentity(user: string): void {
  const entry = lookUp('passwd', user);
  if (entry === null) throw new ConfigError(`could not find user '${user}' to switch to`);
  const uid = Number(entry[2]);
  const gid = Number(entry[3]);
  if (process.geteuid!() === uid && process.getuid!() === uid) return;
  try {
    process.initgroups!(user, gid);
    process.setgid!(gid);
    process.setuid!(uid);
  } catch (error) {
    throw new ConfigError(`failed to assume identity of user '${user}': ${osErrorText(error)}`, {
      cause: error,
    });
  }
}
