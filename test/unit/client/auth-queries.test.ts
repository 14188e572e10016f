import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { LearnedSecrets } from '../../../src/auth/learned-secrets.ts';
import { classifySecret, type StoredSecret } from '../../../src/auth/secret.ts';
import { AuthQueries, type RemoteQuestion } from '../../../src/client/auth-queries.ts';
import type { AuthQueryOutcome } from '../../../src/client/auth-query-client.ts';
import type { ClientSession } from '../../../src/client/client-session.ts';
import type { UserLookup } from '../../../src/client/context.ts';
import { inTurn } from '../../../src/net/turn.ts';
import { clock } from '../../../src/util/clock.ts';
import { int16, int32, message, typesOf } from '../../support/messages.ts';
import * as says from '../../support/server-messages.ts';
import { type Backend, FakeClient, type World, world } from '../pool/support.ts';

const SETTINGS = 'auth_type = scram-sha-256\nauth_user = asker\nauth_query = ASK';
const DATABASES = 'd = host=h auth_dbname=a\na = host=h\nplain = host=h';
const SELF = 0;

interface Scene {
  readonly given: World;
  readonly queries: AuthQueries;
  readonly learned: LearnedSecrets;
  /** What other workers were asked; the test answers. */
  readonly asked: {
    worker: number;
    question: RemoteQuestion;
    gone: AbortSignal;
    answer: (outcome: AuthQueryOutcome) => void;
    fail: () => void;
  }[];
  holders: readonly number[];
  /** A client that logs in as `user`. */
  login(user?: string, database?: string | null): { session: ClientSession; lookup: Lookup };
  /** The server that was opened last for the auth database. */
  backend(): Backend;
}

type Lookup = Promise<UserLookup | 'open'>;

function scene(t: TestContext, settings = SETTINGS, users = ''): Scene {
  const given = world(t, settings, DATABASES, users);
  const learned = new LearnedSecrets();
  const asked: Scene['asked'] = [];
  const filed = new Map<string, StoredSecret>([['filed', classifySecret('secret')]]);
  const queries = new AuthQueries({
    worker: SELF,
    index: () => given.index,
    pools: () => given.pools,
    secretOf: (user) => filed.get(user),
    learned,
    holders: () => self.holders,
    askWorker: (worker, question, gone) =>
      new Promise((resolve, reject) => {
        const fail = () => reject(new Error(`worker ${worker} does not run`));
        asked.push({ worker, question, gone, answer: resolve, fail });
      }),
  });
  const self: Scene = {
    given,
    queries,
    learned,
    asked,
    holders: [SELF],
    login: (user = 'u', database = 'd') => {
      const session = {
        ptr: '0x1',
        connectedAt: clock.now,
        databaseName: database ?? '',
        giveUpLookup: null,
        prefixed: (text: string) => `C-0x1: ${text}`,
        info: () => {},
      } as unknown as ClientSession;
      const entry = database === null ? null : given.index.database(database);
      let lookup: UserLookup | Promise<UserLookup> | null = null;
      inTurn(() => {
        lookup = queries.find(user, entry, session);
      });
      return { session, lookup: settled(lookup!) };
    },
    backend: () => given.opener('a').last,
  };
  return self;
}

/** What comes of a lookup; `open` as long as nothing does. */
async function settled(lookup: UserLookup | Promise<UserLookup>): Lookup {
  const open = new Promise<'open'>((resolve) => setTimeout(resolve, 20, 'open'));
  return Promise.race([lookup, open]);
}

const kindOf = async (lookup: Lookup): Promise<string> => {
  const found = await lookup;
  if (found === 'open') return found;
  if (found.kind === 'refused') return `${found.sqlstate} ${found.text}`;
  return found.secret === null ? 'unknown' : found.secret.kind;
};

/** Answers the query at hand with rows of a name and a secret. */
function answer(backend: Backend, ...rows: readonly (readonly [string, string | null])[]): void {
  const text = (value: string | null) =>
    value === null ? [int32(-1)] : [int32(Buffer.byteLength(value)), Buffer.from(value)];
  backend.say(
    message('1'),
    message('2'),
    says.textColumns('name', 'secret'),
    ...rows.map((row) => message('D', [int16(2), ...row.flatMap(text)])),
    says.commandComplete(`SELECT ${rows.length}`),
    message('3'),
    says.ready(),
  );
}

test('who stands in auth_file, or in a database that is not there, is not asked for', async (t) => {
  const { login, given } = scene(t);
  assert.equal(await kindOf(login('filed').lookup), 'plain');
  assert.equal(await kindOf(login('u', null).lookup), 'unknown');
  assert.equal(given.openers.size, 0);
});

test('nobody is asked for without an auth_user, or where another service knows', async (t) => {
  for (const settings of ['auth_type = md5', 'auth_type = any\nauth_user = asker']) {
    assert.equal(await kindOf(scene(t, settings).login().lookup), 'unknown');
    t.mock.restoreAll();
  }
});

test('a name is asked for in the pool of the auth database and auth_user, each time anew', async (t) => {
  const { login, backend, given, learned } = scene(t);
  const first = login();
  const pool = given.pool('a', 'asker');
  assert.equal(pool.waiting.size, 1);
  backend().logIn();
  assert.equal(pool.waiting.size, 0);
  assert.equal(pool.clients, 0);
  assert.equal(pool.linked.size, 1);
  assert.equal(typesOf(backend().heard()), 'P B D E C S');
  answer(backend(), ['u', 'one']);
  assert.equal(await kindOf(first.lookup), 'plain');
  assert.equal(pool.idle.size, 1);
  assert.equal(learned.find('d', 'u')?.kind, 'plain');
  const second = login();
  assert.equal(typesOf(backend().heard()), 'P B D E C S');
  answer(backend(), ['u', null]);
  assert.equal(await kindOf(second.lookup), 'empty');
});

test('without a row a name is unknown, but for one from before or from [users], which fits no password', async (t) => {
  const { login, backend, learned } = scene(t, SETTINGS, 'listed = pool_mode=session');
  const first = login('stranger');
  backend().logIn();
  answer(backend());
  assert.equal(await kindOf(first.lookup), 'unknown');
  const listed = login('listed');
  answer(backend());
  assert.equal(await kindOf(listed.lookup), 'empty');
  learned.learn('other', 'old', 'x');
  const old = login('old');
  answer(backend());
  assert.equal(await kindOf(old.lookup), 'empty');
});

test('an answer for another name is an error of the configuration', async (t) => {
  const { login, backend, learned } = scene(t);
  const { lookup } = login();
  backend().logIn();
  answer(backend(), ['postgres', 'x']);
  assert.equal(await kindOf(lookup), '08P01 bouncer config error');
  assert.equal(learned.size, 0);
});

test('a client that leaves gives its place up, and takes a server that is busy for it along', async (t) => {
  const { login, backend, given } = scene(t);
  const pool = given.pool('a', 'asker');
  const [first, second] = [login(), login()];
  inTurn(() => first.session.giveUpLookup!());
  assert.equal(pool.waiting.size, 1);
  assert.equal(pool.clients, 1);
  backend().logIn();
  assert.equal(pool.linked.size, 1);
  inTurn(() => second.session.giveUpLookup!());
  assert.equal(pool.linked.size, 0);
  assert.equal(pool.idle.size, 0);
  assert.equal(pool.clients, 0);
  assert.deepEqual(await Promise.all([first.lookup, second.lookup]), ['open', 'open']);
});

test('a connection that ends while the query runs is an error of the configuration', async (t) => {
  const { login, backend } = scene(t);
  const { lookup } = login();
  backend().logIn();
  backend().break();
  assert.equal(await kindOf(lookup), '08P01 bouncer config error');
});

test('what is read behind the answer goes to nobody, and the server with it', async (t) => {
  const { login, backend, given } = scene(t, `${SETTINGS}\ndefault_pool_size = 1`);
  const { lookup } = login();
  const next = new FakeClient(given.pool('a', 'asker'));
  backend().logIn();
  next.ask();
  backend().say(message('1'), message('2'), says.ready(), message('N', ['SNOTICE', 'Mbye', '']));
  assert.equal(await kindOf(lookup), 'unknown');
  assert.deepEqual(next.events, []);
  assert.equal(given.pool('a', 'asker').linked.size, 0);
});

test('the pool looks at query_wait_timeout, and the query itself may take client_login_timeout', async (t) => {
  const timeouts = 'query_wait_timeout = 5\nclient_login_timeout = 3\ndefault_pool_size = 1';
  const { login, backend, given, queries } = scene(t, `${SETTINGS}\n${timeouts}`);
  const [first, second] = [login(), login()];
  backend().logIn();
  const pass = (ms: number) => {
    given.time.pass(ms);
    inTurn(() => {
      given.pools.tick(given.time.now);
      queries.tick(given.time.now);
    });
  };
  pass(2000);
  assert.equal(given.pool('a', 'asker').linked.size, 1);
  pass(1001);
  assert.equal(await kindOf(first.lookup), '08P01 client_login_timeout');
  assert.equal(given.pool('a', 'asker').waiting.size, 1);
  pass(2000);
  assert.equal(await kindOf(second.lookup), '08P01 query_wait_timeout');
});

test('a worker without a slot has the best of the others ask, and the next when it is gone', async (t) => {
  const told = scene(t);
  told.holders = [2, 1];
  const { session, lookup } = told.login();
  assert.equal(told.asked[0]!.worker, 2);
  const { database, user, ptr } = told.asked[0]!.question;
  assert.deepEqual([database, user, ptr], ['d', 'u', '0x1']);
  told.asked[0]!.fail();
  await new Promise(setImmediate);
  assert.equal(told.asked[1]!.worker, 1);
  told.asked[1]!.answer({ kind: 'row', row: { name: 'u', secret: 'x' } });
  assert.equal(await kindOf(lookup), 'plain');
  assert.equal(told.learned.find('d', 'u')?.kind, 'plain');
  assert.notEqual(session.giveUpLookup, null);
  assert.equal(told.given.openers.size, 0);
});

test('when no worker with a slot can be reached the client is told', async (t) => {
  const told = scene(t);
  told.holders = [2];
  const { lookup } = told.login();
  told.asked[0]!.fail();
  const text = '08P01 the worker that has a slot for this pool cannot be reached';
  assert.equal(await kindOf(lookup), text);
});

test('a worker that asks for another stops when nobody waits any more', async (t) => {
  const told = scene(t);
  told.holders = [2];
  const here = told.login();
  inTurn(() => here.session.giveUpLookup!());
  assert.equal(told.asked[0]!.gone.aborted, true);

  const gone = new AbortController();
  const question = { database: 'd', user: 'u', ptr: '0x9', ageMs: 0 };
  void told.queries.answer(question, gone.signal);
  const pool = told.given.pool('a', 'asker');
  assert.equal(pool.waiting.size, 1);
  gone.abort();
  assert.equal(pool.waiting.size, 0);
});

test('for another worker it is asked here whoever has the slots, and never passed on again', async (t) => {
  const told = scene(t);
  told.holders = [2];
  const { signal } = new AbortController();
  const outcome = told.queries.answer({ database: 'd', user: 'u', ptr: '0x9', ageMs: 0 }, signal);
  told.backend().logIn();
  answer(told.backend(), ['u', 'x']);
  assert.deepEqual(await outcome, { kind: 'row', row: { name: 'u', secret: 'x' } });
  assert.equal(told.asked.length, 0);
  // That is for the worker to keep which the client has come to.
  assert.equal(told.learned.size, 0);
});

test('a pool that is retired moves those who wait to one of the same user, never of the forced one', async (t) => {
  const { login, given, backend } = scene(t);
  const { lookup } = login();
  const databases = 'd = host=h auth_dbname=a\na = host=h user=forced\nplain = host=h';
  given.reconfigure(SETTINGS, databases);
  given.pools.release();
  assert.equal(given.pool('a', 'forced').waiting.size, 0);
  assert.equal(given.pool('a', 'asker').waiting.size, 1);
  inTurn(() => given.pools.tick(given.time.now));
  backend().end();
  given.time.pass(20_000);
  inTurn(() => given.pools.tick(given.time.now));
  assert.equal(backend().credentials.user, 'asker');
  assert.equal(await kindOf(lookup), 'open');
});

test('a database that is removed refuses those who wait in it', async (t) => {
  const { login, given } = scene(t);
  const { lookup } = login();
  given.reconfigure(SETTINGS, 'd = host=h\nplain = host=h');
  assert.equal(await kindOf(lookup), '08P01 database removed');
});
