import { z } from 'zod';
import type { Settings } from '../config/schema.ts';
import { log } from '../log/logger.ts';
import { DnsCache } from '../net/dns-cache.ts';
import { namesBy } from '../net/names.ts';
import { leaveOldAddresses } from '../pool/moved-hosts.ts';
import type { Pool } from '../pool/pool.ts';

/** What a worker tells the others when it has learnt that a name leads elsewhere. */
const movedSchema = z.strictObject({
  kind: z.literal('host_moved'),
  host: z.string(),
  addresses: z.array(z.string()).min(1),
});

export interface HostNamesOptions {
  readonly settings: () => Settings;
  readonly worker: number;
  readonly pools: () => Iterable<Pool>;
  /** Tells all other workers; answers are of no interest, but for failures. */
  readonly tell: (news: unknown) => Promise<Map<number, { value: unknown } | { error: string }>>;
}

/**
 * Names of hosts in one worker of the fleet. Every worker asks for itself; but a name that has moved
 * is news for all of them, or the fleet would go on with old connections where one pooler would not.
 */
export class HostNames {
  readonly cache: DnsCache;
  readonly #options: HostNamesOptions;

  constructor(options: HostNamesOptions) {
    this.#options = options;
    this.cache = new DnsCache({
      names: namesBy(options.settings().resolv_conf),
      times: () => {
        const { dns_max_ttl, dns_nxdomain_ttl, dns_zone_check_period } = options.settings();
        return {
          maxTtlMs: dns_max_ttl * 1000,
          nxdomainTtlMs: dns_nxdomain_ttl * 1000,
          zoneCheckMs: dns_zone_check_period * 1000,
        };
      },
      first: options.worker,
      onMoved: (host, addresses) => {
        leaveOldAddresses(options.pools(), host, addresses);
        void this.#tell(host, addresses);
      },
    });
  }

  /** Takes what another worker says over the mesh. False: it is no news of this kind. */
  takeNews(request: unknown): boolean {
    const news = movedSchema.safeParse(request);
    if (!news.success) return false;
    const { host, addresses } = news.data;
    this.cache.learn(host, addresses);
    leaveOldAddresses(this.#options.pools(), host, addresses);
    return true;
  }

  async #tell(host: string, addresses: readonly string[]): Promise<void> {
    const answers = await this.#options.tell({ kind: 'host_moved', host, addresses });
    for (const [worker, answer] of answers) {
      if ('error' in answer) log.debug(`worker ${worker} was not told that ${host} moved`);
    }
  }
}
