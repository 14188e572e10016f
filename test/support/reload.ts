import { readFileSync } from 'node:fs';
import { rename, writeFile } from 'node:fs/promises';
import type { TestPooler } from './pooler.ts';
import { until } from './until.ts';

/** Turns the text of a configuration file into another. */
export type Change = (text: string) => string;

/** Sets a line of a section, or takes it out when the value is null. */
export function line(section: string, key: string, value: string | number | null): Change {
  return (text) => {
    const header = `[${section}]\n`;
    if (!text.includes(header))
      return value === null ? text : `${text}\n${header}${key} = ${value}\n`;
    const start = text.indexOf(header) + header.length;
    const end = text.indexOf('\n[', start);
    const body = text.slice(start, end === -1 ? text.length : end);
    const kept = body.split('\n').filter((one) => one !== '' && !one.startsWith(`${key} = `));
    if (value !== null) kept.push(`${key} = ${value}`);
    const rest = end === -1 ? '' : text.slice(end);
    return `${text.slice(0, start)}${kept.join('\n')}\n${rest}`;
  };
}

/** Changes the file, without telling the pooler, who never sees half of it. */
export async function rewrite(pooler: TestPooler, ...changes: readonly Change[]): Promise<void> {
  const old = readFileSync(pooler.configFile, 'utf8');
  const next = changes.reduce((text, change) => change(text), old);
  await writeFile(`${pooler.configFile}.new`, next);
  await rename(`${pooler.configFile}.new`, pooler.configFile);
}

let marks = 100;

/**
 * Changes the file and waits until the pooler goes by it. A harmless setting tells: PgBouncer logs
 * no line when it is done.
 */
export async function reload(pooler: TestPooler, ...changes: readonly Change[]): Promise<void> {
  const mark = ++marks;
  await rewrite(pooler, ...changes, line('pgbouncer', 'stats_period', mark));
  pooler.signal('SIGHUP');
  await until('the configuration is in force', async () => {
    const rows = await pooler.console('SHOW CONFIG');
    return rows.some(({ key, value }) => key === 'stats_period' && value === `${mark}`);
  });
}

/** Changes the file to one that cannot be loaded and waits until the pooler has said so. */
export async function failedReload(
  pooler: TestPooler,
  ...changes: readonly Change[]
): Promise<void> {
  const count = (): number => pooler.log().split('config file loading failed').length;
  const before = count();
  await rewrite(pooler, ...changes);
  pooler.signal('SIGHUP');
  await until('the load has failed', () => count() > before);
}
