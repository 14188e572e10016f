import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type LookupFunction, type Socket } from 'node:net';
import { test } from 'node:test';
import { ExposedPasswords } from '../../../src/server/exposed-passwords.ts';
import { ServerOpener } from '../../../src/server/server-opener.ts';
import { ServerTls } from '../../../src/tls/server-tls.ts';
import { within } from '../../support/until.ts';
import { world } from '../pool/support.ts';
import { SOCKET_OPTIONS } from './support.ts';

/** No test here connects to a name. */
const lookup: LookupFunction = (name) => assert.fail(`${name} was looked up`);
const hosts = { lookup, refused: () => false };

/** The places of `count` attempts, each of which fails if `fails`. */
function places(
  t: Parameters<typeof world>[0],
  database: string,
  fails: boolean,
  count = 4,
  folder = '/sockets',
) {
  const { index, config } = world(t, `unix_socket_dir = ${folder}`, `d = ${database}`);
  const tls = new ServerTls(config.settings, config.fleet);
  const options = {
    unixSocketDir: config.settings.unix_socket_dir,
    sockets: SOCKET_OPTIONS,
    tls,
    exposed: new ExposedPasswords(),
    hosts,
  };
  const opener = new ServerOpener(options, index.database('d')!, 'd', 1);
  const seen: string[] = [];
  for (let i = 0; i < count; i++) {
    const place = opener.place();
    seen.push('path' in place ? place.path.replace('\0', '@') : `${place.host}:${place.port}`);
    if (fails) opener.onFailed();
  }
  t.mock.restoreAll();
  return seen;
}

test('a database without a host is reached in unix_socket_dir, a path or @name in that place', (t) => {
  assert.deepEqual(places(t, '', false, 1), ['/sockets/.s.PGSQL.5432']);
  assert.deepEqual(places(t, 'host=/run/pg port=6000', false, 1), ['/run/pg/.s.PGSQL.6000']);
  assert.deepEqual(places(t, 'host=@abstract', false, 1), ['@abstract/.s.PGSQL.5432']);
  assert.deepEqual(places(t, 'host=::1 port=7', false, 1), ['::1:7']);
  assert.deepEqual(places(t, '', false, 1, ''), ['']);
});

test('with load_balance_hosts = disable the next host is tried after a failure only', (t) => {
  const database = 'host=a,b,c load_balance_hosts=disable';
  assert.deepEqual(places(t, database, false), ['b:5432', 'b:5432', 'b:5432', 'b:5432']);
  assert.deepEqual(places(t, database, true), ['b:5432', 'c:5432', 'a:5432', 'b:5432']);
});

test('round-robin takes the next host for each attempt, and the startup packet is as configured', async (t) => {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket);
    socket.on('error', () => {});
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  const given = world(
    t,
    'server_tls_sslmode = disable',
    `d = host=127.0.0.1,127.0.0.2 port=${port} dbname=real timezone=UTC application_name=pool client_encoding=UTF8 datestyle=ISO`,
  );
  const { index, config } = given;
  const options = {
    unixSocketDir: '/nowhere',
    sockets: SOCKET_OPTIONS,
    tls: new ServerTls(config.settings, config.fleet),
    exposed: new ExposedPasswords(),
    hosts,
  };
  const opener = new ServerOpener(options, index.database('d')!, 'd', 0);
  const pool = given.pool();
  const credentials = { user: 'someone', secret: null, clientKeys: null };
  const connection = opener.open(pool, credentials);
  assert.equal(connection.label, `d/someone@127.0.0.1:${port}`);
  assert.deepEqual(opener.place(), { host: '127.0.0.2', port });
  if (sockets.length === 0) await within('connection', once(server, 'connection'));
  const [startup] = (await within('startup packet', once(sockets[0]!, 'data'))) as [Buffer];
  assert.equal(
    startup.toString('latin1', 8).split('\0').join(' '),
    'database real client_encoding UTF8 datestyle ISO timezone UTC application_name pool user someone  ',
  );
  connection.link.destroy();
  await within('close', once(connection.link.socket, 'close'));
});
