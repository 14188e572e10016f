import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import type { TestContext } from 'node:test';
import { asServer } from './account.ts';
import { waitForEnd } from './processes.ts';

/** How a program ended and what it said. */
export interface Ended {
  /** Exit status; null when a signal ended it. */
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface ProgramOptions {
  /** All that it reads from its standard input. */
  readonly input?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Run as the account that servers run as, so that these can use the files it makes. */
  readonly asServer?: boolean;
  readonly deadlineMs?: number;
  /** Called once it has been started. */
  readonly started?: (child: ChildProcess) => void;
}

/** Runs a client program to its end; one that does not end is killed, and an error names it. */
export async function runProgram(
  program: string,
  args: readonly string[],
  options: ProgramOptions = {},
): Promise<Ended> {
  const account = options.asServer === true ? { ...asServer, cwd: '/' } : {};
  const child = spawn(program, args, { ...account, env: { ...process.env, ...options.env } });
  const output: Record<'stdout' | 'stderr', string> = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].setEncoding('utf8').on('data', (text: string) => {
      output[name] += text;
    });
  }
  // A program may end before it has read everything.
  child.stdin.on('error', () => undefined);
  child.stdin.end(options.input ?? '');
  const closed = new Promise<void>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', () => resolve());
  });
  options.started?.(child);
  await Promise.all([closed, waitForEnd(program, child, options.deadlineMs ?? 60_000)]);
  return { status: child.exitCode, ...output };
}

/**
 * Runs a program that checks several rules by itself and reports them on its standard output: first
 * `plan <count>`, then for each rule `ok <rule>`, or `not ok <rule>` with the reason on the lines
 * behind it. Each becomes a subtest.
 */
export async function reportRules(
  t: TestContext,
  program: string,
  args: readonly string[],
  options: ProgramOptions = {},
): Promise<void> {
  const { status, stdout, stderr } = await runProgram(program, args, options);
  const [head = '', ...reports] = stdout.split(/^(?=(?:not )?ok )/m);
  const planned = Number(/^plan (\d+)$/m.exec(head)?.[1] ?? Number.NaN);
  for (const report of reports) {
    const [first = '', ...reason] = report.split('\n');
    const rule = first.replace(/^(?:not )?ok /, '');
    await t.test(rule, () => assert.ok(first.startsWith('ok '), reason.join('\n')));
  }
  assert.equal(reports.length, planned, `it stopped early:\n${stdout}\n${stderr}`);
  assert.equal(status, 0, stderr);
}
