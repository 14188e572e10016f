import type { StoredSecret } from './secret.ts';

/**
 * Of which kinds the secrets of `auth_file` are. A login with a name that nobody has is to look, and
 * to last, like one of theirs with a wrong password.
 */
export interface SecretProfile {
  /** Some are passwords in plain text: SCRAM must derive keys from those, which takes time. */
  readonly hasPlain: boolean;
  /** All that are not empty are SCRAM secrets, and there are some. */
  readonly isAllScram: boolean;
  /** Iterations that most SCRAM secrets have; null: there are none. */
  readonly scramIterations: number | null;
}

export function profileOf(secrets: Iterable<StoredSecret>): SecretProfile {
  let hasPlain = false;
  let hasMd5 = false;
  const counts = new Map<number, number>();
  for (const secret of secrets) {
    if (secret.kind === 'plain') hasPlain = true;
    if (secret.kind === 'md5') hasMd5 = true;
    if (secret.kind !== 'scram') continue;
    const { iterations } = secret.verifier;
    counts.set(iterations, (counts.get(iterations) ?? 0) + 1);
  }
  let scramIterations: number | null = null;
  for (const [iterations, count] of counts) {
    if (scramIterations === null || count > counts.get(scramIterations)!) {
      scramIterations = iterations;
    }
  }
  return { hasPlain, isAllScram: counts.size > 0 && !hasPlain && !hasMd5, scramIterations };
}
