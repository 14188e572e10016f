import { log } from '../log/logger.ts';
import { type ServerConnection, ServerState } from '../server/server-connection.ts';
import { clock } from '../util/clock.ts';
import type { Pool } from './pool.ts';
import type { PoolClient } from './pool-client.ts';

/**
 * How long the slot of a closed connection waits for the server's end of file: after a login that
 * came to nothing, after a session that was free, and after one that was running a statement, which
 * PostgreSQL brings to its end before it notices. A walsender that streams on does not notice either:
 * a reset ends it.
 */
const LOGIN_GRACE_MS = 1000;
const STREAM_GRACE_MS = 1000;
const FREE_GRACE_MS = 10_000;
const BUSY_GRACE_MS = 60_000;

/**
 * What time alone brings about in one pool, looked at three times a second: connections that are too
 * old, idle for too long or too slow, clients that have waited too long, and a pool that is above or
 * below its size. It has no state: what it decides, the pool does.
 */
export class Upkeep {
  readonly #pool: Pool;

  constructor(pool: Pool) {
    this.#pool = pool;
  }

  /** `now` is the coarse clock's. */
  tick(now: number): void {
    this.#tickServers(now);
    this.#pool.replication.tick();
    this.#tickClients(now);
    this.#tickSize();
    this.#pool.serveQueue();
  }

  #tickServers(now: number): void {
    const pool = this.#pool;
    const { plan } = pool;
    for (const server of pool.opening) {
      const isLate = plan.connectTimeoutMs > 0 && now - server.connectedAt > plan.connectTimeoutMs;
      if (!isLate) continue;
      server.abandonLogin('connect timeout');
      // It has not answered for so long that its end of file cannot be waited for.
      server.abandon();
    }
    for (const list of [pool.used, pool.tested, pool.idle]) {
      for (const server of list) this.#tickUnused(server, now);
    }
    for (const server of pool.closing) {
      this.#tickClosing(server, now);
    }
    if (plan.closesFast) {
      for (const server of pool.linked) if (server.isCloseNeeded) pool.closeFast(server);
    }
    const mayTimeOut = plan.queryTimeoutMs + plan.idleTransactionMs + plan.transactionMs > 0;
    if (!mayTimeOut) return;
    for (const server of pool.linked) {
      const client = server.client as PoolClient | null;
      if (client !== null) this.#tickLinked(server, client, now);
    }
  }

  /** A server without a client; one that is tested has taken its time over that. */
  #tickUnused(server: ServerConnection, now: number): void {
    const pool = this.#pool;
    const isTested = server.state === ServerState.tested;
    if (server.isCloseNeeded) server.close('database configuration changed');
    else if (!server.isReady && !isTested) {
      server.close(`${server.state === ServerState.used ? 'SV_USED' : 'SV_IDLE'} server got dirty`);
    } else if (this.#isIdleTooLong(server, now)) server.close('server idle timeout');
    else if (pool.plan.serverLifetimeMs > 0 && pool.isLifetimeOver(server)) {
      pool.closeForLifetime(server);
    } else if (this.#needsCheck(server, now)) {
      pool.place(server, ServerState.used, pool.used, true);
    }
  }

  #tickClosing(server: ServerConnection, now: number): void {
    const { hasLoggedIn } = server;
    const isStreaming = server.owner !== this.#pool && server.lastActivity > server.closingSince;
    if (isStreaming && now - server.closingSince > STREAM_GRACE_MS) return server.abandon();
    const graceMs = !hasLoggedIn ? LOGIN_GRACE_MS : server.isReady ? FREE_GRACE_MS : BUSY_GRACE_MS;
    if (now - server.closingSince <= graceMs) return;
    if (hasLoggedIn) {
      const seconds = graceMs / 1000;
      log.warning(
        `S-${server.ptr}: ${server.label} has not ended ${seconds}s after it was closed: ` +
          'its slot is used again, and PostgreSQL may count one connection more',
      );
    }
    server.abandon();
  }

  #tickLinked(server: ServerConnection, client: PoolClient, now: number): void {
    const { queryTimeoutMs, idleTransactionMs, transactionMs } = this.#pool.plan;
    const { queryStart, transactionStart } = client;
    if (queryTimeoutMs > 0 && queryStart > 0 && now - queryStart > queryTimeoutMs) {
      server.close('query timeout');
    } else if (
      idleTransactionMs > 0 &&
      server.isAtRest &&
      server.isInTransaction &&
      now - server.lastActivity > idleTransactionMs
    ) {
      server.close('idle transaction timeout');
    } else if (
      transactionMs > 0 &&
      transactionStart > 0 &&
      now - transactionStart > transactionMs
    ) {
      server.close('transaction timeout');
    }
  }

  #isIdleTooLong(server: ServerConnection, now: number): boolean {
    const { serverIdleMs, minSize } = this.#pool.plan;
    return (
      serverIdleMs > 0 && now - server.lastActivity > serverIdleMs && this.#pool.connected > minSize
    );
  }

  #needsCheck(server: ServerConnection, now: number): boolean {
    const { checkQuery, checkDelayMs } = this.#pool.plan;
    if (checkQuery === null || checkDelayMs === 0 || server.state !== ServerState.idle)
      return false;
    return now - server.lastActivity > checkDelayMs;
  }

  #tickClients(now: number): void {
    const { waitNotifyMs, queryTimeoutMs } = this.#pool.plan;
    for (const client of this.#pool.queued()) {
      const waited = now - client.waitStart;
      const limit = client.queryWaitTimeout * 1000;
      if (queryTimeoutMs > 0 && waited > queryTimeoutMs) {
        client.refuse('08P01', 'query_timeout');
      } else if (limit > 0 && waited > limit) {
        client.refuse('08P01', 'query_wait_timeout');
      } else if (
        waitNotifyMs > 0 &&
        client.isWelcomed &&
        !client.hasBeenNotified &&
        !this.#pool.isPaused &&
        waited >= waitNotifyMs + 1000
      ) {
        client.hasBeenNotified = true;
        client.onWaitNotice();
      }
    }
  }

  /** Closes what is above the size (it was lowered), opens what is missing below the minimum. */
  #tickSize(): void {
    const pool = this.#pool;
    const { size, reserveSize, minSize } = pool.plan;
    let surplus = pool.connected - (size + reserveSize);
    for (const list of [pool.used, pool.idle]) {
      for (const server of list) {
        if (surplus-- > 0) server.close('too many servers in the pool');
      }
    }
    if (pool.clients > 0 || pool.total > 0) pool.lastUsed = clock.now;
    const isWanted = pool.clients > 0 || pool.database.entry.user !== null;
    if (pool.connected + pool.opening.size < minSize && isWanted && pool.hasRoom) {
      pool.open(false);
    }
  }
}
