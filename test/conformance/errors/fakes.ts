import {
  type FakeConnection,
  type FakeServer,
  type Script,
  startFakeServer,
} from '../../support/fake-server.ts';
import { int32, message } from '../../support/messages.ts';
import { authenticationOk, textAnswer } from '../../support/server-messages.ts';
import type { Place } from './provocations.ts';

const SALT = Buffer.from('salt').toString('base64');

/** Answers queries with their own text, or as they say. */
async function saying(connection: FakeConnection): Promise<void> {
  await connection.welcome();
  for (;;) {
    const found = await connection.nextOrEnd();
    if (found === null || found.type === 'X') break;
    const sql = found.body.toString('utf8', 0, found.body.length - 1);
    const [, hex] = /^say (.*)$/.exec(sql) ?? [];
    if (hex !== undefined) connection.send(Buffer.from(hex, 'hex'));
    else if (sql === 'stay in a transaction') connection.send(textAnswer(sql, 'T'));
    else if (sql === 'stall') {
      connection.stall();
      await connection.ended().catch(() => undefined);
    } else connection.send(textAnswer(sql));
  }
  connection.close();
}

/** Goes through SCRAM-SHA-256 (RFC 7677) as far as the client's proof. */
async function toProof(connection: FakeConnection): Promise<void> {
  await connection.expectStartup();
  connection.send(message('R', [int32(10), 'SCRAM-SHA-256', Buffer.of(0)]));
  const first = (await connection.expect('p')).body.toString('latin1');
  const nonce = /r=([^,]*)$/.exec(first)?.[1] ?? '';
  const challenge = `r=${nonce}server,s=${SALT},i=4096`;
  connection.send(message('R', [int32(11), Buffer.from(challenge)]));
  await connection.expect('p');
}

const SCRIPTS: Readonly<Record<string, Script>> = {
  saying,
  silent: async (connection) => connection.ended().catch(() => undefined),
  no_mechanism: async (connection) => {
    await connection.expectStartup();
    connection.send(message('R', [int32(10), 'SCRAM-FUTURE', Buffer.of(0)]));
    await connection.ended().catch(() => undefined);
  },
  no_signature: async (connection) => {
    await toProof(connection);
    connection.send(authenticationOk());
    await connection.ended().catch(() => undefined);
  },
  false_signature: async (connection) => {
    await toProof(connection);
    const signature = Buffer.alloc(32).toString('base64');
    connection.send(message('R', [int32(12), Buffer.from(`v=${signature}`)]));
    await connection.ended().catch(() => undefined);
  },
};

/** Starts the fake servers. */
export async function startFakes(): Promise<Place['fakes']> {
  const fakes: Record<string, FakeServer> = {};
  for (const [name, script] of Object.entries(SCRIPTS)) fakes[name] = await startFakeServer(script);
  return fakes;
}
