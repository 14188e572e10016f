import { mkdir, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { canServerRead } from './account.ts';
import { copyReadable } from './folders.ts';
import { REPOSITORY } from './repository.ts';

const PARTS = [
  '.link-node.cjs',
  '.tsconfig.build.json',
  'LICENSE',
  'README.md',
  'bench',
  'bin',
  'deploy',
  'package.json',
  'src',
  'test',
  'tsconfig.json',
];

/** Makes what a fresh clone has, without node_modules. */
export async function makeClone(clone: string): Promise<void> {
  await mkdir(clone, { recursive: true });
  for (const part of PARTS) await copyReadable(join(REPOSITORY, part), clone);
}

/** Gives a clone the installed packages: by a link, or copied where `nobody` could not follow it. */
export async function lendModules(clone: string, mustBeReadable: boolean): Promise<void> {
  const modules = join(REPOSITORY, 'node_modules');
  if (mustBeReadable && !canServerRead([join(modules, 'pg/package.json')])) {
    await copyReadable(modules, clone);
  } else {
    await symlink(modules, join(clone, 'node_modules'));
  }
}

/** The environment without what npm and the test runner have put in it, for an own `npm`. */
export function plainEnvironment(): NodeJS.ProcessEnv {
  const own = Object.entries(process.env).filter(
    ([name]) => !/^(?:npm_|NODE|PGFLEET_TEST_FOLDER$)/.test(name),
  );
  const path = (process.env['PATH'] ?? '').split(':');
  return {
    ...Object.fromEntries(own),
    // `npm test` puts the pinned Node first; a user's machine has only its own.
    PATH: path.filter((folder) => !folder.includes('node_modules')).join(':'),
    npm_config_update_notifier: 'false',
  };
}
