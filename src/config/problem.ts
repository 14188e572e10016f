import { getSystemErrorMap } from 'node:util';

/** Something in the configuration that stops the load (`error`) or that its owner should know. */
export interface Problem {
  readonly file: string;
  /** 0: the file as a whole. */
  readonly line: number;
  /** The setting, or the name of the database, user or peer; empty: the line as a whole. */
  readonly key: string;
  readonly text: string;
  readonly level: 'error' | 'warning';
}

/** `file:line: key: what`, without the parts that the problem has none of. */
export function formatProblem(problem: Problem): string {
  const place = problem.line === 0 ? problem.file : `${problem.file}:${problem.line}`;
  return problem.key === ''
    ? `${place}: ${problem.text}`
    : `${place}: ${problem.key}: ${problem.text}`;
}

/** The same, for a list in which errors and warnings stand together. */
export function problemLine(problem: Problem): string {
  return `${problem.level === 'warning' ? 'warning: ' : ''}${formatProblem(problem)}`;
}

/** The system's words for a failed call, with the capital letter that C programs print. */
export function osErrorText(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const errno = 'errno' in error && typeof error.errno === 'number' ? error.errno : null;
  const known = errno === null ? undefined : getSystemErrorMap().get(errno);
  const words = known?.[1] ?? error.message;
  return words.charAt(0).toUpperCase() + words.slice(1);
}
