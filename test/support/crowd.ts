import type { TestContext } from 'node:test';
import { query, textRows } from './messages.ts';
import type { TestPooler } from './pooler.ts';
import type { RuleCheck } from './rule.ts';
import { until } from './until.ts';
import { type LoginOptions, WireClient, WireError } from './wire-client.ts';

/** The clients of one test before one pooler; all of them go when it ends. */
export class Crowd {
  readonly pooler: TestPooler;
  readonly #clients: WireClient[] = [];

  constructor(pooler: TestPooler) {
    this.pooler = pooler;
  }

  /** A client that is connected and has said nothing. */
  async connect(): Promise<WireClient> {
    const client = await WireClient.connect(this.pooler);
    this.#clients.push(client);
    return client;
  }

  /** A client that has its welcome. */
  async login(options: LoginOptions = {}): Promise<WireClient> {
    const client = await this.connect();
    await client.login(options);
    return client;
  }

  /** A client whose open transaction keeps a server from the others. */
  async holder(options: LoginOptions = {}): Promise<WireClient> {
    const client = await this.login(options);
    await client.query('BEGIN');
    return client;
  }

  /** A client that has its welcome, has asked, and waits for a server, or has done so in vain. */
  async queued(options: LoginOptions = {}, sql = 'SELECT 1'): Promise<WireClient> {
    const client = await this.login(options);
    const before = await this.waiting();
    client.send(query(sql));
    await until(
      'the client is queued',
      async () => client.isClosed || (await this.waiting()) > before,
    );
    return client;
  }

  /** Clients in the queues of all pools. */
  async waiting(): Promise<number> {
    return this.sum('cl_waiting');
  }

  /** Sum of a column of SHOW POOLS. */
  async sum(column: string): Promise<number> {
    const pools = await this.pooler.console('SHOW POOLS');
    return pools.reduce((total, row) => total + Number(row[column]), 0);
  }

  /**
   * Rows of SHOW SERVERS for a database, but for connections that have been closed and wait for the
   * server's end: PgBouncer has no row for these.
   */
  async servers(database = 'app'): Promise<Record<string, string | null>[]> {
    const rows = await this.pooler.console('SHOW SERVERS');
    return rows.filter((row) => row['database'] === database && row['state'] !== 'closing');
  }

  leave(): void {
    for (const client of this.#clients) client.destroy();
  }
}

/** A rule's check that is given a crowd. */
export function crowded(check: (crowd: Crowd, t: TestContext) => Promise<void>): RuleCheck {
  return async (pooler, t) => {
    const crowd = new Crowd(pooler);
    try {
      await check(crowd, t);
    } finally {
      crowd.leave();
    }
  };
}

/** What the connection ended with: `FATAL 08P01: text`, or `closed` when nothing was said. */
export async function ending(client: WireClient, deadlineMs?: number): Promise<string> {
  const received = await client.untilClose(deadlineMs);
  const last = received.at(-1);
  return last?.type === 'E' ? new WireError(last.body).message : 'closed';
}

/** The one value that a query brings. */
export async function fetchValue(
  client: WireClient,
  sql: string,
  deadlineMs?: number,
): Promise<string | null> {
  const answer = await client.query(sql, deadlineMs);
  const error = answer.find(({ type }) => type === 'E');
  if (error !== undefined) throw new WireError(error.body);
  return textRows(answer)[0]?.[0] ?? null;
}
