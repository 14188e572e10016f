import type { RuleFiles } from '../../../src/config/rule-lines.ts';

/** Files in memory: texts by path. A folder holds what is right below it. */
export function memoryFiles(files: Readonly<Record<string, string>>): RuleFiles {
  const gone = (): never => {
    throw Object.assign(new Error('ENOENT'), { code: 'ENOENT', errno: -2 });
  };
  return {
    readFile: (path) => (Object.hasOwn(files, path) ? files[path]! : gone()),
    listFolder: (path) => {
      const names = Object.keys(files)
        .filter((file) => file.startsWith(`${path}/`))
        .map((file) => file.slice(path.length + 1));
      return names.length === 0 ? gone() : names.filter((name) => !name.includes('/'));
    },
  };
}

export function hexOf(bytes: readonly number[]): string {
  return Buffer.from(bytes).toString('hex');
}
