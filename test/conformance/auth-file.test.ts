/** What `auth_file` may hold, and what becomes of a line that cannot be read. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { giveToServer } from '../support/account.ts';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { message, startup } from '../support/messages.ts';
import type { TestPooler } from '../support/pooler.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { type RuleNotes, type RuleOptions, rule } from '../support/rule.ts';
import { fatal, transcript, WELCOME } from '../support/transcript.ts';

const REFUSED = ['R3', ...fatal('password authentication failed')];

let postgres: TestPostgres;
let folder: string;
let count = 0;

before(async () => {
  postgres = await startPostgres();
  folder = await makeFolder('userlist');
});

/** A pooler with this file, which asks for passwords in clear text. */
async function withFile(text: string): Promise<RuleOptions> {
  const path = join(folder, String(++count));
  await writeFile(path, text);
  await giveToServer(path);
  return {
    postgres,
    databases: { app: 'user=app password=app' },
    settings: { auth_type: 'plain', auth_file: path },
  };
}

async function login(pooler: TestPooler, user: string, password: string): Promise<boolean> {
  const said = await transcript(pooler, [
    startup({ user, database: 'app' }),
    { until: 'R' },
    message('p', [password]),
  ]);
  if (said.length === REFUSED.length) assert.deepEqual(said, REFUSED);
  else assert.deepEqual(said, ['R3', ...WELCOME]);
  return said.length !== REFUSED.length;
}

type Login = readonly [user: string, password: string, isRight: boolean];

const checks =
  (logins: readonly Login[]) =>
  async (pooler: TestPooler): Promise<void> => {
    for (const [user, password, isRight] of logins) {
      assert.equal(await login(pooler, user, password), isRight, `${user} with ${password}`);
    }
  };

function fileRule(
  name: string,
  text: string,
  logins: readonly Login[],
  notes: RuleNotes = {},
): void {
  rule(`auth_file: ${name}`, () => withFile(text), checks(logins), notes);
}

fileRule(
  'two words in quotes a line, in which two quotes are one; blank lines and comments',
  [
    '; "commented" "out"',
    '',
    '"app" "app" and more',
    '\t "a""b"\t"x""y"',
    '"twice" "first"',
    '"twice" "last"',
    '"semi;colon" "#;"',
    '"back\\" "\\\\"',
    '"md5" "md5e30dc5d60a2a5b0be3bd3cbdd6a8b5ec"',
  ].join('\n'),
  [
    ['app', 'app', true],
    ['a"b', 'x"y', true],
    ['a""b', 'x""y', false],
    ['twice', 'last', true],
    ['twice', 'first', false],
    ['semi;colon', '#;', true],
    ['back\\', '\\\\', true],
    ['commented', 'out', false],
  ],
);

fileRule(
  'reading stops at a line that cannot be read, and users before it may come in',
  '"app" "app"\n# no comment\n"later" "later"\n',
  [
    ['app', 'app', true],
    ['later', 'later', false],
  ],
);

fileRule(
  'a name without a secret has none',
  '"app" "app"\n"nobody"\n"later" "x"\n',
  [
    ['app', 'app', true],
    ['nobody', 'later', false],
  ],
  {
    differs: {
      because: 'the next name is taken for its password',
      check: checks([['nobody', 'later', true]]),
    },
  },
);

rule(
  'a line of auth_file that cannot be read is told once, with its place',
  async () => ({ ...(await withFile('"app" "app"\n"b" "hush\n')), size: 2 }),
  async (pooler) => {
    assert.equal(pooler.log().split('broken auth file').length, 2);
    assert.match(pooler.log(), / WARNING \S+\/\d+:2: broken auth file/);
    assert.doesNotMatch(pooler.log(), /hush/);
  },
  { differs: { because: 'it names no line' } },
);

test('the server is put away', async () => {
  await removeFolder(folder);
  await postgres.dispose();
});
