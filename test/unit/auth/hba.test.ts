import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { TlsFacts } from '../../../src/auth/client-connection.ts';
import { HbaRules } from '../../../src/auth/hba.ts';
import { readHbaFile } from '../../../src/config/hba-file.ts';

const TLS: TlsFacts = { version: 'TLSv1.3', cipher: 'x', certificate: null, endPoint: null };
const MAPS = [{ name: 'm', pairs: [{ systemName: 'os', databaseUser: 'app' }] }];

function rulesOf(text: string): HbaRules {
  const { rules, problems } = readHbaFile('hba', { file: 'ini', line: 1 }, new Set(['m']), {
    readFile: () => text,
    listFolder: () => [],
  });
  assert.deepEqual(problems, []);
  return new HbaRules({ rules, maps: MAPS });
}

interface Client {
  /** `unix`, or the address. */
  readonly from?: string;
  readonly tls?: boolean;
  readonly database?: string;
  readonly user?: string;
  readonly physical?: boolean;
}

function methodOf(rules: HbaRules, client: Client): string {
  const { from = '10.1.2.3', tls = false, database = 'app', user = 'app' } = client;
  const method = rules.methodFor({
    connection: { isUnix: from === 'unix', address: from, tls: tls ? TLS : null },
    database,
    user,
    isPhysicalReplication: client.physical ?? false,
  });
  return method?.kind ?? 'none';
}

const CASES: readonly (readonly [string, Client, string])[] = [
  ['local all all trust', { from: 'unix' }, 'trust'],
  ['local all all trust', {}, 'none'],
  ['local all all trust', { tls: true }, 'none'],
  ['host all all all trust', { from: 'unix' }, 'none'],
  ['host all all all trust', {}, 'trust'],
  ['host all all all trust', { tls: true }, 'trust'],
  ['hostssl all all all trust', { from: 'unix' }, 'none'],
  ['hostssl all all all trust', {}, 'none'],
  ['hostssl all all all trust', { tls: true }, 'trust'],
  ['hostnossl all all all trust', {}, 'trust'],
  ['hostnossl all all all trust', { tls: true }, 'none'],
  ['hostnossl all all all trust', { from: 'unix' }, 'none'],
  ['hostnogssenc all all all trust', { tls: true }, 'trust'],
  ['hostnogssenc all all all trust', { from: 'unix' }, 'none'],

  ['host all all 10.1.2.3/32 trust', {}, 'trust'],
  ['host all all 10.1.2.2/32 trust', {}, 'none'],
  ['host all all 10.1.2.2/31 trust', {}, 'trust'],
  ['host all all 10.0.0.0/8 trust', {}, 'trust'],
  ['host all all 11.0.0.0/8 trust', {}, 'none'],
  ['host all all 0.0.0.0/0 trust', {}, 'trust'],
  ['host all all 0.0.0.0/0 trust', { from: '::1' }, 'none'],
  ['host all all ::/0 trust', {}, 'none'],
  ['host all all ::/0 trust', { from: '2001:db8::1' }, 'trust'],
  ['host all all 0.1.0.0 0.255.0.0 trust', {}, 'trust'],
  ['host all all 0.2.0.0 0.255.0.0 trust', {}, 'none'],
  ['host all all ::1/128 trust', { from: '::1' }, 'trust'],
  ['host all all 2001:db8::/33 trust', { from: '2001:db8:7fff::1' }, 'trust'],
  ['host all all 2001:db8::/33 trust', { from: '2001:db8:8000::1' }, 'none'],
  ['host all all fe80::/10 trust', { from: 'fe80::1%eth0' }, 'trust'],
  // A client that was gone when it was accepted has no address.
  ['host all all 0.0.0.0/0 trust', { from: '' }, 'none'],
  ['local all all trust', { from: '' }, 'none'],

  ['host app all all trust', {}, 'trust'],
  ['host other all all trust', {}, 'none'],
  ['host other,app all all trust', {}, 'trust'],
  ['host App all all trust', {}, 'none'],
  ['host sameuser all all trust', {}, 'trust'],
  ['host sameuser all all trust', { user: 'b' }, 'none'],
  ['host all sameuser all trust', {}, 'trust'],
  ['host all sameuser all trust', { database: 'b' }, 'none'],
  ['host "all" all all trust', {}, 'none'],
  ['host "all" all all trust', { database: 'all' }, 'trust'],
  ['host "sameuser" all all trust', { database: 'sameuser' }, 'trust'],
  ['host all app all trust', {}, 'trust'],
  ['host all b,c all trust', {}, 'none'],
  ['host all b,c all trust', { user: 'c' }, 'trust'],
  ['host all "all" all trust', {}, 'none'],
  ['host all "replication" all trust', { user: 'replication' }, 'trust'],
  ['host pgbouncer all all trust', { database: 'pgbouncer' }, 'trust'],

  ['host all all all trust', { physical: true }, 'none'],
  ['host app all all trust', { physical: true }, 'none'],
  ['host sameuser all all trust', { physical: true }, 'none'],
  ['host replication all all trust', { physical: true }, 'trust'],
  ['host replication b all trust', { physical: true }, 'none'],
  ['host app,replication all all trust', { physical: true }, 'trust'],
  ['host "replication" all all trust', { physical: true }, 'none'],
  ['host replication all all trust', {}, 'none'],
  ['host replication all all trust', { database: 'replication' }, 'none'],
  ['host "replication" all all trust', { database: 'replication' }, 'trust'],

  ['host all all all reject\nhost all all all trust', {}, 'reject'],
  ['host b all all reject\nhost all all all trust', {}, 'trust'],
  ['host all all 10.1.0.0/16 md5\nhost all all all reject', {}, 'md5'],
  ['host all all 10.1.0.0/16 md5\nhost all all all reject', { from: '10.2.0.1' }, 'reject'],
  ['hostssl all all all scram-sha-256\nhost all all all reject', { tls: true }, 'scram-sha-256'],
  ['hostssl all all all scram-sha-256\nhost all all all reject', {}, 'reject'],
  ['# nothing but a comment\nlocal all all password', { from: 'unix' }, 'plain'],
];

for (const [text, client, expected] of CASES) {
  test(`HBA: ${JSON.stringify(text)} gives ${expected} for ${JSON.stringify(client)}`, () => {
    assert.equal(methodOf(rulesOf(text), client), expected);
  });
}

test('cert and peer are given the lines of their map, ldap its options', () => {
  const rules = rulesOf(
    'host cert all all cert map=m clientname=DN\nhost bare all all cert\n' +
      'host peer all all peer map=m\nhost ldap all all ldap ldapserver=h # x',
  );
  const find = (database: string) =>
    rules.methodFor({
      connection: { isUnix: false, address: '10.0.0.1', tls: null },
      database,
      user: 'app',
      isPhysicalReplication: false,
    });
  const map = MAPS[0]!.pairs;
  assert.deepEqual(find('cert'), { kind: 'cert', map, clientname: 'DN' });
  assert.deepEqual(find('bare'), { kind: 'cert', map: null, clientname: 'any' });
  assert.deepEqual(find('peer'), { kind: 'peer', map });
  assert.deepEqual(find('ldap'), { kind: 'ldap', options: 'ldapserver=h' });
});

test('a thousand looks at ten thousand rules take no more than some milliseconds each', () => {
  const lines = Array.from(
    { length: 10_000 },
    (_, at) => `host db${at} user${at} 10.0.0.0/8 scram-sha-256`,
  );
  const rules = rulesOf(lines.join('\n'));
  const start = performance.now();
  for (let look = 0; look < 1_000; look++) {
    assert.equal(methodOf(rules, { database: 'db9999', user: 'user9999' }), 'scram-sha-256');
  }
  assert.ok(performance.now() - start < 10_000);
});
