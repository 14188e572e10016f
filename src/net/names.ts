import { ADDRCONFIG } from 'node:dns';
import { lookup, Resolver } from 'node:dns/promises';
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { hostname, networkInterfaces } from 'node:os';
import { log } from '../log/logger.ts';
import {
  candidates,
  hostsAddresses,
  type ResolverFile,
  readResolverFile,
} from './resolver-files.ts';

/** Names of hosts and zones, asked for each time. */
export interface Names {
  /** Addresses of both families. @throws Error when there are none, or nobody can say */
  addresses(name: string): Promise<readonly string[]>;
  /** Serial number of a zone (RFC 1035, SOA). @throws Error when there is no such zone */
  serial(zone: string): Promise<number>;
}

const HOSTS_FILE = '/etc/hosts';
/** There is no such name, or it has no addresses of the kind asked for. */
const NOT_THERE: ReadonlySet<unknown> = new Set(['ENOTFOUND', 'ENODATA']);

/**
 * @param file `resolv_conf`: the resolver file to go by; empty: names are the system's. One that
 *   cannot be read is no reason not to start, as in PgBouncer: a warning says so
 */
export function namesBy(file: string): Names {
  if (file === '') return new SystemNames();
  try {
    const domain = hostname().split('.').slice(1).join('.');
    return new FileNames(readResolverFile(readFileSync(file, 'utf8'), domain));
  } catch (error) {
    const why = (error as Error).message;
    log.warning(`resolv_conf cannot be used, names are looked up as the system does: ${why}`);
    return new SystemNames();
  }
}

/** What the system's own resolver says (getaddrinfo). */
class SystemNames implements Names {
  async addresses(name: string): Promise<string[]> {
    // Without families that this machine has no address of: they could not be connected to.
    const found = await lookup(name, { all: true, order: 'verbatim', hints: ADDRCONFIG });
    return found.map(({ address }) => address);
  }

  async serial(zone: string): Promise<number> {
    // A new one each time, since it reads the system's resolver file when it is made.
    return (await new Resolver().resolveSoa(zone)).serial;
  }
}

/** What the hosts file and the servers of a resolver file say. */
class FileNames implements Names {
  readonly #file: ResolverFile;
  readonly #resolver: Resolver;

  constructor(file: ResolverFile) {
    this.#file = file;
    this.#resolver = new Resolver({ timeout: file.timeoutMs, tries: file.attempts });
    this.#resolver.setServers(file.servers);
  }

  async addresses(name: string): Promise<string[]> {
    const hosts = await readFile(HOSTS_FILE, 'utf8').catch(() => '');
    const known = hostsAddresses(hosts, name);
    if (known.length > 0) return withoutStrangeFamily(known);
    let missing: unknown;
    for (const candidate of candidates(name, this.#file)) {
      try {
        return withoutStrangeFamily(await this.#ask(candidate));
      } catch (error) {
        if (!NOT_THERE.has((error as NodeJS.ErrnoException).code)) throw error;
        missing = error;
      }
    }
    throw missing;
  }

  /** Both families at once; one that fails is no harm when the other is there. */
  async #ask(name: string): Promise<string[]> {
    const answers = await Promise.allSettled([
      this.#resolver.resolve4(name),
      this.#resolver.resolve6(name),
    ]);
    const found = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []));
    if (found.length > 0) return found;
    const reasons: unknown[] = answers.flatMap((answer) =>
      answer.status === 'rejected' ? [answer.reason] : [],
    );
    const isMissing = (reason: unknown): boolean =>
      NOT_THERE.has((reason as NodeJS.ErrnoException).code);
    throw reasons.find((reason) => !isMissing(reason)) ?? reasons[0];
  }

  async serial(zone: string): Promise<number> {
    return (await this.#resolver.resolveSoa(zone)).serial;
  }
}

/** Leaves out addresses of a family that this machine has no address of, if others are left. */
function withoutStrangeFamily(addresses: string[]): string[] {
  const own = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
  const families = new Set(own.filter(({ internal }) => !internal).map(({ family }) => family));
  const usable = addresses.filter((one) => families.has(isIP(one) === 6 ? 'IPv6' : 'IPv4'));
  return usable.length > 0 ? usable : addresses;
}
