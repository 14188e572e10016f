/**
 * `npm test`: the unit tests in one process, then every integration, conformance and fault file in
 * a process of its own, two at a time. Everything that a file starts inherits a mark in its
 * environment; what still runs when the file has ended is reported as a failure, and ended.
 *
 *   node test/run.ts [--long] [part of a path…]
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { chmod, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { giveToServer } from './support/account.ts';
import { missingOpenssl } from './support/certs.ts';
import { temporaryFolder } from './support/folders.ts';
import { processesWith, signalIfRunning } from './support/processes.ts';
import { NODE, REPOSITORY } from './support/repository.ts';
import { until } from './support/until.ts';

const PARALLEL_FILES = 2;
const FILE_MARK = 'PGFLEET_TEST_FILE';

/** The counts that Node's test runner prints at its end, in its order. */
const COUNTS = ['tests', 'suites', 'pass', 'fail', 'cancelled', 'skipped', 'todo'] as const;
type Counts = Record<(typeof COUNTS)[number], number>;

const { values: flags, positionals: wanted } = parseArgs({
  allowPositionals: true,
  options: { long: { type: 'boolean', default: false } },
});
const fileDeadlineMs = flags.long ? 3_600_000 : 480_000;
const testDeadlineMs = flags.long ? 1_800_000 : 240_000;
const startedAt = performance.now();
const folder = mkdtempSync(join(temporaryFolder(), 'pgfleet-test-'));
const compiled = join(folder, 'compiled');
const totals = noCounts();
const failures: string[] = [];
/** Why files that make certificates cannot run; null: they can. */
const noCertificates = await missingOpenssl();

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.once(signal, () => {
    for (const { pid } of processesWith('PGFLEET_TEST_FOLDER', folder)) {
      signalIfRunning(pid, 'SIGKILL');
    }
    rmSync(folder, { recursive: true, force: true });
    process.exit(130);
  });
}

try {
  await chmod(folder, 0o755);
  await giveToServer(folder);
  await mkdir(compiled);
  await chmod(compiled, 0o777);
  const unit = testFiles('unit');
  if (unit.length > 0) await runFiles('unit', unit);
  const queue = ['integration', 'conformance', 'fault'].flatMap(testFiles);
  const lanes = Array.from({ length: PARALLEL_FILES }, async () => {
    for (let file = queue.shift(); file !== undefined; file = queue.shift()) {
      await runFiles(file, [file]);
    }
  });
  await Promise.all(lanes);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
if (totals.tests === 0) failures.push('no test was run');
printSummary();
process.exitCode = failures.length === 0 ? 0 : 1;

/** Test files below `test/<room>`, narrowed to those that the command line asks for. */
function testFiles(room: string): string[] {
  const base = join(REPOSITORY, 'test', room);
  let names: string[];
  try {
    names = readdirSync(base, { recursive: true, encoding: 'utf8' });
  } catch {
    return [];
  }
  return names
    .filter((name) => name.endsWith('.test.ts'))
    .map((name) => join('test', room, name))
    .filter((path) => wanted.length === 0 || wanted.some((part) => path.includes(part)))
    .filter(canRun)
    .sort();
}

/** Counts a file as skipped that makes certificates where nothing can. */
function canRun(path: string): boolean {
  if (noCertificates === null) return true;
  if (!readFileSync(join(REPOSITORY, path), 'utf8').includes('makeCerts')) return true;
  console.log(`﹣ ${path} # ${noCertificates}`);
  totals.tests++;
  totals.skipped++;
  if (process.env['PGFLEET_NO_SKIP'] === '1') {
    failures.push(`${path}: ${noCertificates}, and no test may be skipped`);
  }
  return false;
}

/** Runs `files` in one process, prints what it said, and adds up its counts. */
async function runFiles(title: string, files: readonly string[]): Promise<void> {
  const mark = `${folder}/${title}`;
  const child = spawn(
    NODE,
    [
      `--import=${join(REPOSITORY, 'test/support/no-leaks.ts')}`,
      '--test',
      '--test-isolation=none',
      '--test-force-exit',
      `--test-timeout=${testDeadlineMs}`,
      '--test-reporter=spec',
      ...files,
    ],
    {
      cwd: REPOSITORY,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        ...withoutRunner(process.env),
        PGFLEET_TEST_FOLDER: folder,
        // Hundreds of fleets are started, by two accounts: each of their programs is compiled once.
        NODE_COMPILE_CACHE: compiled,
        [FILE_MARK]: mark,
        ...(flags.long ? { PGFLEET_LONG: '1' } : {}),
      },
    },
  );
  const output: Buffer[] = [];
  child.stdout.on('data', (chunk: Buffer) => output.push(chunk));
  child.stderr.on('data', (chunk: Buffer) => output.push(chunk));
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    child.kill('SIGKILL');
  }, fileDeadlineMs);
  // 'exit' and not 'close': a process left behind would hold the pipes open.
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', resolve);
  });
  clearTimeout(timer);
  const left = await endLeftovers(mark);
  const text = Buffer.concat(output).toString('utf8');
  process.stdout.write(`\n=== ${title}\n${text}`);

  const counts = readCounts(text);
  for (const name of COUNTS) totals[name] += counts?.[name] ?? 0;
  const problems = [
    ...(isLate ? [`did not end within ${fileDeadlineMs / 1000} s`] : []),
    ...(code === 0 || isLate ? [] : [`ended with status ${code}`]),
    ...(counts === null || counts.tests === 0 ? ['ran no test'] : []),
    // A hook that fails, as the watch for leaks does, is in no count and in no status.
    ...(code === 0 && text.includes('✖ failing tests') ? ['a hook failed, see above'] : []),
    ...(process.env['PGFLEET_NO_SKIP'] === '1' && (counts?.skipped ?? 0) > 0
      ? [`skipped ${counts?.skipped}, and nothing may be`]
      : []),
    ...left.map((leftover) => `left a process behind: ${leftover}`),
  ];
  if (problems.length > 0) {
    failures.push(`${title}: ${problems.join('; ')}`);
    if ((counts?.fail ?? 0) + (counts?.cancelled ?? 0) === 0) totals.fail++;
  }
}

/** Ends what still carries the file's mark, and says what that was. */
async function endLeftovers(mark: string): Promise<string[]> {
  // Backends end a moment after the server process that was waited for.
  await until('all ended', () => processesWith(FILE_MARK, mark).length === 0, {
    deadlineMs: 1_000,
  }).catch(() => undefined);
  return processesWith(FILE_MARK, mark).map(({ pid, command }) => {
    signalIfRunning(pid, 'SIGKILL');
    return `${command} (${pid})`;
  });
}

/** The closing lines of Node's spec reporter; null when there are none. */
function readCounts(text: string): Counts | null {
  const counts = noCounts();
  let isFound = false;
  for (const line of text.split('\n')) {
    const [, name, value] = /^ℹ (\w+) (\d+)$/.exec(line) ?? [];
    if (name === undefined || !(name in counts)) continue;
    counts[name as keyof Counts] = Number(value);
    isFound = true;
  }
  return isFound ? counts : null;
}

/** Failures by file, then the sums in the form of Node's own closing lines. */
function printSummary(): void {
  const seconds = (performance.now() - startedAt) / 1000;
  console.log(`\n=== all test files, ${seconds.toFixed(0)} s`);
  for (const failure of failures) console.log(`✖ ${failure}`);
  for (const name of COUNTS) console.log(`ℹ ${name} ${totals[name]}`);
  console.log(`ℹ duration_ms ${(seconds * 1000).toFixed(3)}`);
}

function noCounts(): Counts {
  return { tests: 0, suites: 0, pass: 0, fail: 0, cancelled: 0, skipped: 0, todo: 0 };
}

/** A test process must not take itself for a child of the runner that may have started this one. */
function withoutRunner(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const { NODE_TEST_CONTEXT: _, ...rest } = env;
  return rest;
}
