import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import { test } from 'node:test';
import { osErrorCode, osErrorText } from '../../../src/log/os-error.ts';

test('an error of the system is worded as the C library words it', () => {
  assert.equal(osErrorText(-98), 'Address already in use');
  assert.equal(osErrorText(-99), 'Cannot assign requested address');
  assert.throws(
    () => openSync('/no/such/file', 'r'),
    (error) =>
      osErrorText(error) === 'No such file or directory' && osErrorCode(error) === 'ENOENT',
  );
});

test('another error keeps its own text', () => {
  assert.equal(osErrorText(new Error('odd')), 'odd');
  assert.equal(osErrorCode(new Error('odd')), '');
});
