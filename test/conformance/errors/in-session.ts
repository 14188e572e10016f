import assert from 'node:assert/strict';
import { bind, message, parse, query, SYNC } from '../../support/messages.ts';
import { parameterStatus, textColumns, textRow } from '../../support/server-messages.ts';
import { isStuck } from '../../support/tcp-rows.ts';
import { until } from '../../support/until.ts';
import { fatal, lines, linesUntilClose, login, poolIs } from '../support.ts';
import { logsClosing, type Provocation, type Provocations } from './provocations.ts';

/** Bytes of a logged-in client that bring nothing but a FATAL. */
const telling = (text: string, bytes: Buffer, since?: string): Provocation => ({
  text,
  ...(since === undefined ? {} : { since }),
  check: async (pooler, t) => {
    const client = await login(t, pooler);
    client.send(bytes);
    assert.equal(await linesUntilClose(client), fatal(text));
  },
});

/** A query that brings an end of its server, and what the client hears of it. */
const losing = (text: string, bytes: Buffer, heard: string = fatal(text)): Provocation => ({
  text,
  check: async (pooler, t) => {
    const client = await login(t, pooler);
    client.send(bytes);
    assert.equal(await linesUntilClose(client), heard);
  },
});

const MESSAGES: Provocations = {
  title: 'for a message of a client',
  options: ({ postgres }) => ({
    postgres,
    databases: { app: 'pool_size=2' },
    logs: [/unknown pkt/],
  }),
  cases: [
    telling('unknown pkt', message('!')),
    telling('prepared statement did not exist', bind({ statement: 'nothing' }), '1.21'),
    {
      text: 'prepared statement name is already in use',
      since: '1.21',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        client.send(parse('taken', 'SELECT 1'), SYNC);
        assert.equal(lines(await client.untilReady()), '1 Z:I');
        client.send(parse('taken', 'SELECT 2'), SYNC);
        assert.equal(
          await linesUntilClose(client),
          fatal('prepared statement name is already in use'),
        );
      },
    },
    {
      text: 'invalid server parameter',
      check: async (pooler, t) => {
        const client = await login(t, pooler, { parameters: { TimeZone: 'No/Where' } });
        client.send(query('SELECT 1'));
        assert.equal(await linesUntilClose(client), fatal('invalid server parameter'));
      },
    },
    losing(
      'server conn crashed?',
      query('DO $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(5); END $$'),
      `FATAL 57P01 terminating connection due to administrator command ${fatal('server conn crashed?')}`,
    ),
  ],
};

const SERVER_SAYS: Provocations = {
  title: 'for a message of a server',
  options: ({ fakes }) => ({
    databases: { app: `host=127.0.0.1 port=${fakes['saying']!.port}` },
    logs: [/unknown pkt/],
  }),
  cases: [
    losing('bad pkt header', query(`say ${message('D', [], 3).toString('hex')}`)),
    losing(
      'broken ParameterStatus packet',
      query(`say ${parameterStatus('name', 'value').fill('x', 5).toString('hex')}`),
    ),
    {
      // Nothing is read from a server whose client takes nothing, so a write is first to find it gone.
      text: 'server connection closed',
      check: async (pooler, t, { fakes }) => {
        const server = fakes['saying']!;
        const client = await login(t, pooler);
        client.socket.pause();
        client.send(query('stall'), query('x'.repeat(50_000_000)));
        // First what goes to the server gets stuck, then what comes from it.
        await isStuck({ remote: server.port }, 'sends');
        const connection = server.connections.at(-1)!;
        const rows = Array.from({ length: 500 }, () => textRow('x'.repeat(100_000)));
        connection.send(textColumns('a'), ...rows);
        await isStuck({ remote: server.port });
        await logsClosing(pooler, 'S', 'server connection closed', async () => connection.reset());
        client.destroy();
      },
    },
  ],
};

const WAITING: Provocations = {
  title: 'for a client that waits too long',
  options: ({ postgres }) => ({
    postgres,
    databases: { app: 'pool_size=1' },
    settings: { query_wait_timeout: 1 },
  }),
  cases: [
    {
      text: 'query_wait_timeout',
      check: async (pooler, t) => {
        const holder = await login(t, pooler);
        await holder.query('BEGIN');
        const client = await login(t, pooler);
        client.send(query('SELECT 1'));
        assert.equal(await linesUntilClose(client), fatal('query_wait_timeout'));
        await holder.query('COMMIT');
      },
    },
  ],
};

const QUERIES: Provocations = {
  title: 'with query_timeout',
  options: ({ postgres }) => ({
    postgres,
    databases: { app: 'pool_size=1' },
    settings: { query_timeout: 1, query_wait_timeout: 0 },
  }),
  cases: [
    {
      text: 'query_timeout',
      // 1.18 ends the holder first, who idles in its transaction.
      since: '1.20',
      check: async (pooler, t) => {
        const holder = await login(t, pooler);
        await holder.query('BEGIN');
        const client = await login(t, pooler);
        client.send(query('SELECT 1'));
        await until('it waits', () => poolIs(pooler, { cl_waiting: 1 }));
        assert.equal(await linesUntilClose(client), fatal('query_timeout'));
        await holder.query('COMMIT');
      },
    },
    losing('query timeout', query('SELECT pg_sleep(5)')),
  ],
};

const IDLING: Provocations = {
  title: 'for a client that idles',
  options: ({ postgres }) => ({
    postgres,
    settings: { client_idle_timeout: 1, idle_transaction_timeout: 1 },
  }),
  cases: [
    {
      text: 'client_idle_timeout',
      check: async (pooler, t) => {
        const client = await login(t, pooler);
        await client.query('SELECT 1');
        assert.equal(await linesUntilClose(client), fatal('client_idle_timeout'));
      },
    },
    losing(
      'idle transaction timeout',
      query('BEGIN'),
      `C Z:T ${fatal('idle transaction timeout')}`,
    ),
  ],
};

const TRANSACTIONS: Provocations = {
  title: 'with transaction_timeout',
  options: ({ postgres }) => ({ postgres, settings: { transaction_timeout: 1 } }),
  cases: [{ ...losing('transaction timeout', query('BEGIN; SELECT pg_sleep(5)')), since: '1.25' }],
};

export const IN_SESSION: readonly Provocations[] = [
  MESSAGES,
  SERVER_SAYS,
  WAITING,
  QUERIES,
  IDLING,
  TRANSACTIONS,
];
