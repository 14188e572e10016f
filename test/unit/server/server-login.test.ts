import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startServerAuth } from '../../../src/auth/server-auth.ts';
import { type LoginStep, ServerLogin } from '../../../src/server/server-login.ts';
import { SpokenVersions } from '../../../src/server/spoken-versions.ts';
import { int32, message, PROTOCOL_3_0, PROTOCOL_3_2 } from '../../support/messages.ts';
import * as says from '../../support/server-messages.ts';

/** A login to host `h`, its StartupMessage sent, and the version that it asks for. */
function begin(versions = new SpokenVersions()) {
  const login = new ServerLogin({
    host: 'h',
    versions,
    startup: [['user', 'u']],
    auth: startServerAuth({ user: 'u', secret: null, clientKeys: null, random: Buffer.alloc }),
    connectQuery: null,
  });
  const asked = login.begin().readInt32BE(4);
  const hear = (bytes: Buffer): LoginStep => {
    const step = login.onMessage(bytes);
    if (step instanceof Promise) throw new Error('a step that takes time');
    return step;
  };
  return { login, asked, hear };
}

const negotiation = (version: number): Buffer => message('v', [int32(version), int32(0)]);
/** The ErrorResponse of PostgreSQL before 2017, of PgBouncer before 1.20, and of another. */
const REFUSALS = [
  ['0A000', 'unsupported frontend protocol 3.2: server supports 1.0 to 3.0'],
  ['0A000', 'nicht unterstütztes Frontend-Protokoll 3.2'],
  ['08P01', "bad packet header: '0000002500030002'"],
  ['08P01', 'Unsupported protocol version'],
] as const;

test('a server is asked for 3.2, and its key is kept whole whatever its length', () => {
  for (const bytes of [8, 36, 260]) {
    const { login, asked, hear } = begin();
    assert.equal(asked, PROTOCOL_3_2);
    assert.equal(hear(says.authenticationOk()).kind, 'nothing');
    const key = Buffer.alloc(bytes, bytes);
    assert.equal(hear(says.backendKey(key)).kind, 'nothing');
    assert.deepEqual(login.key, key);
    assert.equal(hear(says.ready()).kind, 'done');
  }
});

test('a key that is shorter or longer than the protocol allows ends the login', () => {
  for (const bytes of [0, 7, 261]) {
    const { hear } = begin();
    hear(says.authenticationOk());
    const step = hear(says.backendKey(Buffer.alloc(bytes)));
    assert.deepEqual(step, { kind: 'failed', reason: 'bad cancel key', refusal: null });
  }
});

test('what belongs to no login ends it, before the authentication and behind it', () => {
  const failed = { kind: 'failed', reason: 'unknown pkt from server', refusal: null };
  for (const bytes of [message('!'), says.textRow('a'), says.commandComplete('SELECT 1')]) {
    assert.deepEqual(begin().hear(bytes), failed);
    const { hear } = begin();
    hear(says.authenticationOk());
    assert.deepEqual(hear(bytes), failed);
  }
});

test('a server that knows less negotiates, with both halves of its version or the minor one', () => {
  for (const version of [PROTOCOL_3_0, PROTOCOL_3_0 + 1, PROTOCOL_3_2, 0, 2]) {
    const { hear } = begin();
    assert.equal(hear(negotiation(version)).kind, 'nothing');
    assert.equal(hear(says.authenticationOk()).kind, 'nothing');
    assert.equal(hear(says.ready()).kind, 'done');
  }
});

test('a negotiation that makes no sense ends the login', () => {
  const nonsense = 'server wants a protocol version that was not asked for';
  for (const [bytes, reason] of [
    [negotiation(PROTOCOL_3_2 + 1), nonsense],
    [negotiation(3), nonsense],
    [negotiation(0x0002_0000), nonsense],
    [negotiation(-1), nonsense],
    [message('v'), 'unknown pkt from server'],
    [message('v', [int32(PROTOCOL_3_0)]), 'unknown pkt from server'],
  ] as const) {
    assert.deepEqual(begin().hear(bytes), { kind: 'failed', reason, refusal: null });
  }
  const { hear } = begin();
  hear(says.authenticationOk());
  assert.equal(hear(negotiation(PROTOCOL_3_0)).kind, 'failed');
});

test('a server that refuses the version is asked for 3.0 from then on', () => {
  for (const [sqlstate, text] of REFUSALS) {
    const versions = new SpokenVersions();
    const step = begin(versions).hear(says.errorResponse(sqlstate, text, 'FATAL'));
    assert.deepEqual(step, { kind: 'too_new', reason: text });
    const second = begin(versions);
    assert.equal(second.asked, PROTOCOL_3_0);
    assert.equal(second.hear(says.authenticationOk()).kind, 'nothing');
    assert.equal(begin(versions).asked, PROTOCOL_3_0);
  }
});

test('the same words are a failed login when 3.0 was asked for, or something was said before', () => {
  for (const [sqlstate, text] of REFUSALS) {
    const error = says.errorResponse(sqlstate, text, 'FATAL');
    const failed = {
      kind: 'failed',
      reason: text,
      refusal: { sqlstate, message: text, severity: 'FATAL' },
    };
    const versions = new SpokenVersions();
    versions.onRefusal('h');
    assert.deepEqual(begin(versions).hear(error), failed);
    const { hear } = begin();
    hear(message('R', [int32(3)]));
    assert.deepEqual(hear(error), failed);
  }
});

test('other errors before the authentication are failed logins and say nothing of the version', () => {
  for (const [sqlstate, text] of [
    ['57P03', 'the database system is starting up'],
    ['53300', 'sorry, too many clients already'],
    ['08P01', 'no such database: x'],
    ['08P01', 'no more connections allowed (max_client_conn)'],
    ['3D000', 'database "protocol" does not exist'],
  ] as const) {
    const versions = new SpokenVersions();
    const step = begin(versions).hear(says.errorResponse(sqlstate, text, 'FATAL'));
    assert.equal(step.kind, 'failed', text);
    assert.equal(begin(versions).asked, PROTOCOL_3_2);
  }
});

test('a server that closes without a word is tried with 3.0 at once, and stays at what it answers', () => {
  const versions = new SpokenVersions();
  assert.equal(begin(versions).login.onClosed(), true);
  const second = begin(versions);
  assert.equal(second.asked, PROTOCOL_3_0);
  second.hear(says.authenticationOk());
  assert.equal(second.login.onClosed(), false);
  assert.equal(begin(versions).asked, PROTOCOL_3_0);
});

test('one that closes without a word at 3.0 too is asked for 3.2 again', () => {
  const versions = new SpokenVersions();
  assert.equal(begin(versions).login.onClosed(), true);
  assert.equal(begin(versions).login.onClosed(), false);
  assert.equal(begin(versions).asked, PROTOCOL_3_2);
});

test('one that has spoken 3.2 before, or was not asked yet, has closed for another reason', () => {
  const versions = new SpokenVersions();
  begin(versions).hear(says.authenticationOk());
  assert.equal(begin(versions).login.onClosed(), false);
  assert.equal(begin(versions).asked, PROTOCOL_3_2);
  const login = new ServerLogin({
    host: 'other',
    versions,
    startup: [],
    auth: startServerAuth({ user: 'u', secret: null, clientKeys: null, random: Buffer.alloc }),
    connectQuery: null,
  });
  assert.equal(login.onClosed(), false);
});

test('each host is remembered for itself', () => {
  const versions = new SpokenVersions();
  versions.onRefusal('old');
  assert.equal(versions.toAsk('old'), PROTOCOL_3_0);
  assert.equal(versions.toAsk('new'), PROTOCOL_3_2);
});
