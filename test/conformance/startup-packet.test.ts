/** What a StartupMessage may ask for, and in which order its faults are found. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { startup } from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import type { RuleCase, RuleOptions } from '../support/rule.ts';
import { rules } from '../support/rules.ts';
import { APP, type Dialogue, fatal, rawStartup, ruleOf, WELCOME } from '../support/transcript.ts';
import { WireClient } from '../support/wire-client.ts';

const END = Buffer.of(0);
const BAD_OPTIONS = fatal(
  "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed",
);
const BAD_LAYOUT = fatal('invalid startup packet layout: expected terminator as last byte');
const unsupported = (name: string): string[] => fatal(`unsupported startup parameter: ${name}`);
const unsupportedOption = (name: string): string[] =>
  fatal(`unsupported startup parameter in options: ${name}`);
const withOptions = (options: string): Buffer => startup({ ...APP, options });

const LAYOUT: readonly Dialogue[] = [
  {
    name: 'a packet without its terminator is refused',
    steps: [rawStartup('user', 'app')],
    says: BAD_LAYOUT,
    since: '1.20',
  },
  {
    name: 'a byte behind the terminator is refused',
    steps: [rawStartup('user', 'app', Buffer.of(0, 0))],
    says: BAD_LAYOUT,
    since: '1.20',
  },
  {
    name: 'a value without its NUL is refused',
    steps: [rawStartup('user', Buffer.from('app'))],
    says: BAD_LAYOUT,
    since: '1.20',
  },
  {
    name: 'a packet of its code alone is refused',
    steps: [rawStartup()],
    says: BAD_LAYOUT,
    since: '1.20',
  },
];

const KEYS: readonly Dialogue[] = [
  {
    name: 'a packet without a database means the one of the user’s name',
    steps: [startup({ user: 'app' })],
    says: WELCOME,
  },
  {
    name: 'an empty database means the one of the user’s name',
    steps: [startup({ user: 'app', database: '' })],
    says: WELCOME,
  },
  {
    name: 'the last database counts',
    steps: [rawStartup('user', 'app', 'database', 'nowhere', 'database', 'app', END)],
    says: WELCOME,
  },
  {
    name: 'the last user counts',
    steps: [rawStartup('user', 'nobody', 'user', 'app', 'database', 'app', END)],
    says: WELCOME,
  },
  {
    name: 'a packet without a user is refused',
    steps: [startup({ database: 'app' })],
    says: fatal('no username supplied'),
  },
  {
    name: 'an empty user is refused',
    steps: [startup({ user: '', database: 'app' })],
    says: fatal('no username supplied'),
  },
  ...['User', 'Database', 'Options'].map((name) => ({
    name: `${name} is not the key in small letters`,
    steps: [startup({ ...APP, [name]: 'app' })],
    says: unsupported(name),
  })),
  ...['geqo', 'statement_timeout', 'x'].map((name) => ({
    name: `a parameter that is neither tracked nor ignored is refused: ${name}`,
    steps: [startup({ ...APP, [name]: 'on' })],
    says: unsupported(name),
  })),
  {
    name: 'the first of two unsupported parameters is named',
    steps: [startup({ ...APP, geqo: 'off', work_mem: '1MB' })],
    says: unsupported('geqo'),
  },
  ...['extra_float_digits', 'search.path', 'geqo_seed'].map((name) => ({
    name: `a parameter of ignore_startup_parameters is dropped, commas or blanks around it: ${name}`,
    steps: [startup({ ...APP, [name]: '2' })],
    says: WELCOME,
  })),
  {
    name: 'ignore_startup_parameters means its exact letters',
    steps: [startup({ ...APP, Extra_Float_Digits: '2' })],
    says: unsupported('Extra_Float_Digits'),
  },
  {
    name: 'a tracked parameter may be written in any letters',
    steps: [startup({ ...APP, dateSTYLE: 'German' })],
    says: WELCOME,
  },
  ...['false', 'off', 'no', '0', 'nonsense', ''].map((value) => ({
    name: `replication=${value} asks for no replication`,
    steps: [startup({ ...APP, replication: value })],
    says: WELCOME,
    since: '1.23',
  })),
];

const OPTIONS: readonly Dialogue[] = [
  ...[
    '',
    '-c datestyle=German',
    '-cdatestyle=German',
    '-c    datestyle=German',
    '--datestyle=German',
    '  --datestyle=German -c TimeZone=UTC  --application_name=x',
    '-c DATESTYLE=ISO',
    '-c datestyle=ISO,\\ DMY',
    '-c date\\style\\=ISO',
    '-c application_name=a\\\\b',
    '-c application_name=a\\',
    '-c application_name=a=b=c',
    '-c application_name=',
    '-c extra_float_digits=3',
  ].map((options) => ({
    name: `options '${options}' are taken`,
    steps: [withOptions(options)],
    says: WELCOME,
    since: '1.20',
  })),
  ...['-c datestyle=German ', '   '].map((options) => ({
    name: `blanks at the end do no harm: options '${options}'`,
    steps: [withOptions(options)],
    says: WELCOME,
    since: '1.20',
    bouncer: { because: 'PgBouncer takes them for the begin of another one', says: BAD_OPTIONS },
  })),
  ...[
    ['-c geqo=off', 'geqo'],
    ['--geqo=off', 'geqo'],
    ['-c datestyle=ISO -c geqo=off', 'geqo'],
    ['--application-name=x', 'application-name'],
    ['-c Extra_Float_Digits=1', 'Extra_Float_Digits'],
    ['-c user=app', 'user'],
    ['-c _pq_.a=1', '_pq_.a'],
    ['-c =5', ''],
    ['--=5', ''],
  ].map(([options, name]) => ({
    name: `options '${options}' name what is not supported`,
    steps: [withOptions(options!)],
    says: unsupportedOption(name!),
    since: '1.20',
  })),
  ...[
    '-d 5',
    '-c',
    '-c datestyle',
    '--datestyle',
    '\t-c datestyle=ISO',
    '-c\tdatestyle=ISO',
    '-c datestyle=ISO\n-c TimeZone=UTC',
    '-- datestyle=ISO',
    'datestyle=ISO',
    '-C datestyle=ISO',
    '-',
    '--',
  ].map((options) => ({
    name: `options '${escape(options)}' have another form`,
    steps: [withOptions(options)],
    says: BAD_OPTIONS,
    since: '1.20',
  })),
];

/** Each packet has two faults, or more. */
const ORDER: readonly Dialogue[] = [
  {
    name: 'parameters are looked at in their order: options before',
    steps: [startup({ ...APP, options: '-d 5', geqo: 'off' })],
    says: BAD_OPTIONS,
    since: '1.20',
  },
  {
    name: 'parameters are looked at in their order: options behind',
    steps: [startup({ ...APP, geqo: 'off', options: '-d 5' })],
    says: unsupported('geqo'),
  },
  {
    name: 'all options are looked at, where there are several',
    steps: [rawStartup('user', 'app', 'options', '-c geqo=off', 'options', '', END)],
    says: unsupportedOption('geqo'),
    since: '1.20',
  },
  {
    name: 'options of a replication connection are not looked at, wherever replication stands',
    steps: [startup({ ...APP, options: '-d 5', replication: 'database', geqo: 'off' })],
    says: unsupported('geqo'),
    since: '1.23',
  },
  {
    name: 'an unsupported parameter comes before the layout',
    steps: [rawStartup('geqo', 'off')],
    says: unsupported('geqo'),
  },
  {
    name: 'the layout comes before a missing user',
    steps: [rawStartup('database', 'app')],
    says: BAD_LAYOUT,
    since: '1.20',
  },
];

/** A login with these parameters, and what a query on its server then shows. */
function shows(
  name: string,
  parameters: Readonly<Record<string, string>>,
  sql: string,
  value: string,
): RuleCase {
  return {
    name,
    since: '1.20',
    check: async (pooler) => {
      const client = await WireClient.login(pooler, { parameters });
      const rows = (await client.query(sql)).filter(({ type }) => type === 'D');
      assert.equal(rows[0]?.body.toString('utf8', 6), value);
      await client.end();
    },
  };
}

let postgres: TestPostgres;
before(async () => {
  postgres = await startPostgres();
});

const options = (): RuleOptions => ({
  postgres,
  databases: { app: '' },
  authFile: { app: 'app' },
  size: 2,
  settings: { ignore_startup_parameters: 'extra_float_digits, search.path  geqo_seed' },
});

rules('layout of the startup packet', options, LAYOUT.map(ruleOf));
rules('keys of the startup packet', options, KEYS.map(ruleOf));
rules('options of the startup packet', options, OPTIONS.map(ruleOf));
rules('order of the checks of the startup packet', options, ORDER.map(ruleOf));
rules('what the startup packet asks for', options, [
  shows(
    'a tracked parameter of the packet is set',
    { DateStyle: 'German' },
    'SHOW datestyle',
    'German, DMY',
  ),
  shows(
    'a tracked parameter of the options is set',
    { options: '-c datestyle=SQL,\\ DMY --TimeZone=Asia/Tokyo' },
    "SELECT current_setting('datestyle') || ' ' || current_setting('timezone')",
    'SQL, DMY Asia/Tokyo',
  ),
  shows(
    'of options and parameters the later one counts',
    { options: '-c application_name=first', application_name: 'second' },
    'SHOW application_name',
    'second',
  ),
  shows(
    'of parameters and options the later one counts',
    { application_name: 'first', options: '-c application_name=second' },
    'SHOW application_name',
    'second',
  ),
  shows(
    'an ignored parameter does not reach the server',
    { extra_float_digits: '3' },
    'SHOW extra_float_digits',
    '1',
  ),
]);
rules(
  'ignore_startup_parameters with the word options',
  () => ({ ...options(), settings: { ignore_startup_parameters: 'options' } }),
  [
    ruleOf({
      name: 'drops whatever in the options is not tracked',
      steps: [withOptions('-c geqo=off --datestyle=ISO')],
      says: WELCOME,
      since: '1.20',
    }),
    ruleOf({
      name: 'takes no other form of options all the same',
      steps: [withOptions('-d 5')],
      says: BAD_OPTIONS,
      since: '1.20',
    }),
    ruleOf({
      name: 'drops no parameter outside of them',
      steps: [startup({ ...APP, geqo: 'off' })],
      says: unsupported('geqo'),
    }),
  ],
);

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('PostgreSQL can be stopped when all has been asked', () => postgres.dispose());
