import { type ClientSession, ClientState } from '../client/client-session.ts';
import type { PoolSet } from '../pool/pool-set.ts';
import { clock } from '../util/clock.ts';

/**
 * PgBouncer's SUSPEND: every socket that stands between two messages is read no more, first those of
 * the clients and then those of the servers, so that what is under way comes to its end. After
 * `suspend_timeout` those that are still in the middle of something are closed. The console goes on.
 */
export class Suspension {
  readonly #sessions: Iterable<ClientSession>;
  readonly #pools: PoolSet;
  #isOn = false;
  #since = 0;
  /** Milliseconds; 0: for ever. */
  #timeoutMs = 0;

  constructor(sessions: Iterable<ClientSession>, pools: PoolSet) {
    this.#sessions = sessions;
    this.#pools = pools;
  }

  get isOn(): boolean {
    return this.#isOn;
  }

  /** @param timeoutMs for what is in the middle of something; 0: for ever */
  begin(timeoutMs: number): void {
    this.#isOn = true;
    this.#since = clock.now;
    this.#timeoutMs = timeoutMs;
    this.advance();
  }

  /** A client has come meanwhile: it is heard when the suspension is over. */
  admit(session: ClientSession): void {
    if (this.#isOn) session.link.suspend();
  }

  /** Suspends what has come to a rest since the last call. True: nothing is left that has not. */
  advance(): boolean {
    if (!this.#isOn) return true;
    const isLate = this.#timeoutMs > 0 && clock.now - this.#since > this.#timeoutMs;
    // Their servers are needed until the last of the clients has what it is owed.
    return this.#suspendClients(isLate) && this.#suspendServers(isLate);
  }

  end(): void {
    if (!this.#isOn) return;
    this.#isOn = false;
    for (const pool of this.#pools.all) {
      for (const list of [pool.linked, pool.idle, pool.held]) {
        for (const server of list) server.link.unsuspend();
      }
    }
    for (const session of this.#sessions) session.link.unsuspend();
  }

  #suspendClients(isLate: boolean): boolean {
    let isQuiet = true;
    for (const session of this.#sessions) {
      const { link } = session;
      if (link.isSuspended || session.isConsole || session.isClosed) continue;
      if (isAtRest(session)) link.suspend();
      else if (isLate) session.fatal('suspend_timeout');
      else isQuiet = false;
    }
    return isQuiet;
  }

  #suspendServers(isLate: boolean): boolean {
    let isQuiet = true;
    for (const pool of this.#pools.all) {
      for (const list of [pool.tested, pool.used]) {
        for (const server of list) server.close('close unsafe file descriptors on suspend');
      }
      for (const list of [pool.linked, pool.idle, pool.held]) {
        for (const server of list) {
          if (server.link.isSuspended) continue;
          const isTaken = server.client?.link.isFull !== true;
          if (server.isAtBoundary && isTaken) server.link.suspend();
          else if (isLate) server.close('suspend_timeout');
          else isQuiet = false;
        }
      }
    }
    return isQuiet;
  }
}

/**
 * Nothing that it sent waits for its own end. What waits for a server is kept: PgBouncer would close
 * its client at the end of `suspend_timeout`, for suspended ones may hold all servers till RESUME.
 */
function isAtRest({ state, link, isMidMessage, isWaiting }: ClientSession): boolean {
  if (isWaiting) return true;
  return state !== ClientState.login && link.stashBytes === 0 && !isMidMessage;
}
