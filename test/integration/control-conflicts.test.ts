/** Consoles of several workers, and signals, that want different things of a fleet at the same time. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { ConsoleClient, loginUntilEnd } from '../support/console.ts';
import { Load } from '../support/load.ts';
import { query } from '../support/messages.ts';
import { loginInWorker, type PgfleetOptions, type TestPgfleet } from '../support/pgfleet.ts';
import { Random } from '../support/random.ts';
import { startTwoDatabases, type TwoDatabases } from '../support/two-databases.ts';
import { until, within } from '../support/until.ts';

const ROUNDS = 8;
/** How many commands each console gives in a round, all in one write. */
const BURST = 6;
/** In which every command is answered, and the fleet is in the state that was asked for last. */
const BOUND_MS = 30_000;

const COMMANDS = [
  ...['PAUSE', 'PAUSE app', 'PAUSE other', 'SUSPEND', 'RESUME', 'RESUME app', 'RESUME other'],
  ...['DISABLE app', 'DISABLE other', 'ENABLE app', 'ENABLE other', 'KILL other'],
  ...['RECONNECT', 'RECONNECT app', 'WAIT_CLOSE', 'WAIT_CLOSE other', 'KILL_CLIENT 999999999'],
  ...['RELOAD', 'SET query_wait_timeout = 99', 'SHOW POOLS', 'SHOW LISTS BY PROCESS'],
] as const;
const SHUTDOWNS = ['SHUTDOWN WAIT_FOR_CLIENTS', 'SHUTDOWN WAIT_FOR_SERVERS'];

const KNOWN = new RegExp(
  '^(PAUSE|SUSPEND|RESUME|RECONNECT|KILL|WAIT_CLOSE|DISABLE|ENABLE|RELOAD|SHOW|SHUTDOWN|' +
    'SET query_wait_timeout=99|ERROR 08P01 (already suspended/paused|client not found|' +
    'pooler is not paused/suspended|pooler is shutting down|database (app|other) is not paused|' +
    'cannot suspend with paused databases|(PAUSE|SUSPEND) was ended by RESUME))$',
);

/** A command whose answer tells that all commands before it have been begun. */
const MARK = 'SET max_client_conn = 100';
const MARKED = 'SET max_client_conn=100';

/** What brings the fleet back from wherever it is. */
const BACK = ['RESUME', 'RESUME app', 'RESUME other', 'ENABLE app', 'ENABLE other'];
/** What can be said then, and what every worker makes of it. */
const LAST_WORDS: readonly (readonly [string, string])[] = [
  ['RESUME app', 'active app:00 other:00'],
  ['PAUSE', 'paused app:00 other:00'],
  ['PAUSE app', 'active app:10 other:00'],
  ['SUSPEND', 'suspended app:00 other:00'],
  ['KILL other', 'active app:00 other:10'],
  ['DISABLE other', 'active app:00 other:01'],
];

interface Given {
  readonly fleet: TestPgfleet;
  /** One in each worker, then one more in each, and so on. */
  readonly consoles: readonly ConsoleClient[];
}

async function openConsoles(
  t: TestContext,
  fleet: TestPgfleet,
  size: number,
  count: number,
): Promise<ConsoleClient[]> {
  const admin = { user: 'postgres', database: 'pgbouncer' };
  const clients = Array.from({ length: count }, (_, i) =>
    loginInWorker(t, fleet, (worker) => worker === i % size, admin),
  );
  return (await Promise.all(clients)).map((client) => new ConsoleClient(client));
}

/** The place of a quarrel, and chance from a seed that the report names. */
async function begin(
  t: TestContext,
  size: number,
  options: PgfleetOptions,
): Promise<TwoDatabases & { readonly random: Random }> {
  const seed = Date.now() & 0xffff;
  t.diagnostic(`seed ${seed}`);
  const place = await startTwoDatabases(t, size, options);
  // A console's error is a line of level ERROR too.
  place.fleet.allowLog(/ ERROR (?!.*InvariantError)/);
  return { ...place, random: new Random(seed) };
}

/** Gives commands in one write; the answers are asked for one by one. */
function say(console: ConsoleClient, commands: readonly string[]): void {
  console.wire.send(...commands.map(query));
}

/**
 * Every console says something in one breath while signals come as well. Returns how many answers of
 * each are still to come: those of what waits, PAUSE and the like.
 */
async function quarrel(
  { fleet, consoles }: Given,
  random: Random,
  commands: readonly string[],
): Promise<number[]> {
  const signals = (async () => {
    for (const signal of ['SIGUSR1', 'SIGHUP', 'SIGUSR2'] as const) {
      const count = (): number => fleet.log().split(`got ${signal}`).length;
      const before = count();
      fleet.signal(signal);
      await until(`${signal} is heard`, () => count() > before, { deadlineMs: BOUND_MS });
    }
  })();
  const owed = consoles.map(async (console) => {
    const burst = Array.from({ length: BURST }, () => random.pick(commands));
    say(console, [...burst, MARK]);
    for (let left = burst.length; ; left--) {
      const answer = await console.answer(BOUND_MS);
      if (answer === MARKED) return left;
      assert.match(answer, KNOWN, burst.join('; '));
    }
  });
  const [counts] = await Promise.all([Promise.all(owed), signals]);
  return counts;
}

for (const [size, count] of [
  [1, 2],
  [4, 10],
] as const) {
  test(`${count} consoles of a fleet of ${size} contradict each other: all are answered, the last word counts`, async (t) => {
    const { random, postgres, fleet } = await begin(t, size, {
      settings: { log_connections: 0, log_disconnections: 0 },
    });
    const load = await Load.begin(fleet, postgres);
    const [last, ...consoles] = await openConsoles(t, fleet, size, count + 1);
    const given = { fleet, consoles };
    for (let round = 0; round < ROUNDS; round++) {
      const owed = await quarrel(given, random, COMMANDS);
      for (const sql of BACK) assert.match(await last!.run(sql), KNOWN, sql);
      for (const [i, left] of owed.entries()) {
        for (let n = 0; n < left; n++) assert.match(await consoles[i]!.answer(BOUND_MS), KNOWN);
      }
      const [word, state] = LAST_WORDS[round % LAST_WORDS.length]!;
      assert.match(await last!.run(word), KNOWN);
      await until('all workers agree', async () => {
        const states = await last!.workerStates();
        return states.length === size && states.every((one) => one === state);
      });
      for (const sql of BACK) assert.match(await last!.run(sql), KNOWN, sql);
      await load.goesOn();
    }
    await load.stop();
  });

  test(`${count} consoles of a fleet of ${size} that shut it down and do not: it ends`, async (t) => {
    const databases = { app: '', other: 'dbname=app' };
    const { random, fleet } = await begin(t, size, { databases });
    // Keeps a shutdown that waits from being over.
    const busy = await loginUntilEnd(t, fleet);
    await busy.query('BEGIN');
    const [last, ...consoles] = await openConsoles(t, fleet, size, count + 1);
    await quarrel({ fleet, consoles }, random, [...COMMANDS, ...SHUTDOWNS, ...SHUTDOWNS]);
    last!.begin('SHUTDOWN');
    await within(
      'end of everything',
      Promise.all(
        [busy, last!.wire, ...consoles.map(({ wire }) => wire)].map((one) =>
          one.untilClose(BOUND_MS),
        ),
      ),
      BOUND_MS,
    );
    assert.equal(await fleet.ended(BOUND_MS), 0);
  });
}
