/**
 * Keys that are read and checked but whose behaviour this version lacks. A file that sets one is told
 * so in one warning; the line goes when the behaviour comes.
 */

import type { FleetSettings, Settings, SettingValue } from './schema.ts';

export type Unbuilt =
  | NotBuiltIn<'pgbouncer', keyof Settings>
  | NotBuiltIn<'fleet', keyof FleetSettings>
  | NotBuiltIn<'databases', string>;

interface NotBuiltIn<Section, Key> {
  readonly section: Section;
  readonly key: Key;
  /** The value that this version behaves as, where that is not the default: setting it is no news. */
  readonly actsAs?: SettingValue;
}

export const NOT_BUILT: readonly Unbuilt[] = [
  { section: 'pgbouncer', key: 'tcp_defer_accept', actsAs: false },
  { section: 'pgbouncer', key: 'tcp_keepcnt' },
  { section: 'pgbouncer', key: 'tcp_keepintvl' },
  { section: 'pgbouncer', key: 'tcp_socket_buffer' },
  { section: 'pgbouncer', key: 'tcp_user_timeout' },
  // PgBouncer has this one on Windows only; elsewhere it stops the load.
  { section: 'pgbouncer', key: 'service_name' },
  { section: 'fleet', key: 'balance_accepts', actsAs: false },
  { section: 'fleet', key: 'elastic', actsAs: false },
  { section: 'fleet', key: 'http_listen', actsAs: '' },
  { section: 'fleet', key: 'pipeline_depth' },
  { section: 'fleet', key: 'status_names' },
];
