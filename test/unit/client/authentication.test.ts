import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { HbaRules } from '../../../src/auth/hba.ts';
import { classifySecret } from '../../../src/auth/secret.ts';
import type { ClientContext, UserLookup } from '../../../src/client/context.ts';
import { readHbaFile } from '../../../src/config/hba-file.ts';
import { log } from '../../../src/log/logger.ts';
import { query, startup } from '../../support/messages.ts';
import { deferred } from '../net/support.ts';
import { type ClientWorld, clientWorld } from './support.ts';

const CONSOLE = { user: 'pgbouncer', database: 'pgbouncer' };
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Sessions whose context has been changed so; they come by the Unix socket. */
function worldWith(t: TestContext, changes: Partial<ClientContext>): ClientWorld {
  const world = clientWorld(t);
  Object.assign(world.context, changes);
  return world;
}

function hba(text: string): HbaRules {
  const files = { readFile: () => text, listFolder: () => [] };
  const { rules } = readHbaFile('hba', { file: 'ini', line: 1 }, new Set(), files);
  return new HbaRules({ rules, maps: [] });
}

function owner(name: Promise<string | null>): ClientContext['unixOwner'] {
  return { name: () => name, isKnown: async () => (await name) !== null };
}

test('a client without a rule is told so before anything is asked', (t) => {
  const world = worldWith(t, { hba: hba('local other all trust') });
  const client = world.connect();
  client.send(startup({ user: 'u', database: 'd' }));
  assert.equal(client.got(), 'FATAL 08P01 no authentication method is found');
});

test('what a client sends while its name is looked up, and then its account, waits for both', async (t) => {
  const name = deferred<string | null>();
  const lookup = deferred<UserLookup>();
  const world = worldWith(t, {
    hba: hba('local all all peer'),
    findUser: () => lookup.promise,
    unixOwner: owner(name.promise),
  });
  const client = world.connect();
  client.send(startup({ user: 'u', database: 'd' }), query('select 1'));
  lookup.resolve({ kind: 'found', secret: classifySecret('x') });
  await settled();
  client.send(query('select 2'));
  assert.equal(client.got(), '');
  assert.equal(client.isClosed, false);
  name.resolve('u');
  await settled();
  world.backend().logIn();
  assert.match(client.got(), /^R, (S, )+K, Z:I$/);
  assert.equal(client.isClosed, false);
});

test('peer refuses the name of another account', async (t) => {
  const world = worldWith(t, {
    hba: hba('local all all peer'),
    unixOwner: owner(Promise.resolve('v')),
  });
  const client = world.connect();
  client.send(startup({ user: 'u', database: 'd' }));
  await settled();
  assert.equal(client.got(), 'FATAL 08P01 unix socket login rejected');
});

test('the pooler’s own account enters the console as admin, whatever auth_type says', async (t) => {
  const lines: string[] = [];
  t.mock.method(log, 'info', (line: string) => void lines.push(line));
  const world = worldWith(t, { hba: hba(''), unixOwner: owner(Promise.resolve('postgres')) });
  const client = world.connect();
  client.send(startup(CONSOLE));
  await settled();
  assert.match(client.got(), /^R, (S, )+K, Z:I$/);
  assert.equal(world.console.rights, 'admin');
  assert.match(lines[0]!, /: \(nodb\)\/pgbouncer@\S+ pgbouncer access from unix socket$/);
  assert.match(lines[1]!, /: pgbouncer\/pgbouncer@\S+ login attempt: db=pgbouncer user=pgbouncer/);
});

test('on a socket that others may use everybody is asked', async (t) => {
  const none = worldWith(t, { hba: hba(''), unixOwner: owner(Promise.resolve(null)) });
  const client = none.connect();
  client.send(startup(CONSOLE));
  await settled();
  assert.equal(client.got(), 'FATAL 08P01 no authentication method is found');
});

test('another name or database is asked like everybody', async (t) => {
  const own = worldWith(t, { hba: hba(''), unixOwner: owner(Promise.resolve('postgres')) });
  for (const login of [
    { ...CONSOLE, user: 'admin' },
    { ...CONSOLE, database: 'd' },
  ]) {
    const other = own.connect();
    other.send(startup(login));
    await settled();
    assert.equal(other.got(), 'FATAL 08P01 no authentication method is found');
  }
});

test('a client that leaves while its account is looked up is forgotten', async (t) => {
  const name = deferred<string | null>();
  const world = worldWith(t, { unixOwner: owner(name.promise) });
  const client = world.connect();
  client.send(startup(CONSOLE));
  client.session.close('client unexpected eof');
  name.resolve('postgres');
  await settled();
  assert.equal(client.got(), '');
  assert.equal(world.console.rights, '');
});
