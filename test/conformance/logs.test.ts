/** The log: shape and words of its lines, what switches them off, and when they are in the file. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { ConsoleClient } from '../support/console.ts';
import { startup } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { ourPooler, type RuleOptions, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
});

/** The log file, in the folder that every pooler is started in. */
const FILE = 'file.log';
const SHAPE =
  /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S{3,5} \[\d+\] (?:FATAL|ERROR|WARNING|LOG|DEBUG|NOISE) (.*)$/;
const OBJECT =
  /^([CS])-0x[0-9a-f]+: (?:peer-\d+|[^/\s]+\/\S+)@(?:\[[0-9a-f:.]+\]|unix(?:\(\d+\))?|\(bad-af\)|[0-9.]+):\d+ (.*)$/;

const options =
  (settings: RuleOptions['settings'] = {}, more: Partial<RuleOptions> = {}) =>
  (): RuleOptions => ({
    postgres,
    databases: { app: '' },
    settings: { logfile: FILE, ...settings },
    ...more,
  });

const read = (pooler: TestPooler, file = FILE): string =>
  readFileSync(join(pooler.folder, file), 'utf8');

/** Messages of the log file; those of connections as `C text` and `S text`, numbers as `N`. */
function messages(pooler: TestPooler): string[] {
  return read(pooler)
    .split('\n')
    .slice(0, -1)
    .map((line) => {
      const message = SHAPE.exec(line)?.[1];
      assert.ok(message !== undefined, `a line has another shape: ${line}`);
      const found = OBJECT.exec(message);
      return (found === null ? message : `${found[1]} ${found[2]}`).replace(/\d+/g, 'N');
    });
}

/** Logs in, asks once, is refused something, and leaves; another one asks for what is not there. */
async function visits(pooler: TestPooler): Promise<void> {
  const client = await WireClient.login(pooler);
  await client.query('SELECT 1');
  await client.end();
  const other = await WireClient.connect(pooler);
  other.send(startup({ user: 'app', database: 'nowhere' }));
  await other.untilClose();
}

const LOGIN = 'C login attempt: db=app user=app tls=no replication=no';
const SERVER = 'S new connection to server (from N.N.N.N:N)';
const LEFT = 'C closing because: client close request (age=Ns)';
const REFUSED = 'no such database: nowhere';

/** What each switch governs of `visits`, in the order in which it is written. */
const LINES: readonly (readonly [string, string])[] = [
  ['log_connections', LOGIN],
  ['log_connections', SERVER],
  ['log_disconnections', LEFT],
  ['log_connections', 'C login attempt: db=nowhere user=app tls=no replication=no'],
  ['log_connections', 'C login failed: db=nowhere user=app'],
  ['log_disconnections', `C closing because: ${REFUSED} (age=Ns)`],
  ['log_pooler_errors', `C pooler error: ${REFUSED}`],
];

for (const off of [null, 'log_connections', 'log_disconnections', 'log_pooler_errors'] as const) {
  rule(
    off === null
      ? 'logins, server connections, ends and refusals are a line each, in this order'
      : `${off} = 0 hides its own lines and no others`,
    options({ pool_mode: 'session', ...(off === null ? {} : { [off]: 0 }) }),
    async (pooler) => {
      await visits(pooler);
      const seen = messages(pooler).filter((line) => LINES.some(([, text]) => text === line));
      const expected = LINES.filter(([by]) => by !== off).map(([, text]) => text);
      assert.deepEqual(seen, expected);
    },
    { since: '1.23.0' },
  );
}

rule(
  'the averages are a line each stats_period, all zero when nothing happens',
  options({ stats_period: 1 }),
  async (pooler) => {
    const line =
      'stats: N xacts/s, N queries/s, N client parses/s, N server parses/s, N binds/s, ' +
      'N client logins/s, in N B/s, out N B/s, xact N us, query N us, wait N us';
    await until('two of them', () => messages(pooler).filter((each) => each === line).length > 1);
    assert.match(read(pooler), /stats: 0 xacts\/s, 0 queries\/s, .* wait 0 us\n/);
  },
  { since: '1.26.0' },
);

rule(
  'a name that is not known is told of whatever is switched off',
  options(
    { log_connections: 0, log_disconnections: 0, log_pooler_errors: 0 },
    { logs: [/ERROR C-.* password authentication failed/] },
  ),
  async (pooler) => {
    await assert.rejects(WireClient.login(pooler, { user: 'ghost', database: 'app' }));
    assert.ok(messages(pooler).includes('C no such user: ghost'));
  },
);

rule(
  'log_stats = 0 hides the averages',
  options({ stats_period: 1, log_stats: 0 }),
  async (pooler) => {
    const client = await WireClient.login(pooler);
    await client.query('SELECT pg_sleep(2.2)');
    client.destroy();
    assert.doesNotMatch(read(pooler), /stats:/);
  },
);

rule(
  'what a reply tells is in the file when the reply arrives',
  options({}, { size: 3 }),
  async (pooler) => {
    for (let i = 0; i < 100; i++) {
      const client = await WireClient.connect(pooler);
      client.send(startup({ user: 'app', database: `d${i}x` }));
      await client.next();
      assert.ok(read(pooler).includes(`no such database: d${i}x (age=`), `login ${i}`);
      client.destroy();
    }
  },
);

rule(
  'what a command of the console has done is in the file when it is answered',
  options({}, { size: 3 }),
  async (pooler, t) => {
    const console = await ConsoleClient.open(t, pooler);
    const count = (text: string): number => read(pooler).split(text).length - 1;
    for (let n = 1; n <= 50; n++) {
      assert.equal(await console.run('RELOAD'), 'RELOAD');
      assert.equal(count(' LOG RELOAD command issued\n'), n);
    }
    const clients = await Promise.all(Array.from({ length: 9 }, () => WireClient.login(pooler)));
    for (const client of clients) await client.query('SELECT 1');
    assert.equal(await console.run('KILL app'), 'KILL');
    // Nine clients and, in whatever number, their servers.
    const ends = read(pooler).match(/ C-\S+: app\/app@\S+ closing because: database removed \(/g);
    assert.equal(ends?.length, clients.length);
    for (const client of clients) client.destroy();
  },
);

rule(
  'a file that is renamed before a reload gets no line behind it, and none is lost',
  options({}, { size: 3 }),
  async (pooler) => {
    const files = [FILE];
    let rotations = 0;
    let isOver = false;
    const rotating = (async () => {
      while (!isOver) {
        const old = `${FILE}.${++rotations}`;
        renameSync(join(pooler.folder, FILE), join(pooler.folder, old));
        files.push(old);
        pooler.signal('SIGHUP');
        await until('it is there again', () => isOver || existsSync(join(pooler.folder, FILE)));
      }
    })();
    const logins = 150;
    for (let i = 0; i < logins; i++) {
      const client = await WireClient.login(pooler);
      await client.query('SELECT 1');
      await client.end();
    }
    isOver = true;
    await rotating;
    assert.ok(rotations > 2, `${rotations} rotations`);
    // PgBouncer makes the new file when it has a line for it.
    const there = files.filter((file) => existsSync(join(pooler.folder, file)));
    const all = there.map((file) => read(pooler, file)).join('');
    for (const line of all.split('\n').slice(0, -1)) assert.match(line, SHAPE);
    assert.equal(all.split('login attempt:').length - 1, logins);
    assert.equal(all.split('closing because: client close request').length - 1, logins);
  },
);

rule(
  'a name with blanks and control characters cannot forge a prefix or a line',
  options(),
  async (pooler) => {
    const client = await WireClient.connect(pooler);
    client.send(startup({ user: 'x@9.9.9.9:1 closing\n\u001b[1m', database: 'app' }));
    await client.untilClose();
    const own = read(pooler)
      .split('\n')
      .filter((line) => line.includes(' closing because: '));
    assert.equal(own.length, 1);
    const message = SHAPE.exec(own[0]!)![1]!;
    assert.match(message, OBJECT);
    assert.ok(message.includes('/x@9.9.9.9:1\\x20closing\\x0a\\x1b[1m@127.0.0.1:'), message);
  },
  { differs: { because: 'it writes such names as they are' } },
);

test('with log_format = json every line is an object with the same message', async (t) => {
  const pooler = await ourPooler(t, options({}, { size: 2, fleet: { log_format: 'json' } })());
  await visits(pooler);
  const lines = read(pooler)
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  const login = lines.find(({ event }) => event === 'login_attempt');
  assert.ok(login);
  assert.equal(login['message'], 'login attempt: db=app user=app tls=no replication=no');
  assert.deepEqual([login['kind'], login['db'], login['user']], ['C', 'app', 'app']);
  assert.equal(typeof login['worker'], 'number');
  const up = lines.find(({ event }) => event === 'process_up');
  assert.ok(up !== undefined && !('worker' in up), 'the launcher is no worker');
});

test('the server before which all this ran ends', () => postgres.dispose());
