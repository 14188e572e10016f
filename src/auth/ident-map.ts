import type { IdentPair } from './login-method.ts';

/**
 * Whether a client may log in as `user`: `isProved` says of a name whether the system (a
 * certificate, an account) vouches for it. Without a map that name is the user's own.
 */
export function isMappedTo(
  user: string,
  map: readonly IdentPair[] | null,
  isProved: (systemName: string) => boolean,
): boolean {
  if (map === null) return isProved(user);
  return map.some(
    ({ systemName, databaseUser }) =>
      (databaseUser === null || databaseUser === user) && isProved(systemName),
  );
}
