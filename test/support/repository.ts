import { createHash } from 'node:crypto';
import { readdirSync, realpathSync, statSync } from 'node:fs';
import { mkdir, readFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { canServerRead } from './account.ts';
import { cached, copyReadable, type Keep } from './folders.ts';

/** The folder that package.json is in. */
export const REPOSITORY = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

/** A Node.js that can run the sources: this process's own, or the pinned one. */
export const NODE = runsSources(process.version)
  ? process.execPath
  : realpathSync(join(REPOSITORY, 'node_modules/.bin/node'));

/** pgfleet where the servers' account can read it. */
export interface PgfleetFiles {
  readonly node: string;
  /** `bin/pgfleet`. */
  readonly program: string;
}

interface Manifest {
  readonly dependencies?: Readonly<Record<string, string>>;
}

/**
 * Paths of Node.js and of `bin/pgfleet` for the servers' account: the repository's own, or, where
 * that account cannot enter it, a copy of what running takes, made by `keep`.
 */
export async function pgfleetFiles(keep: Keep = cached): Promise<PgfleetFiles> {
  const program = join(REPOSITORY, 'bin/pgfleet');
  const samples = [NODE, program, join(REPOSITORY, 'src/cli/main.ts')];
  const modules = [...(await runtimeModules())];
  if (canServerRead([...samples, ...modules.map((path) => join(path, 'package.json'))])) {
    return { node: NODE, program };
  }
  const copy = await keep(`pgfleet-${sourcesHash()}`, async (folder) => {
    for (const part of ['bin', 'src', 'package.json']) {
      await copyReadable(join(REPOSITORY, part), folder);
    }
    for (const path of modules) {
      const target = join(folder, relative(REPOSITORY, path));
      await mkdir(dirname(target), { recursive: true });
      await copyReadable(realpathSync(path), target);
    }
    await copyReadable(NODE, join(folder, 'node'));
  });
  return { node: join(copy, 'node'), program: join(copy, 'bin/pgfleet') };
}

/** Folders of the packages that pgfleet needs to run, their own needs included. */
async function runtimeModules(): Promise<Set<string>> {
  const found = new Set<string>();
  const visit = async (folder: string): Promise<void> => {
    const manifest = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as Manifest;
    for (const name of Object.keys(manifest.dependencies ?? {})) {
      const path = join(REPOSITORY, 'node_modules', name);
      if (found.has(path)) continue;
      found.add(path);
      await visit(path);
    }
  };
  await visit(REPOSITORY);
  return found;
}

/** Changes with every edit of the sources, so that an old copy is never run. */
function sourcesHash(): string {
  const hash = createHash('sha1');
  for (const part of ['bin', 'src']) {
    const names = readdirSync(join(REPOSITORY, part), { recursive: true, encoding: 'utf8' });
    for (const name of names.sort()) {
      hash.update(`${name} ${statSync(join(REPOSITORY, part, name)).mtimeMs}\n`);
    }
  }
  return hash.digest('hex').slice(0, 8);
}

/** Type stripping is on by default from 22.18 and 23.6. */
function runsSources(version: string): boolean {
  const [major = 0, minor = 0] = version.slice(1).split('.').map(Number);
  return major > 23 || (major === 23 && minor >= 6) || (major === 22 && minor >= 18);
}
