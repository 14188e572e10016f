/**
 * LDAP servers that fall silent, break off or say what no server says: nobody gets in for it, the
 * next server is asked, and no connection is left open.
 */
import assert from 'node:assert/strict';
import { randomInt } from 'node:crypto';
import { lookup } from 'node:dns';
import { beforeEach, mock, test } from 'node:test';
import { LdapLogin } from '../../src/ldap/ldap-login.ts';
import { log } from '../../src/log/logger.ts';
import { Secret } from '../../src/util/secret.ts';
import {
  type Answer,
  entry,
  type FakeLdap,
  message,
  OP,
  result,
  startFakeLdap,
} from '../support/fake-ldap.ts';
import { message as clientMessage, startup } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { Random } from '../support/random.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';
import { fatal, linesUntilClose } from './support.ts';

const NEVER = new AbortController().signal;
const PASSWORD = 'the-secret-password';
const TIMEOUT_MS = 1000;

/** What the log was told since the test began. */
let warnings: string[] = [];

mock.method(log, 'warning', (text: string) => void warnings.push(text));
beforeEach(() => {
  warnings = [];
});

function login(timeoutMs = TIMEOUT_MS): LdapLogin {
  return new LdapLogin({
    hosts: { lookup, refused: () => false },
    services: async () => [],
    env: {},
    timeoutMs,
  });
}

const BIND = 'ldapprefix=uid= ldapsuffix=",dc=x"';
const SEARCH = 'ldapbasedn="dc=x"';

/** Whether the servers, asked in order, let somebody in. */
async function letsIn(options: string, ...servers: readonly FakeLdap[]): Promise<boolean> {
  const hosts = servers.map(({ port }) => `127.0.0.1:${port}`).join(' ');
  const claim = { user: 'u', password: new Secret(PASSWORD) };
  return login().check(`ldapserver="${hosts}" ${options}`, claim, NEVER);
}

/** Lets everybody in. */
const good: Answer = ({ id, op }) => {
  if (op === OP.bind) return result(id, OP.bindResponse, 0);
  if (op === OP.search)
    return Buffer.concat([entry(id, 'uid=u,dc=x'), result(id, OP.searchDone, 0)]);
  return null;
};

interface Fault {
  readonly name: string;
  readonly answer: Answer;
  readonly warning: RegExp;
  readonly options?: string;
  /** It is an answer, and settles the matter. */
  readonly settles?: true;
}

/** Answers the search only; the binds are right. */
const searching =
  (found: (id: number) => Buffer): Answer =>
  (asked, socket) =>
    asked.op === OP.search ? found(asked.id) : good(asked, socket);

function repeated(bytes: Buffer, times: number): Buffer {
  return Buffer.alloc(bytes.length * times, bytes);
}

const faults: readonly Fault[] = [
  { name: 'says nothing', answer: () => null, warning: /: timeout$/ },
  {
    name: 'closes the connection',
    answer: (_, socket) => {
      socket.end();
      return null;
    },
    warning: /: the server closed the connection$/,
  },
  {
    name: 'closes the connection behind half an answer',
    answer: ({ id }, socket) => {
      socket.end(result(id, OP.bindResponse, 0).subarray(0, -1));
      return null;
    },
    warning: /: the server closed the connection$/,
  },
  {
    name: 'resets the connection',
    answer: (_, socket) => {
      socket.resetAndDestroy();
      return null;
    },
    warning: /: (read ECONNRESET|the server closed the connection)$/,
  },
  {
    name: 'speaks another protocol',
    answer: () => Buffer.from('HTTP/1.1 400 Bad Request\r\n\r\n'),
    warning: /: a message begins with the wrong byte$/,
  },
  {
    name: 'answers another request',
    answer: ({ id }) => result(id + 1, OP.bindResponse, 0),
    warning: /: the server answers what was not asked$/,
  },
  {
    name: 'answers by the end of another operation',
    answer: ({ id }) => result(id, OP.extendedResponse, 0),
    warning: /: the server answers with operation 120$/,
  },
  {
    name: 'finds entries at a bind',
    answer: ({ id }) => entry(id, 'x'),
    warning: /: the server answers with operation 100$/,
  },
  {
    name: 'says that it is closing',
    answer: () => result(0, OP.extendedResponse, 52),
    warning: /: the server is closing the connection$/,
  },
  {
    name: 'gives no result code',
    answer: ({ id }) => message(id, OP.bindResponse, () => undefined),
    warning: /: a message is too short$/,
  },
  {
    name: 'gives a result code of another type',
    answer: ({ id }) => message(id, OP.bindResponse, (writer) => writer.writeString('')),
    warning: /: a message cannot be read$/,
  },
  {
    name: 'announces 4 GB',
    answer: () => Buffer.of(0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 0x02),
    warning: /: timeout$/,
  },
  {
    name: 'announces no length',
    answer: () => Buffer.of(0x30, 0x80, 0x02, 0x01, 0x01),
    warning: /: a message has no length$/,
  },
  {
    name: 'is busy',
    answer: ({ id }) => result(id, OP.bindResponse, 51),
    warning: /: Server is busy$/,
  },
  {
    name: 'is unavailable',
    answer: ({ id }) => result(id, OP.bindResponse, 52, 'try later'),
    warning: /: Server is unavailable \(try later\)$/,
  },
  {
    name: 'finds entries without end',
    answer: searching((id) => repeated(entry(id, 'uid=somebody,dc=x'), 40_000)),
    options: SEARCH,
    warning: /: the server says too much$/,
  },
  {
    name: 'finds one entry and breaks off',
    answer: searching((id) =>
      Buffer.concat([entry(id, 'uid=u,dc=x'), result(id, OP.searchDone, 4)]),
    ),
    options: SEARCH,
    warning: /: Size limit exceeded$/,
    settles: true,
  },
  {
    name: 'finds one entry after the end of the search',
    answer: searching((id) =>
      Buffer.concat([result(id, OP.searchDone, 0), entry(id, 'uid=u,dc=x')]),
    ),
    options: SEARCH,
    warning: /answers what was not asked$|does not exist/,
    settles: true,
  },
  {
    name: 'refers to another server at a bind',
    answer: ({ id }) => result(id, OP.bindResponse, 10, 'ldap://elsewhere/'),
    warning: /: Referral \(ldap:\/\/elsewhere\/\)$/,
    settles: true,
  },
  {
    name: 'has no StartTLS',
    answer: ({ id }) => result(id, OP.extendedResponse, 2, 'unsupported'),
    options: `ldaptls=1 ${BIND}`,
    warning: /^could not start LDAP TLS session: Protocol error \(unsupported\), server: /,
  },
  {
    name: 'answers StartTLS by a bind',
    answer: ({ id }) => result(id, OP.bindResponse, 0),
    options: `ldaptls=1 ${BIND}`,
    warning: /^could not start LDAP TLS session: the server answers with operation 97/,
  },
  {
    name: 'goes on in clear text after StartTLS',
    // The beginning of an answer whose rest the encrypted answer to the bind would be.
    answer: ({ id, op }) =>
      op === OP.extended
        ? Buffer.concat([
            result(id, OP.extendedResponse, 0),
            Buffer.from('300c02010261070a010004000405', 'hex').subarray(0, 13),
          ])
        : null,
    options: `ldaptls=1 ${BIND}`,
    warning: /^could not start LDAP TLS session: unencrypted data after StartTLS/,
  },
  {
    name: 'has no TLS after StartTLS',
    answer: ({ id, op }, socket) => {
      if (op !== OP.extended) return null;
      socket.once('data', () => socket.write('no TLS at all'));
      return result(id, OP.extendedResponse, 0);
    },
    options: `ldaptls=1 ${BIND}`,
    warning: /^could not start LDAP TLS session: /,
  },
];

for (const { name, answer, warning, options = BIND, settles } of faults) {
  test(`nobody gets in by a server that ${name}`, async () => {
    const bad = await startFakeLdap(answer);
    assert.equal(await letsIn(options, bad), false);
    assert.match(warnings.join('\n'), warning);
    assert.doesNotMatch(warnings.join('\n'), new RegExp(PASSWORD));
    if (options.includes('ldaptls')) {
      assert.ok(!bad.received.includes(PASSWORD), 'the password went out in clear text');
    } else {
      const next = await startFakeLdap(good);
      assert.equal(await letsIn(options, bad, next), settles !== true, 'with a good one behind it');
      assert.equal(next.connections, settles === true ? 0 : 1);
      await next.stop();
    }
    await bad.stop();
  });
}

test('references to other servers in a search are not followed', async () => {
  const reference = (id: number) =>
    message(id, OP.searchReference, (writer) => writer.writeString('ldap://127.0.0.1:1/'));
  const server = await startFakeLdap(
    searching((id) =>
      Buffer.concat([reference(id), entry(id, 'uid=u,dc=x'), result(id, OP.searchDone, 0)]),
    ),
  );
  assert.equal(await letsIn(SEARCH, server), true);
  assert.deepEqual(warnings, []);
  assert.equal(server.connections, 1);
  await server.stop();
});

test('an entry whose list of attributes has a wrong length is an entry', async () => {
  const broken = (id: number) =>
    message(id, OP.searchEntry, (writer) => {
      writer.writeString('uid=u,dc=x');
      writer.startSequence();
      writer.endSequence();
    });
  const server = await startFakeLdap(
    searching((id) => {
      const bytes = broken(id);
      bytes[bytes.length - 1] = 0x7f;
      return Buffer.concat([bytes, result(id, OP.searchDone, 0)]);
    }),
  );
  assert.equal(await letsIn(SEARCH, server), true);
  await server.stop();
});

test('answers may come in pieces, wherever they are cut', async () => {
  const whole = Buffer.concat([entry(2, 'uid=u,dc=x'), result(2, OP.searchDone, 0)]);
  for (let cut = 1; cut < whole.length; cut++) {
    const server = await startFakeLdap((asked, socket) => {
      if (asked.op !== OP.search) return good(asked, socket);
      socket.setNoDelay(true);
      socket.write(whole.subarray(0, cut), () =>
        setImmediate(() => socket.write(whole.subarray(cut))),
      );
      return null;
    });
    assert.equal(await letsIn(SEARCH, server), true, `cut at ${cut}: ${warnings.join('; ')}`);
    await server.stop();
  }
});

test('random answers let nobody in and break nothing', async (t) => {
  const seed = randomInt(2 ** 31);
  t.diagnostic(`seed ${seed}`);
  const random = new Random(seed);
  const server = await startFakeLdap(({ id, op }, socket) => {
    const right = op === OP.search ? result(id, OP.searchDone, 0) : result(id, OP.bindResponse, 49);
    const bytes = Buffer.from(right);
    const changes = 1 + random.below(3);
    // Not the result code itself: a server that says 0 has let the client in.
    for (let n = 0; n < changes; n++) {
      const at = random.below(bytes.length);
      if (op === OP.search || at < 7 || at > 9) bytes[at] = random.below(256);
    }
    socket.end(bytes.subarray(0, 1 + random.below(bytes.length)));
    return null;
  });
  for (let n = 0; n < 500; n++) {
    assert.equal(await letsIn(n % 2 === 0 ? BIND : SEARCH, server), false, warnings.at(-1));
  }
  await server.stop();
});

test('a client that leaves closes its connection and gives its place to the next in the queue', async () => {
  const server = await startFakeLdap(() => null);
  const asked = login(60_000);
  const options = `ldapserver=127.0.0.1:${server.port} ${BIND}`;
  const claim = { user: 'u', password: new Secret(PASSWORD) };
  const clients = Array.from({ length: 12 }, () => {
    const aborter = new AbortController();
    return { aborter, answer: asked.check(options, claim, aborter.signal) };
  });
  await until('eight are asked for', () => server.open === 8);
  assert.equal(server.connections, 8);
  clients[10]!.aborter.abort();
  clients[0]!.aborter.abort();
  assert.equal(await clients[0]!.answer, false);
  assert.equal(await clients[10]!.answer, false);
  await until('the ninth is asked for', () => server.connections === 9 && server.open === 8);
  for (const { aborter } of clients) aborter.abort();
  assert.deepEqual(
    await Promise.all(clients.map(({ answer }) => answer)),
    clients.map(() => false),
  );
  assert.deepEqual(warnings, []);
  assert.equal(server.connections, 9);
  await server.stop();
});

test('an address of a name that refuses is passed over', async () => {
  const server = await startFakeLdap(good);
  const refused: string[] = [];
  const addresses = ['127.0.0.9', '127.0.0.1'];
  const asked = new LdapLogin({
    hosts: {
      lookup: (_name, _options, callback) => {
        process.nextTick(() => callback(null, addresses[refused.length]!, 4));
      },
      refused: (name, address) => refused.push(`${name} ${address}`) < addresses.length,
    },
    services: async () => [],
    env: {},
  });
  const claim = { user: 'u', password: new Secret(PASSWORD) };
  const options = `ldapserver=ldap.test ldapport=${server.port} ${BIND}`;
  assert.equal(await asked.check(options, claim, NEVER), true);
  assert.deepEqual(refused, ['ldap.test 127.0.0.9']);
  await server.stop();
});

test('while LDAP is silent, clients are served, those who leave are forgotten, and those who wait time out', async (t) => {
  let isSilent = false;
  const server = await startFakeLdap((asked, socket) => (isSilent ? null : good(asked, socket)));
  t.after(() => server.stop());
  const fleet = await startPgfleet({
    authFile: {},
    settings: {
      auth_type: 'ldap',
      auth_ldap_options: `ldapserver=127.0.0.1:${server.port} ${BIND}`,
      client_login_timeout: 1,
    },
  });
  t.after(() => fleet.stop());
  const console = await WireClient.login(fleet, {
    user: 'postgres',
    password: 'x',
    database: 'pgbouncer',
  });
  isSilent = true;
  const leaver = await WireClient.connect(fleet);
  const waiter = await WireClient.connect(fleet);
  for (const client of [leaver, waiter]) {
    client.send(startup({ user: 'u', database: 'd' }));
    await client.next();
    client.send(clientMessage('p', [Buffer.from(`${PASSWORD}\0`)]));
  }
  await until('LDAP is asked for both', () => server.open === 2);
  leaver.destroy();
  await until('one has been forgotten', () => server.open === 1);
  assert.ok((await console.query('SHOW VERSION')).length > 0);
  assert.deepEqual(await linesUntilClose(waiter), fatal('client_login_timeout'));
  await until('the other has been forgotten too', () => server.open === 0);
  assert.doesNotMatch(fleet.log(), new RegExp(PASSWORD));
  await console.end();
});
