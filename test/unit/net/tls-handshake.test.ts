import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { inTurn } from '../../../src/net/turn.ts';
import { TlsHandshake } from '../../../src/server/tls-handshake.ts';
import { FakeClient, world } from '../pool/support.ts';

/** A server that is connected and has been asked for TLS. */
function asked(t: TestContext, isOptional: boolean) {
  const given = world(t, 'query_wait_notify = 0');
  const client = new FakeClient(given.pool());
  client.ask();
  const backend = given.opener().last;
  const { server } = backend;
  let isSecuring = false;
  backend.socket.connecting = false;
  inTurn(() => {
    server.link.handler = new TlsHandshake(server, isOptional, () => {
      isSecuring = true;
    });
  });
  const sent = () => Buffer.concat(backend.socket.written).toString('hex');
  return { given, client, backend, sent, isSecuring: () => isSecuring };
}

const SSL_REQUEST = '0000000804d2162f';

test('the first thing that a server hears is an SSLRequest, and S starts the handshake', (t) => {
  const { backend, sent, isSecuring } = asked(t, false);
  assert.equal(sent(), SSL_REQUEST);
  backend.say(Buffer.from('S'));
  assert.equal(isSecuring(), true);
  assert.equal(sent(), SSL_REQUEST);
});

test('N is good enough where TLS is a wish, and the login goes on in clear text', (t) => {
  const { backend, client } = asked(t, true);
  backend.say(Buffer.from('N'));
  backend.socket.written.shift();
  backend.logIn();
  assert.deepEqual(client.events, ['server']);
});

test('N, another answer, and bytes behind the answer end the connection', (t) => {
  for (const [isOptional, answer, reason] of [
    [false, 'N', 'server refused SSL'],
    [true, 'E', 'bad sslreq answer'],
    [true, 'SX', 'received unencrypted data after SSL response'],
    [true, 'NR', 'received unencrypted data after SSL response'],
  ] as const) {
    const { given, backend, sent, isSecuring } = asked(t, isOptional);
    backend.say(Buffer.from(answer));
    assert.equal(backend.isTold, true, answer);
    assert.equal(isSecuring(), false, answer);
    assert.equal(sent(), SSL_REQUEST, answer);
    assert.ok(
      given.lines.some((line) => line.includes(`closing because: ${reason}`)),
      answer,
    );
    t.mock.restoreAll();
  }
});

test('a server that closes instead of answering has failed the attempt', (t) => {
  const { given, backend } = asked(t, true);
  backend.end();
  assert.equal(given.pool().total, 0);
  assert.equal(given.opener().failures, 1);
});
