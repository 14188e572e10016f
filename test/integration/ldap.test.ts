/** A fleet whose clients log in by LDAP. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import { linesUntilClose } from '../fault/support.ts';
import { giveToServer } from '../support/account.ts';
import { makeCerts } from '../support/certs.ts';
import { startDnsServer } from '../support/dns-server.ts';
import { makeFolder } from '../support/folders.ts';
import { message, startup } from '../support/messages.ts';
import { type PgfleetOptions, startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { failedReload, line, reload } from '../support/reload.ts';
import { requirePackage } from '../support/skip.ts';
import { hasSlapd, READER, SUFFIX, startSlapd, type TestSlapd } from '../support/slapd.ts';
import { fatal } from '../support/transcript.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient, WireError } from '../support/wire-client.ts';

const BIND = `ldapprefix=uid= ldapsuffix=",ou=people,${SUFFIX}"`;

let postgres: TestPostgres;
let slapd: TestSlapd;

before(async () => {
  if (!hasSlapd()) return;
  postgres = await startPostgres();
  const person = (uid: string, password = uid) => ({ rdn: `uid=${uid},ou=people`, uid, password });
  slapd = await startSlapd({
    people: [
      person('app'),
      person('app_md5'),
      person('app_plain'),
      person('app_trust'),
      person('postgres'),
      person('guest'),
      person('stats'),
    ],
  });
});

function ldapOptions(): string {
  return `ldapserver=127.0.0.1 ldapport=${slapd.port} ${BIND}`;
}

/** Null: this machine has no LDAP server, and the test is skipped. */
async function start(t: TestContext, options: PgfleetOptions = {}): Promise<TestPgfleet | null> {
  if (!requirePackage(t, 'slapd', hasSlapd())) return null;
  const fleet = await startPgfleet({
    postgres,
    authFile: {},
    ...options,
    settings: { auth_type: 'ldap', auth_ldap_options: ldapOptions(), ...options.settings },
  });
  t.after(() => fleet.stop());
  return fleet;
}

async function isServed(fleet: TestPgfleet, login: LoginOptions): Promise<void> {
  const client = await WireClient.login(fleet, login);
  await client.query('SELECT 1');
  await client.end();
}

function refusedWith(text: string): (error: unknown) => boolean {
  return (error) => error instanceof WireError && error.message.includes(text);
}

test('a password that LDAP finds right lets a client in, and the pooler into the server', async (t) => {
  const fleet = await start(t);
  if (fleet === null) return;
  // Servers that ask for SCRAM, for MD5, for the password as it is, and for nothing.
  for (const user of ['app', 'app_md5', 'app_plain', 'app_trust']) {
    await isServed(fleet, { user, password: user });
  }
  await assert.rejects(
    WireClient.login(fleet, { user: 'app', password: 'wrong' }),
    refusedWith('LDAP authentication failed'),
  );
  await assert.rejects(
    WireClient.login(fleet, { user: 'nobody', password: 'app' }),
    refusedWith('LDAP authentication failed'),
  );
  const log = fleet.log();
  assert.match(
    log,
    /WARNING LDAP login failed for user "uid=app,ou=people,.*: Invalid credentials$/m,
  );
  assert.match(log, /closing because: LDAP authentication failed/);
});

test('the client is asked for its password in clear text, and an empty one is refused', async (t) => {
  const fleet = await start(t);
  if (fleet === null) return;
  const client = await WireClient.connect(fleet);
  client.send(startup({ user: 'app', database: 'app' }));
  assert.equal((await client.next()).body.readInt32BE(0), 3);
  client.send(message('p', [Buffer.of(0)]));
  assert.deepEqual(await linesUntilClose(client), fatal('empty password returned by client'));
});

test('a search by an account of its own over StartTLS', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const passwd = READER.password.replaceAll('"', '""');
  const search = `ldapbasedn="${SUFFIX}" ldapbinddn="${READER.dn}" ldapbindpasswd="${passwd}"`;
  const fleet = await start(t, {
    settings: {
      auth_ldap_options: `ldapserver=localhost ldapport=${slapd.port} ldaptls=1 ${search}`,
    },
    env: { LDAPTLS_CACERT: (await makeCerts()).file('ca.crt') },
  });
  assert.ok(fleet);
  const starts = slapd.count('TLS established');
  await isServed(fleet, { user: 'app', password: 'app' });
  assert.equal(slapd.count('TLS established'), starts + 1);
  const rows = await fleet.console('SHOW CONFIG');
  const shown = rows.find(({ key }) => key === 'auth_ldap_options')?.['value'] ?? '';
  assert.match(shown, /ldapbindpasswd=\[redacted\]/);
  assert.doesNotMatch(shown + fleet.log(), /read "/);
});

test('without a server in the options those of the base DN are asked for in DNS', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const dns = await startDnsServer();
  t.after(() => dns.stop());
  const { port } = slapd;
  dns.setServices(
    '_ldap._tcp.example.net',
    { priority: 20, port, target: 'spare.example.net' },
    { priority: 10, port, target: 'ldap.example.net' },
  );
  // The first address refuses, as nobody listens there.
  dns.set('ldap.example.net', '127.0.0.2', '127.0.0.1');
  const fleet = await start(t, {
    settings: { auth_ldap_options: `ldapbasedn="${SUFFIX}"`, resolv_conf: dns.resolvConf },
  });
  assert.ok(fleet);
  for (let n = 0; n < 3; n++) await isServed(fleet, { user: 'app', password: 'app' });
  assert.equal(dns.count('SRV _ldap._tcp.example.net'), 3);
  assert.equal(dns.count('A spare.example.net'), 0);
});

/** A folder for a fleet with an HBA file of these lines, and one for the console. */
async function withHba(...lines: readonly string[]): Promise<PgfleetOptions> {
  const folder = await makeFolder('fleet');
  const path = join(folder, 'hba');
  await writeFile(path, ['host pgbouncer postgres all trust', ...lines, ''].join('\n'));
  await giveToServer(path);
  const settings = { auth_type: 'hba', auth_hba_file: path, auth_ldap_options: null };
  return { folder, settings, authFile: { postgres: 'postgres', app_md5: 'app_md5' } };
}

test('an HBA line has options of its own, and its clients need no entry in a file', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const lines = [`host app app all ldap ${ldapOptions()} # here`, 'host app app_md5 all md5'];
  const fleet = await start(t, await withHba(...lines));
  assert.ok(fleet);
  await isServed(fleet, { user: 'app', password: 'app' });
  await isServed(fleet, { user: 'app_md5', password: 'app_md5' });
  await assert.rejects(
    WireClient.login(fleet, { user: 'app', password: 'wrong' }),
    refusedWith('LDAP authentication failed'),
  );
});

test('a reload with an HBA line whose LDAP options are wrong keeps the old rules', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const options = await withHba(`host app app all ldap ${ldapOptions()}`);
  const fleet = await start(t, options);
  assert.ok(fleet);
  fleet.allowLog(/config file loading failed|cannot mix|hba:/);
  const path = join(fleet.folder, 'hba');
  await writeFile(
    path,
    `host app app all ldap ${ldapOptions()} ldapbasedn=x\nhost all all all trust\n`,
  );
  await failedReload(fleet);
  assert.match(fleet.log(), /hba:1: cannot mix options for simple bind and search\+bind modes/);
  await isServed(fleet, { user: 'app', password: 'app' });
  await assert.rejects(WireClient.login(fleet, { user: 'app_md5' }));
});

test('a forced user needs no password of the client', async (t) => {
  const fleet = await start(t, { databases: { shared: 'dbname=app user=app password=app' } });
  if (fleet === null) return;
  await isServed(fleet, { user: 'guest', password: 'guest', database: 'shared' });
});

test("a password of the directory does not open a forced user's pool", async (t) => {
  const fleet = await start(t, { databases: { shared: 'dbname=app user=app', app: '' } });
  if (fleet === null) return;
  fleet.allowLog(/server login failed|no password|password authentication failed/i);
  await isServed(fleet, { user: 'app', password: 'app' });
  await assert.rejects(
    WireClient.login(fleet, { user: 'app', password: 'app', database: 'shared' }),
  );
});

test('the console is for its users, whoever the directory knows', async (t) => {
  const fleet = await start(t, { settings: { stats_users: 'stats' } });
  if (fleet === null) return;
  const enter = (user: string, password = user) =>
    WireClient.login(fleet, { user, password, database: 'pgbouncer' });
  await assert.rejects(enter('guest'), refusedWith('not allowed'));
  await assert.rejects(enter('guest', 'wrong'), refusedWith('LDAP authentication failed'));
  await assert.rejects(enter('postgres', 'wrong'), refusedWith('LDAP authentication failed'));
  await (await enter('postgres')).end();
  const stats = await enter('stats');
  assert.match((await stats.query('RELOAD')).map(({ body }) => body.toString()).join(), /admin/);
  await stats.end();
});

test('a database with an auth_user of its own refuses LDAP logins', async (t) => {
  const fleet = await start(t, { databases: { own: 'dbname=app auth_user=app', app: '' } });
  if (fleet === null) return;
  fleet.allowLog(/LDAP can't be used together with database authentication/);
  await assert.rejects(
    WireClient.login(fleet, { user: 'app', password: 'app', database: 'own' }),
    refusedWith('bouncer config error'),
  );
  await isServed(fleet, { user: 'app', password: 'app' });
});

test('without options nobody comes in, and the start says so', async (t) => {
  const fleet = await start(t, { settings: { auth_ldap_options: null } });
  if (fleet === null) return;
  assert.match(
    fleet.log(),
    /WARNING .*auth_type: ldap lets nobody in while auth_ldap_options is not set/,
  );
  await assert.rejects(
    WireClient.login(fleet, { user: 'app', password: 'app' }),
    refusedWith('auth_ldap_options is null'),
  );
});

test('a reload with options that cannot be used changes nothing', async (t) => {
  const fleet = await start(t);
  if (fleet === null) return;
  fleet.allowLog(/config file loading failed|cannot mix|auth_ldap_options/);
  await failedReload(
    fleet,
    line('pgbouncer', 'auth_ldap_options', `${ldapOptions()} ldapbasedn=x`),
  );
  assert.match(fleet.log(), /pgbouncer\.ini:\d+: auth_ldap_options: cannot mix options/);
  await isServed(fleet, { user: 'app', password: 'app' });
});

test('a reload to another auth_type forgets the passwords that were learnt', async (t) => {
  const fleet = await start(t, { authFile: { postgres: 'postgres', app: '' } });
  if (fleet === null) return;
  fleet.allowLog(/password authentication failed|no password/i);
  await isServed(fleet, { user: 'app', password: 'app' });
  await reload(fleet, line('pgbouncer', 'auth_type', 'trust'));
  await fleet.console('RECONNECT');
  await until('the server of before is gone', async () => {
    const servers = await fleet.console('SHOW SERVERS');
    return servers.length === 0;
  });
  await assert.rejects(WireClient.login(fleet, { user: 'app' }));
});

test('the password of the last login is the one that opens new servers', async (t) => {
  const fleet = await start(t);
  if (fleet === null) return;
  t.after(async () => {
    await slapd.setPassword('uid=app,ou=people', 'app');
    await postgres.query("ALTER ROLE app PASSWORD 'app'");
  });
  await isServed(fleet, { user: 'app', password: 'app' });
  await slapd.setPassword('uid=app,ou=people', 'fresh');
  await postgres.query("ALTER ROLE app PASSWORD 'fresh'");
  await assert.rejects(
    WireClient.login(fleet, { user: 'app', password: 'app' }),
    refusedWith('LDAP authentication failed'),
  );
  await fleet.console('RECONNECT');
  await isServed(fleet, { user: 'app', password: 'fresh' });
});

test('many clients log in at once on every worker', async (t) => {
  const fleet = await start(t, { size: 2 });
  if (fleet === null) return;
  const logins = Array.from({ length: 60 }, (_, n) =>
    n % 3 === 0
      ? assert.rejects(
          WireClient.login(fleet, { user: 'app', password: 'wrong' }),
          refusedWith('LDAP authentication failed'),
        )
      : isServed(fleet, { user: 'app', password: 'app' }),
  );
  await Promise.all(logins);
});

test('ways on which passwords can be read are told at the start', async (t) => {
  const warnings = [
    /passwords go to the LDAP server unencrypted: set ldaptls=1/,
    /clients may send passwords for ldap unencrypted: set client_tls_sslmode = require/,
  ];
  const safe = await start(t);
  if (safe === null) return;
  for (const text of warnings) assert.doesNotMatch(safe.log(), text);
  const open = await start(t, {
    settings: {
      listen_addr: '127.0.0.1, 0.0.0.0',
      auth_ldap_options: `ldapserver=ldap.example ${BIND}`,
    },
  });
  for (const text of warnings) assert.match(open!.log(), text);
  const line = `ldap ldapserver=ldap.example ${BIND}`;
  const addresses = { listen_addr: '127.0.0.1, 0.0.0.0' };
  const rows = [
    { type: 'host', told: [true, true] },
    { type: 'hostnossl', told: [true, true] },
    { type: 'hostssl', told: [true, false] },
  ] as const;
  for (const { type, told } of rows) {
    const options = await withHba(`${type} app all all ${line}`);
    const fleet = await start(t, { ...options, settings: { ...options.settings, ...addresses } });
    const found = warnings.map((text) => text.test(fleet!.log()));
    assert.deepEqual(found, told, type);
  }
});

test('the servers end', async () => {
  await postgres?.dispose();
  await slapd?.dispose();
});
