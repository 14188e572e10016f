import assert from 'node:assert/strict';
import { test } from 'node:test';
import { classifySecret } from '../../../src/auth/secret.ts';
import { profileOf } from '../../../src/auth/secret-profile.ts';
import { PENCIL_MD5, PENCIL_SCRAM } from './exchange.ts';

const OTHER_COUNT = PENCIL_SCRAM.replace('$4096:', '$9000:');

const CASES = [
  ['no secrets', [], false, false, null],
  ['empty ones only', [''], false, false, null],
  ['plain ones', ['a', 'b'], true, false, null],
  ['SCRAM secrets and empty ones', [PENCIL_SCRAM, ''], false, true, 4096],
  ['SCRAM secrets beside an MD5 secret', [PENCIL_SCRAM, PENCIL_MD5], false, false, 4096],
  ['SCRAM secrets beside a plain one', [PENCIL_SCRAM, 'a'], true, false, 4096],
  ['the count that most have', [PENCIL_SCRAM, OTHER_COUNT, OTHER_COUNT], false, true, 9000],
] as const;

for (const [name, texts, hasPlain, isAllScram, scramIterations] of CASES) {
  test(`what secrets are like: ${name}`, () => {
    assert.deepEqual(profileOf(texts.map(classifySecret)), {
      hasPlain,
      isAllScram,
      scramIterations,
    });
  });
}
