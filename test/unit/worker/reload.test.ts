import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { Config } from '../../../src/config/config.ts';
import { loadConfig } from '../../../src/config/load.ts';
import type { FromWorker } from '../../../src/ipc/messages.ts';
import { log } from '../../../src/log/logger.ts';
import {
  type BuiltConfig,
  buildConfig,
  EntrySecrets,
  WorkerReload,
} from '../../../src/worker/reload.ts';

function config(settings = '', users = '', databases = ''): Config {
  const text = `[pgbouncer]\nauth_file = users\n${settings}\n[databases]\n${databases}\n`;
  const readFile = (path: string) => (path === 'users' ? users : text);
  const { config: read, problems } = loadConfig('f', { readFile });
  assert.ok(read, JSON.stringify(problems));
  return read;
}

/** A worker that only notes what it is told to do. */
function setUp(t: TestContext) {
  t.mock.method(log, 'configure', () => events.push('log'));
  const events: string[] = [];
  const answers: string[] = [];
  const worker = {
    built: buildConfig(config(), null),
    reconfigure(built: BuiltConfig): void {
      this.built = built;
      events.push('reconfigure');
    },
    release: () => void events.push('release'),
  };
  const reload = new WorkerReload(worker, 3, (message: FromWorker) => {
    assert.ok(message.kind === 'reload_answer' && message.incarnation === 3);
    answers.push(`${message.version} ${message.step} ${message.refusal ?? 'ok'}`);
  });
  const outputs = { stderr: false, logfile: '', verbose: 0 };
  const prepare = (version: number, next: Config): void =>
    reload.prepare({ kind: 'reload_prepare', version, config: next, log: outputs });
  return { worker, reload, prepare, events, answers };
}

test('what is prepared changes nothing before it is committed', (t) => {
  const { worker, reload, prepare, events, answers } = setUp(t);
  const old = worker.built;
  const next = config('query_timeout = 3');
  prepare(2, next);
  assert.equal(worker.built, old);
  assert.deepEqual(events, []);
  reload.step(2, 'commit');
  assert.equal(worker.built.index.config, next);
  reload.step(2, 'release');
  assert.deepEqual(events, ['log', 'reconfigure', 'release']);
  assert.deepEqual(answers, ['2 prepare ok', '2 commit ok', '2 release ok']);
});

test('what is aborted cannot be committed, and neither can another version', (t) => {
  const { worker, reload, prepare, events, answers } = setUp(t);
  const old = worker.built;
  prepare(2, config('query_timeout = 3'));
  reload.step(2, 'abort');
  reload.step(2, 'commit');
  prepare(3, config('query_timeout = 3'));
  reload.step(4, 'commit');
  assert.equal(worker.built, old);
  assert.deepEqual(events, []);
  assert.deepEqual(answers, [
    '2 prepare ok',
    '2 commit it has not prepared this configuration',
    '3 prepare ok',
    '4 commit it has not prepared this configuration',
  ]);
});

test('TLS files that cannot be used are refused, in PgBouncer’s words', (t) => {
  const { reload, prepare, events, answers } = setUp(t);
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-reload-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'key');
  writeFileSync(file, 'no key');
  prepare(2, config(`server_tls_sslmode = require\nserver_tls_key_file = ${file}\n`));
  reload.step(2, 'commit');
  assert.match(
    answers[0]!,
    /^2 prepare TLS configuration could not be reloaded, keeping old configuration: ./,
  );
  assert.deepEqual(events, []);
});

test('secrets of unchanged lines of auth_file stay the same objects, and users who are gone are forgotten', () => {
  const first = buildConfig(config('', '"a" "b"\n"c" "d"\n"e" "f"\n'), null);
  const next = buildConfig(config('query_timeout = 1', '"c" "d"\n"e" "other"\n'), first);
  assert.deepEqual([...next.secrets.keys()], ['c', 'e']);
  assert.equal(next.secrets.get('c'), first.secrets.get('c'));
  assert.notEqual(next.secrets.get('e'), first.secrets.get('e'));
});

test('a password of a connection string is classified once, until no line has it', () => {
  const secrets = new EntrySecrets();
  const [one, other] = [secrets.of('one'), secrets.of('other')];
  assert.equal(secrets.of('one'), one);
  secrets.retain(config('', '', 'd = host=h user=u password=one\n* = host=h'));
  assert.equal(secrets.of('one'), one);
  assert.notEqual(secrets.of('other'), other);
  secrets.retain(config('', '', 'd = host=h\n* = host=h user=u password=one'));
  assert.equal(secrets.of('one'), one);
});
