/** Logins to a fleet: whatever worker a client comes to, it is answered as by one pooler. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { message, startup } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import type { PoolerOptions } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { ScramClient } from '../support/scram.ts';
import { until } from '../support/until.ts';
import { type LoginOptions, WireClient } from '../support/wire-client.ts';

const SIZE = 2;
const ASK = 'SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1';

async function server(t: TestContext): Promise<TestPostgres> {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  return postgres;
}

async function fleetOf(
  t: TestContext,
  postgres: TestPostgres,
  options: PoolerOptions,
): Promise<TestPgfleet> {
  const fleet = await startPgfleet({ postgres, size: SIZE, ...options });
  t.after(() => fleet.stop());
  return fleet;
}

/** Logs in until every worker has served a client, and at least so often; throws a refusal. */
async function everywhere(
  fleet: TestPgfleet,
  login: LoginOptions,
  least = 8,
): Promise<ReadonlySet<number>> {
  const workers = new Set<number>();
  for (let i = 0; i < least || (workers.size < SIZE && i < 200); i++) {
    const client = await WireClient.login(fleet, login);
    await client.query('SELECT 1');
    workers.add(client.key[3]!);
    await client.end();
  }
  assert.equal(workers.size, SIZE, 'a worker has never had a client');
  return workers;
}

/** Pids of the workers that have written such a line. */
function writersOf(fleet: TestPgfleet, line: RegExp): Set<string> {
  const found = new Set<string>();
  for (const text of fleet.log().split('\n')) {
    if (line.test(text)) found.add(/\[(\d+)\]/.exec(text)?.[1] ?? '');
  }
  return found;
}

test('a worker without a slot of the auth pool has another one ask', async (t) => {
  const postgres = await server(t);
  const fleet = await fleetOf(t, postgres, {
    databases: { lookup: 'dbname=postgres pool_size=1', app: '' },
    authFile: { postgres: 'postgres' },
    settings: {
      auth_type: 'scram-sha-256',
      auth_user: 'postgres',
      auth_dbname: 'lookup',
      auth_query: ASK,
      query_wait_timeout: 20,
    },
  });
  fleet.allowLog(/./);

  await t.test('every worker lets in whoever the query knows', async () => {
    await everywhere(fleet, { user: 'app' });
  });

  await t.test('and no other, as if the password were wrong', async () => {
    for (let i = 0; i < 12; i++) {
      const refusal = WireClient.login(fleet, { user: 'nobody' });
      await assert.rejects(refusal, { message: 'FATAL 08P01: SASL authentication failed' });
    }
    await until('both have', () => writersOf(fleet, /no such user: nobody/).size === SIZE);
  });

  await t.test('the pool has never had more connections than its size', async () => {
    const asking = await postgres.backends({ database: 'postgres', user: 'postgres' });
    assert.ok(asking.length <= 1, `${asking.length} connections`);
  });

  const waiting = async (): Promise<number> => {
    const pools = await fleet.console('SHOW POOLS');
    return pools
      .filter((pool) => pool['database'] === 'lookup')
      .reduce((sum, pool) => sum + Number(pool['cl_waiting']), 0);
  };

  await t.test(
    'clients of all workers wait for it, and give their places up when they leave',
    async (t) => {
      const holder = await WireClient.login(fleet, { user: 'postgres', database: 'lookup' });
      t.after(() => holder.destroy());
      await holder.query('BEGIN');
      const clients = [];
      for (let i = 0; i < 12; i++) {
        const client = await WireClient.connect(fleet);
        t.after(() => client.destroy());
        client.send(startup({ user: 'app', database: 'app' }));
        clients.push(client);
      }
      await until('all wait', async () => (await waiting()) === clients.length);
      for (const client of clients.splice(0, 6)) client.destroy();
      await until('half of them have left', async () => (await waiting()) === clients.length);
      await holder.query('COMMIT');
      for (const client of clients) assert.equal((await client.next()).type, 'R');
      await until('nobody waits', async () => (await waiting()) === 0);
    },
  );

  await t.test('a worker that is killed takes nobody with it who comes later', async () => {
    const before = fleet.workers();
    process.kill(before[0]!, 'SIGKILL');
    await fleet.workersAre(SIZE, [before[0]!], 20_000);
    await until(
      'logins succeed',
      async () => {
        try {
          await everywhere(fleet, { user: 'app' });
          return true;
        } catch {
          return false;
        }
      },
      { deadlineMs: 30_000 },
    );
  });
});

test('keys that a client has proved at one worker serve all, and one that starts later', async (t) => {
  const postgres = await server(t);
  const [row] = await postgres.query<{ secret: string }>(
    "SELECT rolpassword AS secret FROM pg_authid WHERE rolname = 'app'",
  );
  const fleet = await fleetOf(t, postgres, {
    databases: { app: '', forced: 'dbname=app user=app' },
    authFile: { app: row!.secret, other: 'other', postgres: 'postgres' },
    settings: { auth_type: 'scram-sha-256', server_login_retry: 0.1 },
  });
  fleet.allowLog(/./);
  const forced = { user: 'other', database: 'forced' };

  await assert.rejects(WireClient.login(fleet, forced), {
    message: 'FATAL 08P01: server login failed: wrong password type',
  });
  const client = await WireClient.login(fleet, { user: 'app' });
  await client.end();
  await t.test('every worker logs in with them', async () => {
    await until('they have been told', async () => {
      return everywhere(fleet, forced).then(
        () => true,
        () => false,
      );
    });
  });

  await t.test('so does one that has just started', async () => {
    const [killed] = fleet.workers();
    process.kill(killed!, 'SIGKILL');
    const pids = await fleet.workersAre(SIZE, [killed!], 20_000);
    // Nobody proves any keys now: the forced user's clients have a password of their own.
    await until(
      'the new one accepts',
      async () => {
        await WireClient.login(fleet, forced).then((client) => client.end());
        return pids.every((pid) =>
          writersOf(fleet, /forced\/other.* login attempt/).has(String(pid)),
        );
      },
      { deadlineMs: 30_000 },
    );
    await everywhere(fleet, forced);
  });

  await t.test('and none of it is ever written down', async () => {
    const keyOf = (part: number) => row!.secret.split(/[$:]/)[part]!;
    for (const part of [3, 4]) assert.equal(fleet.log().includes(keyOf(part)), false);
  });
});

/** Types and contents of what the pooler says to a login that fails, but for nonces and salts of MD5. */
async function failedLogin(
  fleet: TestPgfleet,
  user: string,
): Promise<{ readonly bytes: string; readonly salt: string }> {
  const client = await WireClient.connect(fleet);
  const said: string[] = [];
  const scram = new ScramClient('wrong');
  let salt = '';
  try {
    client.send(startup({ user, database: 'app' }));
    for (;;) {
      const next = await client.next();
      let shown = next.body;
      const code = next.type === 'R' ? next.body.readInt32BE(0) : -1;
      const text = next.body.toString('latin1', 4);
      if (code === 10) {
        const first = Buffer.from(scram.first());
        const size = Buffer.alloc(4);
        size.writeInt32BE(first.length);
        client.send(message('p', ['SCRAM-SHA-256', size, first]));
      } else if (code === 11) {
        salt = /s=([^,]*)/.exec(text)![1]!;
        client.send(message('p', [Buffer.from(scram.final(text))]));
        shown = Buffer.from(text.replace(/^r=[^,]*,s=[^,]*/, (nonce) => `${nonce.length}`));
      } else if (code === 3) {
        client.send(message('p', ['wrong']));
      } else if (code === 5) {
        client.send(message('p', [`md5${'0'.repeat(32)}`]));
        shown = next.body.subarray(0, 4);
      }
      said.push(next.type + shown.toString('hex'));
      if (next.type === 'E') break;
    }
    assert.deepEqual(await client.untilClose(), []);
    return { bytes: said.join(' '), salt };
  } finally {
    client.destroy();
  }
}

for (const auth_type of ['plain', 'md5', 'scram-sha-256']) {
  test(`auth_type = ${auth_type}: on no worker does a wrong password tell whether a name is known`, async (t) => {
    const postgres = await server(t);
    const stored = await postgres.query<{ role: string; secret: string }>(
      "SELECT rolname AS role, rolpassword AS secret FROM pg_authid WHERE rolname IN ('app', 'app_md5')",
    );
    const secrets = Object.fromEntries(stored.map(({ role, secret }) => [role, secret]));
    const files = [
      ['plain', { plain: 'plain' }],
      ['md5', { md5: secrets['app_md5']! }],
      ['scram', { scram: secrets['app']! }],
    ] as const;
    for (const [known, authFile] of files) {
      const fleet = await fleetOf(t, postgres, { authFile, settings: { auth_type } });
      fleet.allowLog(/ERROR|FATAL/);
      const heard = new Map<string, Set<string>>();
      const salts = new Map<string, Set<string>>();
      await until(
        'both workers have refused each name',
        async () => {
          for (const user of [known, 'nobody']) {
            const { bytes, salt } = await failedLogin(fleet, user);
            heard.set(user, (heard.get(user) ?? new Set()).add(bytes));
            salts.set(user, (salts.get(user) ?? new Set()).add(salt));
          }
          return [known, 'nobody'].every((user) => {
            return writersOf(fleet, new RegExp(`/${user}@.* closing because`)).size === SIZE;
          });
        },
        { everyMs: 1 },
      );
      assert.equal(heard.get(known)!.size, 1, `${known} is answered in several ways`);
      assert.deepEqual(heard.get('nobody'), heard.get(known), `nobody is not like ${known}`);
      for (const user of [known, 'nobody']) {
        assert.equal(salts.get(user)!.size, 1, `several salts for ${user}`);
      }
    }
  });
}

test('scram_iterations is what clients of plain passwords are told', async (t) => {
  const postgres = await server(t);
  const fleet = await fleetOf(t, postgres, {
    settings: { auth_type: 'scram-sha-256', scram_iterations: 5000 },
  });
  fleet.allowLog(/ERROR/);
  for (const user of ['app', 'nobody']) {
    const { bytes } = await failedLogin(fleet, user);
    assert.ok(bytes.includes(Buffer.from('i=5000').toString('hex')), user);
  }
  await everywhere(fleet, { user: 'app' });
});
