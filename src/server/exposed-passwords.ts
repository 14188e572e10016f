import { log } from '../log/logger.ts';
import type { ServerConnection } from './server-connection.ts';

/** Databases that are remembered as told of; automatic ones may have any number of names. */
const MAX_TOLD = 1000;

const HOW = {
  plain: 'a password in clear text',
  md5: 'an MD5 password, which is as good as the password itself,',
};

/**
 * Warns, once a database and server, of passwords that are sent where others on the network can read
 * them: over TCP without TLS, to another machine.
 */
export class ExposedPasswords {
  readonly #told = new Set<string>();

  /** The answer to a server that has asked for a password in this way is about to leave. */
  note(
    database: string,
    { tls, host, address, port }: Pick<ServerConnection, 'tls' | 'host' | 'address' | 'port'>,
    method: 'plain' | 'md5',
  ): void {
    if (tls !== '' || host === null || isLoopback(address)) return;
    const server = `${host}:${port}`;
    const key = `${server} ${database}`;
    if (this.#told.has(key)) return;
    if (this.#told.size >= MAX_TOLD) this.#told.clear();
    this.#told.add(key);
    log.warning(
      `database "${database}": server ${server} is sent ${HOW[method]} without TLS: ` +
        'set server_tls_sslmode to require or higher, or scram-sha-256 in its pg_hba.conf',
    );
  }
}

/** Whether what is sent to an address never leaves the machine. */
function isLoopback(address: string): boolean {
  return /^(?:::ffff:)?127\./i.test(address) || address === '::1';
}
