import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, lstat, mkdir, mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { canServerRead, giveToServer, serverAccount } from './account.ts';

const run = promisify(execFile);

/**
 * Where folders of a test go: the run's own folder under the test runner, else the OS's, or /tmp
 * where the OS gives each account its own and the servers' account cannot enter the caller's.
 */
export function temporaryFolder(): string {
  const own = process.env['PGFLEET_TEST_FOLDER'];
  // Empty would be the folder that the test is started in.
  if (own !== undefined && own !== '') return own;
  return canServerRead([tmpdir()]) ? tmpdir() : '/tmp';
}

/** Returns the folder `name`, which `fill` has made from an empty one at least once. */
export type Keep = (name: string, fill: (folder: string) => Promise<void>) => Promise<string>;

/** A new folder, owned by the servers' account, whose name starts with `prefix`. */
export async function makeFolder(prefix: string): Promise<string> {
  const folder = await mkdtemp(join(temporaryFolder(), `pgfleet-${prefix}-`));
  await chmod(folder, 0o755);
  await giveToServer(folder);
  return folder;
}

/** Removes a folder and all in it. */
export async function removeFolder(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true, maxRetries: 3, retryDelay: 100 });
}

/**
 * The folder `name` of the cache, made by `fill` if it is not there yet. `fill` is given an empty
 * folder of its own, owned by the servers' account; the finished one is put in place by one rename,
 * so that two processes never see each other's half. The test runner removes the cache at its end.
 */
export async function cached(
  name: string,
  fill: (folder: string) => Promise<void>,
): Promise<string> {
  const cache = await cacheFolder();
  const wanted = join(cache, name);
  if (await isFolder(wanted)) return wanted;
  const fresh = join(cache, `${name}.${randomBytes(4).toString('hex')}`);
  await mkdir(fresh);
  await giveToServer(fresh);
  try {
    await fill(fresh);
    await rename(fresh, wanted);
  } catch (error) {
    await removeFolder(fresh);
    if (!(await isFolder(wanted))) throw error;
  }
  return wanted;
}

/** Copies `source` to `target`, links kept as links, readable for everybody. */
export async function copyReadable(source: string, target: string): Promise<void> {
  await run('cp', ['-R', '-P', source, target]);
  await run('chmod', ['-R', 'a+rX,u+w', target]);
}

/** Copies a folder that the servers' account owns, with owners, modes and times. */
export async function copyFolder(source: string, target: string): Promise<void> {
  await run('cp', ['-a', source, target]);
}

async function cacheFolder(): Promise<string> {
  const owner = serverAccount?.uid ?? process.getuid?.() ?? 0;
  const cache = join(temporaryFolder(), `pgfleet-test-cache-${owner}`);
  try {
    await mkdir(cache, { mode: 0o755 });
    await giveToServer(cache);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  const found = await lstat(cache);
  // The OS's folder for temporary files is everybody's: another account's folder is not ours to trust.
  const isOurs = found.isDirectory() && (found.uid === owner || found.uid === process.getuid?.());
  if (!isOurs) throw new Error(`${cache} belongs to another account`);
  return cache;
}

async function isFolder(path: string): Promise<boolean> {
  return lstat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );
}
