import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Level, levelOf } from '../../../src/log/level.ts';
import { Logger } from '../../../src/log/logger.ts';

function failure(code: string, errno: number): Error {
  return Object.assign(new Error(code), { code, errno });
}

/** A logger whose every write is answered by the next of `answers`: an error, or a count to take. */
function scripted(answers: (Error | number)[]) {
  const taken: string[] = [];
  const logger = new Logger((_descriptor, bytes, from) => {
    const answer = answers.shift() ?? bytes.length;
    if (answer instanceof Error) throw answer;
    const end = Math.min(bytes.length, from + answer);
    taken.push(bytes.toString('utf8', from, end));
    return end - from;
  });
  return { logger, taken };
}

function folder(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), 'pgfleet-log-'));
  t.after(() => rmSync(path, { recursive: true }));
  return path;
}

test('verbose 0 shows up to LOG, 1 adds DEBUG, 2 and 3 add NOISE', () => {
  assert.deepEqual([0, 1, 2, 3].map(levelOf), [Level.LOG, Level.DEBUG, Level.NOISE, Level.NOISE]);
  const { logger, taken } = scripted([]);
  logger.debug('hidden');
  logger.level = Level.DEBUG;
  logger.debug('shown');
  logger.noise('hidden');
  assert.equal(taken.length, 1);
  assert.match(taken[0]!, /\] DEBUG shown\n$/);
});

test('a line is one write', () => {
  const { logger, taken } = scripted([]);
  logger.info('a\nb');
  assert.equal(taken.length, 1);
});

test('a full pipe is offered the line again', () => {
  const { logger, taken } = scripted([failure('EAGAIN', -11), failure('EAGAIN', -11)]);
  logger.info('late');
  assert.match(taken.join(''), /LOG late\n$/);
  assert.equal(logger.dropped, 0);
});

test('a line that no output takes is counted, and the count is told when writing works again', () => {
  const full = failure('ENOSPC', -28);
  const { logger, taken } = scripted([full, full, full]);
  logger.info('one');
  logger.info('two');
  assert.equal(logger.dropped, 2);
  logger.info('three');
  assert.match(taken[0]!, /\] WARNING 2 log lines lost: No space left on device\n$/);
  assert.match(taken[1]!, /\] LOG three\n$/);
});

test('after a line that was torn the next one begins on a line of its own', () => {
  const { logger, taken } = scripted([5, failure('ENOSPC', -28)]);
  logger.info('one');
  logger.info('two');
  assert.equal(taken[0]!.length, 5);
  assert.match(taken[1]!, /^\n\d{4}-.* WARNING 1 log lines lost/);
});

test('quiet turns stderr off and leaves the file', (t) => {
  const file = join(folder(t), 'log');
  const logger = new Logger((descriptor, bytes) => {
    assert.ok(descriptor > 2);
    return bytes.length;
  });
  logger.configure({ stderr: false, logfile: file, verbose: 0 });
  logger.info('x');
  logger.configure({ stderr: false, logfile: '', verbose: 0 });
});

test('a renamed file is let go on reopen and its name is used again', (t) => {
  const file = join(folder(t), 'log');
  const logger = new Logger();
  logger.configure({ stderr: false, logfile: file, verbose: 0 });
  logger.info('one');
  renameSync(file, `${file}.1`);
  logger.info('two');
  logger.reopen();
  logger.info('three');
  assert.match(readFileSync(`${file}.1`, 'utf8'), /LOG one\n.*LOG two\n$/);
  assert.match(readFileSync(file, 'utf8'), /^[^\n]*LOG three\n$/);
  logger.configure({ stderr: false, logfile: '', verbose: 0 });
});

test('a file that cannot be opened at reopen leaves the old one in use and is an ERROR', (t) => {
  const parent = join(folder(t), 'sub');
  const path = mkdtempSync(`${parent}-`);
  const file = join(path, 'log');
  const logger = new Logger();
  logger.configure({ stderr: false, logfile: file, verbose: 0 });
  renameSync(path, parent);
  logger.reopen();
  const text = readFileSync(join(parent, 'log'), 'utf8');
  assert.ok(text.includes(`ERROR Cannot open logfile: '${file}': No such file or directory`));
  logger.configure({ stderr: false, logfile: '', verbose: 0 });
});

test('a file that cannot be opened at first is an exception and changes nothing', () => {
  const { logger, taken } = scripted([]);
  assert.throws(() => logger.configure({ stderr: false, logfile: '/no/such/log', verbose: 2 }), {
    code: 'ENOENT',
  });
  logger.info('still to stderr');
  assert.equal(taken.length, 1);
});
