import { randomBytes } from 'node:crypto';
import { isIP, type LookupFunction } from 'node:net';
import type { ScramKeys } from '../auth/scram.ts';
import type { StoredSecret } from '../auth/secret.ts';
import { startServerAuth } from '../auth/server-auth.ts';
import type { DatabaseEntry } from '../config/config.ts';
import { escapeName } from '../log/line.ts';
import { log } from '../log/logger.ts';
import { connectLink, type SocketOptions } from '../net/sockets.ts';
import { inTurn } from '../net/turn.ts';
import { endPointOf } from '../tls/describe.ts';
import type { ServerTls } from '../tls/server-tls.ts';
import type { ExposedPasswords } from './exposed-passwords.ts';
import { placeAt, type SocketPlace } from './place.ts';
import { ServerConnection, type ServerOwner, ServerState } from './server-connection.ts';
import { ServerLogin } from './server-login.ts';
import { SpokenVersions } from './spoken-versions.ts';
import { TlsHandshake } from './tls-handshake.ts';

/** Finds the addresses of hosts that are names; `DnsCache`. */
interface HostAddresses {
  readonly lookup: LookupFunction;
  /** Told of an address that could not be reached; true when the name has another one to try. */
  refused(name: string, address: string): boolean;
}

/** What all server connections of a worker share. */
export interface OpenerOptions {
  readonly unixSocketDir: string;
  readonly sockets: SocketOptions;
  readonly tls: ServerTls;
  readonly exposed: ExposedPasswords;
  /** Finds the address of a host that is a name. */
  readonly hosts: HostAddresses;
}

/** How a pool's connections log in. */
export interface Credentials {
  readonly user: string;
  readonly secret: StoredSecret | null;
  readonly clientKeys: ScramKeys | null;
}

/** What a pool opens its connections through. */
export type Opener = Pick<ServerOpener, 'open' | 'onFailed'>;

/** Chooses hosts and opens connections for one pool (PgBouncer's `host` and `load_balance_hosts`). */
export class ServerOpener {
  readonly #options: OpenerOptions;
  readonly #entry: DatabaseEntry;
  readonly #database: string;
  readonly #versions = new SpokenVersions();
  #next: number;

  /** @param first item of the host list to begin with, so that workers do not all begin at one */
  constructor(options: OpenerOptions, entry: DatabaseEntry, database: string, first: number) {
    this.#options = options;
    this.#entry = entry;
    this.#database = database;
    this.#next = first;
  }

  /** Where the next attempt goes: a Unix socket path or a TCP address; the path is empty if there is none. */
  place(): SocketPlace {
    const { hosts, port } = this.#entry;
    const host =
      hosts.length === 0 ? this.#options.unixSocketDir : hosts[this.#next % hosts.length]!;
    return host === '' ? { path: '' } : placeAt(host, port);
  }

  /** Starts one connection attempt; what comes of it the owner is told. */
  open(owner: ServerOwner, credentials: Credentials): ServerConnection {
    const entry = this.#entry;
    const { tls, sockets, hosts, exposed } = this.#options;
    const place = this.place();
    if (entry.load_balance_hosts === 'round-robin') this.#next++;
    const isUnix = 'path' in place;
    const address = isUnix ? 'unix' : place.host;
    const labelAt = (where: string): string => {
      const shown = isIP(where) === 6 ? `[${where}]` : where;
      const who = `${escapeName(this.#database)}/${escapeName(credentials.user)}`;
      return `${who}@${shown}:${entry.port}`;
    };

    const startup: [string, string][] = [['database', entry.dbname ?? this.#database]];
    if (entry.client_encoding !== null) startup.push(['client_encoding', entry.client_encoding]);
    if (entry.datestyle !== null) startup.push(['datestyle', entry.datestyle]);
    if (entry.timezone !== null) startup.push(['timezone', entry.timezone]);
    if (entry.application_name !== null) startup.push(['application_name', entry.application_name]);
    startup.push(['user', credentials.user]);
    const login = new ServerLogin({
      host: isUnix ? place.path : place.host,
      versions: this.#versions,
      startup,
      auth: startServerAuth({
        ...credentials,
        random: randomBytes,
        endPoint: () => endPointOf(server.link.socket),
        onExposed: (method) => exposed.note(this.#database, server, method),
      }),
      connectQuery: entry.connect_query,
    });
    const about = { label: labelAt(address), address, port: entry.port };
    const server = new ServerConnection(owner, about, place, login);
    if (isUnix && place.path === '') {
      log.error(`unix socket dir not configured: ${this.#database}`);
      // Once the owner has the connection.
      process.nextTick(() => inTurn(() => server.abandonLogin('cannot connect')));
      return server;
    }

    const onConnect = (): void => {
      server.onConnected();
      if (isUnix || !tls.isAsked) {
        server.beginLogin();
        return;
      }
      new TlsHandshake(link, tls, place.host, {
        isWanted: () => server.state === ServerState.login,
        onSafe: (isSecure) => {
          if (isSecure) server.onSecured();
          server.beginLogin();
        },
        onUnsafe: (reason) => server.abandonLogin(reason),
      });
    };
    const link = connectLink(place, server, sockets, onConnect, hosts.lookup);
    let found: string | null = null;
    link.socket.once('lookup', (error, ip) => {
      if (error !== null) return;
      found = ip;
      server.onAddress(ip, labelAt(ip));
    });
    link.socket.once('error', () => {
      // Not once it is connected: what such a connection dies of says nothing about its address.
      if (found === null || isUnix || server.isConnected) return;
      server.hasOtherAddress = hosts.refused(place.host, found);
    });
    server.attach(link);
    return server;
  }

  /** The last attempt failed: with `load_balance_hosts = disable` the next host is tried. */
  onFailed(): void {
    if (this.#entry.load_balance_hosts === 'disable') this.#next++;
  }
}
