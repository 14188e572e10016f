import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  defaultFleetSettings,
  defaultSettings,
  readSetting,
  SETTINGS,
  showValue,
} from '../../../src/config/schema.ts';

const IS_LINUX = process.platform === 'linux';
const AUTH_QUERY =
  'SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin';

/** Key, type, default and SHOW CONFIG's `changeable`, in its row order. */
const PINNED = [
  ['admin_users', 'str', '', 'yes'],
  ['application_name_add_host', 'bool', false, 'yes'],
  ['auth_dbname', 'str', null, 'yes'],
  ['auth_file', 'str', null, 'yes'],
  ['auth_hba_file', 'str', '', 'yes'],
  ['auth_ident_file', 'str', null, 'yes'],
  ['auth_ldap_options', 'str', null, 'yes'],
  ['auth_query', 'str', AUTH_QUERY, 'yes'],
  ['auth_type', 'enum', 'md5', 'yes'],
  ['auth_user', 'str', null, 'yes'],
  ['autodb_idle_timeout', 'time', 3600, 'yes'],
  ['cancel_wait_timeout', 'time', 10, 'yes'],
  ['client_idle_timeout', 'time', 0, 'yes'],
  ['client_login_timeout', 'time', 60, 'yes'],
  ['client_tls13_ciphers', 'str', null, 'yes'],
  ['client_tls_ca_file', 'str', '', 'yes'],
  ['client_tls_cert_file', 'str', '', 'yes'],
  ['client_tls_ciphers', 'str', 'default', 'yes'],
  ['client_tls_dheparams', 'str', 'auto', 'yes'],
  ['client_tls_ecdhcurve', 'str', 'auto', 'yes'],
  ['client_tls_key_file', 'str', '', 'yes'],
  ['client_tls_protocols', 'str', 'secure', 'yes'],
  ['client_tls_sslmode', 'enum', 'disable', 'yes'],
  ['conffile', 'str', null, 'yes'],
  ['default_pool_size', 'int', 20, 'yes'],
  ['disable_pqexec', 'bool', false, 'no'],
  ['dns_max_ttl', 'time', 15, 'yes'],
  ['dns_nxdomain_ttl', 'time', 15, 'yes'],
  ['dns_zone_check_period', 'time', 0, 'yes'],
  ['idle_transaction_timeout', 'time', 0, 'yes'],
  ['ignore_startup_parameters', 'str', '', 'yes'],
  ['job_name', 'str', 'pgbouncer', 'no'],
  ['listen_addr', 'str', '', 'no'],
  ['listen_backlog', 'int', 128, 'no'],
  ['listen_port', 'int', 6432, 'no'],
  ['log_connections', 'bool', true, 'yes'],
  ['log_disconnections', 'bool', true, 'yes'],
  ['log_pooler_errors', 'bool', true, 'yes'],
  ['log_stats', 'bool', true, 'yes'],
  ['logfile', 'str', '', 'yes'],
  ['login_notify_message', 'str', '', 'yes'],
  ['max_client_conn', 'int', 100, 'yes'],
  ['max_db_client_connections', 'int', 0, 'yes'],
  ['max_db_connections', 'int', 0, 'yes'],
  ['max_packet_size', 'uint', 2147483647, 'yes'],
  ['max_prepared_statements', 'int', 200, 'yes'],
  ['max_user_client_connections', 'int', 0, 'yes'],
  ['max_user_connections', 'int', 0, 'yes'],
  ['min_pool_size', 'int', 0, 'yes'],
  ['peer_id', 'int', 0, 'yes'],
  ['pidfile', 'str', '', 'no'],
  ['pkt_buf', 'int', 4096, 'no'],
  ['pool_idle_timeout', 'time', 0, 'yes'],
  ['pool_mode', 'enum', 'session', 'yes'],
  ['query_timeout', 'time', 0, 'yes'],
  ['query_wait_notify', 'int', 5, 'yes'],
  ['query_wait_timeout', 'time', 120, 'yes'],
  ['reserve_pool_size', 'int', 0, 'yes'],
  ['reserve_pool_timeout', 'time', 5, 'yes'],
  ['resolv_conf', 'str', '', 'no'],
  ['sbuf_loopcnt', 'int', 5, 'yes'],
  ['scram_iterations', 'int', 4096, 'yes'],
  ['server_check_delay', 'time', 30, 'yes'],
  ['server_check_query', 'str', '<empty>', 'yes'],
  ['server_connect_timeout', 'time', 15, 'yes'],
  ['server_fast_close', 'bool', false, 'yes'],
  ['server_idle_timeout', 'time', 600, 'yes'],
  ['server_lifetime', 'time', 3600, 'yes'],
  ['server_login_retry', 'time', 15, 'yes'],
  ['server_reset_query', 'str', 'DISCARD ALL', 'yes'],
  ['server_reset_query_always', 'bool', false, 'yes'],
  ['server_round_robin', 'bool', false, 'yes'],
  ['server_tls13_ciphers', 'str', null, 'yes'],
  ['server_tls_ca_file', 'str', '', 'yes'],
  ['server_tls_cert_file', 'str', '', 'yes'],
  ['server_tls_ciphers', 'str', 'default', 'yes'],
  ['server_tls_key_file', 'str', '', 'yes'],
  ['server_tls_protocols', 'str', 'secure', 'yes'],
  ['server_tls_sslmode', 'enum', 'prefer', 'yes'],
  ['service_name', 'str', null, 'no'],
  ['so_reuseport', 'bool', false, 'no'],
  ['stats_period', 'int', 60, 'yes'],
  ['stats_users', 'str', '', 'yes'],
  ['suspend_timeout', 'time', 10, 'yes'],
  ['syslog', 'bool', false, 'yes'],
  ['syslog_facility', 'str', 'daemon', 'yes'],
  ['syslog_ident', 'str', 'pgbouncer', 'yes'],
  ['tcp_defer_accept', 'bool', IS_LINUX, 'yes'],
  ['tcp_keepalive', 'bool', true, 'yes'],
  ['tcp_keepcnt', 'int', 0, 'yes'],
  ['tcp_keepidle', 'int', 0, 'yes'],
  ['tcp_keepintvl', 'int', 0, 'yes'],
  ['tcp_socket_buffer', 'int', 0, 'yes'],
  ['tcp_user_timeout', 'int', 0, 'yes'],
  ['track_extra_parameters', 'str', 'IntervalStyle', 'no'],
  ['transaction_timeout', 'time', 0, 'yes'],
  ['unix_socket_dir', 'str', '/tmp', 'no'],
  ['unix_socket_group', 'str', '', 'no'],
  ['unix_socket_mode', 'int', 511, 'no'],
  ['user', 'str', null, 'no'],
  ['verbose', 'int', 0, 'yes'],
] as const;

test('the 101 settings have the types, defaults and order of PgBouncer', () => {
  assert.equal(PINNED.length, 101);
  assert.deepEqual(
    SETTINGS.map((spec) => [spec.key, spec.type, spec.default, spec.changeable ? 'yes' : 'no']),
    PINNED,
  );
});

test('a file that sets nothing gets exactly the defaults', () => {
  assert.deepEqual(
    Object.entries(defaultSettings()),
    PINNED.map(([key, , fallback]) => [key, fallback]),
  );
});

test('settings without a default of their own keep their value at a second header', () => {
  assert.deepEqual(
    SETTINGS.filter((spec) => spec.isSticky && !spec.isWindowsOnly).map((spec) => spec.key),
    [
      'auth_dbname',
      'auth_file',
      'auth_ident_file',
      'auth_ldap_options',
      'auth_user',
      'client_tls13_ciphers',
      'conffile',
      'server_tls13_ciphers',
      'user',
      'verbose',
    ],
  );
});

test('only service_name is left out of SHOW CONFIG outside Windows', () => {
  assert.deepEqual(
    SETTINGS.filter((spec) => spec.isWindowsOnly).map((spec) => spec.key),
    ['service_name'],
  );
});

test('the default column shows octal 0777 and no default for sticky settings', () => {
  const text = new Map(SETTINGS.map((spec) => [spec.key, spec.defaultText]));
  assert.equal(text.get('unix_socket_mode'), '0777');
  assert.equal(text.get('verbose'), null);
  assert.equal(text.get('auth_file'), null);
  assert.equal(text.get('logfile'), '');
  assert.equal(text.get('log_stats'), '1');
  assert.equal(text.get('server_lifetime'), '3600');
});

test('a value is shown as PgBouncer prints it', () => {
  const show = (key: string, value: string | number | boolean | null) => {
    const spec = SETTINGS.find((one) => one.key === key);
    assert.ok(spec);
    return showValue(spec, value);
  };
  assert.equal(show('server_lifetime', 3600), '3600');
  assert.equal(show('server_lifetime', 0), '0');
  assert.equal(show('server_lifetime', 0.5), '0.5');
  assert.equal(show('server_lifetime', 100), '100');
  assert.equal(show('server_lifetime', 1.23456789), '1.23457');
  assert.equal(show('server_lifetime', 1000000), '1e+06');
  assert.equal(show('server_lifetime', 86400), '86400');
  assert.equal(show('unix_socket_mode', 0o777), '511');
  assert.equal(show('log_stats', true), '1');
  assert.equal(show('log_stats', false), '0');
  assert.equal(show('pool_mode', 'session'), 'session');
  assert.equal(show('auth_file', null), null);
  assert.equal(show('logfile', ''), '');
});

test('the fleet section has the defaults of its manual', () => {
  assert.deepEqual(defaultFleetSettings(), {
    size: 'auto',
    runtime_dir: null,
    elastic: true,
    balance_accepts: true,
    pipeline_depth: 1,
    http_listen: '127.0.0.1:9127',
    log_format: 'text',
    status_names: 'loopback',
    client_tls_crl_file: '',
    server_tls_negotiation: 'postgres',
    worker_stall_timeout: 10,
  });
});

const REFUSED = null;

/** Section, key, text, value or REFUSED. */
const VALUES = [
  ['pgbouncer', 'max_client_conn', '0x10', 16],
  ['pgbouncer', 'max_client_conn', '10 ; note', REFUSED],
  ['pgbouncer', 'max_client_conn', '', REFUSED],
  ['pgbouncer', 'default_pool_size', '-1', -1],
  ['pgbouncer', 'listen_port', '0', REFUSED],
  ['pgbouncer', 'listen_port', '65535', 65535],
  ['pgbouncer', 'listen_port', '70000', REFUSED],
  ['pgbouncer', 'peer_id', '16383', 16383],
  ['pgbouncer', 'peer_id', '16384', REFUSED],
  ['pgbouncer', 'peer_id', '-1', REFUSED],
  ['pgbouncer', 'unix_socket_mode', '0600', 0o600],
  ['pgbouncer', 'unix_socket_mode', '777', 777],
  ['pgbouncer', 'unix_socket_mode', '010000', REFUSED],
  ['pgbouncer', 'max_packet_size', '-1', 4294967295],
  ['pgbouncer', 'log_stats', 'yes', REFUSED],
  ['pgbouncer', 'pool_mode', 'Transaction', 'transaction'],
  ['pgbouncer', 'pool_mode', 'tx', REFUSED],
  ['pgbouncer', 'auth_type', 'SCRAM-SHA-256', 'scram-sha-256'],
  ['pgbouncer', 'auth_type', 'gss', REFUSED],
  ['pgbouncer', 'server_tls_sslmode', 'VERIFY-FULL', 'verify-full'],
  ['pgbouncer', 'server_idle_timeout', '10s', REFUSED],
  ['pgbouncer', 'server_idle_timeout', '1e2', 100],
  ['pgbouncer', 'logfile', "'quoted'", "'quoted'"],
  ['pgbouncer', 'auth_file', '', ''],
  ['pgbouncer', 'syslog_facility', 'no-such', 'no-such'],
  ['pgbouncer', 'client_tls_protocols', 'TLSv1.2,tlsv1.3', 'TLSv1.2,tlsv1.3'],
  ['pgbouncer', 'client_tls_protocols', 'all:!tlsv1.0', 'all:!tlsv1.0'],
  ['pgbouncer', 'client_tls_protocols', '', ''],
  ['pgbouncer', 'client_tls_protocols', 'legacy', REFUSED],
  ['pgbouncer', 'server_tls_protocols', 'legacy', REFUSED],
  ['pgbouncer', 'client_tls_dheparams', 'none', 'none'],
  ['pgbouncer', 'client_tls_dheparams', 'legacy', REFUSED],
  ['pgbouncer', 'client_tls_ecdhcurve', 'prime256v1', 'prime256v1'],
  ['pgbouncer', 'client_tls_ecdhcurve', 'X25519:prime256v1', REFUSED],
  ['pgbouncer', 'server_tls_ciphers', 'all', 'all'],
  [
    'pgbouncer',
    'server_tls13_ciphers',
    'TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256',
    'TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256',
  ],
  ['pgbouncer', 'client_tls13_ciphers', 'TLS_NULL', REFUSED],
  ['fleet', 'size', 'AUTO', 'auto'],
  ['fleet', 'size', '1', 1],
  ['fleet', 'size', '256', 256],
  ['fleet', 'size', '0', REFUSED],
  ['fleet', 'size', '257', REFUSED],
  ['fleet', 'size', 'many', REFUSED],
  ['fleet', 'runtime_dir', '/run/x', '/run/x'],
  ['fleet', 'elastic', 'off', false],
  ['fleet', 'balance_accepts', '1', true],
  ['fleet', 'pipeline_depth', '4', 4],
  ['fleet', 'pipeline_depth', '0', REFUSED],
  ['fleet', 'http_listen', '', ''],
  ['fleet', 'http_listen', '[::1]:9127', '[::1]:9127'],
  ['fleet', 'http_listen', '9127', REFUSED],
  ['fleet', 'http_listen', 'host:0', REFUSED],
  ['fleet', 'http_listen', '::1:9127', REFUSED],
  ['fleet', 'log_format', 'JSON', 'json'],
  ['fleet', 'status_names', 'never', REFUSED],
  ['fleet', 'server_tls_negotiation', 'direct', 'direct'],
  ['fleet', 'worker_stall_timeout', '0.5', 0.5],
] as const;

test('each setting takes the texts of its type and refuses others', () => {
  for (const [section, key, text, expected] of VALUES) {
    const result = readSetting(section, key, text);
    assert.ok(result !== null, key);
    const label = `${key} = ${text}`;
    if (expected === REFUSED) assert.equal(result.ok, false, label);
    else assert.deepEqual(result, { ok: true, value: expected }, label);
  }
});

test('a key of no section, another section or an object is unknown', () => {
  assert.equal(readSetting('pgbouncer', 'no_such', '1'), null);
  assert.equal(readSetting('pgbouncer', 'Listen_Port', '1'), null);
  assert.equal(readSetting('pgbouncer', 'size', '1'), null);
  assert.equal(readSetting('fleet', 'listen_port', '1'), null);
  for (const key of ['__proto__', 'constructor', 'toString', 'hasOwnProperty', '']) {
    assert.equal(readSetting('pgbouncer', key, '1'), null, key);
    assert.equal(readSetting('fleet', key, '1'), null, key);
  }
});
