/** TCP options of the sockets on both sides, as the kernel has them. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { before, test } from 'node:test';
import { type FakeServer, startFakeServer } from '../support/fake-server.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import type { Section, TestPooler } from '../support/pooler.ts';
import { rule } from '../support/rule.ts';
import { textAnswer } from '../support/server-messages.ts';
import { type TcpPorts, tcpRow } from '../support/tcp-rows.ts';
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

/** Seconds until the kernel probes the peer; null: never, NaN: another timer stands in the way. */
function secondsToProbe(ports: TcpPorts): number | null {
  const { timer, seconds } = tcpRow(ports);
  if (timer === 0) return null;
  return timer === 2 ? seconds : Number.NaN;
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
