/** What is secret is in no log line, no answer of the console, and no error. */
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { giveToServer } from '../support/account.ts';
import { type PgfleetOptions, startPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { runProgram } from '../support/programs.ts';
import { failedReload, reload } from '../support/reload.ts';
import { pgfleetFiles } from '../support/repository.ts';
import { WireClient } from '../support/wire-client.ts';

/** No two of them share a part, and none is a word. */
const SECRETS = {
  file: 'hiddenF1le',
  line: 'hiddenL1ne',
  wrong: 'hiddenWr0ng',
  asked: 'hiddenAsk3d',
  ldap: 'hiddenLd4p',
  broken: 'hiddenBr0ken',
};
const TOPICS = [
  ...['CLIENTS', 'CONFIG', 'DATABASES', 'FDS', 'LISTS', 'MEM', 'POOLS', 'SERVERS', 'SOCKETS'],
  ...['STATS', 'USERS', 'FLEET', 'SESSION_LEAKS', 'STALE_PLANS'],
];

/** Lines of `[databases]` and others that cannot be read, each with a secret in it. */
const BROKEN: readonly (readonly [string, string])[] = [
  ['databases', `app = host=h password=${SECRETS.broken} colour=red`],
  ['databases', `app = host=h password=${SECRETS.broken} pool_size=many`],
  ['databases', `app = host=h port=0x password='${SECRETS.broken}'`],
  ['databases', `app = host=h password='${SECRETS.broken}`],
  ['databases', `app host=h password=${SECRETS.broken}`],
  ['users', `app = password=${SECRETS.broken}`],
  ['peers', `1 = host=h password=${SECRETS.broken}`],
  ['pgbouncer', `auth_ldap_options = ldapserver=h ldapbindpasswd=${SECRETS.broken} ldapwhat=1`],
  ['pgbouncer', `password = ${SECRETS.broken}`],
];

/** Puts a line in the place of that of the same key. */
function broken(text: string, section: string, line: string): string {
  const header = `[${section}]\n`;
  const [key = ''] = line.split(' ');
  const rest = text.split('\n').filter((one) => !one.startsWith(`${key} = `));
  const kept = rest.join('\n');
  return kept.includes(header)
    ? kept.replace(header, `${header}${line}\n`)
    : `${kept}\n${header}${line}\n`;
}

test('no secret is told, whatever is asked, refused or broken', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  await postgres.query(`ALTER ROLE app_md5 PASSWORD '${SECRETS.asked}'`);
  const [row] = await postgres.query("SELECT rolpassword FROM pg_authid WHERE rolname = 'app'");
  const verifier = String(row!['rolpassword']);
  const options: PgfleetOptions = {
    postgres,
    size: 2,
    databases: {
      app: '',
      forced: `dbname=app user=app_plain password=${SECRETS.line}`,
      asking: 'dbname=app auth_user=postgres',
    },
    authFile: {
      app: verifier,
      app_plain: SECRETS.file,
      stranger: SECRETS.file,
      postgres: 'postgres',
    },
    settings: {
      auth_type: 'scram-sha-256',
      auth_dbname: 'app',
      auth_ldap_options: `ldapserver=h ldapbasedn=x ldapbinddn=y ldapbindpasswd=${SECRETS.ldap}`,
      verbose: 3,
      log_stats: 1,
      stats_period: 1,
      server_login_retry: 1,
    },
  };
  const fleet = await startPgfleet(options);
  t.after(() => fleet.stop());
  fleet.allowLog(/./);
  const heard: string[] = [];
  const login = async (user: string, password: string, database = 'app'): Promise<void> => {
    const client = await WireClient.connect(fleet);
    try {
      await client.login({ user, password, database });
      heard.push(JSON.stringify(await client.query('SELECT nothing')));
    } catch (error) {
      heard.push(String((error as Error).message));
    }
    client.destroy();
  };
  await login('app', 'app');
  await login('app', SECRETS.wrong);
  await login('nobody', SECRETS.wrong);
  // The server has another password for it, and refuses the pooler.
  await login('stranger', SECRETS.file);
  await login('app_plain', SECRETS.file);
  await login('app', 'app', 'forced');
  await login('app_md5', SECRETS.asked, 'asking');
  await login('app_md5', SECRETS.wrong, 'asking');
  for (const topic of TOPICS) heard.push(JSON.stringify(await fleet.console(`SHOW ${topic}`)));

  await reload(fleet, (text) => text);
  const original = await readFile(fleet.configFile, 'utf8');
  for (const [section, line] of BROKEN) {
    await failedReload(fleet, (text) => broken(text, section, line));
    await writeFile(fleet.configFile, original);
  }
  const userlist = join(fleet.folder, 'userlist.txt');
  const users = await readFile(userlist, 'utf8');
  await writeFile(userlist, `${users}"odd" ${SECRETS.broken}\nodd2 "${SECRETS.broken}\n`);
  await reload(fleet, (text) => text);
  await writeFile(userlist, users);

  // A start that is refused says why on standard error.
  const { node, program } = await pgfleetFiles();
  for (const [section, line] of BROKEN) {
    const file = join(fleet.folder, 'broken.ini');
    await writeFile(file, broken(original, section, line));
    await giveToServer(file);
    const ended = await runProgram(node, [program, 'check', file], { asServer: true });
    assert.notEqual(ended.status, 0, line);
    heard.push(ended.stdout, ended.stderr);
  }

  const told = [fleet.log(), ...heard].join('\n');
  assert.match(told, /password authentication failed/);
  const [, keys = ''] = /\$([^$]+:[^$]+)$/.exec(verifier) ?? [];
  const [storedKey = '', serverKey = ''] = keys.split(':');
  assert.equal(storedKey.length, 44);
  const found = [...Object.values(SECRETS), storedKey, serverKey].flatMap((secret) => {
    const encoded = Buffer.from(secret).toString('base64').replace(/=+$/, '');
    return [secret, encoded].filter((text) => told.includes(text));
  });
  const lines = told.split('\n').filter((line) => found.some((text) => line.includes(text)));
  assert.deepEqual(lines, []);
});
