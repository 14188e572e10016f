import { spawnSync } from 'node:child_process';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';

/** A larger young generation and no helper threads made workers cheaper per transaction. */
const WANTED_FLAGS = ['--max-semi-space-size=64', '--single-threaded-gc'];

/** The worker's program: beside this room, as source or as built. */
export function workerMainPath(): string {
  return fileURLToPath(new URL(`../worker/main${extname(import.meta.url)}`, import.meta.url));
}

/** The wanted flags that this Node knows; it refuses to start with one that it does not. */
export function workerNodeFlags(): string[] {
  if (isAccepted(WANTED_FLAGS)) return WANTED_FLAGS;
  return WANTED_FLAGS.filter((flag) => isAccepted([flag]));
}

function isAccepted(flags: readonly string[]): boolean {
  return spawnSync(process.execPath, [...flags, '-e', '0'], { stdio: 'ignore' }).status === 0;
}
