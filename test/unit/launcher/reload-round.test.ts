import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { Config } from '../../../src/config/config.ts';
import { loadConfig } from '../../../src/config/load.ts';
import type { ReloadStep, ToWorker } from '../../../src/ipc/messages.ts';
import { type Member, ReloadRound } from '../../../src/launcher/reload-round.ts';
import { log } from '../../../src/log/logger.ts';

const VERSION = 7;
const OUTPUTS = { stderr: false, logfile: '', verbose: 0 };

function someConfig(): Config {
  const { config } = loadConfig('f', { readFile: () => '[pgbouncer]\n', version: VERSION });
  assert.ok(config);
  return config;
}

/** A worker that notes what it is asked and answers when the test says so. */
class FakeMember implements Member {
  readonly pid: number;
  readonly asked: string[] = [];
  isKilled = false;

  constructor(pid: number) {
    this.pid = pid;
  }

  send(message: ToWorker): void {
    this.asked.push(message.kind === 'reload_step' ? message.step : message.kind);
  }

  kill(): void {
    this.isKilled = true;
  }
}

/** A round over workers that a test can add to and take away. */
function begin(t: TestContext, count: number) {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  t.mock.method(log, 'error', () => {});
  const members = Array.from({ length: count }, (_, id) => new FakeMember(100 + id));
  const events: string[] = [];
  const round = new ReloadRound(someConfig(), OUTPUTS, {
    members: () => [...members],
    onDecided: () => events.push('decided'),
    onReleased: () => events.push('released'),
  });
  const result = round.run();
  const answer = (
    member: FakeMember,
    step: ReloadStep,
    refusal: string | null = null,
    version = VERSION,
  ) => round.onAnswer(member, { kind: 'reload_answer', incarnation: 1, version, step, refusal });
  /** Lets what has been settled take its course. */
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  const all = async (step: ReloadStep): Promise<void> => {
    for (const member of members) answer(member, step);
    await turn();
  };
  return { members, events, round, result, answer, all, turn };
}

test('a step begins when all have answered the one before it', async (t) => {
  const { members, events, result, answer, all, turn } = begin(t, 2);
  const [one, other] = members as [FakeMember, FakeMember];
  assert.deepEqual(one.asked, ['reload_prepare']);
  answer(one, 'prepare');
  await turn();
  assert.deepEqual([events, one.asked], [[], ['reload_prepare']]);
  answer(other, 'prepare');
  await turn();
  assert.deepEqual([events, other.asked], [['decided'], ['reload_prepare', 'commit']]);
  answer(one, 'commit');
  await turn();
  assert.deepEqual(events, ['decided']);
  answer(other, 'commit');
  await turn();
  assert.deepEqual(events, ['decided', 'released']);
  await all('release');
  assert.equal(await result, null);
  assert.deepEqual(one.asked, ['reload_prepare', 'commit', 'release']);
});

test('one that refuses is enough for nobody to switch', async (t) => {
  const { members, events, result, answer } = begin(t, 3);
  answer(members[0]!, 'prepare');
  answer(members[1]!, 'prepare', 'no such file');
  assert.equal(await result, 'worker (pid 101): no such file');
  assert.deepEqual(events, []);
  for (const { asked, isKilled } of members) {
    assert.deepEqual([asked, isKilled], [['reload_prepare', 'abort'], false]);
  }
});

test('one that ends before all have agreed is enough for nobody to switch', async (t) => {
  const { members, events, round, result } = begin(t, 2);
  const [gone] = members.splice(0, 1);
  round.onExit(gone!);
  assert.equal(await result, 'worker (pid 100) ended meanwhile');
  assert.deepEqual(events, []);
  assert.deepEqual(members[0]!.asked, ['reload_prepare', 'abort']);
});

test('one that is silent for ten seconds is enough for nobody to switch', async (t) => {
  const { members, events, result, answer } = begin(t, 2);
  answer(members[0]!, 'prepare');
  t.mock.timers.tick(9_999);
  assert.deepEqual(members[0]!.asked, ['reload_prepare']);
  t.mock.timers.tick(1);
  assert.equal(await result, 'worker (pid 101): did not answer within 10s');
  assert.deepEqual(events, []);
  assert.deepEqual(members[0]!.asked, ['reload_prepare', 'abort']);
});

test('one that ends after the decision is not waited for', async (t) => {
  const { members, events, round, result, all, answer, turn } = begin(t, 2);
  await all('prepare');
  const [gone] = members.splice(0, 1);
  round.onExit(gone!);
  answer(members[0]!, 'commit');
  await turn();
  assert.deepEqual(events, ['decided', 'released']);
  await all('release');
  assert.equal(await result, null);
  assert.deepEqual(gone!.asked, ['reload_prepare', 'commit']);
});

for (const [how, fail] of [
  ['refuses', (given: ReturnType<typeof begin>) => given.answer(given.members[1]!, 'commit', 'no')],
  ['is silent', (_given: unknown, t: TestContext) => t.mock.timers.tick(10_000)],
] as const) {
  test(`one that ${how} after the decision is killed, and the limits wait until it is gone`, async (t) => {
    const given = begin(t, 2);
    const { members, events, round, result, all, answer, turn } = given;
    await all('prepare');
    answer(members[0]!, 'commit');
    fail(given, t);
    await turn();
    assert.deepEqual([members[0]!.isKilled, members[1]!.isKilled], [false, true]);
    assert.deepEqual(events, ['decided']);
    const [gone] = members.splice(1, 1);
    round.onExit(gone!);
    await turn();
    assert.deepEqual(events, ['decided', 'released']);
    await all('release');
    assert.equal(await result, null);
  });
}

test('one that was started while the others were asked has to follow', async (t) => {
  const { members, result, all, answer, turn } = begin(t, 1);
  const late = new FakeMember(200);
  answer(members[0]!, 'prepare');
  members.push(late);
  await turn();
  assert.deepEqual(late.asked, ['reload_prepare', 'commit']);
  answer(late, 'prepare');
  await all('commit');
  await all('release');
  assert.equal(await result, null);
  assert.deepEqual(late.asked, ['reload_prepare', 'commit', 'release']);
});

test('one that was started between decision and release is told of the release', async (t) => {
  const { members, result, all, answer, turn } = begin(t, 1);
  await all('prepare');
  const late = new FakeMember(200);
  answer(members[0]!, 'commit');
  members.push(late);
  await turn();
  assert.deepEqual(late.asked, ['release']);
  await all('release');
  assert.equal(await result, null);
});

test('answers to another round, to another step or of strangers count for nothing', async (t) => {
  const { members, result, all, answer, turn } = begin(t, 1);
  const [member] = members as [FakeMember];
  answer(member, 'prepare', null, VERSION - 1);
  answer(member, 'prepare', 'late', VERSION - 1);
  answer(member, 'commit');
  answer(new FakeMember(300), 'prepare');
  await turn();
  assert.deepEqual(member.asked, ['reload_prepare']);
  await all('prepare');
  answer(member, 'prepare', 'changed its mind');
  await all('commit');
  await all('release');
  assert.equal(await result, null);
});

test('without a worker the configuration is in force at once', async (t) => {
  const { events, result } = begin(t, 0);
  assert.equal(await result, null);
  assert.deepEqual(events, ['decided', 'released']);
});
