import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ask, config, fleet, worker } from './support.ts';

const LINK_COLUMNS =
  'type:t user:t database:t replication:t state:t addr:t port:i local_addr:t local_port:i ' +
  'connect_time:t request_time:t wait:i wait_us:i close_needed:i ptr:t link:t remote_pid:i tls:t ' +
  'application_name:t prepared_statements:i id:i';

/** The columns that PgBouncer 1.25.2 sends, with the letters of `TYPES`. */
const CONTRACT: Record<string, string> = {
  VERSION: 'version:t',
  POOLS:
    'database:t user:t cl_active:i cl_waiting:i cl_active_cancel_req:i cl_waiting_cancel_req:i ' +
    'sv_active:i sv_active_cancel:i sv_being_canceled:i sv_idle:i sv_used:i sv_tested:i sv_login:i ' +
    'maxwait:i maxwait_us:i pool_mode:t load_balance_hosts:t',
  CLIENTS: LINK_COLUMNS,
  SERVERS: LINK_COLUMNS,
  STATS:
    'database:t total_server_assignment_count:n total_xact_count:n total_query_count:n ' +
    'total_received:n total_sent:n total_xact_time:n total_query_time:n total_wait_time:n ' +
    'total_client_parse_count:n total_server_parse_count:n total_bind_count:n ' +
    'total_client_login_count:n avg_server_assignment_count:n avg_xact_count:n avg_query_count:n ' +
    'avg_recv:n avg_sent:n avg_xact_time:n avg_query_time:n avg_wait_time:n ' +
    'avg_client_parse_count:n avg_server_parse_count:n avg_bind_count:n avg_client_login_count:n',
  STATS_TOTALS:
    'database:t server_assignment_count:n xact_count:n query_count:n bytes_received:n bytes_sent:n ' +
    'xact_time:n query_time:n wait_time:n client_parse_count:n server_parse_count:n bind_count:n ' +
    'client_login_count:n',
  STATS_AVERAGES:
    'database:t server_assignment_count:n xact_count:n query_count:n bytes_received:n bytes_sent:n ' +
    'xact_time:n query_time:n wait_time:n avg_client_parse_count:n avg_server_parse_count:n ' +
    'avg_bind_count:n avg_client_login_count:n',
  TOTALS: 'name:t value:n',
  DATABASES:
    'name:t host:t port:i database:t force_user:t pool_size:i min_pool_size:i reserve_pool_size:i ' +
    'server_lifetime:i pool_mode:t load_balance_hosts:t max_connections:i current_connections:i ' +
    'max_client_connections:i current_client_connections:i paused:i disabled:i',
  LISTS: 'list:t items:i',
  CONFIG: 'key:t value:t default:t changeable:t',
  USERS:
    'name:t pool_size:t reserve_pool_size:t pool_mode:t max_user_connections:i ' +
    'current_connections:i max_user_client_connections:i current_client_connections:i',
  STATE: 'key:t value:t',
  DNS_HOSTS: 'hostname:t ttl:q addrs:t',
  DNS_ZONES: 'zonename:t serial:q count:i',
  PEERS: 'peer_id:i host:t port:i pool_size:i',
};

/** The columns of topics that PgBouncer has not. */
const OWN_CONTRACT: Record<string, string> = {
  SESSION_LEAKS:
    'database:t session_leak:t prepare:n listen:n advisory_lock:n temp_table:n set:n role:n ' +
    'hold_cursor:n load:n',
  STALE_PLANS: 'database:t refused:n hidden:n',
};

const TYPES: Record<string, string> = { '25/-1': 't', '23/4': 'i', '20/8': 'q', '1700/-1': 'n' };

function describe(columns: readonly { name: string; oid: number; bytes: number }[]): string {
  return columns.map(({ name, oid, bytes }) => `${name}:${TYPES[`${oid}/${bytes}`]}`).join(' ');
}

for (const [topic, expected] of Object.entries({ ...CONTRACT, ...OWN_CONTRACT })) {
  test(`SHOW ${topic} has its columns, in order and type`, async () => {
    const table = await ask(fleet([worker(0), worker(1)]).open('stats'), `SHOW ${topic}`);
    assert.equal(describe(table.columns), expected);
    assert.equal(table.tag, 'SHOW');
    for (const row of table.rows) assert.equal(row.length, table.columns.length);
  });

  if (topic === 'PEERS') continue;
  test(`SHOW ${topic} BY PROCESS has the number of the worker before them`, async () => {
    const session = fleet([worker(0), worker(1)]).open('stats');
    const table = await ask(session, `show ${topic.toLowerCase()} by process`);
    assert.equal(describe(table.columns), `process:i ${expected}`);
    const counts = [0, 1].map(
      (id) => table.rows.filter(([process]) => process === String(id)).length,
    );
    assert.equal(counts[0]! + counts[1]!, table.rows.length);
  });
}

test('SHOW CONFIG lists all settings in order and hides the password of the LDAP search', async () => {
  const settings = config({
    settings: {
      ...config().settings,
      auth_ldap_options: 'ldapserver=x ldapbindpasswd="top ""secret" ldapport=389',
    },
  });
  const { rows } = await ask(fleet([worker(0)], { config: settings }).open('stats'), 'SHOW CONFIG');
  const byKey = new Map(rows.map(([key, ...rest]) => [key, rest]));
  assert.equal(rows.length, 100);
  assert.deepEqual(rows[0], ['admin_users', '', '', 'yes']);
  assert.equal(rows.at(-1)![0], 'verbose');
  assert.deepEqual(byKey.get('unix_socket_mode'), ['511', '0777', 'no']);
  assert.deepEqual(byKey.get('server_lifetime'), ['3600', '3600', 'yes']);
  assert.deepEqual(byKey.get('auth_user'), [null, null, 'yes']);
  assert.deepEqual(byKey.get('conffile'), ['/etc/pgbouncer.ini', null, 'yes']);
  assert.deepEqual(byKey.get('auth_ldap_options'), [
    'ldapserver=x ldapbindpasswd=[redacted] ldapport=389',
    null,
    'yes',
  ]);
});

test('SHOW HELP is a notice with the usage and no rows', async () => {
  const table = await ask(fleet([worker(0)]).open('stats'), 'show help;');
  assert.equal(table.columns.length, 0);
  assert.equal(table.tag, 'SHOW');
  assert.equal(table.notices.length, 1);
  assert.match(table.notices[0]!, /^Console usage\|\n\tSHOW HELP\|CONFIG\|DATABASES\|/);
  assert.match(table.notices[0]!, /\n\tWAIT_CLOSE \[<db>\]$/);
});

async function usage(): Promise<string[]> {
  const { notices } = await ask(fleet([worker(0)]).open('stats'), 'SHOW HELP');
  return notices[0]!.split('\n\t').slice(1);
}

test('SHOW HELP names all topics that there are, and no other', async () => {
  const lines = (await usage()).filter((line) => /^SHOW [A-Z]/.test(line));
  const named = lines.flatMap((line) => line.slice('SHOW '.length).split('|'));
  const known = [...Object.keys(CONTRACT), ...Object.keys(OWN_CONTRACT), 'HELP'];
  assert.deepEqual(named.toSorted(), known.toSorted());
  assert.ok((await usage()).includes('SHOW <topic> BY PROCESS'));
});

test('each other command that SHOW HELP names is one, of admin users', async () => {
  const lines = (await usage()).filter((line) => !line.startsWith('SHOW '));
  assert.equal(lines.length, 12);
  const session = fleet([worker(0)]).open('stats');
  for (const line of lines) {
    const [word, ...rest] = line
      .replaceAll('<db>', 'app')
      .replace('<client_id>', '1')
      .split(/[ |]/);
    for (const argument of rest.length === 0 ? [''] : rest) {
      const command = `${word} ${argument.replaceAll(/[[\]]/g, '')}`;
      assert.equal((await ask(session, command)).error, 'ERROR 08P01 admin access needed', command);
    }
  }
});
