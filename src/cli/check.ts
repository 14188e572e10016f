import { loadConfig, problemLine } from '../config/load.ts';

/** Where lines go; `process.stdout` is one. */
export interface Output {
  write(text: string): unknown;
}

/**
 * `pgfleet check FILE`: prints every problem of the configuration as `file:line: key: what`, warnings
 * marked as such. Returns the exit status: 0 when the fleet would start with the file, else 1.
 */
export function runCheck(file: string, out: Output): number {
  const { config, problems } = loadConfig(file);
  for (const problem of problems) out.write(`${problemLine(problem)}\n`);
  if (config === null) return 1;
  out.write(`${file}: ok\n`);
  return 0;
}
