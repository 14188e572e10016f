/**
 * Every key of `[pgbouncer]` and `[fleet]`: how its text is read, its default and whether a reload
 * may change it. Types and defaults are PgBouncer's; a range that PgBouncer does not check is checked
 * here where a value outside it could only be a mistake.
 */

import { z } from 'zod';
import { intIn, mustBe, onOff, seconds, text, value, whyInvalid, wordIn } from './fields.ts';
import { isCurve, isProtocolList, isTls13SuiteList } from './tls-values.ts';
import { parseBool, parseInt32, parseUint32 } from './values.ts';

type SettingType = 'int' | 'uint' | 'bool' | 'time' | 'str' | 'enum';
export type SettingValue = string | number | boolean | null;

/** What `SHOW CONFIG` and a reload need to know of a `[pgbouncer]` setting. */
export interface SettingSpec {
  readonly key: keyof Settings;
  readonly type: SettingType;
  readonly default: SettingValue;
  /** The default as PgBouncer spells it (`0777`); null: it has none. */
  readonly defaultText: string | null;
  /** False: read once, at start. */
  readonly changeable: boolean;
  /** Has no default to go back to when `[pgbouncer]` is opened again. */
  readonly isSticky: boolean;
  /** Known to PgBouncer on Windows only, so `SHOW CONFIG` leaves it out. */
  readonly isWindowsOnly: boolean;
}

type About = Pick<SettingSpec, 'type' | 'changeable'> & Partial<Omit<SettingSpec, 'key'>>;

const about = z.registry<About>();

/** Takes effect on reload. */
const R = { changeable: true };
/** Read once, at start. */
const S = { changeable: false };

const SSL_MODES = ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'] as const;
const AUTH_TYPES = [
  'any',
  'trust',
  'plain',
  'md5',
  'cert',
  'hba',
  'ldap',
  'pam',
  'scram-sha-256',
] as const;
const AUTH_QUERY =
  'SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END' +
  ' FROM pg_authid WHERE rolname=$1 AND rolcanlogin';

const settingsShape = {
  admin_users: str('', R),
  application_name_add_host: bool(false, R),
  auth_dbname: unsetStr(R),
  auth_file: unsetStr(R),
  auth_hba_file: str('', R),
  auth_ident_file: unsetStr(R),
  auth_ldap_options: unsetStr(R),
  auth_query: str(AUTH_QUERY, R),
  auth_type: word(AUTH_TYPES, 'md5', R),
  auth_user: unsetStr(R),
  autodb_idle_timeout: time(3600, R),
  cancel_wait_timeout: time(10, R),
  client_idle_timeout: time(0, R),
  client_login_timeout: time(60, R),
  client_tls13_ciphers: unsetStr(R, isTls13SuiteList),
  client_tls_ca_file: str('', R),
  client_tls_cert_file: str('', R),
  client_tls_ciphers: str('default', R),
  client_tls_dheparams: str('auto', R, (text) => /^(?:auto|none)$/i.test(text)),
  client_tls_ecdhcurve: str('auto', R, isCurve),
  client_tls_key_file: str('', R),
  client_tls_protocols: str('secure', R, isProtocolList),
  client_tls_sslmode: word(SSL_MODES, 'disable', R),
  conffile: unsetStr(R),
  default_pool_size: int(20, R),
  disable_pqexec: bool(false, S),
  dns_max_ttl: time(15, R),
  dns_nxdomain_ttl: time(15, R),
  dns_zone_check_period: time(0, R),
  idle_transaction_timeout: time(0, R),
  ignore_startup_parameters: str('', R),
  job_name: str('pgbouncer', S),
  listen_addr: str('', S),
  listen_backlog: int(128, S),
  listen_port: int(6432, S, 1, 65535),
  log_connections: bool(true, R),
  log_disconnections: bool(true, R),
  log_pooler_errors: bool(true, R),
  log_stats: bool(true, R),
  logfile: str('', R),
  login_notify_message: str('', R),
  max_client_conn: int(100, R),
  max_db_client_connections: int(0, R),
  max_db_connections: int(0, R),
  max_packet_size: uint(2147483647, R),
  max_prepared_statements: int(200, R),
  max_user_client_connections: int(0, R),
  max_user_connections: int(0, R),
  min_pool_size: int(0, R),
  // The cancel key has room for 16 bits, but PgBouncer's manual promises no more than 14.
  peer_id: int(0, R, 0, 16383),
  pidfile: str('', S),
  pkt_buf: int(4096, S),
  pool_idle_timeout: time(0, R),
  pool_mode: word(['session', 'transaction', 'statement'], 'session', R),
  query_timeout: time(0, R),
  query_wait_notify: int(5, R),
  query_wait_timeout: time(120, R),
  reserve_pool_size: int(0, R),
  reserve_pool_timeout: time(5, R),
  resolv_conf: str('', S),
  sbuf_loopcnt: int(5, R),
  scram_iterations: int(4096, R),
  server_check_delay: time(30, R),
  server_check_query: str('<empty>', R),
  server_connect_timeout: time(15, R),
  server_fast_close: bool(false, R),
  server_idle_timeout: time(600, R),
  server_lifetime: time(3600, R),
  server_login_retry: time(15, R),
  server_reset_query: str('DISCARD ALL', R),
  server_reset_query_always: bool(false, R),
  server_round_robin: bool(false, R),
  server_tls13_ciphers: unsetStr(R, isTls13SuiteList),
  server_tls_ca_file: str('', R),
  server_tls_cert_file: str('', R),
  server_tls_ciphers: str('default', R),
  server_tls_key_file: str('', R),
  server_tls_protocols: str('secure', R, isProtocolList),
  server_tls_sslmode: word(SSL_MODES, 'prefer', R),
  service_name: text().nullable().default(null).register(about, windowsOnly()),
  so_reuseport: bool(false, S),
  stats_period: int(60, R),
  stats_users: str('', R),
  suspend_timeout: time(10, R),
  syslog: bool(false, R),
  syslog_facility: str('daemon', R),
  syslog_ident: str('pgbouncer', R),
  tcp_defer_accept: bool(process.platform === 'linux', R),
  tcp_keepalive: bool(true, R),
  tcp_keepcnt: int(0, R),
  tcp_keepidle: int(0, R),
  tcp_keepintvl: int(0, R),
  tcp_socket_buffer: int(0, R),
  tcp_user_timeout: int(0, R),
  track_extra_parameters: str('IntervalStyle', S),
  transaction_timeout: time(0, R),
  unix_socket_dir: str(process.platform === 'win32' ? '' : '/tmp', S),
  unix_socket_group: str('', S),
  unix_socket_mode: int(0o777, { ...S, defaultText: '0777' }, 0, 0o7777),
  user: unsetStr(S),
  // PgBouncer keeps the command line's -v when the file says nothing, so it knows no default here.
  verbose: int(0, { ...R, defaultText: null, isSticky: true }),
};

const fleetShape = {
  size: value(
    (text) => (text.toLowerCase() === 'auto' ? 'auto' : parseInt32(text)),
    mustBe('auto or 1 to 256'),
  )
    .refine((size) => size === 'auto' || (size >= 1 && size <= 256), 'must be auto or 1 to 256')
    .default('auto'),
  runtime_dir: text()
    .transform((path) => (path === '' ? null : path))
    .nullable()
    .default(null),
  elastic: onOff(true),
  balance_accepts: onOff(true),
  pipeline_depth: intIn(1, 1000).default(1),
  http_listen: text()
    .refine(isHostAndPort, 'must be host:port, or empty for none')
    .default('127.0.0.1:9127'),
  log_format: wordIn(['text', 'json']).default('text'),
  status_names: wordIn(['loopback', 'always']).default('loopback'),
  client_tls_crl_file: text().default(''),
  server_tls_negotiation: wordIn(['postgres', 'direct']).default('postgres'),
  worker_stall_timeout: seconds().default(10),
};

const settingsSchema = z.object(settingsShape);
const fleetSchema = z.object(fleetShape);

/** The `[pgbouncer]` section. Times are seconds; see the PgBouncer manual for the other units. */
export type Settings = Readonly<z.output<typeof settingsSchema>>;
/** The `[fleet]` section. `worker_stall_timeout` is seconds. */
export type FleetSettings = Readonly<z.output<typeof fleetSchema>>;

/** All `[pgbouncer]` settings in the row order of `SHOW CONFIG`. */
export const SETTINGS: readonly SettingSpec[] = Object.entries(settingsShape).map(
  ([key, schema]) => {
    const known = about.get(schema)!;
    const fallback: SettingValue = schema.parse(undefined);
    const spec = { isSticky: fallback === null, isWindowsOnly: false, ...known };
    return {
      ...spec,
      key: key as keyof Settings,
      default: fallback,
      defaultText:
        known.defaultText === undefined ? print(known.type, fallback) : known.defaultText,
    };
  },
);

/** The setting as `SHOW CONFIG` prints it: times in plain seconds, an unset string as null. */
export function showValue(spec: SettingSpec, value: SettingValue): string | null {
  return print(spec.type, value);
}

/** The settings of a file that sets none. */
export function defaultSettings(): Settings {
  return settingsSchema.parse({});
}

/** The `[fleet]` section of a file that has none. */
export function defaultFleetSettings(): FleetSettings {
  return fleetSchema.parse({});
}

export type ValueResult = { ok: true; value: SettingValue } | { ok: false; why: string };

/** Reads the text of one setting; null when the section has no such key. */
export function readSetting(
  section: 'pgbouncer' | 'fleet',
  key: string,
  text: string,
): ValueResult | null {
  const shape: Record<string, z.ZodType<SettingValue>> = section === 'pgbouncer'
    ? settingsShape
    : fleetShape;
  if (!Object.hasOwn(shape, key)) return null;
  const result = shape[key]!.safeParse(text);
  if (result.success) return { ok: true, value: result.data };
  return { ok: false, why: whyInvalid(result.error) };
}

type Effect = Omit<About, 'type'>;

function int(fallback: number, effect: Effect, least = -(2 ** 31), most = 2 ** 31 - 1) {
  return intIn(least, most)
    .default(fallback)
    .register(about, { ...effect, type: 'int' });
}

function uint(fallback: number, effect: Effect) {
  const number = value(parseUint32, mustBe('a whole number'));
  return number.default(fallback).register(about, { ...effect, type: 'uint' });
}

function bool(fallback: boolean, effect: Effect) {
  const number = value(parseBool, mustBe('0 or 1'));
  return number.default(fallback).register(about, { ...effect, type: 'bool' });
}

function time(fallback: number, effect: Effect) {
  return seconds()
    .default(fallback)
    .register(about, { ...effect, type: 'time' });
}

function word<const W extends string>(words: readonly W[], fallback: NoInfer<W>, effect: Effect) {
  const schema: z.ZodType<W, string> = wordIn(words);
  return z.prefault(schema, fallback).register(about, { ...effect, type: 'enum' });
}

function str(fallback: string, effect: Effect, isValid?: (text: string) => boolean) {
  const schema = isValid === undefined ? text() : text().refine(isValid, 'is not a known value');
  return schema.default(fallback).register(about, { ...effect, type: 'str' });
}

function unsetStr(effect: Effect, isValid?: (text: string) => boolean) {
  const schema = isValid === undefined ? text() : text().refine(isValid, 'is not a known value');
  return schema
    .nullable()
    .default(null)
    .register(about, { ...effect, type: 'str' });
}

function windowsOnly(): About {
  return { ...S, type: 'str', isWindowsOnly: true };
}

function isHostAndPort(given: string): boolean {
  if (given === '') return true;
  const match = /^(?:\[[0-9A-Fa-f:.%\w]+\]|[^:\s]+):([0-9]{1,5})$/.exec(given);
  return match !== null && Number(match[1]) >= 1 && Number(match[1]) <= 65535;
}

function print(type: SettingType, given: SettingValue): string | null {
  if (given === null) return null;
  if (typeof given === 'boolean') return given ? '1' : '0';
  return type === 'time' && typeof given === 'number' ? printSeconds(given) : String(given);
}

/** As C's `%g`: six significant digits, no trailing zeros. */
function printSeconds(given: number): string {
  const [digits, exponent] = given.toPrecision(6).split('e');
  const short = digits!.includes('.') ? digits!.replace(/\.?0+$/, '') : digits!;
  if (exponent === undefined) return short;
  return `${short}e${exponent[0]}${exponent.slice(1).padStart(2, '0')}`;
}
