import type { Handoff } from '../ipc/messages.ts';

/** Node's TCP or Pipe object of a client that travels between workers; it is never read here. */
export interface RawHandle {
  close(): void;
}

/**
 * Worker that gets a client: the one asked for, else the next live one that has not had it yet; null
 * when there is none.
 */
export function pickTarget(
  { target, visited }: Pick<Handoff, 'target' | 'visited'>,
  live: readonly number[],
): number | null {
  const fresh = live.filter((id) => !visited.includes(id));
  if (fresh.includes(target)) return target;
  return fresh.find((id) => id > target) ?? fresh[0] ?? null;
}
