/** The console's tables: the names, order and types of their columns, and their standing rows. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { textRows, type WireMessage } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleNotes, type RuleOptions, rule } from '../support/rule.ts';
import { WireClient } from '../support/wire-client.ts';
import { line } from './support.ts';

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
});

const options = (): RuleOptions => ({
  postgres,
  databases: { app: '', other: 'dbname=app' },
  peers: { 3: 'host=127.0.0.1 port=1', 2: 'host=127.0.0.1 pool_size=7' },
  users: { app: 'pool_size=3' },
  settings: { peer_id: 1 },
});

const LINK =
  'type:t user:t database:t replication:t state:t addr:t port:i local_addr:t local_port:i ' +
  'connect_time:t request_time:t wait:i wait_us:i close_needed:i ptr:t link:t remote_pid:i tls:t ' +
  'application_name:t prepared_statements:i id:i';
const SOCKET = `${LINK} recv_pos:i pkt_pos:i pkt_remain:i send_pos:i send_remain:i pkt_avail:i send_avail:i`;
const COUNTERS = [
  'server_assignment_count',
  'xact_count',
  'query_count',
  'bytes_received',
  'bytes_sent',
  'xact_time',
  'query_time',
  'wait_time',
];
const LATER_COUNTERS = [
  'client_parse_count',
  'server_parse_count',
  'bind_count',
  'client_login_count',
];
const numerics = (names: readonly string[], prefix = ''): string =>
  names.map((name) => `${prefix}${name}:n`).join(' ');
const short = (name: string, received: string): string =>
  name.replace('bytes_received', received).replace('bytes_sent', 'sent');

/** `t` text, `i` int4, `q` int8, `n` numeric, `y` bytea. */
const COLUMNS: Readonly<Record<string, string>> = {
  ACTIVE_SOCKETS: SOCKET,
  CLIENTS: LINK,
  CONFIG: 'key:t value:t default:t changeable:t',
  DATABASES:
    'name:t host:t port:i database:t force_user:t pool_size:i min_pool_size:i reserve_pool_size:i ' +
    'server_lifetime:i pool_mode:t load_balance_hosts:t max_connections:i current_connections:i ' +
    'max_client_connections:i current_client_connections:i paused:i disabled:i',
  DNS_HOSTS: 'hostname:t ttl:q addrs:t',
  DNS_ZONES: 'zonename:t serial:q count:i',
  LISTS: 'list:t items:i',
  MEM: 'name:t size:i used:i free:i memtotal:i',
  PEERS: 'peer_id:i host:t port:i pool_size:i',
  PEER_POOLS:
    'peer_id:i cl_active_cancel_req:i cl_waiting_cancel_req:i sv_active_cancel:i sv_login:i',
  POOLS:
    'database:t user:t cl_active:i cl_waiting:i cl_active_cancel_req:i cl_waiting_cancel_req:i ' +
    'sv_active:i sv_active_cancel:i sv_being_canceled:i sv_idle:i sv_used:i sv_tested:i sv_login:i ' +
    'maxwait:i maxwait_us:i pool_mode:t load_balance_hosts:t',
  SERVERS: LINK,
  SOCKETS: SOCKET,
  STATE: 'key:t value:t',
  STATS: [
    'database:t',
    numerics(
      [...COUNTERS, ...LATER_COUNTERS].map((name) => short(name, 'received')),
      'total_',
    ),
    numerics(
      [...COUNTERS, ...LATER_COUNTERS].map((name) => short(name, 'recv')),
      'avg_',
    ),
  ].join(' '),
  STATS_AVERAGES: `database:t ${numerics(COUNTERS)} ${numerics(LATER_COUNTERS, 'avg_')}`,
  STATS_TOTALS: `database:t ${numerics([...COUNTERS, ...LATER_COUNTERS])}`,
  TOTALS: 'name:t value:n',
  USERS:
    'name:t pool_size:t reserve_pool_size:t pool_mode:t max_user_connections:i ' +
    'current_connections:i max_user_client_connections:i current_client_connections:i',
  VERSION: 'version:t',
};

/** All settings in the order of SHOW CONFIG; those with a star are read at the start only. */
const SETTINGS = `
  admin_users application_name_add_host auth_dbname auth_file auth_hba_file auth_ident_file
  auth_ldap_options auth_query auth_type auth_user autodb_idle_timeout cancel_wait_timeout
  client_idle_timeout client_login_timeout client_tls13_ciphers client_tls_ca_file
  client_tls_cert_file client_tls_ciphers client_tls_dheparams client_tls_ecdhcurve
  client_tls_key_file client_tls_protocols client_tls_sslmode conffile default_pool_size
  disable_pqexec* dns_max_ttl dns_nxdomain_ttl dns_zone_check_period idle_transaction_timeout
  ignore_startup_parameters job_name* listen_addr* listen_backlog* listen_port* log_connections
  log_disconnections log_pooler_errors log_stats logfile login_notify_message max_client_conn
  max_db_client_connections max_db_connections max_packet_size max_prepared_statements
  max_user_client_connections max_user_connections min_pool_size peer_id pidfile* pkt_buf*
  pool_idle_timeout pool_mode query_timeout query_wait_notify query_wait_timeout
  reserve_pool_size reserve_pool_timeout resolv_conf* sbuf_loopcnt scram_iterations
  server_check_delay server_check_query server_connect_timeout server_fast_close
  server_idle_timeout server_lifetime server_login_retry server_reset_query
  server_reset_query_always server_round_robin server_tls13_ciphers server_tls_ca_file
  server_tls_cert_file server_tls_ciphers server_tls_key_file server_tls_protocols
  server_tls_sslmode so_reuseport* stats_period stats_users syslog syslog_facility syslog_ident
  tcp_defer_accept tcp_keepalive tcp_keepcnt tcp_keepidle tcp_keepintvl tcp_socket_buffer
  tcp_user_timeout track_extra_parameters* transaction_timeout unix_socket_dir*
  unix_socket_group* unix_socket_mode* user* verbose
`;

/** How defaults of each kind are printed. */
const DEFAULTS: Readonly<Record<string, string | null>> = {
  admin_users: '',
  auth_file: null,
  auth_type: 'md5',
  conffile: null,
  default_pool_size: '20',
  disable_pqexec: '0',
  log_connections: '1',
  max_packet_size: '2147483647',
  server_check_query: '<empty>',
  server_lifetime: '3600',
  server_tls_sslmode: 'prefer',
  unix_socket_mode: '0777',
  user: null,
  verbose: null,
};

/** What 1.26 is the first to have as it is here, among what the rules look at. */
const LATEST: RuleNotes = { since: '1.26.0' };

const TYPES: Readonly<Record<string, string>> = {
  '25/-1': 't',
  '23/4': 'i',
  '20/8': 'q',
  '1700/-1': 'n',
  '17/-1': 'y',
};

/** A RowDescription as `name:type ...`; every column is text without table. */
function columnsOf(messages: readonly WireMessage[]): string {
  const body = messages.find(({ type }) => type === 'T')?.body;
  assert.ok(body, messages.map(line).join(' '));
  const columns: string[] = [];
  for (let at = 2, left = body.readInt16BE(0); left > 0; left--) {
    const end: number = body.indexOf(0, at);
    const name = body.toString('utf8', at, end);
    // No table, no attribute number, no type modifier, text format.
    assert.equal(body.toString('hex', end + 1, end + 7), '000000000000', name);
    assert.equal(body.toString('hex', end + 13, end + 19), 'ffffffff0000', name);
    const type = `${body.readInt32BE(end + 7)}/${body.readInt16BE(end + 11)}`;
    columns.push(`${name}:${TYPES[type] ?? type}`);
    at = end + 19;
  }
  return columns.join(' ');
}

const consoleOf = (pooler: TestPooler): Promise<WireClient> =>
  WireClient.login(pooler, { user: 'postgres', database: 'pgbouncer' });

rule(
  'every SHOW has its columns, in order and type, and its rows are as wide',
  options,
  async (pooler) => {
    const client = await WireClient.login(pooler);
    await client.query('BEGIN');
    const console = await consoleOf(pooler);
    for (const [topic, columns] of Object.entries(COLUMNS)) {
      const messages = await console.query(`SHOW ${topic}`);
      assert.equal(columnsOf(messages), columns, topic);
      assert.match(messages.map(({ type }) => type).join(''), /^TD*CZ$/, topic);
      const width = columns.split(' ').length;
      for (const row of textRows(messages)) assert.equal(row.length, width, topic);
    }
    await client.end();
    await console.end();
  },
  LATEST,
);

rule(
  'SHOW FDS is a table for admins',
  options,
  async (pooler) => {
    const console = await consoleOf(pooler);
    assert.equal(
      columnsOf(await console.query('SHOW FDS')),
      'fd:i task:t user:t database:t addr:t port:i cancel:q link:i client_encoding:t std_strings:t ' +
        'datestyle:t timezone:t password:t scram_client_key:y scram_server_key:y',
    );
    await console.end();
  },
  {
    since: '1.26.0',
    differs: {
      because: 'PgBouncer 1.26 knows it no more, though 1.25 does',
      check: async (pooler) => {
        const console = await consoleOf(pooler);
        const [error] = await console.query('SHOW FDS');
        assert.match(line(error!), /invalid command 'SHOW FDS'/);
        await console.end();
      },
    },
  },
);

rule(
  'SHOW CONFIG has all settings in this order, and says which of them only a restart changes',
  options,
  async (pooler) => {
    const rows = await pooler.console('SHOW CONFIG');
    const shown = rows
      // PgBouncer 1.26 has no SUSPEND any more.
      .filter(({ key }) => key !== 'suspend_timeout')
      .map(({ key, changeable }) => (changeable === 'yes' ? key : `${key}*`));
    assert.deepEqual(shown, SETTINGS.trim().split(/\s+/));
    const defaults = new Map(rows.map((row) => [row['key'], row['default']]));
    for (const [key, standard] of Object.entries(DEFAULTS)) {
      assert.equal(defaults.get(key), standard, key);
    }
  },
  LATEST,
);

rule(
  'SHOW LISTS has 14 rows, SHOW TOTALS 24, and peers are sorted by number',
  options,
  async (pooler) => {
    const lists = await pooler.console('SHOW LISTS');
    assert.deepEqual(
      lists.map(({ list }) => list),
      [
        ...['databases', 'users', 'peers', 'pools', 'peer_pools', 'free_clients', 'used_clients'],
        ...['login_clients', 'free_servers', 'used_servers', 'dns_names', 'dns_zones'],
        ...['dns_queries', 'dns_pending'],
      ],
    );
    const totals = await pooler.console('SHOW TOTALS');
    const inner = (name: string): string =>
      name
        .replace('bytes_received', 'client_bytes')
        .replace('bytes_sent', 'server_bytes')
        .replace(/^(client_parse|server_parse|bind)/, 'ps_$1');
    const names = [...COUNTERS, ...LATER_COUNTERS].map(inner);
    assert.deepEqual(
      totals.map(({ name }) => name),
      [...names.map((name) => `total_${name}`), ...names.map((name) => `avg_${name}`)],
    );
    assert.deepEqual(
      (await pooler.console('SHOW PEERS')).map((row) => Object.values(row)),
      [
        [2, '127.0.0.1', 6432, 7],
        [3, '127.0.0.1', 1, 20],
      ],
    );
  },
  LATEST,
);

rule(
  'sockets of clients and servers are told apart by the lists that they are in',
  options,
  async (pooler) => {
    const client = await WireClient.login(pooler);
    await client.query('BEGIN');
    const silent = await WireClient.connect(pooler);
    const console = await consoleOf(pooler);
    const rows = textRows(await console.query('SHOW SOCKETS'));
    assert.deepEqual(
      rows.map((row) => [row[0], row[2], row[4]].join(' ')).filter((row) => !/cl_login/.test(row)),
      ['C app cl_active', 'S app sv_active', 'C pgbouncer cl_active'],
    );
    const [linked, server] = rows;
    assert.deepEqual([linked![15], server![15]], [server![14], linked![14]]);
    for (const row of rows) assert.equal(row.length, 28);
    await client.end();
    silent.destroy();
    await console.end();
  },
  LATEST,
);

test('stop', () => postgres.dispose());
