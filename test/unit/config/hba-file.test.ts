import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readHbaFile } from '../../../src/config/hba-file.ts';
import type { HbaNames, HbaRule } from '../../../src/config/hba-rules.ts';
import { formatProblem } from '../../../src/config/problem.ts';
import { hexOf, memoryFiles } from './rule-files.ts';

const MAPS = new Set(['m', 'm-1']);

function read(files: Readonly<Record<string, string>> | string) {
  const all = typeof files === 'string' ? { hba: files } : files;
  const place = { file: 'ini', line: 3 };
  const { rules, problems } = readHbaFile('hba', place, MAPS, memoryFiles(all));
  const lines = problems.map(
    (one) => `${one.level === 'warning' ? 'W ' : ''}${formatProblem(one)}`,
  );
  return { rules, lines };
}

function namesOf({ all, sameUser, replication, names }: HbaNames): string {
  const words = [all ? '(all)' : '', sameUser ? '(sameuser)' : '', replication ? '(repl)' : ''];
  return [...words, ...names].filter((word) => word !== '').join(' ');
}

/** `host db | user | 0a000000/ff000000 | method …`. */
function show({ type, databases, users, network, method }: HbaRule): string {
  const { kind, ...options } = method;
  const place = network === null ? '*' : `${hexOf(network.address)}/${hexOf(network.mask)}`;
  const more = Object.values(options).map(String);
  return [`${type} ${namesOf(databases)}`, namesOf(users), place, [kind, ...more].join(' ')].join(
    ' | ',
  );
}

const GOOD: readonly (readonly [string, ...string[]])[] = [
  ['local all all trust', 'local (all) | (all) | * | trust'],
  ['  local\tall\vall\fpeer\r', 'local (all) | (all) | * | peer null'],
  ['# c\n\n \t\nlocal a b reject # why', 'local a | b | * | reject'],
  ['local all all md5#c', 'local (all) | (all) | * | md5'],
  ['host all all all md5', 'host (all) | (all) | * | md5'],
  ['host a b 10.0.0.0/8 password', 'host a | b | 0a000000/ff000000 | plain'],
  ['hostssl a b 10.1.2.3/32 cert', 'hostssl a | b | 0a010203/ffffffff | cert null any'],
  ['hostnossl a b 0.0.0.0/0 reject', 'hostnossl a | b | 00000000/00000000 | reject'],
  ['hostnogssenc a b 0.0.0.0/0 trust', 'host a | b | 00000000/00000000 | trust'],
  ['host a b 10.128.0.0/9 md5', 'host a | b | 0a800000/ff800000 | md5'],
  ['host a b 10.0.0.0 255.0.255.0 md5', 'host a | b | 0a000000/ff00ff00 | md5'],
  [
    'host a b ::1/128 scram-sha-256',
    `host a | b | ${'0'.repeat(31)}1/${'f'.repeat(32)} | scram-sha-256`,
  ],
  ['host a b fe80:: ffff:: md5', `host a | b | fe80${'0'.repeat(28)}/ffff${'0'.repeat(28)} | md5`],
  [
    'host a b ::ffff:10.0.0.0/104 md5',
    `host a | b | ${'0'.repeat(20)}ffff0a000000/${'f'.repeat(26)}000000 | md5`,
  ],
  ['local a,b c , d md5', 'local a b | c d | * | md5'],
  ['local a,a a md5', 'local a | a | * | md5'],
  ['local sameuser sameuser md5', 'local (sameuser) | (sameuser) | * | md5'],
  ['local replication,all,x all md5', 'local (all) (repl) x | (all) | * | md5'],
  [
    'local "all","sameuser","replication" "all","replication","+g","/r","@f" md5',
    'local all sameuser replication | all replication +g /r @f | * | md5',
  ],
  ['local "a ""b"", #c" "" md5', 'local a "b", #c |  | * | md5'],
  ['local ALL All md5', 'local ALL | All | * | md5'],
  ['local all all md5 map=m', 'local (all) | (all) | * | md5'],
  ['local all all peer map=m-1', 'local (all) | (all) | * | peer m-1'],
  ['host all all all cert clientname=DN map=m', 'host (all) | (all) | * | cert m DN'],
  ['host all all all cert clientname=CN', 'host (all) | (all) | * | cert null CN'],
  ['local all all ldap#c', 'local (all) | (all) | * | ldap '],
  ['local all all ldap a="b #', 'local (all) | (all) | * | ldap a="b #'],
  ['local all all ldap', 'local (all) | (all) | * | ldap '],
  [
    'local all all ldap ldapurl="ldap://h/dc=#x" ldaptls=1, map=m #c "',
    'local (all) | (all) | * | ldap ldapurl="ldap://h/dc=#x" ldaptls=1, map=m',
  ],
  ['host a b all md5\nhost c d all trust', 'host a | b | * | md5', 'host c | d | * | trust'],
];

for (const [text, ...rules] of GOOD) {
  test(`HBA: ${JSON.stringify(text)} is read`, () => {
    const { rules: found, lines } = read(text);
    assert.deepEqual(lines, []);
    assert.deepEqual(found.map(show), rules);
  });
}

const BAD: readonly (readonly [text: string, why: string])[] = [
  ['HOST all all all md5', 'unknown type: HOST'],
  ['"host" all all all md5', 'unknown type: host'],
  ['\ufefflocal all all md5', 'unknown type: \ufefflocal'],
  ['include', 'unknown type: include (include takes one file name)'],
  ['include a b', 'unknown type: include (include takes one file name)'],
  ['include_dir a b', 'unknown type: include_dir (include takes one file name)'],
  ['local', 'the line ends before its database name'],
  ['local all', 'the line ends before its user name'],
  ['local all all', 'the line ends before its method'],
  ['host all all', 'the line ends before its address'],
  ['host all all all', 'the line ends before its method'],
  ['local a,,b all md5', 'a database name is missing before a comma'],
  ['local ,a all md5', 'a database name is missing before a comma'],
  ['local a b,', 'the line ends before its user name'],
  ['local samerole all md5', 'samerole is not supported'],
  ['local samegroup all md5', 'samegroup is not supported'],
  ['local all +g md5', 'groups are not supported: +g (quote it if it is a name)'],
  ['local all /^g md5', 'regular expressions are not supported: /^g (quote it if it is a name)'],
  ['local /^g all md5', 'regular expressions are not supported: /^g (quote it if it is a name)'],
  ['local all replication md5', 'replication is no user (quote it if it is a name)'],
  ['local all @ md5', 'no file name behind @'],
  ['local a"b" all md5', 'a quote inside a word'],
  ['local "a"b all md5', 'a quote inside a word'],
  ['local "a all md5', 'a quote that nobody closed'],
  ['local "a""b all md5', 'a quote that nobody closed'],
  ['local a\0 all md5', 'a NUL byte'],
  ['host all all "10.0.0.1/32" md5', "did not find address - '10.0.0.1/32'"],
  ...[
    'samehost',
    'samenet',
    'db.example',
    '.example',
    'ALL',
    '10.0.0',
    '010.0.0.1',
    'fe80::1%lo',
  ].map(
    (address) =>
      [
        `host all all ${address}/8 md5`,
        `failed to parse address - ${address} (only IP addresses can be given)`,
      ] as const,
  ),
  ...['33', '', 'x', '8x', '+8', '-1', '8/8', '1000'].map(
    (bits) => [`host all all 10.0.0.0/${bits} md5`, 'invalid mask'] as const,
  ),
  ['host all all ::/129 md5', 'invalid mask'],
  ['host all all 10.0.0.0 md5', 'failed to parse mask: md5'],
  ['host all all 10.0.0.0', 'did not find mask'],
  ['host all all ::1 255.0.0.0 md5', 'failed to parse mask: 255.0.0.0'],
  ['host all all 10.0.0.1/8 reject', 'address does not match mask: 10.0.0.1 / 255.0.0.0'],
  ['host all all 10.0.0.1 255.0.0.0 md5', 'address does not match mask: 10.0.0.1 / 255.0.0.0'],
  ['host all all ::1/64 md5', 'address does not match mask: ::1 / ffff:ffff:ffff:ffff:0:0:0:0'],
  ...['any', 'pam', 'plain', 'gss', 'sspi', 'ident', 'radius', 'MD5', 'toString'].map(
    (method) => [`host all all all ${method}`, `unsupported method: buf=${method}`] as const,
  ),
  ['local all all "md5"', 'unsupported method: buf=md5'],
  ['local all all 0.0.0.0/0 md5', 'unsupported method: buf=0.0.0.0/0'],
  ['local all all md5 foo', 'Ident map foo is malformed. It is not in map=value format.'],
  ['local all all md5 \\', 'Ident map \\ is malformed. It is not in map=value format.'],
  ['local all all md5 map="m"', 'a quote inside a word'],
  ['local all all md5 "map=m"', 'unsupported parameters'],
  ['local all all peer map=m,', 'unsupported parameters'],
  ['local all all peer map=m map=m', 'unsupported parameters: map=m'],
  ['local all all peer clientname=DN', 'unsupported parameters: clientname=DN'],
  [
    'host all all all cert clientcert=verify-full',
    'unsupported parameters: clientcert=verify-full',
  ],
  ['host all all all cert clientname=cn', 'clientname must be CN or DN: cn'],
  ['local all all peer map=nope', 'Ident map nope is not found in ident config file'],
  ['local all all peer map=', 'Ident map  is not found in ident config file'],
];

for (const [text, why] of BAD) {
  test(`HBA: ${JSON.stringify(text)} is an error`, () => {
    const { lines } = read(`\n${text}`);
    assert.deepEqual(lines, [`hba:2: ${why}`]);
  });
}

test('a line for connections with GSSAPI encryption is checked, and never matches', () => {
  const { rules, lines } = read('hostgssenc all all all gss\nhostgssenc all all all md5');
  assert.deepEqual(lines, [
    'hba:1: unsupported method: buf=gss',
    'W hba:2: hostgssenc never matches: GSSAPI encryption is not supported',
  ]);
  assert.deepEqual(rules, []);
});

test('a file without a rule is a warning', () => {
  assert.deepEqual(read('# nothing\n').lines, [
    'W hba: no rule in it: every login will be refused',
  ]);
});

test('every bad line of a file is told', () => {
  const { lines } = read('x\nlocal all all md5\ny\n');
  assert.deepEqual(lines, ['hba:1: unknown type: x', 'hba:3: unknown type: y']);
});

test('names may stand in files of their own, relative to the file that names them', () => {
  const { rules, lines } = read({
    hba: 'include d/more\n',
    'd/more': 'local @dbs,extra @"user list" md5\n',
    'd/dbs': '# databases\none, two three\n\n@e/dbs\nsameuser # and his own\n',
    'd/e/dbs': '"all" @../last',
    'd/last': 'last',
    'd/user list': 'all\n',
  });
  assert.deepEqual(lines, []);
  assert.deepEqual(rules.map(show), [
    'local (sameuser) one two three all last extra | (all) | * | md5',
  ]);
});

test('what is wrong with a file of names is told there, and the rule is none', () => {
  const { rules, lines } = read({
    hba: 'local @dbs all md5\nlocal all @gone md5\nlocal @self all md5\nlocal a b md5',
    dbs: 'ok\n+g x"y\nsamerole\n',
    self: 'a @self',
  });
  assert.deepEqual(lines, [
    'dbs:2: groups are not supported: +g (quote it if it is a name)',
    'dbs:2: a quote inside a word',
    'dbs:3: samerole is not supported',
    'hba:1: cannot use @dbs',
    'hba:2: could not open file "gone": No such file or directory',
    'hba:2: cannot use @gone',
    'self:1: "self" includes itself',
    'self:1: cannot use @self',
    'hba:3: cannot use @self',
  ]);
  assert.deepEqual(rules.map(show), ['local a | b | * | md5']);
});

test('ten thousand lines are read in well under a second', () => {
  const lines = Array.from(
    { length: 10_000 },
    (_, at) => `hostssl db${at} user${at},"u ${at}" 10.${at >> 8}.${at & 255}.0/24 scram-sha-256`,
  );
  const start = performance.now();
  const { rules } = read(lines.join('\n'));
  assert.equal(rules.length, 10_000);
  assert.ok(performance.now() - start < 5_000);
});
