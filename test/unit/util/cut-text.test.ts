import assert from 'node:assert/strict';
import { test } from 'node:test';
import { cutText } from '../../../src/util/cut-text.ts';

test('a text is cut between characters, and not at all when it fits', () => {
  for (const text of ['', 'abc', 'äöü', '€€', '😀a😀']) {
    const size = Buffer.byteLength(text);
    for (let max = 0; max <= size + 3; max++) {
      const kept = cutText(text, max);
      assert.ok(text.startsWith(kept), `${text} cut to ${max}: ${kept}`);
      assert.ok(Buffer.byteLength(kept) <= max);
      // The next character would not have fitted.
      const [next] = text.slice(kept.length);
      if (next !== undefined) assert.ok(Buffer.byteLength(kept + next) > max);
    }
  }
});
