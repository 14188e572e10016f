/**
 * `npm run bench`: one pgfleet worker and one PgBouncer before the same PostgreSQL, driven by the
 * same pgbench in alternating rounds. Prints transactions a second and CPU time a transaction.
 *
 *   npm run bench -- [--clients 32,128] [--protocols simple,extended,prepared] [--rounds 3]
 *                    [--seconds 8] [--pool-size 8] [--script select|tpcb] [--size 1]
 *                    [--tls none|client] [--postgres 18] [--json FILE]
 *
 * `--tls client` has pgbench speak TLS with both, and both speak clear text with PostgreSQL.
 * PGBOUNCER=path names another PgBouncer than Debian's.
 */
import { writeFileSync } from 'node:fs';
import { cpus, release } from 'node:os';
import { parseArgs } from 'node:util';
import { makeCerts } from '../../test/support/certs.ts';
import { hasPgbouncer, pgbouncerVersion, startPgbouncer } from '../../test/support/pgbouncer.ts';
import { startPgfleet } from '../../test/support/pgfleet.ts';
import { startPostgres } from '../../test/support/postgres.ts';
import { tlsSettings } from '../../test/support/tls-client.ts';
import { count, oneOf } from './flags.ts';
import { initialize, PROTOCOLS, type Protocol } from './pgbench.ts';
import { type Case, markdownTable } from './report.ts';
import { type Contender, type Round, runRound } from './round.ts';
import { Running } from './running.ts';

/** pgbench's scale: 100,000 accounts each, all of it in memory. */
const SCALE = 10;

/** An uncounted round of each pooler before a case: compiled code, open servers. */
const WARM_UP_SECONDS = 2;

const { values: flags } = parseArgs({
  options: {
    clients: { type: 'string', default: '32,128' },
    protocols: { type: 'string', default: PROTOCOLS.join(',') },
    rounds: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '8' },
    'pool-size': { type: 'string', default: '8' },
    script: { type: 'string', default: 'select' },
    size: { type: 'string', default: '1' },
    tls: { type: 'string', default: 'none' },
    postgres: { type: 'string', default: '18' },
    json: { type: 'string' },
  },
});
const script = oneOf('script', flags.script, ['select', 'tpcb']);
const isTls = oneOf('tls', flags.tls, ['none', 'client']) === 'client';
const version = oneOf('postgres', flags.postgres, ['15', '18']) === '15' ? 15 : 18;
const wanted = flags.protocols.split(',').map((name) => oneOf('protocols', name, PROTOCOLS));
const clientCounts = flags.clients.split(',').map((text) => count('clients', text));
const rounds = count('rounds', flags.rounds);
const seconds = count('seconds', flags.seconds);
const poolSize = count('pool-size', flags['pool-size']);
const size = count('size', flags.size);

if (!hasPgbouncer()) throw new Error("needs Debian's package pgbouncer, or PGBOUNCER=path");
const running = new Running();
await running.during(main);

async function main(): Promise<void> {
  const postgres = await startPostgres({ version });
  running.add(() => postgres.dispose());
  await initialize(postgres.port, SCALE);
  const canPrepare = isAtLeast(pgbouncerVersion(), [1, 21]);
  const settings = {
    default_pool_size: poolSize,
    max_client_conn: 1000,
    log_connections: 0,
    log_disconnections: 0,
    ...(isTls ? tlsSettings(await makeCerts(), 'require') : {}),
  };
  const ours = await startPgfleet({ postgres, size, settings });
  running.add(() => ours.stop());
  const theirs = await startPgbouncer({
    postgres,
    settings: { ...settings, ...(canPrepare ? { max_prepared_statements: 200 } : {}) },
  });
  running.add(() => theirs.stop());
  const pgfleet = contender('pgfleet', ours);
  const pgbouncer = contender('PgBouncer', theirs);

  const cases: Case[] = [];
  for (const protocol of wanted) {
    const rival = protocol === 'prepared' && !canPrepare ? null : pgbouncer;
    for (const clients of clientCounts) {
      cases.push(await runCase(pgfleet, rival, protocol, clients));
    }
  }
  const about = {
    processors: `${cpus().length} × ${cpus()[0]?.model.trim() ?? 'unknown'}`,
    kernel: release(),
    node: process.version,
    pgbouncer: pgbouncerVersion(),
    postgres: version,
    script,
    tls: flags.tls,
    poolSize,
    workers: size,
    seconds,
    rounds,
  };
  const facts = Object.entries(about).map(([name, value]) => `${name} ${value}`);
  console.log(`\n${facts.join(', ')}\n\n${markdownTable(cases)}`);
  if (wanted.includes('prepared') && !canPrepare) {
    console.log(
      `\nPgBouncer ${about.pgbouncer} has no max_prepared_statements: no figures for prepared`,
    );
  }
  if (flags.json !== undefined) {
    writeFileSync(flags.json, `${JSON.stringify({ about, cases }, null, 2)}\n`);
  }
}

/** Both poolers in turn, where `pgbouncer` can; who goes first changes with every round. */
async function runCase(
  pgfleet: Contender,
  pgbouncer: Contender | null,
  protocol: Protocol,
  clients: number,
): Promise<Case> {
  const load = { protocol, clients, script, seconds, isTls };
  const contenders = pgbouncer === null ? [pgfleet] : [pgfleet, pgbouncer];
  const found = new Map(contenders.map((each) => [each, [] as Round[]]));
  for (const each of contenders) await runRound(each, { ...load, seconds: WARM_UP_SECONDS });
  for (let round = 0; round < rounds; round++) {
    for (const each of round % 2 === 0 ? contenders : contenders.toReversed()) {
      const result = await runRound(each, load);
      found.get(each)?.push(result);
      const figures = `${result.tps.toFixed(0)} tps, ${result.cpuUs.toFixed(1)} µs CPU/tx`;
      console.log(`${protocol}, ${clients} clients, round ${round + 1}, ${each.name}: ${figures}`);
    }
  }
  const roundsOf = (each: Contender | null): Round[] => (each && found.get(each)) ?? [];
  return { protocol, clients, pgfleet: roundsOf(pgfleet), pgbouncer: roundsOf(pgbouncer) };
}

function contender(
  name: string,
  pooler: { readonly port: number; processes(): number[] },
): Contender {
  return { name, port: pooler.port, processes: () => pooler.processes() };
}

function isAtLeast(text: string, [major, minor]: readonly [number, number]): boolean {
  const [ourMajor = 0, ourMinor = 0] = text.split('.').map(Number);
  return ourMajor > major || (ourMajor === major && ourMinor >= minor);
}
