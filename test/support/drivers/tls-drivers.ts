/** psql and the npm packages `pg` and `postgres` as clients of a pooler with TLS at `localhost`. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import pg from 'pg';
import postgresJs from 'postgres';
import type { CertFile, Certs } from '../certs.ts';
import { clientProgram } from '../postgres-files.ts';
import { type Ended, type ProgramOptions, runProgram } from '../programs.ts';

/** One connection: where to, who comes with what, and what it wants of the pooler's certificate. */
export interface TlsLogin {
  readonly port: number;
  readonly certs: Certs;
  /** Default: `app`. */
  readonly user?: string;
  readonly database?: string;
  readonly password?: string;
  readonly certificate?: 'app' | 'mallory' | 'stranger';
  /** Default: `verify-full`. */
  readonly mode?: 'verify-ca';
  /** The authority that it trusts; default: `ca`. */
  readonly ca?: 'other-ca';
}

export interface TlsDriver {
  readonly name: string;
  readonly isThere: () => boolean;
  /** Asks `current_user` by plain queries and by a prepared statement. Rejects when it is refused. */
  readonly whoAmI: (login: TlsLogin) => Promise<string>;
  /**
   * Runs `sql`, cancels it when `runs` resolves, and gives the error; undefined: the driver has no
   * cancel requests.
   */
  readonly cancel?: (login: TlsLogin, sql: string, runs: Promise<unknown>) => Promise<string>;
  /** What it says of a certificate of an authority that it does not trust, or for another name. */
  readonly refusals: { readonly authority: RegExp; readonly name: RegExp };
}

export const TLS_DRIVERS: readonly TlsDriver[] = [
  {
    name: 'psql',
    isThere: () => clientProgram('psql') !== null,
    whoAmI: async (login) => {
      const { status, stdout, stderr } = await psql(login, {
        input: `SELECT current_user;
          PREPARE who AS SELECT current_user || $1::text;
          EXECUTE who('');
          DEALLOCATE who;
          \\conninfo`,
      });
      if (status !== 0) throw new Error(stderr);
      const [plain, prepared] = stdout.split('\n');
      assert.equal(prepared, plain);
      assert.match(stdout, /SSL connection \(protocol: TLSv1\.3, cipher: TLS_AES_256_GCM_SHA384/);
      return plain!;
    },
    cancel: async (login, sql, runs) => {
      const { stderr } = await psql(login, {
        input: `${sql};\n`,
        started: (child) => void runs.then(() => child.kill('SIGINT')),
      });
      return stderr;
    },
    refusals: {
      authority: /certificate verify failed/,
      name: /does not match host name "localhost"/,
    },
  },
  {
    name: 'the npm package pg',
    isThere: () => true,
    whoAmI: async (login) => {
      const client = new pg.Client({
        ...place(login),
        user: login.user ?? 'app',
        ssl: nodeTls(login),
        enableChannelBinding: true,
      });
      client.on('error', () => undefined);
      await client.connect();
      try {
        const [plain] = (await client.query('SELECT current_user AS me')).rows;
        const prepared = { name: 'who', text: 'SELECT current_user AS me, $1::int AS round' };
        for (const round of [1, 2, 3]) {
          const { rows } = await client.query({ ...prepared, values: [round] });
          assert.deepEqual(rows, [{ ...plain, round }]);
        }
        return plain.me;
      } finally {
        await client.end();
      }
    },
    refusals: nodeRefusals(),
  },
  {
    name: 'the npm package postgres',
    isThere: () => true,
    whoAmI: (login) =>
      withPostgresJs(login, async (sql) => {
        const [plain] = await sql.unsafe('SELECT current_user AS me');
        for (const round of [1, 2, 3]) {
          const rows = await sql`SELECT current_user AS me, ${round}::int AS round`;
          assert.deepEqual([...rows], [{ ...plain, round }]);
        }
        return plain!['me'];
      }),
    cancel: (login, text, runs) =>
      withPostgresJs(login, async (sql) => {
        const query = sql.unsafe(text);
        const ended = query.then(String, String);
        await runs;
        query.cancel();
        const error = await ended;
        assert.deepEqual([...(await sql`SELECT 1 AS one`)], [{ one: 1 }]);
        return error;
      }),
    refusals: nodeRefusals(),
  },
];

function psql(login: TlsLogin, options: ProgramOptions): Promise<Ended> {
  const { certs, certificate, mode, ca } = login;
  const own = (kind: 'crt' | 'key'): string =>
    certificate === undefined ? 'none' : certs.file(`${certificate}.${kind}`);
  const target = {
    host: 'localhost',
    port: login.port,
    user: login.user ?? 'app',
    dbname: login.database ?? 'app',
    ...(login.password === undefined ? {} : { password: login.password }),
    sslmode: mode ?? 'verify-full',
    sslrootcert: certs.file(`${ca ?? 'ca'}.crt`),
    sslcert: own('crt'),
    sslkey: own('key'),
    channel_binding: login.password === undefined ? 'prefer' : 'require',
  };
  const words = Object.entries(target).map(([key, value]) => `${key}=${value}`);
  return runProgram(clientProgram('psql')!, ['-XAtqw', words.join(' ')], {
    // A key is taken from its owner only.
    asServer: true,
    env: { PSQLRC: '/dev/null', LC_ALL: 'C.UTF-8' },
    ...options,
  });
}

async function withPostgresJs<T>(
  login: TlsLogin,
  use: (sql: postgresJs.Sql) => Promise<T>,
): Promise<T> {
  const sql = postgresJs({
    ...place(login),
    username: login.user ?? 'app',
    ssl: nodeTls(login),
    max: 1,
  });
  try {
    return await use(sql);
  } finally {
    // After an error of TLS its orderly end waits for the time that a login may take.
    await sql.end({ timeout: 1 });
  }
}

const place = ({ port, database = 'app', password }: TlsLogin) => ({
  host: 'localhost',
  port,
  database,
  ...(password === undefined ? {} : { password }),
});

/** A new object for each client: `pg` takes the key out of it. */
function nodeTls({ certs, certificate, mode, ca }: TlsLogin) {
  const pem = (name: CertFile): string => readFileSync(certs.file(name), 'utf8');
  return {
    ca: pem(`${ca ?? 'ca'}.crt`),
    ...(certificate === undefined
      ? {}
      : { cert: pem(`${certificate}.crt`), key: pem(`${certificate}.key`) }),
    ...(mode === undefined ? {} : { checkServerIdentity: () => undefined }),
  };
}

function nodeRefusals(): TlsDriver['refusals'] {
  return {
    authority: /self-signed certificate in certificate chain/,
    name: /Hostname\/IP does not match certificate's altnames: Host: localhost/,
  };
}
