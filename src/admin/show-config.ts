import type { Config } from '../config/config.ts';
import { withoutLdapPassword } from '../config/redacted.ts';
import { SETTINGS, showValue } from '../config/schema.ts';
import { text } from './result.ts';
import type { ConfigRow } from './snapshot.ts';
import type { Topic } from './topic.ts';

export const showConfig: Topic = {
  columns: [text('key'), text('value'), text('default'), text('changeable')],
  parts: ['config'],
  isSameEverywhere: true,
  hasProcesses: true,
  rows: ({ snapshots }) =>
    snapshots[0]!.config.map((row) => [
      row.key,
      row.value,
      row.default,
      row.changeable ? 'yes' : 'no',
    ]),
};

/** The settings of `[pgbouncer]` as SHOW CONFIG prints them, in its order. */
export function configRows(config: Config): ConfigRow[] {
  return SETTINGS.filter((spec) => !spec.isWindowsOnly).map((spec) => ({
    key: spec.key,
    value: withoutSecret(
      spec.key === 'conffile'
        ? (config.settings.conffile ?? config.file)
        : showValue(spec, config.settings[spec.key]),
    ),
    default: spec.defaultText,
    changeable: spec.changeable,
  }));
}

function withoutSecret(value: string | null): string | null {
  return value === null ? null : withoutLdapPassword(value);
}
