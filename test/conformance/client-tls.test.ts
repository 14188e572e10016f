/** TLS towards clients: who may come in how, what is said to whom, and what the log says of it. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { before, test } from 'node:test';
import { type CertFile, type Certs, makeCerts } from '../support/certs.ts';
import { cancelRequest, query, sslRequest, startup } from '../support/messages.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import type { RuleCase, RuleOptions } from '../support/rule.ts';
import { rule } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import {
  ask,
  connectRaw,
  connectTls,
  loginTls,
  type TlsOptions,
  tlsSettings,
} from '../support/tls-client.ts';
import { APP, GSS_REQUEST } from '../support/transcript.ts';
import { until } from '../support/until.ts';
import { WireClient, WireError } from '../support/wire-client.ts';

let postgres: TestPostgres;
let certs: Certs;
before(async () => {
  [postgres, certs] = await Promise.all([startPostgres(), makeCerts()]);
});

/** Direct TLS and ALPN came with this one. */
const DIRECT = '1.25.0';
const NO_ALERT =
  'PgBouncer sends an alert of TLS, for which Node has no way; the client is told here';

const pem = (name: CertFile): string => readFileSync(certs.file(name), 'utf8');
const as = (name: 'app' | 'mallory' | 'revoked' | 'stranger'): TlsOptions => ({
  key: pem(`${name}.key`),
  cert: pem(`${name}.crt`),
});
const options =
  (mode: string, settings: Section = {}) =>
  (): RuleOptions => ({
    postgres,
    settings: { ...tlsSettings(certs, mode), ...settings },
    logs: [/pooler error: /, /TLS handshake error: /, /tls_sbufio_recv: /],
  });

/** What became of an attempt to come in: `in`, the FATAL, OpenSSL's reason, or `closed`. */
async function outcome(pooler: TestPooler, options: TlsOptions = {}): Promise<string> {
  try {
    const { client } = await loginTls(pooler, options);
    const answer = await client.query('SELECT 1');
    await client.end();
    return answer.map(({ type }) => type).join('') === 'TDCZ' ? 'in' : 'no answer';
  } catch (error) {
    if (error instanceof WireError) return `${error.severity} ${error.sqlstate} ${error.text}`;
    const found = reasonOf(error) ?? reasonOf((error as Error).cause);
    return found ?? 'closed';
  }
}

/** OpenSSL names the alert that a peer has sent. */
function reasonOf(error: unknown): string | null {
  if (!(error instanceof Error)) return null;
  return 'reason' in error && typeof error.reason === 'string' ? error.reason : null;
}

/** The first message that comes back for bytes in clear text. */
async function plainAnswer(pooler: TestPooler, ...packets: Buffer[]): Promise<string> {
  const client = await WireClient.connect(pooler);
  client.send(...packets);
  const { type, body } = await client.next();
  client.destroy();
  return type === 'E' ? body.toString('latin1').split('\0').slice(0, 3).join(' ') : type;
}

const comesIn = (name: string, tls: () => TlsOptions = () => ({}), since?: string): RuleCase => ({
  name,
  ...(since === undefined ? {} : { since }),
  check: async (pooler) => assert.equal(await outcome(pooler, tls()), 'in'),
});

/** A certificate that does not hold: the log says so, and the client is not let in. */
const badCertificate = (name: string, tls: () => TlsOptions, reason: string): RuleCase => {
  const isLogged = (pooler: TestPooler): Promise<unknown> => {
    const said = 'handshake failed: error:0A000086:SSL routines::certificate verify failed';
    return until('the log says why', () => pooler.log().includes(said));
  };
  return {
    name,
    check: async (pooler) => {
      const said = `FATAL 08P01 certificate verify failed: ${reason}`;
      assert.equal(await outcome(pooler, tls()), said);
      await isLogged(pooler);
    },
    differs: {
      because: NO_ALERT,
      check: async (pooler) => {
        assert.match(await outcome(pooler, tls()), /^(closed|.* alert .*)$/);
        await isLogged(pooler);
      },
    },
  };
};

const SSL_REQUIRED = 'SFATAL C08P01 MSSL required';
const plainIsRefused: readonly RuleCase[] = [
  {
    name: 'a StartupMessage without TLS is refused',
    check: async (pooler) => assert.equal(await plainAnswer(pooler, startup(APP)), SSL_REQUIRED),
  },
  {
    name: 'that comes before all that a StartupMessage can have wrong',
    check: async (pooler) =>
      assert.equal(
        await plainAnswer(pooler, startup({ options: 'x', nonsense: 'y' })),
        SSL_REQUIRED,
      ),
  },
  {
    name: 'the console is no exception',
    check: async (pooler) =>
      assert.equal(
        await plainAnswer(pooler, startup({ user: 'postgres', database: 'pgbouncer' })),
        SSL_REQUIRED,
      ),
  },
  {
    name: 'a refused GSSENCRequest does not replace TLS',
    check: async (pooler) => {
      const client = await WireClient.connect(pooler);
      client.send(GSS_REQUEST);
      assert.equal(String(await client.rawBytes(1)), 'N');
      client.send(startup(APP));
      assert.match((await client.next()).body.toString('latin1'), /SSL required/);
      client.destroy();
    },
  },
  {
    name: 'a CancelRequest is an exception',
    check: async (pooler) => {
      const raw = await connectRaw(pooler);
      assert.equal(await ask(raw, cancelRequest(Buffer.alloc(8))), 'closed');
    },
  },
  {
    name: 'clients of the Unix socket come in without TLS, and are told that there is none',
    check: async (pooler) => {
      const client = await WireClient.connect({ path: pooler.unixPath });
      client.send(sslRequest());
      assert.equal(String(await client.rawBytes(1)), 'N');
      await client.login();
      await client.end();
    },
  },
];

const handshakes: readonly RuleCase[] = [
  comesIn('an SSLRequest is answered S, and the login goes on in TLS'),
  comesIn('TLS 1.2 is taken', () => ({ maxVersion: 'TLSv1.2' })),
  comesIn('a handshake without an SSLRequest is taken', () => ({ direct: true }), DIRECT),
  comesIn(
    'so it is with the ALPN of PostgreSQL',
    () => ({ direct: true, ALPNProtocols: ['postgresql'] }),
    DIRECT,
  ),
  {
    name: 'among several protocols of ALPN, that of PostgreSQL is chosen',
    since: DIRECT,
    check: async (pooler) => {
      const protocols = ['http/1.1', 'postgresql'];
      const { client, socket } = await connectTls(pooler, { ALPNProtocols: protocols });
      client.destroy();
      assert.equal(socket.alpnProtocol, 'postgresql');
    },
  },
  ...[false, true].map(
    (direct): RuleCase => ({
      name: `a client that offers only other protocols is refused by an alert${direct ? ', if it asked or not' : ''}`,
      since: DIRECT,
      check: async (pooler) =>
        assert.equal(
          await outcome(pooler, { direct, ALPNProtocols: ['http/1.1'] }),
          'tlsv1 alert no application protocol',
        ),
    }),
  ),
  {
    name: 'an SSLRequest inside of TLS ends the connection',
    check: async (pooler) => {
      const { client } = await connectTls(pooler);
      client.send(sslRequest());
      assert.equal(await client.rawBytes(1), null);
      await until('the log says why', () =>
        pooler.log().includes('closing because: SSL req inside SSL'),
      );
      client.destroy();
    },
  },
  {
    name: 'a GSSENCRequest inside of TLS is answered N, and the login goes on',
    check: async (pooler) => {
      const { client } = await connectTls(pooler);
      client.send(GSS_REQUEST);
      assert.equal(String(await client.rawBytes(1)), 'N');
      await client.login();
      await client.end();
    },
  },
  {
    name: 'bytes that come together with an SSLRequest are refused',
    check: async (pooler) =>
      assert.equal(
        await plainAnswer(pooler, sslRequest(), startup(APP)),
        'SFATAL C08P01 Mreceived unencrypted data after SSL request',
      ),
  },
  {
    name: 'TLS begins with the first byte of a connection, or after an SSLRequest',
    since: DIRECT,
    check: async (pooler) => {
      const client = await WireClient.connect(pooler);
      client.send(GSS_REQUEST);
      assert.equal(String(await client.rawBytes(1)), 'N');
      client.send(Buffer.from('16030100050100000100', 'hex'));
      const { body } = await client.next();
      assert.match(body.toString('latin1'), /bad packet header: '1603010005010000'/);
      client.destroy();
    },
    differs: { because: 'PgBouncer waits for more of a message that it takes for a long one' },
  },
  {
    name: 'a handshake of nonsense ends the connection with an alert and a line in the log',
    since: DIRECT,
    check: async (pooler) => {
      const raw = await connectRaw(pooler);
      const answer = await ask(raw, Buffer.from('160301000400000000', 'hex'));
      raw.destroy();
      assert.equal(Buffer.from(answer, 'latin1')[0], 0x15);
      const said =
        /TLS handshake error: handshake failed: error:0A0000F4:SSL routines::unexpected message/;
      await until('the log says why', () => said.test(pooler.log()));
    },
  },
  {
    name: 'what is no TLS behind the S ends the connection',
    check: async (pooler) => {
      const raw = await connectRaw(pooler);
      assert.equal(await ask(raw, sslRequest()), 'S');
      assert.equal(await ask(raw, Buffer.from('GET / HTTP/1.0\r\n\r\n')), 'closed');
      const said =
        /TLS handshake error: handshake failed: error:0A00009C:SSL routines::http request/;
      await until('the log says why', () => said.test(pooler.log()));
    },
  },
  {
    name: 'the log and SHOW CLIENTS name the version and the cipher',
    check: async (pooler) => {
      const tls = {
        ...as('app'),
        maxVersion: 'TLSv1.2',
        ciphers: 'ECDHE-ECDSA-AES128-GCM-SHA256',
      } as const;
      const { client } = await loginTls(pooler, tls, { parameters: { application_name: 'shown' } });
      assert.match(
        pooler.log(),
        /login attempt: db=app user=app tls=TLSv1\.2\/ECDHE-ECDSA-AES128-GCM-SHA256/,
      );
      const console = await loginTls(pooler, as('app'), {
        user: 'postgres',
        database: 'pgbouncer',
      });
      console.client.send(query('SHOW CLIENTS'));
      const rows = await console.client.untilReady();
      const row = rows.find(({ type, body }) => type === 'D' && body.includes('shown'));
      assert.ok(row?.body.includes('TLSv1.2/ECDHE-ECDSA-AES128-GCM-SHA256'));
      await client.end();
      await console.client.end();
    },
  },
  {
    name: 'a cancel request may come through TLS',
    check: async (pooler) => {
      const { client } = await loginTls(pooler);
      client.send(query('SELECT pg_sleep(60)'));
      await until('it runs', async () => {
        const rows = await postgres.query(
          "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'",
        );
        return rows.length > 0;
      });
      const other = await connectTls(pooler);
      other.client.send(cancelRequest(client.key));
      await other.client.untilClose();
      const answer = await client.untilReady();
      assert.match(answer.map(({ body }) => body.toString()).join(), /57014/);
      await client.end();
      other.client.destroy();
    },
  },
];

const optional: readonly RuleCase[] = [
  comesIn('a client without a certificate comes in'),
  comesIn('so does one with a certificate of the CA', () => as('app')),
  badCertificate(
    'one of another CA fails',
    () => as('stranger'),
    'unable to verify leaf signature',
  ),
  badCertificate(
    'one of another CA fails in TLS 1.2 as well',
    () => ({ ...as('stranger'), maxVersion: 'TLSv1.2' }),
    'unable to verify leaf signature',
  ),
];

const required: readonly RuleCase[] = [
  {
    name: 'a client without a certificate fails the handshake',
    check: async (pooler) => {
      assert.match(
        await outcome(pooler, { maxVersion: 'TLSv1.2' }),
        /^ssl\/tls alert handshake failure$|^sslv3 alert handshake failure$/,
      );
      assert.match(await outcome(pooler), /^tlsv13 alert certificate required$|^closed$/);
      const said = /error:0A0000C7:SSL routines::peer did not return a certificate/;
      await until('the log says why', () => said.test(pooler.log()));
    },
  },
  comesIn('one with a certificate of the CA comes in', () => as('app')),
  comesIn('whatever name it has', () => as('mallory')),
  badCertificate(
    'one of another CA fails',
    () => as('stranger'),
    'unable to verify leaf signature',
  ),
];

const plainComesIn: readonly RuleCase[] = [
  {
    name: 'a client may come in without TLS',
    check: async (pooler) => {
      const client = await WireClient.login(pooler);
      await client.end();
    },
  },
];

for (const mode of ['allow', 'prefer']) {
  rules(`client_tls_sslmode ${mode}`, options(mode), [...plainComesIn, ...optional]);
}
rules('client_tls_sslmode require', options('require'), [...plainIsRefused, ...optional]);
for (const mode of ['verify-ca', 'verify-full']) {
  rules(`client_tls_sslmode ${mode}`, options(mode), [...plainIsRefused, ...required]);
}
rules('a TLS handshake', options('allow'), handshakes);

rules('client_tls_sslmode disable', options('disable'), [
  ...plainComesIn,
  {
    name: 'an SSLRequest is answered N, and the client may go on without',
    check: async (pooler) => {
      const client = await WireClient.connect(pooler);
      client.send(sslRequest());
      assert.equal(String(await client.rawBytes(1)), 'N');
      await client.login();
      await client.end();
    },
  },
  {
    name: 'a handshake without an SSLRequest is refused at once',
    check: async (pooler) =>
      assert.match(await outcome(pooler, { direct: true }), /alert handshake failure$/),
    differs: { because: 'PgBouncer lets it wait for client_login_timeout' },
  },
]);

const login = (name: string, settings: Section, tls: TlsOptions, is: RegExp): void =>
  rule(name, options('require', settings), async (pooler) =>
    assert.match(await outcome(pooler, tls), is),
  );
const VERSION_ALERT = /^tlsv1 alert protocol version$/;
const TLS12: TlsOptions = { maxVersion: 'TLSv1.2' };
const TLS13: TlsOptions = { minVersion: 'TLSv1.3' };
const NO_SHARED = /alert handshake failure$/;

login(
  'a version that is not in the list is refused',
  { client_tls_protocols: 'tlsv1.3' },
  TLS12,
  VERSION_ALERT,
);
login(
  'a version that is taken out is refused',
  { client_tls_protocols: '!tlsv1.3' },
  TLS13,
  VERSION_ALERT,
);
login('a version in the list is taken', { client_tls_protocols: '!tlsv1.3' }, TLS12, /^in$/);
login(
  'a version between two that are in the list is refused',
  { client_tls_protocols: 'tlsv1.1,tlsv1.3' },
  TLS12,
  // The library of Debian 12 tries TLS 1.1 for it, and finds no cipher that it holds for safe.
  /^tlsv1 alert (protocol version|internal error)$/,
);
login(
  'a list of ciphers for TLS 1.2 leaves those of TLS 1.3 alone',
  { client_tls_ciphers: 'ECDHE-ECDSA-AES256-GCM-SHA384' },
  TLS13,
  /^in$/,
);
login(
  'a cipher that is not in the list is refused',
  { client_tls_ciphers: 'ECDHE-ECDSA-AES256-GCM-SHA384' },
  { ...TLS12, ciphers: 'ECDHE-ECDSA-AES128-GCM-SHA256' },
  NO_SHARED,
);
login(
  'a curve that is not the one set is refused',
  { client_tls_ecdhcurve: 'secp384r1' },
  { ...TLS13, ecdhCurve: 'X25519' },
  NO_SHARED,
);
login('the curve none means the usual ones', { client_tls_ecdhcurve: 'none' }, TLS12, /^in$/);
rule(
  'a suite of TLS 1.3 that is not in the list is refused',
  options('require', { client_tls13_ciphers: 'TLS_CHACHA20_POLY1305_SHA256' }),
  async (pooler) => {
    assert.match(await outcome(pooler, { ...TLS13, ciphers: 'TLS_AES_128_GCM_SHA256' }), NO_SHARED);
    assert.equal(await outcome(pooler, TLS13), 'in');
    assert.match(pooler.log(), /tls=TLSv1\.3\/TLS_CHACHA20_POLY1305_SHA256/);
  },
  { since: '1.25.0' },
);

rule(
  'a handshake that stalls ends with client_login_timeout',
  options('require', { client_login_timeout: 1 }),
  async (pooler) => {
    const raw = await connectRaw(pooler);
    assert.equal(await ask(raw, sslRequest()), 'S');
    assert.equal(await ask(raw, Buffer.from('1603010200', 'hex')), 'closed');
    await until('the log says why', () =>
      pooler.log().includes('closing because: client_login_timeout'),
    );
  },
  { differs: { because: 'PgBouncer sends a FATAL in clear text, which no TLS client can read' } },
);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
