import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { osErrorText } from '../../../src/config/problem.ts';
import { readText } from '../../../src/config/read-text.ts';

function why(path: string): string {
  try {
    readText(path);
  } catch (error) {
    return osErrorText(error);
  }
  return 'it was read';
}

test('a file is read whole, characters that lie across chunks too', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-text-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const text = `x${'ü'.repeat(100_000)}`;
  writeFileSync(join(folder, 'f'), text);
  assert.equal(readText(join(folder, 'f')), text);
});

test('what cannot be read is told in the words of the system', () => {
  assert.equal(why('/nowhere/at/all'), 'No such file or directory');
  assert.match(why(tmpdir()), /^Illegal operation on a directory$|^Is a directory$/);
});

test('a file without an end is given up', () => {
  assert.equal(why('/dev/zero'), 'File too large');
  assert.equal(readText('/dev/null'), '');
});
