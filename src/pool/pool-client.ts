import type { LinkedClient, ServerConnection } from '../server/server-connection.ts';
import type { Listed } from '../util/list.ts';
import type { Pool } from './pool.ts';
import type { ReplicationRequest } from './replication.ts';

/** Where a client gets its server: from its pool, or from what the pool has for replication. */
export interface ServerSource {
  /** True when the client has a server now; false when it waits or has been refused. */
  acquire(client: PoolClient): boolean;
  /** Puts the client in the queue and sees to it that a server comes; `since`: the wait began then. */
  enqueue(client: PoolClient, since?: number): void;
  /** The client is going: takes it out of the queue or off its server. */
  leave(client: PoolClient): void;
}

/** A client session, as its pool sees it. */
export interface PoolClient extends LinkedClient, Listed<PoolClient> {
  readonly id: number;
  /** Its login name. */
  readonly userName: string;
  pool: Pool | null;
  /**
   * The user that its servers log in as, whatever its database's entry says (a lookup of a name that
   * is logging in, which the pooler makes itself); null: an ordinary client.
   */
  readonly serverUser: string | null;
  /** The server that it is linked to. */
  server: ServerConnection | null;
  /** It has been told that it may send queries. */
  readonly isWelcomed: boolean;
  /** It is a replication connection; null: an ordinary one. */
  readonly replication: ReplicationRequest | null;
  /** When the query in hand began, milliseconds of the coarse clock; 0: none. */
  queryStart: number;
  /** When it was queued, milliseconds of the coarse clock. */
  waitStart: number;
  hasBeenNotified: boolean;
  /** When its transaction began, milliseconds of the coarse clock; 0: none. */
  transactionStart: number;
  readonly lastActivity: number;
  readonly connectedAt: number;
  /** Seconds it may wait for a server; 0: for ever. */
  readonly queryWaitTimeout: number;
  /** It still owes the server the rest of a message that has begun. */
  readonly isMidRequest: boolean;
  /** Its server went back to the pool. */
  onServerFree(): void;
  /** It has a server and may go on. */
  onServer(): void;
  /** The connection that was opened for it alone has logged in and is linked. */
  onOwnServer(server: ServerConnection): void;
  /** The pool has learnt its server's parameters: the login can be finished. */
  onPoolReady(): void;
  /** It has waited for long: PgBouncer's notice. */
  onWaitNotice(): void;
  /** The text with the client's name before it, for the log. */
  prefixed(text: string): string;
  /** Ends it with a FATAL. */
  refuse(sqlstate: string, text: string): void;
}
