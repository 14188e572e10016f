import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { Config } from '../../../src/config/config.ts';
import { type LoadOptions, loadConfig } from '../../../src/config/load.ts';
import { Reloader, type ReloadResult } from '../../../src/launcher/reload.ts';
import { log } from '../../../src/log/logger.ts';

/** A reloader over files that are text in the test, and a fleet that does what the test says. */
function setUp(t: TestContext, first: string, users: string | null = null) {
  const logged: string[] = [];
  for (const level of ['error', 'warning'] as const) {
    t.mock.method(log, level, (text: string) => logged.push(`${level} ${text}`));
  }
  t.mock.method(log, 'reopen', () => logged.push('reopen'));
  t.mock.method(log, 'configure', ({ logfile }: { logfile: string }) => {
    logged.push(`log to ${logfile || 'stderr'}`);
  });
  const state = { text: first, users, refusal: null as string | null };
  const read: string[] = [];
  const load = (file: string, options: LoadOptions = {}) =>
    loadConfig(file, {
      ...options,
      readFile: (path) => {
        read.push(path);
        if (path !== 'users') return state.text;
        if (state.users === null) throw Object.assign(new Error('gone'), { code: 'ENOENT' });
        return state.users;
      },
    });
  const { config, reads } = load('main.ini');
  assert.ok(config);
  read.length = 0;
  const spread: Config[] = [];
  let hold: Promise<void> | null = null;
  const reloader = new Reloader({
    config,
    reads,
    size: 4,
    outputsOf: ({ settings }) => ({ stderr: true, logfile: settings.logfile, verbose: 0 }),
    spread: async (next, _outputs, onDecided) => {
      spread.push(next);
      await hold;
      if (state.refusal === null) onDecided();
      return state.refusal;
    },
    reopenLogs: () => logged.push('workers reopen'),
    load,
  });
  const holdOn = (): (() => void) => {
    let goOn: () => void = () => {};
    hold = new Promise((resolve) => {
      goOn = resolve;
    });
    return goOn;
  };
  return { state, reloader, logged, read, spread, holdOn };
}

const MAIN = '[pgbouncer]\n';
const OK: ReloadResult = { ok: true };
const NOT_APPLIED = 'TLS settings could not be applied, still using old configuration';

test('a changed file is in force when the fleet has taken it', async (t) => {
  const { state, reloader, logged, spread } = setUp(t, `${MAIN}query_timeout = 1\n`);
  state.text = `${MAIN}query_timeout = 2\n`;
  assert.deepEqual(await reloader.reload(), OK);
  assert.equal(reloader.config.settings.query_timeout, 2);
  assert.equal(spread[0], reloader.config);
  assert.equal(spread[0]!.version, 2);
  assert.deepEqual(logged, ['log to stderr']);
});

test('a file with errors is told line by line, and nothing else happens', async (t) => {
  const { state, reloader, logged, spread } = setUp(t, MAIN);
  const old = reloader.config;
  state.text = `${MAIN}query_timeout = 2\nlisten_backlog = x\nnone = 1\n`;
  const text = 'main.ini:3: listen_backlog: invalid value "x" for parameter listen_backlog';
  const result = await reloader.reload();
  assert.ok(!result.ok);
  assert.equal(result.text.startsWith(text), true, result.text);
  assert.equal(reloader.config, old);
  assert.deepEqual(spread, []);
  assert.equal(logged.length, 5);
  assert.equal(logged[0], `error ${result.text}`);
  assert.match(logged[1]!, /^error main\.ini:4: none: unknown parameter/);
  assert.deepEqual(logged.slice(2), [
    'warning config file loading failed',
    'reopen',
    'workers reopen',
  ]);
});

test('what a worker refuses is told, and the next attempt has a version of its own', async (t) => {
  const { state, reloader, logged, spread } = setUp(t, MAIN);
  const old = reloader.config;
  state.refusal = 'worker (pid 1): no';
  assert.deepEqual(await reloader.reload(), { ok: false, text: 'worker (pid 1): no' });
  assert.equal(reloader.config, old);
  assert.deepEqual(logged.slice(0, 2), [
    'error worker (pid 1): no',
    'warning config file loading failed',
  ]);
  state.refusal = null;
  assert.deepEqual(await reloader.reload(), OK);
  assert.deepEqual(
    spread.map(({ version }) => version),
    [2, 3],
  );
});

test('the file named by conffile is the one that is read', async (t) => {
  const { state, reloader, read } = setUp(t, MAIN);
  state.text = `${MAIN}conffile = other.ini\n`;
  await reloader.reload();
  await reloader.reload();
  assert.deepEqual(read, ['main.ini', 'other.ini']);
});

test('users stay when their file cannot be read, and go when the file is not wanted', async (t) => {
  const text = `${MAIN}auth_type = plain\nauth_file = users\n`;
  const { state, reloader, logged } = setUp(t, text, '"a" "b"\n');
  state.users = null;
  assert.deepEqual(await reloader.reload(), OK);
  assert.equal(reloader.config.authUsers?.[0]?.name, 'a');
  assert.match(logged[0]!, /^warning .*could not open auth_file users: Gone$/);
  state.users = '"c" "d"\n';
  await reloader.reload();
  assert.equal(reloader.config.authUsers?.[0]?.name, 'c');
  state.text = MAIN;
  await reloader.reload();
  assert.equal(reloader.config.authUsers, null);
});

test('a log file that cannot be opened is refused before the fleet is asked', async (t) => {
  const { state, reloader, logged, spread } = setUp(t, MAIN);
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-reload-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'none', 'log');
  state.text = `${MAIN}logfile = ${path}\n`;
  const text = `Cannot open logfile: '${path}': No such file or directory`;
  assert.deepEqual(await reloader.reload(), { ok: false, text });
  assert.equal(logged[0], `error ${text}`);
  assert.deepEqual(spread, []);
  state.text = `${MAIN}logfile = ${join(folder, 'log')}\n`;
  assert.deepEqual(await reloader.reload(), OK);
  assert.equal(logged.at(-1), `log to ${join(folder, 'log')}`);
});

test('what is dropped, kept until a restart or too small for the fleet is told once', async (t) => {
  const { state, reloader, logged } = setUp(
    t,
    `${MAIN}max_db_connections = 2\n[databases]\na = host=h\nb = host=h\n[peers]\n1 = host=h\n`,
  );
  state.text = `${MAIN}max_db_connections = 2\nlisten_port = 9\n[databases]\nb = host=h pool_size=3\n`;
  await reloader.reload();
  const told = logged.map((text) => text.split(',')[0]);
  assert.deepEqual(told, [
    'warning changed in the file but kept until a restart: listen_port',
    "warning dropping database 'a' as it does not exist anymore or inactive auto-database",
    'warning dropping peer 1 as it does not exist anymore',
    'warning pool_size of database b is 3',
    'log to stderr',
  ]);
});

test('calls during a reload wait for it, and one more reload serves them all', async (t) => {
  const { state, reloader, spread, holdOn } = setUp(t, `${MAIN}query_timeout = 1\n`);
  const goOn = holdOn();
  state.text = `${MAIN}query_timeout = 2\n`;
  const first = reloader.reload();
  state.text = `${MAIN}query_timeout = 3\n`;
  const later = [reloader.reload(), reloader.reload()];
  assert.equal(spread.length, 1);
  goOn();
  assert.deepEqual(await first, OK);
  assert.deepEqual(await Promise.all(later), [OK, OK]);
  assert.equal(spread.length, 2);
  assert.equal(reloader.config.settings.query_timeout, 3);
});

test('a setting that is set holds for all until the next reload, and nothing else is read', async (t) => {
  const { state, reloader, read, spread, logged } = setUp(t, `${MAIN}query_timeout = 1\n`);
  state.text = `${MAIN}query_timeout = 2\n`;
  assert.deepEqual(await reloader.set('max_client_conn', '101'), OK);
  assert.deepEqual(await reloader.set('pool_mode', 'STATEMENT'), OK);
  const { settings, given, version } = reloader.config;
  assert.deepEqual(
    [settings.max_client_conn, settings.pool_mode, settings.query_timeout, version],
    [101, 'statement', 1, 3],
  );
  assert.deepEqual(given, ['query_timeout', 'max_client_conn', 'pool_mode']);
  assert.equal(spread[1], reloader.config);
  assert.deepEqual([read, logged], [[], ['log to stderr', 'log to stderr']]);
  assert.deepEqual(await reloader.reload(), OK);
  assert.deepEqual(
    [reloader.config.settings.max_client_conn, reloader.config.settings.query_timeout],
    [100, 2],
  );
  await reloader.set('query_wait_timeout', '0.5');
  const after = reloader.config.settings;
  assert.deepEqual([after.query_timeout, after.max_client_conn], [2, 100]);
});

test('what is set stays when a reload fails', async (t) => {
  const { state, reloader } = setUp(t, MAIN);
  await reloader.set('max_client_conn', '101');
  state.text = `${MAIN}nonsense = 1\n`;
  assert.equal((await reloader.reload()).ok, false);
  await reloader.set('query_timeout', '3');
  const { settings } = reloader.config;
  assert.deepEqual([settings.max_client_conn, settings.query_timeout], [101, 3]);
});

test('a setting that there is not, or that cannot be read, is refused with a reason', async (t) => {
  const { reloader, spread, logged } = setUp(t, MAIN);
  for (const [key, value, why] of [
    ['nothing', '1', 'there is no setting nothing'],
    ['MAX_CLIENT_CONN', '1', 'there is no setting MAX_CLIENT_CONN'],
    ['size', '2', 'there is no setting size'],
    ['service_name', 'x', 'there is no setting service_name'],
    ['max_client_conn', 'many', 'SET: max_client_conn: invalid value "many" for parameter max_'],
  ] as const) {
    const result = await reloader.set(key, value);
    assert.ok(!result.ok);
    assert.ok(result.text.startsWith(why), result.text);
  }
  const unknown = ['nothing', 'MAX_CLIENT_CONN', 'size', 'service_name'];
  const lines = unknown.map((key) => `error unknown parameter: pgbouncer/${key}`);
  assert.deepEqual([spread, logged], [[], lines]);
});

test('what only a restart can change is ignored without a word', async (t) => {
  const { reloader, spread } = setUp(t, MAIN);
  const old = reloader.config;
  assert.deepEqual(await reloader.set('listen_port', 'anything'), OK);
  assert.deepEqual([reloader.config, spread], [old, []]);
});

test('a TLS setting that cannot be used is noted until the others are there', async (t) => {
  const { state, reloader, spread } = setUp(t, MAIN);
  state.refusal = 'worker (pid 1): no such file';
  assert.deepEqual(await reloader.set('server_tls_key_file', 'k'), {
    ok: true,
    notice: NOT_APPLIED,
  });
  assert.equal(reloader.config.settings.server_tls_key_file, '');
  state.refusal = null;
  assert.deepEqual(await reloader.set('max_client_conn', '5'), OK);
  assert.equal(spread.at(-1)!.settings.server_tls_key_file, '');
  assert.deepEqual(await reloader.set('server_tls_cert_file', 'c'), OK);
  const { settings } = reloader.config;
  assert.deepEqual(
    [settings.server_tls_key_file, settings.server_tls_cert_file, settings.max_client_conn],
    ['k', 'c', 5],
  );
});

test('a TLS setting is noted too when the launcher itself finds that it cannot be used', async (t) => {
  const { reloader, spread } = setUp(t, MAIN);
  assert.deepEqual(await reloader.set('client_tls_sslmode', 'require'), {
    ok: true,
    notice: NOT_APPLIED,
  });
  assert.deepEqual(spread, []);
  assert.equal(reloader.config.settings.client_tls_sslmode, 'disable');
  const result = await reloader.set('client_tls_sslmode', 'sometimes');
  assert.equal(result.ok, false);
  assert.deepEqual(await reloader.set('client_tls_sslmode', 'disable'), OK);
});

test('any other setting that a worker refuses is refused', async (t) => {
  const { state, reloader } = setUp(t, MAIN);
  state.refusal = 'worker (pid 1): no';
  const result = await reloader.set('max_client_conn', '5');
  assert.deepEqual(result, { ok: false, text: 'worker (pid 1): no' });
  assert.equal(reloader.config.settings.max_client_conn, 100);
});

test('SET conffile makes the next reload read another file', async (t) => {
  const { reloader, read } = setUp(t, MAIN);
  await reloader.set('conffile', 'other.ini');
  assert.equal(reloader.config.settings.conffile, 'other.ini');
  await reloader.set('query_timeout', '1');
  assert.deepEqual([reloader.config.settings.conffile, read], ['other.ini', []]);
  await reloader.reload();
  assert.deepEqual([read, reloader.config.settings.conffile], [['other.ini'], 'other.ini']);
});

test('reloads and settings that come together are done one after the other', async (t) => {
  const { state, reloader, spread, holdOn } = setUp(t, `${MAIN}query_timeout = 1\n`);
  const goOn = holdOn();
  const results = [
    reloader.set('query_timeout', '7'),
    reloader.reload(),
    reloader.set('query_wait_timeout', '8'),
    reloader.reload(),
  ];
  state.text = `${MAIN}query_timeout = 2\n`;
  assert.equal(spread.length, 1);
  goOn();
  assert.deepEqual(await Promise.all(results), [OK, OK, OK, OK]);
  assert.deepEqual(
    spread.map(({ settings }) => [settings.query_timeout, settings.query_wait_timeout]),
    [
      [7, 120],
      [2, 120],
      [2, 8],
    ],
  );
});
