import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { AuthStep, ClientAuth } from '../../../src/auth/client-auth.ts';
import { clientAuth, passwordBody, readRequest } from './exchange.ts';

interface World {
  readonly auth: ClientAuth;
  /** What LDAP was asked. */
  readonly asked: string[];
}

function ldap(isRight = true, options = 'the options'): World {
  const asked: string[] = [];
  const auth = clientAuth({
    method: { kind: 'ldap', options },
    checkLdap: async (text, user, password) => {
      asked.push(`${text} ${user} ${password.reveal()}`);
      return isRight;
    },
  });
  return { auth, asked };
}

function verdict(step: AuthStep): string {
  return step.kind === 'refused' ? step.text : step.kind;
}

test('a password that LDAP finds right lets the client in and is kept', async () => {
  const { auth, asked } = ldap();
  const question = auth.begin();
  assert.ok(question.kind === 'send');
  assert.equal(readRequest(question.message).code, 3);
  const step = await auth.onMessage(passwordBody('pässwörd'));
  assert.ok(step.kind === 'accepted');
  assert.equal(step.password?.reveal(), 'pässwörd');
  assert.deepEqual(asked, ['the options user pässwörd']);
});

test('a password that LDAP finds wrong is refused', async () => {
  const { auth } = ldap(false);
  auth.begin();
  assert.equal(verdict(await auth.onMessage(passwordBody('x'))), 'LDAP authentication failed');
});

test('an empty password is refused without asking LDAP, where it would count as no proof at all', async () => {
  const { auth, asked } = ldap();
  auth.begin();
  assert.equal(
    verdict(await auth.onMessage(passwordBody(''))),
    'empty password returned by client',
  );
  assert.deepEqual(asked, []);
});

test('what is no password, or no UTF-8, is refused without asking LDAP', async () => {
  const rows: readonly (readonly [Buffer, string])[] = [
    [Buffer.alloc(0), 'password authentication failed'],
    [Buffer.from('no end'), 'password authentication failed'],
    [Buffer.from('two\0ends\0'), 'password authentication failed'],
    [Buffer.alloc(65_536, 'x'), 'password authentication failed'],
    [Buffer.of(0xff, 0), 'LDAP authentication failed'],
  ];
  for (const [body, expected] of rows) {
    const { auth, asked } = ldap();
    auth.begin();
    assert.equal(verdict(await auth.onMessage(body)), expected);
    assert.deepEqual(asked, []);
  }
});

test('a second password is refused', async () => {
  const { auth, asked } = ldap(false);
  auth.begin();
  await auth.onMessage(passwordBody('x'));
  assert.equal(verdict(await auth.onMessage(passwordBody('y'))), 'password authentication failed');
  assert.deepEqual(asked, ['the options user x']);
});

test('without options no password is asked for', () => {
  assert.equal(verdict(ldap(true, '').auth.begin()), 'auth_ldap_options is null');
});
