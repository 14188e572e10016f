/**
 * Where server connections go: names and their addresses, lists of hosts, Unix sockets. PostgreSQL
 * listens on several addresses of the loopback network, and a name server of the test's own tells
 * which of them a name has.
 */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { type DnsServer, startDnsServer } from '../support/dns-server.ts';
import { cancelRequest, query, reportFields, startup, textRows } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;
let dns: DnsServer;
before(async () => {
  postgres = await startPostgres({
    settings: { listen_addresses: '127.0.0.1,127.0.0.2,127.0.0.3' },
  });
  dns = await startDnsServer('search inner.test outer.test');
});

/** Of the library that PgBouncer asks through, older ones read no port in a resolver file. */
const NAMES = { since: '1.26.0' };

/** Databases, each with what stands after `host=`. */
function at(
  hosts: Readonly<Record<string, string>>,
  settings: RuleOptions['settings'] = {},
): RuleOptions {
  const { port } = postgres;
  const lines = Object.entries(hosts).map(([name, host]) => [
    name,
    `host=${host.includes('port=') ? host : `${host} port=${port}`} dbname=app`,
  ]);
  return {
    postgres,
    databases: Object.fromEntries(lines),
    settings: { resolv_conf: dns.resolvConf, server_login_retry: 1, ...settings },
  };
}

const login = (pooler: TestPooler, database: string) =>
  WireClient.login(pooler, { user: 'app', database });

/** A client whose login waits for a server. */
async function knock(pooler: TestPooler, database: string): Promise<WireClient> {
  const client = await WireClient.connect(pooler);
  client.send(startup({ user: 'app', database }));
  return client;
}

/** `count` clients more, each in a transaction and so with a server of its own. */
async function inTransactions(
  pooler: TestPooler,
  database: string,
  count: number,
): Promise<WireClient[]> {
  const clients: WireClient[] = [];
  for (let i = 0; i < count; i++) {
    const client = await login(pooler, database);
    await client.query('BEGIN');
    clients.push(client);
  }
  return clients;
}

/** The addresses that the clients' servers are reached at. */
async function addressesOf(clients: readonly WireClient[]): Promise<string[]> {
  const found: string[] = [];
  for (const client of clients) {
    found.push(textRows(await client.query('SELECT host(inet_server_addr())'))[0]![0] ?? 'unix');
  }
  return found;
}

async function endAll(...clients: readonly WireClient[]): Promise<void> {
  for (const client of clients) await client.end();
}

/** Servers of a database as the console lists them. */
async function servers(pooler: TestPooler, database: string): Promise<string[]> {
  const rows = await pooler.console('SHOW SERVERS');
  return rows
    .filter((row) => row['database'] === database)
    .map((row) => row['addr']!)
    .sort();
}

/** What a client is told that comes when the last attempts have failed. */
async function whyFailing(client: WireClient): Promise<string> {
  client.send(query('SELECT 1'));
  const messages = await client.untilClose();
  return reportFields(messages.at(-1)!.body)['M'] ?? '';
}

// Names

rule(
  'a name is looked up once while its answer is fresh, for both families, and its addresses are used in turn',
  () => at({ named: 'db.test' }, { dns_max_ttl: 100 }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1', '127.0.0.2');
    const clients = await inTransactions(pooler, 'named', 4);
    const found = await addressesOf(clients);
    assert.notEqual(found[0], found[1]);
    assert.deepEqual(found.slice(2), found.slice(0, 2));
    assert.deepEqual(dns.questions.sort(), ['A db.test', 'AAAA db.test']);
    await endAll(...clients);
  },
  NAMES,
);

rule(
  'when an address of a name refuses, the next one is tried at once',
  () => at({ named: 'db.test' }, { server_login_retry: 30, query_wait_timeout: 10 }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.8', '127.0.0.9', '127.0.0.2');
    const clients = await inTransactions(pooler, 'named', 4);
    assert.deepEqual(new Set(await addressesOf(clients)), new Set(['127.0.0.2']));
    await endAll(...clients);
  },
  {
    ...NAMES,
    differs: {
      because: 'it waits for server_login_retry first, and again whenever that one’s turn comes',
      check: async (pooler) => {
        dns.forget();
        dns.set('db.test', '127.0.0.8', '127.0.0.9', '127.0.0.2');
        const client = await knock(pooler, 'named');
        await until('it has failed', () => pooler.log().includes('connect failed'));
        const [pool] = (await pooler.console('SHOW POOLS')).filter(
          ({ database }) => database === 'named',
        );
        assert.equal(Number(pool?.['cl_waiting']), 1);
        client.destroy();
      },
    },
  },
);

rule(
  'an old answer is looked up anew when the next connection needs it, and not before',
  () => at({ named: 'db.test' }, { dns_max_ttl: 0 }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1');
    const first = await inTransactions(pooler, 'named', 1);
    assert.equal(dns.count('A db.test'), 1);
    await first[0]!.query('SELECT 1');
    const second = await login(pooler, 'named');
    assert.equal(dns.count('A db.test'), 1);
    await second.query('BEGIN');
    assert.equal(dns.count('A db.test'), 2);
    await endAll(...first, second);
  },
  NAMES,
);

rule(
  'lookups of one name at the same time are one lookup',
  () => at({ one: 'db.test', two: 'db.test' }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1');
    dns.hold();
    const logins = [login(pooler, 'one'), login(pooler, 'two')];
    await until('it was asked for', () => dns.count('A db.test') > 0);
    await until('both wait', async () => {
      const rows = await pooler.console('SHOW POOLS');
      return rows.filter((row) => Number(row['sv_login']) === 1).length === 2;
    });
    dns.letGo();
    await endAll(...(await Promise.all(logins)));
    assert.equal(dns.count('A db.test'), 1);
  },
  NAMES,
);

rule(
  'servers at an address that a name has no more are closed when they are free, the others stay',
  () => at({ named: 'db.test' }, { dns_max_ttl: 0, default_pool_size: 3 }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1');
    const clients = await inTransactions(pooler, 'named', 1);
    dns.set('db.test', '127.0.0.2');
    clients.push(...(await inTransactions(pooler, 'named', 1)));
    dns.set('db.test', '127.0.0.2', '127.0.0.3');
    clients.push(...(await inTransactions(pooler, 'named', 1)));
    const [old, ...current] = await addressesOf(clients);
    assert.equal(old, '127.0.0.1');
    assert.ok(!current.includes(old));
    for (const { addr, close_needed: isClosing } of await pooler.console('SHOW SERVERS')) {
      assert.equal(Number(isClosing), addr === old ? 1 : 0);
    }
    for (const client of clients) await client.query('COMMIT');
    await until('the server at the old address is closed, and no other', async () => {
      const left = await servers(pooler, 'named');
      return left.join() === current.sort().join();
    });
    await endAll(...clients);
  },
  NAMES,
);

/** Servers of a host in a list after its name has moved and a connection has found that out. */
async function afterMoveInList(pooler: TestPooler): Promise<string[]> {
  dns.forget();
  dns.set('db.test', '127.0.0.1');
  const clients = await inTransactions(pooler, 'listed', 2);
  assert.deepEqual((await addressesOf(clients)).sort(), ['127.0.0.1', '127.0.0.3']);
  dns.set('db.test', '127.0.0.2');
  const more = await inTransactions(pooler, 'listed', 2);
  assert.deepEqual((await addressesOf(more)).sort(), ['127.0.0.2', '127.0.0.3']);
  for (const client of [...clients, ...more]) await client.query('COMMIT');
  const [user] = clients;
  await until('what is to be closed is closed', async () => {
    await user!.query('SELECT 1');
    const { length } = (await pooler.console('SHOW SERVERS')).filter((row) => row['close_needed']);
    return length === 0;
  });
  await endAll(...clients, ...more);
  return servers(pooler, 'listed');
}

rule(
  'that holds for hosts of a list too',
  () => at({ listed: 'db.test,127.0.0.3' }, { dns_max_ttl: 0 }),
  async (pooler) => {
    assert.deepEqual(await afterMoveInList(pooler), ['127.0.0.2', '127.0.0.3', '127.0.0.3']);
  },
  {
    ...NAMES,
    differs: {
      because: 'only servers of a host that stands alone are closed',
      check: async (pooler) => {
        assert.deepEqual(await afterMoveInList(pooler), [
          '127.0.0.1',
          '127.0.0.2',
          '127.0.0.3',
          '127.0.0.3',
        ]);
      },
    },
  },
);

rule(
  'a free one at an old address is closed before it is used',
  () => at({ named: 'db.test', other: 'db.test' }, { dns_max_ttl: 0 }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1');
    const client = await login(pooler, 'named');
    assert.deepEqual(await addressesOf([client]), ['127.0.0.1']);
    const others: WireClient[] = [];
    // A regular look at what is free may come first.
    await until('one is closed as it is picked', async () => {
      const address = `127.0.0.${2 + (others.length % 2)}`;
      dns.set('db.test', address);
      others.push(...(await inTransactions(pooler, 'other', 1)));
      assert.deepEqual(await addressesOf([client]), [address]);
      return pooler.log().includes('closing because: obsolete connection');
    });
    await endAll(client, ...others);
  },
  NAMES,
);

rule(
  'a lookup that fails says so in the cached error, is kept for dns_nxdomain_ttl and leaves the servers alone',
  () => ({
    ...at(
      { named: 'db.test', other: 'db.test' },
      { dns_max_ttl: 0, dns_nxdomain_ttl: 100, server_login_retry: 0 },
    ),
    logs: [/DNS lookup failed|login has been failing/],
  }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1');
    const [holder] = await inTransactions(pooler, 'named', 1);
    const other = await login(pooler, 'other');
    await other.query('SELECT 1');
    await postgres.query(
      `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
       WHERE usename = 'app' AND state = 'idle'`,
    );
    await until('it is gone', async () => (await servers(pooler, 'other')).length === 0);
    dns.set('db.test');
    dns.questions.length = 0;
    const early = await login(pooler, 'other');
    other.send(query('SELECT 1'));
    await until('the lookup has failed', () =>
      pooler.log().includes('closing because: server DNS lookup failed'),
    );
    assert.match(
      await whyFailing(early),
      /^server login has been failing, cached error: server DNS lookup failed/,
    );
    assert.match(pooler.log(), /WARNING DNS lookup failed: db\.test: result=0/);
    // The name itself, and its search list.
    assert.equal(dns.count('A db.test'), 1);
    assert.deepEqual(await addressesOf([holder!]), ['127.0.0.1']);
    await holder!.query('COMMIT');
    assert.deepEqual(await addressesOf([holder!]), ['127.0.0.1']);
    await endAll(holder!);
    other.destroy();
  },
  NAMES,
);

rule(
  'a name is completed by the search list: one without dots first, others when they are not known as they are',
  () => at({ short: 'single', dotted: 'a.b' }),
  async (pooler) => {
    dns.forget();
    dns.set('single.outer.test', '127.0.0.1');
    dns.set('a.b.inner.test', '127.0.0.2');
    const [short] = await inTransactions(pooler, 'short', 1);
    const [dotted] = await inTransactions(pooler, 'dotted', 1);
    assert.deepEqual(await addressesOf([short!, dotted!]), ['127.0.0.1', '127.0.0.2']);
    assert.deepEqual(
      dns.questions.filter((one) => one.startsWith('A ')),
      ['A single.inner.test', 'A single.outer.test', 'A a.b', 'A a.b.inner.test'],
    );
    await endAll(short!, dotted!);
  },
  NAMES,
);

rule(
  'SHOW DNS_HOSTS lists names with the time that is left and their addresses, SHOW DNS_ZONES what stands behind the first dot',
  () => ({
    ...at(
      {
        plain: '127.0.0.1',
        b: 'b.test',
        a: 'a.test',
        deep: 'x.y.test',
        none: 'none',
      },
      { dns_max_ttl: 100, dns_nxdomain_ttl: 50 },
    ),
    logs: [/DNS lookup failed/],
  }),
  async (pooler) => {
    dns.forget();
    dns.set('a.test', '127.0.0.1', '127.0.0.2');
    dns.set('b.test', '127.0.0.3');
    dns.set('x.y.test', '127.0.0.1');
    for (const database of ['plain', 'b', 'a', 'deep']) await endAll(await login(pooler, database));
    const waiting = await knock(pooler, 'none');
    await until('the lookup has failed', () => pooler.log().includes('DNS lookup failed: none'));
    const rows = await pooler.console('SHOW DNS_HOSTS');
    assert.deepEqual(
      rows.map((row) => [row['hostname'], row['addrs']]),
      [
        ['a.test', '127.0.0.1:0,127.0.0.2:0'],
        ['b.test', '127.0.0.3:0'],
        ['none', ''],
        ['x.y.test', '127.0.0.1:0'],
      ],
    );
    for (const { hostname, ttl } of rows) {
      const most = hostname === 'none' ? 50 : 100;
      assert.ok(Number(ttl) < most && Number(ttl) > most - 40, `${hostname} ${ttl}`);
    }
    const zones = await pooler.console('SHOW DNS_ZONES');
    assert.deepEqual(
      zones.map((row) => [row['zonename'], Number(row['serial']), Number(row['count'])]),
      [
        ['test', 0, 2],
        ['y.test', 0, 1],
      ],
    );
    const lists = await pooler.console('SHOW LISTS');
    const counts = lists.filter((row) => row['list']!.startsWith('dns_'));
    assert.deepEqual(
      counts.map((row) => [row['list'], Number(row['items'])]),
      [
        ['dns_names', 4],
        ['dns_zones', 2],
        ['dns_queries', 0],
        ['dns_pending', 0],
      ],
    );
    waiting.destroy();
  },
  NAMES,
);

rule(
  'with dns_zone_check_period a zone whose serial number is new has its names looked up at once',
  () => at({ named: 'db.test' }, { dns_max_ttl: 100, dns_zone_check_period: 1 }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1');
    dns.setSerial('test', 5);
    const [client] = await inTransactions(pooler, 'named', 1);
    assert.equal(dns.count('A db.test'), 1);
    dns.set('db.test', '127.0.0.2');
    await until('it was asked for again', () => dns.count('A db.test') === 2);
    assert.match(pooler.log(), /LOG zone 'test' serial changed: old=0 new=5/);
    await client!.query('COMMIT');
    await until('the server at the old address is left', async () => {
      await client!.query('BEGIN');
      const [address] = await addressesOf([client!]);
      await client!.query('COMMIT');
      return address === '127.0.0.2';
    });
    const [zone] = await pooler.console('SHOW DNS_ZONES');
    assert.equal(Number(zone!['serial']), 5);
    await endAll(client!);
  },
  NAMES,
);

rule(
  'a serial number that stays the same changes nothing, one that grows has the names looked up again',
  () => at({ named: 'db.test' }, { dns_max_ttl: 100, dns_zone_check_period: 1 }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1');
    dns.setSerial('test', 5);
    await endAll(await login(pooler, 'named'));
    await until('the zone was asked for twice', () => dns.count('SOA test') === 2);
    assert.equal(dns.count('A db.test'), 2);
    dns.setSerial('test', 6);
    await until('it was asked for again', () => dns.count('A db.test') === 3);
  },
  { ...NAMES, differs: { because: 'a newer library keeps the number and does not ask again' } },
);

rule(
  'a query is cancelled at the address where it runs',
  () => at({ named: 'db.test' }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.1', '127.0.0.2', '127.0.0.3');
    const clients = await inTransactions(pooler, 'named', 3);
    for (const client of clients) {
      client.send(query('SELECT pg_sleep(60)'));
      await until('it runs', async () => {
        const rows = await postgres.query(
          "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'",
        );
        return rows.length === 1;
      });
      const canceller = await WireClient.connect(pooler);
      canceller.send(cancelRequest(client.key));
      await canceller.untilClose();
      canceller.destroy();
      const messages = await client.untilReady();
      assert.ok(messages.some(({ body }) => reportFields(body)['C'] === '57014'));
    }
    await endAll(...clients);
  },
  NAMES,
);

// Lists

rule(
  'round-robin, the default, takes the next host of a list for each connection',
  () => at({ listed: '127.0.0.1,127.0.0.2,127.0.0.3' }),
  async (pooler) => {
    const clients = await inTransactions(pooler, 'listed', 6);
    const found = await addressesOf(clients);
    assert.deepEqual([...found.slice(0, 3)].sort(), ['127.0.0.1', '127.0.0.2', '127.0.0.3']);
    assert.deepEqual(found.slice(3), found.slice(0, 3));
    await endAll(...clients);
  },
);

rule(
  'load_balance_hosts = disable keeps to one host',
  () => at({ listed: '127.0.0.1,127.0.0.2 load_balance_hosts=disable' }),
  async (pooler) => {
    const clients = await inTransactions(pooler, 'listed', 3);
    assert.equal(new Set(await addressesOf(clients)).size, 1);
    await endAll(...clients);
  },
  { since: '1.24.0' },
);

rule(
  'load_balance_hosts = disable goes on to the next host when an attempt has failed, and stays there',
  () => at({ listed: '127.0.0.9,127.0.0.2 load_balance_hosts=disable' }, { server_login_retry: 0 }),
  async (pooler) => {
    const clients = await inTransactions(pooler, 'listed', 3);
    assert.deepEqual(await addressesOf(clients), ['127.0.0.2', '127.0.0.2', '127.0.0.2']);
    assert.match(pooler.log(), /127\.0\.0\.9:\d+ closing because: connect failed/);
    await endAll(...clients);
  },
  { since: '1.24.0' },
);

rule(
  'a host of a list that is down costs an attempt: the next one waits for server_login_retry',
  () => at({ listed: '127.0.0.9,127.0.0.2' }, { server_login_retry: 1 }),
  async (pooler) => {
    const [first] = await inTransactions(pooler, 'listed', 1);
    const second = await login(pooler, 'listed');
    second.send(query('SELECT host(inet_server_addr())'));
    const rows = textRows(await second.untilReady());
    assert.deepEqual(rows, [['127.0.0.2']]);
    const log = pooler.log();
    const failures = log.match(/127\.0\.0\.9:\d+ closing because: connect failed/g) ?? [];
    assert.ok(failures.length >= 1 && failures.length <= 2, `${failures.length} failures`);
    await endAll(first!, second);
  },
);

rule(
  'a list may hold hosts of different kinds, all with one port',
  () => at({ listed: `db.test,${postgres.folder},127.0.0.3` }),
  async (pooler) => {
    dns.forget();
    dns.set('db.test', '127.0.0.2');
    const clients = await inTransactions(pooler, 'listed', 3);
    assert.deepEqual((await addressesOf(clients)).sort(), ['127.0.0.2', '127.0.0.3', 'unix']);
    await endAll(...clients);
  },
  NAMES,
);

// Unix sockets

rule(
  'a host that begins with / is the folder of a Unix socket',
  () => at({ local: postgres.folder }),
  async (pooler) => {
    const client = await login(pooler, 'local');
    assert.deepEqual(await addressesOf([client]), ['unix']);
    const [server] = await pooler.console('SHOW SERVERS');
    assert.deepEqual([server!['addr'], Number(server!['port'])], ['unix', postgres.port]);
    await endAll(client);
  },
);

rule(
  'a database without a host is on a Unix socket in unix_socket_dir',
  () => ({
    settings: { unix_socket_dir: postgres.folder },
    databases: { local: `port=${postgres.port} dbname=app` },
  }),
  async (pooler) => {
    const client = await login(pooler, 'local');
    assert.deepEqual(await addressesOf([client]), ['unix']);
    await endAll(client);
  },
);

rule(
  'a database without a host cannot be reached when unix_socket_dir is empty',
  () => ({
    settings: { unix_socket_dir: '', server_login_retry: 0 },
    databases: { local: `port=${postgres.port} dbname=app` },
    logs: [/unix socket dir not configured: local/],
  }),
  async (pooler) => {
    const waiting = await knock(pooler, 'local');
    await until('the attempt has failed', () =>
      pooler.log().includes('ERROR unix socket dir not configured: local'),
    );
    assert.match(pooler.log(), /closing because: cannot connect/);
    waiting.destroy();
  },
);

test('a worker that learns that a name has moved tells the others', async (t) => {
  dns.forget();
  dns.set('db.test', '127.0.0.1');
  const fleet = await startPgfleet({ ...at({ named: 'db.test' }, { dns_max_ttl: 0 }), size: 2 });
  t.after(() => fleet.stop());
  const clients: WireClient[] = [];
  const rows = (): Promise<Record<string, string | null>[]> =>
    fleet.console('SHOW SERVERS BY PROCESS');
  await until('both workers have a server', async () => {
    if (clients.length < 9) clients.push(...(await inTransactions(fleet, 'named', 1)));
    return new Set((await rows()).map((row) => row['process'])).size === 2;
  });
  dns.set('db.test', '127.0.0.2');
  clients.push(...(await inTransactions(fleet, 'named', 1)));
  await until('the old servers of both are to be closed', async () =>
    (await rows()).every(({ addr, close_needed: isClosing }) =>
      addr === '127.0.0.1' ? Number(isClosing) === 1 : Number(isClosing) === 0,
    ),
  );
  await endAll(...clients);
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('all that was started can be stopped when everything has been asked', async () => {
  await postgres.dispose();
  await dns.stop();
});
