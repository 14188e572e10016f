import { int32, message, packet, query } from '../../support/messages.ts';
import type { TestPooler } from '../../support/pooler.ts';
import { isStuck } from '../../support/tcp-rows.ts';
import { until } from '../../support/until.ts';
import { WireClient } from '../../support/wire-client.ts';
import { login } from '../support.ts';
import { logsClosing, type Provocation, type Provocations } from './provocations.ts';

/** What is done to a pooler so that its log tells of a closing. */
const closing = (
  side: 'C' | 'S',
  text: string,
  act: (pooler: TestPooler, login: () => Promise<WireClient>) => Promise<void>,
): Provocation => ({
  text,
  check: (pooler, t) => logsClosing(pooler, side, text, () => act(pooler, () => login(t, pooler))),
});

/** Bytes of a new connection, which is closed for them. */
const firstBytes = (text: string, bytes: Buffer): Provocation =>
  closing('C', text, async (pooler) => {
    const client = await WireClient.connect(pooler);
    client.send(bytes);
    await client.untilClose();
    client.destroy();
  });

const flood = query("SELECT repeat('x', 100000) FROM generate_series(1, 1000)");

const CLIENTS: Provocations = {
  title: 'of a client without a word to it',
  options: ({ postgres }) => ({ postgres, databases: { app: 'pool_size=1' } }),
  cases: [
    closing('C', 'client close request', async (_pooler, login) => (await login()).end()),
    closing('C', 'client unexpected eof', async (_pooler, login) => (await login()).destroy()),
    firstBytes('bad packet', message('X')),
    firstBytes('bad cancel request', packet([int32(80_877_102), Buffer.alloc(1)])),
    closing('C', 'unexpected eof', async (pooler, login) => {
      const client = await login();
      client.socket.pause();
      client.send(flood, query('x'.repeat(50_000_000)));
      // Nothing more is read from it, so that a write is first to find it gone.
      await isStuck({ local: pooler.port, remote: client.socket.localPort! });
      client.reset();
    }),
    closing('S', 'client disconnect while server was not ready', async (_pooler, login) => {
      const client = await login();
      await client.query('BEGIN');
      await client.end();
    }),
    {
      ...closing('S', 'client disconnected with query in progress', async (_pooler, login) => {
        const client = await login();
        client.send(query('SELECT 1'), query('SELECT pg_sleep(3)'));
        await client.untilReady();
        await client.end();
      }),
      // 1.18 counts no requests.
      since: '1.22',
    },
  ],
};

const AGES: Provocations = {
  title: 'of servers that are old',
  options: ({ postgres }) => ({
    postgres,
    databases: {
      app: '',
      brief: 'dbname=app',
    },
    settings: { server_idle_timeout: 1 },
  }),
  cases: [
    closing('S', 'server idle timeout', async (_pooler, login) => {
      await (await login()).query('SELECT 1');
    }),
  ],
};

const LIVES: Provocations = {
  title: 'of servers whose time is over',
  options: ({ postgres }) => ({ postgres, settings: { server_lifetime: 1 } }),
  cases: [
    closing('S', 'server lifetime over', async (_pooler, login) => {
      await (await login()).query('SELECT 1');
    }),
  ],
};

const LIMITS: Provocations = {
  title: 'of servers that make room',
  options: ({ postgres }) => ({
    postgres,
    databases: { app: 'max_db_connections=1' },
  }),
  cases: [
    {
      text: 'evicted for %s',
      // Older ones do not say for which limit.
      since: '1.26.1',
      check: (pooler, t) =>
        logsClosing(pooler, 'S', 'evicted for max_db_connections', async () => {
          await (await login(t, pooler)).query('SELECT 1');
          const other = await login(t, pooler, { user: 'app_trust' });
          await other.query('SELECT 1');
        }),
    },
  ],
};

const NOWHERE: Provocations = {
  title: 'of servers that are not there',
  options: () => ({ databases: { app: 'host=127.0.0.1 port=1' } }),
  cases: [
    {
      text: 'connect failed',
      check: (pooler) =>
        logsClosing(pooler, 'S', 'connect failed', async () => {
          const client = await WireClient.connect(pooler);
          client.socket.unref();
          void client.login().catch(() => undefined);
        }),
    },
  ],
};

const fakeServer = (settings: Readonly<Record<string, string | number>> = {}) => ({
  pool_mode: 'session',
  server_reset_query: '',
  ...settings,
});

const DIRTY: Provocations = {
  title: 'of servers that speak unasked',
  options: ({ fakes }) => ({
    databases: { app: `host=127.0.0.1 port=${fakes['saying']!.port}` },
    settings: fakeServer(),
  }),
  cases: [
    {
      text: 'client disconnect before everything was sent to the server',
      check: (pooler, t) =>
        logsClosing(
          pooler,
          'S',
          'client disconnect before everything was sent to the server',
          async () => {
            const client = await login(t, pooler);
            const half = message('A', [int32(4), 'channel', 'payload']).subarray(0, 12);
            const ready = message('Z', [Buffer.from('I')]);
            client.send(query(`say ${Buffer.concat([ready, half]).toString('hex')}`));
            await client.untilReady();
            await client.end();
          },
        ),
    },
  ],
};

/** What a server says that no client has. */
const NOTICE = message('N', ['SNOTICE', 'C00000', 'Mbye', Buffer.of(0)]);

const IDLE_DIRTY: Provocations = {
  title: 'of idle servers that speak unasked',
  options: ({ fakes }) => ({
    databases: { app: `host=127.0.0.1 port=${fakes['saying']!.port}` },
  }),
  cases: [
    {
      text: 'SV_IDLE server got dirty',
      check: (pooler, t, { fakes }) =>
        logsClosing(pooler, 'S', 'SV_IDLE server got dirty', async () => {
          const client = await login(t, pooler);
          await client.query('one');
          fakes['saying']!.connections.at(-1)!.send(NOTICE);
        }),
    },
    {
      text: 'idle server got dirty',
      check: async (pooler, t, { fakes }) => {
        const client = await login(t, pooler);
        // The regular look at all servers may find it before the next client does.
        await until('a client finds it', async () => {
          await client.query('one');
          const from = pooler.log().length;
          fakes['saying']!.connections.at(-1)!.send(NOTICE);
          await until('it has come', () => pooler.log().includes('when not linked', from));
          await client.query('two');
          return pooler.log().includes('because: idle server got dirty', from);
        });
      },
    },
  ],
};

const USED_DIRTY: Provocations = {
  title: 'of servers to be checked that speak unasked',
  options: ({ fakes }) => ({
    databases: { app: `host=127.0.0.1 port=${fakes['saying']!.port}` },
    settings: { server_check_delay: 0 },
  }),
  cases: [
    {
      text: 'SV_USED server got dirty',
      check: (pooler, t, { fakes }) =>
        logsClosing(pooler, 'S', 'SV_USED server got dirty', async () => {
          const client = await login(t, pooler);
          await client.query('one');
          fakes['saying']!.connections.at(-1)!.send(NOTICE);
        }),
    },
  ],
};

const NO_END = { because: 'PgBouncer waits for a ReadyForQuery outside a transaction' };

const RESET: Provocations = {
  title: 'of servers that are not reset',
  options: ({ fakes }) => ({
    databases: { app: `host=127.0.0.1 port=${fakes['saying']!.port}` },
    settings: fakeServer({ server_reset_query: 'stay in a transaction' }),
  }),
  cases: [
    {
      ...closing('S', 'reset query failed', async (_pooler, login) => {
        const client = await login();
        await client.query('one');
        await client.end();
      }),
      differs: NO_END,
    },
  ],
};

const CHECK: Provocations = {
  title: 'of servers that fail their check',
  options: ({ fakes }) => ({
    databases: { app: `host=127.0.0.1 port=${fakes['saying']!.port}` },
    settings: { server_check_delay: 0, server_check_query: 'stay in a transaction' },
  }),
  cases: [
    {
      ...closing('S', 'test query failed', async (_pooler, login) => {
        const client = await login();
        await client.query('one');
        client.send(query('two'));
      }),
      differs: NO_END,
    },
  ],
};

export const IN_THE_LOG: readonly Provocations[] = [
  CLIENTS,
  AGES,
  LIVES,
  LIMITS,
  NOWHERE,
  DIRTY,
  IDLE_DIRTY,
  USED_DIRTY,
  RESET,
  CHECK,
];
