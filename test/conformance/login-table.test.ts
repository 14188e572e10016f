/** Every way to find out who a client is, times every kind of stored secret, times every server, with TLS and without. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { giveToServer } from '../support/account.ts';
import { type Certs, makeCerts } from '../support/certs.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import type { Section } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import type { RuleCase, RuleOptions } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import { connectTls, type TlsOptions, tlsSettings } from '../support/tls-client.ts';
import { WireClient, WireError } from '../support/wire-client.ts';

/** Kinds of secrets in `auth_file`. */
const KINDS = ['plain', 'md5', 'scram', 'empty', 'unknown'] as const;
type Kind = (typeof KINDS)[number];

/** What the server wants of a pooler that logs in. */
const SERVERS = ['trust', 'password', 'md5', 'scram-sha-256'] as const;
type Server = (typeof SERVERS)[number];

const AUTH_TYPES = ['any', 'trust', 'plain', 'md5', 'scram-sha-256', 'cert'] as const;
type AuthType = (typeof AUTH_TYPES)[number];

/** How clients log in, and over what; the pooler's connections to the server are encrypted if theirs are. */
interface Column {
  readonly authType: AuthType;
  /** It is the method of an HBA line. */
  readonly isRule: boolean;
  readonly isEncrypted: boolean;
}

const IN = 'in';
const TRUST = 'FATAL 08P01: "trust" authentication failed';
const PASSWORD = 'FATAL 08P01: password authentication failed';
const SASL = 'FATAL 08P01: SASL authentication failed';
const CERTIFICATE = 'FATAL 08P01: certificate authentication failed';

/** What a client with the right password is asked (codes of the Authentication messages) and told. */
const AT_THE_POOLER: Readonly<Record<AuthType, Readonly<Record<Kind, readonly [string, string]>>>> =
  {
    any: {
      plain: ['', IN],
      md5: ['', IN],
      scram: ['', IN],
      empty: ['', IN],
      unknown: ['', IN],
    },
    trust: {
      plain: ['', IN],
      md5: ['', IN],
      scram: ['', IN],
      empty: ['', IN],
      unknown: ['', TRUST],
    },
    plain: {
      plain: ['3', IN],
      md5: ['3', IN],
      scram: ['3', IN],
      empty: ['3', PASSWORD],
      unknown: ['3', PASSWORD],
    },
    md5: {
      plain: ['5', IN],
      md5: ['5', IN],
      scram: ['10 11 12', IN],
      empty: ['5', PASSWORD],
      unknown: ['5', PASSWORD],
    },
    'scram-sha-256': {
      plain: ['10 11 12', IN],
      md5: ['10 11', SASL],
      scram: ['10 11 12', IN],
      empty: ['10 11', SASL],
      unknown: ['10 11', SASL],
    },
    cert: {
      plain: ['', IN],
      md5: ['', IN],
      scram: ['', IN],
      empty: ['', IN],
      unknown: ['', CERTIFICATE],
    },
  };

const WRONG_TYPE = 'FATAL 08P01: server login failed: wrong password type';
/** The server's own words. */
const REFUSED = 'FATAL 28P01: password authentication failed for user';
const NO_PASSWORD = 'FATAL 28P01: empty password returned by client';

/**
 * How the pooler fares at the server with what is stored. `scram` stands for a client that proved
 * its keys at the pooler, `scram alone` for one that did not.
 */
const AT_THE_SERVER: Readonly<
  Record<'plain' | 'md5' | 'scram' | 'scram alone' | 'empty', Readonly<Record<Server, string>>>
> = {
  plain: { trust: IN, password: IN, md5: IN, 'scram-sha-256': IN },
  md5: { trust: IN, password: REFUSED, md5: IN, 'scram-sha-256': WRONG_TYPE },
  scram: { trust: IN, password: REFUSED, md5: WRONG_TYPE, 'scram-sha-256': IN },
  'scram alone': {
    trust: IN,
    password: REFUSED,
    md5: WRONG_TYPE,
    'scram-sha-256': WRONG_TYPE,
  },
  empty: { trust: IN, password: NO_PASSWORD, md5: REFUSED, 'scram-sha-256': REFUSED },
};

/** Name of a role, which is its password too. */
const roleOf = (kind: Kind, server: Server): string => `${kind}_${server.replaceAll('-', '_')}`;
const ROLES = KINDS.flatMap((kind) => SERVERS.map((server) => ({ kind, server })));

let postgres: TestPostgres;
let certs: Certs;
/** Of HBA and ident files. */
let folder: string;
/** By role: what stands for it in `auth_file`. */
const stored: Record<string, string> = {};

before(async () => {
  certs = await makeCerts();
  folder = await makeFolder('login-table');
  await writeRules();
  const hba = ROLES.map(
    ({ kind, server }) => `host all ${roleOf(kind, server)} samehost ${server}`,
  );
  const files = { ssl_cert_file: certs.file('server.crt'), ssl_key_file: certs.file('server.key') };
  postgres = await startPostgres({ hba, settings: { ssl: 'on', ...files } });
  for (const { kind, server } of ROLES) {
    const role = roleOf(kind, server);
    await postgres.query(`CREATE ROLE ${role} LOGIN PASSWORD '${role}'`);
    const [row] = await postgres.query<{ secret: string }>(
      'SELECT rolpassword AS secret FROM pg_authid WHERE rolname = $1',
      [role],
    );
    if (kind === 'plain') stored[role] = role;
    if (kind === 'md5') stored[role] = md5Of(role);
    if (kind === 'scram') stored[role] = row!.secret;
    if (kind === 'empty') stored[role] = '';
    if (server !== 'md5') continue;
    // Asked for MD5, the server would want SCRAM of a role that has a SCRAM secret.
    await postgres.query(`ALTER ROLE ${role} PASSWORD '${md5Of(role)}'`);
  }
});

function md5Of(role: string): string {
  return `md5${createHash('md5').update(`${role}${role}`).digest('hex')}`;
}

/** What a login comes to: the codes asked, then `in` and who one is, or the error. */
async function login(
  address: { readonly port: number },
  tls: TlsOptions | null,
  user: string,
  password: string,
  database: string,
): Promise<{ readonly asked: string; readonly end: string }> {
  const client =
    tls === null ? await WireClient.connect(address) : (await connectTls(address, tls)).client;
  const asked: number[] = [];
  try {
    await client.login({ user, password, database, onAsked: (code) => asked.push(code) });
    const row = (await client.query('SELECT current_user')).find(({ type }) => type === 'D');
    await client.end();
    return { asked: codes(asked), end: `${IN} as ${row!.body.toString('utf8', 6)}` };
  } catch (error) {
    client.destroy();
    if (!(error instanceof WireError)) throw error;
    return { asked: codes(asked), end: error.message };
  }
}

/** AuthenticationOk is left out: a server is opened before it. */
function codes(asked: readonly number[]): string {
  return asked.filter((code) => code !== 0).join(' ');
}

/** An MD5 secret cannot serve SCRAM. */
const SHOWS_MD5 =
  'PgBouncer ends the exchange at its second message, which shows the kind of secret; it runs on here';

function casesOf({ authType, isEncrypted }: Column): RuleCase[] {
  return ROLES.flatMap(({ kind, server }): RuleCase[] => {
    const role = roleOf(kind, server);
    const [asked, verdict] = AT_THE_POOLER[authType][kind];
    const end = verdict === IN ? AT_THE_SERVER[heldSecret(authType, kind)][server] : verdict;
    const database = authType === 'any' ? `as_${role}` : 'app';
    const title = `${kind} secret, server asks for ${server}:`;
    const isDoomed = authType === 'scram-sha-256' && kind === 'md5';
    const expects = (password: string, isAsked: string, isTold: string): RuleCase => {
      const check =
        (codes: string): RuleCase['check'] =>
        async (pooler) => {
          const tls = isEncrypted ? tlsOf(authType, password === role) : null;
          const said = await login(pooler, tls, role, password, database);
          assert.equal(said.asked, codes);
          assert.equal(said.end.slice(0, isTold.length), isTold);
        };
      const proof = authType === 'cert' ? 'certificate' : 'password';
      const whose = password === role ? `who has the ${proof}` : `a wrong ${proof}`;
      return {
        name: `${title} ${isTold.startsWith(IN) ? 'lets in' : 'refuses'} ${whose}`,
        check: check(isAsked),
        // 1.18 gives the server's refusal an SQLSTATE of its own, and has no maps.
        ...(authType === 'cert' ? { since: '1.24' } : {}),
        ...(authType !== 'cert' && isTold.includes(' 28P01: ') ? { since: '1.19' } : {}),
        ...(isDoomed ? { differs: { because: SHOWS_MD5, check: check('10') } } : {}),
      };
    };
    const right = expects(role, asked, end === IN ? `${IN} as ${role}` : end);
    if (authType === 'cert' && kind !== 'unknown') {
      return [right, expects(`not ${role}`, '', CERTIFICATE)];
    }
    if (asked === '') return [right];
    const failure = asked.startsWith('10') ? SASL : PASSWORD;
    return [right, expects(`not ${role}`, asked.replace(/ 12$/, ''), failure)];
  });
}

/** What the pooler has for the server once the client is in. */
function heldSecret(authType: AuthType, kind: Kind): keyof typeof AT_THE_SERVER {
  const isScramExchange = authType === 'md5' || authType === 'scram-sha-256';
  if (kind === 'scram' && !isScramExchange) return 'scram alone';
  return kind === 'unknown' ? 'empty' : kind;
}

/** `auth_type = any` logs in as a forced user, whose password stands in the line. */
function forced(): Record<string, string> {
  const lines = ROLES.map(({ kind, server }) => {
    const role = roleOf(kind, server);
    const password = stored[role] ? ` password='${stored[role]}'` : '';
    return [`as_${role}`, `dbname=app user=${role}${password}`] as const;
  });
  return Object.fromEntries(lines);
}

/** `app.crt` speaks for all roles, by a map where it is a method of HBA; see `IDENT`. */
function tlsOf(authType: AuthType, isRight: boolean): TlsOptions {
  if (authType !== 'cert') return {};
  const name = isRight ? 'app' : 'mallory';
  const read = (kind: 'crt' | 'key'): Buffer => readFileSync(certs.file(`${name}.${kind}`));
  return { cert: read('crt'), key: read('key') };
}

const IDENT = 'm app all\n';
/** Methods of HBA that are not called as the `auth_type`. */
const METHODS: Partial<Record<AuthType, string>> = { plain: 'password', cert: 'cert map=m' };

function optionsOf({ authType, isRule, isEncrypted }: Column): RuleOptions {
  const tls: Section = isEncrypted
    ? {
        ...tlsSettings(certs, authType === 'cert' ? 'verify-full' : 'allow'),
        server_tls_sslmode: 'require',
      }
    : {};
  const login: Section = isRule
    ? {
        auth_type: 'hba',
        auth_hba_file: join(folder, `hba-${authType}`),
        ...(authType === 'cert' ? { auth_ident_file: join(folder, 'ident') } : {}),
      }
    : { auth_type: authType };
  return {
    postgres,
    databases: { app: '', ...(authType === 'any' ? forced() : {}) },
    authFile: { ...stored, postgres: 'postgres' },
    size: 2,
    settings: { ...tls, ...login, default_pool_size: 2 },
    logs: [/ERROR /, /FATAL /],
  };
}

/** Writes the files of `optionsOf`. */
async function writeRules(): Promise<void> {
  await write('ident', IDENT);
  for (const authType of AUTH_TYPES) {
    const method = METHODS[authType] ?? authType;
    // The tests' own console has no certificate.
    const console = 'host pgbouncer postgres 127.0.0.1/32 scram-sha-256';
    await write(`hba-${authType}`, `${console}\nhost all all 0.0.0.0/0 ${method}\n`);
  }
}

async function write(name: string, text: string): Promise<void> {
  const path = join(folder, name);
  await writeFile(path, text);
  await giveToServer(path);
}

for (const isEncrypted of [false, true]) {
  for (const isRule of [false, true]) {
    for (const authType of AUTH_TYPES) {
      // `any` is no method of HBA, and the name in one certificate can be mapped only there.
      if (authType === 'any' ? isRule : authType === 'cert' && !(isRule && isEncrypted)) continue;
      const column = { authType, isRule, isEncrypted };
      const title = `${isRule ? 'HBA method' : 'auth_type ='} ${authType}, ${isEncrypted ? 'over TLS' : 'in clear text'}`;
      rules(title, () => optionsOf(column), casesOf(column));
    }
  }
}

test('the server stops', async () => {
  await postgres.dispose();
  await removeFolder(folder);
});
