/** The texts that tell a machine how names are looked up: resolv.conf(5) and hosts(5). */

import { isIP } from 'node:net';

/** What a resolver file says. */
export interface ResolverFile {
  /** Name servers in order, `address` or `address:port` (`[address]:port` of IPv6). */
  readonly servers: readonly string[];
  /** Domains that are put behind a name in turn. */
  readonly search: readonly string[];
  /** A name with fewer dots is tried with the domains first. */
  readonly ndots: number;
  readonly timeoutMs: number;
  readonly attempts: number;
}

/** Where the system's resolver looks when the file names no server. */
const OWN_SERVER = '127.0.0.1';
const MAX_NDOTS = 15;
const MAX_TIMEOUT_SECONDS = 30;
const MAX_ATTEMPTS = 5;

/**
 * Reads a resolver file as resolv.conf(5) describes it. A server may have a port, as the library
 * that PgBouncer uses takes it. What is not understood is left out, as everywhere in this format.
 *
 * @param domain the machine's own domain, searched when the file names none; empty: there is none
 */
export function readResolverFile(text: string, domain: string): ResolverFile {
  const servers: string[] = [];
  let search = domain === '' ? [] : [domain];
  const options = { ndots: 1, timeout: 5, attempts: 2 };
  for (const line of text.split('\n')) {
    const [word, ...values] = line.trim().split(/[ \t]+/);
    const first = values[0] ?? '';
    if (word === 'nameserver' && isServer(first)) servers.push(first);
    else if (word === 'domain' && first !== '') search = [first];
    else if (word === 'search' && first !== '') search = values;
    else if (word === 'options') {
      for (const value of values) {
        const [, name, digits] = /^(ndots|timeout|attempts):(\d+)$/.exec(value) ?? [];
        if (name !== undefined) options[name as keyof typeof options] = Number(digits);
      }
    }
  }
  return {
    servers: servers.length === 0 ? [OWN_SERVER] : servers,
    search: search.filter((name) => name !== '.'),
    ndots: Math.min(options.ndots, MAX_NDOTS),
    timeoutMs: Math.max(1, Math.min(options.timeout, MAX_TIMEOUT_SECONDS)) * 1000,
    attempts: Math.max(1, Math.min(options.attempts, MAX_ATTEMPTS)),
  };
}

/** Full names that a name may stand for, in the order in which they are asked for. */
export function candidates(name: string, { search, ndots }: ResolverFile): string[] {
  if (name.endsWith('.')) return [name.slice(0, -1)];
  const longer = search.map((domain) => `${name}.${domain}`);
  const dots = name.split('.').length - 1;
  return dots >= ndots ? [name, ...longer] : [...longer, name];
}

/** Addresses that a hosts file has for a name, in order. */
export function hostsAddresses(text: string, name: string): string[] {
  const wanted = name.toLowerCase();
  const found: string[] = [];
  for (const line of text.split('\n')) {
    const [address, ...names] = line
      .replace(/#.*/, '')
      .trim()
      .split(/[ \t]+/);
    if (address === undefined || isIP(address) === 0 || found.includes(address)) continue;
    if (names.some((one) => one.toLowerCase() === wanted)) found.push(address);
  }
  return found;
}

function isServer(text: string): boolean {
  if (isIP(text) !== 0) return true;
  const [, bracketed, plain] = /^(?:\[(.+)\]|([^:]+)):\d{1,5}$/.exec(text) ?? [];
  return isIP(bracketed ?? plain ?? '') !== 0;
}
