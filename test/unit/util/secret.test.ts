import assert from 'node:assert/strict';
import { test } from 'node:test';
import { format, inspect } from 'node:util';
import { Secret } from '../../../src/util/secret.ts';

test('a secret is redacted in every way of printing it, also inside of objects', () => {
  const secret = new Secret('hunter2');
  const error = Object.assign(new Error('x'), { secret });
  for (const text of [
    String(secret),
    `${secret}`,
    JSON.stringify({ secret, list: [secret] }),
    inspect(secret),
    inspect({ deep: { secret } }, { depth: 9, showHidden: true }),
    inspect(error),
    format('%s %o %j', secret, secret, secret),
    Object.values(secret).join(),
  ]) {
    assert.ok(!text.includes('hunter2'), text);
  }
  assert.equal(String(secret), '[redacted]');
  assert.equal(JSON.stringify({ secret }), '{"secret":"[redacted]"}');
});

test('only reveal gives the value, whatever its type', () => {
  const bytes = Buffer.from([1, 2, 3]);
  assert.equal(new Secret(bytes).reveal(), bytes);
  assert.equal(new Secret('p').reveal(), 'p');
});
