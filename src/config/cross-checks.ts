/** What no value shows by itself: settings that this version cannot honour, or that need each other. */

import type { Config } from './config.ts';
import { NOT_BUILT, type Unbuilt } from './not-built.ts';
import type { Problem } from './problem.ts';
import {
  defaultFleetSettings,
  defaultSettings,
  type Settings,
  type SettingValue,
} from './schema.ts';

/** A setting that the file gives, or a key that it gives inside a connection string. */
export interface Given {
  readonly section: 'pgbouncer' | 'fleet' | 'databases';
  readonly key: string;
  readonly value: SettingValue;
  /** Name of the database; null for a setting. */
  readonly entry: string | null;
  readonly file: string;
  readonly line: number;
}

interface Refusal {
  readonly key: keyof Settings;
  readonly values: readonly string[];
  readonly why: string;
}

const NOT_YET = 'is not supported yet by this version';

/** Settings that decide who gets in. To ignore one would open a door, so each stops the start. */
const notYetSecurity: readonly Refusal[] = [
  { key: 'auth_type', values: ['cert'], why: NOT_YET },
  { key: 'auth_type', values: ['hba'], why: NOT_YET },
  { key: 'auth_type', values: ['ldap'], why: NOT_YET },
  {
    key: 'client_tls_sslmode',
    values: ['allow', 'prefer', 'require', 'verify-ca', 'verify-full'],
    why: NOT_YET,
  },
];

/** Node has no way to PAM. */
const neverSecurity: readonly Refusal[] = [
  {
    key: 'auth_type',
    values: ['pam'],
    why: 'is not supported: use ldap or scram-sha-256 instead',
  },
];

/** Errors for settings that must not be ignored, one warning for each other key without effect. */
export function checkHonoured(given: readonly Given[]): Problem[] {
  const problems: Problem[] = [];
  for (const { key, values, why } of [...neverSecurity, ...notYetSecurity]) {
    const refused = given.find(
      (one) => one.section === 'pgbouncer' && one.key === key && values.includes(`${one.value}`),
    );
    if (refused !== undefined) {
      problems.push(problemAt(refused, `${refused.value} ${why}`, 'error'));
    }
  }
  const defaults = { pgbouncer: defaultSettings(), fleet: defaultFleetSettings(), databases: {} };
  for (const unbuilt of NOT_BUILT) {
    const section: Record<string, SettingValue> = defaults[unbuilt.section];
    const isNews = (value: SettingValue) => value !== actsAs(unbuilt, section);
    const first = given.find(
      (one) => one.section === unbuilt.section && one.key === unbuilt.key && isNews(one.value),
    );
    if (first === undefined) continue;
    const subject = first.entry === null ? '' : `${unbuilt.key} `;
    const text = `${subject}is accepted but has no effect in this version`;
    problems.push(problemAt(first, text, 'warning'));
  }
  return problems;
}

/** Settings that need another, or are no use without it. */
export function checkTogether(config: Config, given: readonly Given[]): Problem[] {
  return [...checkDirectTls(config, given), ...checkPeers(config, given)];
}

/** As libpq has it: a handshake that begins at once cannot be a wish, for nothing is left to fall back to. */
function checkDirectTls({ settings, fleet }: Config, given: readonly Given[]): Problem[] {
  const direct = given.find((one) => one.key === 'server_tls_negotiation');
  const isFirm = !['disable', 'allow', 'prefer'].includes(settings.server_tls_sslmode);
  if (direct === undefined || fleet.server_tls_negotiation !== 'direct' || isFirm) return [];
  const text = 'direct needs server_tls_sslmode = require, verify-ca or verify-full';
  return [problemAt(direct, text, 'error')];
}

function checkPeers(config: Config, given: readonly Given[]): Problem[] {
  if (config.peers.length === 0 || config.settings.peer_id > 0) return [];
  const text = '[peers] has no effect while peer_id is 0: cancel requests are not passed on';
  const own = given.find((one) => one.section === 'pgbouncer' && one.key === 'peer_id');
  if (own !== undefined) return [problemAt(own, text, 'warning')];
  return [{ file: config.file, line: 0, key: 'peer_id', text, level: 'warning' }];
}

function actsAs(unbuilt: Unbuilt, defaults: Record<string, SettingValue>): SettingValue {
  return unbuilt.actsAs === undefined ? (defaults[unbuilt.key] ?? null) : unbuilt.actsAs;
}

function problemAt(given: Given, text: string, level: Problem['level']): Problem {
  return { file: given.file, line: given.line, key: given.entry ?? given.key, text, level };
}
