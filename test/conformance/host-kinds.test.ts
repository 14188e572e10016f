/**
 * Hosts of databases that no name server knows: addresses of IPv6, and names in /etc/hosts, which may
 * change under a running pooler. The names of name servers are in `hosts.test.ts`.
 */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { before, type TestContext, test } from 'node:test';
import { type DnsServer, startDnsServer } from '../support/dns-server.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { query, reportFields, startup, textRows } from '../support/messages.ts';
import { missingNamespaces } from '../support/own-hosts.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleCheck, type RuleNotes, type RuleOptions, rule } from '../support/rule.ts';
import { requireOf } from '../support/skip.ts';
import { until } from '../support/until.ts';
import { sendCancel, WireClient } from '../support/wire-client.ts';

let postgres: TestPostgres;
let dns: DnsServer;
let folder: string;
before(async () => {
  postgres = await startPostgres({
    settings: { listen_addresses: '127.0.0.1,127.0.0.2,127.0.0.3,::1' },
  });
  dns = await startDnsServer('');
  folder = await makeFolder('hosts');
});

const SERVER_ADDRESS = 'SELECT host(inet_server_addr())';

async function firstValue(client: WireClient, sql: string): Promise<string | null> {
  return textRows(await client.query(sql))[0]?.[0] ?? null;
}

// Addresses of IPv6

function hasIpv6(t: TestContext): boolean {
  const isThere = Object.values(networkInterfaces())
    .flatMap((list) => list ?? [])
    .some(({ address }) => address === '::1');
  return requireOf(t, 'needs the address ::1 on the loopback interface', isThere);
}

function ipv6Rule(name: string, host: string, check: RuleCheck): void {
  rule(
    name,
    (): RuleOptions => ({
      databases: { six: `host=${host} port=${postgres.port} dbname=app` },
      settings: { server_login_retry: 1 },
    }),
    async (pooler, t) => {
      if (hasIpv6(t)) await check(pooler, t);
    },
  );
}

ipv6Rule('a host may be an address of IPv6, which is not looked up', '::1', async (pooler) => {
  const client = await WireClient.login(pooler, { database: 'six' });
  assert.equal(await firstValue(client, SERVER_ADDRESS), '::1');
  const column = async (command: string, name: string) =>
    (await pooler.console(command))
      .filter((row) => [row['database'], row['name']].includes('six'))
      .map((row) => row[name]);
  assert.deepEqual(await column('SHOW SERVERS', 'addr'), ['::1']);
  assert.deepEqual(await column('SHOW DATABASES', 'host'), ['::1']);
  assert.deepEqual(await pooler.console('SHOW DNS_HOSTS'), []);
  assert.match(
    pooler.log(),
    new RegExp(
      `S-\\S+: six/app@\\[::1\\]:${postgres.port} new connection to server \\(from \\[::1\\]:\\d+\\)`,
    ),
  );
  await client.end();
});

ipv6Rule('a query at an address of IPv6 is cancelled there', '::1', async (pooler) => {
  const client = await WireClient.login(pooler, { database: 'six' });
  client.send(query('SELECT pg_sleep(60)'));
  await until('it sleeps', async () => {
    const rows = await postgres.query(
      "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND client_addr = '::1'",
    );
    return rows.length === 1;
  });
  await sendCancel(pooler, client.key);
  const answer = await client.untilReady();
  const error = answer.find(({ type }) => type === 'E');
  assert.equal(reportFields(error!.body)['C'], '57014');
  await client.end();
});

ipv6Rule('addresses of both kinds may stand in one list', '::1,127.0.0.1', async (pooler) => {
  const clients: WireClient[] = [];
  for (let i = 0; i < 2; i++) {
    const client = await WireClient.login(pooler, { database: 'six' });
    await client.query('BEGIN');
    clients.push(client);
  }
  const found = await Promise.all(clients.map((client) => firstValue(client, SERVER_ADDRESS)));
  assert.deepEqual(found.sort(), ['127.0.0.1', '::1']);
  for (const client of clients) await client.end();
});

// /etc/hosts

/** What the hosts file of the pooler says from now on of `db.test`; null: nothing. */
async function write(address: string | null): Promise<void> {
  const lines = ['127.0.0.1 localhost', ...(address === null ? [] : [`${address} db.test`]), ''];
  await writeFile(join(folder, 'hosts'), lines.join('\n'));
}

/**
 * @param resolver `name server`: the pooler has a `resolv_conf` of its own, whose name server knows
 *   nothing; `system`: it asks the system's resolver
 */
function hostsRule(
  name: string,
  resolver: 'name server' | 'system',
  first: string | null,
  check: RuleCheck,
  notes: RuleNotes,
): void {
  rule(
    `${name} (${resolver})`,
    async () => {
      await write(first);
      const isThere = missingNamespaces() === null;
      return {
        postgres,
        databases: { named: `host=db.test port=${postgres.port} dbname=app` },
        settings: {
          dns_max_ttl: 0,
          dns_nxdomain_ttl: 0,
          server_login_retry: 1,
          default_pool_size: 5,
          ...(resolver === 'system' ? {} : { resolv_conf: dns.resolvConf }),
        },
        ...(isThere ? { hostsFile: join(folder, 'hosts') } : {}),
      };
    },
    async (pooler, t) => {
      const missing = missingNamespaces();
      if (requireOf(t, missing ?? '', missing === null)) await check(pooler, t);
    },
    notes,
  );
}

/** A client in a transaction, and where its server is reached. */
async function entered(pooler: TestPooler): Promise<[WireClient, string | null]> {
  const client = await WireClient.login(pooler, { database: 'named' });
  await client.query('BEGIN');
  return [client, await firstValue(client, SERVER_ADDRESS)];
}

for (const resolver of ['system', 'name server'] as const) {
  const notes: RuleNotes = resolver === 'system' ? {} : { since: '1.26.0' };

  hostsRule(
    'a name that moves in /etc/hosts leads the next connection there, and old ones close when free',
    resolver,
    '127.0.0.2',
    async (pooler) => {
      const [old, oldAddress] = await entered(pooler);
      assert.equal(oldAddress, '127.0.0.2');
      await write('127.0.0.3');
      const [next, nextAddress] = await entered(pooler);
      assert.equal(nextAddress, '127.0.0.3');
      await old.query('COMMIT');
      await until('the old one is closed', async () => {
        const rows = await pooler.console('SHOW SERVERS');
        return rows.every((row) => row['addr'] !== '127.0.0.2');
      });
      await old.end();
      await next.end();
    },
    notes,
  );

  hostsRule(
    'a name that is added to /etc/hosts is found by who waits for it',
    resolver,
    null,
    async (pooler) => {
      const client = await WireClient.connect(pooler);
      client.send(startup({ user: 'app', database: 'named' }));
      await until('it has not been found', () => pooler.log().includes('DNS lookup failed'));
      await write('127.0.0.3');
      await client.untilReady();
      assert.equal(await firstValue(client, SERVER_ADDRESS), '127.0.0.3');
      await client.end();
    },
    notes,
  );
}

test('the servers of this file end', async () => {
  await postgres.dispose();
  await dns.stop();
  await removeFolder(folder);
});
