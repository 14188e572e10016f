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
  { section: 'pgbouncer', key: 'auth_dbname' },
  { section: 'pgbouncer', key: 'auth_hba_file' },
  { section: 'pgbouncer', key: 'auth_ident_file' },
  { section: 'pgbouncer', key: 'auth_ldap_options' },
  { section: 'pgbouncer', key: 'auth_query' },
  { section: 'pgbouncer', key: 'auth_user' },
  { section: 'pgbouncer', key: 'client_tls13_ciphers' },
  { section: 'pgbouncer', key: 'client_tls_ca_file' },
  { section: 'pgbouncer', key: 'client_tls_cert_file' },
  { section: 'pgbouncer', key: 'client_tls_ciphers' },
  { section: 'pgbouncer', key: 'client_tls_dheparams' },
  { section: 'pgbouncer', key: 'client_tls_ecdhcurve' },
  { section: 'pgbouncer', key: 'client_tls_key_file' },
  { section: 'pgbouncer', key: 'client_tls_protocols' },
  { section: 'pgbouncer', key: 'tcp_defer_accept', actsAs: false },
  { section: 'pgbouncer', key: 'tcp_keepcnt' },
  { section: 'pgbouncer', key: 'tcp_keepintvl' },
  { section: 'pgbouncer', key: 'tcp_socket_buffer' },
  { section: 'pgbouncer', key: 'tcp_user_timeout' },
  // PgBouncer has this one on Windows only; elsewhere it stops the load.
  { section: 'pgbouncer', key: 'service_name' },
  { section: 'databases', key: 'auth_dbname' },
  { section: 'databases', key: 'auth_query' },
  { section: 'databases', key: 'auth_user' },
  { section: 'fleet', key: 'balance_accepts', actsAs: false },
  { section: 'fleet', key: 'client_tls_crl_file' },
  { section: 'fleet', key: 'elastic', actsAs: false },
  { section: 'fleet', key: 'http_listen', actsAs: '' },
  { section: 'fleet', key: 'pipeline_depth' },
  { section: 'fleet', key: 'status_names' },
];
