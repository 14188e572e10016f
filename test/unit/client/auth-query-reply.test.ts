import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AuthQueryReply, authQueryRequests } from '../../../src/client/auth-query-reply.ts';
import { int16, int32, message, splitMessages, typesOf } from '../../support/messages.ts';
import { logged } from '../net/support.ts';

/** What the reply says to one message after the other; the last answer. */
function told(reply: AuthQueryReply, ...messages: readonly Buffer[]): string | null {
  let said: string | null = null;
  for (const bytes of messages) {
    // Behind other bytes, as in a read buffer.
    const at = Buffer.concat([Buffer.alloc(3), bytes]);
    said = reply.onMessage(bytes[0]!, at, 3, at.length);
  }
  return said;
}

const text = (value: string | null): Buffer[] =>
  value === null ? [int32(-1)] : [int32(Buffer.byteLength(value)), Buffer.from(value)];
const row = (...values: readonly (string | null)[]): Buffer =>
  message('D', [int16(values.length), ...values.flatMap(text)]);

test('the statement is asked with the name as its parameter, and closed', () => {
  const { messages } = splitMessages(authQueryRequests('SELECT $1', 'né'));
  assert.equal(typesOf(messages), 'P B D E C S');
  assert.equal(messages[0]!.body.toString('utf8'), '\0SELECT $1\0\0\0');
  assert.ok(messages[1]!.body.includes(Buffer.concat(text('né'))));
});

test('the last row counts, NULL is an empty secret, and a row without a name is none', () => {
  const reply = new AuthQueryReply();
  assert.equal(reply.row, null);
  assert.equal(told(reply, row('u', 'one')), null);
  assert.deepEqual(reply.row, { name: 'u', secret: 'one' });
  assert.equal(told(reply, row('v', null)), null);
  assert.deepEqual(reply.row, { name: 'v', secret: '' });
  assert.equal(told(reply, row(null, 'x')), null);
  assert.deepEqual(reply.row, { name: 'v', secret: '' });
});

test('another number of columns than two is told', () => {
  for (const columns of [0, 1, 3]) {
    const expected = `expected 2 columns from auth_query, not ${columns}`;
    assert.equal(told(new AuthQueryReply(), message('T', [int16(columns)])), expected);
    const values = Array.from({ length: columns }, () => 'x');
    assert.equal(told(new AuthQueryReply(), row(...values)), expected);
  }
});

test('a row that does not fit its message is a bad packet', () => {
  const good = row('user', 'secret');
  for (let size = 6; size < good.length; size++) {
    const reply = new AuthQueryReply();
    assert.equal(told(reply, good.subarray(0, size)), 'bad packet', `${size} bytes`);
    assert.equal(reply.row, null);
  }
  for (const size of [-2, 0x7fffffff]) {
    const bad = message('D', [int16(2), ...text('u'), int32(size), Buffer.from('x')]);
    assert.equal(told(new AuthQueryReply(), bad), 'bad packet');
  }
  const tail = message('D', [int16(2), ...text('u'), ...text('s'), Buffer.from('more')]);
  assert.equal(told(new AuthQueryReply(), tail), 'bad packet');
  assert.equal(told(new AuthQueryReply(), message('T')), 'bad packet');
  assert.equal(told(new AuthQueryReply(), row('u', 'x'.repeat(70_000))), 'bad packet');
});

test('an error is logged with its severity and text, and ends the connection', (t) => {
  const lines = logged(t);
  const error = message('E', ['SERROR', 'C42P01', 'Mno such table', '']);
  assert.equal(told(new AuthQueryReply(), error), 'error response from auth_query');
  assert.match(lines.join('\n'), /^S: error in auth_query: ERROR: no such table$/);
});

test('what answers something else than a query with rows is unexpected', () => {
  for (const type of ['I', 'G', 'H', 'W', 'd', 's', 'n', 'R', 'x']) {
    assert.equal(
      told(new AuthQueryReply(), message(type)),
      'unexpected response from auth_query',
      type,
    );
  }
  for (const type of ['1', '2', '3', 'C', 'S', 'N', 'A']) {
    assert.equal(told(new AuthQueryReply(), message(type)), null, type);
  }
});
