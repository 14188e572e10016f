/** Which way to log in an HBA file asks of whom, and what becomes of a file that cannot be read. */
import assert from 'node:assert/strict';
import { rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import { giveToServer, serverAccountName } from '../support/account.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { message, startup } from '../support/messages.ts';
import { hasPgbouncer } from '../support/pgbouncer.ts';
import { preparePgfleet } from '../support/pgfleet.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type Ended, runProgram } from '../support/programs.ts';
import { failedReload, reload } from '../support/reload.ts';
import { bouncerPooler, type RuleCase, type RuleOptions, rule } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import { requirePackage } from '../support/skip.ts';
import {
  type Dialogue,
  fatal,
  ruleOf,
  type Step,
  scramSteps,
  transcript,
  WELCOME,
} from '../support/transcript.ts';
import { logSince } from './support.ts';

const NO_METHOD = fatal('no authentication method is found');
const REJECTED = fatal('login rejected');
const NO_PEER = fatal('unix socket login rejected');
const OWN = serverAccountName();

let postgres: TestPostgres;
let folder: string;

before(async () => {
  postgres = await startPostgres();
  folder = await makeFolder('hba');
  await write('main', MAIN);
  await write('users', 'app\n');
  await write('broken', BROKEN);
});

async function write(name: string, text: string): Promise<string> {
  const path = join(folder, name);
  await writeFile(path, text);
  await giveToServer(path);
  return path;
}

const DATABASES = [
  ...[
    'trusted',
    'plain',
    'md5',
    'scram',
    'rejected',
    'far',
    'near',
    'netmask',
    'anywhere',
    'v6',
    'tls',
  ],
  ...['notls', 'first', 'list1', 'list2', 'quoted', 'all', 'byfile', 'stranger', 'app'],
];

const MAIN = `
# A comment.
local   local1,app     app                        trust
local   all            all                        reject
host    trusted        app        127.0.0.1/32    trust   # and another
host    plain          app        0.0.0.0/0       password
host    md5            app        127.0.0.0/8     md5
host    scram          app        0.0.0.0/0       scram-sha-256
host    rejected       all        0.0.0.0/0       reject
host    far            app        10.0.0.0/8      trust
host    near           app        10.0.0.0/8      reject
host    near           app        127.0.0.0/30    trust
host    netmask        app        127.0.0.0 255.255.0.0   trust
host    v6             app        ::/0            trust
hostssl tls            app        0.0.0.0/0       trust
hostssl notls          app        0.0.0.0/0       reject
hostnossl notls        app        0.0.0.0/0       trust
host    first          app        0.0.0.0/0       reject
host    first          app        0.0.0.0/0       trust
host    anywhere       app        all             trust
host    list1 , list2  nobody,app 0.0.0.0/0       trust
host    "quoted"       "app"      0.0.0.0/0       trust
host    "all"          app        0.0.0.0/0       trust
host    byfile         @users     0.0.0.0/0       trust
host    sameuser       app        0.0.0.0/0       trust
host    pgbouncer      postgres   0.0.0.0/0       trust
host    pgbouncer      app        0.0.0.0/0       reject
host    nowhere        app        0.0.0.0/0       trust
host    stranger       all        0.0.0.0/0       trust
host    app            app_md5    0.0.0.0/0       md5
host    replication    app        0.0.0.0/0       reject
`;

const asks = (database: string, user = 'app', ...more: readonly Step[]): Step[] => [
  startup({ user, database }),
  ...more,
];
const withPassword = (password: string): Step[] => [{ until: 'R' }, message('p', [password])];
const lets = (name: string, database: string, user = 'app'): Dialogue => ({
  name,
  steps: asks(database, user),
  says: WELCOME,
});
const keeps = (
  name: string,
  database: string,
  says: readonly string[],
  user = 'app',
): Dialogue => ({
  name,
  steps: asks(database, user),
  says,
  // Older ones say that the login was rejected.
  ...(says === NO_METHOD ? { since: '1.23.0' } : {}),
});

const BY_TCP: readonly Dialogue[] = [
  lets('trust lets a known name in', 'trusted'),
  keeps('a rule for others is not tried', 'trusted', NO_METHOD, 'app_plain'),
  {
    name: 'password asks for a clear-text password',
    steps: asks('plain', 'app', ...withPassword('app')),
    says: ['R3', ...WELCOME],
  },
  {
    name: 'a wrong clear-text password is refused, and no other rule is tried',
    steps: asks('plain', 'app', ...withPassword('wrong')),
    says: ['R3', ...fatal('password authentication failed')],
  },
  {
    name: 'md5 asks for an MD5 answer',
    steps: asks('md5', 'app', ...withPassword('wrong')),
    says: ['R5', ...fatal('password authentication failed')],
  },
  {
    name: 'scram-sha-256 asks for SCRAM',
    steps: scramSteps('app', 'app', 'scram'),
    says: ['R10', 'R11', 'R12', ...WELCOME],
  },
  keeps('reject refuses', 'rejected', REJECTED),
  keeps('reject refuses a name that nobody has', 'rejected', REJECTED, 'nobody'),
  keeps(
    'trust refuses a name that nobody has',
    'stranger',
    fatal('"trust" authentication failed'),
    'nobody',
  ),
  keeps('a rule for another network is not tried', 'far', NO_METHOD),
  lets('the rule of the right network is, behind that of another', 'near'),
  lets('a network may be written with a mask', 'netmask'),
  keeps('a rule for IPv6 is not tried for IPv4', 'v6', NO_METHOD),
  keeps('hostssl is not tried without TLS', 'tls', NO_METHOD),
  lets('hostnossl is', 'notls'),
  keeps('the first rule that matches decides', 'first', REJECTED),
  { ...lets('every address may be meant', 'anywhere'), since: '1.23.0' },
  lets('a rule may have several names', 'list2'),
  lets('names may be quoted', 'quoted'),
  lets('a quoted keyword is a name', 'all'),
  keeps('and no keyword', 'app', NO_METHOD, 'app_plain'),
  lets('names may stand in a file of their own', 'byfile'),
  lets('sameuser is the database of the user’s name', 'app'),
  keeps('no rule is no way in', 'nothing', NO_METHOD),
  keeps(
    'a database that nobody has is matched by the name that was asked for',
    'nowhere',
    fatal('no such database: nowhere'),
  ),
  {
    name: 'physical replication needs the keyword, which no name stands for',
    steps: [startup({ user: 'app', database: 'trusted', replication: 'true' })],
    says: REJECTED,
    since: '1.23.0',
  },
  {
    name: 'all databases do not stand for it either',
    steps: [startup({ user: 'app_plain', database: 'stranger', replication: 'true' })],
    says: NO_METHOD,
    since: '1.23.0',
  },
  {
    name: 'logical replication is matched by its database',
    steps: [startup({ user: 'app', database: 'rejected', replication: 'database' })],
    says: REJECTED,
    since: '1.23.0',
  },
  {
    name: 'the console is the database pgbouncer',
    steps: asks('pgbouncer', 'postgres'),
    says: WELCOME,
  },
  {
    name: 'a rule of the console may refuse who would be allowed',
    steps: asks('pgbouncer'),
    says: REJECTED,
  },
];

rules(
  'an HBA file, over TCP',
  () => ({
    postgres,
    databases: Object.fromEntries(DATABASES.map((name) => [name, 'dbname=app'])),
    settings: { ...hba('main'), stats_users: 'app' },
  }),
  BY_TCP.map(ruleOf),
);

const overUnix = (dialogue: Dialogue): RuleCase => ({
  name: dialogue.name,
  check: async (pooler) =>
    assert.deepEqual(await transcript({ path: pooler.unixPath }, dialogue.steps), dialogue.says),
});

rules(
  'an HBA file, over the Unix socket',
  () => ({
    postgres,
    databases: { app: '', trusted: 'dbname=app' },
    settings: hba('main'),
  }),
  [
    lets('a rule for local connections', 'app'),
    keeps('a rule for TCP is not tried', 'trusted', REJECTED),
  ].map(overUnix),
);

function hba(name: string, more: Section = {}): Section {
  return { auth_type: 'hba', auth_hba_file: join(folder, name), ...more };
}

/** Options with an HBA file of the test's own, and an ident file maybe; `files` has their text. */
async function own(t: TestContext, files: Readonly<Record<string, string>>): Promise<Section> {
  const place = await makeFolder('hba');
  t.after(() => removeFolder(place));
  for (const [name, text] of Object.entries(files)) {
    await writeFile(join(place, name), text);
    await giveToServer(join(place, name));
  }
  const ident = 'ident' in files ? { auth_ident_file: join(place, 'ident') } : {};
  return { auth_type: 'hba', auth_hba_file: join(place, 'hba'), ...ident };
}

const hbaFile = (pooler: TestPooler): string => join(pooler.folder, 'hba');
/** The file is put in place whole. */
async function rewriteHba(pooler: TestPooler, text: string): Promise<void> {
  await writeFile(`${hbaFile(pooler)}.new`, text);
  await giveToServer(`${hbaFile(pooler)}.new`);
  await rename(`${hbaFile(pooler)}.new`, hbaFile(pooler));
}

const CONSOLE = 'host pgbouncer postgres 0.0.0.0/0 trust\n';
const OPEN = `${CONSOLE}host app app 0.0.0.0/0 trust\n`;
const CLOSED = `${CONSOLE}host app app 0.0.0.0/0 reject\nhost all all 0.0.0.0/0 trust\n`;
/** A rule that cannot be read in front of one that lets everybody in. */
const BROKEN = `${CONSOLE}host app app 127.0.0.300/32 reject\nhost all all 0.0.0.0/0 trust\n`;

/** Starts with an HBA file in the pooler's folder. */
async function inFolder(text: string): Promise<RuleOptions> {
  // It goes with the pooler.
  const place = await makeFolder('pooler');
  const path = join(place, 'hba');
  await writeFile(path, text);
  await giveToServer(path);
  return {
    postgres,
    databases: { app: '' },
    folder: place,
    settings: { auth_type: 'hba', auth_hba_file: path },
  };
}

const login = (pooler: TestPooler, user = 'app', database = 'app'): Promise<string[]> =>
  transcript(pooler, asks(database, user));

rule(
  'a reload takes another HBA file',
  () => inFolder(OPEN),
  async (pooler) => {
    assert.deepEqual(await login(pooler), WELCOME);
    await rewriteHba(pooler, CLOSED);
    await reload(pooler);
    assert.deepEqual(await login(pooler), REJECTED);
    assert.deepEqual(await login(pooler, 'app_plain'), WELCOME);
  },
);

for (const [what, change, error] of [
  [
    'a line that cannot be read',
    (pooler: TestPooler) => rewriteHba(pooler, BROKEN),
    /hba:2: failed to parse address - 127\.0\.0\.300/,
  ],
  [
    'no HBA file where one is named',
    (pooler: TestPooler) => rename(hbaFile(pooler), `${hbaFile(pooler)}.gone`),
    /could not open hba config file \S+: No such file or directory/,
  ],
] as const) {
  rule(
    `a reload that finds ${what} keeps the rules that are`,
    async () => ({ ...(await inFolder(CLOSED)), logs: [error] }),
    async (pooler) => {
      assert.deepEqual(await login(pooler), REJECTED);
      await change(pooler);
      await failedReload(pooler);
      assert.match(pooler.log(), error);
      assert.deepEqual(await login(pooler), REJECTED);
      assert.deepEqual(await login(pooler, 'app_plain'), WELCOME);
    },
    { differs: { because: 'it goes on without that line, or without any rule' } },
  );
}

test('PgBouncer: a reject that cannot be read lets in whom it was to keep out', async (t) => {
  if (!requirePackage(t, 'pgbouncer', hasPgbouncer())) return;
  const pooler = await bouncerPooler(t, {
    postgres,
    databases: { app: '' },
    settings: hba('broken'),
  });
  assert.deepEqual(await login(pooler), WELCOME);
});

const STARTS: readonly (readonly [string, Readonly<Record<string, string>>, RegExp])[] = [
  ['a line that cannot be read', { hba: BROKEN }, /hba:2: failed to parse address/],
  ['no HBA file where one is named', {}, /could not open hba config file \S+hba: No such file/],
  [
    'a line of the ident file that cannot be read',
    { hba: 'local all all peer map=m\n', ident: 'm a b c\n' },
    /ident:1: unsupported parameters/,
  ],
  [
    'a map that is not there',
    { hba: 'local all all peer map=m\n', ident: '' },
    /hba:1: Ident map m is not found in ident config file/,
  ],
  [
    'an address that its mask does not hold',
    { hba: 'host all all 10.0.0.1/8 reject\n' },
    /hba:1: address does not match mask: 10\.0\.0\.1 \/ 255\.0\.0\.0/,
  ],
];

for (const [what, files, error] of STARTS) {
  test(`a start that finds ${what} is refused`, async (t) => {
    const settings = await own(t, files);
    const fleet = await preparePgfleet({ postgres, settings });
    fleet.allowLog(/./);
    t.after(() => removeFolder(fleet.folder));
    await assert.rejects(fleet.start(), error);
  });
}

test('a start with auth_type=hba and no HBA file is refused', async (t) => {
  const fleet = await preparePgfleet({ postgres, settings: { auth_type: 'hba' } });
  t.after(() => removeFolder(fleet.folder));
  await assert.rejects(fleet.start(), /auth_type: auth_type=hba requires auth_hba_file/);
});

rule(
  'lines may stand in several files',
  async (t) => ({
    postgres,
    settings: await own(t, {
      hba: 'include more\ninclude_if_exists gone\ninclude_dir .\nhost all all 0.0.0.0/0 trust\n',
      more: 'host app app 0.0.0.0/0 reject\n',
      'b.conf': 'host template1 app all reject\n',
    }),
  }),
  async (pooler) => {
    assert.deepEqual(await login(pooler), REJECTED);
    assert.deepEqual(await login(pooler, 'app', 'template1'), REJECTED);
    assert.deepEqual(await login(pooler, 'app_plain'), WELCOME);
  },
  { differs: { because: 'it knows no include and skips such lines' } },
);

/** A client that runs as the account of the pooler. */
function psql(pooler: TestPooler, user: string, database = 'app', host = pooler.folder) {
  const args = ['-X', '-A', '-t', '-w', '-h', host, '-p', String(pooler.port), '-U', user];
  // Of the console what only its admins may do.
  const sql = database === 'pgbouncer' ? 'RELOAD' : 'SELECT 1';
  return runProgram('psql', [...args, '-d', database, '-c', sql], { asServer: true });
}

function isIn({ status, stderr }: Ended): void {
  assert.equal(status, 0, stderr);
}

const PEER = 'local app app peer map=m\nlocal app all peer\nhost all all all peer\n';
const IDENT = `other nobody_else all\nm ${OWN} app\n`;
const peerOptions =
  (mode: string) =>
  async (t: TestContext): Promise<RuleOptions> => ({
    postgres,
    databases: { app: 'user=app password=app' },
    authFile: { app: 'app', [OWN]: '', postgres: 'postgres' },
    settings: {
      ...(await own(t, { hba: PEER, ident: IDENT })),
      unix_socket_mode: mode,
    },
  });

rule(
  'peer lets in by the Unix socket the account’s own name, and the one that its map gives it',
  peerOptions('0600'),
  async (pooler) => {
    isIn(await psql(pooler, OWN));
    isIn(await psql(pooler, 'app'));
    const unix = { path: pooler.unixPath };
    assert.deepEqual(await transcript(unix, asks('app', 'postgres')), NO_PEER);
    assert.deepEqual(await transcript(unix, asks('app', 'nobody_else')), NO_PEER);
    assert.deepEqual(await transcript(pooler, asks('app', OWN)), NO_PEER);
  },
  { since: '1.23.0' },
);

rule(
  'peer lets nobody in by a socket that other accounts may use',
  peerOptions('0660'),
  async (pooler) => {
    const { status, stderr } = await psql(pooler, OWN);
    assert.notEqual(status, 0);
    assert.match(stderr, /unix socket login rejected/);
  },
  {
    since: '1.23.0',
    differs: {
      because: 'it can ask the kernel whose process a client is',
      check: async (pooler) => isIn(await psql(pooler, OWN)),
    },
  },
);

rule(
  'the pooler’s own account is the console’s admin without a password, as pgbouncer',
  () => ({ postgres, settings: { auth_type: 'md5', unix_socket_mode: '0600' } }),
  async (pooler) => {
    isIn(await psql(pooler, 'pgbouncer', 'pgbouncer'));
    const seen = logSince(pooler, 0).filter((line) => line.startsWith('LOG C '));
    assert.deepEqual(seen.slice(0, 2), [
      'LOG C (nodb)/pgbouncer pgbouncer access from unix socket',
      'LOG C pgbouncer/pgbouncer login attempt: db=pgbouncer user=pgbouncer tls=no replication=no',
    ]);
    for (const [user, database, host] of [
      ['pgbouncer', 'app', pooler.folder],
      ['postgres', 'pgbouncer', pooler.folder],
      ['pgbouncer', 'pgbouncer', pooler.host],
    ] as const) {
      const { status, stderr } = await psql(pooler, user, database, host);
      assert.notEqual(status, 0, `${user} ${database} ${host}`);
      assert.match(stderr, /no password supplied/);
    }
  },
  { since: '1.23.0' },
);

rule(
  'and needs a password where other accounts may use the socket',
  () => ({ postgres, settings: { auth_type: 'md5', unix_socket_mode: '0777' } }),
  async (pooler) => {
    const { status, stderr } = await psql(pooler, 'pgbouncer', 'pgbouncer');
    assert.notEqual(status, 0);
    assert.match(stderr, /no password supplied/);
  },
  {
    differs: {
      because: 'it can ask the kernel whose process a client is',
      check: async (pooler) => isIn(await psql(pooler, 'pgbouncer', 'pgbouncer')),
    },
  },
);

rule(
  'cert without TLS lets nobody in',
  async (t) => ({
    postgres,
    settings: await own(t, { hba: 'host all all 0.0.0.0/0 cert\nlocal all all cert\n' }),
  }),
  async (pooler) => {
    const says = fatal('certificate authentication failed');
    assert.deepEqual(await login(pooler), says);
    assert.deepEqual(await login(pooler, 'nobody'), says);
    assert.deepEqual(await transcript({ path: pooler.unixPath }, asks('app')), says);
  },
);

test('the server is put away', async () => {
  await removeFolder(folder);
  await postgres.dispose();
});
