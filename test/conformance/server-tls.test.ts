/** TLS to servers: what each mode asks for and checks, and what is said when it cannot be had. */
import assert from 'node:assert/strict';
import { before, type TestContext, test } from 'node:test';
import { type Certs, makeCerts } from '../support/certs.ts';
import { startup, textRows } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { hasPostgres15 } from '../support/postgres-files.ts';
import { type RuleOptions, rule } from '../support/rule.ts';
import { startAnswering } from '../support/tls-proxy.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

/** Texts of OpenSSL 3, and the options that these rules set. */
const NOTES = { since: '1.26.0' };

const OLD = hasPostgres15() ? 15 : 18;

let certs: Certs;
/** By database: `old` and `new` have TLS, `named` a certificate for other hosts, `bare` no TLS. */
const servers = new Map<string, TestPostgres>();

before(async () => {
  certs = await makeCerts();
  const start = async (name: string, certificate: 'server' | 'named' | null, version: 15 | 18) => {
    const ssl = {
      ssl: 'on',
      ssl_cert_file: certs.file(`${certificate ?? 'server'}.crt`),
      ssl_key_file: certs.file(`${certificate ?? 'server'}.key`),
      ssl_ca_file: certs.file('ca.crt'),
    };
    const server = await startPostgres({
      version,
      settings: {
        listen_addresses: '127.0.0.1,::1',
        ...(certificate === null ? {} : ssl),
        ...(name === 'new' ? { ssl_max_protocol_version: 'TLSv1.2' } : {}),
      },
      hba: [
        'hostssl certified app samehost cert',
        'hostssl verified app samehost scram-sha-256 clientcert=verify-full',
      ],
    });
    servers.set(name, server);
  };
  await start('old', 'server', OLD);
  await start('new', 'server', 18);
  await start('named', 'named', OLD);
  await start('bare', null, 18);
  for (const name of ['certified', 'verified'] as const) {
    await servers.get('old')!.query(`CREATE DATABASE ${name} OWNER app`);
  }
});

/** The database lines that lead to the servers, by IP address unless it is said otherwise. */
function given(settings: Section, more: Readonly<Record<string, string>> = {}): RuleOptions {
  const lines = [...servers].map(([name, { port }]) => [
    name,
    `host=127.0.0.1 port=${port} dbname=app`,
  ]);
  return {
    databases: { ...Object.fromEntries(lines), ...more },
    settings: { server_login_retry: 1, ...settings },
  };
}

const port = (name: string): number => servers.get(name)!.port;

const ASK = 'SELECT coalesce(version, $$clear$$) FROM pg_stat_ssl WHERE pid = pg_backend_pid()';

/**
 * What comes of a login: the TLS version that the server sees, `clear`, or what the log has to say of
 * the first attempt that failed, the lines joined by `, then `.
 */
async function outcome(pooler: TestPooler, database: string): Promise<string> {
  const from = pooler.log().length;
  const client = await WireClient.connect(pooler);
  let isIn = false;
  let problem: unknown = null;
  client.send(startup({ user: 'app', database }));
  const welcome = client.untilReady().then(
    () => {
      isIn = true;
    },
    (error: unknown) => {
      problem = error;
    },
  );
  const failure = (): string | null => failureIn(pooler.log().slice(from), database);
  await until('the server is there or not', () => isIn || problem !== null || failure() !== null);
  try {
    if (!isIn) return failure() ?? String(problem);
    return textRows(await client.query(ASK))[0]![0]!;
  } finally {
    client.destroy();
    await welcome;
  }
}

function failureIn(log: string, database: string): string | null {
  const told: string[] = [];
  for (const text of log.split('\n')) {
    const tls = / WARNING ((?:TLS|tls_sbufio)[^:]*: .*)$/.exec(text)?.[1];
    if (tls !== undefined) told.push(tls);
    const closed = / S-0x[0-9a-f]+: (\w+)\/app@\S+ closing because: (.*) \(age=/.exec(text);
    if (closed?.[1] !== database) continue;
    // What a failed check was about, PgBouncer does not say.
    return [...told, closed[2]!]
      .join(', then ')
      .replace(/verify failed \([^)]*\)/, 'verify failed');
  }
  return null;
}

async function outcomes(pooler: TestPooler, ...databases: readonly string[]) {
  const found: string[] = [];
  for (const database of databases) found.push(await outcome(pooler, database));
  return found;
}

const REFUSED = 'server refused SSL';
const CRASHED = 'server conn crashed?';
const UNVERIFIED = `TLS handshake error: handshake failed: error:0A000086:SSL routines::certificate verify failed, then ${CRASHED}`;
const misnamed = (host: string): string =>
  `TLS handshake error: name \`${host}' not present in server certificate, then ${CRASHED}`;

const MODES: readonly (readonly [mode: string, ca: boolean, expected: readonly string[]])[] = [
  ['disable', false, ['clear', 'clear', 'clear', 'clear']],
  ['allow', false, ['TLSv1.3', 'TLSv1.2', 'TLSv1.3', 'clear']],
  ['prefer', false, ['TLSv1.3', 'TLSv1.2', 'TLSv1.3', 'clear']],
  ['require', false, ['TLSv1.3', 'TLSv1.2', 'TLSv1.3', REFUSED]],
  ['verify-ca', true, ['TLSv1.3', 'TLSv1.2', 'TLSv1.3', REFUSED]],
  ['verify-full', true, ['TLSv1.3', 'TLSv1.2', misnamed('127.0.0.1'), REFUSED]],
];

for (const [mode, ca, expected] of MODES) {
  rule(
    `${mode} does with each server what its name says`,
    () => given({ server_tls_sslmode: mode, server_tls_ca_file: ca ? certs.file('ca.crt') : '' }),
    async (pooler) => {
      assert.deepEqual(await outcomes(pooler, 'old', 'new', 'named', 'bare'), expected);
    },
    NOTES,
  );
}

for (const [mode, what, file, expected] of [
  ['require', 'another authority', 'other-ca.crt', 'TLSv1.3'],
  ['verify-ca', 'another authority', 'other-ca.crt', UNVERIFIED],
  ['verify-full', "the system's authorities", null, UNVERIFIED],
] as const) {
  rule(
    `${mode} with ${what} ends in: ${expected}`,
    () => {
      const server_tls_ca_file = file === null ? '' : certs.file(file);
      return given({ server_tls_sslmode: mode, server_tls_ca_file });
    },
    async (pooler) => {
      assert.equal(await outcome(pooler, 'old'), expected);
    },
    NOTES,
  );
}

const full = () => ({
  server_tls_sslmode: 'verify-full',
  server_tls_ca_file: certs.file('ca.crt'),
});

rule(
  'verify-full goes by the host of the list that is tried, name or address',
  () =>
    given(full(), {
      by_name: `host=localhost port=${port('named')} dbname=app`,
      by_ip6: `host=::1 port=${port('old')} dbname=app`,
      list: `host=127.0.0.1,localhost port=${port('named')} dbname=app load_balance_hosts=disable`,
    }),
  async (pooler) => {
    assert.equal(await outcome(pooler, 'by_name'), 'TLSv1.3');
    assert.equal(await outcome(pooler, 'by_ip6'), 'TLSv1.3');
    const client = await WireClient.login(pooler, { database: 'list' });
    assert.equal(textRows(await client.query(ASK))[0]![0], 'TLSv1.3');
    assert.equal(failureIn(pooler.log(), 'list'), misnamed('127.0.0.1'));
    await client.end();
  },
  NOTES,
);

rule(
  'a Unix socket knows no TLS, whatever the mode',
  () =>
    given(full(), {
      local: `host=${servers.get('old')!.socketDir} port=${port('old')} dbname=app`,
    }),
  async (pooler) => {
    assert.equal(await outcome(pooler, 'local'), 'clear');
  },
  NOTES,
);

/** A certificate of the pooler's own. */
const own = (name: 'app' | 'mallory' | 'stranger'): Section => ({
  server_tls_sslmode: 'require',
  server_tls_key_file: certs.file(`${name}.key`),
  server_tls_cert_file: certs.file(`${name}.crt`),
});
const withCertified = (settings: Section): RuleOptions =>
  given(settings, {
    certified: `host=127.0.0.1 port=${port('old')}`,
    verified: `host=127.0.0.1 port=${port('old')}`,
  });

rule(
  "a server that asks for a certificate gets the pooler's own, instead of a password or with one",
  () => withCertified(own('app')),
  async (pooler) => {
    assert.deepEqual(await outcomes(pooler, 'certified', 'verified'), ['TLSv1.3', 'TLSv1.3']);
  },
  NOTES,
);

rule(
  "a server's words on a certificate of another name go to the client",
  () => ({ ...withCertified(own('mallory')), logs: [/./] }),
  async (pooler) => {
    await assert.rejects(
      WireClient.login(pooler, { database: 'certified' }),
      /FATAL 28000: certificate authentication failed for user "app"/,
    );
  },
  NOTES,
);

rule(
  'a certificate that the server does not trust is refused by it, in its own words',
  () => withCertified(own('stranger')),
  async (pooler) => {
    assert.equal(
      await outcome(pooler, 'old'),
      `tls_sbufio_recv: read failed: error:0A000418:SSL routines::tlsv1 alert unknown ca, then ${CRASHED}`,
    );
  },
  NOTES,
);

/** Settings, and by server what comes of them, then what the console says of the last. */
const VALUES: readonly (readonly [string, Section, string, string])[] = [
  ['protocols are kept to', { server_tls_protocols: 'tlsv1.2' }, 'old', 'TLSv1.2'],
  [
    'a protocol list may say what it does not want',
    { server_tls_protocols: '!tlsv1.3' },
    'old',
    'TLSv1.2',
  ],
  [
    'a protocol list may have a hole',
    { server_tls_protocols: 'tlsv1.1,tlsv1.3' },
    'old',
    'TLSv1.3',
  ],
  [
    'the hole of a protocol list is not filled',
    { server_tls_protocols: 'tlsv1.1,tlsv1.3' },
    'new',
    `TLS handshake error: handshake failed: error:0A00042E:SSL routines::tlsv1 alert protocol version, then ${CRASHED}`,
  ],
  [
    'no cipher in common ends in an alert',
    { server_tls_protocols: 'tlsv1.2', server_tls_ciphers: 'DHE-RSA-AES128-GCM-SHA256' },
    'old',
    `TLS handshake error: handshake failed: error:0A000410:SSL routines::ssl/tls alert handshake failure, then ${CRASHED}`,
  ],
];

for (const [name, settings, database, expected] of VALUES) {
  rule(
    name,
    () => given({ server_tls_sslmode: 'require', ...settings }),
    async (pooler) => {
      assert.equal(await outcome(pooler, database), expected);
    },
    NOTES,
  );
}

for (const [name, settings, expected] of [
  ['the default', {}, 'TLSv1.3/TLS_AES_256_GCM_SHA384'],
  [
    'the suite of server_tls13_ciphers',
    { server_tls13_ciphers: 'TLS_CHACHA20_POLY1305_SHA256' },
    'TLSv1.3/TLS_CHACHA20_POLY1305_SHA256',
  ],
  [
    'the cipher of server_tls_ciphers',
    { server_tls_ciphers: 'ECDHE-ECDSA-AES128-GCM-SHA256', server_tls_protocols: 'tlsv1.2' },
    'TLSv1.2/ECDHE-ECDSA-AES128-GCM-SHA256',
  ],
] as const) {
  rule(
    `${name} is negotiated, logged and shown`,
    () => given({ server_tls_sslmode: 'require', ...settings }),
    async (pooler) => {
      const client = await WireClient.login(pooler, { database: 'old' });
      const rows = await pooler.console('SHOW SERVERS');
      const shown = rows.map(({ tls }) => tls?.replace(/\/ECDH=.*/, ''));
      assert.deepEqual(shown, [expected]);
      assert.match(
        pooler.log(),
        new RegExp(` S-0x[0-9a-f]+: old/app@\\S+ SSL established: ${expected}`),
      );
      await client.end();
    },
    NOTES,
  );
}

/** A database whose server answers the SSLRequest so, until the test ends. */
async function answering(t: TestContext, answer: string, closes = false): Promise<string> {
  const server = await startAnswering(answer, closes);
  t.after(() => server.stop());
  return `host=127.0.0.1 port=${server.port}`;
}

rule(
  'bytes behind the answer to SSLRequest, another answer and a handshake that is cut end the attempt',
  async (t) => {
    const odd = {
      behind_s: await answering(t, 'SX'),
      behind_n: await answering(t, 'NR'),
      other: await answering(t, 'E'),
      cut: await answering(t, 'S', true),
    };
    return given({ server_tls_sslmode: 'prefer' }, odd);
  },
  async (pooler) => {
    const behind = 'received unencrypted data after SSL response';
    const found = await outcomes(pooler, 'behind_s', 'behind_n', 'other');
    assert.deepEqual(found, [behind, behind, 'bad sslreq answer']);
    assert.match(
      await outcome(pooler, 'cut'),
      /^TLS handshake error: handshake failed: .*(?:EOF|eof).*, then server conn crashed\?$/,
    );
  },
  NOTES,
);

/** Settings that name what is not there, or hold it in another form. */
const UNUSABLE: readonly (readonly [string, () => Section, RegExp])[] = [
  [
    'an authority that is not there',
    () => ({ server_tls_ca_file: '/nowhere/ca.crt' }),
    /ERROR TLS setup failed: server_tls_ca_file: could not read "\/nowhere\/ca.crt": No such file or directory\n.* FATAL TLS setup failed\n/,
  ],
  [
    'a cipher list that OpenSSL does not know',
    () => ({ server_tls_ciphers: 'NOSUCH' }),
    / ERROR invalid server_tls_ciphers: NOSUCH\n.* FATAL TLS setup failed\n/,
  ],
];

for (const [name, settings, expected] of UNUSABLE) {
  // PgBouncer starts with these, apart from the ciphers, and fails at each connect.
  test(`${name} stops the start, by the names of setting and file`, async () => {
    const options = given({ server_tls_sslmode: 'require', ...settings() });
    await assert.rejects(startPgfleet(options), expected);
  });
}

test('the servers are stopped', async () => {
  for (const server of servers.values()) await server.dispose();
});
