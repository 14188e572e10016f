import assert from 'node:assert/strict';
import { int32, PROTOCOL_3_0, packet, sslRequest, startup } from '../../support/messages.ts';
import { WireClient, WireError } from '../../support/wire-client.ts';
import { fatal, linesUntilClose, login } from '../support.ts';
import { answerTo, type Provocations, passwordMessage, saying } from './provocations.ts';

const APP = { user: 'app', database: 'app' };
const words = (...numbers: readonly number[]): Buffer => Buffer.concat(numbers.map(int32));
const gssRequest = packet([int32(80_877_104)]);

/** The text with which a login is refused. */
async function refusal(login: Promise<WireClient>): Promise<string> {
  const error = await login.then(
    (client) => {
      client.destroy();
      return null;
    },
    (error: unknown) => error,
  );
  assert.ok(error instanceof WireError, String(error));
  return `${error.severity} ${error.sqlstate} ${error.text}`;
}

const FIRST_BYTES: Provocations = {
  title: 'in front of a login',
  options: ({ postgres }) => ({ postgres, databases: { app: '' } }),
  cases: [
    saying(
      "bad packet header: '%s'",
      words(7, PROTOCOL_3_0),
      "bad packet header: '0000000700030000'",
    ),
    saying('old V2 protocol not supported', words(8, 0x0002_0000)),
    saying(
      'received unencrypted data after SSL request',
      Buffer.concat([sslRequest(), startup(APP)]),
    ),
    saying(
      'received unencrypted data after GSSAPI encryption request',
      Buffer.concat([gssRequest, startup(APP)]),
    ),
    saying('client password pkt before startup packet', passwordMessage('app')),
    saying(
      'unsupported startup parameter: %s',
      startup({ ...APP, geqo: 'on' }),
      'unsupported startup parameter: geqo',
    ),
    saying(
      'unsupported startup parameter in options: %s',
      startup({ ...APP, options: '-c geqo=on' }),
      'unsupported startup parameter in options: geqo',
      { since: '1.20' },
    ),
    saying(
      "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed",
      startup({ ...APP, options: '-geqo' }),
      undefined,
      { since: '1.20' },
    ),
    saying(
      'invalid startup packet layout: expected terminator as last byte',
      packet([int32(PROTOCOL_3_0), 'user', 'app', Buffer.from([0, 1])]),
      undefined,
      { since: '1.20' },
    ),
    saying('no username supplied', startup({ database: 'app' })),
    saying('username too long', startup({ ...APP, user: 'u'.repeat(128) })),
    saying('"trust" authentication failed', startup({ ...APP, user: 'nobody' })),
    saying(
      'no such database: %s',
      startup({ ...APP, database: 'nowhere' }),
      'no such database: nowhere',
      // 1.18 says it before it has looked at the user.
      { since: '1.20' },
    ),
    saying('not allowed', startup({ ...APP, database: 'pgbouncer' }), undefined, {
      // 1.18: no such user.
      since: '1.20',
    }),
  ],
};

const SCRAM: Provocations = {
  title: 'during a login with SCRAM',
  options: ({ postgres }) => ({
    postgres,
    settings: { auth_type: 'scram-sha-256', client_login_timeout: 1 },
    logs: [/ERROR C-.* password authentication failed/],
  }),
  cases: [
    {
      text: 'client re-sent startup pkt',
      check: async (pooler) => {
        const client = await WireClient.connect(pooler);
        client.send(startup(APP));
        await client.until('R');
        client.send(startup(APP));
        assert.equal(await linesUntilClose(client), fatal('client re-sent startup pkt'));
        client.destroy();
      },
    },
    {
      text: 'SASL authentication failed',
      check: async (pooler) => {
        const said = await refusal(WireClient.login(pooler, { password: 'wrong' }));
        assert.equal(said, 'FATAL 08P01 SASL authentication failed');
      },
    },
    {
      text: 'client selected an invalid SASL authentication mechanism',
      check: async (pooler) => {
        const client = await WireClient.connect(pooler);
        client.send(startup(APP));
        await client.until('R');
        const first = Buffer.from('n,,n=,r=abc');
        client.send(passwordMessage('SCRAM-SHA-512', int32(first.length), first));
        const text = 'client selected an invalid SASL authentication mechanism';
        assert.equal(await linesUntilClose(client), fatal(text));
        client.destroy();
      },
    },
    {
      text: 'client_login_timeout',
      check: async (pooler) => {
        assert.equal(await answerTo(pooler), fatal('client_login_timeout'));
      },
    },
  ],
};

const PLAIN: Provocations = {
  title: 'during a login with a password',
  options: ({ postgres }) => ({ postgres, settings: { auth_type: 'plain' } }),
  cases: [
    {
      text: 'password authentication failed',
      check: async (pooler) => {
        const said = await refusal(WireClient.login(pooler, { password: 'wrong' }));
        assert.equal(said, 'FATAL 08P01 password authentication failed');
      },
    },
    {
      text: 'empty password returned by client',
      // 1.18: password authentication failed.
      since: '1.20',
      check: async (pooler) => {
        const client = await WireClient.connect(pooler);
        client.send(startup(APP));
        await client.until('R');
        client.send(passwordMessage(''));
        assert.equal(await linesUntilClose(client), fatal('empty password returned by client'));
        client.destroy();
      },
    },
  ],
};

const LIMITS: Provocations = {
  title: 'at the limits of clients',
  options: ({ postgres }) => ({
    postgres,
    databases: { app: 'max_db_client_connections=1', '*': '' },
    users: { app_trust: 'max_user_client_connections=1' },
    settings: { max_client_conn: 3 },
  }),
  cases: [
    {
      text: 'client connections exceeded (max_db_client_connections)',
      since: '1.24',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        const said = await refusal(WireClient.login(pooler));
        assert.equal(said, 'FATAL 08P01 client connections exceeded (max_db_client_connections)');
        await client.end();
      },
    },
    {
      text: 'client connections exceeded (max_user_client_connections)',
      since: '1.24',
      check: async (pooler, t) => {
        const about = { user: 'app_trust', database: 'postgres' };
        const client = await login(t, pooler, about);
        const said = await refusal(WireClient.login(pooler, about));
        assert.equal(said, 'FATAL 08P01 client connections exceeded (max_user_client_connections)');
        await client.end();
      },
    },
    {
      text: 'no more connections allowed (max_client_conn)',
      since: '1.24',
      check: async (pooler, t) => {
        const clients = await Promise.all(
          [0, 1, 2].map(() => login(t, pooler, { database: 'postgres' })),
        );
        assert.equal(
          await answerTo(pooler, startup(APP)),
          fatal('no more connections allowed (max_client_conn)'),
        );
        for (const client of clients) await client.end();
      },
    },
  ],
};

const ANYBODY: Provocations = {
  title: 'with auth_type any',
  options: ({ postgres }) => ({ postgres, settings: { auth_type: 'any' } }),
  cases: [saying('bouncer config error', startup(APP))],
};

const SERVER_DOWN: Provocations = {
  title: 'before a server that is down',
  options: ({ fakes }) => ({
    databases: { app: `host=127.0.0.1 port=${fakes['silent']!.port}` },
    settings: { client_login_timeout: 1, server_connect_timeout: 30 },
  }),
  cases: [
    {
      text: 'client_login_timeout (server down)',
      check: async (pooler) => {
        const said = await refusal(WireClient.login(pooler));
        assert.equal(said, 'FATAL 08P01 client_login_timeout (server down)');
      },
    },
  ],
};

const SERVER_REFUSES: Provocations = {
  title: 'before a server that cannot be logged in to',
  options: ({ postgres, fakes }) => {
    const at = (name: string): string => `host=127.0.0.1 port=${fakes[name]!.port}`;
    return {
      postgres,
      databases: {
        app: '',
        no_mechanism: at('no_mechanism'),
        false_signature: at('false_signature'),
        no_signature: at('no_signature'),
      },
      authFile: { app: 'app', postgres: `md5${'0'.repeat(32)}` },
    };
  },
  cases: [
    {
      text: 'server login failed: wrong password type',
      check: async (pooler) => {
        const said = await refusal(WireClient.login(pooler, { user: 'postgres' }));
        assert.equal(said, 'FATAL 08P01 server login failed: wrong password type');
      },
    },
    ...[
      {
        text: "server login failed: none of the server's SASL authentication mechanisms are supported",
        database: 'no_mechanism',
      },
      {
        text: 'server login failed: failed to verify server signature',
        database: 'no_signature',
        differs: { because: 'PgBouncer believes a server that leaves its proof out' },
      },
      { text: 'server login failed: invalid server signature', database: 'false_signature' },
    ].map(({ text, database, ...notes }) => ({
      text,
      ...notes,
      check: async (pooler: Parameters<typeof answerTo>[0]) => {
        assert.equal(await refusal(WireClient.login(pooler, { database })), `FATAL 08P01 ${text}`);
      },
    })),
  ],
};

export const AT_LOGIN: readonly Provocations[] = [
  FIRST_BYTES,
  SCRAM,
  PLAIN,
  LIMITS,
  ANYBODY,
  SERVER_DOWN,
  SERVER_REFUSES,
];
