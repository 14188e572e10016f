import assert from 'node:assert/strict';
import pg from 'pg';
import { query, reportFields } from './messages.ts';
import type { TestPooler } from './pooler.ts';
import type { TestPostgres } from './postgres.ts';
import { until } from './until.ts';
import { type LoginOptions, WireClient } from './wire-client.ts';

const TABLE = 'load_rows';
/** As long as a client may have to wait for anything on a busy machine. */
const PATIENCE_MS = 60_000;

let lastWriter = 0;

/** One client and what has become of its transactions. */
interface Writer {
  readonly id: number;
  readonly client: WireClient;
  /** Transactions whose COMMIT was answered. */
  acknowledged: number;
  /** A COMMIT is on its way. */
  isCommitting: boolean;
}

/**
 * Clients that insert a row each, in a transaction of three statements, one after the other until
 * told to stop; so that it can be told afterwards whether any transaction was lost or done twice.
 */
export class Load {
  /** What ended a client before `stop`, and how often. */
  readonly ends = new Map<string, number>();
  readonly #postgres: TestPostgres;
  readonly #writers: readonly Writer[];
  readonly #loops: Promise<void>[];
  #isStopped = false;

  private constructor(postgres: TestPostgres, clients: readonly WireClient[]) {
    this.#postgres = postgres;
    this.#writers = clients.map((client) => ({
      id: ++lastWriter,
      client,
      acknowledged: 0,
      isCommitting: false,
    }));
    this.#loops = this.#writers.map((writer) => this.#loop(writer));
  }

  /** Logs in one client for each entry of `logins`; all of them mean the database `app` in the end. */
  static async begin(
    pooler: TestPooler,
    postgres: TestPostgres,
    logins: readonly LoginOptions[] = Array.from({ length: 24 }, () => ({})),
  ): Promise<Load> {
    await inApp(postgres, async (app) => {
      await app.query(
        `CREATE TABLE IF NOT EXISTS ${TABLE} (writer int, n int, PRIMARY KEY (writer, n))`,
      );
      await app.query(`GRANT SELECT, INSERT ON ${TABLE} TO PUBLIC`);
    });
    const clients = logins.map((options) => WireClient.login(pooler, options));
    return new Load(postgres, await Promise.all(clients));
  }

  get clients(): readonly WireClient[] {
    return this.#writers.map(({ client }) => client);
  }

  /** Transactions that have been committed. */
  get count(): number {
    return this.#writers.reduce((sum, { acknowledged }) => sum + acknowledged, 0);
  }

  /** Waits until it has come further, several turns a client. */
  async goesOn(): Promise<void> {
    const wanted = this.count + 3 * this.#writers.length;
    await until('the load goes on', () => this.count > wanted || this.ends.size > 0, {
      deadlineMs: PATIENCE_MS,
    });
    assert.deepEqual([...this.ends], []);
  }

  /** Waits until every client has been closed. */
  async isOver(): Promise<void> {
    await Promise.all(this.#loops);
  }

  /**
   * Lets every client finish its transaction, closes it and looks whether all that was acknowledged
   * is there, once, and nothing else.
   */
  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.isOver();
    await Promise.all(this.clients.map((client) => client.end()));
    assert.deepEqual([...this.ends], []);
    await this.nothingIsLost();
  }

  /** Of a client that was cut off while its COMMIT was under way nobody knows whether that was done. */
  async nothingIsLost(): Promise<void> {
    const rows = await inApp(this.#postgres, (app) =>
      app.query(`SELECT writer, count(*)::int AS count FROM ${TABLE} GROUP BY writer`),
    );
    const counts = new Map(rows.rows.map(({ writer, count }) => [writer, count]));
    for (const { id, acknowledged, isCommitting } of this.#writers) {
      const count = counts.get(id) ?? 0;
      const most = acknowledged + (isCommitting ? 1 : 0);
      const text = `writer ${id}: ${acknowledged} acknowledged, ${count} there`;
      assert.ok(count >= acknowledged && count <= most, text);
    }
  }

  async #loop(writer: Writer): Promise<void> {
    try {
      while (!this.#isStopped) {
        const insert = `INSERT INTO ${TABLE} VALUES (${writer.id}, ${writer.acknowledged})`;
        for (const sql of ['BEGIN', insert, 'COMMIT']) {
          writer.isCommitting = sql === 'COMMIT';
          if (!(await this.#run(writer.client, sql))) return;
        }
        writer.isCommitting = false;
        writer.acknowledged++;
      }
    } catch (error) {
      this.#note(String(error));
    }
  }

  /** False when it has failed. */
  async #run(client: WireClient, sql: string): Promise<boolean> {
    client.send(query(sql));
    for (;;) {
      const { type, body } = await client.next(PATIENCE_MS);
      if (type === 'Z') return true;
      if (type === 'C' && body.toString('latin1') === 'ROLLBACK\0') {
        this.#note(`${sql} was answered with ROLLBACK`);
        return false;
      }
      if (type !== 'E') continue;
      const { C, M } = reportFields(body);
      this.#note(`${C} ${M}`);
      return false;
    }
  }

  #note(end: string): void {
    this.ends.set(end, (this.ends.get(end) ?? 0) + 1);
  }
}

/** Does something in the database `app` itself. */
async function inApp<T>(postgres: TestPostgres, work: (app: pg.Client) => Promise<T>): Promise<T> {
  const app = new pg.Client({ connectionString: postgres.url('app', 'postgres') });
  await app.connect();
  try {
    return await work(app);
  } finally {
    await app.end();
  }
}
