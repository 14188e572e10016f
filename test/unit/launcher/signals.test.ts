import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { type FleetSignal, onSignal, type SignalTarget } from '../../../src/launcher/signals.ts';
import { log } from '../../../src/log/logger.ts';

interface Case {
  readonly signal: FleetSignal;
  readonly state?: Partial<Pick<SignalTarget, 'isPaused' | 'isSuspended' | 'isStopping'>>;
  readonly text: string;
  readonly act: string | null;
}

const cases: Case[] = [
  {
    signal: 'SIGTERM',
    text: 'got SIGTERM, shutting down, waiting for all clients disconnect',
    act: 'stop wait_for_clients',
  },
  {
    signal: 'SIGINT',
    text: 'got SIGINT, shutting down, waiting for all servers connections to be released',
    act: 'stop wait_for_servers',
  },
  {
    signal: 'SIGTERM',
    state: { isStopping: true },
    text: 'got SIGTERM while shutting down, fast exit',
    act: 'stop now',
  },
  {
    signal: 'SIGINT',
    state: { isStopping: true },
    text: 'got SIGINT while shutting down, fast exit',
    act: 'stop now',
  },
  { signal: 'SIGQUIT', text: 'got SIGQUIT, fast exit', act: 'stop now' },
  { signal: 'SIGHUP', text: 'got SIGHUP, re-reading config', act: 'reload' },
  { signal: 'SIGUSR1', text: 'got SIGUSR1, pausing all activity', act: 'pause' },
  {
    signal: 'SIGUSR1',
    state: { isStopping: true },
    text: 'got SIGUSR1, pausing all activity',
    act: 'pause',
  },
  {
    signal: 'SIGUSR1',
    state: { isPaused: true },
    text: 'got SIGUSR1, but already paused/suspended',
    act: null,
  },
  {
    signal: 'SIGUSR2',
    state: { isPaused: true },
    text: 'got SIGUSR2, continuing from PAUSE',
    act: 'resume',
  },
  {
    signal: 'SIGUSR2',
    state: { isPaused: true, isSuspended: true },
    text: 'got SIGUSR2, continuing from SUSPEND',
    act: 'resume',
  },
  { signal: 'SIGUSR2', text: 'got SIGUSR2, but not paused/suspended', act: null },
  {
    signal: 'SIGUSR2',
    state: { isPaused: true, isStopping: true },
    text: 'got SIGUSR2 while shutting down, ignoring',
    act: null,
  },
];

/** A fleet in which nothing is the matter. */
const TARGET: SignalTarget = {
  isPaused: false,
  isSuspended: false,
  isStopping: false,
  exitStatus: 0,
  stop: () => {},
  pause: () => {},
  resume: () => {},
  requestReload: () => {},
};

/** Runs a signal against a fleet in a state. Returns what was logged and what was done. */
function observe(t: TestContext, { signal, state }: Case): { text: string; acts: string[] } {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-signals-'));
  const logfile = join(folder, 'log');
  log.configure({ stderr: false, logfile, verbose: 0 });
  t.after(() => {
    log.configure({ stderr: true, logfile: '', verbose: 0 });
    rmSync(folder, { recursive: true });
  });
  const acts: string[] = [];
  onSignal(signal, {
    ...TARGET,
    stop: (mode) => acts.push(`stop ${mode}`),
    pause: () => acts.push('pause'),
    resume: () => acts.push('resume'),
    requestReload: () => acts.push('reload'),
    ...state,
  });
  return { text: readFileSync(logfile, 'utf8').split(' LOG ')[1]!.trimEnd(), acts };
}

for (const entry of cases) {
  const when = Object.keys(entry.state ?? {}).join(' and ') || 'plain';
  test(`${entry.signal} (${when}) logs PgBouncer's line and does ${entry.act ?? 'nothing'}`, (t) => {
    const { text, acts } = observe(t, entry);
    assert.equal(text, entry.text);
    assert.deepEqual(acts, entry.act === null ? [] : [entry.act]);
  });
}

test('a suspended fleet that is told to stop ends at once, with an error', (t) => {
  const lines: string[] = [];
  t.mock.method(log, 'info', (text: string) => lines.push(text));
  t.mock.method(log, 'fatal', (text: string) => lines.push(text));
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    lines.length = 0;
    const acts: string[] = [];
    const target = {
      ...TARGET,
      isPaused: true,
      isSuspended: true,
      stop: (mode: string) => acts.push(mode),
    };
    onSignal(signal, target);
    assert.match(lines[0]!, new RegExp(`^got ${signal}, shutting down`));
    assert.equal(lines[1], 'suspend was in progress, going down immediately');
    assert.deepEqual([acts, target.exitStatus], [['now'], 1]);
  }
});
