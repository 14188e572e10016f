import type { LearnedSecrets } from '../auth/learned-secrets.ts';
import { classifySecret, type StoredSecret } from '../auth/secret.ts';
import type { DatabaseEntry } from '../config/config.ts';
import {
  type ConfigIndex,
  effectiveAuthDbname,
  effectiveAuthQuery,
  effectiveAuthUser,
  effectiveQueryWaitTimeout,
} from '../config/effective.ts';
import { log } from '../log/logger.ts';
import { inTurn } from '../net/turn.ts';
import type { PoolSet } from '../pool/pool-set.ts';
import { clock } from '../util/clock.ts';
import {
  AuthQueryClient,
  type AuthQueryOutcome,
  type AuthQuestion,
  CONFIG_ERROR,
} from './auth-query-client.ts';
import type { ClientSession } from './client-session.ts';
import type { UserLookup } from './context.ts';

/** Longest database name that PgBouncer makes from `*`. */
const MAX_DATABASE_BYTES = 63;
const CONSOLE = 'pgbouncer';
/** What `auth_file` need not know, another service or nobody is asked for. */
const WITHOUT_QUERY: ReadonlySet<string> = new Set(['any', 'pam', 'ldap']);
const EMPTY: StoredSecret = classifySecret('');
const UNKNOWN: UserLookup = { kind: 'found', secret: null };

/** A lookup that another worker makes, because this one has no slot for its pool. */
export interface RemoteQuestion {
  /** The database that the client wants; null: the console. */
  readonly database: string | null;
  readonly user: string;
  readonly ptr: string;
  /** Milliseconds since the client came. */
  readonly ageMs: number;
}

/** What lookups need of the worker. */
export interface AuthQueryRooms {
  readonly worker: number;
  readonly index: () => ConfigIndex;
  readonly pools: () => PoolSet;
  /** The entry of `auth_file`. */
  readonly secretOf: (user: string) => StoredSecret | undefined;
  readonly learned: LearnedSecrets;
  /** Workers that may open a connection of the pool, the best first. */
  readonly holders: (entry: DatabaseEntry, user: string) => readonly number[];
  /** Has another worker look a name up. @throws Error when it cannot be reached */
  readonly askWorker: (
    worker: number,
    question: RemoteQuestion,
    gone: AbortSignal,
  ) => Promise<AuthQueryOutcome>;
}

/** Where a name is looked up, as whom and how. */
interface QueryPlan {
  readonly entry: DatabaseEntry;
  readonly authUser: string;
  readonly query: string;
}

/**
 * What is stored for login names (PgBouncer's `auth_file`, then `auth_query`). The query is asked at
 * every login, through the ordinary pool of the auth database and `auth_user`. A worker without a
 * slot for that pool has one that has some ask.
 */
export class AuthQueries {
  readonly #rooms: AuthQueryRooms;
  readonly #running = new Set<AuthQueryClient>();

  constructor(rooms: AuthQueryRooms) {
    this.#rooms = rooms;
  }

  /** What is stored for `user`, who wants the database of `entry` or, without one, what `session` does. */
  find(
    user: string,
    entry: DatabaseEntry | null,
    session: ClientSession,
  ): UserLookup | Promise<UserLookup> {
    const known = this.#rooms.secretOf(user);
    if (known !== undefined) return { kind: 'found', secret: known };
    const index = this.#rooms.index();
    const isConsole = session.databaseName === CONSOLE;
    // Asking for a name in a database that nobody has would tell that it is there.
    if (entry === null && !isConsole) return UNKNOWN;
    if (authUserOf(index, entry) === null) return UNKNOWN;
    const plan = this.#plan(index, entry, session.prefixed(''));
    if ('refusal' in plan) return refused(plan.refusal);
    return new Promise((resolve) => {
      const question = { user, entry, session };
      session.giveUpLookup = this.#start(plan, question, (outcome) =>
        resolve(this.#judge(outcome, user, entry, session)),
      );
    });
  }

  /** Looks a name up for another worker; `gone` says that nobody waits any more. */
  answer(question: RemoteQuestion, gone: AbortSignal): Promise<AuthQueryOutcome> {
    const { database, user, ptr, ageMs } = question;
    const index = this.#rooms.index();
    const entry = database === null ? null : index.database(database);
    const isKnown = database === null || entry !== null;
    if (!isKnown || authUserOf(index, entry) === null) return Promise.resolve(CONFIG_ERROR);
    const plan = this.#plan(index, entry, `C-${ptr}: `);
    if ('refusal' in plan) {
      return Promise.resolve({ kind: 'refused', sqlstate: '08P01', text: plan.refusal });
    }
    return new Promise((resolve) => {
      inTurn(() => {
        const connectedAt = clock.now - ageMs;
        const giveUp = this.#run(
          plan,
          this.#question(plan, entry, user, ptr, connectedAt),
          resolve,
        );
        gone.addEventListener('abort', () => inTurn(giveUp), { once: true });
      });
    });
  }

  /** Ends the queries that take longer than `client_login_timeout`; three times a second. */
  tick(now: number): void {
    const loginMs = this.#rooms.index().settings.client_login_timeout * 1000;
    if (loginMs === 0) return;
    for (const client of this.#running) {
      // As long as it is queued, its pool looks at the time.
      if (client.isQueued || now - client.connectedAt <= loginMs) continue;
      client.refuse('08P01', 'client_login_timeout');
    }
  }

  /** The plan for clients of `entry`, null being the console; or the text of a refusal. */
  #plan(
    index: ConfigIndex,
    entry: DatabaseEntry | null,
    prefix: string,
  ): QueryPlan | { readonly refusal: string } {
    const name = effectiveAuthDbname(index, entry) ?? entry?.name ?? CONSOLE;
    if (name === CONSOLE) {
      log.error(`${prefix}cannot use the reserved "${name}" database as an auth_dbname`);
      return { refusal: 'bouncer config error' };
    }
    const isTooLong = Buffer.byteLength(name) > MAX_DATABASE_BYTES;
    const authEntry = isTooLong ? null : index.database(name);
    if (authEntry === null) {
      log.error(`${prefix}authentication database "${name}" is not configured.`);
      return { refusal: 'bouncer config error' };
    }
    const pools = this.#rooms.pools();
    if (!index.hasDatabase(name) && !pools.hasDatabase(name)) {
      log.info(`${prefix}registered new auto-database: ${name}`);
    }
    if (pools.database(authEntry).isDisabled) {
      return { refusal: `authentication database "${name}" is disabled` };
    }
    const authUser = effectiveAuthUser(index, entry)!;
    return { entry: authEntry, authUser, query: effectiveAuthQuery(index, entry) };
  }

  /** Asks here, or in a worker that has slots. Returns what gives the question up. */
  #start(
    plan: QueryPlan,
    { user, entry, session }: { user: string; entry: DatabaseEntry | null; session: ClientSession },
    done: (outcome: AuthQueryOutcome) => void,
  ): () => void {
    const { worker, holders } = this.#rooms;
    const places = holders(plan.entry, plan.authUser);
    if (places.includes(worker)) {
      const { ptr, connectedAt } = session;
      return this.#run(plan, this.#question(plan, entry, user, ptr, connectedAt), done);
    }
    const gone = new AbortController();
    const question: RemoteQuestion = {
      database: entry?.name ?? null,
      user,
      ptr: session.ptr,
      ageMs: clock.now - session.connectedAt,
    };
    void this.#askOthers(places, question, gone.signal).then((outcome) => {
      if (!gone.signal.aborted) inTurn(() => done(outcome));
    });
    return () => gone.abort();
  }

  async #askOthers(
    places: readonly number[],
    question: RemoteQuestion,
    gone: AbortSignal,
  ): Promise<AuthQueryOutcome> {
    for (const place of places) {
      try {
        return await this.#rooms.askWorker(place, question, gone);
      } catch (error) {
        if (gone.aborted) break;
        log.warning(`auth_query: ${(error as Error).message}`);
      }
    }
    const text = 'the worker that has a slot for this pool cannot be reached';
    return { kind: 'refused', sqlstate: '08P01', text };
  }

  #question(
    { query }: QueryPlan,
    entry: DatabaseEntry | null,
    name: string,
    ptr: string,
    connectedAt: number,
  ): AuthQuestion {
    const index = this.#rooms.index();
    const queryWaitTimeout =
      entry === null
        ? index.settings.query_wait_timeout
        : effectiveQueryWaitTimeout(index, entry, name);
    return { query, name, ptr, connectedAt, queryWaitTimeout };
  }

  #run(
    { entry, authUser }: QueryPlan,
    question: AuthQuestion,
    done: (outcome: AuthQueryOutcome) => void,
  ): () => void {
    const pools = this.#rooms.pools();
    const pool = pools.get(pools.database(entry), authUser);
    const client = new AuthQueryClient(pool, question, (outcome) => {
      this.#running.delete(client);
      done(outcome);
    });
    this.#running.add(client);
    client.begin();
    return () => {
      this.#running.delete(client);
      client.giveUp();
    };
  }

  /** What an answer says of a name, for the client that is logging in. */
  #judge(
    outcome: AuthQueryOutcome,
    user: string,
    entry: DatabaseEntry | null,
    session: ClientSession,
  ): UserLookup {
    const index = this.#rooms.index();
    const { learned } = this.#rooms;
    if (outcome.kind === 'refused') return outcome;
    if (outcome.kind === 'none') {
      // It goes on, and fails like a wrong password: whether a name exists is nobody's business.
      if (index.user(user) !== null || learned.knows(user)) return { kind: 'found', secret: EMPTY };
      return UNKNOWN;
    }
    // PgBouncer takes the name of the answer for the login name: a client could become somebody else.
    if (outcome.row.name !== user) {
      log.error(
        session.prefixed('auth_query has answered with another name than it was asked for'),
      );
      return refused('bouncer config error');
    }
    const secret = learned.learn(entry?.name ?? CONSOLE, user, outcome.row.secret);
    return { kind: 'found', secret };
  }
}

/** Whom the names of a database are asked as, null being the console; null: they are not. */
export function authUserOf(index: ConfigIndex, entry: DatabaseEntry | null): string | null {
  if (WITHOUT_QUERY.has(index.settings.auth_type)) return null;
  return effectiveAuthUser(index, entry);
}

function refused(text: string): UserLookup {
  return { kind: 'refused', sqlstate: '08P01', text };
}
