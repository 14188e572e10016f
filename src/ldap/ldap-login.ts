import type { SrvRecord } from 'node:dns';
import {
  type LdapMode,
  type LdapOptions,
  type LdapServer,
  parseLdapOptions,
} from '../config/ldap-options.ts';
import { log } from '../log/logger.ts';
import type { Secret } from '../util/secret.ts';
import {
  type HostAddresses,
  NoAnswer,
  openSocket,
  type Patience,
  secureSocket,
} from './connect.ts';
import { Conversation } from './conversation.ts';
import { Gate } from './gate.ts';
import { searchFilter, simpleBindName } from './names.ts';
import { type Result, ResultCode } from './reply.ts';
import { readTrust, type Trust } from './trust.ts';

/**
 * Finds out from LDAP servers whether passwords are right, for the `ldap` login method (PostgreSQL
 * documentation, "LDAP Authentication"). Each login has a connection of its own.
 *
 * Servers are asked in order. One that gives an answer settles it; one that cannot be reached, falls
 * silent, breaks off, makes no sense or says that it is busy is passed over, while OpenLDAP's library
 * goes on to the next one only where no connection can be made.
 */

/** Logins that a worker has under way at a time; PgBouncer has one. The others wait for their turn. */
const MAX_LOGINS = 8;
/** For each step of a login, as in PgBouncer. */
const TIMEOUT_MS = 3000;

export interface LdapLoginOptions {
  readonly hosts: HostAddresses;
  /** Asks DNS for SRV records. @throws Error when there are none */
  readonly services: (name: string, timeoutMs: number) => Promise<readonly SrvRecord[]>;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** For each step, in milliseconds; default: PgBouncer's. */
  readonly timeoutMs?: number;
}

/** Who wants to come in. */
export interface LdapClaim {
  readonly user: string;
  readonly password: Secret;
}

export class LdapLogin {
  readonly #options: LdapLoginOptions;
  readonly #gate = new Gate(MAX_LOGINS);
  #trust: Promise<Trust> | null = null;

  constructor(options: LdapLoginOptions) {
    this.#options = options;
  }

  /** Certificates of authorities are read anew by the next login that needs them. */
  forgetTrust(): void {
    this.#trust = null;
  }

  /**
   * Whether the password is right. False, with a warning in the log, also when that cannot be found
   * out. `signal` tells that the client has left: its connection is closed, its place given up.
   * @param text LDAP options
   */
  async check(text: string, claim: LdapClaim, signal: AbortSignal): Promise<boolean> {
    const parsed = parseLdapOptions(text);
    if ('problem' in parsed) {
      log.warning(parsed.problem);
      return false;
    }
    const { options } = parsed;
    // A bind without a password is one without proof, and succeeds (RFC 4513, section 5.1.2).
    if (claim.password.reveal() === '') return false;
    const login = loginBy(options.mode, claim.user);
    if (login === null) {
      log.warning('invalid character in user name for LDAP authentication');
      return false;
    }
    const leave = await this.#gate.enter(signal);
    if (leave === null) return false;
    try {
      return await this.#askServers(options, login, claim, signal);
    } finally {
      leave();
    }
  }

  async #askServers(
    options: LdapOptions,
    login: Login,
    claim: LdapClaim,
    signal: AbortSignal,
  ): Promise<boolean> {
    const patience: Patience = { timeoutMs: this.#options.timeoutMs ?? TIMEOUT_MS, signal };
    for (const server of await this.#serversOf(options, patience.timeoutMs)) {
      try {
        return await this.#ask({ options, login, claim, server, patience });
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        if (signal.aborted) return false;
        log.warning(error.message);
      }
    }
    return false;
  }

  async #serversOf(
    { servers, domain }: LdapOptions,
    timeoutMs: number,
  ): Promise<readonly LdapServer[]> {
    if (domain === null) return servers;
    try {
      const records = await this.#options.services(`_ldap._tcp.${domain}`, timeoutMs);
      return inOrder(records).map(({ name, port }) => ({ host: name, port }));
    } catch (error) {
      const why = (error as Error).message;
      log.warning(`LDAP authentication could not find DNS SRV records for "${domain}": ${why}`);
      return [];
    }
  }

  /** Asks one server. @throws NoAnswer with the text for the log */
  async #ask(question: LdapQuestion): Promise<boolean> {
    const { login, claim } = question;
    const conversation = await this.#open(question);
    try {
      const name = login.kind === 'simple' ? login.name : await find(conversation, login, question);
      // Some servers let anybody bind by no name, whatever the password.
      if (name === null || name === '') return false;
      const failed = `LDAP login failed for user "${name}" on server "${label(question)}"`;
      const answer = await told(failed, () => conversation.bind(name, claim.password));
      const result = settled(failed, answer);
      if (result.code === ResultCode.success) return true;
      log.warning(`${failed}: ${result.text}`);
      return false;
    } finally {
      conversation.close();
    }
  }

  async #open(question: LdapQuestion): Promise<Conversation> {
    const { options, server, patience } = question;
    const { hosts } = this.#options;
    const isPlain = options.scheme === 'ldap' && !options.startTls;
    const trust = isPlain ? null : await this.#readTrust();
    const socket = await told(`could not connect to LDAP server "${label(question)}"`, () =>
      openSocket(server, hosts, patience),
    );
    if (trust === null) return new Conversation(socket, patience);
    try {
      if (options.scheme === 'ldaps') {
        return new Conversation(await secureSocket(socket, server, trust, patience), patience);
      }
      const first = new Conversation(socket, patience);
      const started = await first.startTls();
      if (started.code !== ResultCode.success) throw new NoAnswer(started.text);
      const secure = await secureSocket(first.release(), server, trust, patience);
      return new Conversation(secure, patience, first.lastId);
    } catch (error) {
      socket.destroy();
      if (!(error instanceof NoAnswer)) throw error;
      const { host, port } = server;
      const where = `server: ${host}, port: ${port}`;
      throw new NoAnswer(`could not start LDAP TLS session: ${error.message}, ${where}`);
    }
  }

  async #readTrust(): Promise<Trust> {
    const reading = this.#trust ?? readTrust(this.#options.env);
    this.#trust = reading;
    try {
      return await reading;
    } catch (error) {
      this.forgetTrust();
      const why = (error as Error).message;
      throw new NoAnswer(`could not start LDAP TLS session: ${why}`, { cause: error });
    }
  }
}

/** How the name is found that the client binds by. */
type Login = { readonly kind: 'simple'; readonly name: string } | SearchLogin;
interface SearchLogin {
  readonly kind: 'search';
  readonly mode: Extract<LdapMode, { kind: 'search' }>;
  readonly filter: NonNullable<ReturnType<typeof searchFilter>>;
}

interface LdapQuestion {
  readonly options: LdapOptions;
  readonly login: Login;
  readonly claim: LdapClaim;
  readonly server: LdapServer;
  readonly patience: Patience;
}

/** Null: the name cannot be that of anybody. */
function loginBy(mode: LdapMode, user: string): Login | null {
  if (mode.kind === 'simple') {
    const name = simpleBindName(mode, user);
    return name === null ? null : { kind: 'simple', name };
  }
  const filter = searchFilter(mode, user);
  return filter === null ? null : { kind: 'search', mode, filter };
}

/** The one entry of a login name; null, with a warning: there is none, or no answer that counts. */
async function find(
  conversation: Conversation,
  { mode, filter }: SearchLogin,
  question: LdapQuestion,
): Promise<string | null> {
  const server = `on server "${label(question)}"`;
  const bindFailed = `could not perform initial LDAP bind for ldapbinddn "${mode.bindDn}" ${server}`;
  const answer = await told(bindFailed, () => conversation.bind(mode.bindDn, mode.bindPassword));
  const bound = settled(bindFailed, answer);
  if (bound.code !== ResultCode.success) {
    log.warning(`${bindFailed}: ${bound.text}`);
    return null;
  }
  const { user } = question.claim;
  const shown = mode.filter?.replaceAll('$username', () => user) ?? `(${mode.attribute}=${user})`;
  const searchFailed = `could not search LDAP for filter "${shown}" ${server}`;
  const search = () => conversation.search(mode.baseDn, mode.scope, filter);
  const { result: end, names } = await told(searchFailed, search);
  const result = settled(searchFailed, end);
  if (result.code !== ResultCode.success) {
    log.warning(`${searchFailed}: ${result.text}`);
    return null;
  }
  if (names.length === 1) return names[0]!;
  const [what, count] =
    names.length === 0 ? ['does not exist', 'no'] : ['is not unique', names.length];
  log.warning(
    `LDAP user "${user}" ${what}: LDAP search for filter "${shown}" ${server} returned ${count} entries.`,
  );
  return null;
}

/** Puts what was tried before the text of a failure. @throws NoAnswer */
async function told<T>(what: string, step: () => Promise<T>): Promise<T> {
  try {
    return await step();
  } catch (error) {
    if (!(error instanceof NoAnswer)) throw error;
    throw new NoAnswer(`${what}: ${error.message}`, { cause: error });
  }
}

/** A server that says it cannot answer now counts as one that does not. @throws NoAnswer */
function settled(what: string, result: Result): Result {
  const { code, text } = result;
  if (code !== ResultCode.busy && code !== ResultCode.unavailable) return result;
  throw new NoAnswer(`${what}: ${text}`);
}

/** By priority; among equals in random order, the heavier the sooner (RFC 2782). */
function inOrder(records: readonly SrvRecord[]): SrvRecord[] {
  const drawn = records.map((record) => ({
    record,
    draw: Math.random() ** (1 / Math.max(record.weight, 0.1)),
  }));
  drawn.sort((a, b) => a.record.priority - b.record.priority || b.draw - a.draw);
  return drawn.map(({ record }) => record);
}

function label({ options, server: { host, port } }: LdapQuestion): string {
  return `${options.scheme}://${host.includes(':') ? `[${host}]` : host}:${port}`;
}
