import assert from 'node:assert/strict';
import pg from 'pg';
import { onEveryFleet, type Place, type Rules } from '../support/grid.ts';

/** The npm package `pg`, as applications use it. */

const RULES: Rules = {
  'simple and parameterised queries are answered with their rows': async ({ fleet }) => {
    const client = await fleet.client();
    const simple = await client.query("SELECT 1 AS n, 'Ünïcode – 😀' AS text");
    assert.deepEqual(simple.rows, [{ n: 1, text: 'Ünïcode – 😀' }]);
    const many = (await client.query(
      'SELECT 1 AS a; SELECT 2 AS b',
    )) as unknown as pg.QueryResult[];
    assert.deepEqual(
      many.map(({ rows }) => rows[0]),
      [{ a: 1 }, { b: 2 }],
    );
    const bytes = Buffer.from([0, 1, 255, 254]);
    const { rows } = await client.query('SELECT $1::bytea AS b, $2::jsonb AS j, $3::int[] AS a', [
      bytes,
      { deep: [1, null] },
      [1, 2, 3],
    ]);
    assert.deepEqual(rows, [{ b: bytes, j: { deep: [1, null] }, a: [1, 2, 3] }]);
    assert.deepEqual((await client.query('')).rows, []);
    await client.end();
  },

  'a named statement serves on whichever server the client gets': async ({ fleet }) => {
    const clients = await connected(fleet, 8);
    const ask = async (client: pg.Client, n: number): Promise<void> => {
      const plus = { name: 'plus', text: 'SELECT $1::int + 1 AS n' };
      assert.equal((await client.query({ ...plus, values: [n] })).rows[0].n, n + 1);
      const times = { name: 'times', text: 'SELECT $1::int * 2 AS n' };
      assert.equal((await client.query({ ...times, values: [n] })).rows[0].n, n * 2);
    };
    for (let round = 0; round < 10; round++) {
      await Promise.all(clients.map((client, index) => ask(client, round * 100 + index)));
    }
    await ended(clients);
  },

  'the same name stands for a statement of its own with each client': async ({ fleet }) => {
    const clients = await connected(fleet, 6);
    for (let round = 0; round < 5; round++) {
      const answers = clients.map((client, index) =>
        client.query({ name: 'mine', text: `SELECT ${index} AS n, $1::int AS r`, values: [round] }),
      );
      const rows = (await Promise.all(answers)).map((answer) => answer.rows[0]);
      assert.deepEqual(
        rows,
        clients.map((_, index) => ({ n: index, r: round })),
      );
    }
    await ended(clients);
  },

  'a transaction stays on one server, and is undone or kept as told': async ({ fleet }) => {
    const client = await fleet.client();
    await client.query('DROP TABLE IF EXISTS pg_kept; CREATE TABLE pg_kept (n int)');
    await client.query('BEGIN');
    const before = await backend(client);
    await client.query('INSERT INTO pg_kept VALUES ($1)', [1]);
    assert.equal(await backend(client), before);
    await client.query('ROLLBACK');
    assert.equal((await client.query('SELECT * FROM pg_kept')).rowCount, 0);
    await client.query('BEGIN');
    await client.query('INSERT INTO pg_kept VALUES ($1)', [2]);
    await client.query('SAVEPOINT s');
    await client.query('INSERT INTO pg_kept VALUES ($1)', [3]);
    await client.query('ROLLBACK TO s');
    await client.query('COMMIT');
    assert.deepEqual((await client.query('SELECT * FROM pg_kept')).rows, [{ n: 2 }]);
    await client.end();
  },

  'an error fails one statement, and inside a transaction all until its end': async ({ fleet }) => {
    const client = await fleet.client();
    await assert.rejects(client.query('SELECT 1/0'), { code: '22012' });
    await assert.rejects(client.query('SELECT $1::int', ['x']), { code: '22P02' });
    const broken = { name: 'broken', text: 'SELECT nothing FROM nowhere' };
    await assert.rejects(client.query(broken), { code: '42P01' });
    await assert.rejects(client.query(broken), { code: '42P01' });
    const divide = { name: 'divide', text: 'SELECT 1 / $1::int AS n' };
    await assert.rejects(client.query({ ...divide, values: [0] }), { code: '22012' });
    assert.deepEqual((await client.query({ ...divide, values: [1] })).rows, [{ n: 1 }]);
    await client.query('BEGIN');
    await assert.rejects(client.query('SELECT $1::int', ['x']), { code: '22P02' });
    await assert.rejects(client.query('SELECT 1'), { code: '25P02' });
    await assert.rejects(client.query({ ...divide, values: [1] }), { code: '25P02' });
    await client.query('ROLLBACK');
    assert.deepEqual((await client.query({ ...divide, values: [1] })).rows, [{ n: 1 }]);
    await client.end();
  },

  'cursors and portals with a row limit go on where they stopped': async ({ fleet }) => {
    const client = await fleet.client();
    await client.query('BEGIN');
    await client.query('DECLARE c CURSOR FOR SELECT generate_series(1, 1000) AS n');
    const sums: number[] = [];
    for (;;) {
      const { rows } = await client.query<{ n: number }>('FETCH 300 FROM c');
      if (rows.length === 0) break;
      sums.push(rows.length);
    }
    assert.deepEqual(sums, [300, 300, 300, 100]);
    await client.query('COMMIT');
    // A row limit makes pg send Execute and Flush again and again, and Sync at the end.
    const limited: pg.QueryConfig & { rows: number } = {
      text: 'SELECT generate_series(1, $1::int) AS n',
      values: [1000],
      rows: 70,
    };
    const { rows } = await client.query<{ n: number }>(limited);
    assert.deepEqual(
      rows.map(({ n }) => n),
      Array.from({ length: 1000 }, (_, index) => index + 1),
    );
    await client.end();
  },

  'COPY moves rows in and out, and one that fails leaves a usable client': async ({ fleet }) => {
    const client = await fleet.client();
    await client.query('DROP TABLE IF EXISTS pg_copied; CREATE TABLE pg_copied (n int, t text)');
    const lines = Array.from(
      { length: 5_000 },
      (_, n) => `${n}\tline ${n} ${'x'.repeat(n % 50)}\n`,
    );
    const into = new Copy('COPY pg_copied FROM STDIN', lines);
    assert.equal(await into.run(client), 'COPY 5000');
    const out = new Copy('COPY (SELECT * FROM pg_copied ORDER BY n) TO STDOUT');
    assert.equal(await out.run(client), 'COPY 5000');
    assert.ok(out.received() === lines.join(''));
    const bad = new Copy('COPY pg_copied FROM STDIN', ['1\tgood\n', 'bad\tbad\n', ...lines]);
    await assert.rejects(bad.run(client), { code: '22P02' });
    const given = new Copy('COPY pg_copied FROM STDIN', ['1\tgood\n'], 'changed my mind');
    await assert.rejects(given.run(client), { code: '57014', message: /changed my mind/ });
    assert.equal((await client.query('SELECT count(*)::int AS n FROM pg_copied')).rows[0].n, 5000);
    await client.end();
  },

  'a pool of twenty serves two hundred callers, none of them with the rows of another': async ({
    fleet,
  }) => {
    const pool = new pg.Pool({ connectionString: fleet.url(), max: 20 });
    const callers = Array.from({ length: 200 }, async (_, caller) => {
      const text = 'SELECT $1::int AS n, $2::text AS mark';
      const named = caller % 2 === 0 ? { name: `q${caller % 7}` } : {};
      const values = [caller, `mark ${caller}`];
      const { rows } = await pool.query({ ...named, text, values });
      assert.deepEqual(rows, [{ n: caller, mark: `mark ${caller}` }]);
      if (caller % 5 === 0) await inTransaction(pool, caller);
    });
    await Promise.all(callers);
    await pool.end();
  },

  'queries sent ahead of their answers are answered in order': async ({ fleet }) => {
    const client = await fleet.client({ pipeline: true } as pg.ClientConfig);
    const numbers = Array.from({ length: 100 }, (_, n) => n);
    const answers = numbers.map(async (n) => {
      const named = n % 3 === 0 ? { name: `p${n % 9}` } : {};
      const { rows } = await client.query({ ...named, text: 'SELECT $1::int AS n', values: [n] });
      return rows[0].n as number;
    });
    assert.deepEqual(await Promise.all(answers), numbers);
    const mixed = await Promise.allSettled(
      numbers.map((n) => client.query('SELECT 10 / $1::int AS n', [n % 4])),
    );
    assert.deepEqual(
      mixed.map(({ status }) => status),
      numbers.map((n) => (n % 4 === 0 ? 'rejected' : 'fulfilled')),
    );
    await client.end();
  },
};

onEveryFleet('pg', RULES);

async function connected(fleet: Place['fleet'], count: number): Promise<pg.Client[]> {
  return Promise.all(Array.from({ length: count }, () => fleet.client()));
}

async function ended(clients: readonly pg.Client[]): Promise<void> {
  await Promise.all(clients.map((client) => client.end()));
}

async function backend(client: pg.ClientBase): Promise<number> {
  return (await client.query('SELECT pg_backend_pid() AS pid')).rows[0].pid;
}

async function inTransaction(pool: pg.Pool, caller: number): Promise<void> {
  const client = await pool.connect();
  await client.query('BEGIN');
  // Session state that is gone with the transaction shows whether the server changed hands in it.
  await client.query("SELECT set_config('grid.caller', $1, true)", [String(caller)]);
  const { rows } = await client.query("SELECT current_setting('grid.caller') AS caller");
  assert.equal(rows[0].caller, String(caller));
  await client.query('COMMIT');
  client.release();
}

/** The part of pg's connection that COPY needs; pg leaves COPY to queries of the caller's making. */
interface CopyConnection {
  query(text: string): void;
  sendCopyFromChunk(chunk: Buffer): void;
  endCopyFrom(): void;
  sendCopyFail(reason: string): void;
}

/** A COPY as pg's query queue runs it: the connection calls the `handle` methods. */
class Copy {
  readonly #sql: string;
  readonly #lines: readonly string[];
  readonly #failure: string | null;
  readonly #chunks: Buffer[] = [];
  #tag = '';
  #error: Error | null = null;
  #settle: () => void = () => undefined;

  constructor(sql: string, lines: readonly string[] = [], failure: string | null = null) {
    this.#sql = sql;
    this.#lines = lines;
    this.#failure = failure;
  }

  /** Runs it and returns the command tag. */
  async run(client: pg.Client): Promise<string> {
    const settled = new Promise<void>((resolve) => {
      this.#settle = resolve;
    });
    client.query(this as unknown as pg.Submittable);
    await settled;
    if (this.#error !== null) throw this.#error;
    return this.#tag;
  }

  received(): string {
    return Buffer.concat(this.#chunks).toString('utf8');
  }

  submit(connection: CopyConnection): void {
    connection.query(this.#sql);
  }

  handleCopyInResponse(connection: CopyConnection): void {
    for (const line of this.#lines) connection.sendCopyFromChunk(Buffer.from(line));
    if (this.#failure === null) connection.endCopyFrom();
    else connection.sendCopyFail(this.#failure);
  }

  handleCopyData(message: { readonly chunk: Buffer }): void {
    // pg's parser uses its memory again.
    this.#chunks.push(Buffer.from(message.chunk));
  }

  handleCommandComplete(message: { readonly text: string }): void {
    this.#tag = message.text;
  }

  /** pg passes no ReadyForQuery to a query that has failed. */
  handleError(error: Error): void {
    this.#error = error;
    this.#settle();
  }

  handleReadyForQuery(): void {
    this.#settle();
  }
}
