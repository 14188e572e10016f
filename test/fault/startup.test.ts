/** Who has not logged in can neither end a worker nor fill its memory. */
import assert from 'node:assert/strict';
import { createConnection, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { int32, message, packet, startup } from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { endpoint, WireClient } from '../support/wire-client.ts';
import { memoryOf } from './support.ts';

const CONNECTIONS = 200;
const MB = 1 << 20;
/** What each of them tries to leave in the pooler. */
const FLOOD = Buffer.alloc(MB, 0x41);
/** Far below what the floods come to together. */
const MOST_GROWTH_MB = 80;

async function canLogIn(fleet: TestPgfleet): Promise<void> {
  const client = await WireClient.login(fleet);
  await client.query('SELECT 1');
  await client.end();
}

async function opened(t: TestContext, fleet: TestPgfleet): Promise<Socket> {
  const socket = createConnection(endpoint(fleet));
  socket.on('error', () => undefined);
  t.after(() => socket.destroy());
  await new Promise((resolve) => socket.once('connect', resolve));
  return socket;
}

test('what comes before the login is kept up to a limit', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const fleet = await startPgfleet({
    postgres,
    databases: { app: '', down: 'host=127.0.0.1 port=1' },
    size: 2,
    settings: { auth_type: 'plain', max_client_conn: 1000 },
  });
  fleet.allowLog(/ERROR C-\S+ /);
  t.after(() => fleet.stop());
  await canLogIn(fleet);
  const workers = fleet.workers();
  const memory = (): number => workers.reduce((sum, pid) => sum + memoryOf(pid) / MB, 0);
  const login = (database: string): Buffer => startup({ user: 'app', database });
  const password = message('p', ['app']);
  for (const [what, bytes] of [
    ['most of a startup packet', packet([int32(0x0003_0000)], 10_000)],
    ['a startup packet that says to be longer', packet([FLOOD.subarray(0, 60_000)])],
    ['most of a password', Buffer.concat([login('app'), message('p', [], 65_534)])],
    ['a password that says to be longer', Buffer.concat([login('app'), message('p', [], MB)])],
    ['a message of another type', Buffer.concat([login('app'), message('Q', [], MB)])],
    ['a login whose server is down', Buffer.concat([login('down'), password])],
  ] as const) {
    await t.test(`a megabyte behind ${what}`, async (t) => {
      const before = memory();
      const sockets: Socket[] = [];
      for (let i = 0; i < CONNECTIONS; i++) sockets.push(await opened(t, fleet));
      for (const socket of sockets) socket.write(Buffer.concat([bytes, FLOOD]));
      let most = 0;
      for (let round = 0; round < 5; round++) {
        await canLogIn(fleet);
        most = Math.max(most, memory() - before);
      }
      t.diagnostic(`${most.toFixed(1)} MB more`);
      assert.ok(most < MOST_GROWTH_MB, `${most} MB more`);
      for (const socket of sockets) socket.destroy();
    });
  }
  assert.deepEqual(fleet.workers(), workers);
});
