import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startClientAuth } from '../../../src/auth/client-auth.ts';
import { classifySecret, type StoredSecret } from '../../../src/auth/secret.ts';
import { profileOf } from '../../../src/auth/secret-profile.ts';
import { startServerAuth } from '../../../src/auth/server-auth.ts';
import { InvariantError } from '../../../src/errors.ts';
import { madeCertificate } from '../../support/made-certificate.ts';
import {
  clientAuth,
  exchange,
  FLEET_SECRET,
  PENCIL_MD5,
  PENCIL_SCRAM,
  passwordBody,
  readRequest,
  seededRandom,
  sent,
} from './exchange.ts';

type Method = 'any' | 'trust' | 'plain' | 'md5' | 'scram-sha-256';
type Kind = 'plain' | 'md5' | 'scram' | 'empty' | 'unknown';

/** Stored forms of the password `pencil` of the user `user`. */
const STORED: Record<Kind, StoredSecret | null> = {
  plain: classifySecret('pencil'),
  md5: classifySecret(PENCIL_MD5),
  scram: classifySecret(PENCIL_SCRAM),
  empty: classifySecret(''),
  unknown: null,
};

const PASSWORD = 'password authentication failed';
const SASL = 'SASL authentication failed';
const TRUST = '"trust" authentication failed';
const OK = 'accepted';

/**
 * What PgBouncer sends and decides: the codes of its authentication requests (3 clear text, 5 MD5,
 * 10 to 12 SASL), then the outcome with the right password and with a wrong one.
 */
const table: readonly (readonly [Method, Kind, right: string, wrong: string])[] = [
  ['any', 'plain', OK, OK],
  ['any', 'md5', OK, OK],
  ['any', 'scram', OK, OK],
  ['any', 'empty', OK, OK],
  ['any', 'unknown', OK, OK],
  ['trust', 'plain', OK, OK],
  ['trust', 'md5', OK, OK],
  ['trust', 'scram', OK, OK],
  ['trust', 'empty', OK, OK],
  ['trust', 'unknown', TRUST, TRUST],
  ['plain', 'plain', `3 ${OK}`, `3 ${PASSWORD}`],
  ['plain', 'md5', `3 ${OK}`, `3 ${PASSWORD}`],
  ['plain', 'scram', `3 ${OK}`, `3 ${PASSWORD}`],
  ['plain', 'empty', `3 ${PASSWORD}`, `3 ${PASSWORD}`],
  ['plain', 'unknown', `3 ${PASSWORD}`, `3 ${PASSWORD}`],
  ['md5', 'plain', `5 ${OK}`, `5 ${PASSWORD}`],
  ['md5', 'md5', `5 ${OK}`, `5 ${PASSWORD}`],
  ['md5', 'scram', `10 11 12 ${OK}`, `10 11 ${SASL}`],
  ['md5', 'empty', `5 ${PASSWORD}`, `5 ${PASSWORD}`],
  ['md5', 'unknown', `5 ${PASSWORD}`, `5 ${PASSWORD}`],
  ['scram-sha-256', 'plain', `10 11 12 ${OK}`, `10 11 ${SASL}`],
  ['scram-sha-256', 'md5', `10 11 ${SASL}`, `10 11 ${SASL}`],
  ['scram-sha-256', 'scram', `10 11 12 ${OK}`, `10 11 ${SASL}`],
  ['scram-sha-256', 'empty', `10 11 ${SASL}`, `10 11 ${SASL}`],
  ['scram-sha-256', 'unknown', `10 11 ${SASL}`, `10 11 ${SASL}`],
];

async function login(method: Method, kind: Kind, password: string) {
  const peer = startServerAuth({
    user: 'user',
    secret: classifySecret(password),
    clientKeys: null,
    random: seededRandom(2),
  });
  const outcome = await exchange(clientAuth({ method, secret: STORED[kind] }), peer);
  const end = outcome.clientEnd;
  assert(end !== null && end.kind !== 'send');
  if (end.kind === 'accepted') assert.equal(outcome.serverEnd?.kind, 'ok');
  const verdict = end.kind === 'refused' ? end.text : end.kind;
  return { end, line: [...outcome.requests, verdict].join(' ') };
}

for (const [method, kind, right, wrong] of table) {
  test(`auth_type ${method} with a secret of kind ${kind} gives PgBouncer's outcome`, async () => {
    assert.equal((await login(method, kind, 'pencil')).line, right);
    assert.equal((await login(method, kind, 'Pencil')).line, wrong);
  });
}

test('keys for pass-through come from a stored SCRAM secret only', async () => {
  for (const [method, kind] of table) {
    const { end } = await login(method, kind, 'pencil');
    const hasKeys = end.kind === 'accepted' && end.clientKeys !== null;
    const expected = kind === 'scram' && (method === 'scram-sha-256' || method === 'md5');
    assert.equal(hasKeys, expected, `${method} ${kind}`);
  }
});

test('a password outside ASCII is accepted whichever way it is composed', async () => {
  const peer = startServerAuth({
    user: 'user',
    secret: classifySecret('cafe\u0301'),
    clientKeys: null,
    random: seededRandom(2),
  });
  const stored = classifySecret('caf\u00e9');
  const outcome = await exchange(clientAuth({ method: 'scram-sha-256', secret: stored }), peer);
  assert.equal(outcome.clientEnd?.kind, 'accepted');
});

test('an empty password is refused as such, for known and unknown users alike', async () => {
  for (const method of ['plain', 'md5'] as const) {
    for (const kind of ['plain', 'md5', 'empty', 'unknown'] as const) {
      const auth = clientAuth({ method, secret: STORED[kind] });
      auth.begin();
      assert.deepEqual(await auth.onMessage(passwordBody('')), {
        kind: 'refused',
        text: 'empty password returned by client',
        detail: null,
      });
    }
  }
});

test('a password message must be one string and nothing else', async () => {
  const bodies = [
    Buffer.alloc(0),
    Buffer.from('pencil'),
    Buffer.from('pencil\0\0'),
    Buffer.from('pencil\0x'),
    Buffer.from(`pencil${'\0'.repeat(66_000)}`),
  ];
  for (const body of bodies) {
    const auth = clientAuth({ method: 'plain', secret: STORED.plain });
    auth.begin();
    const step = await auth.onMessage(body);
    assert.deepEqual(step, { kind: 'refused', text: PASSWORD, detail: null });
  }
});

test('the MD5 request carries four bytes from the random source, anew for each login', () => {
  const random = seededRandom(3);
  const salts = [1, 2].map(() => {
    const auth = clientAuth({ method: 'md5', secret: STORED.md5, random });
    return readRequest(sent(auth.begin())).body;
  });
  assert.deepEqual(salts, [seededRandom(3)(4), seededRandom(3)(8).subarray(4)]);
});

test('an MD5 answer to another salt is refused', async () => {
  const first = clientAuth({ method: 'md5', secret: STORED.md5, random: seededRandom(3) });
  const second = clientAuth({ method: 'md5', secret: STORED.md5, random: seededRandom(4) });
  const peer = startServerAuth({
    user: 'user',
    secret: STORED.md5,
    clientKeys: null,
    random: seededRandom(2),
  });
  const salt = readRequest(sent(first.begin())).body;
  second.begin();
  const answer = sent(await peer.onRequest(5, salt)).subarray(5);
  assert.equal((await second.onMessage(answer)).kind, 'refused');
  assert.equal((await first.onMessage(answer)).kind, 'accepted');
});

test('a second password is refused, even the right one', async () => {
  const auth = clientAuth({ method: 'plain', secret: STORED.plain });
  auth.begin();
  await auth.onMessage(passwordBody('wrong'));
  assert.equal((await auth.onMessage(passwordBody('pencil'))).kind, 'refused');
});

test('a clear-text password survives reuse of the buffer that it came in', async () => {
  const auth = clientAuth({ method: 'plain', secret: STORED.scram });
  auth.begin();
  const body = passwordBody('pencil');
  const step = auth.onMessage(body);
  body.fill(0);
  assert.equal((await step).kind, 'accepted');
});

test('a message to a method that asks for nothing is refused', async () => {
  const auth = clientAuth({ method: 'trust', secret: STORED.plain });
  auth.begin();
  assert.equal((await auth.onMessage(passwordBody('pencil'))).kind, 'refused');
});

test('a login that begins twice, or answers before it began, is a bug of ours', () => {
  for (const method of ['plain', 'md5', 'scram-sha-256'] as const) {
    const auth = clientAuth({ method, secret: STORED.plain });
    assert.throws(() => auth.onMessage(passwordBody('pencil')), InvariantError);
    auth.begin();
    assert.throws(() => auth.begin(), InvariantError);
  }
});

const peer = (changes: { isUnix?: boolean; osUser?: string | null }, user = 'user') =>
  startClientAuth({
    method: { kind: 'peer', map: changes.osUser === 'mapped' ? MAP : null },
    user,
    secret: STORED.empty,
    connection: { isUnix: true, address: 'unix', tls: null, osUser: 'user', ...changes },
    scramIterations: 4096,
    fleetSecret: FLEET_SECRET,
    profile: profileOf([]),
    isGone: () => false,
    checkLdap: async () => false,
    random: seededRandom(1),
  }).begin();
const MAP = [{ systemName: 'mapped', databaseUser: 'user' }];

test('peer lets in the account’s own name, or the one that its map gives it', () => {
  assert.equal(peer({}).kind, 'accepted');
  assert.equal(peer({ osUser: 'mapped' }).kind, 'accepted');
  const refused = { kind: 'refused', text: 'unix socket login rejected', detail: null };
  assert.deepEqual(peer({ osUser: null }), refused);
  assert.deepEqual(peer({ osUser: 'other' }), refused);
  assert.deepEqual(peer({ isUnix: false }), refused);
  assert.deepEqual(peer({ osUser: 'mapped' }, 'other'), refused);
});

test('a name that nobody has is let in by no account and no certificate', () => {
  const tls = {
    version: 'TLSv1.3',
    cipher: 'x',
    certificate: madeCertificate([['CN', 'user']]),
    endPoint: null,
  };
  const login = (secret: StoredSecret | null, kind: 'cert' | 'peer') =>
    startClientAuth({
      method: { kind, map: null, clientname: 'any' },
      user: 'user',
      secret,
      connection: { isUnix: true, address: 'unix', tls, osUser: 'user' },
      scramIterations: 4096,
      fleetSecret: FLEET_SECRET,
      profile: profileOf([]),
      isGone: () => false,
      checkLdap: async () => false,
      random: seededRandom(1),
    }).begin();
  for (const kind of ['cert', 'peer'] as const) {
    assert.equal(login(STORED.scram, kind).kind, 'accepted');
    assert.equal(login(null, kind).kind, 'refused');
  }
  assert.deepEqual(login(null, 'cert'), {
    kind: 'refused',
    text: 'certificate authentication failed',
    detail: null,
  });
});
