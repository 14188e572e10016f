import type { SrvRecord } from 'node:dns';
import { Resolver } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { readResolverFile } from './resolver-files.ts';

/**
 * Asks DNS where a service is (SRV records, RFC 2782).
 * @param file `resolv_conf`: the resolver file to go by; empty or unreadable: the system's
 * @throws Error when there are no records, or nobody can say within `timeoutMs`
 */
export async function findServices(
  name: string,
  file: string,
  timeoutMs: number,
): Promise<SrvRecord[]> {
  const resolver = new Resolver({ timeout: timeoutMs, tries: 1 });
  const text = file === '' ? null : await readFile(file, 'utf8').catch(() => null);
  if (text !== null) resolver.setServers(readResolverFile(text, '').servers);
  return resolver.resolveSrv(name);
}
