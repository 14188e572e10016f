import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isSameText, md5Answer, md5Secret } from '../../../src/auth/md5.ts';

test('the stored form is md5 of password and name', () => {
  // md5sum of the bytes `passwordpostgres` and of `grüßemüller` in UTF-8.
  assert.equal(md5Secret('password', 'postgres'), 'md532e12f215ba27cb750c9e093ce4b5127');
  assert.equal(md5Secret('grüße', 'müller'), 'md518a2402739b3d7ef40be6ff74a1c22a1');
  assert.equal(md5Secret(Buffer.from('grüße'), 'müller'), 'md518a2402739b3d7ef40be6ff74a1c22a1');
});

test('the answer is md5 of the hex digits and the salt', () => {
  // md5sum of the bytes `32e12f215ba27cb750c9e093ce4b5127` and 01 02 03 fe.
  const answer = md5Answer('md532e12f215ba27cb750c9e093ce4b5127', Buffer.from([1, 2, 3, 0xfe]));
  assert.equal(answer, 'md58003ef3304c793a7fb7152ab2857f497');
});

test('texts are the same only when every byte is', () => {
  assert(isSameText('secret', Buffer.from('secret')));
  assert(isSameText('', ''));
  assert(!isSameText('secret', 'Secret'));
  assert(!isSameText('secret', 'secret '));
  assert(!isSameText('secret', ''));
});
