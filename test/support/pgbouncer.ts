import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { type PoolerOptions, preparePooler, startOrRemove, TestPooler } from './pooler.ts';

/** Debian's program, or the one that `PGBOUNCER` names. */
const PROGRAM = process.env['PGBOUNCER'] ?? '/usr/sbin/pgbouncer';

/** True when there is a PgBouncer to compare with. */
export function hasPgbouncer(): boolean {
  return existsSync(PROGRAM);
}

/** Version of that PgBouncer, such as `1.18.0`. */
export function pgbouncerVersion(): string {
  const text = execFileSync(PROGRAM, ['--version'], { encoding: 'utf8' });
  return /PgBouncer (\S+)/.exec(text)?.[1] ?? 'unknown';
}

/** Starts a real PgBouncer for a test; end it with `t.after(() => pgbouncer.stop())`. */
export async function startPgbouncer(options: PoolerOptions = {}): Promise<TestPooler> {
  const command = { name: 'PgBouncer', program: PROGRAM, args: options.args ?? [] };
  const make = (port: number, folder: string): TestPooler => new TestPooler(port, folder, command);
  const pooler = await preparePooler('bouncer', options, make);
  await startOrRemove(pooler, options);
  return pooler;
}
