import { log } from '../log/logger.ts';
import type { Pool } from '../pool/pool.ts';
import type { PoolClient } from '../pool/pool-client.ts';
import { ClientStatements } from '../prepared/client-statements.ts';
import type { TrackedValues } from '../server/parameters.ts';
import type { ClientLink, ServerConnection } from '../server/server-connection.ts';
import { clock } from '../util/clock.ts';
import { nextId } from '../util/ids.ts';
import type { List } from '../util/list.ts';
import { AuthQueryReply, type AuthRow, authQueryRequests } from './auth-query-reply.ts';

/** What comes of one `auth_query`. */
export type AuthQueryOutcome =
  | { readonly kind: 'row'; readonly row: AuthRow }
  | { readonly kind: 'none' }
  /** FATAL for the client that is logging in. */
  | { readonly kind: 'refused'; readonly sqlstate: string; readonly text: string };

/** What is asked, for whom, and until when. */
export interface AuthQuestion {
  readonly query: string;
  /** `$1`. */
  readonly name: string;
  /** The client that is logging in, as SHOW SERVERS names it. */
  readonly ptr: string;
  /** When that client came, milliseconds of the coarse clock. */
  readonly connectedAt: number;
  /** Seconds that it may queue for a server; 0: for ever. */
  readonly queryWaitTimeout: number;
}

export const CONFIG_ERROR: AuthQueryOutcome = {
  kind: 'refused',
  sqlstate: '08P01',
  text: 'bouncer config error',
};

/** Nobody reads along: the answers are the pooler's own. */
const NO_LINK: ClientLink = {
  write: () => {},
  hold: () => {},
  replay: () => {},
  pause: () => {},
  resume: () => {},
  isHeld: false,
  isFull: false,
};

/**
 * One `auth_query` as a client of its pool: queues like any other, runs on a server that has no
 * client's parameters, and gives it back. No session of a client is in its place, so that nothing
 * a client sends can reach that server (CVE-2025-12819 was such a thing).
 *
 *   queued --onServer--> running --ReadyForQuery--> over
 *      `-------- refused, given up, server lost -----^
 */
export class AuthQueryClient implements PoolClient {
  listPrev: PoolClient | null = null;
  listNext: PoolClient | null = null;
  list: List<PoolClient> | null = null;
  readonly id = nextId();
  readonly ptr: string;
  readonly userName: string;
  readonly serverUser: string;
  pool: Pool;
  server: ServerConnection | null = null;
  readonly isWelcomed = true;
  readonly replication = null;
  queryStart = 0;
  waitStart = 0;
  transactionStart = 0;
  hasBeenNotified = false;
  readonly lastActivity = clock.now;
  readonly connectedAt: number;
  readonly queryWaitTimeout: number;
  readonly isMidMessage = false;
  readonly isMidRequest = false;
  readonly hasDescribed = false;
  readonly link = NO_LINK;
  /** None: the server gets its own values back before the query. */
  readonly tracked: TrackedValues;
  readonly statements: ClientStatements;
  readonly #question: AuthQuestion;
  readonly #reply = new AuthQueryReply();
  readonly #done: (outcome: AuthQueryOutcome) => void;
  /** It counts as a client of its pool until it has its server; PgBouncer's counts are so. */
  #isCounted = true;
  #isOver = false;

  /** @param done called once, unless `giveUp` comes first; maybe before `begin` returns */
  constructor(pool: Pool, question: AuthQuestion, done: (outcome: AuthQueryOutcome) => void) {
    this.pool = pool;
    this.userName = pool.user;
    this.serverUser = pool.user;
    this.ptr = question.ptr;
    this.connectedAt = question.connectedAt;
    this.queryWaitTimeout = question.queryWaitTimeout;
    this.tracked = pool.tracked.none();
    this.statements = new ClientStatements(pool.registry);
    this.#question = question;
    this.#done = done;
  }

  begin(): void {
    this.pool.clients++;
    if (this.pool.acquire(this)) this.onServer();
  }

  /** It waits for a server, and `query_wait_timeout` says how long. */
  get isQueued(): boolean {
    return this.list !== null;
  }

  /** Nobody waits for the answer any more. A server that is busy with the query is closed. */
  giveUp(): void {
    if (this.#isOver) return;
    this.#end();
    this.pool.leave(this);
  }

  // PoolClient

  onServer(): void {
    const server = this.server!;
    this.#uncount();
    server.runOwnRequests(
      authQueryRequests(this.#question.query, this.#question.name),
      (type, bytes, start, end) => {
        const fault = this.#reply.onMessage(type, bytes, start, end);
        if (fault !== null) server.close(fault);
      },
      () => this.#onAnswered(server),
    );
  }

  onServerLost(reason: string): void {
    this.server = null;
    log.debug(`auth_query: ${reason}`);
    this.#finish(CONFIG_ERROR);
  }

  refuse(sqlstate: string, text: string): void {
    if (this.#isOver) return;
    this.pool.leave(this);
    this.#finish({ kind: 'refused', sqlstate, text });
  }

  onServerFree(): void {}

  onOwnServer(): void {}

  onPoolReady(): void {}

  onWaitNotice(): void {}

  onRefused(): void {}

  /** There is no session, so its lines have no name before them. */
  prefixed(text: string): string {
    return text;
  }

  #onAnswered(server: ServerConnection): void {
    const { row } = this.#reply;
    if (server.isInTransaction) server.close('unexpected response from auth_query');
    else this.pool.giveBack(this, server);
    this.#finish(row === null ? { kind: 'none' } : { kind: 'row', row });
  }

  #finish(outcome: AuthQueryOutcome): void {
    if (this.#isOver) return;
    this.#end();
    this.#done(outcome);
  }

  #end(): void {
    this.#isOver = true;
    this.#uncount();
  }

  #uncount(): void {
    if (!this.#isCounted) return;
    this.#isCounted = false;
    this.pool.clients--;
  }
}
