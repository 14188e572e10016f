import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { inTurn } from '../../../src/net/turn.ts';
import { ServerState } from '../../../src/server/server-connection.ts';
import { TlsHandshake } from '../../../src/server/tls-handshake.ts';
import { FakeClient, world } from '../pool/support.ts';

const SSL_REQUEST = '0000000804d2162f';

/** A server that is connected; `options` of its TLS are asked for when the handshake begins. */
function begun(t: TestContext, isOptional: boolean, isDirect = false) {
  const given = world(t, 'query_wait_notify = 0');
  const client = new FakeClient(given.pool());
  client.ask();
  const backend = given.opener().last;
  const { server } = backend;
  const hosts: string[] = [];
  const tls = {
    isOptional,
    isDirect,
    options: (host: string) => {
      hosts.push(host);
      // Files are still being looked at when the test ends.
      return new Promise<never>(() => {});
    },
  };
  backend.socket.connecting = false;
  inTurn(() => {
    new TlsHandshake(server.link, tls, 'db.example', {
      isWanted: () => server.state === ServerState.login,
      onSafe: () => server.beginLogin(),
      onUnsafe: (reason) => server.abandonLogin(reason),
    });
  });
  const sent = () => Buffer.concat(backend.socket.written).toString('hex');
  return { given, client, backend, sent, hosts };
}

test('the first thing that a server hears is an SSLRequest, and S starts the handshake', (t) => {
  const { backend, sent, hosts } = begun(t, false);
  assert.equal(sent(), SSL_REQUEST);
  backend.say(Buffer.from('S'));
  assert.deepEqual(hosts, ['db.example']);
  assert.equal(sent(), SSL_REQUEST);
});

test('direct TLS begins without SSLRequest', (t) => {
  const { sent, hosts } = begun(t, false, true);
  assert.deepEqual(hosts, ['db.example']);
  assert.equal(sent(), '');
});

test('N is good enough where TLS is a wish, and the login goes on in clear text', (t) => {
  const { backend, client, hosts } = begun(t, true);
  backend.say(Buffer.from('N'));
  backend.socket.written.shift();
  backend.logIn();
  assert.deepEqual(client.events, ['server']);
  assert.deepEqual(hosts, []);
});

test('N, another answer, and bytes behind the answer end the connection', (t) => {
  for (const [isOptional, answers, reason] of [
    [false, ['N'], 'server refused SSL'],
    [true, ['E'], 'bad sslreq answer'],
    [true, ['SX'], 'received unencrypted data after SSL response'],
    [true, ['NR'], 'received unencrypted data after SSL response'],
    [true, ['S', 'R'], 'received unencrypted data after SSL response'],
  ] as const) {
    const { given, backend, sent } = begun(t, isOptional);
    for (const answer of answers) backend.say(Buffer.from(answer));
    const name = answers.join();
    assert.equal(backend.isTold, true, name);
    assert.equal(sent(), SSL_REQUEST, name);
    assert.ok(
      given.lines.some((line) => line.includes(`closing because: ${reason}`)),
      name,
    );
    t.mock.restoreAll();
  }
});

test('a server that closes instead of answering has failed the attempt', (t) => {
  const { given, backend } = begun(t, true);
  backend.end();
  assert.equal(given.pool().total, 0);
  assert.equal(given.opener().failures, 1);
});
