import assert from 'node:assert/strict';
import { resolve } from 'node:path';
import { test } from 'node:test';
import type { Config } from '../../../src/config/config.ts';
import { formatProblem, loadConfig } from '../../../src/config/load.ts';
import { NOT_BUILT } from '../../../src/config/not-built.ts';
import { defaultFleetSettings, defaultSettings } from '../../../src/config/schema.ts';

function load(files: Record<string, string> | string) {
  const all: Record<string, string> = typeof files === 'string' ? { f: files } : files;
  const readFile = (path: string): string => {
    const text = Object.hasOwn(all, path) ? all[path] : undefined;
    if (text !== undefined) return text;
    throw Object.assign(new Error('ENOENT'), { code: 'ENOENT', errno: -2 });
  };
  const { config, problems } = loadConfig('f', { readFile });
  const lines = problems.map(
    (one) => `${one.level === 'warning' ? 'W ' : 'E '}${formatProblem(one)}`,
  );
  return { config, lines };
}

/** The snapshot of a file without any problem. */
function clean(files: Record<string, string> | string): Config {
  const { config, lines } = load(files);
  assert.deepEqual(lines, []);
  assert.ok(config);
  return config;
}

const SAMPLE = `;;; PgBouncer configuration file
[databases]

; foodb over Unix socket
foodb =

; redirect bardb to bazdb on localhost
bardb = host=localhost dbname=bazdb

; access to destination database will go with single user
forcedb = host=localhost port=300 user=baz password=foo client_encoding=UNICODE datestyle=ISO connect_query='SELECT 1'
nondefaultdb = pool_size=50 reserve_pool_size=10
'odd name' = host=10.0.0.1,10.0.0.2 load_balance_hosts=disable
* = host=testserver

[users]
user1 = pool_mode=transaction max_user_connections=10

[peers]
1 = host=host1.example.com
2 = host=/tmp/pgbouncer-2 port=5555

[pgbouncer]
logfile = /var/log/pgbouncer/pgbouncer.log
pidfile = /var/run/pgbouncer/pgbouncer.pid
listen_addr = 127.0.0.1, ::1
listen_port = 6433
unix_socket_dir = /var/run
unix_socket_mode = 0770
peer_id = 1
auth_type = scram-sha-256
auth_file = userlist.txt
admin_users = user2, someadmin, otheradmin
pool_mode = transaction
server_reset_query = DISCARD ALL; SELECT 1
ignore_startup_parameters = extra_float_digits
server_idle_timeout = 0.5
log_stats = 0

[fleet]
size = 4
worker_stall_timeout = 2.5
`;

test('a usual PgBouncer file becomes one snapshot', () => {
  const config = clean({ f: SAMPLE, 'userlist.txt': '"user1" "secret"\n' });
  assert.equal(config.version, 1);
  assert.equal(config.file, resolve('f'));
  assert.deepEqual(config.settings, {
    ...defaultSettings(),
    conffile: 'f',
    logfile: '/var/log/pgbouncer/pgbouncer.log',
    pidfile: '/var/run/pgbouncer/pgbouncer.pid',
    listen_addr: '127.0.0.1, ::1',
    listen_port: 6433,
    unix_socket_dir: '/var/run',
    unix_socket_mode: 0o770,
    peer_id: 1,
    auth_type: 'scram-sha-256',
    auth_file: 'userlist.txt',
    admin_users: 'user2, someadmin, otheradmin',
    pool_mode: 'transaction',
    server_reset_query: 'DISCARD ALL; SELECT 1',
    ignore_startup_parameters: 'extra_float_digits',
    server_idle_timeout: 0.5,
    log_stats: false,
  });
  assert.deepEqual(config.fleet, { ...defaultFleetSettings(), size: 4, worker_stall_timeout: 2.5 });
  assert.deepEqual(
    config.databases.map((entry) => entry.name),
    ['foodb', 'bardb', 'forcedb', 'nondefaultdb', 'odd name'],
  );
  assert.deepEqual(config.databases[2], {
    ...config.databases[0],
    name: 'forcedb',
    hosts: ['localhost'],
    port: 300,
    user: 'baz',
    password: 'foo',
    client_encoding: 'UNICODE',
    datestyle: 'ISO',
    connect_query: 'SELECT 1',
  });
  assert.deepEqual(config.databases[4]?.hosts, ['10.0.0.1', '10.0.0.2']);
  assert.equal(config.autoDatabase?.name, '*');
  assert.deepEqual(config.autoDatabase?.hosts, ['testserver']);
  assert.equal(config.users[0]?.max_user_connections, 10);
  assert.deepEqual(config.peers, [
    { id: 1, host: 'host1.example.com', port: 6432, pool_size: null },
    { id: 2, host: '/tmp/pgbouncer-2', port: 5555, pool_size: null },
  ]);
  assert.deepEqual(config.authUsers, [{ name: 'user1', secret: 'secret' }]);
  assert.deepEqual(config.given, [
    'logfile',
    'pidfile',
    'listen_addr',
    'listen_port',
    'unix_socket_dir',
    'unix_socket_mode',
    'peer_id',
    'auth_type',
    'auth_file',
    'admin_users',
    'pool_mode',
    'server_reset_query',
    'ignore_startup_parameters',
    'server_idle_timeout',
    'log_stats',
    'size',
    'worker_stall_timeout',
  ]);
});

test('a snapshot survives JSON and cannot be changed', () => {
  const config = clean({ f: SAMPLE, 'userlist.txt': '' });
  assert.deepEqual(JSON.parse(JSON.stringify(config)), config);
  for (const part of [
    config,
    config.settings,
    config.fleet,
    config.databases,
    config.databases[4]?.hosts,
  ]) {
    assert.ok(Object.isFrozen(part));
  }
});

test('an empty [pgbouncer] section is a whole configuration', () => {
  const config = clean('[pgbouncer]');
  assert.deepEqual(config.settings, { ...defaultSettings(), conffile: 'f' });
  assert.deepEqual(
    [config.databases, config.autoDatabase, config.users, config.peers],
    [[], null, [], []],
  );
  assert.equal(config.authUsers, null);
  assert.deepEqual(config.given, []);
});

test('the version is the one asked for', () => {
  const { config } = loadConfig('f', { readFile: () => '[pgbouncer]', version: 7 });
  assert.equal(config?.version, 7);
});

test('conffile in the file replaces the path that was loaded', () => {
  assert.equal(clean('[pgbouncer]\nconffile = /etc/other.ini').settings.conffile, '/etc/other.ini');
});

test('each mistake stops the load with the words of PgBouncer and the true line', () => {
  const rows: [string, ...string[]][] = [
    ['', 'E f: load_init_file: main section missing from config file'],
    ['[databases]\na =', 'E f: load_init_file: main section missing from config file'],
    ['[pgbouncer]\n\nfoo = 1', 'E f:3: foo: unknown parameter: pgbouncer/foo'],
    [
      '[pgbouncer]\nListen_Port = 1',
      'E f:2: Listen_Port: unknown parameter: pgbouncer/Listen_Port',
    ],
    ['[pgbouncer]\n__proto__ = 1', 'E f:2: __proto__: unknown parameter: pgbouncer/__proto__'],
    ['[fleet]\nworkers = 1\n[pgbouncer]', 'E f:2: workers: unknown parameter: fleet/workers'],
    ['[pgbouncer]\nsize = 1', 'E f:2: size: unknown parameter: pgbouncer/size'],
    [
      '[pgbouncer]\nmax_client_conn = ten',
      'E f:2: max_client_conn: invalid value "ten" for parameter max_client_conn: must be a whole number',
    ],
    [
      '[pgbouncer]\nmax_client_conn = 10 ; note',
      'E f:2: max_client_conn: invalid value "10 ; note" for parameter max_client_conn: must be a whole number (a comment needs a line of its own)',
    ],
    [
      '[pgbouncer]\nlog_stats = yes',
      'E f:2: log_stats: invalid value "yes" for parameter log_stats: must be 0 or 1',
    ],
    [
      '[pgbouncer]\nserver_lifetime = 1h',
      'E f:2: server_lifetime: invalid value "1h" for parameter server_lifetime: must be a number of seconds without a unit',
    ],
    [
      '[pgbouncer]\npool_mode = fast',
      'E f:2: pool_mode: invalid value "fast" for parameter pool_mode: must be one of session, transaction, statement',
    ],
    [
      '[pgbouncer]\npeer_id = 16384',
      'E f:2: peer_id: invalid value "16384" for parameter peer_id: must be 0 to 16383',
    ],
    [
      '[fleet]\nsize = 257\n[pgbouncer]',
      'E f:2: size: invalid value "257" for parameter size: must be auto or 1 to 256',
    ],
    [
      '[pgbouncer]\nauth_dbname = pgbouncer',
      'E f:2: auth_dbname: cannot use the reserved "pgbouncer" database as an auth_dbname',
    ],
    ['[pgbouncer]\n[nonsense]\na = 1\nb = 2', 'E f:2: invalid section "nonsense"'],
    ['[PgBouncer]\n[pgbouncer]', 'E f:1: invalid section "PgBouncer"'],
    ['[ pgbouncer ]\n[pgbouncer]', 'E f:1: invalid section " pgbouncer "'],
    ['a = 1\n[pgbouncer]', 'E f:1: a: load_init_file: value without section: a'],
    [
      '[pgbouncer]\n[databases]\npgbouncer =',
      'E f:3: pgbouncer: database name "pgbouncer" is reserved',
    ],
    ['[pgbouncer]\n[databases]\npgfleet =', 'E f:3: pgfleet: database name "pgfleet" is reserved'],
    ['[pgbouncer]\n[databases]\na = port=0', 'E f:3: a: port: invalid port: 0'],
    ['[pgbouncer]\n[databases]\n* = port=0', 'E f:3: *: port: invalid port: 0'],
    [
      '[pgbouncer]\n[databases]\na = sslmode=require',
      'E f:3: a: unrecognized connection parameter: sslmode',
    ],
    ['[pgbouncer]\n[users]\na = host=x', 'E f:3: a: unrecognized user parameter: host'],
    [
      '[pgbouncer]\n[peers]\n0 = host=x',
      'E f:3: 0: ids of peers must be a number larger than 0 and at most 65536',
    ],
    [
      '[pgbouncer]\n[databases]\na = host=x y',
      'E f:3: a: syntax error in connection string: a word without "=" follows the value of host; quote a value that holds spaces',
    ],
    [
      '[pgbouncer]\nauth_type = pam',
      'E f:2: auth_type: pam is not supported: use ldap or scram-sha-256 instead',
    ],
    [
      '[pgbouncer]\nauth_type = cert\nclient_tls_sslmode = disable',
      'E f:2: auth_type: auth_type=cert requires client_tls_sslmode=SSLMODE_VERIFY_FULL',
      'E f:2: auth_type: auth_type=cert requires client_tls_ca_file',
    ],
    ['[pgbouncer]\nauth_type = HBA', 'E f:2: auth_type: auth_type=hba requires auth_hba_file'],
    [
      '[pgbouncer]\nauth_type = hba\nauth_hba_file = gone',
      'E f:3: could not open hba config file gone: No such file or directory',
    ],
    [
      '[pgbouncer]\nauth_ldap_options = ldapserver=h',
      'E f:2: auth_ldap_options: authentication method "ldap" requires argument "ldapbasedn", "ldapprefix", or "ldapsuffix" to be set',
    ],
    [
      '[pgbouncer]\nclient_tls_sslmode = prefer',
      'E f:2: client_tls_sslmode: To allow TLS connections from clients, client_tls_key_file and client_tls_cert_file must be set.',
    ],
  ];
  for (const [text, ...expected] of rows) {
    const { config, lines } = load(text);
    assert.deepEqual(lines, expected, text);
    assert.equal(config, null, text);
  }
});

test('a missing file is the only problem that is told', () => {
  assert.deepEqual(load({}), {
    config: null,
    lines: ['E f: could not load file "f": No such file or directory'],
  });
});

test('all problems of a file are found, in the order of its lines', () => {
  const { config, lines } = load({
    f: 'early = 1\n[pgbouncer]\nlog_stats = on\nno equals\n%include g\nfoo = 1\n[databases]\na = port=x pool_mode=y',
    g: 'bar = 2',
  });
  assert.equal(config, null);
  assert.deepEqual(
    lines.map((line) => line.replace(/: .*/, '')),
    ['E f:1', 'E f:3', 'E f:4', 'E g:1', 'E f:6', 'E f:8', 'E f:8'],
  );
});

test('the last line of a setting wins, without a word', () => {
  assert.equal(
    clean('[pgbouncer]\nmax_client_conn = 1\nmax_client_conn = 2').settings.max_client_conn,
    2,
  );
  assert.equal(clean('[pgbouncer]\n[fleet]\nsize = 1\n[fleet]\nsize = 2').fleet.size, 2);
});

test('a bad value is an error even when a later line mends it', () => {
  assert.equal(load('[pgbouncer]\nmax_client_conn = x\nmax_client_conn = 2').config, null);
});

test('the last line of a database, user or peer replaces the whole entry', () => {
  const config = clean(
    '[pgbouncer]\npeer_id = 9\n[databases]\na = host=x pool_size=5\nb =\na = port=2\n* = host=x\n* = port=3\n' +
      '[users]\nu = pool_size=1\nu = query_timeout=2\n[peers]\n1 = host=a port=1\n01 = host=b',
  );
  assert.deepEqual(
    config.databases.map((entry) => [entry.name, entry.hosts, entry.port, entry.pool_size]),
    [
      ['a', [], 2, null],
      ['b', [], 5432, null],
    ],
  );
  assert.deepEqual([config.autoDatabase?.hosts, config.autoDatabase?.port], [[], 3]);
  assert.deepEqual(
    config.users.map((user) => [user.pool_size, user.query_timeout]),
    [[null, 2]],
  );
  assert.deepEqual(config.peers, [{ id: 1, host: 'b', port: 6432, pool_size: null }]);
});

test('databases and users may have names that objects treat apart', () => {
  const config = clean(
    '[pgbouncer]\n[databases]\n__proto__ = host=a\nconstructor =\n[users]\n__proto__ =',
  );
  assert.deepEqual(
    config.databases.map((entry) => entry.name),
    ['__proto__', 'constructor'],
  );
  assert.deepEqual(
    config.users.map((user) => user.name),
    ['__proto__'],
  );
});

test('a second [pgbouncer] header puts settings back to their defaults and says so', () => {
  const { config, lines } = load({
    f: '[pgbouncer]\nmax_client_conn = 1\nlisten_port = 7000\nauth_file = users\nverbose = 2\n[databases]\n[pgbouncer]\nlisten_port = 7001',
    users: '',
  });
  assert.deepEqual(lines, [
    'W f:7: second [pgbouncer] header: settings above it go back to their defaults',
  ]);
  assert.ok(config);
  assert.equal(config.settings.max_client_conn, 100);
  assert.equal(config.settings.listen_port, 7001);
  assert.equal(config.settings.auth_file, 'users');
  assert.equal(config.settings.verbose, 2);
  assert.deepEqual(config.given, ['auth_file', 'verbose', 'listen_port']);
});

test('a second header in an included file counts as well', () => {
  const { lines } = load({ f: '[pgbouncer]\n%include g', g: '[pgbouncer]\nmax_client_conn = 5' });
  assert.deepEqual(lines, [
    'W g:1: second [pgbouncer] header: settings above it go back to their defaults',
  ]);
});

test('an unreadable auth_file is a warning and the start goes on', () => {
  const { config, lines } = load('[pgbouncer]\nauth_file = gone');
  assert.deepEqual(lines, [
    'W f:2: auth_file: could not open auth_file gone: No such file or directory',
  ]);
  assert.equal(config?.authUsers, null);
});

test('a broken line of auth_file is a warning with its place, and the users before it stay', () => {
  const { config, lines } = load({
    f: '[pgbouncer]\nauth_file = users',
    users: '"a" "secret"\n# broken\n"b" "other"\n',
  });
  assert.deepEqual(lines, ['W users:2: broken auth file: the users from here on are left out']);
  assert.deepEqual(config?.authUsers, [{ name: 'a', secret: 'secret' }]);
});

test('HBA and ident files are read for auth_type=hba alone', () => {
  const files = {
    hba: 'local all all peer map=m',
    ident: 'm os all',
  };
  const settings = 'auth_hba_file = hba\nauth_ident_file = ident';
  const config = clean({ f: `[pgbouncer]\nauth_type = hba\n${settings}`, ...files });
  assert.equal(config.hba?.rules.length, 1);
  assert.deepEqual(config.hba?.maps, [
    { name: 'm', pairs: [{ systemName: 'os', databaseUser: null }] },
  ]);
  assert.equal(clean(`[pgbouncer]\nauth_type = md5\n${settings}`).hba, null);
});

test('a line of an HBA or ident file that cannot be read stops the load', () => {
  const { config, lines } = load({
    f: '[pgbouncer]\nauth_type = hba\nauth_hba_file = d/hba\nauth_ident_file = d/ident',
    'd/hba': 'local all all trust\nhost all all 10.0.0.1/8 reject\nlocal all all peer map=m',
    'd/ident': 'm os\n',
  });
  assert.equal(config, null);
  assert.deepEqual(lines, [
    'E d/ident:1: a system name or database user is missing',
    'E d/hba:2: address does not match mask: 10.0.0.1 / 255.0.0.0',
  ]);
});

test('auth_file is not read where nothing asks for a password list', () => {
  assert.equal(clean('[pgbouncer]\nauth_type = any\nauth_file = gone').authUsers, null);
  assert.equal(clean('[pgbouncer]\nauth_file =').authUsers, null);
});

test('peers without an own id are a warning', () => {
  const file = '[peers]\n1 = host=x\n[pgbouncer]\n';
  const text = '[peers] has no effect while peer_id is 0: cancel requests are not passed on';
  const placed = load(`${file}peer_id = 0`);
  assert.deepEqual(placed.lines, [`W f:4: peer_id: ${text}`]);
  assert.ok(placed.config);
  assert.deepEqual(load(file).lines, [`W ${resolve('f')}: peer_id: ${text}`]);
  clean(`${file}peer_id = 2`);
});

/** A text for each key of the table that is neither its default nor what this version does anyway. */
const NEWS: Record<string, string> = {
  autodb_idle_timeout: '5',
  balance_accepts: 'on',
  dns_max_ttl: '5',
  dns_nxdomain_ttl: '5',
  dns_zone_check_period: '5',
  elastic: 'on',
  http_listen: '127.0.0.1:1',
  pipeline_depth: '2',
  pool_idle_timeout: '5',
  server_fast_close: '1',
  session_leak: 'warn',
  status_names: 'always',
  suspend_timeout: '3',
  tcp_defer_accept: '1',
  tcp_keepcnt: '3',
  tcp_keepintvl: '3',
  tcp_socket_buffer: '4096',
  tcp_user_timeout: '1000',
};

test('each key without effect yet earns one warning that names it, and the start goes on', () => {
  for (const { section, key } of NOT_BUILT) {
    const text = NEWS[key] ?? 'x';
    const [file, expected] =
      section === 'databases'
        ? [
            `[databases]\na = ${key}=${text}\nb = ${key}=${text}\n[pgbouncer]`,
            `W f:2: a: ${key} is`,
          ]
        : [
            `[${section}]\n${key} = ${text}\n${section === 'fleet' ? '[pgbouncer]' : ''}`,
            `W f:2: ${key}: is`,
          ];
    const { config, lines } = load(file);
    assert.deepEqual(lines, [`${expected} accepted but has no effect in this version`], file);
    assert.ok(config);
  }
});

test('a key set to what this version does anyway earns no warning', () => {
  clean(
    '[pgbouncer]\ntcp_user_timeout = 0\ntcp_defer_accept = 0\nautodb_idle_timeout = 0\nsyslog = 0\nclient_tls_sslmode = disable\n' +
      '[fleet]\nelastic = off\nbalance_accepts = off\nhttp_listen =\npipeline_depth = 1\nlog_format = text\n' +
      '[databases]\na = session_leak=allow',
  );
});

test('direct TLS needs a mode that insists on TLS', () => {
  for (const mode of ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full']) {
    const { config, lines } = load(
      `[pgbouncer]\nserver_tls_sslmode = ${mode}\n[fleet]\nserver_tls_negotiation = direct`,
    );
    const isFirm = !['disable', 'allow', 'prefer'].includes(mode);
    assert.equal(config !== null, isFirm, mode);
    assert.deepEqual(
      lines,
      isFirm
        ? []
        : [
            'E f:4: server_tls_negotiation: direct needs server_tls_sslmode = require, verify-ca or verify-full',
          ],
    );
  }
  clean('[pgbouncer]\n[fleet]\nserver_tls_negotiation = postgres');
});

test('a refused setting that a second header takes back is not refused', () => {
  const { config } = load('[pgbouncer]\nauth_type = pam\n[pgbouncer]\nauth_type = trust');
  assert.equal(config?.settings.auth_type, 'trust');
});

test('no problem of a connection string shows a password', () => {
  const { lines } = load(
    "[pgbouncer]\n[databases]\na = password=one hunter2\nb = password='hunter2\nc = password= hunter2=x\nd = password=hunter2 port=0",
  );
  assert.equal(lines.length, 4);
  assert.doesNotMatch(lines.join('\n'), /hunter2/);
});
