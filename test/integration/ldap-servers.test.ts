/** What real LDAP servers say to names and passwords, for each way to ask them. */
import assert from 'node:assert/strict';
import { lookup } from 'node:dns';
import { before, mock, type TestContext, test } from 'node:test';
import { LdapLogin } from '../../src/ldap/ldap-login.ts';
import { log } from '../../src/log/logger.ts';
import { Secret } from '../../src/util/secret.ts';
import { type Certs, makeCerts } from '../support/certs.ts';
import { requirePackage } from '../support/skip.ts';
import { hasSlapd, READER, SUFFIX, startSlapd, type TestSlapd } from '../support/slapd.ts';

const BIND = `ldapprefix=uid= ldapsuffix=",ou=people,${SUFFIX}"`;
const SEARCH = `ldapbasedn="ou=people,${SUFFIX}"`;
const AS_READER = `ldapbinddn="${READER.dn}" ldapbindpasswd="${READER.password.replaceAll('"', '""')}"`;

let slapd: TestSlapd;
let wrongName: TestSlapd;
let certs: Certs;

/** What the log was told at the last login. */
const logged: string[] = [];

mock.method(log, 'warning', (text: string) => void logged.push(text));

before(async () => {
  if (!hasSlapd()) return;
  certs = await makeCerts();
  slapd = await startSlapd({
    people: [
      { rdn: 'uid=alice,ou=people', uid: 'alice', password: 'wonder land' },
      { rdn: 'uid=zoë,ou=people', uid: 'zoë', password: 'pässwörd' },
      { rdn: 'uid=Doe\\, Jane,ou=people', uid: 'Doe, Jane', password: 'jane' },
      { rdn: 'uid=\\#1 \\+ \\"2\\",ou=people', uid: '#1 + "2"', password: 'odd' },
      { rdn: 'cn=one,ou=people', uid: 'twin', password: 'twin', mail: 'one@example.net' },
      { rdn: 'cn=two,ou=people', uid: 'twin', password: 'twin' },
      { rdn: 'uid=robot,ou=machines', uid: 'robot', password: 'robot' },
      { rdn: 'uid=EXTERNAL,ou=people', uid: 'EXTERNAL', password: 'ext' },
      { rdn: `uid=long,ou=people`, uid: 'long', password: 'l'.repeat(300) },
    ],
    lines: ['access to attrs=userPassword by anonymous auth by * none', 'access to * by * read'],
  });
  wrongName = await startSlapd({
    people: [{ rdn: 'uid=alice,ou=people', uid: 'alice', password: 'wonder land' }],
    cert: 'wrong-name',
  });
});

function login(env: Record<string, string> = {}): LdapLogin {
  return new LdapLogin({
    hosts: { lookup, refused: () => false },
    services: async () => {
      throw new Error('no such name');
    },
    env: { LDAPTLS_CACERT: certs.file('ca.crt'), ...env },
  });
}

interface Row {
  readonly options: string;
  readonly user: string;
  readonly password: string;
  readonly isRight: boolean;
  readonly warning?: RegExp;
}

async function check(t: TestContext, rows: readonly Row[], asked = login()): Promise<void> {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  for (const { options, user, password, isRight, warning: expected } of rows) {
    logged.length = 0;
    const claim = { user, password: new Secret(password) };
    const answer = await asked.check(options, claim, new AbortController().signal);
    const about = `${options} ${user} ${password}: ${logged.join('; ')}`;
    assert.equal(answer, isRight, about);
    if (expected === undefined) assert.deepEqual(logged, [], about);
    else assert.match(logged.join('\n'), expected, about);
    assert.ok(!logged.some((line) => line.includes(password) && !user.includes(password)), about);
  }
}

const at = (options: string): string => `ldapserver=127.0.0.1 ldapport=${slapd.port} ${options}`;
const right = (options: string, user = 'alice', password = 'wonder land'): Row => ({
  options,
  user,
  password,
  isRight: true,
});
const wrong = (options: string, warning: RegExp, user = 'alice', password = 'wrong!'): Row => ({
  options,
  user,
  password,
  isRight: false,
  warning,
});

test('prefix, name and suffix bind with the password', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const server = `on server "ldap://127.0.0.1:${slapd.port}"`;
  await check(t, [
    right(at(BIND)),
    right(at(BIND), 'zoë', 'pässwörd'),
    right(at(BIND), 'long', 'l'.repeat(300)),
    right(`ldapurl=ldap://127.0.0.1:${slapd.port} ${BIND}`),
    wrong(
      at(BIND),
      new RegExp(
        `^LDAP login failed for user "uid=alice,ou=people,${SUFFIX}" ${server}: Invalid credentials$`,
      ),
    ),
    wrong(at(BIND), /Invalid credentials/, 'nobody', 'wonder land'),
    wrong(at(BIND), /Invalid credentials/, 'alice', 'WONDER LAND'),
    wrong(at('ldapprefix=uid ldapsuffix=x=y'), /Invalid DN syntax/),
  ]);
});

test('special characters of a name are its own in a distinguished name', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const wide = `ldapprefix=uid= ldapsuffix=",${SUFFIX}"`;
  await check(t, [
    right(at(BIND), 'Doe, Jane', 'jane'),
    right(at(BIND), '#1 + "2"', 'odd'),
    right(at(`ldapprefix=uid= ldapsuffix=",ou=machines,${SUFFIX}"`), 'robot', 'robot'),
    // As texts put together this is the name of an entry, which is not that of the login name.
    wrong(
      at(wide),
      /uid=robot\\,ou\\=machines,dc=.*Invalid credentials/,
      'robot,ou=machines',
      'robot',
    ),
    wrong(
      at('ldapprefix="" ldapsuffix=""'),
      /^invalid character/,
      `uid=alice,ou=people,${SUFFIX}`,
      'wonder land',
    ),
    // Not the SASL mechanism of that name.
    wrong(
      at('ldapprefix='),
      /^LDAP login failed for user "EXTERNAL" .* Invalid DN syntax/,
      'EXTERNAL',
      'ext!',
    ),
    right(at(BIND), 'EXTERNAL', 'ext'),
  ]);
});

test('no password is no proof', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const binds = slapd.count('BIND dn');
  const row = { user: 'alice', password: '', isRight: false };
  await check(t, [
    { ...row, options: at(BIND) },
    { ...row, options: at(SEARCH) },
  ]);
  assert.equal(slapd.count('BIND dn'), binds, 'no server was asked');
});

test('a search finds the entry whose password is asked for', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const url = (rest: string): string => `ldapurl="ldap://127.0.0.1:${slapd.port}/${rest}"`;
  await check(t, [
    right(at(SEARCH)),
    right(at(SEARCH), 'zoë', 'pässwörd'),
    right(at(SEARCH), 'Doe, Jane', 'jane'),
    right(at(`${SEARCH} ${AS_READER}`)),
    right(at(`${SEARCH} ldapsearchattribute=mail`), 'alice@example.net'),
    right(at(`${SEARCH} ldapsearchattribute=mail`), 'one@example.net', 'twin'),
    right(at(`${SEARCH} ldapsearchfilter="(|(uid=$username)(mail=$username))"`)),
    right(
      at(`${SEARCH} ldapsearchfilter="(|(uid=$username)(mail=$username))"`),
      'alice@example.net',
    ),
    right(
      at(
        `${SEARCH} ldapsearchfilter="(&(objectClass=inetOrgPerson)(uid:caseExactMatch:=$username))"`,
      ),
    ),
    right(url(`ou=people,${SUFFIX}?uid?one`)),
    right(url(`${SUFFIX}??sub?(mail=$username)`), 'alice@example.net'),
    wrong(at(SEARCH), /^LDAP login failed for user "uid=alice,/),
    wrong(
      at(SEARCH),
      /^LDAP user "bob" does not exist: LDAP search for filter "\(uid=bob\)" on server "[^"]+" returned no entries\.$/,
      'bob',
    ),
    wrong(at(SEARCH), /^LDAP user "twin" is not unique: .* returned 2 entries\.$/, 'twin', 'twin!'),
    wrong(at(SEARCH), /does not exist/, 'robot', 'robot!'),
    wrong(url(`ou=people,${SUFFIX}`), /does not exist/),
    wrong(url(`${SUFFIX}?uid?one`), /does not exist/),
    wrong(
      at(`ldapbasedn="ou=gone,${SUFFIX}"`),
      /could not search LDAP for filter .*: No such object/,
    ),
    wrong(
      at(`${SEARCH} ldapbinddn="${READER.dn}" ldapbindpasswd=bad`),
      /could not perform initial LDAP bind for ldapbinddn "cn=reader,.*Invalid credentials/,
    ),
    ...['*', 'al*', 'x)(uid=alice', 'a/b', 'a\\2a'].map((user) =>
      wrong(at(SEARCH), /^invalid character in user name for LDAP authentication$/, user),
    ),
  ]);
});

test('an entry that has no name is nobody, whatever the password', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  // The root of the directory, which every search of the base finds.
  const root = `ldapurl="ldap://127.0.0.1:${slapd.port}/?objectClass?base"`;
  await check(t, [{ options: root, user: 'top', password: 'any!', isRight: false }]);
});

test('passwords travel encrypted, to servers with a certificate for their name', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const started = (one: TestSlapd, host = '127.0.0.1') =>
    `ldapserver=${host} ldapport=${one.port} ldaptls=1 ${BIND}`;
  const secure = (one: TestSlapd, host = '127.0.0.1') =>
    `ldapserver=${host} ldapport=${one.tlsPort} ldapscheme=ldaps ${BIND}`;
  await check(t, [
    right(started(slapd)),
    right(secure(slapd)),
    right(secure(slapd, 'localhost')),
    right(`ldapurl=ldaps://localhost:${slapd.tlsPort} ${BIND}`),
    right(`ldapserver=127.0.0.1 ldapport=${slapd.port} ldaptls=1 ${SEARCH}`),
    wrong(started(slapd), /Invalid credentials/),
    wrong(
      started(wrongName),
      new RegExp(
        `^could not start LDAP TLS session: .*127.0.0.1.*, server: 127.0.0.1, port: ${wrongName.port}$`,
      ),
    ),
    wrong(secure(wrongName), /^could not start LDAP TLS session: /),
    wrong(
      `ldapserver=127.0.0.1 ldapport=${slapd.port} ldapscheme=ldaps ${BIND}`,
      /^could not start LDAP TLS session: /,
    ),
  ]);
  const others = { LDAPTLS_CACERT: certs.file('other-ca.crt') };
  await check(t, [wrong(started(slapd), /^could not start LDAP TLS session: /)], login(others));
  await check(t, [wrong(secure(slapd), /^could not start LDAP TLS session: /)], login(others));
  const missing = { LDAPTLS_CACERT: '/nowhere' };
  await check(
    t,
    [wrong(secure(slapd), /^could not start LDAP TLS session: ENOENT/)],
    login(missing),
  );
  const lax = login({ LDAPTLS_REQCERT: 'never' });
  await check(t, [right(started(wrongName)), right(secure(wrongName))], lax);
});

test('a server that cannot be reached is passed over', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const two = `ldapserver="127.0.0.2 127.0.0.1" ldapport=${slapd.port} ${BIND}`;
  await check(t, [
    {
      ...right(two),
      warning:
        /^could not connect to LDAP server "ldap:\/\/127\.0\.0\.2:\d+": connect ECONNREFUSED/,
    },
    { ...right(`ldapserver="127.0.0.1 127.0.0.2" ldapport=${slapd.port} ${BIND}`) },
    // An answer settles it: the next server is not asked.
    wrong(
      `ldapserver="127.0.0.1 127.0.0.2" ldapport=${slapd.port} ${BIND}`,
      /^LDAP login failed[^\n]*$/,
    ),
    wrong(
      `ldapserver="127.0.0.2 127.0.0.3" ldapport=${slapd.port} ${BIND}`,
      /127\.0\.0\.2.*\n.*127\.0\.0\.3/,
    ),
  ]);
});

test('servers of the base DN are found in DNS, those of the best priority first', async (t) => {
  if (!requirePackage(t, 'slapd', hasSlapd())) return;
  const names: string[] = [];
  const { port } = slapd;
  const found = new LdapLogin({
    hosts: { lookup, refused: () => false },
    services: async (name) => {
      names.push(name);
      return [
        { name: '127.0.0.3', port, priority: 20, weight: 0 },
        { name: '127.0.0.1', port, priority: 10, weight: 0 },
        { name: '127.0.0.2', port, priority: 5, weight: 1 },
      ];
    },
    env: {},
  });
  await check(
    t,
    [
      {
        ...right(SEARCH),
        warning: /^could not connect to LDAP server "ldap:\/\/127\.0\.0\.2:[^\n]*$/,
      },
    ],
    found,
  );
  assert.deepEqual(names, ['_ldap._tcp.example.net']);
  await check(t, [
    wrong(
      SEARCH,
      /^LDAP authentication could not find DNS SRV records for "example.net": no such name$/,
    ),
  ]);
});

test('the servers end', async () => {
  await slapd?.dispose();
  await wrongName?.dispose();
});
