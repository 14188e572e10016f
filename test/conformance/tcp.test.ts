/** TCP options of the sockets on both sides, as the kernel has them. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { before, test } from 'node:test';
import { type FakeServer, startFakeServer } from '../support/fake-server.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { rule } from '../support/rule.ts';
import { textAnswer } from '../support/server-messages.ts';
import { until } from '../support/until.ts';
import { lines, login } from './support.ts';

let server: FakeServer;
before(async () => {
  server = await startFakeServer(async (connection) => {
    await connection.welcome();
    await connection.answerQueries(textAnswer);
    connection.close();
  });
});

/** Kinds of a socket's pending timer in /proc/net/tcp, and its unit (USER_HZ). */
const NO_TIMER = 0;
const KEEPALIVE = 2;
const TICKS_PER_SECOND = 100;

/**
 * Seconds until the kernel probes the peer of the socket with these ports, as /proc/net/tcp tells
 * (proc(5)); null when it does not mean to, NaN while another timer stands in the way.
 */
function secondsToProbe(ports: { local?: number; remote: number }): number | null {
  for (const row of readFileSync('/proc/net/tcp', 'utf8').split('\n').slice(1)) {
    const [, local = '', remote = '', state, , timer = ''] = row.trim().split(/\s+/);
    const portOf = (address: string): number => Number.parseInt(address.split(':')[1] ?? '', 16);
    const isLocal = ports.local === undefined || portOf(local) === ports.local;
    if (!isLocal || portOf(remote) !== ports.remote || state !== '01') continue;
    const [kind = '', when = ''] = timer.split(':');
    if (Number.parseInt(kind, 16) === NO_TIMER) return null;
    const isProbe = Number.parseInt(kind, 16) === KEEPALIVE;
    return isProbe ? Number.parseInt(when, 16) / TICKS_PER_SECOND : Number.NaN;
  }
  throw new Error('there is no such socket');
}

const keepalive = (
  name: string,
  settings: Section,
  isRight: (seconds: number | null) => boolean,
): void =>
  rule(
    name,
    () => ({
      databases: { app: `host=127.0.0.1 port=${server.port}` },
      settings: { min_pool_size: 0, ...settings },
    }),
    async (pooler: TestPooler, t) => {
      const client = await login(t, pooler);
      assert.equal(lines(await client.query('one')), 'T D C Z:I');
      // A timer of what is not acknowledged yet may stand in its place for a moment.
      const remote = client.socket.localPort!;
      await until("the client's is right", () =>
        isRight(secondsToProbe({ local: pooler.port, remote })),
      );
      await until("the server's is right", () => isRight(secondsToProbe({ remote: server.port })));
      await client.end();
    },
  );

const isAbout = (wanted: number) => (seconds: number | null) =>
  seconds !== null && seconds <= wanted && seconds > wanted - 60;
const kernels = Number(readFileSync('/proc/sys/net/ipv4/tcp_keepalive_time', 'utf8'));

keepalive(
  "sockets are probed after the kernel's own time, if nothing is set",
  {},
  isAbout(kernels),
);
keepalive('sockets are probed after tcp_keepidle seconds', { tcp_keepidle: 500 }, isAbout(500));
keepalive(
  'sockets are not probed without tcp_keepalive',
  { tcp_keepalive: 0, tcp_keepidle: 500 },
  (seconds) => seconds === null,
);

test('a TCP setting that cannot be honoured is named at the start', async (t) => {
  const settings = {
    tcp_defer_accept: 1,
    tcp_keepcnt: 3,
    tcp_keepintvl: 20,
    tcp_socket_buffer: 65_536,
    tcp_user_timeout: 9000,
  };
  const fleet = await startPgfleet({ settings });
  t.after(() => fleet.stop());
  for (const name of Object.keys(settings)) {
    const line = new RegExp(`WARNING .*${name}: is accepted but has no effect in this version`);
    assert.match(fleet.log(), line);
  }
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('the server can be stopped when all has been asked', () => server.stop());
