import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { query, reportFields, startup, textRows, type WireMessage } from './messages.ts';
import type { TestPooler } from './pooler.ts';
import { type LoginOptions, WireClient } from './wire-client.ts';

/** One session of a pooler's console, of whose commands some are answered late. */
export class ConsoleClient {
  readonly wire: WireClient;

  constructor(wire: WireClient) {
    this.wire = wire;
  }

  /** A session that is closed with the test; `postgres` is the admin user of every test pooler. */
  static async open(t: TestContext, pooler: TestPooler, user = 'postgres'): Promise<ConsoleClient> {
    const wire = await WireClient.login(pooler, { user, database: 'pgbouncer' });
    t.after(() => wire.destroy());
    return new ConsoleClient(wire);
  }

  /** The command's tag, or its error as `ERROR SQLSTATE text`. */
  async run(sql: string): Promise<string> {
    this.begin(sql);
    return this.answer();
  }

  /** Gives a command whose answer is asked for later, by `answer`. */
  begin(sql: string): void {
    this.wire.send(query(sql));
  }

  /** The next answer, as that of `run`. */
  async answer(deadlineMs?: number): Promise<string> {
    return withSuspend(answerOf(await this.wire.untilReady(deadlineMs)));
  }

  /** Fails when something has been answered that was begun; asks something else to find out. */
  async isPending(): Promise<void> {
    assert.equal(await this.run('SHOW VERSION'), 'SHOW', 'the answer has come already');
  }

  /** Rows of a SHOW command, by the names of its columns. */
  async rows(sql: string): Promise<Record<string, string | null>[]> {
    const messages = await this.wire.query(sql);
    const head = messages.find(({ type }) => type === 'T');
    assert.ok(head, `${sql}: ${answerOf(messages)}`);
    const names = columnNames(head.body);
    return textRows(messages).map((row) =>
      Object.fromEntries(names.map((name, at) => [name, row[at] ?? null])),
    );
  }

  /** Nothing pauses or suspends all of it; an admin's question that every version understands. */
  async isActive(): Promise<boolean> {
    return (await this.run('PAUSE pgbouncer')).endsWith('cannot pause admin db: pgbouncer');
  }

  /** `active`, `paused` or `suspended`, as SHOW STATE says. */
  async state(): Promise<string> {
    const rows = await this.rows('SHOW STATE');
    return String(rows.find(({ value }) => value === 'yes')?.['key']);
  }

  /**
   * What is paused and disabled, as each worker of a fleet has it: `paused app:01 other:10`, where the
   * digits are `paused` and `disabled` of the database.
   */
  async workerStates(databases: readonly string[] = ['app', 'other']): Promise<string[]> {
    const states = await this.rows('SHOW STATE BY PROCESS');
    const rows = await this.rows('SHOW DATABASES BY PROCESS');
    const flagsOf = (process: string | null, database: string): string => {
      const row = rows.find((one) => one['process'] === process && one['name'] === database);
      return `${database}:${row?.['paused'] ?? '-'}${row?.['disabled'] ?? '-'}`;
    };
    return states
      .filter(({ value }) => value === 'yes')
      .map(({ process, key }) =>
        [key, ...databases.map((name) => flagsOf(process ?? null, name))].join(' '),
      );
  }

  /** A column of SHOW POOLS, summed over the pools of a database. */
  async poolSum(database: string, column: string): Promise<number> {
    const rows = await this.rows('SHOW POOLS');
    return rows
      .filter((row) => row['database'] === database)
      .reduce((sum, row) => sum + Number(row[column]), 0);
  }

  /** A column of a database's row in SHOW DATABASES. */
  async ofDatabase(database: string, column: string): Promise<string | null | undefined> {
    const rows = await this.rows('SHOW DATABASES');
    return rows.find(({ name }) => name === database)?.[column];
  }
}

/** PgBouncer 1.26 knows no SUSPEND any more, and does not name it in these two texts. */
function withSuspend(answer: string): string {
  if (answer === 'ERROR 08P01 already paused') return 'ERROR 08P01 already suspended/paused';
  return answer === 'ERROR 08P01 pooler is not paused' ? `${answer}/suspended` : answer;
}

function answerOf(messages: readonly WireMessage[]): string {
  const error = messages.find(({ type }) => type === 'E');
  if (error !== undefined) {
    const { S, C, M } = reportFields(error.body);
    return `${S} ${C} ${M}`;
  }
  const complete = messages.find(({ type }) => type === 'C');
  assert.ok(complete, 'neither a tag nor an error has come');
  return complete.body.toString('utf8', 0, complete.body.length - 1);
}

/** Names of a RowDescription. */
function columnNames(body: Buffer): string[] {
  const names: string[] = [];
  for (let at = 2, left = body.readInt16BE(0); left > 0; left--) {
    const end = body.indexOf(0, at);
    names.push(body.toString('utf8', at, end));
    at = end + 1 + 18;
  }
  return names;
}

/** A client that is closed with the test. */
export async function loginUntilEnd(
  t: TestContext,
  pooler: TestPooler,
  who: LoginOptions = {},
): Promise<WireClient> {
  const client = await WireClient.login(pooler, who);
  t.after(() => client.destroy());
  return client;
}

/**
 * Clients that log in and ask for something in one breath: while paused they wait, be it for the
 * welcome or, where a worker has that at hand, for a server.
 */
export async function beginLogins(
  t: TestContext,
  pooler: TestPooler,
  count: number,
): Promise<WireClient[]> {
  const clients = Array.from({ length: count }, () => WireClient.connect(pooler));
  for (const client of await Promise.all(clients)) {
    t.after(() => client.destroy());
    client.send(startup({ user: 'app', database: 'app' }), query('SELECT 1'));
  }
  return Promise.all(clients);
}

/** The one value that a query returns. */
export async function resultOf(client: WireClient, sql: string): Promise<string> {
  const [row] = textRows(await client.query(sql));
  return String(row?.[0]);
}

/** SQLSTATE and text of the FATAL that a client is closed with. */
export async function fatalOf(client: WireClient): Promise<string> {
  const error = (await client.untilClose()).findLast(({ type }) => type === 'E');
  assert.ok(error, 'the client was closed without an error');
  const { C, M } = reportFields(error.body);
  return `${C} ${M}`;
}
